"""The page in a browser: the timeline draws and moves, nothing is wider than a phone, and no error occurs."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from headrace.observe.page.page import page
from headrace.telemetry.formatting import seconds
from headrace.telemetry.recording import Recording
from tests.observe import made_up
from tests.observe.chromium import CHROMIUM, Page, chromium

pytestmark = [
    pytest.mark.skipif(CHROMIUM is None, reason="there is no Chromium (Debian's package chromium)"),
]
TWO = [made_up.with_workers(), made_up.inline()]
ODD = [
    made_up.of_torch(),
    made_up.with_traps(replace(made_up.with_workers(12_000, 40), label=made_up.awkward_label())),
    made_up.empty(),
    made_up.nothing_known(),
    made_up.one_batch(),
    made_up.after_a_gap(),
    made_up.inline(1),
]
HIGHEST = """(() => { const c = document.querySelector("canvas"), r = c.getBoundingClientRect();
    return [r.x, r.y, r.width, r.height]; })()"""
VIEW = """(() => { const d = document.querySelector("canvas").dataset; return [Number(d.from), Number(d.to)]; })()"""
STACKED = """(() => { const c = document.querySelector("canvas"), names = ["train", "wait", "open", "pin"];
    const paint = names.map((name) => getComputedStyle(document.documentElement).getPropertyValue("--" + name).trim());
    const count = (y, height) => { const found = [0, 0, 0, 0];
      const data = c.getContext("2d").getImageData(2 * 80, 2 * y, c.width - 2 * 90, 2 * height).data;
      for (let i = 0; i < data.length; i += 4) { const at = paint.indexOf("#" + [0, 1, 2].map(
        (k) => data[i + k].toString(16).padStart(2, "0")).join("")); if (at >= 0) found[at] += 1; }
      return found; };
    return [count(0, 35), count(36, 36)]; })()"""
COLOURS = """(() => { const c = document.querySelector("canvas"), found = {};
    const data = c.getContext("2d").getImageData(0, 0, c.width, c.height).data;
    for (let i = 0; i < data.length; i += 4) {
      const hex = "#" + [0, 1, 2].map((k) => data[i + k].toString(16).padStart(2, "0")).join("");
      found[hex] = (found[hex] || 0) + 1; }
    return ["wait", "train", "load"].map((name) =>
      found[getComputedStyle(document.documentElement).getPropertyValue("--" + name).trim()] || 0); })()"""


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Page]:
    with chromium(tmp_path_factory.mktemp("chromium")) as opened:
        yield opened


@pytest.fixture
def written(tmp_path: Path) -> Path:
    return write(tmp_path, TWO)


def write(folder: Path, recordings: list[Recording]) -> Path:
    path = folder / "page.html"
    diagnoses = [made_up.diagnosis(one) for one in recordings]
    path.write_text(page(recordings[-1].label, 19.3, recordings, diagnoses, made_up.MACHINE), "utf-8")
    return path


def lane(browser: Page, which: int = 0) -> tuple[float, float, float]:
    """Returns where the plot of the first timeline begins and ends, and the height of a lane's middle."""
    browser.run("document.querySelector('canvas').scrollIntoView({block: 'center', behavior: 'instant'})")
    x, y, width, _ = browser.run(HIGHEST)
    return x + (62 if width < 560 else 76), x + width, y + 36 + (18 if which == 0 else 36 + 4 + (which - 1) * 28 + 12)


def place(browser: Page, micros: float) -> float:
    """Returns where on the screen a time is."""
    (left, right, _), (low, high) = lane(browser), browser.run(VIEW)
    return left + (micros - low) / (high - low) * (right - left)


@pytest.mark.quick(recordings=[TWO], width=1280, dark=False)
@pytest.mark.parametrize("recordings", [TWO, ODD], ids=["usual", "odd"])
@pytest.mark.parametrize("width", [360, 1280])
@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
def test_the_page_is_drawn_without_an_error(
    browser: Page, tmp_path: Path, recordings: list[Recording], width: int, dark: bool
) -> None:
    browser.open(write(tmp_path, recordings), width, dark=dark, touch=width < 500)
    assert browser.troubles() == []
    assert browser.run("document.documentElement.scrollWidth") <= width
    drawn = browser.run("[...document.querySelectorAll('canvas')].map((one) => Number(one.dataset.drawn))")
    assert len(drawn) == sum(len(one.batches) > 0 and one.label != "unknown.py:3" for one in recordings)
    assert min(drawn) > 0
    assert browser.run("document.querySelectorAll('.timeline[hidden]').length") == 0
    assert browser.run("window.broken") is None
    assert "needs JavaScript" not in browser.run("document.body.innerText")
    wait, train, load = browser.run(COLOURS)
    assert min(wait, train) > 100
    assert load > 100 or recordings is ODD


def test_an_error_would_be_seen(browser: Page, written: Path) -> None:
    broken = written.read_text("utf-8").replace('"epochs":', '"no_epochs":', 1)
    written.write_text(broken, "utf-8")
    browser.open(written, 1280)
    assert any("epochs" in trouble or "iterable" in trouble for trouble in browser.troubles())


@pytest.mark.thorough
def test_colours_share_the_height_where_batches_are_too_short_to_be_told_apart(browser: Page, tmp_path: Path) -> None:
    steady = made_up.Pace(load=0.05, stall=0.0, start=0.02)
    recording = replace(made_up.with_workers(5000, 2, epochs=1, pace=steady), events=())
    browser.open(write(tmp_path, [recording]), 1280)
    above, within = browser.run(STACKED)
    assert above == [0, 0, 0, 0]
    totals = recording.totals
    waits = totals["wait"] / (totals["wait"] + totals["loop"])
    assert sum(within[1:]) / sum(within) == pytest.approx(waits, abs=0.03)
    for _ in range(6):
        browser.run("document.querySelector('[data-do=in]').click()")
    browser.settle()
    assert browser.run(STACKED)[0] == [0, 0, 0, 0]


def test_the_wheel_zooms_around_the_pointer(browser: Page, written: Path) -> None:
    browser.open(written, 1280)
    low, high = browser.run(VIEW)
    left, right, y = lane(browser)
    x = left + 0.3 * (right - left)
    browser.run("addEventListener('wheel', (event) => { window.turned = event.deltaY; })")
    browser.wheel(x, y, -300)
    near, far = browser.run(VIEW)
    assert far - near == pytest.approx((high - low) * math.exp(0.002 * browser.run("turned")))
    assert (far - near) / (high - low) < 0.8
    assert near + 0.3 * (far - near) == pytest.approx(low + 0.3 * (high - low), abs=(far - near) * 0.01)
    browser.wheel(x, y, 3000)
    assert browser.run(VIEW) == [low, high]


def test_the_wheel_scrolls_the_page_where_all_is_shown(browser: Page, written: Path) -> None:
    browser.open(written, 1280)
    left, right, y = lane(browser)
    browser.run("window.kept = []; addEventListener('wheel', (e) => kept.push(e.defaultPrevented))")
    for by in (-120, 1200, 120):
        browser.wheel((left + right) / 2, y, by)
    assert browser.run("kept") == [True, True, False]


def test_the_timeline_is_dragged(browser: Page, written: Path) -> None:
    browser.open(written, 1280)
    left, right, y = lane(browser)
    browser.wheel(left + 400, y, -600)
    low, high = browser.run(VIEW)
    browser.mouse(
        ("Moved", left + 400, y), ("Pressed", left + 400, y), ("Moved", left + 300, y), ("Released", left + 300, y)
    )
    near, far = browser.run(VIEW)
    assert near - low == pytest.approx((high - low) * 100 / (right - left), rel=0.01)
    assert far - near == pytest.approx(high - low)


def test_two_fingers_zoom_the_timeline(browser: Page, written: Path) -> None:
    browser.open(written, 390, touch=True)
    low, high = browser.run(VIEW)
    left, right, y = lane(browser)
    middle = (left + right) / 2
    steps = [((middle - by, y), (middle + by, y)) for by in (40, 60, 80, 100)]
    browser.pinch(*steps)
    near, far = browser.run(VIEW)
    assert far - near == pytest.approx((high - low) * 0.4, rel=0.05)
    assert near < (low + high) / 2 < far


@pytest.mark.thorough
def test_keys_and_buttons_move_the_timeline(browser: Page, written: Path) -> None:
    browser.open(written, 1280)
    low, high = whole = browser.run(VIEW)
    browser.run("document.querySelector('canvas').focus()")
    spans = []
    for key in ("+", "=", "ArrowRight", "ArrowLeft", "ArrowLeft", "-", "0"):
        browser.key(key)
        near, far = browser.run(VIEW)
        spans.append(((far - near) / (high - low), (near + far - low - high) / 2 / (high - low)))
    assert spans == [
        pytest.approx(one, abs=1e-6)
        for one in [(0.5, 0), (0.25, 0), (0.25, 0.0625), (0.25, 0), (0.25, -0.0625), (0.5, -0.0625), (1, 0)]
    ]
    for what, expected in (("in", 0.5), ("out", 1.0), ("in", 0.5), ("all", 1.0)):
        browser.run(f"document.querySelector('[data-do={what}]').click()")
        browser.settle()
        near, far = browser.run(VIEW)
        assert (far - near) / (high - low) == pytest.approx(expected)
    assert browser.run(VIEW) == whole


def test_the_longest_wait_is_found(browser: Page, written: Path) -> None:
    browser.open(written, 1280)
    browser.run("document.querySelector('[data-do=wait]').click()")
    browser.settle()
    rows = TWO[0].batches
    longest = int((rows["delivered"] - rows["asked"]).argmax())
    asked, delivered = ((float(rows[name][longest]) - made_up.BEGAN) * 1e6 for name in ("asked", "delivered"))
    low, high = browser.run(VIEW)
    assert low < asked < delivered < high
    assert (delivered - asked) / (high - low) == pytest.approx(1 / 2.2, rel=0.01)


@pytest.mark.thorough
def test_the_tooltip_has_the_figures_of_the_batch_under_the_pointer(browser: Page, written: Path) -> None:
    browser.open(written, 1280)
    rows = TWO[0].batches
    row = next(one for one in rows[rows["epoch"] == 1][11:] if one["delivered"] - one["asked"] > 0.03)
    for worker, begin, end, said in (
        (int(row["worker"]), row["begun"], row["loaded"], "loading"),
        (-1, row["asked"], row["delivered"], "waiting"),
    ):
        middle = (float(begin) + float(end) - 2 * made_up.BEGAN) / 2 * 1e6
        for _ in range(8):
            browser.wheel(place(browser, middle), lane(browser)[2], -400)
        browser.mouse(("Moved", place(browser, middle), lane(browser, worker + 1)[2]))
        tip = browser.run("document.querySelector('.tip:not([hidden])').innerText")
        assert tip.startswith(f"{said} {seconds(float(end - begin))}: batch {row['number']} of epoch 1")
        assert f"made by\nworker {row['worker']}" in tip
        assert f"waited for\n{seconds(float(row['delivered'] - row['asked']))}" in tip
        assert "samples\n32" in tip
        browser.run("document.querySelector('[data-do=all]').click()")
        browser.settle()
    browser.mouse(("Moved", 5, 5))
    assert browser.run("document.querySelectorAll('.tip:not([hidden])').length") == 0


@pytest.mark.thorough
def test_the_tooltip_tells_opening_and_pinning_from_the_wait_they_are_a_part_of(browser: Page, written: Path) -> None:
    browser.open(written, 1280)
    rows = TWO[0].batches
    row = next(one for one in rows[rows["epoch"] == 1][11:] if one["delivered"] - one["asked"] < 0.002)
    asked, delivered = ((float(row[name]) - made_up.BEGAN) * 1e6 for name in ("asked", "delivered"))
    for _ in range(9):
        browser.wheel(place(browser, delivered), lane(browser)[2], -800)
    tips = []
    for micros, pixels, down in ((asked, 3, -9), (delivered, -1, -9), (delivered, -3, 9), (delivered, 3, -9)):
        browser.mouse(("Moved", place(browser, micros) + pixels, lane(browser)[2] + down))
        tips.append(browser.run("document.querySelector('.tip:not([hidden])').innerText").split()[0])
    assert tips == ["waiting", "waiting", "pinning", "training"]


def test_a_long_time_without_batches_is_not_what_is_shown_first(browser: Page, tmp_path: Path) -> None:
    recording = made_up.after_a_gap()
    browser.open(write(tmp_path, [recording]), 1280)
    low, high = browser.run(VIEW)
    second = recording.batches[recording.batches["epoch"] == 1]
    assert low / 1e6 < second["asked"][0] - made_up.BEGAN < second["delivered"][-1] - made_up.BEGAN < high / 1e6
    assert (high - low) / 1e6 < 60
    browser.run("document.querySelector('[data-do=all]').click()")
    browser.settle()
    low, high = browser.run(VIEW)
    assert (high - low) / 1e6 > 40 * 3600


@pytest.mark.thorough
def test_paper_is_white_and_the_timeline_on_it_as_it_stands(browser: Page, tmp_path: Path, written: Path) -> None:
    browser.open(written, 1280, dark=True)
    browser.run("document.querySelector('[data-do=in]').click()")
    browser.settle()
    shown = browser.run(VIEW)
    browser.run("addEventListener('beforeprint', () => { window.width = document.querySelector('canvas').width; })")
    browser.printed(tmp_path / "page.pdf")
    assert (tmp_path / "page.pdf").read_bytes().startswith(b"%PDF")
    assert browser.run("window.width") == 2 * 720
    assert browser.run(VIEW) == shown
    assert browser.run("document.documentElement.className") == ""
    browser.call(
        "Emulation.setEmulatedMedia", media="print", features=[{"name": "prefers-color-scheme", "value": "dark"}]
    )
    style: Any = browser.run(
        "[getComputedStyle(document.body).backgroundColor, getComputedStyle(document.body).color,"
        " getComputedStyle(document.querySelector('button')).display,"
        " getComputedStyle(document.querySelector('.card')).breakInside]"
    )
    browser.call("Emulation.setEmulatedMedia", media="")
    assert style == ["rgb(255, 255, 255)", "rgb(23, 32, 42)", "none", "avoid"]
    assert browser.troubles() == []


def test_all_but_the_timeline_does_without_javascript(browser: Page, written: Path) -> None:
    browser.call("Emulation.setScriptExecutionDisabled", value=True)
    try:
        browser.open(written, 1280, still=True)
        seen = browser.run("document.body.innerText")
        boxes = browser.run("[...document.querySelectorAll('.timeline')].map((one) => one.offsetHeight)")
        drawings = browser.run("document.querySelectorAll('svg rect, svg path').length")
    finally:
        browser.call("Emulation.setScriptExecutionDisabled", value=False)
    assert seen.count("The timeline needs JavaScript") == 2
    assert boxes == [0, 0]
    assert drawings > 50
