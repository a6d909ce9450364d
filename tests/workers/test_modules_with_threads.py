"""Workers by spawn and forkserver of programs whose modules start threads: each is a process of its own."""

from __future__ import annotations

import os
import select
import signal
import sys
import tempfile
from collections.abc import Iterator
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import Dataset

from headrace import DataLoader
from headrace.core.process.memory import process_tree
from headrace.workers.processes.fork_server import ForkRefused, ForkServer, fork_servers_exist
from tests import programs
from tests.workers.fork_server_data import METHODS, ends

pytestmark = pytest.mark.skipif(not fork_servers_exist(), reason="needs pidfds and descriptors over sockets")

ROOT = Path(__file__).parents[2]

SCRIPT = """
import logging, os, sys
import torch
from torch.utils.data import Dataset
from headrace import DataLoader
{module}
with open("imports", "a") as notes:
    notes.write(f"{{__name__}} ")

class Data(Dataset):
    def __len__(self):
        return 8
    def __getitem__(self, index):
        return {sample}

def main(method):
    logging.basicConfig(level="INFO", format="%(message)s", stream=sys.stdout)
    for persistent in (False, True):
        loader = DataLoader(Data(), 4, num_workers=2, multiprocessing_context=method, persistent_workers=persistent)
        for _ in range(2):
            print([batch.tolist() for batch in loader], loader.setting.fork_server)

if __name__ == "__main__":
    main(sys.argv[1])
"""

MODULES = {
    "thread pool": (
        "from concurrent.futures import ThreadPoolExecutor\npool = ThreadPoolExecutor(2)\nlist(pool.map(abs, [1, 2]))",
        "pool.submit(abs, index).result(60)",
        "threads run after its modules were imported and the dataset was unpickled: ThreadPoolExecutor-0_0",
    ),
    "event loop": (
        "import asyncio, threading\nloop = asyncio.new_event_loop()\n"
        "threading.Thread(target=loop.run_forever, name='loop', daemon=True).start()\n"
        "async def load(index): return index",
        "asyncio.run_coroutine_threadsafe(load(index), loop).result(60)",
        "threads run after its modules were imported and the dataset was unpickled: loop",
    ),
    "pyarrow's threads": (
        "import pyarrow as pa, pyarrow.compute as pc\ntable = pa.table({'a': range(100_000)})\n"
        "table.group_by('a').aggregate([])",
        "table.filter(pc.field('a') == index)['a'][0].as_py()",
        "threads run after its modules were imported and the dataset was unpickled: ",
    ),
    "number of the process": (
        "pid = os.getpid()",
        "index if pid == os.getpid() else -1",
        "__mp_main__.pid is or holds the number of the process",
    ),
    "nothing": ("", "index", None),
}


@pytest.mark.thorough
@METHODS
@pytest.mark.parametrize("case", MODULES)
def test_what_a_module_starts_runs_in_each_worker(method: str, case: str, tmp_path: Path) -> None:
    module, sample, reason = MODULES[case]
    script = tmp_path / "script.py"
    script.write_text(SCRIPT.format(module=module, sample=sample))
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "2"}
    ended = programs.run([script, method], cwd=tmp_path, env=environment)
    lines = ended.stdout.splitlines()
    said = [line for line in lines if line.startswith("headrace: ")]
    assert ended.stderr == ""
    assert [line for line in lines if line not in said] == [f"[[0, 1, 2, 3], [4, 5, 6, 7]] {reason is None}"] * 4
    # One fork server for each loader; or one that refuses, for the program, and two workers for each of three starts.
    imports = (tmp_path / "imports").read_text().split().count("__mp_main__")
    assert imports == (2 if reason is None else 1 + 6)
    # Once for each loader.
    assert len(said) == (0 if reason is None else 2)
    assert all(line.startswith(f"headrace: each worker starts by {method}, as with torch: {reason}") for line in said)


# -- what processes of their own share -------------------------------------------------------------------------------


class Holding(Dataset[Any]):
    """Holds an array, shared memory and a pipe, and makes a thread when it is unpickled."""

    def __init__(self, context: Any) -> None:
        self.array = np.zeros(1 << 22, np.uint8)
        self.seen = torch.zeros(4, dtype=torch.int64).share_memory_()
        self.questions = context.SimpleQueue()

    def __setstate__(self, state: dict[str, Any]) -> None:
        from concurrent.futures import ThreadPoolExecutor

        self.__dict__.update(state)
        self.pool = ThreadPoolExecutor(1)
        self.pool.submit(abs, 1).result()

    def __len__(self) -> int:
        return 4

    def __getitem__(self, index: int) -> tuple[int, int, bool]:
        self.seen[index] += 1
        self.array[index] += 1
        return int(self.array[index]), self.questions.get(), maps_file_of(self.array)


def maps_file_of(array: Any) -> bool:
    """Tells whether the memory of an array is that of a file, which other processes map as well."""
    address = array.__array_interface__["data"][0]
    for line in Path("/proc/self/maps").read_text().splitlines():
        start, end = (int(bound, 16) for bound in line.split(maxsplit=1)[0].split("-"))
        if start <= address < end:
            return "/memfd:headrace" in line
    return False


@pytest.mark.thorough
@METHODS
def test_processes_of_their_own_map_the_bytes_of_arrays_and_share_what_is_shared(method: str) -> None:
    dataset = Holding(torch.multiprocessing.get_context(method))
    loader = DataLoader(dataset, batch_size=None, num_workers=2, multiprocessing_context=method)
    for epoch in (1, 2):
        dataset.array[3] = 10 * epoch
        for number in range(4):
            dataset.questions.put(number)
        samples = list(loader)
        assert [sample[0] for sample in samples] == [1, 1, 1, 10 * epoch + 1]
        assert sorted(sample[1] for sample in samples) == [0, 1, 2, 3]
        assert all(sample[2] for sample in samples)
        assert dataset.seen.tolist() == [epoch] * 4
    assert not loader.setting.fork_server


class Listening(Dataset[Any]):
    """Sample i is what comes over a connection; makes a thread when it is unpickled."""

    def __init__(self, connection: Connection) -> None:
        self.connection = connection

    __setstate__ = Holding.__setstate__

    def __len__(self) -> int:
        return 4

    def __getitem__(self, index: int) -> Any:
        return self.connection.recv()


@pytest.mark.thorough
def test_a_worker_is_replaced_also_after_the_program_has_closed_what_it_shared() -> None:
    theirs, ours = torch.multiprocessing.get_context("spawn").Pipe(duplex=False)
    dataset = Listening(theirs)
    loader = DataLoader(dataset, batch_size=None, num_workers=1, multiprocessing_context="spawn", prefetch_factor=1)
    iterator = iter(loader)
    ours.send("before")
    assert next(iterator) == "before"
    theirs.close()
    (worker,) = iterator._workers
    os.kill(worker.pid, signal.SIGKILL)
    for word in ("a", "b", "c"):
        ours.send(word)
    assert list(iterator) == ["a", "b", "c"]
    ours.close()


# -- forks that fail later -------------------------------------------------------------------------------------------


@pytest.fixture
def server() -> Iterator[ForkServer]:
    server = ForkServer(torch.multiprocessing.get_context("spawn"))
    yield server
    server.close()


class Threaded:
    """An order that starts a thread where it arrives."""

    def __reduce__(self) -> Any:
        return _start_thread, ()


def _start_thread() -> None:
    import threading

    threading.Thread(target=threading.Event().wait, name="late", daemon=True).start()


def nothing(worker_spec: object, order: object) -> None:
    """The target of a worker."""


@pytest.mark.thorough
def test_a_fork_is_refused_once_an_order_has_started_a_thread(server: ForkServer) -> None:
    server.load([])
    with pytest.raises(ForkRefused, match="late"):
        server.fork(nothing, Threaded())


class Picky(Dataset[int]):
    """The fork server's second fork after unpickling it fails."""

    def __init__(self) -> None:
        self.forks = 0

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        sys.addaudithook(self.audit)

    def audit(self, event: str, arguments: Any) -> None:
        if event == "os.fork":
            self.forks += 1
            if self.forks == 3:  # the first one is on trial
                raise BlockingIOError("no more processes")

    def __len__(self) -> int:
        return 8

    def __getitem__(self, index: int) -> int:
        return index


@pytest.mark.thorough
@METHODS
def test_a_worker_whose_fork_fails_starts_by_itself(method: str, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO", "headrace")
    loader = DataLoader(Picky(), batch_size=None, num_workers=2, multiprocessing_context=method)
    for _ in range(2):
        assert list(loader) == list(range(8))
        assert not loader.setting.fork_server
    assert caplog.messages == [
        f"headrace: each worker starts by {method}, as with torch: a fork failed: no more processes"
    ]


# -- nothing outlives a program that was killed ----------------------------------------------------------------------

HANGING = """
import ctypes, os, sys
import threading
from torch.utils.data import Dataset
from headrace import DataLoader

def hang():
    with open(sys.argv[3], "w") as told:
        told.write(str(os.getpid()))
    ctypes.PyDLL(None).pause()  # and no other thread runs any more

class Data(Dataset):
    def __setstate__(self, state):
        if sys.argv[2] == "thread and sample":
            threading.Thread(target=threading.Event().wait, daemon=True).start()
        if sys.argv[2] == "unpickling":
            hang()
    def __getstate__(self):
        return {"a": 1}
    def __len__(self):
        return 8
    def __getitem__(self, index):
        if index == 4:
            hang()
        return index

if __name__ == "__main__":
    def train():
        list(DataLoader(Data(), num_workers=2, multiprocessing_context=sys.argv[1]))
    thread = threading.Thread(target=train)
    thread.start()
    thread.join()
elif sys.argv[2] == "import":
    hang()
"""


def told_by(program: programs.Program, fifo: Path) -> int:
    """Returns the number of the process that says in a named pipe that it hangs; fails with a program that has ended.

    A pipe that is open for both is open at once, also if nobody ever writes.
    """
    told = os.open(fifo, os.O_RDWR)
    try:
        ready, _, _ = select.select([told, program._status], [], [], 100)
        assert told in ready, f"nobody hangs; the program has ended: {program._stderr.read() if ready else 'no'}"
        return int(os.read(told, 100))
    finally:
        os.close(told)


@pytest.mark.thorough
@METHODS
@pytest.mark.parametrize("place", ["import", "unpickling", "thread and sample", "sample"])
def test_whatever_hangs_ends_with_a_program_that_is_killed(method: str, place: str, tmp_path: Path) -> None:
    script = tmp_path / "hanging.py"
    script.write_text(HANGING)
    fifo = tmp_path / "told"
    os.mkfifo(fifo)
    # multiprocessing puts a socket there, whose path may have 107 bytes: `tmp_path` may be longer.
    short = tempfile.TemporaryDirectory()
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "TMPDIR": short.name}
    with short, programs.Program([script, method, place, fifo], env=environment) as parent:
        hanging = told_by(parent, fifo)
        others = [pid for pid in process_tree(parent.pid) if pid != parent.pid]
        assert hanging in others
        parent.kill()
        left = [pid for pid in others if not ends(pid)]
    for pid in left:
        os.kill(pid, signal.SIGKILL)
    assert left == []
