"""Workers by spawn and forkserver: forks of one helper process, which unpickles the data set once."""

from __future__ import annotations

import contextlib
import gc
import multiprocessing
import os
import select
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import Dataset, IterableDataset, default_collate, get_worker_info

from headrace import DataLoader
from headrace.engine.zygote import MAX_DESCRIPTORS, zygotes_exist
from tests.engine.datasets import Failing, Photos

pytestmark = pytest.mark.skipif(not zygotes_exist(), reason="needs pidfds and descriptors over sockets")

ROOT = Path(__file__).parents[2]
METHODS = pytest.mark.parametrize("method", ["spawn", "forkserver"])

SCRIPT = """
import sys, torch
from torch.utils.data import Dataset
from headrace import DataLoader

class Squares(Dataset):
    def __len__(self):
        return 4000
    def __getitem__(self, index):
        return torch.tensor(index * index)

def main(method, persistent, end):
    loader = DataLoader(Squares(), 4, num_workers=2, multiprocessing_context=method, persistent_workers=persistent)
    iterator = iter(loader)
    print(*next(iterator).tolist(), flush=True)
    sys.stdin.readline()
    if end == "interrupted":
        while True:
            list(loader)
    return loader, iterator

if __name__ == "__main__":
    kept = main(sys.argv[1], sys.argv[2] == "persistent", sys.argv[3])
"""


class Notebook(Dataset[Any]):
    """Holds numbers in an attribute, a tensor and an array, and notes in a file how often it was unpickled."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.offset = 0
        self.tensor = torch.arange(4000)
        self.array = np.arange(4000)
        self.calls = 0

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        with self.path.open("a") as file:
            file.write("unpickled\n")

    def __len__(self) -> int:
        return 12

    def __getitem__(self, index: int) -> list[int]:
        self.calls += 1
        self.tensor[index + 100] += 1  # in this worker's copy
        self.array[index + 100] += 1
        return [self.offset, int(self.tensor[index]), int(self.array[index]), int(self.tensor[index + 100]), self.calls]

    @property
    def times_unpickled(self) -> int:
        return len(self.path.read_text().splitlines()) if self.path.exists() else 0


class Sharing(Dataset[int]):
    """Speaks to the main process by everything that multiprocessing and torch can share."""

    def __init__(self, context: Any) -> None:
        self.seen = torch.zeros(8, dtype=torch.int64).share_memory_()
        self.lock = context.Lock()
        self.total = context.Value("q", 0, lock=False)
        self.gate = context.Event()
        self.questions = context.SimpleQueue()
        self.answers = context.Queue()

    def __len__(self) -> int:
        return 8

    def __getitem__(self, index: int) -> int:
        self.gate.wait()
        question = self.questions.get()
        self.seen[index] += 1
        with self.lock:
            self.total.value += question
        self.answers.put((index, question))
        return index


class ManyShared(Dataset[torch.Tensor]):
    """Holds more shared tensors than descriptors can be passed at once."""

    def __init__(self) -> None:
        self.tensors = [torch.full((2,), number).share_memory_() for number in range(MAX_DESCRIPTORS + 10)]

    def __len__(self) -> int:
        return len(self.tensors)

    def __getitem__(self, index: int) -> torch.Tensor:
        return self.tensors[index]


class Breaking(Photos):
    """Cannot be unpickled while `error` is set."""

    error: BaseException | None = None

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        if self.error is not None:
            raise self.error


class Identity(Dataset[Any]):
    """Each sample tells which worker made it."""

    greeting = "nobody came"

    def __len__(self) -> int:
        return 8

    def __getitem__(self, index: int) -> Any:
        info = get_worker_info()
        drawn = (torch.initial_seed(), int(torch.randint(1 << 40, ())), int(np.random.randint(1 << 30)))
        return index, info.id, info.num_workers, info.seed, info.dataset is self, self.greeting, *drawn, os.getppid()


class Shard(IterableDataset[int]):
    """Yields this worker's share of 21 numbers."""

    def __iter__(self) -> Any:
        info = get_worker_info()
        assert info is not None
        yield from range(info.id, 21, info.num_workers)


def greet(worker_id: int) -> None:
    info = get_worker_info()
    assert info is not None
    info.dataset.greeting = f"worker {worker_id} of {info.num_workers}"


def leave(worker_id: int) -> None:
    if worker_id == 1:
        sys.exit(7)


def as_lists(samples: list[Any]) -> list[Any]:
    return samples


def sums(samples: list[Any]) -> torch.Tensor:
    images, _ = default_collate(samples)
    return images.sum(dim=(1, 2, 3))


def descendants(pid: int) -> set[int]:
    """Returns the processes below one, as /proc shows them."""
    parents = {}
    for path in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):
            parents[int(path.parent.name)] = int(path.read_text().rpartition(")")[2].split()[1])
    found: set[int] = set()
    frontier = {pid}
    while frontier:
        frontier = {child for child, parent in parents.items() if parent in frontier}
        found |= frontier
    return found


def descriptors() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


def parent_of(pid: int) -> int:
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])


def ends(pid: int) -> bool:
    """Waits until a process has ended; the kernel tells through a pidfd."""
    try:
        pidfd = os.pidfd_open(pid)
    except ProcessLookupError:
        return True
    with contextlib.closing(os.fdopen(pidfd)):
        return bool(select.select([pidfd], [], [], 30)[0])


def kill_and_wait(pid: int) -> None:
    os.kill(pid, signal.SIGKILL)
    assert ends(pid)


def zygote_of(iterator: Any) -> int:
    """Returns the process that forked the workers."""
    (pid,) = {parent_of(process.pid) for process in iterator._workers}
    return pid


def flat(batches: list[Any]) -> list[int]:
    return [int(label) for _, labels in batches for label in labels]


@pytest.fixture
def surroundings(method: str) -> Callable[[], set[int]]:
    """Has multiprocessing start its own helpers; the function returns the processes that came since."""
    process = multiprocessing.get_context(method).Process(target=os.getpid)
    process.start()
    process.join()
    before = descendants(os.getpid())
    return lambda: descendants(os.getpid()) - before


# -- what an epoch delivers ------------------------------------------------------------------------------------------


@METHODS
def test_epochs_equal_those_without_workers(method: str) -> None:
    inline = DataLoader(Photos(50, side=20), batch_size=8, shuffle=True, seed=3)
    loader = DataLoader(
        Photos(50, side=20), batch_size=8, shuffle=True, seed=3, num_workers=2, multiprocessing_context=method
    )
    for _ in range(2):
        for ours, theirs in zip(loader, inline, strict=True):
            assert all(torch.equal(one, other) for one, other in zip(ours, theirs, strict=True))


@METHODS
def test_the_data_set_is_unpickled_once_for_all_workers_and_epochs(method: str, tmp_path: Path) -> None:
    dataset = Notebook(tmp_path / "notes")
    loader = DataLoader(dataset, batch_size=3, num_workers=2, multiprocessing_context=method)
    epochs = [torch.stack([torch.stack(batch) for batch in loader]) for _ in range(3)]
    assert dataset.times_unpickled == 1
    assert torch.equal(epochs[0], epochs[1])
    assert torch.equal(epochs[0], epochs[2])


@METHODS
def test_a_worker_s_changes_of_its_copy_reach_neither_the_user_nor_the_next_epoch(method: str, tmp_path: Path) -> None:
    dataset = Notebook(tmp_path / "notes")
    loader = DataLoader(dataset, batch_size=None, num_workers=2, multiprocessing_context=method)
    for _ in range(2):
        samples = list(loader)
        assert [sample[3] for sample in samples] == list(range(101, 113))
        assert [sample[4] for sample in samples] == [1, 1, 2, 2, 3, 3, 4, 4, 5, 5, 6, 6]
    assert dataset.calls == 0
    assert torch.equal(dataset.tensor, torch.arange(4000))
    assert np.array_equal(dataset.array, np.arange(4000))


@METHODS
def test_the_next_epoch_sees_what_the_user_changed_in_the_data_set(method: str, tmp_path: Path) -> None:
    dataset = Notebook(tmp_path / "notes")
    loader = DataLoader(dataset, batch_size=None, num_workers=2, multiprocessing_context=method)
    seen = [next(iter(loader))[:3]]
    dataset.offset = 5
    seen.append(next(iter(loader))[:3])
    dataset.tensor[0] = 6
    seen.append(next(iter(loader))[:3])
    dataset.array[0] = 7
    seen.append(next(iter(loader))[:3])
    assert seen == [[0, 0, 0], [5, 0, 0], [5, 6, 0], [5, 6, 7]]
    assert dataset.times_unpickled == 4


@METHODS
def test_shared_tensors_locks_values_events_and_queues_work(method: str) -> None:
    dataset = Sharing(multiprocessing.get_context(method))
    loader = DataLoader(dataset, batch_size=None, num_workers=2, multiprocessing_context=method)
    for epoch in (1, 2):
        dataset.gate.clear()
        iterator = iter(loader)
        for number in range(8):
            dataset.questions.put(10 * epoch + number)
        dataset.gate.set()
        assert list(iterator) == list(range(8))
        answers = [dataset.answers.get() for _ in range(8)]
        assert sorted(index for index, _ in answers) == list(range(8))
        assert sorted(question for _, question in answers) == list(range(10 * epoch, 10 * epoch + 8))
        assert dataset.seen.tolist() == [epoch] * 8
    assert dataset.total.value == sum(range(10, 18)) + sum(range(20, 28))
    dataset.answers.close()
    dataset.answers.join_thread()


def test_more_shared_tensors_than_descriptors_can_be_passed_work_too() -> None:
    dataset = ManyShared()
    loader = DataLoader(dataset, batch_size=20, num_workers=1, multiprocessing_context="spawn")
    counts = []
    for _ in range(3):
        assert torch.cat(list(loader))[:, 1].tolist() == list(range(len(dataset)))
        gc.collect()
        counts.append(descriptors())
    assert counts[1:] == [counts[1]] * 2


@METHODS
def test_workers_know_themselves_and_draw_the_numbers_of_forked_ones(method: str) -> None:
    def epoch(context: str) -> list[Any]:
        generator = torch.Generator().manual_seed(11)
        loader = DataLoader(
            Identity(), batch_size=None, num_workers=2, worker_init_fn=greet, generator=generator,
            multiprocessing_context=context,
        )  # fmt: skip
        return list(loader)

    ours = epoch(method)
    assert [sample[:-1] for sample in ours] == [sample[:-1] for sample in epoch("fork")]
    assert [sample[1] for sample in ours] == [0, 1] * 4
    assert all(sample[4] and sample[6] == sample[3] for sample in ours)
    assert [sample[5] for sample in ours] == ["worker 0 of 2", "worker 1 of 2"] * 4
    (zygote,) = {sample[-1] for sample in ours}
    assert zygote != os.getpid()
    assert get_worker_info() is None


@METHODS
def test_an_iterable_data_set_may_be_split_among_the_workers(method: str) -> None:
    loader = DataLoader(Shard(), batch_size=4, num_workers=2, drop_last=True, multiprocessing_context=method)
    for _ in range(2):
        batches = [batch.tolist() for batch in loader]
        assert batches == [[0, 2, 4, 6], [1, 3, 5, 7], [8, 10, 12, 14], [9, 11, 13, 15]]


@METHODS
def test_a_collate_function_runs_in_the_workers(method: str) -> None:
    loader = DataLoader(
        Photos(16, side=30), batch_size=4, num_workers=2, collate_fn=sums, multiprocessing_context=method
    )
    assert torch.cat(list(loader)).tolist() == [2700.0 * number for number in range(16)]


@METHODS
def test_persistent_workers_stay_from_one_epoch_to_the_next(method: str, tmp_path: Path) -> None:
    dataset = Notebook(tmp_path / "notes")
    loader = DataLoader(
        dataset, batch_size=None, num_workers=2, persistent_workers=True, multiprocessing_context=method
    )
    pids, calls = [], []
    for _ in range(3):
        iterator = iter(loader)
        pids.append([process.pid for process in iterator._workers])
        calls.append([sample[4] for sample in iterator][-1])
    assert pids == [pids[0]] * 3
    assert calls == [6, 12, 18]
    assert dataset.times_unpickled == 1


@METHODS
def test_two_loaders_work_at_once_and_have_a_zygote_each(method: str) -> None:
    loaders = [
        DataLoader(Photos(24, side=9 * scale), batch_size=4, num_workers=1, multiprocessing_context=method)
        for scale in (1, 2)
    ]
    for _ in range(2):
        iterators = [iter(loader) for loader in loaders]
        assert len({zygote_of(iterator) for iterator in iterators}) == 2
        for number, (small, large) in enumerate(zip(*iterators, strict=True)):
            assert [small[0].shape[2], large[0].shape[2]] == [9, 18]
            assert small[1].tolist() == large[1].tolist() == list(range(4 * number, 4 * number + 4))


@METHODS
def test_a_loader_works_in_threads_that_end(method: str) -> None:
    loader = DataLoader(Photos(16, side=9), batch_size=4, num_workers=2, multiprocessing_context=method)
    found: list[list[int]] = []
    for _ in range(2):
        thread = threading.Thread(target=lambda: found.append(flat(list(loader))))
        thread.start()
        thread.join()
    found.append(flat(list(loader)))
    assert found == [list(range(16))] * 3


@pytest.mark.timeout(40)
def test_a_loader_that_was_used_works_in_a_forked_child_and_its_parent_at_once() -> None:
    loader = DataLoader(Photos(32, side=9), batch_size=4, num_workers=2, multiprocessing_context="spawn")
    assert flat(list(loader)) == list(range(32))
    pid = os.fork()
    if pid == 0:
        torch.set_num_threads(1)  # OpenMP's threads did not come along
        status = 1
        try:
            status = 0 if all(flat(list(loader)) == list(range(32)) for _ in range(8)) else 2
        finally:
            os._exit(status)
    try:
        assert all(flat(list(loader)) == list(range(32)) for _ in range(8))
        assert ends(pid)
    finally:
        os.kill(pid, signal.SIGKILL)
        _, status = os.waitpid(pid, 0)
    assert os.waitstatus_to_exitcode(status) == 0


# -- what fails ------------------------------------------------------------------------------------------------------


@METHODS
@pytest.mark.parametrize("culprit", ["data set", "collate_fn"])
def test_what_cannot_be_pickled_is_named_and_leaves_no_process(
    method: str, culprit: str, surroundings: Callable[[], set[int]]
) -> None:
    dataset = Photos(8, side=9)
    collate = as_lists
    if culprit == "data set":
        dataset.transform = lambda image: image  # type: ignore[attr-defined]
    else:
        collate = lambda samples: samples  # noqa: E731 - it is to be one
    loader = DataLoader(dataset, batch_size=4, num_workers=2, collate_fn=collate, multiprocessing_context=method)
    for _ in range(2):
        with pytest.warns(UserWarning, match="Got pickle error"), pytest.raises(AttributeError, match="<lambda>"):
            iter(loader)
    came = surroundings()
    del loader
    gc.collect()
    assert all(ends(pid) for pid in came)


@METHODS
def test_after_an_object_that_could_not_be_pickled_the_loader_works_without_it(method: str) -> None:
    dataset = Photos(8, side=9)
    dataset.transform = lambda image: image  # type: ignore[attr-defined]
    loader = DataLoader(dataset, batch_size=4, num_workers=2, multiprocessing_context=method)
    with pytest.warns(UserWarning, match="Got pickle error"), pytest.raises(AttributeError, match="<lambda>"):
        iter(loader)
    del dataset.transform  # type: ignore[attr-defined]
    assert flat(list(loader)) == list(range(8))


@METHODS
def test_an_exception_while_unpickling_arrives_with_its_traceback_and_leaves_no_descriptor(method: str) -> None:
    dataset = Breaking(8, side=9)
    loader = DataLoader(dataset, batch_size=4, num_workers=2, multiprocessing_context=method)
    assert flat(list(loader)) == list(range(8))
    dataset.error = ValueError("a torn page")
    counts = []
    for _ in range(4):
        with pytest.raises(
            RuntimeError, match=r"cannot be started(.|\n)*in __setstate__(.|\n)*ValueError: a torn page"
        ):
            iter(loader)
        gc.collect()
        counts.append(descriptors())
    assert counts[1:] == [counts[1]] * 3
    dataset.error = None
    assert flat(list(loader)) == list(range(8))


def test_the_text_of_an_exception_while_unpickling_may_be_long_and_in_any_script() -> None:
    dataset = Breaking(8, side=9)
    dataset.error = ValueError("頁" * 40_000 + " is torn")
    loader = DataLoader(dataset, batch_size=4, num_workers=1, multiprocessing_context="spawn")
    with pytest.raises(RuntimeError, match="頁 is torn"):
        iter(loader)
    dataset.error = None
    assert flat(list(loader)) == list(range(8))


@METHODS
def test_an_exit_while_unpickling_is_an_error_and_the_loader_works_afterwards(method: str) -> None:
    dataset = Breaking(8, side=9)
    dataset.error = SystemExit(0)
    loader = DataLoader(dataset, batch_size=4, num_workers=2, multiprocessing_context=method)
    with pytest.raises(RuntimeError, match="the process that starts DataLoader workers ended"):
        iter(loader)
    dataset.error = None
    assert flat(list(loader)) == list(range(8))


@METHODS
def test_an_exit_in_worker_init_fn_is_an_error_that_names_the_worker_and_the_code(method: str) -> None:
    loader = DataLoader(
        Photos(8, side=9), batch_size=4, num_workers=2, worker_init_fn=leave, multiprocessing_context=method
    )
    iterator = iter(loader)
    pid = iterator._workers[1].pid
    with pytest.raises(RuntimeError, match=rf"\(pid\(s\) {pid}\) exited unexpectedly") as caught:
        list(iterator)
    assert f"(pid {pid}) exited unexpectedly with exit code 7" in str(caught.value.__cause__)


@METHODS
def test_an_error_names_type_worker_key_and_traceback(method: str) -> None:
    loader = DataLoader(
        Failing(13, ValueError("bad pixel")), batch_size=4, num_workers=2, multiprocessing_context=method
    )
    with pytest.raises(ValueError, match="bad pixel") as caught:
        list(loader)
    text = str(caught.value)
    assert text.startswith("Caught ValueError in DataLoader worker process 1.\nOriginal Traceback")
    assert "headrace: raised while loading the sample with key 13" in text


@METHODS
@pytest.mark.timeout(40)
def test_a_killed_worker_is_named_and_the_next_epoch_comes(method: str) -> None:
    loader = DataLoader(Photos(400, side=9), batch_size=4, num_workers=2, multiprocessing_context=method)
    iterator = iter(loader)
    next(iterator)
    process = iterator._workers[1]
    kill_and_wait(process.pid)
    with pytest.raises(RuntimeError, match=rf"\(pid\(s\) {process.pid}\) exited unexpectedly") as caught:
        list(iterator)
    assert f"(pid {process.pid}) is killed by signal: Killed" in str(caught.value.__cause__)
    assert process.exitcode == -signal.SIGKILL
    assert flat(list(loader)) == list(range(400))


@METHODS
@pytest.mark.parametrize("change", [False, True])
def test_the_loader_works_after_its_zygote_was_killed_between_epochs(method: str, change: bool) -> None:
    dataset = Photos(16, side=9)
    loader = DataLoader(dataset, batch_size=4, num_workers=2, multiprocessing_context=method)
    iterator = iter(loader)
    zygote = zygote_of(iterator)
    assert flat(list(iterator)) == list(range(16))
    kill_and_wait(zygote)
    if change:
        dataset.length = 12
    for _ in range(2):
        assert flat(list(loader)) == list(range(dataset.length))


@METHODS
def test_workers_outlive_their_zygote(method: str) -> None:
    loader = DataLoader(
        Photos(40, side=9), batch_size=2, num_workers=2, persistent_workers=True, multiprocessing_context=method
    )
    iterator = iter(loader)
    batches = [next(iterator)]
    kill_and_wait(zygote_of(iterator))
    batches += list(iterator)
    assert flat(batches) == list(range(40))
    assert flat(list(loader)) == list(range(40))


# -- what is left ----------------------------------------------------------------------------------------------------


@METHODS
@pytest.mark.parametrize("broken_off", [False, True])
def test_a_deleted_loader_leaves_no_process_and_no_descriptor(
    method: str, broken_off: bool, surroundings: Callable[[], set[int]]
) -> None:
    counts = []
    for _ in range(3):
        loader = DataLoader(
            Photos(64, side=9), batch_size=4, num_workers=2, persistent_workers=broken_off,
            multiprocessing_context=method,
        )  # fmt: skip
        iterator = iter(loader)
        next(iterator)
        came = surroundings()
        assert len(came) == 3
        if not broken_off:
            list(iterator)
        del iterator, loader
        gc.collect()
        assert all(ends(pid) for pid in came)
        assert not any(Path(f"/proc/{pid}").exists() for pid in came if method == "spawn")  # nor as a zombie
        counts.append(descriptors())
    assert counts[1:] == [counts[1]] * 2
    assert multiprocessing.active_children() == []


@METHODS
@pytest.mark.parametrize("end", ["killed", "interrupted", "finished"])
def test_whatever_ends_the_main_process_ends_the_others(method: str, end: str, tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(SCRIPT)
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "TMPDIR": str(tmp_path)}
    kind = "persistent" if end == "killed" else "fresh"
    with subprocess.Popen(
        [sys.executable, str(script), method, kind, end], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
        stderr=subprocess.PIPE, text=True, env=environment, start_new_session=True,
    ) as parent:  # fmt: skip
        assert parent.stdin is not None
        assert parent.stdout is not None
        assert parent.stderr is not None
        assert parent.stdout.readline() == "0 1 4 9\n"
        below = descendants(parent.pid)
        assert len(below) >= 4  # zygote, workers, and what multiprocessing starts
        if end == "killed":
            parent.kill()
        elif end == "interrupted":
            os.killpg(parent.pid, signal.SIGINT)  # as Ctrl-C in a terminal
        parent.stdin.close()
        errors = parent.stderr.read()  # ends when the last process has closed it
        code = parent.wait()
        assert all(ends(pid) for pid in below)
    assert code == {"killed": -signal.SIGKILL, "interrupted": -signal.SIGINT, "finished": 0}[end]
    assert errors.count("Traceback") == (1 if end == "interrupted" else 0), errors


def test_a_zygote_whose_last_words_nobody_read_ends_in_silence(capfd: pytest.CaptureFixture[str]) -> None:
    loader = DataLoader(Photos(64, side=9), batch_size=4, num_workers=1, multiprocessing_context="spawn")
    iterator = iter(loader)
    next(iterator)
    zygote = zygote_of(iterator)
    kill_and_wait(iterator._workers[0].pid)
    keeper = loader._own.zygotes._zygote
    assert keeper is not None
    assert select.select([keeper._socket], [], [], 30)[0]  # it says how the worker ended
    keeper.close()
    assert ends(zygote)
    del iterator
    assert capfd.readouterr().err == ""
