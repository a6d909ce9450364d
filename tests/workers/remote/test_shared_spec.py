"""Hosts of one machine share the worker spec: one receives it, the others get its memory."""

from __future__ import annotations

import contextlib
import os
import secrets
import select
import socket
import threading
from collections.abc import Iterator
from multiprocessing.connection import Pipe

import pytest

from headrace.core.process.descriptors import nameless_file
from headrace.shared_memory.by_value import TravellingManifest
from headrace.workers.remote import shared_spec
from headrace.workers.remote.host import Host
from headrace.workers.remote.messages import HostConfig
from headrace.workers.remote.shared_spec import NobodyOffersError, Offer
from headrace.workers.remote.wire import LostError, Wire
from tests.workers.remote.test_wire import connected

NOBODY = 65534
"""The number of a user who is not this one."""

MANIFEST = TravellingManifest((0, 5), [(start, 1) for start in range(50_000)])
"""Longer than a message of a Unix socket may be."""


@pytest.fixture
def name() -> bytes:
    return shared_spec.name_of(secrets.token_bytes(32), "machine", "digest")


@pytest.fixture
def offer(name: bytes) -> Iterator[Offer]:
    made = shared_spec.offer(name)
    assert made is not None
    yield made
    made.close()


def note_hello(offer: Offer) -> None:
    fd = nameless_file("spec")
    os.write(fd, b"hello")
    offer.has(fd, MANIFEST)
    os.close(fd)


def test_names_depend_on_key_machine_and_content() -> None:
    names = {shared_spec.name_of(key, machine, digest) for key in (b"1", b"2") for machine in "ab" for digest in "xy"}
    assert len(names) == 8


def test_only_one_offers_and_the_others_wait(name: bytes, offer: Offer) -> None:
    assert shared_spec.offer(name) is None
    with shared_spec.ask(name) as asking:
        assert select.select([asking], [], [], 0) == ([], [], [])
        note_hello(offer)
        assert select.select([offer], [], [], 10)[0] == [offer]
        offer.answer()
        fd, manifest = shared_spec.take(asking)
    assert os.pread(fd, 10, 0) == b"hello"
    assert manifest == MANIFEST
    os.close(fd)


def test_all_who_ask_at_once_get_the_same(name: bytes, offer: Offer) -> None:
    note_hello(offer)
    found: list[TravellingManifest] = []

    def take() -> None:
        for _ in range(5):
            with shared_spec.ask(name) as asking:
                fd, manifest = shared_spec.take(asking)
                os.close(fd)
                found.append(manifest)

    threads = [threading.Thread(target=take) for _ in range(4)]
    for thread in threads:
        thread.start()
    for _ in range(20):
        offer.answer()
    for thread in threads:
        thread.join()
    assert found == 20 * [MANIFEST]


def test_those_who_wait_notice_the_end(name: bytes, offer: Offer) -> None:
    with shared_spec.ask(name) as asking:
        offer.close()
        with pytest.raises(NobodyOffersError):
            shared_spec.take(asking)
    with pytest.raises(NobodyOffersError):
        shared_spec.ask(name)
    again = shared_spec.offer(name)
    assert again is not None
    again.close()


def test_a_child_does_not_hold_the_name(name: bytes, offer: Offer) -> None:
    end, told = os.pipe()
    is_there, there = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.close(told)
        os.write(there, b"x")
        os.read(end, 1)
        os._exit(0)
    try:
        assert os.read(is_there, 1) == b"x"
        offer.close()
        again = shared_spec.offer(name)
        assert again is not None
        again.close()
    finally:
        for fd in (told, end, is_there, there):
            os.close(fd)
        assert os.waitpid(pid, 0) == (pid, 0)


@pytest.mark.parametrize("gone", ["proxy", "starter"])
def test_a_host_that_waits_for_a_spec_does_not_ask_for_it_where_nobody_needs_it(gone: str) -> None:
    """The proxy is gone, or the process that has started the host, with which it is to end."""
    config = HostConfig(secrets.token_bytes(32), "127.0.0.1", "machine", "/", [])
    with contextlib.ExitStack() as stack:
        control, starter = map(stack.enter_context, Pipe(duplex=True))
        host = Host(config, control)
        stack.enter_context(host._listener)
        offered = shared_spec.offer(shared_spec.name_of(config.key, config.name, "digest"))
        assert offered is not None
        stack.callback(offered.close)
        here, proxy = connected()
        stack.enter_context(proxy)
        wire = Wire(here)
        stack.callback(wire.close)
        {"proxy": proxy, "starter": starter}[gone].close()
        with pytest.raises(LostError):
            host._from_another_host(wire, "digest")


@contextlib.contextmanager
def as_another_user() -> Iterator[None]:
    os.seteuid(NOBODY)
    try:
        yield
    finally:
        os.seteuid(0)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can be another user")
def test_processes_of_another_user_are_neither_answered_nor_asked(name: bytes, offer: Offer) -> None:
    note_hello(offer)
    with as_another_user(), pytest.raises(PermissionError):
        shared_spec.ask(name)
    offer.answer()  # to that one, who has gone

    with socket.socket(socket.AF_UNIX) as asking:
        with as_another_user():
            asking.connect(name)
        offer.answer()
        with pytest.raises(NobodyOffersError):
            shared_spec.take(asking)
