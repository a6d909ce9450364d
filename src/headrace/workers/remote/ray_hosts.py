"""Hosts that Ray starts: one actor for each remote worker. Runs in the placement process, which is Ray's driver."""

from __future__ import annotations

import contextlib
import secrets
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

from headrace.cluster.code import versions
from headrace.cluster.connection import check_reachable, ray_library
from headrace.cluster.options import Ray
from headrace.core.errors import ClusterError
from headrace.telemetry.formatting import some
from headrace.workers.remote.actors import HostActor
from headrace.workers.remote.messages import HostAddress

PROBE_EVERY = 2.0
"""Seconds between two looks at the head of the cluster, while somebody waits for a machine."""

HEAD_PATIENCE = 8.0
"""Seconds without an answer of the head after which nobody waits any longer."""

CHECK_WITHIN = 3.0
"""Seconds within which an actor that lives answers."""


class RayHosts:
    """A `Provider` of hosts. This process must be connected to a Ray cluster."""

    def __init__(self, options: Ray, folder: str, paths: list[str]) -> None:
        """folder, paths: see `HostConfig`."""
        self.patience = options.start_timeout
        self._options = options
        self._folder = folder
        self._paths = paths
        self._key = secrets.token_bytes(32)
        self._ray = ray_library()
        self._address = str(self._ray.get_runtime_context().gcs_address)
        self._probing = threading.Lock()
        self._probe_due = 0.0
        self._answered_at = time.monotonic()
        self._ended = ""
        self._actor = self._ray.remote(HostActor).options(
            num_cpus=options.num_cpus, resources=dict(options.resources), max_concurrency=2
        )

    def start(self, placed: Callable[[], None]) -> RayHost:
        """See `Provider.start`. Waits for as long as Ray has no machine."""
        with self._told_as_cluster_error():
            actor = self._actor.remote()
            self._ray.get(actor.check.remote(versions()))
            placed()
            place = self._ray.get(actor.start.remote(self._key, self._folder, self._paths))
        return RayHost(self._ray, actor, place)

    @contextlib.contextmanager
    def _told_as_cluster_error(self) -> Iterator[None]:
        """Raises `ClusterError` for what Ray raises in the block."""
        try:
            yield
        except self._ray.exceptions.RayError as error:
            if isinstance(error, self._ray.exceptions.RayTaskError) and isinstance(error.cause, ClusterError):
                raise error.cause from error
            raise ClusterError.about(
                "a worker could not be started on another machine",
                place="Ray",
                found=str(error).strip(),
                expected="an actor that starts",
                fix="install headrace, with the same versions, on all machines of the cluster",
            ) from error

    def why_it_waits(self, seconds: float) -> str:
        needs = ", ".join(f"{amount:g} {name}" for name, amount in self._options.needs.items() if amount)
        free = self._ray.available_resources()
        has = ", ".join(f"{free.get(name, 0):g} {name}" for name in self._options.needs)
        whole = self._ray.cluster_resources()
        if unknown := [name for name, amount in self._options.needs.items() if amount and name not in whole]:
            has = f"{has}; no machine has any {', '.join(unknown)}"
        error = ClusterError.about(
            "Ray has no machine for a worker",
            place=f"a Ray cluster of {some(len(self._ray.nodes()), 'node')}",
            found=f"none after {seconds:.0f} s; free in the whole cluster: {has}",
            expected=f"a node that has {needs or 'room'} free",
            fix="add machines, use fewer workers, raise start_timeout= of headrace.Ray, or end what holds them: a "
            "loader of yours does while its epoch goes on, and longer with persistent_workers=True",
        )
        return str(error)

    def has_room(self) -> bool:
        try:
            free = self._ray.available_resources()
        except (self._ray.exceptions.RayError, ConnectionError, RuntimeError, TimeoutError):
            return True  # the cluster does not answer: nobody can wait for anything there
        return all(free.get(name, 0.0) >= amount for name, amount in self._options.needs.items())

    def why_it_ended(self) -> str:
        """See `Provider.why_it_ended`: the head of the cluster has not answered for `HEAD_PATIENCE` seconds."""
        with self._probing:
            now = time.monotonic()
            if now < self._probe_due:
                return self._ended

            self._probe_due = now + PROBE_EVERY
            try:
                check_reachable(self._address, within=PROBE_EVERY)
                self._answered_at = now
                self._ended = ""
            except ClusterError:
                if now - self._answered_at >= HEAD_PATIENCE:
                    self._ended = self._head_is_gone(now - self._answered_at)
            return self._ended

    def _head_is_gone(self, seconds: float) -> str:
        return str(
            ClusterError.about(
                "Ray cannot start workers any more",
                place=self._address,
                found=f"the head of the cluster has not answered for {seconds:.0f} s",
                expected="a head that runs as long as the training",
                fix="start the cluster again, and resume from the last checkpoint",
            )
        )


class RayHost:
    """A `HostHandle`: an actor, and the host that it runs."""

    def __init__(self, ray: Any, actor: Any, place: HostAddress) -> None:
        self.place = place
        self._ray = ray
        self._actor = actor

    def is_alive(self) -> bool:
        try:
            return bool(self._ray.get(self._actor.is_alive.remote(), timeout=CHECK_WITHIN))
        except (self._ray.exceptions.RayError, TimeoutError):
            return False

    def end(self) -> None:
        with contextlib.suppress(self._ray.exceptions.RayError):  # Ray has ended, and the actor with it
            self._ray.kill(self._actor)
