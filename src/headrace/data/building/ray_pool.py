"""Pieces made by tasks of a Ray cluster, until none is missing or one fails.

The caller keeps a bounded number of tasks under way. A piece whose process or machine is lost is made again; whatever
else fails ends the work, as with local processes. Pieces go to a folder that all machines share, or to a store.
"""

from __future__ import annotations

import contextlib
import pickle
import platform
import secrets
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from headrace.cluster.code import check_versions, user_code_by_value, versions
from headrace.cluster.connection import connect, ray_library
from headrace.core.errors import ClusterError, DatasetError
from headrace.core.torch_internals import reraise
from headrace.data.building.pool import Job
from headrace.data.building.ray_task import Failed, TaskTerms, make_piece
from headrace.data.building.staging_area import SEEN

TRIES = 3
"""How often a piece is begun whose process or machine is lost."""

PATIENCE = 10.0
"""Seconds within which tasks end that are cancelled."""


def make_pieces_on_ray(
    job: Job, pieces: Sequence[int], at_once: int, *, place: object, made: Callable[[int, Any], None]
) -> None:
    """Makes pieces in tasks of a Ray cluster, each with one CPU.

    at_once: tasks under way at a time; 0: as many as the cluster has CPUs. place: what is built, for messages. made:
    called here with each piece and what `make` returned, in the order in which they are ready.

    Raises what `make` raises, as `make_pieces` does; `DatasetError` if a piece cannot be made because its process is
    lost again and again, or if a machine does not see the shared folder; and `ClusterError`.
    """
    if not pieces:
        return

    connect()
    with _shown(job.shared_folder) as seen:
        pool = RayPool(job, seen, place)
        try:
            pool.run(pieces, at_once, made)
        except BaseException:
            pool.cancel()
            raise


@contextlib.contextmanager
def _shown(folder: Path | None) -> Iterator[str]:
    """Puts a file into the shared folder, which tasks look for; yields its path, or "" without a folder."""
    if folder is None:
        yield ""
        return

    seen = folder / f"{SEEN}{secrets.token_hex(8)}"
    seen.touch()
    try:
        yield str(seen)
    finally:
        seen.unlink(missing_ok=True)


class RayPool:
    """The tasks of one job."""

    def __init__(self, job: Job, seen: str, place: object) -> None:
        """seen: a file that tasks must see; see `_shown`."""
        self._ray = ray_library()
        from ray import cloudpickle, exceptions

        self._exceptions = exceptions
        self._place = place
        with user_code_by_value():
            pickled: bytes = cloudpickle.dumps(job)  # type: ignore[no-untyped-call]

        # A list: Ray passes on what it refers to without fetching it for each task.
        self._job = [self._ray.put(pickled)]
        self._asked = TaskTerms(secrets.token_hex(8), platform.node(), seen, str(Path.cwd()), versions())
        # Pieces are begun again here, where a limit can be put into words.
        self._task = self._ray.remote(num_cpus=1, max_retries=0)(make_piece)
        self._waiting: dict[Any, int] = {}
        self._tries: dict[int, int] = {}

    def run(self, pieces: Sequence[int], at_once: int, made: Callable[[int, Any], None]) -> None:
        """Makes the pieces. See `make_pieces_on_ray`."""
        left = list(reversed(pieces))
        while left or self._waiting:
            room = at_once or self._cpus()
            while left and len(self._waiting) < room:
                self._submit(left.pop())

            ready, _ = self._ray.wait(list(self._waiting))
            for reference in ready:
                piece = self._waiting.pop(reference)
                try:
                    answer = self._ray.get(reference)
                except self._exceptions.RayError as error:
                    self._refuse(error, piece)
                    left.append(piece)
                    continue

                made(piece, self._result(answer))

    def cancel(self) -> None:
        """Ends the tasks that are under way: what they are at is not in place before it is complete."""
        waiting = list(self._waiting)
        with contextlib.suppress(Exception):
            for reference in waiting:
                self._ray.cancel(reference, force=True)
            if waiting:
                self._ray.wait(waiting, num_returns=len(waiting), timeout=PATIENCE)

    def _cpus(self) -> int:
        """Returns how many CPUs the cluster has now: machines come and go."""
        return max(int(self._ray.cluster_resources().get("CPU", 0)), 1)

    def _submit(self, piece: int) -> None:
        self._tries[piece] = self._tries.get(piece, 0) + 1
        reference = self._task.options(name=f"headrace piece {piece}").remote(self._job, self._asked, piece)
        self._waiting[reference] = piece

    def _refuse(self, error: Exception, piece: int) -> None:
        """Raises the error for a task without an answer, unless its process was lost and the piece can be begun again.

        A task answers also where `make` fails: an exception of Ray's says that its process is gone, or never began.
        """
        message = (str(error).splitlines() or [""])[0]
        found = f"{type(error).__name__}: {message}"
        lost = (
            self._exceptions.WorkerCrashedError,
            self._exceptions.NodeDiedError,
            self._exceptions.OutOfMemoryError,
            self._exceptions.ObjectLostError,
        )
        if not isinstance(error, lost) or isinstance(error, self._exceptions.RayTaskError):
            fix = "install the same versions of headrace and torch on all machines, and read Ray's log there"
            raise ClusterError.about("a task of Ray could not run", place=self._place, found=found, fix=fix) from error

        if self._tries[piece] >= TRIES:
            fix = "run the same again, it resumes where it stopped; with fewer tasks at a time if memory is short"
            found = f"the process that made piece {piece} was lost {TRIES} times; the last time {found}"
            raise DatasetError.about("the work was interrupted", place=self._place, found=found, fix=fix) from error

    def _result(self, answer: Any) -> Any:
        """Returns what `make` returned. Raises what it raised."""
        if not isinstance(answer, Failed):
            return pickle.loads(answer)

        if answer.versions:
            check_versions(answer.versions, answer.host)
        if answer.unseen:
            fix = "choose a target in a folder that all machines share (NFS, for example), or in a bucket"
            what = "a machine of the cluster does not see the folder of the target"
            found = f"no such folder on {answer.host}"
            expected = f"the folder of {platform.node()}, where this program runs"
            raise DatasetError.about(what, place=answer.unseen, found=found, expected=expected, fix=fix)

        error = pickle.loads(answer.error)
        if isinstance(error, BaseException):
            raise error
        return reraise(error)
