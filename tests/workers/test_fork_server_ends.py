"""Workers by spawn and forkserver: errors, deaths and what is left behind."""

from __future__ import annotations

import gc
import multiprocessing
import os
import select
import signal
from collections.abc import Callable
from pathlib import Path

import pytest

from headrace import DataLoader
from headrace.workers.processes.fork_server import fork_servers_exist
from tests import programs
from tests.belongings import Children
from tests.workers.datasets import Failing, Photos
from tests.workers.fork_server_data import (
    Breaking,
    as_lists,
    descendants,
    descriptors,
    ends,
    flat,
    fork_server_of,
    kill_and_wait,
    leave,
)

pytestmark = [
    pytest.mark.skipif(not fork_servers_exist(), reason="needs pidfds and descriptors over sockets"),
]

METHODS = pytest.mark.parametrize("method", ["spawn", pytest.param("forkserver", marks=pytest.mark.stress)])

ROOT = Path(__file__).parents[2]

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


@pytest.fixture
def surroundings(method: str) -> Callable[[], set[int]]:
    """Has multiprocessing start its own helpers; the function returns the processes that came since."""
    process = multiprocessing.get_context(method).Process(target=os.getpid)
    process.start()
    process.join()
    before = descendants(os.getpid())
    return lambda: descendants(os.getpid()) - before


# -- what fails ------------------------------------------------------------------------------------------------------


@METHODS
@pytest.mark.parametrize("culprit", ["dataset", "collate_fn"])
def test_what_cannot_be_pickled_is_named_and_leaves_no_process(
    method: str, culprit: str, surroundings: Callable[[], set[int]]
) -> None:
    dataset = Photos(8, side=9)
    collate = as_lists
    if culprit == "dataset":
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


@pytest.mark.thorough
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
    with pytest.raises(RuntimeError, match=r"\(pid\(s\) \d+\) exited unexpectedly") as caught:
        list(iterator)
    pid = iterator._workers[1].pid  # of the last one that was tried
    assert f"(pid(s) {pid}) exited" in str(caught.value)
    assert f"(pid {pid}) exited unexpectedly with exit code 7" in str(caught.value.__cause__)
    assert loader.faults.restarts == 2


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


@pytest.mark.thorough
@METHODS
@pytest.mark.timeout(40)
def test_a_killed_worker_is_named_and_replaced(method: str, caplog: pytest.LogCaptureFixture) -> None:
    loader = DataLoader(Photos(400, side=9), batch_size=4, num_workers=2, multiprocessing_context=method)
    iterator = iter(loader)
    batches = [next(iterator)]
    process = iterator._workers[1]
    kill_and_wait(process.pid)
    batches += list(iterator)
    assert flat(batches) == list(range(400))
    assert f"worker 1 (pid {process.pid}) was killed by signal 9 (SIGKILL, Killed)" in caplog.text
    assert process.exitcode == -signal.SIGKILL
    assert loader.faults.restarts == 1
    assert flat(list(loader)) == list(range(400))


@METHODS
@pytest.mark.parametrize("change", [False, True])
def test_the_loader_works_after_its_fork_server_was_killed_between_epochs(method: str, change: bool) -> None:
    dataset = Photos(16, side=9)
    loader = DataLoader(dataset, batch_size=4, num_workers=2, multiprocessing_context=method)
    iterator = iter(loader)
    fork_server = fork_server_of(iterator)
    assert flat(list(iterator)) == list(range(16))
    kill_and_wait(fork_server)
    if change:
        dataset.length = 12
    for _ in range(2):
        assert flat(list(loader)) == list(range(dataset.length))


@METHODS
def test_workers_outlive_their_fork_server(method: str) -> None:
    loader = DataLoader(
        Photos(40, side=9), batch_size=2, num_workers=2, persistent_workers=True, multiprocessing_context=method
    )
    iterator = iter(loader)
    batches = [next(iterator)]
    kill_and_wait(fork_server_of(iterator))
    batches += list(iterator)
    assert flat(batches) == list(range(40))
    assert flat(list(loader)) == list(range(40))


# -- what is left ----------------------------------------------------------------------------------------------------


@METHODS
@pytest.mark.parametrize("broken_off", [False, True])
def test_a_deleted_loader_leaves_no_process_and_no_descriptor(
    children: Children, method: str, broken_off: bool, surroundings: Callable[[], set[int]]
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
    assert children() == []


@pytest.mark.thorough
@METHODS
@pytest.mark.parametrize("end", ["killed", "interrupted", "finished"])
def test_whatever_ends_the_main_process_ends_the_others(method: str, end: str, tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(SCRIPT)
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "TMPDIR": str(tmp_path)}
    kind = "persistent" if end == "killed" else "fresh"
    with programs.Program([script, method, kind, end], env=environment, new_session=True) as parent:
        assert parent.read_line() == "0 1 4 9\n"
        below = descendants(parent.pid)
        assert len(below) >= 4  # fork_server, workers, and what multiprocessing starts
        if end == "killed":
            parent.kill()
        elif end == "interrupted":
            parent.send_signal(signal.SIGINT, to_group=True)  # as Ctrl-C in a terminal
        _, errors = parent.communicate()  # the stream of errors ends when the last process has closed it
        code = parent.wait()
        assert all(ends(pid) for pid in below)
    assert code == {"killed": -signal.SIGKILL, "interrupted": -signal.SIGINT, "finished": 0}[end]
    assert errors.count("Traceback") == (1 if end == "interrupted" else 0), errors


@pytest.mark.thorough
def test_a_fork_server_whose_last_words_nobody_read_ends_in_silence(capfd: pytest.CaptureFixture[str]) -> None:
    loader = DataLoader(Photos(64, side=9), batch_size=4, num_workers=1, multiprocessing_context="spawn")
    iterator = iter(loader)
    next(iterator)
    fork_server = fork_server_of(iterator)
    kill_and_wait(iterator._workers[0].pid)
    keeper = loader._session.resources.fork_servers._fork_server
    assert keeper is not None
    assert select.select([keeper._socket], [], [], 30)[0]  # it says how the worker ended
    keeper.close()
    assert ends(fork_server)
    del iterator
    assert capfd.readouterr().err == ""
