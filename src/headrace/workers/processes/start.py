"""How a worker process comes to life: by multiprocessing, or as a fork of a fork server."""

from __future__ import annotations

import contextlib
import pickle
import warnings
from collections.abc import Iterator
from typing import Any, Protocol

import torch.multiprocessing

from headrace.workers.processes import worker_main as worker
from headrace.workers.processes.fork_server import ForkServer, TooManyDescriptors, fork_servers_exist
from headrace.workers.processes.handle import ChildProcess, pidfds_exist
from headrace.workers.processes.worker_main import Assignment
from headrace.workers.worker_spec import WorkerSpec


class Start(Protocol):
    """Starts the workers of one iterator."""

    forks: bool
    """Whether a worker inherits what the parent has open."""

    @property
    def alive(self) -> bool:
        """Whether it can start workers; a fork server may have been killed."""

    def process(self, assignment: Assignment) -> Any:
        """Starts a worker and returns its process: an object like `multiprocessing.Process`."""


class ByContext:
    """Starts each worker by multiprocessing's own means."""

    alive = True

    def __init__(self, context: Any, worker_spec: WorkerSpec) -> None:
        self._context = context
        self._worker_spec = worker_spec
        self.forks = context.get_start_method() == "fork"

    def process(self, assignment: Assignment) -> Any:
        """See `Start.process`."""
        process = self._context.Process(target=worker.main, args=(self._worker_spec, assignment), daemon=True)
        with warning_of_pickle_errors():
            process.start()

        if not pidfds_exist():
            return process
        return ChildProcess(process)


class ByForkServer:
    """Has a fork server fork the workers."""

    forks = False

    def __init__(self, fork_server: ForkServer) -> None:
        self._fork_server = fork_server

    @property
    def alive(self) -> bool:
        """See `Start.alive`."""
        return self._fork_server.alive

    def process(self, assignment: Assignment) -> Any:
        """See `Start.process`."""
        return self._fork_server.fork(worker.main, assignment)


class ForkServers:
    """Keeps the fork server of a loader from one iterator to the next, so that the dataset is sent only if it
    changed."""

    def __init__(self) -> None:
        self._fork_server: ForkServer | None = None

    def start_for(self, context: Any, worker_spec: WorkerSpec, timeout: float | None = None) -> Start:
        """Returns how workers start by `context` (None: the default start method), with the `WorkerSpec` handed over.

        timeout: seconds that unpickling it may take, where there is a fork server.
        """
        context = context or torch.multiprocessing
        method = context.get_start_method()
        if method == "fork" or not fork_servers_exist():
            return ByContext(context, worker_spec)
        if self._fork_server is None or not self._fork_server.alive or self._fork_server.method != method:
            self._fork_server = ForkServer(context)

        try:
            with warning_of_pickle_errors():
                self._fork_server.load(worker_spec, timeout)
        except TooManyDescriptors:
            return ByContext(context, worker_spec)

        return ByForkServer(self._fork_server)

    def close(self) -> None:
        """Ends the fork server, if there is one."""
        if self._fork_server is not None:
            self._fork_server.close()
        self._fork_server = None


@contextlib.contextmanager
def warning_of_pickle_errors() -> Iterator[None]:
    """Adds torch's warning to an exception of pickling."""
    try:
        yield
    except (TypeError, AttributeError, pickle.PicklingError):
        warnings.warn(
            "Got pickle error when attempting to start a worker Process. "
            "This might be because the worker Process arguments are not picklable. "
            "Python 3.14+ changed the multiprocessing start method in non-Mac POSIX platforms "
            "to 'forkserver', which requires the worker Process arguments to be picklable. "
            "You can also try multiprocessing.set_start_method('fork').",
            stacklevel=2,
        )
        raise
