"""Where loading spends its time is told by the lines that a worker is at, and by the calls that it waits in."""

from __future__ import annotations

import io
import logging
import os
import platform
import re
import select
import signal
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import Dataset

import headrace
from headrace.batches.fetch_map import MapFetcher
from headrace.core.process.activity import COLLATE, LOAD, STAGE, private_activity
from headrace.core.torch_internals import torch_default_collate
from headrace.telemetry import stack_sampler as anatomy
from headrace.telemetry.recording import LoadingPlace
from headrace.telemetry.stack_sampler import StackSampler, kind_of
from headrace.testing import Faulty, Hang, Segfault
from headrace.workers.processes.crash_file import TELL_STACKS, of_the_user

MINE = "/me/data.py"
PILLOW = "/lib/python3.11/site-packages/PIL"
LINUX = pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
SYSTEM_CALLS = pytest.mark.skipif(
    not Path("/proc/thread-self/syscall").exists() or platform.machine() != "x86_64",
    reason="the kernel does not tell system calls, or they have other numbers",
)


@pytest.mark.parametrize(
    ("file", "function", "line", "kind"),
    [
        # by the name of the function
        (MINE, "Photos.read_file", "x = 1", "read"),
        (MINE, "read_bytes", "", "read"),
        (MINE, "Store.download_shard", "", "read"),
        (MINE, "decode_jpeg", "", "decode"),
        (MINE, "Photos.imread", "", "decode"),
        (MINE, "load_image", "", "decode"),
        (MINE, "parse_example", "", "decode"),
        (MINE, "Photos.transform", "", "transform"),
        (MINE, "random_crop", "", "transform"),
        (MINE, "normalise", "", "transform"),
        (MINE, "Normalize.__call__", "return x", None),
        (MINE, "tokenize", "", "transform"),
        (MINE, "decode_and_resize", "", "transform"),  # named by what comes last
        (MINE, "threaded", "x = 1", None),  # no "read" in it
        # by the file
        (f"{PILLOW}/Image.py", "open", "fp = builtins.open(filename)", "decode"),
        (f"{PILLOW}/Image.py", "Image.convert", "", "decode"),
        (f"{PILLOW}/Image.py", "Image.resize", "", "transform"),
        (f"{PILLOW}/Image.py", "Image.rotate", "", "transform"),
        (f"{PILLOW}/ImageFile.py", "ImageFile.load", "", "decode"),
        (f"{PILLOW}/JpegImagePlugin.py", "_open", "", "decode"),
        ("/lib/site-packages/torchvision/transforms/functional.py", "to_tensor", "", "transform"),
        ("/lib/site-packages/torchvision/io/image.py", "f", "", "decode"),
        ("/lib/python3.11/pathlib.py", "Path.open", "", "read"),
        ("/lib/python3.11/socket.py", "makefile", "", "read"),
        ("/lib/python3.11/gzip.py", "GzipFile.peek", "", "decode"),
        # by the line
        (MINE, "Photos.__getitem__", "data = file.read(100)", "read"),
        (MINE, "Photos.__getitem__", "raw = urlopen(address)", "read"),
        (MINE, "Photos.__getitem__", "time.sleep(0.1)", "read"),
        (MINE, "Photos.__getitem__", "image = Image.open(path)", "decode"),
        (MINE, "Photos.__getitem__", "image = cv2.imdecode(data, 1)", "decode"),
        (MINE, "Photos.__getitem__", "array = np.load(path)", "decode"),
        (MINE, "Photos.__getitem__", "row = json.loads(line)", "decode"),
        (MINE, "Photos.__getitem__", "image = self.transform(image)", "transform"),
        (MINE, "Photos.__getitem__", "image = aug(image)", "transform"),
        (MINE, "Photos.__getitem__", "ids = tokenizer(text)", "transform"),
        (MINE, "Photos.__getitem__", "return self.labels[key]", None),
        (MINE, "Photos.__getitem__", "", None),
        (MINE, "Photos.__getitem__", "already(1)", None),
    ],
)
def test_what_a_line_of_a_function_does(file: str, function: str, line: str, kind: str | None) -> None:
    assert kind_of(file, function, line) == kind


# -- a worker process --------------------------------------------------------------------------------------------------


def spin(seconds: float) -> None:
    until = time.process_time() + seconds
    while time.process_time() < until:
        sum(range(200))


def read_file(seconds: float) -> None:
    time.sleep(seconds)


def transform(seconds: float) -> None:
    spin(seconds)


def plain_work(seconds: float) -> None:
    spin(seconds)


def linger(seconds: float) -> None:
    select.select([], [], [], seconds)


class Working(Dataset[torch.Tensor]):
    """Each sample takes `seconds` in one function, and hardly anything beside it."""

    def __init__(self, work: Callable[[float], None], seconds: float, length: int) -> None:
        self.work, self.seconds, self.length = work, seconds, length

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, key: int) -> torch.Tensor:
        self.work(self.seconds)
        return torch.tensor(key)


def jpeg() -> bytes:
    """A noisy photograph that takes a while to decode."""
    pixels = np.random.default_rng(0).integers(0, 255, (1500, 1500, 3), np.uint8)
    file = io.BytesIO()
    pytest.importorskip("PIL.Image").fromarray(pixels).save(file, "JPEG", quality=95)
    return file.getvalue()


class Photos(Dataset[torch.Tensor]):
    """The same JPEG image for each sample, decoded with Pillow."""

    def __init__(self, length: int) -> None:
        self.length, self.data = length, jpeg()

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, key: int) -> torch.Tensor:
        from PIL import Image

        image = Image.open(io.BytesIO(self.data)).convert("RGB")
        return torch.tensor(image.size)


class Whole(Working):
    """Makes whole batches."""

    def fetch_batch(self, keys: Any, out: Any) -> torch.Tensor:
        self.work(self.seconds)
        return torch.as_tensor(np.asarray(keys))


def places_of(dataset: Any, **options: Any) -> tuple[LoadingPlace, ...]:
    loader = headrace.DataLoader(dataset, 4, num_workers=1, **options)
    for _ in loader:
        pass
    return loader.recording.places


@pytest.mark.quick(kind="read")
@LINUX
@pytest.mark.parametrize(
    ("dataset", "kind", "name"),
    [
        (Working(read_file, 0.05, 24), "read", "read_file (test_stack_sampler.py:"),
        (Working(transform, 0.05, 24), "transform", "spin (test_stack_sampler.py:"),
        (Working(plain_work, 0.05, 24), "other", "spin (test_stack_sampler.py:"),
        (Whole(read_file, 0.2, 24), "read", "read_file (test_stack_sampler.py:"),
        pytest.param(Working(linger, 0.05, 24), "read", "linger (test_stack_sampler.py:", marks=SYSTEM_CALLS),
    ],
    ids=["reading", "transform", "other", "whole batches", "waiting"],
)
def test_the_place_where_a_worker_spends_its_time_is_named(dataset: Any, kind: str, name: str) -> None:
    places = places_of(dataset)
    assert sum(place.share for place in places) == pytest.approx(1.0)
    assert sum(place.share for place in places if place.kind == kind) > 0.7
    assert max(places, key=lambda place: place.share).where.startswith(name)


@pytest.mark.thorough
@LINUX
def test_decoding_with_pillow_is_named_by_the_users_line() -> None:
    photos = Photos(1)
    began = time.process_time()
    photos[0]
    each = max(time.process_time() - began, 0.01)
    places = places_of(Photos(4 * max(int(1.2 / each / 4), 2)))
    assert sum(place.share for place in places if place.kind == "decode") > 0.7
    top = max(places, key=lambda place: place.share)
    assert re.fullmatch(r"Photos\.__getitem__ \(test_stack_sampler\.py:\d+\)", top.where)
    assert top.share > 0.5


def test_without_worker_processes_nobody_looks() -> None:
    dataset = Working(spin, 0.02, 16)
    for backend in ("thread", "inline"):
        loader = headrace.DataLoader(dataset, 4, num_workers=1, backend=backend)  # type: ignore[arg-type]
        assert len(list(loader)) == 4
        assert loader.recording.places == ()


# -- the looker --------------------------------------------------------------------------------------------------------


def test_only_loading_is_looked_at(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(anatomy, "EVERY", 0.005)
    activity = private_activity()
    sampler = StackSampler(activity)
    fetcher = MapFetcher(Working(transform, 0.2, 4), True, torch_default_collate, None, activity, watched=True)
    activity[STAGE] = COLLATE
    spin(0.1)
    assert sampler.take() == []
    activity[STAGE] = LOAD
    spin(0.1)  # says that it loads, but it does so outside of the dataset's code
    assert sampler.take() == []
    fetcher.fetch([0])
    seen = sampler.take()
    assert {kind for kind, _, _ in seen} <= {"transform", "other"}
    assert sum(count for _, _, count in seen) >= 4
    activity[STAGE] = COLLATE
    assert sampler.take() == []  # it was taken

    def collate(samples: list[Any]) -> None:
        spin(0.1)

    MapFetcher(range(4), True, collate, None, activity, watched=True).fetch([0])
    assert sampler.take() == []
    sampler._looker._ended.set()


def test_a_few_looks_are_kept_for_later(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(anatomy, "EVERY", 3600.0)
    sampler = StackSampler(private_activity())
    sampler._seen.update(Counter({("read", "f"): 2, ("other", "g"): 1}))
    assert sampler.take() == []
    sampler._seen["read", "f"] += 1
    assert sorted(sampler.take()) == [("other", "g", 1), ("read", "f", 3)]
    sampler._seen["read", "f"] += 4
    assert sampler.take() == [("read", "f", 4)]
    sampler._looker._ended.set()


class Blocked(Dataset[torch.Tensor]):
    """Tells which signals the thread that looks on leaves to the worker."""

    def __len__(self) -> int:
        return 2

    def __getitem__(self, key: int) -> torch.Tensor:
        (looker,) = [thread for thread in threading.enumerate() if thread.name == "headrace-stack-sampler"]
        status = Path(f"/proc/self/task/{looker.native_id}/status").read_text()
        (mask,) = [int(line.split()[1], 16) for line in status.splitlines() if line.startswith("SigBlk:")]
        wanted = (signal.SIGUSR1, signal.SIGTERM, signal.SIGINT, signal.SIGALRM, TELL_STACKS)
        return torch.tensor([bool(mask >> (number - 1) & 1) for number in wanted])


@LINUX
def test_signals_of_a_worker_are_its_own() -> None:
    found = list(headrace.DataLoader(Blocked(), None, num_workers=1))
    assert [one.all() for one in found] == [True, True]


@SYSTEM_CALLS
def test_waiting_inside_of_a_library_counts_as_reading() -> None:
    """A C function that waits, called by a line that says nothing of reading."""
    activity = private_activity()
    ours, theirs = os.pipe()
    looker = StackSampler(activity)._looker
    waits = []

    def look_and_wake() -> None:
        waits.append(any(looker._waits() for _ in range(100_000)))
        os.write(theirs, b"x")

    thread = threading.Thread(target=look_and_wake)
    thread.start()
    os.read(ours, 1)
    thread.join()
    looker._ended.set()
    os.close(ours)
    os.close(theirs)
    assert waits == [True]


# -- stacks of workers that hang or die --------------------------------------------------------------------------------


TWO_THREADS = """Fatal Python error: Segmentation fault

Thread 0x00007f10 (most recent call first):
  File "/lib/python3.11/threading.py", line 331 in wait
  File "/site-packages/headrace/telemetry/stack_sampler.py", line 100 in run
  File "/lib/python3.11/threading.py", line 982 in run

Current thread 0x00007f20 (most recent call first):
  File "/me/data.py", line 8 in read
"""


def test_the_thread_that_looks_on_is_left_out_of_stacks() -> None:
    assert of_the_user(TWO_THREADS).splitlines() == [
        "Fatal Python error: Segmentation fault",
        "",
        "Current thread 0x00007f20 (most recent call first):",
        '  File "/me/data.py", line 8 in read',
    ]
    first, second, third = TWO_THREADS.partition("Current thread")
    the_other_way_round = second + third + "\n" + first.partition("\n\n")[2]
    assert "stack_sampler" not in of_the_user(the_other_way_round)
    assert "line 8 in read" in of_the_user(the_other_way_round)


@pytest.mark.parametrize("fault", [Hang(), Segfault()], ids=["hangs", "dies"])
def test_a_worker_that_ends_is_shown_without_it(fault: Any, caplog: pytest.LogCaptureFixture) -> None:
    dataset = Faulty(range(8), {5: fault}, times=1)
    loader = headrace.DataLoader(dataset, 4, num_workers=1, on_error=headrace.OnError("skip", timeout=0.6))
    with caplog.at_level(logging.WARNING, "headrace"):
        assert [batch.tolist() for batch in loader] == [[0, 1, 2, 3], [4, 5, 6, 7]]
    (said,) = [record.getMessage() for record in caplog.records if "it is replaced" in record.getMessage()]
    assert "in __call__" in said
    assert "faults.py" in said
    assert "stack_sampler" not in said


class Between:
    """A frame at an instruction that belongs to no line."""

    def __init__(self, frame: FrameType) -> None:
        self.f_code, self.f_lineno, self.f_back = frame.f_code, None, frame.f_back


def test_an_instruction_without_a_line_is_put_where_its_function_begins() -> None:
    looker = anatomy._Looker(private_activity(), threading.get_ident(), Counter())
    inside = Between(sys._getframe())
    fetch = Between(sys._getframe())
    fetch.f_code = MapFetcher.fetch.__code__
    inside.f_back = fetch  # type: ignore[assignment]
    first = sys._getframe().f_code.co_firstlineno
    kind, where = looker._place(inside, waits=False) or ("", "")  # type: ignore[arg-type]
    assert where.endswith(f"(test_stack_sampler.py:{first})")
    assert kind == "other"
