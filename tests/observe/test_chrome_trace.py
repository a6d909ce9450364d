"""Traces: valid, complete, and on the clock of torch's profiler."""

from __future__ import annotations

import gzip
import json
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.profiler import ProfilerActivity, profile, record_function

import headrace
from headrace.core.errors import UsageError
from headrace.observe.chrome_trace import trace_events, write_trace
from headrace.telemetry.recording import BATCH, MAIN, MEMORY, EpochTimes, Event, Recording, Setting
from tests.observe import made_up

REQUIRED = {
    "M": {"name", "pid", "tid", "args"},
    "X": {"name", "cat", "ts", "dur", "pid", "tid", "args"},
    "C": {"name", "ts", "pid", "args"},
    "i": {"name", "ts", "pid", "tid", "s"},
    "s": {"name", "cat", "ts", "pid", "tid", "id"},
    "f": {"name", "cat", "ts", "pid", "tid", "id", "bp"},
}
"""What the format wants of each kind of event."""
CLOSE = 2000
"""Microseconds by which the profiler's slices and ours may differ."""


class Slow(torch.utils.data.Dataset[torch.Tensor]):
    def __len__(self) -> int:
        return 48

    def __getitem__(self, index: int) -> torch.Tensor:
        time.sleep(0.002)
        return torch.full((16,), index)


def plain(trace: dict[str, Any]) -> dict[str, Any]:
    """Returns a trace as a reader gets it: NaN would be refused."""
    read: dict[str, Any] = json.loads(json.dumps(trace, allow_nan=False))
    return read


def ours(trace: dict[str, Any], *phases: str) -> list[dict[str, Any]]:
    return [event for event in trace["traceEvents"] if event.get("cat") == "headrace" and event["ph"] in phases]


def threads(trace: dict[str, Any]) -> dict[int, str]:
    """Returns the names of the threads by their numbers."""
    return {event["tid"]: event["args"]["name"] for event in trace["traceEvents"] if event["name"] == "thread_name"}


def check(trace: dict[str, Any]) -> None:
    """Asserts what holds of every trace."""
    events = trace["traceEvents"]
    for event in events:
        assert REQUIRED[event["ph"]] - event.keys() == set(), event
        assert event.get("dur", 0) >= 0
    names = [event["ph"] == "M" for event in events]
    assert names == sorted(names, reverse=True)
    times = [event["ts"] for event in events if event["ph"] != "M"]
    assert times == sorted(times)
    for pid, tid in {(event["pid"], event["tid"]) for event in ours(trace, "X")}:
        check_nesting([event for event in ours(trace, "X") if (event["pid"], event["tid"]) == (pid, tid)])
    starts = Counter(event["id"] for event in events if event["ph"] == "s")
    assert starts == Counter(event["id"] for event in events if event["ph"] == "f")
    assert set(starts.values()) <= {1}


def check_nesting(slices: list[dict[str, Any]]) -> None:
    """Asserts that a slice of a thread lies within those before it that have not ended, or behind them."""
    open_ends: list[float] = []
    for event in slices:
        while open_ends and open_ends[-1] <= event["ts"] + 0.01:
            open_ends.pop()
        end = event["ts"] + event["dur"]
        assert not open_ends or end <= open_ends[-1] + 0.01, event
        open_ends.append(end)


@pytest.mark.parametrize(
    "make",
    [
        made_up.with_workers,
        made_up.inline,
        made_up.of_torch,
        made_up.empty,
        made_up.nothing_known,
        made_up.one_batch,
        made_up.after_a_gap,
    ],
)
def test_every_recording_gives_a_valid_trace(make: Callable[[], Recording]) -> None:
    trace = plain(trace_events([make(), make()]))
    check(trace)
    assert len({event["pid"] for event in trace["traceEvents"]}) == 2


def test_a_batch_is_seen_from_its_worker_to_the_loop() -> None:
    recording = made_up.with_workers(12, 2, epochs=1)
    trace = plain(trace_events([recording]))
    thread = {name: tid for tid, name in threads(trace).items()}
    assert set(thread) == {"training loop", "epochs", "worker 0", "worker 1"}
    row = recording.batches[7]
    mine = [event for event in ours(trace, "X") if event["args"].get("batch") == 7]
    where = {event["name"]: event["tid"] for event in mine}
    assert where == dict.fromkeys(("load", "collate", "send"), thread["worker 1"]) | dict.fromkeys(
        ("wait", "open", "pin", "train"), thread["training loop"]
    )
    seconds = {event["name"]: event["dur"] / 1e6 for event in mine}
    assert seconds["load"] == pytest.approx(row["loaded"] - row["begun"], abs=1e-8)
    assert seconds["wait"] == pytest.approx(row["delivered"] - row["asked"], abs=1e-8)
    assert seconds["train"] == pytest.approx(recording.batches[8]["asked"] - row["delivered"], abs=1e-8)
    assert seconds["pin"] == pytest.approx(row["pinned"], abs=1e-8)
    by_name = {event["name"]: event for event in mine}
    assert by_name["send"]["args"]["samples"] == 32
    assert by_name["send"]["args"]["bytes"] == 32 * 3 * 224 * 224
    wait_ends = by_name["wait"]["ts"] + by_name["wait"]["dur"]
    assert by_name["pin"]["ts"] + by_name["pin"]["dur"] == pytest.approx(wait_ends, abs=0.01)
    assert by_name["open"]["ts"] + by_name["open"]["dur"] == pytest.approx(by_name["pin"]["ts"], abs=0.01)
    arrows = ours(trace, "s", "f")
    assert len(arrows) == 24
    assert within(by_name["send"], arrows, "s") == within(by_name["wait"], arrows, "f")


def within(held: dict[str, Any], arrows: list[dict[str, Any]], phase: str) -> int:
    """Returns the id of the one arrow that begins (or ends) within a slice."""
    ends = held["ts"] + held["dur"]
    (found,) = (
        arrow["id"]
        for arrow in arrows
        if arrow["ph"] == phase and arrow["tid"] == held["tid"] and held["ts"] <= arrow["ts"] < ends
    )
    return int(found)


def test_what_was_not_measured_is_left_out() -> None:
    names = Counter(event["name"] for event in ours(trace_events([made_up.of_torch(30)]), "X"))
    assert names == {"wait": 30, "train": 29, "epoch 0": 1, "begin epoch": 1}
    inline = trace_events([made_up.inline(30)])
    assert Counter(event["name"] for event in ours(inline, "X"))["load"] == 30
    assert ours(inline, "s", "f") == []
    assert len({event["tid"] for event in ours(inline, "X")}) == 2
    assert ours(trace_events([made_up.nothing_known()]), "X", "s", "f", "C") == []
    assert not any("NaN" in json.dumps(event) for event in inline["traceEvents"])


def test_memory_and_batches_in_flight_are_counted() -> None:
    rows = np.zeros(2, BATCH)
    for name, values in {
        "posted": (1, 1),
        "begun": (1, 3),
        "sent": (2, 5),
        "asked": (3, 4),
        "delivered": (4, 6),
    }.items():
        rows[name] = values
    memory = np.array([(1.0, 100, 20), (2.0, 110, 30)], MEMORY)
    trace = trace_events([Recording(batches=rows, memory=memory)])
    counts = [tuple(event["args"].values()) for event in ours(trace, "C") if event["name"] == "batches in flight"]
    assert counts == [(1, 0), (2, 0), (1, 1), (1, 0), (0, 1), (0, 0)]
    seen = [event for event in ours(trace, "C") if event["name"] == "memory"]
    assert [event["args"] for event in seen] == [{"main": 100, "workers": 20}, {"main": 110, "workers": 30}]
    assert seen[1]["ts"] - seen[0]["ts"] == pytest.approx(1e6)


def test_what_happened_is_marked_where_it_happened() -> None:
    events = (Event(10.0, "died", "worker 3 was killed", 3), Event(11.0, "decided", "two stay"))
    trace = trace_events([Recording(events=events)])
    check(trace)
    marks = ours(trace, "i")
    assert [(mark["name"], mark["s"], mark["args"]["text"]) for mark in marks] == [
        ("died", "t", "worker 3 was killed"),
        ("decided", "p", "two stay"),
    ]
    labels = {
        event["tid"]: event["args"].get("name") for event in trace["traceEvents"] if event["name"] == "thread_name"
    }
    assert [labels[mark["tid"]] for mark in marks] == ["worker 3", "training loop"]


def test_a_worker_of_another_machine_is_named_with_it() -> None:
    trace = trace_events([replace(made_up.with_workers(12, 2, epochs=1), hosts={1: "gpu-7"})])
    assert {"worker 0", "worker 1 on gpu-7"} <= set(threads(trace).values())


def test_an_epoch_that_goes_on_ends_with_its_last_batch() -> None:
    whole = made_up.with_workers(20, 2, epochs=1)
    trace = trace_events([replace(whole, epochs=(EpochTimes(0, made_up.BEGAN, workers=2),))])
    (epoch,) = (event for event in ours(trace, "X") if event["name"] == "epoch 0")
    assert epoch["dur"] / 1e6 == pytest.approx(whole.batches["delivered"][-1] - made_up.BEGAN, abs=1e-6)


def test_no_recordings_make_a_trace_without_events() -> None:
    assert plain(trace_events([]))["traceEvents"] == []


def test_a_path_that_ends_in_gz_is_compressed_and_nothing_else_is_left(tmp_path: Path) -> None:
    recordings = [made_up.with_workers(40)]
    write_trace(tmp_path / "a.json", recordings)
    write_trace(tmp_path / "b.json.gz", recordings)
    texts = (tmp_path / "a.json").read_text(), gzip.decompress((tmp_path / "b.json.gz").read_bytes()).decode()
    first, second = (json.loads(text) for text in texts)
    assert Counter(event["name"] for event in first["traceEvents"]) == Counter(
        event["name"] for event in second["traceEvents"]
    )
    check(second)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a.json", "b.json.gz"]


def test_a_trace_that_cannot_be_merged_is_named_and_nothing_is_written(tmp_path: Path) -> None:
    for name, content in {"torn.gz": gzip.compress(b"{}" * 99)[:-12], "list.json": b"[]", "text": b"no trace"}.items():
        (tmp_path / name).write_bytes(content)
        with pytest.raises(UsageError, match=name):
            write_trace(tmp_path / "merged.json", [], beside=tmp_path / name)
    assert not (tmp_path / "merged.json").exists()


@pytest.fixture(scope="module")
def profiled(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Path, Recording]]:
    """A loop that torch's profiler watched: its trace, and the recording of the loader."""
    path = tmp_path_factory.mktemp("profiled") / "profiler.json"
    loader: headrace.DataLoader[torch.Tensor] = headrace.DataLoader(Slow(), batch_size=8, num_workers=2)
    with profile(activities=[ProfilerActivity.CPU]) as profiler:
        with record_function("the first one, which takes long"):
            batches = iter(loader)
        for _ in range(len(loader)):
            with record_function("asking"):
                batch = next(batches)
            with record_function("working"):
                (batch.double() @ torch.ones(16, dtype=torch.double)).sum()
        assert next(batches, None) is None
    profiler.export_chrome_trace(str(path))
    yield path, loader.recording


def check_clock(asking: list[dict[str, Any]], waits: list[dict[str, Any]]) -> None:
    """Asserts that each wait lies within what the profiler saw of it, and that the two clocks agree."""
    begins, ends = [], []
    for theirs, mine in zip(asking, waits, strict=True):
        begins.append(mine["ts"] - theirs["ts"])
        ends.append(theirs["ts"] + theirs["dur"] - mine["ts"] - mine["dur"])
    assert min(*begins, *ends) > -CLOSE
    assert max(min(begins), min(ends)) < CLOSE  # on a busy machine others come in between now and then


@pytest.mark.parametrize("ending", [".json", ".json.gz"])
def test_waits_are_where_the_profiler_saw_them(profiled: tuple[Path, Recording], tmp_path: Path, ending: str) -> None:
    path, recording = profiled
    merged = tmp_path / f"merged{ending}"
    beside = path
    if ending == ".json.gz":
        beside = tmp_path / "profiler.json.gz"
        beside.write_bytes(gzip.compress(path.read_bytes()))
    write_trace(merged, [recording], beside=beside)
    raw = merged.read_bytes()
    trace = json.loads(gzip.decompress(raw) if ending == ".json.gz" else raw)
    asking = [event for event in trace["traceEvents"] if event["name"] == "asking" and event["ph"] == "X"]
    waits = [event for event in ours(trace, "X") if event["name"] == "wait"]
    assert len(asking) == len(waits) == 6
    check_clock(asking, waits)
    given = json.loads(path.read_text())
    assert trace["baseTimeNanoseconds"] == given["baseTimeNanoseconds"]
    kept = [event for event in trace["traceEvents"] if event.get("pid", 0) not in {mine["pid"] for mine in waits}]
    assert len(kept) == len(given["traceEvents"])


def test_a_trace_of_its_own_counts_from_where_the_profiler_does(profiled: tuple[Path, Recording]) -> None:
    path, recording = profiled
    given = json.loads(path.read_text())
    alone = trace_events([recording])
    assert alone["baseTimeNanoseconds"] == given["baseTimeNanoseconds"]
    assert {"worker 0", "worker 1"} <= set(threads(alone).values())
    asking = [event for event in given["traceEvents"] if event["name"] == "asking"]
    check_clock(asking, [event for event in ours(alone, "X") if event["name"] == "wait"])


def test_a_worker_of_the_main_process_has_no_thread_of_its_own() -> None:
    rows = made_up.inline(3).batches
    assert set(rows["worker"].tolist()) == {MAIN}
    trace = trace_events([Recording(batches=rows, setting=Setting(loader="torch"))])
    assert list(threads(trace).values()) == ["training loop", "epochs"]
