"""Ranges fetched by threads: order, budget, and what becomes of failures."""

from __future__ import annotations

import gc
import os
import threading
import time
from collections.abc import Iterator, Sequence

import pytest

from headrace.core.errors import StorageError
from headrace.storage.fetching.answers import LARGE
from headrace.storage.fetching.fetcher import RangeFetcher
from headrace.storage.fetching.in_flight import FIRST
from headrace.storage.fetching.range_sources import Brought
from headrace.storage.fetching.ranges import ByteRange, ObjectVersion, PlannedRead
from headrace.storage.fetching.read_plan import Plan
from headrace.storage.stores.retries import CONNECTION, THROTTLED

SIZE = 1000
FAR = 1 << 20
"""Between two ranges that are not to come in one request."""


class Objects:
    """A source of bytes that follow from their places, which can be held back."""

    def __init__(self) -> None:
        self.open = threading.Event()
        self.open.set()
        self.asked: list[list[ByteRange]] = []
        self.failing: set[str] = set()
        self.gone: set[str] = set()
        """Stores that do not answer until `back` is set."""

        self.back = threading.Event()
        self.lock = threading.Lock()

    def __call__(self, ranges: Sequence[ByteRange], next_uses: Sequence[int], *, ahead: bool) -> Brought:
        with self.lock:
            self.asked.append(list(ranges))
        with self.lock:
            gone = ranges[0].object.store in self.gone
        if gone:
            assert self.back.wait(20)
        assert self.open.wait(20)
        version = ranges[0].object
        if version.key in self.failing:
            raise StorageError(f"no {version.key}")
        stop = max(one.stop for one in ranges)
        data = content(version.key, ranges[0].start, stop)
        return Brought(memoryview(data), len(data))


def content(key: str, start: int, stop: int) -> bytes:
    letter = key.encode()[0]
    return bytes((letter + place // 100) % 256 for place in range(start, stop))


def of(key: str, number: int = 0, size: int = SIZE, store: str = "s") -> ByteRange:
    return ByteRange(ObjectVersion(store, key, None, 1 << 30), number * FAR, number * FAR + size)


@pytest.fixture
def objects() -> Objects:
    return Objects()


@pytest.fixture
def fetcher(objects: Objects) -> Iterator[RangeFetcher]:
    made = RangeFetcher(objects, budget=10 * SIZE)
    yield made
    objects.open.set()
    objects.back.set()
    made.close()


def until(condition: object, objects: Objects) -> None:
    """Waits until the source was asked so often."""
    waiting = threading.Event()
    for _ in range(2000):
        with objects.lock:
            if callable(condition) and condition():
                return
        waiting.wait(0.01)
    raise AssertionError("it did not come to that")


def test_ranges_come_in_the_order_in_which_they_are_asked_for(fetcher: RangeFetcher) -> None:
    wanted = [of("b"), of("a", 1), of("a"), of("b", 2, 3), of("a", 1)]
    for one, data in zip(wanted, fetcher.read(wanted), strict=True):
        assert data == content(one.object.key, one.start, one.stop)
    assert fetcher.held == 0

    out = bytearray(sum(one.size for one in wanted))
    fetcher.read_into(wanted, memoryview(out))
    assert out == b"".join(content(one.object.key, one.start, one.stop) for one in wanted)


def test_neighbours_come_in_one_request(fetcher: RangeFetcher, objects: Objects) -> None:
    objects.open.clear()
    version = of("a").object
    first = of("x")
    neighbours = [ByteRange(version, start, start + 10) for start in (0, 10, 25, 200)]
    fetcher.announce(1, [PlannedRead(0, [first, *neighbours])])
    objects.open.set()
    assert len(fetcher.read([first, *neighbours])) == 5
    assert sorted(map(len, objects.asked)) == [1, 4]
    assert fetcher.counts.requests == 2


def test_what_was_announced_is_there_when_it_is_read(fetcher: RangeFetcher, objects: Objects) -> None:
    wanted = [of(key) for key in "abcd"]
    fetcher.announce(1, [PlannedRead(0, wanted[:2])])
    fetcher.announce(1, [PlannedRead(1, wanted[2:])])
    until(lambda: fetcher.counts.requests == 4, objects)
    assert fetcher.held == 4 * SIZE
    fetcher.read(wanted)
    assert fetcher.held == 0
    assert len(objects.asked) == 4
    assert (fetcher.counts.hits, fetcher.counts.waits) == (4, 0)


def drop(fetcher: RangeFetcher, plan: int) -> None:
    """Abandons a plan, and sees that it is dropped, though a thread held the lock just then."""
    fetcher.abandon(plan)
    fetcher.passed(0, 0)


def test_the_budget_is_kept_however_much_is_announced(fetcher: RangeFetcher, objects: Objects) -> None:
    wanted = [of("a", number) for number in range(100)]
    for position, one in enumerate(wanted):
        fetcher.announce(1, [PlannedRead(position, [one])])
    until(lambda: fetcher.counts.requests == 10, objects)
    assert fetcher.held == 10 * SIZE

    most = 0
    for position, one in enumerate(wanted):
        assert fetcher.read([one])[0] == content("a", one.start, one.stop)
        fetcher.passed(1, position)
        most = max(most, fetcher.held)
    assert most <= 10 * SIZE
    assert len(objects.asked) == 100


def test_what_is_waited_for_is_fetched_though_the_budget_is_used_up(fetcher: RangeFetcher, objects: Objects) -> None:
    for position in range(20):
        fetcher.announce(1, [PlannedRead(position, [of("a", position)])])
    until(lambda: fetcher.counts.requests == 10, objects)
    assert fetcher.read([of("z", 0, 50 * SIZE)])[0] == content("z", 0, 50 * SIZE)


def test_a_range_announced_for_two_uses_is_kept_for_the_second(fetcher: RangeFetcher, objects: Objects) -> None:
    fetcher.announce(1, [PlannedRead(0, [of("a")])])
    fetcher.announce(1, [PlannedRead(5, [of("a")])])
    fetcher.read([of("a")])
    assert fetcher.held == SIZE
    fetcher.read([of("a")])
    assert fetcher.held == 0
    assert len(objects.asked) == 1


def test_what_was_announced_and_passed_unread_is_dropped(fetcher: RangeFetcher, objects: Objects) -> None:
    fetcher.announce(1, [PlannedRead(0, [of("a")])])
    fetcher.announce(1, [PlannedRead(1, [of("b")])])
    fetcher.announce(2, [PlannedRead(0, [of("b"), of("c")])])
    until(lambda: fetcher.counts.requests == 3, objects)
    fetcher.passed(1, 0)
    assert fetcher.held == 2 * SIZE
    drop(fetcher, 2)
    assert fetcher.held == SIZE
    drop(fetcher, 1)
    assert fetcher.held == 0
    assert fetcher.read([of("b")])[0] == content("b", 0, SIZE)


def test_a_plan_is_dropped_with_whoever_holds_it(fetcher: RangeFetcher, objects: Objects) -> None:
    kept, dropped = Plan(fetcher), Plan(fetcher)
    kept.announce(0, [of("a")])
    kept.tell()
    dropped.announce(0, [of("a"), of("b")])
    dropped.tell()
    until(lambda: fetcher.counts.requests == 2, objects)
    del dropped
    fetcher.passed(0, 0)
    assert fetcher.held == SIZE


def test_a_plan_may_be_dropped_while_the_same_thread_is_inside_the_fetcher(
    fetcher: RangeFetcher, objects: Objects
) -> None:
    plan = Plan(fetcher)
    plan.announce(0, [of("a")])
    plan.tell()
    until(lambda: fetcher.counts.requests == 1, objects)
    with fetcher._lock:
        # So does a collection of garbage that begins there.
        del plan
    assert fetcher.held == SIZE
    fetcher.passed(0, 0)
    assert fetcher.held == 0


def test_a_forked_child_drops_nothing_of_its_parents(fetcher: RangeFetcher, objects: Objects) -> None:
    plan = Plan(fetcher)
    plan.announce(0, [of("a")])
    plan.tell()
    until(lambda: fetcher.counts.requests == 1, objects)
    child = os.fork()
    if child == 0:
        del plan
        os._exit(len(fetcher._abandoned))
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


def test_what_is_passed_on_its_way_is_dropped_when_it_comes(fetcher: RangeFetcher, objects: Objects) -> None:
    objects.open.clear()
    fetcher.announce(1, [PlannedRead(0, [of("a")])])
    until(lambda: len(objects.asked) == 1, objects)
    fetcher.passed(1, 0)
    objects.open.set()
    until(lambda: fetcher.counts.requests == 1, objects)
    fetcher.read([of("b")])
    assert fetcher.held == 0


def test_a_failure_belongs_to_those_who_wait_and_is_tried_again_for_the_next(
    fetcher: RangeFetcher, objects: Objects
) -> None:
    objects.failing.add("a")
    fetcher.announce(1, [PlannedRead(0, [of("a"), of("b")])])
    with pytest.raises(StorageError, match="no a"):
        fetcher.read([of("b"), of("a")])
    with pytest.raises(StorageError, match="no a"):
        fetcher.read([of("a")])

    objects.failing.clear()
    assert fetcher.read([of("a")])[0] == content("a", 0, SIZE)
    drop(fetcher, 1)
    # "b" may have been on its way still when reading failed.
    until(lambda: fetcher.held == 0, objects)


def test_many_threads_may_read_the_same(fetcher: RangeFetcher, objects: Objects) -> None:
    wanted = [of("a", number) for number in range(50)]
    expected = [content("a", one.start, one.stop) for one in wanted]
    wrong = []

    def read() -> None:
        for _ in range(5):
            if fetcher.read(wanted) != expected:
                wrong.append(1)

    threads = [threading.Thread(target=read) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
        assert not thread.is_alive()
    assert wrong == []
    assert fetcher.held == 0


def test_whoever_waits_gets_an_error_when_it_is_closed(fetcher: RangeFetcher, objects: Objects) -> None:
    objects.open.clear()
    errors = []

    def read() -> None:
        try:
            fetcher.read([of("a")])
        except RuntimeError as error:
            errors.append(error)

    thread = threading.Thread(target=read)
    thread.start()
    until(lambda: len(objects.asked) == 1, objects)
    fetcher.close()
    thread.join(20)
    assert len(errors) == 1
    gc.collect()


def test_what_was_waited_for_is_measured(objects: Objects) -> None:
    fetcher = RangeFetcher(objects, budget=10 * SIZE)
    fetcher.announce(1, [PlannedRead(0, [of("a"), of("b")])])
    until(lambda: fetcher.counts.requests == 2, objects)
    assert fetcher.count().waited == 0

    objects.open.clear()
    before = time.perf_counter()
    reader = threading.Thread(target=fetcher.read, args=([of("c"), of("d")],))
    reader.start()
    until(lambda: len(objects.asked) == 4, objects)
    since = time.perf_counter()
    until(lambda: fetcher.count().waited > 0.05, objects)
    opened = time.perf_counter()
    objects.open.set()
    reader.join(20)
    ended = time.perf_counter()
    spent = ended - before
    counts = fetcher.count()
    fetcher.close()
    assert 0.05 < counts.waited <= spent
    assert counts.waited_bytes == 2 * SIZE
    # Both were under way for all of it but the beginning and the end.
    assert 2 * (counts.waited - (since - before) - (ended - opened)) <= counts.waited_in_flight <= 2 * counts.waited
    assert counts.waited_at_limit == 0
    assert (counts.ranges, counts.first_bytes, counts.again_bytes) == (4, 4 * SIZE, 0)
    assert sum(window.bytes for window in counts.windows) == pytest.approx(4 * SIZE)
    assert (counts.limit, counts.limit_is) == (FIRST, "rising")


def test_waiting_at_the_limit_is_told_from_waiting_for_memory(objects: Objects) -> None:
    fetcher = RangeFetcher(objects, budget=10 * SIZE)
    objects.open.clear()
    wanted = [of("a", number) for number in range(2 * FIRST)]
    reader = threading.Thread(target=fetcher.read, args=(wanted,))
    reader.start()
    until(lambda: fetcher.count().waited_at_limit > 0.02, objects)
    objects.open.set()
    reader.join(20)

    # Nobody reads what was announced, so that it fills the budget.
    fetcher.announce(1, [PlannedRead(0, [of("b", number, 5 * SIZE) for number in range(8)])])
    until(lambda: fetcher.held == 10 * SIZE, objects)
    before = fetcher.count()
    objects.open.clear()
    reader = threading.Thread(target=fetcher.read, args=([of("c")],))
    reader.start()
    until(lambda: fetcher.count().waited_for_memory - before.waited_for_memory > 0.02, objects)
    assert fetcher.count().waited_at_limit == before.waited_at_limit
    objects.open.set()
    reader.join(20)
    fetcher.close()


def test_what_is_fetched_again_is_told_and_refusals_are(fetcher: RangeFetcher) -> None:
    fetcher.read([of("a"), of("b")])
    fetcher.read([of("a")])
    fetcher.retried("s", THROTTLED)
    fetcher.retried("s", CONNECTION)
    counts = fetcher.count()
    assert (counts.first_bytes, counts.again_bytes) == (2 * SIZE, SIZE)
    assert (counts.busy, counts.retries) == (1, 2)
    assert (counts.limit, counts.limit_is) == (FIRST // 2, "refused")
    assert counts.again_share == pytest.approx(1 / 3)


# -- what others do not disturb ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("busy", [False, True])
def test_a_store_that_does_not_answer_holds_up_no_other(fetcher: RangeFetcher, objects: Objects, busy: bool) -> None:
    objects.gone.add("gone")
    fetcher.announce(1, [PlannedRead(0, [of("a", number, 10, "gone") for number in range(40)])])
    until(lambda: len(objects.asked) == FIRST, objects)
    if busy:
        fetcher.retried("gone", THROTTLED)
    assert fetcher.read([of("b", number) for number in range(5)]) == [
        content("b", n * FAR, n * FAR + SIZE) for n in range(5)
    ]
    assert len(objects.asked) == FIRST + 5
    drop(fetcher, 1)


def test_a_busy_store_is_asked_less_and_others_are_not(fetcher: RangeFetcher, objects: Objects) -> None:
    fetcher.retried("busy", THROTTLED)
    objects.gone |= {"busy", "s"}
    fetcher.announce(1, [PlannedRead(0, [of("a", number, 10, "busy") for number in range(2 * FIRST)])])
    fetcher.announce(2, [PlannedRead(0, [of("b", number, 10) for number in range(2 * FIRST)])])
    until(lambda: len(objects.asked) == FIRST + FIRST // 2, objects)
    assert [ranges[0].object.store for ranges in objects.asked].count("busy") == FIRST // 2
    drop(fetcher, 1)
    drop(fetcher, 2)


# -- what memory is held -----------------------------------------------------------------------------------------------


def memory_of(fetcher: RangeFetcher) -> int:
    """Returns the bytes of all buffers that the fetcher keeps alive, as the interpreter knows them."""
    buffers = {}
    for fetched in fetcher._known.values():
        if fetched.part is not None:
            owner = fetched.part[0].obj
            buffers[id(owner)] = memoryview(owner).nbytes
    return sum(buffers.values())


def test_what_lies_between_ranges_is_not_kept(objects: Objects) -> None:
    """A request brings up to twice the bytes of its samples: the budget is one of memory."""
    fetcher = RangeFetcher(objects, budget=256 << 20)
    version = of("a").object
    wanted = [ByteRange(version, start, start + SIZE) for start in range(0, 2 * SIZE * 2000, 2 * SIZE)]
    fetcher.announce(1, [PlannedRead(0, wanted)])
    until(lambda: fetcher.counts.requests > 0 and fetcher.held == 2000 * SIZE, objects)
    assert len(objects.asked) < 5
    assert memory_of(fetcher) == fetcher.held
    assert fetcher.read(wanted) == [content("a", one.start, one.stop) for one in wanted]
    assert fetcher.held == 0
    fetcher.close()


def test_small_answers_are_copied_out_of_what_they_were_cut_from(objects: Objects) -> None:
    def from_large_buffer(ranges: Sequence[ByteRange], next_uses: Sequence[int], *, ahead: bool) -> Brought:
        brought = objects(ranges, next_uses, ahead=ahead)
        assert brought.data is not None
        large = bytearray(400_000)
        large[: len(brought.data)] = brought.data
        return Brought(memoryview(large)[: len(brought.data)], len(brought.data))

    fetcher = RangeFetcher(from_large_buffer, budget=10 * SIZE)
    fetcher.announce(1, [PlannedRead(0, [of("a", number) for number in range(10)])])
    until(lambda: fetcher.counts.requests == 10, objects)
    assert memory_of(fetcher) == fetcher.held == 10 * SIZE
    assert fetcher.read([of("a", 3)])[0] == content("a", 3 * FAR, 3 * FAR + SIZE)
    drop(fetcher, 1)
    assert fetcher.held == 0
    fetcher.close()


def test_a_large_answer_counts_until_the_last_of_its_ranges_is_read(objects: Objects) -> None:
    fetcher = RangeFetcher(objects, budget=256 * LARGE)
    version = of("a").object
    half = LARGE // 2
    wanted = [ByteRange(version, start, start + half) for start in (0, half, LARGE)]
    first = of("x")
    objects.open.clear()
    fetcher.announce(1, [PlannedRead(0, [first])])
    fetcher.announce(1, [PlannedRead(1, wanted)])
    objects.open.set()
    fetcher.read([first])
    until(lambda: fetcher.held == 3 * half and len(fetcher._known) == 3, objects)
    fetcher.read(wanted[:2])
    assert memory_of(fetcher) == fetcher.held == 3 * half
    fetcher.read(wanted[2:])
    assert fetcher.held == 0
    fetcher.close()


def test_an_eighth_of_the_budget_is_on_its_way_at_most(objects: Objects) -> None:
    fetcher = RangeFetcher(objects, budget=80 * SIZE)
    objects.open.clear()
    fetcher.announce(1, [PlannedRead(0, [of("a", number) for number in range(80)])])
    until(lambda: len(objects.asked) == 10, objects)
    assert fetcher.held == 10 * SIZE
    objects.open.set()
    until(lambda: fetcher.counts.requests == 80, objects)
    assert fetcher.held == 80 * SIZE
    fetcher.close()
