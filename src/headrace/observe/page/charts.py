"""Charts as HTML and inline SVG: the shapes stretch, the text beside them does not."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence

import numpy as np
import numpy.typing as npt

from headrace.observe.page.shares import Floats, Piece
from headrace.observe.page.wording import short, text
from headrace.telemetry.formatting import count, percent, seconds, size
from headrace.telemetry.remote_reads import TrafficWindow

BINS = 36
"""Bars of a histogram."""
POINTS = 400
"""Points of a curve: of more, the highest of each stretch is kept."""
WIDE_SPREAD = 12.0
"""From this ratio of the longest to the shortest time on, the axis is logarithmic."""
STEPS_OF_CLOCKS = (
    60.0, 120.0, 300.0, 600.0, 1200.0, 1800.0,
    3600.0, 7200.0, 21600.0, 43200.0, 86400.0, 172800.0, 604800.0, 2592000.0,
)  # fmt: skip
"""Seconds: round numbers of minutes, then of hours, days, a week and a month of 30 days; page.js has them too."""


def stacked_bar(pieces: Sequence[Piece], of_what: str) -> str:
    """Returns a horizontal bar of the pieces' shares, with a legend that has their seconds and percent."""
    total = sum(piece.seconds for piece in pieces)
    bars = []
    rows = []
    spoken = []
    for piece in pieces:
        share = piece.seconds / total
        # In a narrower piece the figure would be cut off. It stands in the legend, too.
        name = ""
        if share >= 0.12:
            name = percent(share)

        if piece.seconds > 0:
            bars.append(f'<span class="s-{piece.stage}" style="flex-grow:{share:.5f}"><b>{name}</b></span>')

        spoken.append(f"{piece.label} {percent(share)}")
        rows.append(
            f'<tr><th scope="row"><i class="swatch s-{piece.stage}"></i>{text(piece.label)}</th>'
            f"<td>{seconds(piece.seconds)}</td><td>{percent(share)}</td></tr>"
        )

    return (
        f'<div class="stack" role="img" aria-label="{text(of_what)}: {text(", ".join(spoken))}">{"".join(bars)}</div>'
        f'<table class="legend"><caption class="unseen">{text(of_what)}</caption><thead class="unseen"><tr>'
        f'<th scope="col">stage</th><th scope="col">time</th><th scope="col">share</th></tr></thead>'
        f"<tbody>{''.join(rows)}</tbody></table>"
    )


def histogram(values: Floats, title: str, stage: str) -> str:
    """Returns a histogram of times in seconds, with its median and the time that 95 of 100 stay below; "" of none."""
    if not len(values):
        return ""

    # A tenth of a microsecond at least: 0 has no place on a logarithmic axis.
    shown = np.maximum(values, 1e-7)
    low = float(shown.min())
    high = float(shown.max())
    is_log = high > WIDE_SPREAD * low
    edges = _edges(low, high, is_log)
    heights, _ = np.histogram(shown, edges)
    at = _scale(edges[0], edges[-1], is_log)
    median, slow = np.quantile(shown, (0.5, 0.95)).tolist()
    tallest = int(heights.max())

    lines = _mark("median", at(median)) + _mark("slow", at(slow))
    spoken = f"{title}: {count(len(values))} batches, median {seconds(median)}, 95 of 100 below {seconds(slow)}"
    svg = _svg(f'<g class="f-{stage}">{_bars(edges, heights, at)}</g>{lines}', spoken)

    ticks = []
    for value in _ticks(edges[0], edges[-1], is_log):
        ticks.append((at(value), short(seconds(value))))

    labels = _x_labels(ticks)
    labels += f'<span class="y" style="bottom:100%">{count(tallest)}</span><span class="y" style="bottom:0">0</span>'
    figures = (
        f'<span><i class="dash median"></i>median <b>{seconds(median)}</b></span>'
        f'<span><i class="dash slow"></i>95 of 100 below <b>{seconds(slow)}</b></span>'
        f"<span>longest <b>{seconds(float(values.max()))}</b></span>"
    )
    if is_log:
        scale = ", logarithmic scale"
    else:
        scale = ""

    caption = f'<figcaption><b>{text(title)}</b><span class="quiet">batches per bar{scale}</span></figcaption>'
    return f'<figure>{caption}<div class="plot">{svg}{labels}</div><p class="figures">{figures}</p></figure>'


def _bars(edges: Floats, heights: npt.NDArray[np.int64], at: Callable[[float], float]) -> str:
    """Returns the bars of a histogram, 1000 wide and 100 high, with a gap of 1 between neighbours."""
    tallest = int(heights.max())
    bars = []
    for (left, right), height in zip(itertools.pairwise(edges), heights, strict=True):
        if height:
            # y counts from the top in SVG, as `_svg` draws it.
            bars.append(
                f'<rect x="{at(left) * 1000:.1f}" width="{(at(right) - at(left)) * 1000 - 1:.1f}" '
                f'y="{100 - 100 * height / tallest:.2f}" height="{100 * height / tallest:.2f}"/>'
            )

    return "".join(bars)


def _mark(kind: str, at: float) -> str:
    """Returns a vertical line at a place of the axis, 0 to 1."""
    return f'<line class="mark {kind}" x1="{at * 1000:.1f}" x2="{at * 1000:.1f}" y1="0" y2="100"/>'


def memory_area(memory: npt.NDArray[np.void], began: float) -> str:
    """Returns the memory over time as stacked areas, seconds counted from `began`; "" of fewer than two points."""
    memory = memory[np.isfinite(memory["time"])]
    if len(memory) < 2 or memory["time"][-1] <= memory["time"][0]:
        return ""

    # Ticks count from the beginning of the recording, which may lie before the first look at the memory.
    points = _highest(memory, POINTS)
    if np.isfinite(began):
        start = began
    else:
        start = float(points["time"][0])

    low = float(points["time"][0])
    high = float(points["time"][-1])
    whole = points["main"] + points["workers"]
    top, rungs = _ladder(float(whole.max()))
    x = (points["time"] - low) / (high - low) * 1000
    upper = 100 - 100 * whole / top
    lower = 100 - 100 * points["main"] / top
    grid = ""
    y_labels = ""
    for rung in rungs:
        y = 100 - 100 * rung / top
        grid += f'<line class="grid" x1="0" x2="1000" y1="{y:.2f}" y2="{y:.2f}"/>'
        y_labels += f'<span class="y" style="bottom:{100 * rung / top:.2f}%">{short(size(rung))}</span>'

    # The outline of the upper area goes along its top, and back along its bottom.
    svg = _svg(
        f'{grid}<path class="f-load" d="M{_path(x, upper)}L{_path(x[::-1], lower[::-1])}Z"/>'
        f'<path class="f-train" d="M{_path(x, lower)}L1000 100L0 100Z"/>'
        f'<path class="edge" d="M{_path(x, upper)}"/><path class="edge dashed" d="M{_path(x, lower)}"/>',
        f"Memory over time: at most {size(float(whole.max()))}, at last {size(float(whole[-1]))}",
    )
    ticks = []
    for value in _ticks(low - start, high - start, is_log=False):
        ticks.append(((value + start - low) / (high - low), short(seconds(value))))

    labels = _x_labels(ticks) + y_labels
    figures = f"<span>most in all <b>{size(float(whole.max()))}</b></span>"
    if points["workers"].any():
        caption = "<b>Main process and workers</b>"
        figures = (
            f'<span><i class="swatch s-load"></i>workers, above, now <b>{size(float(points["workers"][-1]))}</b></span>'
            '<span><i class="swatch s-train"></i>main process, below, now '
            f"<b>{size(float(points['main'][-1]))}</b></span>{figures}"
        )

    else:
        caption = "<b>Main process</b>"

    caption = f'<figcaption>{caption}<span class="quiet">shared pages counted once</span></figcaption>'
    return f'<figure>{caption}<div class="plot wide">{svg}{labels}</div><p class="figures">{figures}</p></figure>'


def network_area(windows: Sequence[TrafficWindow], began: float) -> str:
    """Returns the bytes a second over time as an area, seconds counted from `began`; "" of fewer than two windows."""
    if len(windows) < 2:
        return ""

    low = windows[0].began
    high = windows[-1].began + windows[-1].seconds
    start = low
    if np.isfinite(began):
        start = began

    # Each window is a step: two points of one height.
    edges = [(window.began, window.began + window.seconds) for window in windows]
    rates = np.repeat([window.bytes / window.seconds for window in windows], 2)
    x = (np.array(edges).reshape(-1) - low) / (high - low) * 1000
    top, rungs = _ladder(float(rates.max()))
    y = 100 - 100 * rates / top
    grid = ""
    y_labels = ""
    for rung in rungs:
        height = 100 - 100 * rung / top
        grid += f'<line class="grid" x1="0" x2="1000" y1="{height:.2f}" y2="{height:.2f}"/>'
        y_labels += f'<span class="y" style="bottom:{100 * rung / top:.2f}%">{short(size(rung))}</span>'

    most = size(float(rates.max()))
    area = f'<path class="f-load" d="M{_path(x, y)}L1000 100L0 100Z"/><path class="edge" d="M{_path(x, y)}"/>'
    svg = _svg(f"{grid}{area}", f"Bytes a second over the network: at most {most}")
    ticks = []
    for value in _ticks(low - start, high - start, is_log=False):
        ticks.append(((value + start - low) / (high - low), short(seconds(value))))

    in_flight = max(window.in_flight for window in windows)
    caption = '<figcaption><b>Bytes a second</b><span class="quiet">of all loaders together</span></figcaption>'
    figures = f"<span>at most <b>{most}/s</b></span><span>requests in flight, at most <b>{in_flight:.0f}</b></span>"
    labels = _x_labels(ticks) + y_labels
    return f'<figure>{caption}<div class="plot wide">{svg}{labels}</div><p class="figures">{figures}</p></figure>'


def _svg(inside: str, spoken: str) -> str:
    # As the aspect ratio is not kept, the drawing fills its box at any width. Text would be squeezed with it, which is
    # why all labels are HTML beside the drawing.
    return (
        f'<svg viewBox="0 0 1000 100" preserveAspectRatio="none" role="img" aria-label="{text(spoken)}">{inside}</svg>'
    )


def _x_labels(places: Sequence[tuple[float, str]]) -> str:
    """Returns the labels below the plot: the first ones of those that would overlap."""
    taken: list[float] = []
    labels = ""
    for at, label in places:
        # How wide a label is, only the browser knows: a distance that suits usual ones has to do.
        is_free = all(abs(at - other) >= 0.16 for other in taken)
        if 0 <= at <= 1 and is_free:
            taken.append(at)
            labels += f'<span class="x{_side(at)}" style="left:{at * 100:.2f}%">{text(label)}</span>'

    return labels


def _side(at: float) -> str:
    """Returns the class that keeps a label at the edge of the plot inside of it."""
    if at < 0.06:
        return " first"
    if at > 0.94:
        return " last"
    return ""


def _edges(low: float, high: float, is_log: bool) -> Floats:
    if is_log:
        return np.asarray(np.geomspace(low, high * 1.0001, BINS + 1), np.float64)
    margin = max((high - low) * 0.02, high * 0.005, 1e-7)
    return np.linspace(max(0.0, low - margin), high + margin, BINS + 1)


def _scale(low: float, high: float, is_log: bool) -> Callable[[float], float]:
    """Returns what tells the place of a time on the axis, 0 to 1."""
    if is_log:
        return lambda value: float(np.log(value / low) / np.log(high / low))
    return lambda value: float((value - low) / (high - low))


def _ticks(low: float, high: float, is_log: bool) -> list[float]:
    """Returns round times from low to high, those first that matter most."""
    if is_log:
        return _ticks_of_decades(low, high)

    step = _round_step(high - low, 5)
    multiples = np.arange(int(np.ceil(low / step)), int(np.floor(high / step)) + 1)
    ticks: list[float] = (multiples * step).tolist()
    return ticks


def _ticks_of_decades(low: float, high: float) -> list[float]:
    decades = range(int(np.floor(np.log10(low))), int(np.ceil(np.log10(high))) + 1)
    factors = [1]
    if len(decades) < 6:
        factors = [1, 5, 2]

    ticks = []
    for factor, decade in itertools.product(factors, decades):
        tick = factor * 10.0**decade
        if low <= tick <= high:
            ticks.append(tick)

    return ticks


def _round_step(span: float, parts: int) -> float:
    """Returns a step that people count in and that divides the span into at most so many parts."""
    if span / parts > 30:
        return next((step for step in STEPS_OF_CLOCKS if span / step <= parts), span / parts)

    # A quotient of floats may come out a little above the whole number that it should be, hence the 1e-9.
    power = 10.0 ** np.floor(np.log10(span / parts))
    return float(next(power * factor for factor in (1, 2, 5, 10) if span / (power * factor) <= parts + 1e-9))


def _ladder(most: float) -> tuple[float, list[float]]:
    """Returns the top of an axis of bytes, and the places of its labels."""
    step = _round_step_of_bytes(max(most, 1.0) / 4)
    rungs = (step * np.arange(int(np.ceil(max(most, 1.0) / step)) + 1)).tolist()
    return rungs[-1], rungs


def _round_step_of_bytes(step: float) -> float:
    power = 10.0 ** np.floor(np.log10(step))
    return float(next(power * factor for factor in (1, 2, 5, 10) if power * factor >= step * 0.999))


def _path(x: npt.NDArray[np.floating], y: npt.NDArray[np.floating]) -> str:
    return "L".join(f"{a:.1f} {b:.2f}" for a, b in zip(x, y, strict=True))


def _highest(memory: npt.NDArray[np.void], most: int) -> npt.NDArray[np.void]:
    """Returns at most about so many points: of each stretch of time the one with the most memory, and the last one."""
    if len(memory) <= most:
        return memory

    whole = memory["main"] + memory["workers"]
    cuts = np.linspace(0, len(memory) - 1, most).astype(int)
    highest = []
    for begin, end in itertools.pairwise(cuts):
        highest.append(begin + int(np.argmax(whole[begin:end])))

    return memory[[*highest, len(memory) - 1]]
