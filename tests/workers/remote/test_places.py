"""Who gets which host, and how many are started."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from multiprocessing.connection import Connection, Pipe

import pytest

from headrace.core.errors import ClusterError
from headrace.workers.remote.messages import HostAddress
from headrace.workers.remote.places import ATTEMPTS, Places

LIMIT = 30.0
"""Seconds after which a test gives up."""


class SlowHost:
    """A host that takes its time to say that it is alive, as one does on a machine that is busy."""

    def __init__(self, number: int, asked: threading.Event, may_answer: threading.Event) -> None:
        self.place = HostAddress("127.0.0.1", number, b"")
        self.alive = True
        self.ended = threading.Event()
        self._asked = asked
        self._may_answer = may_answer

    def is_alive(self) -> bool:
        self._asked.set()
        assert self._may_answer.wait(LIMIT)
        return self.alive

    def end(self) -> None:
        self.alive = False
        self.ended.set()


class SlowHosts:
    """A provider that starts a host when the test says so."""

    patience = LIMIT

    def __init__(self) -> None:
        self.hosts: list[SlowHost] = []
        self.may_start = threading.Semaphore(0)
        self.asked = threading.Event()
        self.may_answer = threading.Event()
        self.refuses = False
        self.room = True
        self.started = 0
        self.one_more = threading.Condition()

    def start(self, placed: Callable[[], None]) -> SlowHost:
        with self.one_more:
            self.started += 1
            self.one_more.notify_all()
        placed()
        assert self.may_start.acquire(timeout=LIMIT)
        if self.refuses:
            raise ClusterError("none here")

        host = SlowHost(len(self.hosts), self.asked, self.may_answer)
        self.hosts.append(host)
        return host

    def why_it_waits(self, seconds: float) -> str:
        return ""

    def has_room(self) -> bool:
        return self.room

    def why_it_ended(self) -> str:
        return ""

    def has_started(self, count: int, within: float = LIMIT) -> bool:
        with self.one_more:
            return self.one_more.wait_for(lambda: self.started >= count, within)


@pytest.fixture
def provider() -> Iterator[SlowHosts]:
    provider = SlowHosts()
    yield provider
    provider.may_answer.set()
    provider.may_start.release(100)


def ask(places: Places) -> Connection:
    ours, theirs = Pipe(duplex=True)
    places.serve(theirs)
    ours.send(("place", None))
    return ours


def answer(door: Connection) -> tuple[str, object]:
    assert door.poll(LIMIT)
    kind, content = door.recv()
    return kind, content


@pytest.mark.thorough
def test_two_who_ask_have_two_hosts_started_however_slow_the_first_is(provider: SlowHosts) -> None:
    places = Places(provider)
    doors = [ask(places), ask(places)]
    assert provider.has_started(2)

    provider.may_start.release()
    # The other door looks again while the first host is still being asked whether it lives.
    assert provider.asked.wait(LIMIT)
    assert not provider.has_started(3, within=1.5)

    provider.may_answer.set()
    provider.may_start.release()
    assert {answer(door)[0] for door in doors} == {"place"}
    assert provider.started == 2


def test_a_door_that_has_closed_leaves_its_host_to_the_next(provider: SlowHosts) -> None:
    provider.may_answer.set()
    provider.may_start.release()
    places = Places(provider)
    first = ask(places)
    place = answer(first)
    first.close()

    assert answer(ask(places)) == place
    assert provider.started == 1


def test_a_host_that_its_proxy_tells_is_lost_is_not_given_to_the_next(provider: SlowHosts) -> None:
    provider.may_answer.set()
    provider.may_start.release(2)
    places = Places(provider)
    first = ask(places)
    answer(first)
    with places._changed:  # the thread of the first door cannot act before the second one is there
        first.send(("failed", None))
        first.close()
        second = ask(places)

    assert answer(second) == ("place", HostAddress("127.0.0.1", 1, b""))
    assert provider.hosts[0].ended.wait(LIMIT)


@pytest.fixture
def half_an_epoch(provider: SlowHosts, monkeypatch: pytest.MonkeyPatch) -> tuple[Places, Connection, Connection]:
    """Places, a door that has a host, and one whose host is still being started. No door looks again by itself."""
    monkeypatch.setattr("headrace.workers.remote.places.LOOK_EVERY", LIMIT)
    provider.may_answer.set()
    provider.may_start.release()
    places = Places(provider)
    in_use = ask(places)
    answer(in_use)
    waiting = ask(places)
    assert provider.has_started(2)
    return places, in_use, waiting


def test_a_door_that_closed_while_it_waited_has_no_further_host_started(
    provider: SlowHosts, half_an_epoch: tuple[Places, Connection, Connection]
) -> None:
    places, _in_use, waiting = half_an_epoch
    waiting.close()
    door = ask(places)
    assert not provider.has_started(3, within=0.5)

    provider.may_start.release()
    assert answer(door) == ("place", provider.hosts[1].place)


def test_a_door_that_closed_while_it_waited_takes_no_host(
    provider: SlowHosts, half_an_epoch: tuple[Places, Connection, Connection]
) -> None:
    places, _in_use, waiting = half_an_epoch
    waiting.close()
    provider.asked.clear()
    provider.may_start.release()
    assert not provider.asked.wait(0.5)

    assert answer(ask(places)) == ("place", provider.hosts[1].place)
    assert provider.started == 2


def test_a_host_that_has_died_is_replaced(provider: SlowHosts) -> None:
    provider.may_answer.set()
    provider.may_start.release(2)
    places = Places(provider)
    first = ask(places)
    answer(first)
    provider.hosts[0].alive = False
    first.close()

    second = ask(places)
    assert answer(second) == ("place", provider.hosts[1].place)


def test_a_host_that_nobody_uses_makes_room_where_there_is_none(
    provider: SlowHosts, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("headrace.workers.remote.places.IDLE", 0.1)
    provider.may_answer.set()
    provider.may_start.release(2)
    places = Places(provider)
    doors = {answer(door)[1]: door for door in (ask(places), ask(places))}
    used, idle = provider.hosts
    provider.room = False
    doors[idle.place].close()
    assert idle.ended.wait(LIMIT)
    assert used.alive


def test_that_there_is_none_is_told_after_some_attempts(provider: SlowHosts) -> None:
    provider.refuses = True
    provider.may_start.release(ATTEMPTS)
    assert answer(ask(Places(provider))) == ("refused", "none here")
    assert provider.started == ATTEMPTS
