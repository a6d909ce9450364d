"""The page of HTML says what recordings hold, in one file, whatever they hold."""

from __future__ import annotations

import base64
import hashlib
import itertools
import json
import re
from dataclasses import replace
from html.parser import HTMLParser
from importlib.resources import files
from typing import Any

import numpy as np
import pytest

from headrace.observe.diagnosis.finding import Diagnosis, Finding
from headrace.observe.page import wording
from headrace.observe.page.charts import histogram, memory_area
from headrace.observe.page.page import page
from headrace.observe.page.shares import main_pieces, worker_pieces
from headrace.observe.page.timeline import FIRST_BATCHES, MOST_BATCHES, as_script, timeline
from headrace.observe.stats import stats_of
from headrace.telemetry.recording import BATCH, MEMORY, Batches, Recording
from tests.observe import made_up

VOID = {"meta", "link", "br", "img", "rect", "line", "path"}


class Reader(HTMLParser):
    """Reads a page: its elements, the text of each kind of them, and whether they close in the order they opened."""

    def __init__(self, source: str) -> None:
        super().__init__()
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.texts: dict[str, list[str]] = {}
        self._open: list[str] = []
        self._read: list[str] = []
        self.feed(source)
        self.close()
        assert self._open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))
        if tag not in VOID:
            self._open.append(tag)
            self.texts.setdefault(tag, []).append("")

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        assert self._open.pop() == tag

    def handle_data(self, data: str) -> None:
        if not {"script", "head"} & set(self._open):
            self._read.append(data)
        for tag in set(self._open):
            self.texts[tag][-1] += data

    def count(self, tag: str) -> int:
        return sum(name == tag for name, _ in self.elements)

    def values(self, name: str) -> list[str]:
        return [attrs[name] or "" for _, attrs in self.elements if name in attrs]

    def drawings(self) -> Any:
        return json.loads(self.texts["script"][0])

    def read(self) -> str:
        """Returns what people read, in one line."""
        return " ".join(" ".join(self._read).split())


def shown(*recordings: Recording, diagnoses: list[Diagnosis] | None = None) -> Reader:
    found = [made_up.diagnosis(one) for one in recordings] if diagnoses is None else diagnoses
    return Reader(page("train.py", 19.3, recordings, found, made_up.MACHINE))


def test_the_file_needs_nothing_from_outside() -> None:
    recordings = [made_up.with_workers(), made_up.inline()]
    source = page("train.py", 19.3, recordings, [made_up.diagnosis(recordings[0])], made_up.MACHINE)
    read = Reader(source)
    assert re.findall(r"(?:https?:)?//[a-z]", re.sub(r"/\*.*?\*/|\s// .*", "", source)) == []
    assert read.values("src") == []
    assert {value[:1] for value in read.values("href")} == {"#", "d"}
    assert re.findall(r"@import|url\(|fetch\(|XMLHttpRequest|WebSocket|import\(", source) == []


def test_no_script_but_the_own_one_may_run() -> None:
    source = page("train.py", 1.0, [made_up.inline()], [], {})
    policy = next(value for value in Reader(source).values("content") if "default-src" in value)
    own = source.rpartition("<script>")[2].partition("</script>")[0]
    assert f"'sha256-{base64.b64encode(hashlib.sha256(own.encode()).digest()).decode()}'" in policy
    assert policy.startswith("default-src 'none'")
    assert not any(name.startswith("on") for _, attrs in Reader(source).elements for name in attrs)


def test_words_of_others_stay_words() -> None:
    evil = made_up.awkward_label()
    finding = Finding(evil, evil, evil, evil, 2.0, {"num_workers": evil})
    recording = made_up.with_traps(replace(made_up.with_workers(40), label=evil))
    events = tuple(replace(event, kind=evil, text=evil) for event in recording.events)
    places = tuple(replace(place, kind=evil, where=evil) for place in recording.places)
    setting = replace(recording.setting, dataset=evil, accelerator=evil)
    recording = replace(recording, events=events, places=places, setting=setting)
    diagnosis = Diagnosis(evil, evil, 0.5, evil, 2.0, 10.0, (finding,))
    read = Reader(page(evil, 1.0, [recording], [diagnosis], {evil: evil}))
    assert (read.count("script"), read.count("img")) == (2, 0)
    assert read.texts["h2"][0] == read.texts["h1"][0] == read.texts["title"][0] == evil
    assert read.drawings()[0]["events"][0][2] == evil


def test_words_that_cannot_be_written_are_no_error() -> None:
    recording = replace(made_up.inline(), label="caf\udce9.py:1")
    assert "caf?.py:1" in page("\udce9", 1.0, [recording], [], {}).encode().decode()


def test_what_was_found_is_said() -> None:
    recording = made_up.with_workers()
    diagnosis = made_up.diagnosis(recording)
    read = shown(recording, diagnoses=[diagnosis])
    assert diagnosis.summary in read.texts["p"]
    assert [finding.sentence for finding in diagnosis.findings] == read.texts["h4"][:4]
    assert [text for text in read.texts["span"] if text.endswith("predicted")] == [
        "1.8x predicted",
        "1.4x predicted",
        "1.02x predicted",
    ]
    assert "DataLoader(..., num_workers=6)" in read.texts["code"]
    assert "headrace pack --resize 320" in read.texts["code"]
    assert "Nothing to change was found." in shown(recording, diagnoses=[replace(diagnosis, findings=())]).read()
    torchs = replace(recording, setting=replace(recording.setting, loader="torch"))
    assert (
        "torch's loader takes no times of its own" in shown(torchs, diagnoses=[replace(diagnosis, findings=())]).read()
    )


def test_the_key_figures() -> None:
    recording = made_up.with_workers()
    diagnosis = made_up.diagnosis(recording)
    read = shown(recording, diagnoses=[diagnosis])
    figures = dict(zip(read.texts["dt"], read.texts["dd"], strict=True))
    first = np.median([epoch.first - epoch.began for epoch in recording.epochs])
    assert figures == {
        "samples per second": f"{diagnosis.samples_per_second:.0f}",
        "of the time waiting": f"{diagnosis.wait_share:.0%}",
        "as fast at best": f"{diagnosis.ideal_gain:.1f}x",
        "batches": "300",
        "to the first batch": f"{first * 1000:.0f} ms",
        "of data": f"{stats_of(recording).bytes_per_second / 1e6:.1f} MB/s",
        "bad samples": "3",
        "restarts of workers": "1",
    }
    without = shown(replace(recording, bad_samples=0, restarts=0), diagnoses=[])
    assert "bad samples" not in without.texts["dt"]
    assert "restarts of workers" not in without.texts["dt"]
    assert without.texts["dd"][0] == f"{stats_of(recording).samples_per_second:.0f}"


def test_the_pieces_of_the_main_process_are_all_its_time() -> None:
    recording = made_up.with_workers()
    pieces = {piece.stage: piece.seconds for piece in main_pieces(recording)}
    assert list(pieces) == ["train", "wait", "open", "pin", "start"]
    assert sum(pieces.values()) == pytest.approx(stats_of(recording).looped)
    assert pieces["start"] == pytest.approx(0.12)
    alone = {piece.stage: piece.seconds for piece in main_pieces(made_up.inline())}
    assert list(alone) == ["train", "wait", "load", "collate"]
    assert alone["wait"] == pytest.approx(0, abs=1e-6)


def test_workers_are_idle_when_they_are_not_busy() -> None:
    recording = made_up.with_workers(200, 2, epochs=1)
    pieces = {piece.stage: piece.seconds for piece in worker_pieces(recording)}
    rows = recording.batches
    there = 2 * (rows["delivered"].max() - rows["begun"].min())
    assert pieces["idle"] == pytest.approx(there - float((rows["sent"] - rows["begun"]).sum()))
    assert worker_pieces(made_up.inline()) == worker_pieces(made_up.of_torch()) == []
    assert "What the workers do was not measured." in shown(made_up.of_torch()).read()


def test_idleness_is_told_from_the_batches_that_are_held() -> None:
    recording = made_up.with_workers(200, 2, epochs=1)
    twice = {name: 2 * value for name, value in recording.totals.items()}
    once = {piece.stage: piece.seconds for piece in worker_pieces(recording)}
    for piece in worker_pieces(replace(recording, totals=twice)):
        assert piece.seconds == pytest.approx(2 * once[piece.stage])


EMPTIES = {
    "nothing": made_up.empty(),
    "a single batch": made_up.one_batch(),
    "no workers": made_up.inline(),
    "no workers, no batches": made_up.inline(0),
    "torch's own loader": made_up.of_torch(),
    "torch's own loader, one batch": made_up.of_torch(1),
    "no time is known": made_up.nothing_known(),
    "a long time in between": made_up.after_a_gap(),
    "a trap": made_up.with_traps(made_up.with_workers(7, 3)),
}


@pytest.mark.parametrize("recording", EMPTIES.values(), ids=EMPTIES)
@pytest.mark.parametrize("is_diagnosed", [True, False], ids=["diagnosed", "not diagnosed"])
def test_what_is_not_known_is_left_out(recording: Recording, is_diagnosed: bool) -> None:
    read = shown(recording, diagnoses=None if is_diagnosed else [])
    assert re.findall(r"\b(?:nan|NaN|inf|None|null)\b", read.read()) == []
    assert not any(re.search(r"nan|inf\b", value) for _, attrs in read.elements for value in attrs.values() if value)
    assert [int(tag[1]) for tag, _ in read.elements if re.fullmatch("h[1-6]", tag)][:2] == [1, 2]


def test_no_heading_is_left_out() -> None:
    read = shown(made_up.with_workers(), made_up.inline(), made_up.empty())
    levels = [int(tag[1]) for tag, _ in read.elements if re.fullmatch("h[1-6]", tag)]
    assert all(after - before <= 1 for before, after in itertools.pairwise(levels))
    assert all(attrs.get("aria-label") for tag, attrs in read.elements if tag in ("button", "svg", "canvas"))
    assert all(attrs.get("scope") for tag, attrs in read.elements if tag == "th")


def test_no_loader_at_all() -> None:
    assert "No loader was used." in shown().read()


def test_several_loaders_are_listed() -> None:
    read = shown(made_up.with_workers(30), made_up.inline(), made_up.of_torch(30))
    links = [value[1:] for value in read.values("href") if value.startswith("#")]
    assert links == [attrs["id"] for tag, attrs in read.elements if tag == "section"]
    assert read.texts["a"] == ["train.py:41", "evaluate.py:12", "torch.py:7"]
    assert read.texts["h2"] == ["1. train.py:41", "2. evaluate.py:12", "3. torch.py:7", "Machine"]
    assert shown(made_up.inline()).count("nav") == 0
    assert shown(made_up.inline()).texts["h2"] == ["evaluate.py:12", "Machine"]


def test_a_diagnosis_belongs_to_the_recording_of_its_label() -> None:
    first, second = made_up.with_workers(30), made_up.inline()
    diagnoses = [replace(made_up.diagnosis(one), summary=f"about {one.label}") for one in (second, first)]
    read = shown(first, second, diagnoses=diagnoses)
    assert [text for text in read.texts["p"] if text.startswith("about")] == [
        "about train.py:41",
        "about evaluate.py:12",
    ]
    alike = [replace(made_up.diagnosis(first), summary=f"about number {number}") for number in (1, 2)]
    read = shown(first, first, diagnoses=alike)
    assert [text for text in read.texts["p"] if text.startswith("about")] == ["about number 1", "about number 2"]


def test_the_timeline_has_the_times_of_the_batches() -> None:
    recording = made_up.with_workers(50)
    drawing = shown(recording).drawings()[0]
    for name in ("begun", "sent", "asked", "delivered"):
        expected = np.round((recording.batches[name] - made_up.BEGAN) * 1e6)
        assert drawing["batches"][name] == expected.astype(int).tolist()
    assert drawing["workers"] == [0, 1]
    assert drawing["left_out"] is None
    of_torch = shown(made_up.of_torch()).drawings()[0]["batches"]
    assert of_torch["begun"] is None
    assert of_torch["number"] == list(range(200))


@pytest.mark.parametrize(
    ("recording", "missing"),
    [
        (made_up.with_workers(), set()),
        (made_up.inline(), {"opening", "pinning", "sending"}),
        (made_up.of_torch(), {"opening", "pinning", "loading", "collating", "sending"}),
    ],
)
def test_the_legend_of_the_timeline_has_what_is_drawn(recording: Recording, missing: set[str]) -> None:
    stages = {"training", "starting or preparing", "waiting", "opening", "pinning", "loading", "collating", "sending"}
    legend = set(shown(recording, diagnoses=[]).texts["li"])
    assert legend & stages == stages - missing


@pytest.mark.thorough
def test_a_hundred_thousand_batches_stay_a_small_page() -> None:
    recording = made_up.with_workers(100_000, 4)
    source = page("long.py", 5000, [recording], [made_up.diagnosis(recording)], made_up.MACHINE)
    read = Reader(source)
    drawing = read.drawings()[0]
    assert len(source) < 2_000_000
    assert drawing["count"] == len(drawing["batches"]["number"]) == MOST_BATCHES
    assert drawing["left_out"] == [FIRST_BATCHES, 100_000 - MOST_BATCHES]
    assert drawing["batches"]["number"][FIRST_BATCHES - 1] == FIRST_BATCHES - 1
    assert drawing["batches"]["number"][-1] == 49_999
    assert "94,000 between them are left out" in read.read()
    long_enough = made_up.with_workers(2 * MOST_BATCHES, 4)
    many = [replace(long_enough, label=f"train.py:{number}") for number in range(20)]
    assert len(page("many.py", 5000, many, [], {})) < 5_000_000


def test_the_page_says_so_where_batches_are_not_held_any_more() -> None:
    recording = made_up.with_workers(50)
    totals = dict(recording.totals) | {"batches": 5000.0}
    assert "It shows the latest 50 of 5,000 batches." in shown(replace(recording, totals=totals)).read()


def test_json_in_a_page_is_no_markup() -> None:
    assert json.loads(as_script(["</script>", "<!--", "&amp;", "\u2028"])) == ["</script>", "<!--", "&amp;", "\u2028"]
    assert not set("<>&\u2028") & set(as_script(["</script>", "<!--", "&amp;", "\u2028"]))
    assert timeline(made_up.nothing_known()) is None


def bars(svg: str) -> list[tuple[float, float]]:
    """Returns the middle and the height of each bar."""
    found = re.findall(r'<rect x="([\d.]+)" width="([\d.]+)" y="[\d.]+" height="([\d.]+)"', svg)
    return [(float(x) + float(width) / 2, float(height)) for x, width, height in found]


def test_a_histogram_is_logarithmic_where_times_differ_much() -> None:
    close = histogram(np.array([0.01] * 3 + [0.02]), "times", "load")
    assert "logarithmic" not in close
    assert [height for _, height in bars(close)] == [100, pytest.approx(33.33)]
    far = histogram(np.array([0.001] * 3 + [0.1] + [10.0]), "times", "load")
    assert "logarithmic" in far
    assert bars(far)[1][0] == pytest.approx(500, abs=30)
    assert "median <b>1.00 ms</b>" in far
    assert histogram(np.zeros(0), "times", "load") == ""
    assert len(bars(histogram(np.zeros(5), "times", "load"))) == 1


def test_memory_keeps_its_highest_point_when_thinned_out() -> None:
    memory = np.zeros(5000, MEMORY)
    memory["time"], memory["main"], memory["workers"] = np.arange(5000.0), 10**8, 2 * 10**8
    memory["workers"][3217] = 17 * 10**8
    drawn = memory_area(memory, 0.0)
    assert "most in all <b>1.80 GB</b>" in drawn
    assert ">2 GB</span>" in drawn
    assert len(drawn) < 40_000
    assert min(float(y) for y in re.findall(r"[ML][\d.]+ ([\d.]+)", drawn)) == pytest.approx(10)
    assert memory_area(memory[:1], 0.0) == ""
    assert "workers, above" in drawn
    memory["workers"] = 0
    assert "workers" not in memory_area(memory, 0.0)


def relative_luminance(colour: str) -> float:
    parts = (int(colour[at : at + 2], 16) / 255 for at in (1, 3, 5))
    linear = [part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


TEXT = [("ink", "panel"), ("ink", "paper"), ("quiet", "panel"), ("quiet", "paper"), ("strong", "panel")]
TEXT += [("gain", "gain-paper"), ("ink", "tag-paper"), ("on-bar", "load"), ("on-bar", "train"), ("panel", "ink")]
SHAPES = [(name, "panel") for name in ("train", "wait", "load", "collate", "send", "open", "pin", "start")]


@pytest.mark.parametrize("scheme", [0, 1], ids=["light", "dark"])
@pytest.mark.parametrize(("pairs", "least"), [(TEXT, 4.5), (SHAPES, 3.0)], ids=["text", "shapes"])
def test_the_contrast_of_colours_suffices(scheme: int, pairs: list[tuple[str, str]], least: float) -> None:
    style = files("headrace.observe.page").joinpath("page.css").read_text("utf-8")
    blocks = re.findall(r":root(?::not\(\.printing\))? \{([^}]*--paper[^}]*)\}", style)
    colours = dict(re.findall(r"--([\w-]+): (#[0-9a-f]{6})", blocks[scheme]))
    weak = {}
    for pair in pairs:
        light, dark = sorted((relative_luminance(colours[name]) for name in pair), reverse=True)
        if (light + 0.05) / (dark + 0.05) < least:
            weak[pair] = (light + 0.05) / (dark + 0.05)
    assert weak == {}


def test_labels_of_an_axis_are_short() -> None:
    given = ["2.00 s", "1.50 GB", "10.0 ms", "100 ms", "0 B", "1 min 00 s"]
    assert [wording.short(words) for words in given] == ["2 s", "1.5 GB", "10 ms", "100 ms", "0 B", "1 min 00 s"]


def test_rows_of_another_shape_are_read_by_name() -> None:
    """What holds more columns than today, in another order, is shown alike."""
    recording = made_up.with_workers(20)
    wider = np.zeros(20, np.dtype([("more", "f8"), *reversed(BATCH.descr)]))
    for name in BATCH.names or ():
        wider[name] = recording.batches[name]
    rows: Batches = wider
    assert shown(replace(recording, batches=rows)).read() == shown(recording).read()
