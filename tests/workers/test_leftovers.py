"""Afterwards nothing is left: no process, descriptor, memory or file."""

from __future__ import annotations

import contextlib
import gc
import multiprocessing
import os
import shutil
import signal
import subprocess
import sys
import time
import weakref
from pathlib import Path
from typing import Any

import pytest
import torch

from headrace import DataLoader
from headrace.shared_memory.leases import KEEP
from headrace.shared_memory.memory import FileBacking
from headrace.shared_memory.slots import KEPT
from headrace.testing import Attempts
from headrace.testing.belongings import Belongings
from headrace.workers.processes import pool as pool
from tests import programs
from tests.belongings import Children, own_memory, shared_memory
from tests.workers.datasets import Photos

ROOT = Path(__file__).parents[2]
LINUX = pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")

HALF_AN_EPOCH = """
import sys, torch
from headrace import DataLoader
from tests.workers.datasets import Photos
if __name__ == "__main__":
    loader = DataLoader(Photos(4000), batch_size=4, num_workers=2, persistent_workers=True,
                        multiprocessing_context=sys.argv[1])
    iterator = iter(loader)
    kept = [next(iterator) for _ in range(8)]
    print(*[process.pid for process in iterator._workers], flush=True)
    sys.stdin.read()
"""

WHOLE_EPOCH = """
import torch
from {module} import DataLoader
from tests.workers.datasets import Photos
images = [batch[0] for batch in DataLoader(Photos(64), batch_size=8, num_workers=2)]
assert all(torch.equal(batch[:, 0, 0, 0], torch.arange(8.0) + 8 * number) for number, batch in enumerate(images))
print("delivered", len(images))
"""


def descriptors() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


def ends(pid: int) -> bool:
    """Waits until a process that is not our child has ended; the kernel tells through a pidfd."""
    try:
        pidfd = os.pidfd_open(pid)
    except ProcessLookupError:
        return True
    import select

    with contextlib.closing(os.fdopen(pidfd)):
        return bool(select.select([pidfd], [], [], 30)[0])


def kill_and_see_the_workers_end(parent: programs.Program) -> None:
    """Kills a program that has printed the numbers of its two workers."""
    workers = [int(pid) for pid in parent.read_line().split()]
    assert len(workers) == 2
    parent.send_signal(signal.SIGKILL)
    parent.wait()
    assert all(ends(pid) for pid in workers)


@LINUX
@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_killing_the_parent_leaves_no_process_file_or_shared_memory(method: str, tmp_path: Path) -> None:
    before = Belongings.now()
    script = tmp_path / "half_an_epoch.py"
    script.write_text(HALF_AN_EPOCH)
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "TMPDIR": str(tmp_path)}
    with programs.Program([script, method], env=environment) as parent:
        kill_and_see_the_workers_end(parent)
    assert Belongings.now().beyond(before).shared == frozenset()
    assert list(tmp_path.iterdir()) == [script]


HANGING = """
import sys, threading, time, torch
from headrace import DataLoader
from headrace.testing import Faulty, Hang
def begin():
    global iterator
    iterator = iter(DataLoader(dataset, batch_size=4, num_workers=2, multiprocessing_context="fork"))
    next(iterator)
if __name__ == "__main__":
    dataset = Faulty(range(40), {5: Hang()})
    if sys.argv[1] == "thread":
        thread = threading.Thread(target=begin)
        thread.start()
        thread.join()
    else:
        begin()
    while not dataset.attempts.of(5):
        time.sleep(0.001)
    print(*[process.pid for process in iterator._workers], flush=True)
    sys.stdin.read()
"""


@LINUX
@pytest.mark.parametrize("place", ["main", "thread"])
def test_killing_the_parent_ends_workers_in_the_middle_of_a_sample(place: str, tmp_path: Path) -> None:
    script = tmp_path / "hanging.py"
    script.write_text(HANGING)
    with programs.Program([script, place], env={**os.environ, "TMPDIR": str(tmp_path)}) as parent:
        kill_and_see_the_workers_end(parent)


@pytest.mark.thorough
@LINUX
@pytest.mark.parametrize("persistent", [False, True])
def test_descriptors_and_memory_are_flat_over_fifty_epochs(persistent: bool) -> None:
    loader = DataLoader(Photos(64), batch_size=8, num_workers=2, persistent_workers=persistent)
    figures = []
    for _ in range(50):
        for images, _ in loader:
            assert images.shape[0] == 8
        figures.append((descriptors(), own_memory()))
    files, memory = zip(*figures, strict=True)
    assert set(files[5:]) == {files[5]}
    # Steps of 2 and 4 MB come once each, in whichever epoch; over 300 epochs no more than 12 MB came.
    assert max(memory[25:]) <= max(memory[5:25]) + (8 << 20)
    assert shared_memory(loader) < 40 << 20


@pytest.mark.thorough
@LINUX
def test_a_broken_off_epoch_leaves_no_descriptor_and_no_child() -> None:
    loader = DataLoader(Photos(64), batch_size=4, num_workers=2)
    counts = []
    for _ in range(10):
        iterator = iter(loader)
        next(iterator)
        pids = [process.pid for process in iterator._workers]
        del iterator
        counts.append(descriptors())
        assert all(ends(pid) for pid in pids)
    assert set(counts[3:]) == {counts[3]}  # by then both regions of the arena are mapped


@pytest.mark.thorough
@LINUX
def test_memory_of_batches_that_were_kept_comes_back_when_they_go() -> None:
    loader = DataLoader(Photos(1200, side=256), batch_size=8, num_workers=2)

    kept = list(loader)
    full = shared_memory(loader)
    del kept
    assert full >= 900 << 20
    assert shared_memory(loader) <= 2 * (KEEP + KEPT) + (64 << 20)


def in_tiny_shm(code: str) -> subprocess.CompletedProcess[str]:
    """Runs code with 64 KiB of /dev/shm, in a mount namespace of its own."""
    command = 'mount -t tmpfs -o size=64k tmpfs /dev/shm && exec "$0" -c "$1"'
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    return subprocess.run(
        ["unshare", "--mount", "sh", "-c", command, sys.executable, code],
        capture_output=True, text=True, env=environment, timeout=100, check=False,
    )  # fmt: skip


@pytest.mark.thorough
@LINUX
def test_an_epoch_is_delivered_with_64_kib_of_dev_shm_where_torch_fails() -> None:
    if not shutil.which("unshare") or in_tiny_shm("print('ok')").stdout != "ok\n":
        pytest.skip("this machine allows no mount namespace (needs root or CAP_SYS_ADMIN)")
    ours = in_tiny_shm(WHOLE_EPOCH.format(module="headrace"))
    theirs = in_tiny_shm(WHOLE_EPOCH.format(module="torch.utils.data"))
    assert (ours.stdout, ours.returncode) == ("delivered 8\n", 0)
    assert theirs.returncode != 0


@pytest.mark.thorough
def test_a_worker_that_outstays_its_welcome_is_ended() -> None:
    with Attempts() as attempts:
        iterator = iter(DataLoader(Sleeper(attempts), batch_size=1, num_workers=1))
        next(iterator)
        (worker,) = iterator._workers
        while not attempts.of(1):
            time.sleep(0.001)
        began = time.monotonic()
        del iterator
    assert not worker.is_alive()
    assert time.monotonic() - began < 60


class Sleeper(Photos):
    """Item 1 sleeps until a signal comes."""

    def __init__(self, attempts: Attempts) -> None:
        super().__init__(64)
        self.attempts = attempts

    def __getitem__(self, index: int) -> tuple[object, int]:  # type: ignore[override]
        self.attempts.count(index)
        if index == 1:
            signal.pause()
        return super().__getitem__(index)


@pytest.mark.filterwarnings("ignore:This DataLoader will create")
def test_an_iterator_may_be_collected_at_any_moment(monkeypatch: pytest.MonkeyPatch) -> None:
    """The garbage collector runs a forgotten iterator's end in the middle of another one's beginning."""

    def forget() -> None:
        cycle = [iter(DataLoader(Photos(64), batch_size=4, num_workers=1))]
        next(cycle[0])
        cycle.append(cycle)  # type: ignore[arg-type]

    kept = DataLoader(Photos(64), batch_size=4, num_workers=1)
    images, _ = next(iter(kept))
    reserve, collected = FileBacking.reserve, []

    def reserve_and_collect(backing: FileBacking, regions: int) -> None:
        collected.append(gc.collect())
        reserve(backing, regions)

    gc.disable()
    try:
        forget()
        monkeypatch.setattr(FileBacking, "reserve", reserve_and_collect)
        assert len(list(DataLoader(Photos(64), batch_size=4, num_workers=3))) == 16
    finally:
        gc.enable()
    assert collected
    assert images[:, 0, 0, 0].tolist() == [0, 1, 2, 3]


class Trainer:
    """Holds its loader, which holds it by its collate function: a cycle, as in many a trainer."""

    def __init__(self, **options: Any) -> None:
        self.loader = DataLoader(
            Photos(64), batch_size=4, num_workers=2, persistent_workers=True, collate_fn=self.collate, **options
        )

    def collate(self, samples: list[Any]) -> Any:
        return torch.utils.data.default_collate(samples)


@pytest.mark.thorough
@LINUX
@pytest.mark.parametrize("options", [{}, {"prefetch_factor": "auto"}], ids=["fixed", "auto"])
def test_a_loader_in_a_reference_cycle_leaves_nothing(
    children: Children, options: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The collector finalizes old things first: here pipes before the iterator that is to stop the workers."""
    trouble: list[Any] = []
    monkeypatch.setattr(sys, "unraisablehook", trouble.append)
    counts = []
    for _ in range(3):
        pipes = [multiprocessing.Pipe() for _ in range(2)]
        gc.collect()
        monkeypatch.setattr(pool, "Pipe", lambda duplex, pipes=pipes: pipes.pop())
        trainer = Trainer(**options)
        assert len(list(trainer.loader)) == 16
        workers = [process.pid for process in trainer.loader._iterator._workers]
        gone = weakref.ref(trainer)
        del trainer
        gc.collect()
        assert gone() is None
        assert all(ends(pid) for pid in workers)
        counts.append(descriptors())
    assert trouble == []
    assert counts[1:] == [counts[1]] * 2
    assert children() == []
