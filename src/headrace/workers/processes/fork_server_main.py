"""The life of a fork server: it holds the dataset, forks workers, and tells the parent how they end.

Where forks would not be what workers by spawn or forkserver are (`fork_safety`), it refuses, and says why.

While the parent compares the dataset with what the fork server holds, the fork server may fork processes in advance:
*spares*. A spare waits for its order on a socket of its own. It does nothing of a worker's before that, so it can be
dropped if the dataset has changed.
"""

from __future__ import annotations

import contextlib
import errno
import gc
import multiprocessing
import os
import pickle
import signal
import socket
import traceback
from collections.abc import Callable, Collection
from dataclasses import dataclass
from multiprocessing.connection import wait
from typing import Any

import torch

from headrace.core.process.parent_watch import ParentWatch
from headrace.core.randomness.own_generators import digest, generators_of
from headrace.shared_memory.packed_object import unpack
from headrace.workers.processes.fork_safety import (
    FileId,
    file_id,
    reason_not_to_fork,
    running_threads,
)

LARGEST_MESSAGE = 1 << 16
LARGEST_TEXT = LARGEST_MESSAGE // 5
"""In characters, of up to four bytes each."""

MAX_DESCRIPTORS = 250
"""The kernel passes at most 253 with one message."""

SPARE_LIFE = 1.0
"""Seconds after which spares that nobody asks for are ended."""


def serve(link: socket.socket, parent_watch: ParentWatch) -> None:
    """The target of the helper. Returns when the parent's end of `link` is closed."""
    parent_watch.begin()
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches the parent too, which decides
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)  # a program that ignores it passes that on, and with it exit codes go
    torch.set_num_threads(1)  # threads would not survive a fork
    _ForkServer(link).run()
    multiprocessing.process._children.clear()  # type: ignore[attr-defined]  # they end with the parent, not with us


@dataclass
class _Message:
    kind: str
    details: Any
    data: bytes
    descriptors: list[int]

    def unpack(self) -> Any:
        """Unpacks the object that came, and closes the descriptors. Raises whatever unpickling raises."""
        pickle_fd, bytes_fd, *inside = self.descriptors
        self.descriptors = []
        try:
            return unpack(self.details, pickle_fd, bytes_fd, inside)
        finally:
            for fd in inside:
                os.close(fd)

    def close(self) -> None:
        """Closes the descriptors that were not used."""
        for fd in self.descriptors:
            os.close(fd)
        self.descriptors = []


class _ForkServer:
    def __init__(self, link: socket.socket) -> None:
        self._link = link
        # By their pidfds, not by their sentinels, which children of a worker may keep open.
        self._children: dict[int, Any] = {}
        self._spares: dict[int, socket.socket] = {}  # those of the children that have no order yet
        self._wanted = 0  # how many spares are still to be forked
        self._dropped: set[int] = set()  # the parent never knew of these
        self._worker_spec: Any = None
        self._refusal = ""  # why the program cannot be forked, whatever the dataset

    def run(self) -> None:
        # What the modules hold stays: it need not be looked at again with the dataset.
        gc.freeze()
        self._refusal = self._reason_not_to_fork()
        _tell(self._link, ("ready",))
        while True:
            ready = wait([self._link.fileno(), *self._children], self._patience())
            for pidfd in ready:
                if pidfd != self._link.fileno():
                    self._bury(pidfd)  # type: ignore[arg-type]

            if self._link.fileno() in ready:
                if not self._listen():
                    return
            elif self._wanted:
                self._fork_spare()
            elif not ready:
                self._drop_spares()

    def _patience(self) -> float | None:
        """Returns how long to wait for messages, in seconds; None: for ever. They come before further spares."""
        if self._wanted:
            return 0
        if self._spares:
            return SPARE_LIFE
        return None

    def _bury(self, pidfd: int) -> None:
        child = self._children.pop(pidfd)
        child.join()
        os.close(pidfd)
        spare = self._spares.pop(pidfd, None)
        if spare is not None:
            spare.close()
        elif pidfd in self._dropped:
            self._dropped.remove(pidfd)
        else:
            _tell(self._link, ("ended", child.pid, child.exitcode))

    def _listen(self) -> bool:
        """Does what the parent wants. False: the parent is gone."""
        try:
            message = _received(self._link)
        except ConnectionResetError:  # the parent went with a message of ours unread
            return False
        except _TooFewDescriptors:
            _tell(self._link, ("exhausted",))
            return True

        if message is None:
            return False

        try:
            if message.kind == "prepare":
                self._prepare(*message.details)
            elif message.kind == "load":
                self._prepare(0)
                self._load(message)
            else:
                self._start(message)
        except Exception as error:  # noqa: BLE001 - whatever unpickling raises: the parent raises it
            _tell(self._link, _failure(error))
        finally:
            message.close()
        return True

    def _load(self, message: _Message) -> None:
        self._worker_spec = None
        if self._refusal:
            _tell(self._link, ("refused", self._refusal, True))
            return

        shipped = {file_id(fd) for fd in message.descriptors}
        self._worker_spec = message.unpack()
        gc.collect()
        gc.freeze()
        dataset = getattr(self._worker_spec, "dataset", None)
        refusal = self._reason_not_to_fork(shipped, dataset)
        if refusal:
            _tell(self._link, ("refused", refusal, False))
        else:
            _tell(self._link, ("loaded", [digest(found.generator) for found in generators_of(dataset)]))

    def _reason_not_to_fork(self, shipped: Collection[FileId] = (), dataset: object = None) -> str:
        children = {child.pid for child in self._children.values()}
        ours = [self._link.fileno(), *self._children]
        return reason_not_to_fork({*shipped, *map(file_id, ours)}, children, dataset)

    def _start(self, message: _Message) -> None:
        while self._spares:
            if self._hand_over(message):
                return

        self._wanted = max(self._wanted - 1, 0)
        target, order = message.unpack()
        try:
            pidfd = self._fork(_run, target, self._worker_spec, order)
        except (OSError, RuntimeError) as error:
            if isinstance(error, OSError) and error.errno == errno.EMFILE:
                raise
            _tell(self._link, ("refused", f"a fork failed: {error}", False))
            return
        _tell(self._link, ("forked", self._children[pidfd].pid), [pidfd])

    # -- processes that are forked in advance --------------------------------------------------------------------------

    def _prepare(self, count: int) -> None:
        if count == 0:
            self._drop_spares()
        self._wanted = max(count - len(self._spares), 0)

    def _drop_spares(self) -> None:
        for pidfd, ours in self._spares.items():
            self._dropped.add(pidfd)
            ours.close()
        self._spares.clear()

    def _fork_spare(self) -> None:
        self._wanted -= 1
        try:
            ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
            with theirs:
                pidfd = self._fork(_stand_by, theirs, self._worker_spec, ours)
        except (OSError, RuntimeError):  # the worker itself may fare better, or the parent hears why not
            self._wanted = 0
            return
        self._spares[pidfd] = ours

    def _hand_over(self, message: _Message) -> bool:
        """Gives an order to a spare. False: it has ended."""
        pidfd = next(iter(self._spares))
        ours = self._spares.pop(pidfd)
        with ours:
            try:
                socket.send_fds(ours, [message.data], message.descriptors)
                answer = ours.recv(LARGEST_MESSAGE)
            except (BrokenPipeError, ConnectionResetError):
                answer = b""

        pid = self._children[pidfd].pid
        if not answer:
            self._dropped.add(pidfd)
            return False

        said = pickle.loads(answer)
        if said == _BEGINS:
            _tell(self._link, ("forked", pid), [pidfd])
        else:
            self._dropped.add(pidfd)
            _tell(self._link, said)
        return True

    def _fork(self, target: Callable[..., None], *arguments: Any) -> int:
        """Forks a process that closes what is not its own and calls `target`. Returns its pidfd.

        Raises OSError, and RuntimeError where an object that was unpickled meanwhile has started threads.
        """
        threads = running_threads()
        if threads:
            raise RuntimeError(threads)

        others = [self._link, *self._spares.values()]
        child = multiprocessing.get_context("fork").Process(
            target=_born, args=(others, target, *arguments), daemon=True
        )
        child.start()
        try:
            pidfd = os.pidfd_open(child.pid or 0)
        except OSError:  # no descriptor is left
            child.kill()
            child.join()
            raise

        self._children[pidfd] = child
        return pidfd


_BEGINS = ("begins",)


def _born(others: list[socket.socket], target: Callable[..., None], *arguments: Any) -> None:
    """What a forked process does first. It keeps no end of a socket whose closing says that the fork server is gone."""
    for other in others:
        other.close()
    target(*arguments)


def _run(target: Callable[[Any, Any], None], worker_spec: object, order: object) -> None:
    """What a worker does."""
    signal.signal(signal.SIGINT, signal.default_int_handler)
    target(worker_spec, order)


def _stand_by(link: socket.socket, worker_spec: object, other_end: socket.socket) -> None:
    """What a spare does: it waits for its order, and then becomes a worker."""
    other_end.close()
    with link:
        try:
            message = _received(link)
            if message is None:
                return
            target, order = message.unpack()
        except ConnectionResetError:
            return
        except Exception as error:  # noqa: BLE001 - whatever unpickling raises: the parent raises it
            _tell(link, _failure(error))
            return
        _tell(link, _BEGINS)

    _run(target, worker_spec, order)


# -- messages --------------------------------------------------------------------------------------------------------


class _TooFewDescriptors(OSError):
    """The kernel dropped descriptors of a message, since the process may open no further ones."""

    def __init__(self) -> None:
        super().__init__(errno.EMFILE, os.strerror(errno.EMFILE))


def _received(link: socket.socket) -> _Message | None:
    """Waits for a message. None: the other end was closed. Raises ConnectionResetError and `_TooFewDescriptors`."""
    data, fds, flags, _ = socket.recv_fds(link, LARGEST_MESSAGE, MAX_DESCRIPTORS + 3)
    if not data:
        return None

    kind, details = pickle.loads(data)
    message = _Message(kind, details, data, fds)
    if flags & socket.MSG_CTRUNC:
        message.close()
        raise _TooFewDescriptors
    return message


def _failure(error: Exception) -> tuple[Any, ...]:
    """Returns the message about an exception. Must be called while it is handled."""
    if isinstance(error, OSError) and error.errno == errno.EMFILE:
        return ("exhausted",)
    return ("failed", traceback.format_exc()[-LARGEST_TEXT:])


def _tell(link: socket.socket, message: tuple[Any, ...], fds: list[int] | None = None) -> None:
    with contextlib.suppress(BrokenPipeError, ConnectionResetError):  # the parent is gone; the next read says so
        socket.send_fds(link, [pickle.dumps(message)], fds or [])
