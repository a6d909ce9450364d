"""The host process on another machine: it listens for a proxy, and runs one worker process for it.

It is a program of its own, which a Ray actor starts (`actors.py`): a clean process, from which workers may be forked
unless the user's modules or dataset bring threads. It keeps the worker spec from one proxy to the next, and shares it
with the other hosts of its machine (`shared_spec.py`), so that the dataset travels to a machine once. It ends with the
process that has started it.
"""

from __future__ import annotations

import contextlib
import functools
import logging
import os
import pickle
import select
import socket
import sys
import threading
import time
import traceback
from multiprocessing import get_context
from multiprocessing.connection import Connection
from queue import SimpleQueue
from typing import Any, NamedTuple

import numpy as np

from headrace.cluster.code import check_versions
from headrace.core.errors import ClusterError
from headrace.core.process.descriptors import nameless_file
from headrace.shared_memory.arena import Arena, InboundRegion
from headrace.shared_memory.by_value import (
    TravellingManifest,
    TravellingObject,
    by_value_pickler,
    note_received_classes,
    unpack_travelling,
)
from headrace.shared_memory.codec import pickle_batches_with
from headrace.workers.processes import worker_main
from headrace.workers.processes.fork_safety import reason_not_to_fork_once
from headrace.workers.processes.messages import InSlot, Result
from headrace.workers.processes.pool import Regions, WorkerHandle, WorkerPool
from headrace.workers.processes.start import ByContext
from headrace.workers.processes.worker_main import Assignment
from headrace.workers.remote import shared_spec
from headrace.workers.remote.messages import Death, Hello, HostConfig, RemoteRequest, RemoteResult, Welcome
from headrace.workers.remote.shared_spec import Offer
from headrace.workers.remote.wire import BEAT, SILENCE, LostError, Wire, WireMessage, authenticate
from headrace.workers.worker_spec import WorkerSpec

LOGGER = logging.getLogger("headrace")

ACTIVITY_EVERY = 0.2
"""Seconds after which a proxy is told what the worker does, if that has changed."""


class Host:
    """Serves one proxy after the other."""

    def __init__(self, config: HostConfig, control: Connection) -> None:
        """control: its other end closes when this process is to end."""
        self._config = config
        self._control = control
        self._listener = socket.create_server((config.address, 0), family=_family_of(config.address))
        self._digest = ""
        self._worker_spec: WorkerSpec
        """That with this digest; there is none while the digest is empty."""
        self._packed: TravellingObject
        """The same, as it came."""
        self._offers: list[Offer] = []
        """The one under which other hosts of this machine get it, or none."""

    @property
    def port(self) -> int:
        """Where it listens."""
        return int(self._listener.getsockname()[1])

    def serve(self) -> None:
        """Serves until the other end of `control` closes."""
        while True:
            waiting_for: list[Any] = [self._control, self._listener, *self._offers]
            readable, _, _ = select.select(waiting_for, [], [])
            if self._control in readable:
                return
            shared_spec.answer(self._offers, readable)
            if self._listener not in readable:
                continue

            connection, _ = self._listener.accept()
            try:
                authenticate(connection, self._config.key, as_server=True)
            except (ClusterError, LostError) as error:
                LOGGER.warning("headrace: %s", error)
                connection.close()
                continue

            wire = Wire(connection)
            try:
                self._serve_one(wire)
            except LostError:
                pass  # the proxy is gone; the next one may come
            finally:
                wire.close()

    def _serve_one(self, wire: Wire) -> None:
        hello: Hello = wire.receive().content
        try:
            check_versions(hello.versions, self._config.name)
        except ClusterError as error:
            wire.send("refused", str(error))
            return

        wire.send("welcome", Welcome(self._config.name, time.perf_counter()))
        if hello.digest != self._digest and not self._load(wire, hello.digest):
            return

        reason = reason_not_to_fork_once()
        if reason:
            LOGGER.info("headrace: the worker on %s is no fork: %s", self._config.name, reason)
            start = ByContext(get_context("spawn"), self._packed, _run_apart)
        else:
            start = ByContext(get_context("fork"), self._worker_spec)
        _Service(wire, hello, start, [self._control, self._listener], self._offers).run()

    def _load(self, wire: Wire, digest: str) -> bool:
        """Gets the worker spec. What goes wrong is told to the proxy. Raises `LostError`."""
        self._forget()
        try:
            fd, manifest = self._from_another_host(wire, digest) or _over_the_wire(wire)
            self._packed = TravellingObject(fd, manifest, os.fstat(fd).st_size, digest)
            self._worker_spec = unpack_travelling(fd, manifest)
            for offer in self._offers:
                offer.has(fd, manifest)
        except LostError:
            self._forget()
            raise
        except Exception:  # noqa: BLE001 - unpickling the user's objects may raise anything
            self._forget()
            wire.send("refused", f"the dataset cannot be unpickled on {self._config.name}:\n{traceback.format_exc()}")
            return False

        note_received_classes()
        self._digest = digest
        return True

    def _forget(self) -> None:
        self._digest = ""
        while self._offers:
            self._offers.pop().close()

    def _from_another_host(self, wire: Wire, digest: str) -> tuple[int, TravellingManifest] | None:
        """Returns a spec that another host of this machine has, or receives just now; see `shared_spec`.

        None: this host is to receive it by itself. Raises `LostError`.
        """
        name = shared_spec.name_of(self._config.key, self._config.name, digest)
        deadline = time.monotonic() + shared_spec.PATIENCE
        while time.monotonic() < deadline:
            try:
                offer = shared_spec.offer(name)
                if offer is not None:
                    self._offers.append(offer)
                    return None

                with shared_spec.ask(name) as asking:
                    if self._wait_for(asking, wire, deadline):
                        return shared_spec.take(asking)
            except LostError:
                raise  # it is an OSError as well
            except shared_spec.NobodyOffersError:
                continue  # this host may offer it now
            except OSError:
                return None
        return None

    def _wait_for(self, asking: socket.socket, wire: Wire, deadline: float) -> bool:
        """Waits for the answer of another host. False: it has taken too long. Raises `LostError`."""
        while time.monotonic() < deadline:
            waiting_for: list[Any] = [asking, wire, self._control]
            readable, _, _ = select.select(waiting_for, [], [], BEAT)
            if asking in readable:
                return True
            if readable:
                raise LostError("the proxy is gone")  # it has nothing to say before the worker is there
            wire.send("beat")
        return False


def _over_the_wire(wire: Wire) -> tuple[int, TravellingManifest]:
    """Has the proxy send the worker spec, and returns its file, which the caller owns. Raises `LostError`."""
    wire.send("send spec")
    message = wire.receive()
    fd = nameless_file("spec")
    try:
        _receive_file(wire, fd, message.sizes)
    except BaseException:
        os.close(fd)
        raise
    return fd, message.content


def _receive_file(wire: Wire, fd: int, sizes: list[int]) -> None:
    """Receives buffers into a file, one behind the other."""
    os.ftruncate(fd, max(sum(sizes), 1))
    piece = bytearray(1 << 20)
    start = 0
    for size in sizes:
        end = start + size
        while start < end:
            view = memoryview(piece)[: min(len(piece), end - start)]
            wire.read_into(view)
            start += os.pwrite(fd, view, start)


class _Service:
    """One worker process, and the proxy that it works for.

    The main thread talks to the worker and reads from the wire. A thread of its own writes results to the wire, so that
    a slow line never keeps the worker from its next request.
    """

    def __init__(self, wire: Wire, hello: Hello, start: ByContext, others: list[Any], offers: list[Offer]) -> None:
        """others: what ends the service when it can be read: the control connection, or another proxy at the door.

        offers: are answered meanwhile.
        """
        self._wire = wire
        self._others = others
        self._offers = offers
        brief = functools.partial(_assignment, hello)
        self._pool = WorkerPool(lambda: start, Regions(Arena()), 1, brief, hello.begin)
        self._outbox: SimpleQueue[_Outgoing | None] = SimpleQueue()
        self._writer = threading.Thread(target=_write_all, args=(wire, self._outbox), daemon=True)
        self._told: list[int] = []
        self._told_at = 0.0
        self._heard_at = time.monotonic()
        self._epoch = hello.epoch

    @property
    def _worker(self) -> WorkerHandle:
        return self._pool.workers[0]

    def run(self) -> None:
        """Runs until the worker has ended or the proxy is gone."""
        self._wire.send("started", self._worker.process.pid)
        self._writer.start()
        try:
            while self._step():
                pass
        finally:
            self._end()

    def _step(self) -> bool:
        """Waits for something and deals with it. False: the service ends."""
        waiting_for = [self._wire, self._pool.resources.selector, *self._others, *self._offers]
        readable, _, _ = select.select(waiting_for, [], [], ACTIVITY_EVERY)
        shared_spec.answer(self._offers, readable)
        if any(other in readable for other in self._others):
            return False
        if self._wire in readable:
            self._heard_at = time.monotonic()
            if not self._hear(self._wire.receive()):
                return False

        for _, result in self._pool.receive(0):
            self._outbox.put(_outgoing(self._worker.region, result))
        self._pool.flush(self._epoch)
        if self._pool.take_dead():
            self._tell_death()
            return False

        self._tell_activity()
        if not self._writer.is_alive() or time.monotonic() - self._heard_at > SILENCE:
            raise LostError("the proxy is gone")
        return True

    def _hear(self, message: WireMessage) -> bool:
        if message.kind == "request":
            request: RemoteRequest = message.content
            self._epoch = request.epoch
            if request.begin is not None:
                self._pool.begin(request.begin)
            for task, replica, index in request.tasks:
                self._pool.post(0, task, replica, index)
        elif message.kind == "ask stacks":
            self._outbox.put(_Outgoing("stacks", self._worker.crash_file.ask(self._worker.process)))
        return message.kind != "stop"

    def _tell_activity(self) -> None:
        now = time.monotonic()
        activity = list(self._worker.crash_file.activity)
        if activity != self._told or now - self._told_at >= BEAT:
            self._told = activity
            self._told_at = now
            self._outbox.put(_Outgoing("beat", activity))

    def _tell_death(self) -> None:
        worker = self._worker
        death = Death(worker.process.exitcode, list(worker.crash_file.activity), worker.crash_file.stacks())
        self._outbox.put(_Outgoing("died", death))
        self._outbox.put(None)
        self._writer.join()
        self._wire.finish()

    def _end(self) -> None:
        """Ends the worker at once: what it makes now nobody wants."""
        self._wire.close()
        self._outbox.put(None)
        self._writer.join()
        if not self._worker.reaped:
            self._worker.process.kill()
        self._pool.resources.close()


class _Outgoing(NamedTuple):
    """A message that is to be written. `buffers` keep the slots leased until they are on their way."""

    kind: str
    content: Any
    buffers: tuple[Any, ...] = ()


def _write_all(wire: Wire, outbox: SimpleQueue[_Outgoing | None]) -> None:
    """Writes messages to the wire until there is a None. Ends early if the proxy is gone."""
    with contextlib.suppress(LostError):
        while (outgoing := outbox.get()) is not None:
            wire.send(outgoing.kind, outgoing.content, [memoryview(buffer) for buffer in outgoing.buffers])
            del outgoing  # its leases end here, and the worker gets the slots back


def _outgoing(region: InboundRegion, result: Result) -> _Outgoing:
    """Returns the message for a result. Leases its slots."""
    slots = [region.lease(slot, used) for slot, used in result.slots]
    if isinstance(result.header, InSlot):
        header: Any = region.lease(result.header.slot, result.header.nbytes)
    else:
        header = np.frombuffer(result.header, np.uint8)

    content = RemoteResult(
        result.epoch, result.task, result.status, result.buffers, result.times, result.seen, result.drew
    )
    return _Outgoing("result", content, (header, *slots))


def _assignment(hello: Hello, **given: Any) -> Assignment:
    """Returns what the worker process is told: it has the number that it has at the trainer."""
    given.update(worker_id=hello.worker_id, epoch=hello.epoch)
    return Assignment(workers=hello.workers, original_errors=hello.original_errors, **given)


def _run_apart(packed: TravellingObject, assignment: Assignment) -> None:
    """The target of a worker that is no fork of the host: it prepares what a fork has from there."""
    pickle_batches_with(by_value_pickler())
    worker_spec = unpack_travelling(packed.fd, packed.manifest)
    note_received_classes()
    worker_main.main(worker_spec, assignment)


def _family_of(address: str) -> socket.AddressFamily:
    if ":" in address:
        return socket.AF_INET6
    return socket.AF_INET


def run_host(descriptor: int) -> None:
    """Runs a host. descriptor: of a connection over which its `HostConfig` comes, and its port goes."""
    control = Connection(descriptor)
    config: HostConfig = pickle.loads(control.recv_bytes())
    sys.path.extend(path for path in config.paths if path not in sys.path)
    with contextlib.suppress(OSError):
        os.chdir(config.folder)

    # A batch may hold objects of classes that the trainer sent by value: they go back the same way.
    pickle_batches_with(by_value_pickler())
    host = Host(config, control)
    control.send_bytes(pickle.dumps(host.port))
    host.serve()
