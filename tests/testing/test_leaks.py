"""Each kind of leak is found and named, and nothing is found where nothing is left."""

from __future__ import annotations

import contextlib
import gc
import multiprocessing
import os
import re
import select
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from torch.utils.data import DataLoader, Dataset

from headrace import DataLoader as OurLoader
from headrace.testing import Hang, Kill, LeakError, descendants, no_leaks
from headrace.testing.belongings import SHARED_MEMORY, Belongings

pytestmark = [
    pytest.mark.alone,
    pytest.mark.skipif(sys.platform != "linux", reason="reads /proc"),
]
FORK = multiprocessing.get_context("fork")


@contextlib.contextmanager
def shared_file() -> Iterator[Path]:
    handle, name = tempfile.mkstemp(dir=SHARED_MEMORY, prefix="headrace-test-")
    os.close(handle)
    yield Path(name)
    Path(name).unlink(missing_ok=True)


@contextlib.contextmanager
def hanging() -> Iterator[int]:
    process = FORK.Process(target=Hang())
    process.start()
    assert process.pid is not None
    yield process.pid
    process.kill()
    process.join()
    process.close()


def ended(pid: int) -> None:
    """Waits until a process has ended, without taking note of it as `wait` does."""
    pidfd = os.pidfd_open(pid)
    assert select.select([pidfd], [], [], 20)[0]
    os.close(pidfd)


def test_a_child_is_named_by_number_and_command() -> None:
    with contextlib.ExitStack() as later, pytest.raises(LeakError) as caught, no_leaks(timeout=0.1):
        pid = later.enter_context(hanging())
    assert f"child process {pid}: " in str(caught.value)
    assert "python" in str(caught.value)


def test_a_grandchild_is_found() -> None:
    code = "import subprocess; p = subprocess.Popen(['sleep', '1000']); print(p.pid, flush=True); p.wait()"
    with pytest.raises(LeakError) as caught, no_leaks(timeout=0.1):
        child = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE)
        assert child.stdout is not None
        grandchild = int(child.stdout.readline())
    assert {child.pid, grandchild} <= set(descendants())
    assert f"child process {grandchild}: sleep 1000\n" in str(caught.value)
    os.kill(grandchild, signal.SIGKILL)
    child.communicate()


def test_a_child_that_nobody_waited_for_is_a_leak() -> None:
    with pytest.raises(LeakError, match="ended, but nobody has waited for it"), no_leaks():
        pid = os.fork()
        if pid == 0:
            os._exit(0)
        ended(pid)
    os.waitpid(pid, 0)


SLOW_PARENT = """
import os, sys, time
sys.stdin.readline()
child = os.fork()
if child == 0:
    os._exit(0)
os.waitid(os.P_PID, child, os.WEXITED | os.WNOWAIT)
print(child, flush=True)
time.sleep(0.3)
os.waitpid(child, 0)
sys.stdin.read()
"""


def test_a_grandchild_that_has_ended_is_left_to_its_parent() -> None:
    command = [sys.executable, "-S", "-c", SLOW_PARENT]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as parent:
        assert parent.stdin is not None
        assert parent.stdout is not None
        with no_leaks():
            parent.stdin.write("\n")
            parent.stdin.flush()
            grandchild = int(parent.stdout.readline())
            assert grandchild in descendants()
        assert grandchild not in descendants()
        parent.communicate()


def test_a_thread_is_named() -> None:
    event = threading.Event()
    thread = threading.Thread(target=event.wait, name="reader of photos", daemon=True)
    with pytest.raises(LeakError, match="thread reader of photos"), no_leaks(timeout=0.1):
        thread.start()
    event.set()
    thread.join()


def test_a_descriptor_is_named_by_number_and_target(tmp_path: Path) -> None:
    with pytest.raises(LeakError) as caught, no_leaks():
        fd = os.open(tmp_path / "photo.jpg", os.O_CREAT)
    os.close(fd)
    assert f"descriptor {fd}: {tmp_path}/photo.jpg\n" in str(caught.value)


def test_a_descriptor_of_the_same_number_may_be_another_one(tmp_path: Path) -> None:
    fd = os.open(tmp_path / "a", os.O_CREAT)
    with pytest.raises(LeakError, match=f"descriptor {fd}: {tmp_path}/b"), no_leaks():
        os.close(fd)
        assert os.open(tmp_path / "b", os.O_CREAT) == fd
    os.close(fd)


def test_a_file_that_is_open_under_another_number_is_no_leak(tmp_path: Path) -> None:
    fd = os.open(tmp_path / "a", os.O_CREAT)
    with no_leaks():
        other = os.dup(fd)
        os.close(fd)
    with pytest.raises(LeakError, match=f"descriptor {fd}: {tmp_path}/a"), no_leaks():
        assert os.dup(other) == fd
    os.close(fd)
    os.close(other)


def test_shared_memory_is_named() -> None:
    with contextlib.ExitStack() as later, pytest.raises(LeakError) as caught, no_leaks():
        path = later.enter_context(shared_file())
    assert f"shared memory {path}\n" in str(caught.value)


def test_shared_memory_that_somebody_else_holds_is_not_ours() -> None:
    code = "import sys; file = open(sys.argv[1], 'x'); print(flush=True); sys.stdin.read()"
    with shared_file() as path:
        path.unlink()
        before = Belongings.now()
        holder = subprocess.Popen(
            [sys.executable, "-c", code, str(path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        assert holder.stdout is not None
        holder.stdout.readline()
        mine = Belongings.now().beyond(before).shared
        theirs = with_descendants([], before)
        holder.communicate()
    assert (mine, theirs) == ({path}, set())


LOCKS_WHEN_TOLD = """
import multiprocessing, sys
sys.stdin.readline()
lock = multiprocessing.get_context("spawn").Lock()
print(lock._semlock.name, flush=True)
sys.stdin.read()
"""


def test_a_semaphore_of_another_program_is_not_ours() -> None:
    # The shell ends at once: its child is none of ours.
    command = ["sh", "-c", 'exec 3<&0; "$0" -c "$1" <&3 &', sys.executable, LOCKS_WHEN_TOLD]
    shell = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert shell.stdin is not None
    assert shell.stdout is not None
    shell.wait()
    with no_leaks():
        shell.stdin.write("\n")
        shell.stdin.flush()
        name = shell.stdout.readline().strip().removeprefix("/")
        assert (SHARED_MEMORY / f"sem.{name}").exists()
    shell.communicate()


def with_descendants(pids: list[int], before: Belongings) -> set[Path]:
    """Returns what shared memory is new if these are the own processes."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("headrace.testing.belongings.descendants", lambda: pids)
        return set(Belongings.now().beyond(before).shared)


def test_memory_is_looked_at_if_asked_for() -> None:
    kept = []
    with no_leaks():
        kept.append(bytearray(b"\1") * (64 << 20))
    too_much = r"memory: [\d,]+ bytes more than before, 33,554,432 allowed"
    with pytest.raises(LeakError, match=too_much), no_leaks(memory=32 << 20):
        kept.append(bytearray(b"\1") * (64 << 20))
    with no_leaks(memory=32 << 20):
        kept[0] = bytearray(b"\1") * (64 << 20)


def test_what_is_about_to_end_is_waited_for() -> None:
    with no_leaks():
        threading.Thread(target=Hang(0.2)).start()
        FORK.Process(target=Hang(0.2)).start()


def test_garbage_is_no_leak() -> None:
    gc.disable()
    try:
        with no_leaks():
            ends: list[object] = list(multiprocessing.Pipe())
            ends.append(ends)
            del ends
    finally:
        gc.enable()


def test_an_error_inside_is_raised_and_hides_nothing() -> None:
    with pytest.raises(KeyError, match="inside"), no_leaks():
        fd = os.open(os.devnull, os.O_RDONLY)
        raise KeyError("inside")
    os.close(fd)


@pytest.mark.parametrize(
    ("loader", "method"),
    [
        (DataLoader, "fork"),
        (DataLoader, "forkserver"),
        (OurLoader, "fork"),
        (OurLoader, "spawn"),
        (OurLoader, "forkserver"),
    ],
)
def test_an_epoch_leaves_nothing(loader: type[DataLoader[int]], method: str) -> None:
    with no_leaks():
        iterator = iter(loader(range(64), batch_size=4, num_workers=2, multiprocessing_context=method))  # type: ignore[arg-type]
        assert next(iterator).tolist() == [0, 1, 2, 3]
        del iterator


class Rows(Dataset[torch.Tensor]):
    """Rows large enough to come through shared memory."""

    def __len__(self) -> int:
        return 16

    def __getitem__(self, key: int) -> torch.Tensor:
        return torch.full((1 << 13,), float(key))


def test_a_batch_that_is_held_keeps_nothing_of_another_loader() -> None:
    loader = OurLoader(Rows(), batch_size=8, num_workers=1, multiprocessing_context="fork")
    held = next(iter(loader))
    with no_leaks():
        assert len(list(OurLoader(Rows(), num_workers=1, multiprocessing_context="fork"))) == 16
    assert held[:, 0].tolist() == list(range(8))


@pytest.mark.thorough
def test_the_helpers_of_multiprocessing_are_no_leak_and_hide_nothing() -> None:
    context = multiprocessing.get_context("forkserver")
    process = context.Process(target=Hang())
    with no_leaks():
        first = context.Process(target=Kill())
        first.start()
        first.join()
        first.close()
        del first
    with pytest.raises(LeakError) as caught, no_leaks(timeout=0.1):
        process.start()
    assert re.findall(r"child process (\d+)", str(caught.value)) == [str(process.pid)]
    process.kill()
    process.join()
    process.close()


@pytest.mark.thorough
def test_the_first_workers_of_a_program_leave_nothing() -> None:
    code = (
        "from headrace import DataLoader; from headrace.testing import no_leaks\n"
        "with no_leaks():\n"
        "    assert len(list(DataLoader(range(8), 4, num_workers=1, multiprocessing_context='fork'))) == 2"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False)
    assert (0, "") == (done.returncode, done.stderr)
