"""Some processes that make pieces, until none is missing or one fails."""

from __future__ import annotations

import contextlib
import multiprocessing
import multiprocessing.connection
import os
import pickle
import signal
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from pathlib import Path
from typing import Any, Literal, Protocol, get_args

from headrace.core.errors import DatasetError, HeadraceError, wrong_argument
from headrace.core.torch_internals import compute_with_one_thread, reraise, wrap_exception

Report = Callable[[int, int], None]
"""Called with (samples done, samples in all)."""


On = Literal["local", "ray"]
"""Where pieces are made: on this machine, or on a Ray cluster."""


class Job(Protocol):
    """What is to be made. Sent to each process once: pickled, or inherited where processes are forked."""

    @property
    def shared_folder(self) -> Path | None:
        """The folder in which pieces are put, and which all who make them must see; None: no such folder."""

    def begin(self) -> None:
        """Opens what it needs, in the process that makes pieces."""

    def make(self, piece: int) -> Any:
        """Makes one piece. What it returns is pickled on its way back."""


def check_on(on: object, place: str) -> None:
    """Raises `UsageError` for anything but `On`. place: the function that was called."""
    if on not in get_args(On):
        raise wrong_argument("on", on, " or ".join(map(repr, get_args(On))), place=place)


def make_pieces(
    job: Job, pieces: Sequence[int], workers: int, *, method: str, place: object, made: Callable[[int, Any], None]
) -> None:
    """Makes pieces in `workers` processes beside this one; in this one, if that is one or there is only one piece.

    method: how processes are started, as in `multiprocessing`. place: what is built, for messages. made: called here
    with each piece and what `make` returned, in the order in which they are ready.

    Raises what `make` raises (a copy with a text, as torch's loader does), and `DatasetError` if a process dies.
    """
    if workers <= 1 or len(pieces) <= 1:
        job.begin()
        for piece in pieces:
            made(piece, job.make(piece))
        return

    with ProcessPoolExecutor(
        min(workers, len(pieces)), multiprocessing.get_context(method), _begin, (job,)
    ) as pool, _ended_at_once(pool):  # fmt: skip
        waiting: dict[Future[Any], int] = {}
        # `submit` starts the workers, which inherit that: Ctrl-C reaches this process too, and it decides.
        with _interrupts_ignored():
            for piece in pieces:
                waiting[pool.submit(_make, piece)] = piece

        try:
            for future in as_completed(waiting):
                failure, result = future.result()
                if failure is not None:
                    reraise(failure)
                made(waiting[future], result)
        except BrokenProcessPool as error:
            fix = (
                "run the same again, it resumes where it stopped; with one worker if memory is short; your script "
                'needs `if __name__ == "__main__":` around what it does, since workers import it'
            )
            found = "a worker process ended unexpectedly (killed, out of memory, or it could not begin)"
            raise DatasetError.about("the work was interrupted", place=place, found=found, fix=fix) from error


@contextlib.contextmanager
def _ended_at_once(pool: ProcessPoolExecutor) -> Iterator[None]:
    """Ends the workers at once if anything is raised: what they are at is not in place before it is complete."""
    try:
        yield
    except BaseException:
        # `shutdown` alone would wait for the pieces that are under way. A piece of a terminated worker is a hidden file
        # under another name, which the next run writes anew.
        processes = list((pool._processes or {}).values())
        for process in processes:
            process.terminate()
        pool.shutdown(wait=True, cancel_futures=True)
        for process in processes:
            process.join()
        raise


@contextlib.contextmanager
def _interrupts_ignored() -> Iterator[None]:
    """Ignores Ctrl-C for a moment, in the main thread; elsewhere Python does not allow it."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


_jobs: list[Job] = []
"""What this process, a worker, makes pieces of."""


def _begin(job: Job) -> None:
    # Ctrl-C reaches the whole process group. The main process decides what it means, and ends this worker if need be.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    threading.Thread(target=_end_with_parent, daemon=True).start()
    compute_with_one_thread()
    _jobs[:] = [job]
    job.begin()


def _end_with_parent() -> None:
    """Ends this process when the one that started it has ended, however: nobody else would tell it."""
    parent = multiprocessing.parent_process()
    if parent is not None:
        multiprocessing.connection.wait([parent.sentinel])
        os._exit(1)


def _make(piece: int) -> tuple[Any, Any]:
    try:
        return None, _jobs[0].make(piece)
    except HeadraceError as error:
        raise plain_copy(error) from None
    except OSError as error:
        # With its number and file, by which the caller knows a full disk.
        if _is_portable(error):
            raise
        failure = wrap_exception(error, "while building")
        failure.exc_type = RuntimeError
        return failure, None
    except Exception as error:  # noqa: BLE001 - raised again in the main process
        return wrap_exception(error, "while building"), None


def plain_copy(error: HeadraceError) -> HeadraceError:
    """Returns an error of headrace's with its text and notes alone, which can be pickled."""
    plain = type(error)(str(error))
    for note in getattr(error, "__notes__", ()):
        plain.add_note(note)
    return plain


def _is_portable(error: Exception) -> bool:
    """Tells whether an exception can be made again in another process."""
    try:
        return type(pickle.loads(pickle.dumps(error))) is type(error)
    except Exception:  # noqa: BLE001 - pickling may raise anything
        return False
