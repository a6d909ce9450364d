"""One file of HTML that shows what recordings hold, `page.page`, and a part of it for a notebook, `cell.cell`.

It needs no network and, but for the timeline, no JavaScript.

    page.py       joins the parts
    cell.py       joins those that a notebook shows
    sections.py   what is shown of one recording, as HTML
    shares.py     what the sections show, as figures
    charts.py     bars, histograms and areas
    timeline.py   what the timeline draws, as JSON
    page.js       draws the timeline; wording.js is telemetry/formatting.py once more, for its labels
    wording.py    text as HTML takes it
"""
