"""The connection of this process to a Ray cluster, as a driver. Ray is imported here and nowhere earlier."""

from __future__ import annotations

import contextlib
import logging
import os
import signal
import socket
import threading
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from headrace.cluster.address import host_and_port
from headrace.core.errors import ClusterError
from headrace.core.extras import extra

EXTRA = "ray"

REACHED_WITHIN = 10.0
"""Seconds within which the address of a cluster must answer."""


def ray_library() -> Any:
    """Returns the module `ray`, which sends no usage statistics. Raises `MissingExtraError` if it is not installed."""
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    return extra("ray", EXTRA)


def connect(address: str | None = None) -> None:
    """Connects this process to a Ray cluster; does nothing if it is connected already.

    address: as for `ray.init`: "host:port", "ray://host:port", "auto" (a cluster that this machine belongs to) or
      "local" (a new one in this process). None: that of `RAY_ADDRESS`, or "auto" where such a cluster runs, or else
      "local".

    Raises `ClusterError` for a cluster that cannot be reached, and `MissingExtraError` without Ray.
    """
    ray = ray_library()
    if ray.is_initialized():
        return

    found = address
    if found in (None, "auto"):
        found = os.environ.get("RAY_ADDRESS") or address
    if found is None:
        found = _cluster_of_this_machine() or "local"

    words: dict[str, Any] = {"configure_logging": False, "logging_level": logging.ERROR, "log_to_driver": False}
    if found == "local":
        words["include_dashboard"] = False
    elif found != "auto":
        check_reachable(found)

    try:
        with _quietly():
            ray.init(found, **words)
    except (ConnectionError, RuntimeError, TimeoutError, ValueError) as error:
        # Of an address with a port, `check_reachable` has seen that somebody answers there.
        raise _unreachable(found, str(error), answers=host_and_port(found) is not None) from error


@contextlib.contextmanager
def _quietly() -> Iterator[None]:
    """Keeps the user's own handler of SIGTERM, which Ray would replace, and silences what Ray says of its start."""
    logger = logging.getLogger("ray")
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        with _sigterm_kept():
            yield
    finally:
        logger.setLevel(level)


@contextlib.contextmanager
def _sigterm_kept() -> Iterator[None]:
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=".*In future versions of Ray", category=FutureWarning)
        if threading.current_thread() is not threading.main_thread():
            yield
            return

        before = signal.getsignal(signal.SIGTERM)
        try:
            yield
        finally:
            # Without a handler of the user's, Ray's stays: at its exit, a process ends the cluster that it has started.
            if callable(before):
                signal.signal(signal.SIGTERM, before)


def _cluster_of_this_machine() -> str | None:
    """Returns the address of the cluster that `ray start` has noted, if that still answers.

    Ray itself does not ask: it would try for minutes to reach a cluster that was killed.
    """
    folder = os.environ.get("RAY_TMPDIR") or os.environ.get("TMPDIR") or "/tmp"
    try:
        address = Path(folder, "ray", "ray_current_cluster").read_text().strip()
        check_reachable(address)
    except (OSError, ClusterError):
        return None

    return address


def check_reachable(address: str, within: float = REACHED_WITHIN) -> None:
    """Raises `ClusterError` if nobody answers at an address within some seconds: Ray itself would try for minutes."""
    parts = host_and_port(address)
    if parts is None:
        raise _unreachable(address, "no port in it")

    try:
        socket.create_connection(parts, within).close()
    except (OSError, UnicodeError) as error:
        raise _unreachable(address, str(error)) from error


def _unreachable(address: str, found: str, *, answers: bool = False) -> ClusterError:
    """Returns the error for a cluster that cannot be connected to. answers: somebody listens at the address."""
    expected = '"host:port" of a cluster that runs, "ray://host:port", "auto" or "local"'
    fix = "start the cluster (ray start --head), correct the address or RAY_ADDRESS, or open the port"
    if answers:
        expected = "a cluster of the same Ray, which takes this process's token if it asks for one"
        fix = (
            "see what `ray start` has said there: if authentication is on, set RAY_AUTH_MODE=token and give this "
            "machine the token of the cluster"
        )

    what = "this process cannot connect to a Ray cluster"
    return ClusterError.about(what, place=address, found=found, expected=expected, fix=fix)
