"""The live view: true figures, at the bottom of a terminal and nowhere else, with the script's own prints intact."""

from __future__ import annotations

import io
import math
import os
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from rich.console import Console

from headrace.observe.live import EVERY, LiveView, busy_shares, in_flight, samples_per_second, view, wait_share_now
from headrace.observe.terminal_rows import SCROLL_ALL, PinnedRows
from headrace.telemetry.recording import BATCH, EpochTimes, Event, Recording, Setting
from headrace.telemetry.remote_reads import RemoteReads, TrafficWindow
from tests.observe import made_up
from tests.observe.terminal import Screen, run_on_terminal

MADE_UP = [
    made_up.with_workers,
    made_up.inline,
    made_up.of_torch,
    made_up.empty,
    made_up.nothing_known,
    made_up.one_batch,
    made_up.after_a_gap,
]


def shown(recordings: list[Recording], now: float, width: int = 80) -> list[str]:
    """Returns the rows of a view, without colours."""
    file = io.StringIO()
    Console(file=file, width=width, force_terminal=True, color_system=None).print(view(recordings, now), end="")
    return file.getvalue().splitlines()


def ends(recording: Recording) -> float:
    """Returns when the latest batch was delivered."""
    delivered = recording.batches["delivered"]
    return float(delivered[np.isfinite(delivered)].max(initial=made_up.BEGAN))


def four_seconds() -> Recording:
    """Returns two workers from 100 s to 104 s: a batch of 10 each second, of whose wait the loop is half."""
    rows = np.zeros(4, BATCH)
    rows["number"], rows["worker"], rows["samples"] = range(4), (0, 1, 0, 1), 10
    rows["posted"] = 100.0, 100.0, 101.0, 102.0
    rows["begun"] = 100.0, 100.0, 101.0, 102.0
    rows["loaded"], rows["collated"], rows["sent"] = (rows["begun"] + step for step in (0.5, 0.75, 1.0))
    rows["asked"] = 100.2, 101.5, 102.5, 103.5
    rows["delivered"] = 101.0, 102.0, 103.0, 104.0
    return Recording("here.py:1", Setting(num_workers=2, length=8), rows, (EpochTimes(0, 100.0, 101.0),))


def test_figures_are_those_of_the_last_seconds() -> None:
    recording = four_seconds()
    assert samples_per_second(recording, 104.0) == pytest.approx(10)
    assert samples_per_second(recording, 104.0, window=1.5) == pytest.approx(20 / 1.5)
    assert samples_per_second(recording, 108.5) == pytest.approx(10 / 5)
    assert wait_share_now(recording, 104.0) == pytest.approx((1.0 + 3 * 0.5) / 4)  # from iter() on
    assert wait_share_now(recording, 104.0, window=1.0) == pytest.approx(0.5)
    shares = busy_shares(recording, 104.0)
    assert shares[0] == pytest.approx({"load": 0.5, "collate": 0.25, "send": 0.25})
    assert shares[1] == pytest.approx({"load": 1 / 3, "collate": 0.5 / 3, "send": 0.5 / 3})
    flying, ready = in_flight(recording.batches)
    assert flying == pytest.approx((1 + 2 + 1) / 2)
    assert ready == pytest.approx(1 / 2)


def test_the_rows_say_what_the_figures_are() -> None:
    events = (
        Event(100.5, "decided", "an older one"),
        Event(101, "decided", "two  are\nenough"),
        Event(103, "died", "x"),
    )
    rows = shown([replace(four_seconds(), events=events, bad_samples=2, restarts=1)], 104.0)
    assert rows[0].startswith("here.py:1 ━")
    assert rows[0].endswith(" epoch 0, batch 4 of 8 (50%)")
    assert rows[0].count("━") == pytest.approx(rows[0].count("─"), abs=1)
    assert rows[1].startswith("10 samples/s ")
    assert " waiting 62% ██████····" in rows[1]
    assert [row.split(" ", 2)[:2] for row in rows[2:4]] == [["worker", "0"], ["worker", "1"]]
    assert rows[2].endswith("100%  load 50%, collate 25%, send 25%")
    assert [rows[2].count(sign) for sign in "█▓▒·"] == [15, 7, 8, 0]
    assert rows[4] == "2.0 batches in flight, 0.5 ready; 2 bad samples, 1 worker replaced"
    assert rows[5:] == ["decided: two are enough"]


def test_what_comes_over_a_network_has_a_row_of_the_last_seconds() -> None:
    assert not any("network" in row for row in shown([four_seconds()], 104.0))
    windows = (
        TrafficWindow(90.0, 1.0, 9e9, 99.0),
        TrafficWindow(101.0, 1.0, 2e6, 4.0),
        TrafficWindow(102.0, 1.0, 4e6, 8.0),
        TrafficWindow(103.0, 1.0, 1e3, 0.0),
    )
    remote = RemoteReads(requests=120, bytes=12_000_000, windows=windows)
    rows = shown([replace(four_seconds(), remote=remote)], 104.0)
    # The latest window is going on.
    assert rows[-1] == "network 3.00 MB/s, 6 requests in flight, 12.0 MB so far"
    rows = shown([replace(four_seconds(), remote=replace(remote, cache="all", cached_bytes=36_000_000))], 104.0)
    assert rows[-1].endswith("12.0 MB so far, 75% from the cache")
    rows = shown([replace(four_seconds(), remote=replace(remote, windows=()))], 104.0)
    assert rows[-1].startswith("network 0 B/s, 0 requests in flight")


def test_each_bar_of_the_sparkline_is_a_second() -> None:
    recording = four_seconds()
    recording.batches["samples"] = 10, 20, 40, 80
    (row,) = (row for row in shown([recording], 104.0) if "samples/s" in row)
    assert row.partition(" samples/s ")[2].partition(" waiting")[0].strip() == "▂▄█"  # the first one was not whole
    assert row.partition(" samples/s ")[2].partition(" waiting")[0].rstrip().endswith("▂▄█")


@pytest.mark.parametrize("make", MADE_UP)
@pytest.mark.parametrize("width", [120, 80, 64, 40, 20, 5])
def test_every_recording_fits_every_width(make: Callable[[], Recording], width: int) -> None:
    recording = make()
    for later in (0.0, 3.0, 1e6):
        rows = shown([recording, recording], ends(recording) + later, width)
        assert all(len(row) <= width for row in rows)
        assert not any("nan" in row for row in rows)
        assert len(rows) == 2 * min(1, len(recording.batches)) or (later < 10 and make != made_up.nothing_known)


def test_what_is_too_wide_says_so() -> None:
    recording = made_up.with_workers()
    rows = shown([recording], ends(recording), 40)
    assert [len(row) for row in rows if row.endswith("…")] == [40, 40]


def test_many_workers_share_a_row() -> None:
    recording = made_up.with_workers(400, 40, epochs=1)
    rows = shown([recording], ends(recording))
    (row,) = (row for row in rows if "workers busy" in row)
    assert row.startswith("40 workers busy ")
    assert sum(sign in "▁▂▃▄▅▆▇█" for sign in row) == 40
    assert not any(row.startswith("worker ") for row in rows)


def test_a_loader_that_rests_takes_one_row() -> None:
    first, second = made_up.inline(), made_up.with_workers(600, label="other.py:7")
    rows = shown([first, second, made_up.empty()], ends(second))
    assert [row.split()[0] for row in rows if ".py:" in row] == ["evaluate.py:12", "other.py:7"]
    assert rows[1].startswith("other.py:7")


@pytest.mark.parametrize(("width", "named"), [(120, True), (80, False)])
def test_a_wide_terminal_names_the_machines_of_workers(width: int, named: bool) -> None:
    recording = replace(made_up.with_workers(), hosts={1: "gpu-7"})
    file = io.StringIO()
    Console(file=file, width=width).print(view([recording], ends(recording)))
    rows = [line for line in file.getvalue().splitlines() if line.startswith("worker")]
    assert [
        row.startswith(start) for row, start in zip(rows, ("worker 0  here ", "worker 1  gpu-7 "), strict=True)
    ] == [
        named,
        named,
    ]


def test_a_terminal_of_ascii_gets_ascii() -> None:
    recording = made_up.with_workers()
    file = io.TextIOWrapper(io.BytesIO(), encoding="ascii")
    Console(file=file, width=80, force_terminal=True).print(view([recording], ends(recording)))
    file.seek(0)
    assert "worker 0  ####" in file.read().replace("\x1b[34m", "")


def pseudo_terminal() -> tuple[int, io.TextIOWrapper]:
    ours, theirs = os.openpty()
    return ours, os.fdopen(theirs, "w")


def test_the_live_view_draws_five_times_a_second_at_most(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm")
    ours, terminal = pseudo_terminal()
    live, looked = LiveView(Console(file=terminal)), []

    def recordings() -> list[Recording]:
        looked.append(time.perf_counter())
        return []

    began = time.perf_counter()
    while len(looked) < 3:
        live.update(recordings)
    live.close()
    assert min(np.diff(looked)) >= EVERY
    assert looked[-1] - began >= 2 * EVERY
    terminal.close()
    os.close(ours)


@pytest.mark.parametrize("term", ["dumb", "", "unknown"])
def test_a_terminal_that_cannot_move_its_cursor_gets_nothing(monkeypatch: pytest.MonkeyPatch, term: str) -> None:
    monkeypatch.setenv("TERM", term)
    ours, terminal = pseudo_terminal()
    check_silent(Console(file=terminal))
    print("the end", file=terminal, flush=True)
    assert os.read(ours, 1000) == b"the end\r\n"
    terminal.close()
    os.close(ours)


@pytest.mark.parametrize("forced", [True, False])
def test_a_file_gets_nothing(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, forced: bool) -> None:
    monkeypatch.setenv("TERM", "xterm")
    with (tmp_path / "log").open("w") as file:
        check_silent(Console(file=file, force_terminal=forced))
    assert (tmp_path / "log").read_bytes() == b""


def check_silent(console: Console) -> None:
    """Asserts that a view does not even look at recordings, and leaves the streams alone."""
    streams = sys.stdout, sys.stderr
    live = LiveView(console)
    live.update(lambda: pytest.fail("nothing is to be drawn"))
    assert (sys.stdout, sys.stderr) == streams
    live.close()


def test_a_terminal_that_goes_away_does_not_end_the_script(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setattr("headrace.observe.live.EVERY", 0.0)
    monkeypatch.setattr("headrace.observe.live.SHARE", math.inf)
    ours, terminal = pseudo_terminal()
    recording = four_seconds()
    live, looked = LiveView(Console(file=terminal)), []
    os.close(ours)
    live.update(lambda: looked.append(1) or [replace(recording, batches=shifted(recording))])
    live.update(lambda: looked.append(2) or [])
    live.close()
    assert looked == [1]
    terminal.close()


def shifted(recording: Recording) -> np.ndarray:
    """Returns its batches as if the latest one had been delivered right now."""
    rows = recording.batches.copy()
    for name in ("posted", "begun", "loaded", "collated", "sent", "asked", "delivered"):
        rows[name] += time.perf_counter() - 104.0
    return rows


def test_rows_stay_below_what_is_printed_and_go_without_a_trace() -> None:
    file, screen = io.StringIO(), Screen(20, 10)
    size = os.terminal_size((20, 10))
    rows = PinnedRows(file)
    file.write("".join(f"before {number}\r\n" for number in range(4)) + "half a ")
    rows.show(["one", "two"], size)
    file.write("line\r\n" + "".join(f"between {number}\r\n" for number in range(9)))
    rows.show(["ONE", "TWO", "THREE"], size)
    screen.write(file.getvalue())
    assert [row.strip() for row in screen.rows[-4:]] == ["", "ONE", "TWO", "THREE"]
    file.write("after\r\n")
    rows.show(["1"], size)
    file.write("at the end\r\n")
    rows.remove()
    rows.remove()
    screen = Screen(20, 10)
    screen.write(file.getvalue())
    assert screen.bottom == 9
    printed = [f"before {number}" for number in range(4)] + ["half a line"]
    printed += [f"between {number}" for number in range(9)] + ["after", "at the end"]
    assert [row for row in screen.seen if row] == printed
    assert screen.rows[screen.row :] == [""] * (10 - screen.row)


SCRIPT = """
import os, sys, time
import torch
from torch.utils.data import DataLoader, Dataset

class Slow(Dataset):
    def __len__(self): return 160
    def __getitem__(self, i):
        time.sleep(0.006)
        if i % 40 == 5: print(f"a worker prints {i}", flush=True)
        if i % 40 == 6: os.write(2, b"something in C prints %d\\n" % i)
        return torch.tensor(i)

if __name__ == "__main__":
    for step, batch in enumerate(DataLoader(Slow(), batch_size=8, num_workers=2)):
        print(f"a line, step {step}", "-" * (step % 40), file=sys.stderr if step % 2 else sys.stdout)
    sys.stdout.write("[green]no markup[/green]\\tand a tab\\n")
    raise ValueError("at the end")
"""
PRINTS = [f"a line, step {step} {'-' * step}".rstrip() for step in range(20)]


def command(script: Path, *options: str) -> list[str]:
    return [sys.executable, "-m", "headrace", "run", *options, str(script)]


@pytest.fixture
def script(tmp_path: Path) -> Path:
    path = tmp_path / "train.py"
    path.write_text(SCRIPT)
    return path


@pytest.mark.thorough
def test_prints_of_the_script_and_its_workers_are_whole_above_the_view(script: Path) -> None:
    status, written = run_on_terminal(command(script, "--live"))
    assert status == 1
    screen, after_the_first = Screen(80, 24), written.index("\x1b8", written.index(" samples/s")) + 2
    screen.write(written[:after_the_first])
    assert screen.rows[-5].startswith("train.py:15 ")
    assert screen.rows[-3].startswith("worker 0")
    screen.write(written[after_the_first:])
    seen = screen.seen
    assert [row for row in seen if "a line, step" in row] == PRINTS
    assert sorted(row for row in seen if " prints " in row and "train.py" not in row) == sorted(
        line for i in range(0, 160, 40) for line in (f"a worker prints {i + 5}", f"something in C prints {i + 6}")
    )
    assert "[green]no markup[/green]        and a tab" in seen
    assert "ValueError: at the end" in seen
    assert not any("━" in row or row.startswith("worker 0") for row in seen)
    assert any(row.startswith("headrace: with headrace's loader") for row in seen)


@pytest.mark.thorough
def test_where_errors_go_to_a_file_nothing_is_drawn(script: Path, tmp_path: Path) -> None:
    outputs = []
    for options in (("--live",), ()):
        with (tmp_path / "errors").open("wb") as errors:
            outputs.append(run_on_terminal(command(script, *options), errors=errors))
        assert b"\x1b" not in (tmp_path / "errors").read_bytes()
    assert sorted(outputs[0][1].split("\n")) == sorted(outputs[1][1].split("\n"))
    assert outputs[0][0] == 1
    assert "\x1b" not in outputs[0][1]


@pytest.mark.thorough
def test_a_small_terminal_keeps_half_of_its_lines(script: Path) -> None:
    _, written = run_on_terminal(command(script, "--live"), columns=30, lines=7)
    screen, after_the_first = Screen(30, 7), written.index("\x1b8", written.index(" samples/s")) + 2
    screen.write(written[:after_the_first])
    assert screen.rows[-3].startswith("train.py:15 ")
    screen.write(written[after_the_first:])
    assert any(row == "a line, step 3 ---" for row in screen.seen)


FORKED = """
import os, sys
import numpy as np
from rich.console import Console
from headrace.observe.live import EVERY, LiveView, busy_shares, in_flight, samples_per_second, view, wait_share_now
from headrace.telemetry.recording import BATCH, Recording

def in_a_child(do):
    if os.fork() == 0:
        do()
        print("a child", flush=True)
        os._exit(0)
    assert os.wait()[1] == 0

live = LiveView(Console(stderr=True))
in_a_child(lambda: live.update(lambda: sys.exit("drawn")))
live.update(lambda: [Recording(batches=np.zeros(1, BATCH))])
in_a_child(live.close)
live.close()
"""


def test_a_forked_process_does_not_draw() -> None:
    status, written = run_on_terminal([sys.executable, "-c", FORKED])
    assert status == 0
    first, second, third = written.split("a child\r\n")
    assert first == ""
    assert "DataLoader" in second
    assert SCROLL_ALL not in second
    assert SCROLL_ALL in third
