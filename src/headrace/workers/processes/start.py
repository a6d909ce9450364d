"""How a worker process comes to life: by multiprocessing, or as a fork of a fork server."""

from __future__ import annotations

import contextlib
import functools
import logging
import pickle
from collections.abc import Callable, Iterator
from typing import Any, Protocol

import torch.multiprocessing

from headrace.core.errors import warn
from headrace.shared_memory.by_value import TravellingObject
from headrace.shared_memory.packed_object import PackedObject
from headrace.workers.processes import worker_main as worker
from headrace.workers.processes.fork_server import ForkRefused, ForkServer, TooManyDescriptors, fork_servers_exist
from headrace.workers.processes.handle import ChildProcess, pidfds_exist
from headrace.workers.processes.inherited_state import inherited_state
from headrace.workers.processes.main_module import refuse_objects_of_notebook, refuse_program_without_file
from headrace.workers.processes.worker_main import Assignment
from headrace.workers.worker_spec import WorkerSpec

LOGGER = logging.getLogger("headrace")


class Start(Protocol):
    """Starts the workers of one iterator."""

    forks: bool
    """Whether a worker inherits what the parent has open."""

    @property
    def is_fork_server(self) -> bool:
        """Whether workers are forks of a fork server."""

    @property
    def alive(self) -> bool:
        """Whether it can start workers; a fork server may have been killed."""

    def process(self, assignment: Assignment) -> Any:
        """Starts a worker and returns its process: an object like `multiprocessing.Process`."""


class ByContext:
    """Starts each worker by multiprocessing's own means."""

    alive = True
    is_fork_server = False

    def __init__(
        self,
        context: Any,
        worker_spec: WorkerSpec | PackedObject | TravellingObject,
        target: Callable[[Any, Assignment], None] = worker.main,
    ) -> None:
        """worker_spec: where it is packed, the bytes of its arrays exist once for all workers."""
        self._context = context
        self._worker_spec = worker_spec
        self._target = target
        self.forks = context.get_start_method() == "fork"

    def process(self, assignment: Assignment) -> Any:
        process = self._context.Process(target=self._target, args=(self._worker_spec, assignment), daemon=True)
        with warning_of_pickle_errors():
            process.start()

        if not pidfds_exist():
            return process
        return ChildProcess(process)


class ByForkServer:
    """Has a fork server fork the workers."""

    forks = False

    def __init__(self, fork_server: ForkServer, instead: Callable[[ForkRefused], Start]) -> None:
        """instead: returns how workers start from then on, if the fork server cannot fork after all."""
        self._fork_server = fork_server
        self._instead = instead
        self._other: Start | None = None

    @property
    def is_fork_server(self) -> bool:
        return self._other is None

    @property
    def alive(self) -> bool:
        return self._other is not None or self._fork_server.alive

    def process(self, assignment: Assignment) -> Any:
        if self._other is None:
            try:
                return self._fork_server.fork(worker.main, assignment)
            except ForkRefused as refused:
                self._other = self._instead(refused)
        return self._other.process(assignment)


_refused: dict[str, str] = {}
"""Why the program's own modules allow no forks, by start method: found out once."""


class ForkServers:
    """Keeps the fork server of a loader from one iterator to the next, so that the dataset is sent only if it changed.

    Where workers cannot be its forks, it keeps the packed dataset, and each worker starts by itself.
    """

    def __init__(self) -> None:
        self._fork_server: ForkServer | None = None
        self._inherited: object = None
        self._packed: PackedObject | None = None
        self.refusal = ""
        """Why workers cannot be forks of a fork server; empty: nothing is known that speaks against it."""

    def start_for(self, context: Any, worker_spec: WorkerSpec, timeout: float | None = None) -> Start:
        """Returns how workers start by `context` (None: the default start method), with the `WorkerSpec` handed over.

        timeout: seconds that unpickling it may take, where there is a fork server.
        """
        context = context or torch.multiprocessing
        method = context.get_start_method()
        if method == "fork":
            return ByContext(context, worker_spec)

        refuse_program_without_file(method)
        if not fork_servers_exist():
            refuse_objects_of_notebook(worker_spec, method)
            return ByContext(context, worker_spec)

        instead = functools.partial(self._start_apart, context, worker_spec)
        if self.refusal:
            return instead()
        if method in _refused:
            return instead(ForkRefused(_refused[method], is_of_program=True))

        fork_server = self._fork_server_for(context)
        try:
            with warning_of_pickle_errors():
                fork_server.load(worker_spec, timeout)
        except TooManyDescriptors:
            refuse_objects_of_notebook(worker_spec, method)
            return ByContext(context, worker_spec)
        except ForkRefused as refused:
            return instead(refused)

        return ByForkServer(fork_server, instead)

    def _fork_server_for(self, context: Any) -> ForkServer:
        """Returns a fork server that is as one would be that started now."""
        method = context.get_start_method()
        inherited = inherited_state(method)
        known = self._fork_server
        if known is not None and known.alive and known.method == method and self._inherited == inherited:
            return known

        # The one before ends with the last worker that it has forked: until then, it knows how each ended.
        self._fork_server = ForkServer(context)
        self._inherited = inherited
        return self._fork_server

    def _start_apart(self, context: Any, worker_spec: WorkerSpec, refused: ForkRefused | None = None) -> Start:
        """Returns how workers start that are no forks; from now on, if a fork server has `refused` to fork."""
        method = context.get_start_method()
        if refused is not None:
            self._fork_server = None
            self.refusal = refused.reason
            if refused.is_of_program:
                _refused[method] = refused.reason
            LOGGER.info("headrace: each worker starts by %s, as with torch: %s", method, refused.reason)

        with warning_of_pickle_errors():
            if self._packed is None or not self._packed.holds(worker_spec):
                self._packed = None
                refuse_objects_of_notebook(worker_spec, method)
                self._packed = PackedObject(worker_spec)
                self._packed.keep_inside()
        return ByContext(context, self._packed)

    def close(self) -> None:
        """Ends the fork server, if there is one."""
        if self._fork_server is not None:
            self._fork_server.close()
        self._fork_server = None
        self._packed = None


@contextlib.contextmanager
def warning_of_pickle_errors() -> Iterator[None]:
    """Adds torch's warning to an exception of pickling."""
    try:
        yield
    except (TypeError, AttributeError, pickle.PicklingError):
        warn(
            "Got pickle error when attempting to start a worker Process. "
            "This might be because the worker Process arguments are not picklable. "
            "Python 3.14+ changed the multiprocessing start method in non-Mac POSIX platforms "
            "to 'forkserver', which requires the worker Process arguments to be picklable. "
            "You can also try multiprocessing.set_start_method('fork')."
        )
        raise
