"""The fork server: one clean helper process that holds the dataset and forks the workers.

With spawn and forkserver a worker is a new Python, which must import torch and get a dataset of its own. The fork
server is the only such process: it imports and unpickles once, and a worker is then a fork of it, made in milliseconds
and sharing its memory. Unlike the process of the user, it has no threads and no accelerator context, unless the user's
modules or dataset bring them: then it refuses to fork.

Parent and fork server speak over a socket that keeps messages apart; objects travel as `shared_memory.shipping` packs
them. The fork server ends when the parent's end of the socket closes, however that comes about. Its descriptors of
workers are `pidfd`s, so Linux is needed; elsewhere multiprocessing starts each worker.

This is the parent's side; `fork_server_main` is what the helper does.
"""

from __future__ import annotations

import pickle
import select
import socket
import time
import weakref
from collections.abc import Callable
from multiprocessing import process
from typing import Any, NoReturn

from headrace.core.process import this_process
from headrace.core.process.interruptible_wait import slices
from headrace.core.process.parent_watch import ParentWatch
from headrace.shared_memory.packed_object import PackedObject
from headrace.workers.heartbeat import START_PATIENCE
from headrace.workers.processes.fork_server_main import LARGEST_MESSAGE, MAX_DESCRIPTORS, serve
from headrace.workers.processes.handle import ChildProcess, ProcessHandle, pidfds_exist, readable
from headrace.workers.processes.main_module import missing_in

PATIENCE = 0.5
"""Seconds that a helper that nobody needs any more has to end by itself."""


def fork_servers_exist() -> bool:
    """True where the operating system has what a fork server needs."""
    return pidfds_exist() and hasattr(socket, "send_fds")


class TooManyDescriptors(OSError):
    """An object holds more open descriptors than can be passed at once."""


class ForkRefused(Exception):
    """A fork server does not fork: a fork would not be what a process of its own is, or cannot be made."""

    def __init__(self, reason: str, *, is_of_program: bool) -> None:
        """is_of_program: whether it is so for each dataset of the program."""
        super().__init__(reason)
        self.reason = reason
        self.is_of_program = is_of_program


def out_of_descriptors() -> RuntimeError:
    """Returns torch's error for a process that may open no further file."""
    return RuntimeError(
        "Too many open files. Communication with the workers is no longer possible. Please increase the limit using "
        "`ulimit -n` in the shell or change the sharing strategy by calling "
        "`torch.multiprocessing.set_sharing_strategy('file_system')` at the beginning of your code"
    )


class ForkServer:
    """The parent's side. Belongs to the process that made it; ends the helper when it is collected or closed."""

    def __init__(self, context: Any) -> None:
        """Starts the helper by the start method of `context`. Returns at once; the helper is ready later."""
        self.method = context.get_start_method()
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        watch = ParentWatch.for_child()
        helper = context.Process(target=serve, args=(theirs, watch), name="headrace-fork_server", daemon=False)
        with theirs:
            helper.start()

        process._children.discard(helper)  # type: ignore[attr-defined]  # ends by itself; nobody is to wait for it
        self._helper = ChildProcess(helper)
        self.pid = self._helper.pid
        watch.bind(self.pid)
        self._socket = ours
        self._owner = this_process.current
        self._worker_spec: PackedObject | None = None
        self._forked = 0  # since the last load
        self._prepares = True
        self._codes: dict[int, int] = {}
        self._is_ready = False
        self._close = weakref.finalize(self, _let_go, self._owner, ours, self._helper)

    def load(self, worker_spec: object, timeout: float | None = None) -> None:
        """Gives the helper the object that workers get, unless it has that already.

        Raises what pickling raises, and `UsageError` if the helper lacks a class or function of the program. Raises
        RuntimeError with the helper's traceback if it cannot unpickle the object for another reason, or if it has not
        done so after `timeout` seconds (None: it may take for ever); then it is killed. Raises `ForkRefused`.
        """
        if self._worker_spec is not None and self._still_holds(self._worker_spec, worker_spec):
            return
        if self._worker_spec is not None:
            self._worker_spec.close()

        self._worker_spec = None
        packed = PackedObject(worker_spec)
        try:
            self._send_packed("load", packed)
            (generators,), _ = self._answer("loaded", timeout)
            if not packed.generators.issuperset(generators):
                reason = "unpickling the dataset makes random generators, which forks would all have in the same state"
                raise ForkRefused(reason, is_of_program=False)
        except BaseException:
            packed.close()
            raise

        packed.close_pickle()
        self._worker_spec = packed

    def _still_holds(self, packed: PackedObject, worker_spec: object) -> bool:
        """Compares what the helper has with what it should have. Meanwhile it forks as many processes as last time.

        They wait, and get their orders if nothing has changed. What has changed may change each time: then none are
        forked until an epoch in which nothing has.
        """
        expected = self._forked
        self._forked = 0
        prepares = self._prepares and expected > 0 and not packed.inside
        if prepares:
            self._send("prepare", (expected,), [])

        same = False
        try:
            same = packed.holds(worker_spec)
        finally:
            if prepares and not same:
                self._send("prepare", (0,), [])
            self._prepares = same
        return same

    def fork(self, target: Callable[[Any, Any], None], order: object) -> ForkedProcess:
        """Has the helper fork a process that calls `target(worker_spec, order)`. Raises `ForkRefused`."""
        packed = PackedObject((target, order))
        try:
            self._send_packed("fork", packed)
            (pid,), fds = self._answer("forked")
        finally:
            packed.close()

        self._forked += 1
        return ForkedProcess(self, pid, fds[0])

    @property
    def alive(self) -> bool:
        """False once it was closed or killed, and in a forked child, which has no part in it."""
        if not self._close.alive or self._owner is not this_process.current:
            return False
        poll = select.poll()
        poll.register(self._socket, 0)
        return not poll.poll(0)  # a hang-up is told unasked

    def close(self) -> None:
        """Ends the helper. Workers that it forked are not touched."""
        self._close()

    def exit_code(self, pid: int) -> int:
        """Returns how a worker ended that has ended."""
        while pid not in self._codes:
            try:
                self._receive()
            except (EOFError, OSError):
                return 1  # the helper is gone, and with it what it knew

        return self._codes[pid]

    def _send_packed(self, kind: str, packed: PackedObject) -> None:
        descriptors = [packed.pickle, packed.bytes, *packed.inside]
        if len(descriptors) > MAX_DESCRIPTORS:
            raise TooManyDescriptors(f"{len(packed.inside)} open descriptors are too many for one message")
        self._send(kind, tuple(packed.manifest), descriptors)

    def _send(self, kind: str, details: tuple[int, ...], descriptors: list[int]) -> None:
        try:
            socket.send_fds(self._socket, [pickle.dumps((kind, details))], descriptors)
        except (BrokenPipeError, ConnectionResetError) as error:
            self._give_up(error)

    def _answer(self, kind: str, timeout: float | None = None) -> tuple[tuple[Any, ...], list[int]]:
        deadline = None
        if timeout is not None:  # Python and torch may take their time to start, whatever the timeout
            deadline = time.monotonic() + (timeout if self._is_ready else max(timeout, START_PATIENCE))

        while True:
            left = None
            if deadline is not None:
                left = max(deadline - time.monotonic(), 0)
            if not any(readable(self._socket.fileno(), seconds) for seconds in slices(left)):
                if self.alive:
                    self._helper.kill()
                self.close()
                message = f"DataLoader timed out after {timeout} seconds, while its workers were being started"
                raise RuntimeError(f"{message}: the dataset is still being unpickled")

            try:
                got, rest, fds = self._receive()
            except (EOFError, ConnectionResetError) as error:
                self._give_up(error)

            if got == "ready" and timeout is not None:
                deadline = time.monotonic() + timeout
            if got == "exhausted":
                raise out_of_descriptors()
            if got == "refused":
                raise ForkRefused(rest[0], is_of_program=rest[1])
            if got == "failed":
                raise self._failure(rest[0])
            if got == kind:
                return rest, fds

    def _failure(self, text: str) -> Exception:
        """Returns the error for what the helper could not do. text: its traceback."""
        missing = missing_in(text, self.method)
        if missing is not None:
            return missing
        return RuntimeError(f"DataLoader workers cannot be started. There the traceback was:\n{text}")

    def _give_up(self, error: Exception) -> NoReturn:
        self.close()
        code = self._helper.exitcode
        message = f"the process that starts DataLoader workers ended (exit code {code}); what it printed says why"
        raise RuntimeError(message) from error

    def _receive(self) -> tuple[str, tuple[Any, ...], list[int]]:
        data, fds, flags, _ = socket.recv_fds(self._socket, LARGEST_MESSAGE, 1)
        if not data:
            raise EOFError
        if flags & socket.MSG_CTRUNC:  # the kernel drops what it cannot open here; such a worker ends with its pipe
            raise out_of_descriptors()

        kind, *rest = pickle.loads(data)
        self._is_ready = True
        if kind == "ended":
            self._codes[rest[0]] = rest[1]
        return kind, tuple(rest), fds


class ForkedProcess(ProcessHandle):
    """A worker that a fork server forked."""

    def __init__(self, fork_server: ForkServer, pid: int, pidfd: int) -> None:
        self._fork_server = fork_server
        self.pid = pid
        self.name = f"headrace-worker-{pid}"
        self._exitcode: int | None = None
        self._own(pidfd)

    @property
    def exitcode(self) -> int | None:
        if self._exitcode is None and not self.is_alive():
            self._exitcode = self._fork_server.exit_code(self.pid)
        return self._exitcode


def _let_go(owner: this_process.Process, ours: socket.socket, helper: ProcessHandle) -> None:
    ours.close()  # which ends the helper, unless it is still importing what its parent has imported
    if owner is this_process.current:
        helper.join(PATIENCE)
        helper.terminate()
        helper.join(5)
        helper.kill()  # it hangs in what it imports or unpickles, or that handles the signal
