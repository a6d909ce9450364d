"""Several processes and jobs at one cache: killed at any moment, evicting under readers, fetching the same blocks."""

from __future__ import annotations

import itertools
import os
import pickle
import random
import signal
import time
from pathlib import Path

import pytest

from headrace.storage.cache import NEVER, CachedObject, DiskCache
from headrace.storage.cache.removal import take_file
from tests.storage.cache.conftest import Opener
from tests.storage.cache.processes import BLOCK, children, content, disk_use, file_of, fork, read, status_of

SIZES = [6 * BLOCK + 10, 3 * BLOCK, BLOCK, 100, 40 * BLOCK]
OBJECTS = 12
LIMIT = 120 * BLOCK
ROUNDS = 30


def objects_of(cache: DiskCache) -> list[CachedObject]:
    sizes = itertools.cycle(SIZES)
    return [cache.open_object(f"s3://b/{number:03}", "e", next(sizes), BLOCK) for number in range(OBJECTS)]


CONTENTS = [content(f"s3://b/{number:03}", size) for number, size in zip(range(OBJECTS), SIZES * 3, strict=False)]


def work(cache: DiskCache, seed: int, steps: int | None = None) -> int:
    """Reads, inserts and takes objects away at random; returns how many reads hit. Raises for wrong bytes."""
    draw = random.Random(seed)
    objects = objects_of(cache)
    hits = 0
    for _ in itertools.count() if steps is None else range(steps):
        index = draw.randrange(OBJECTS)
        cached = objects[index]
        blocks = range(cached.shape.blocks)
        first = draw.choice(blocks)
        last = min(first + draw.randrange(3), blocks[-1])
        start = cached.shape.start_of(first)
        stop = cached.shape.stop_of(last)
        found = read(cached, start, stop)
        if found is not None:
            assert found == CONTENTS[index][start:stop], (cached, start, stop)
            hits += 1
        else:
            cached.insert(start, CONTENTS[index][start:stop], draw.choice([NEVER, draw.randrange(1000)]))
        if draw.random() < 0.05:
            take_file(cache.node, cached.name, claimed=draw.random() < 0.5)
    return hits


def check_all(cache: DiskCache) -> int:
    """Checks every block that is there; returns how many there are."""
    present = 0
    for index, cached in enumerate(objects_of(cache)):
        for number in range(cached.shape.blocks):
            start, stop = cached.shape.start_of(number), cached.shape.stop_of(number)
            was_there = cached.has(start, stop)
            found = read(cached, start, stop)
            # Of an evictor that was killed, a file without a name may be open here, whose blocks are read.
            if was_there or found is not None:
                assert found == CONTENTS[index][start:stop]
            present += was_there
    return present


@pytest.mark.thorough
@pytest.mark.parametrize("in_use", [False, True], ids=["used by nobody else", "used by another process"])
def test_a_writer_killed_at_any_moment_leaves_a_sound_cache(open_cache: Opener, in_use: bool) -> None:
    """With another process, the use goes on, and no CRC is compared."""
    draw = random.Random(int(in_use))
    if in_use:
        other = open_cache(LIMIT)
    present = 0
    for number in range(ROUNDS):
        said, says = os.pipe()

        def writer(number: int = number, says: int = says) -> None:
            cache = open_cache(LIMIT)
            os.write(says, b"x")
            work(cache, number)

        with children(writer) as (pid,):
            os.read(said, 1)
            time.sleep(draw.random() * 0.03)  # any moment
            os.kill(pid, signal.SIGKILL)
            assert -signal.SIGKILL == status_of(pid)
        os.close(said)
        os.close(says)

        if in_use:
            present += check_all(other)
        else:
            cache = open_cache(LIMIT)
            assert disk_use(cache) == cache.used()
            present += check_all(cache)
            assert not [*cache.folder.glob("objects/*/*.new")]
            cache.close()
    assert present > ROUNDS

    if in_use:
        other.close()
    cache = open_cache(LIMIT)
    assert disk_use(cache) == cache.used()


@pytest.mark.thorough
def test_jobs_evict_under_readers_and_nothing_wrong_is_delivered(open_cache: Opener) -> None:
    def job(number: int) -> None:
        cache = open_cache(LIMIT, job=number)
        assert work(cache, number, 3000) > 300

    with children(*(lambda n=n: job(n) for n in (1, 2, 3))) as pids:  # type: ignore[misc]
        assert [0, 0, 0] == [status_of(pid) for pid in pids]
    cache = open_cache(LIMIT)
    assert disk_use(cache) == cache.used() <= LIMIT
    assert check_all(cache) > 20


def test_counted_bytes_stay_right_while_jobs_insert_and_evict(open_cache: Opener) -> None:
    cache = open_cache(LIMIT)

    def job(number: int) -> None:
        work(open_cache(LIMIT, job=number), number, 1500)

    with children(lambda: job(1), lambda: job(2)) as pids:
        assert [0, 0] == [status_of(pid) for pid in pids]
    # Both have ended without closing it, with a thousandth of the limit counted ahead at most.
    assert 0 <= cache.used() - disk_use(cache) <= 2 * 2 * LIMIT // 1000


def test_counted_bytes_that_a_killed_process_left_are_corrected_while_the_cache_is_in_use(open_cache: Opener) -> None:
    cache = open_cache(20 * BLOCK)

    def killed() -> None:
        open_cache(20 * BLOCK).node.count.add(19 * BLOCK)
        os.kill(os.getpid(), signal.SIGKILL)

    with children(killed) as (pid,):
        assert -signal.SIGKILL == status_of(pid)
    assert 19 * BLOCK <= cache.used() - disk_use(cache)
    cached = cache.open_object("s3://b/x", "e", BLOCK, BLOCK)
    assert cached.insert(0, content("s3://b/x", BLOCK), 1)
    assert disk_use(cache) == cache.used()


def test_two_processes_fetch_each_block_once(open_cache: Opener, tmp_path: Path) -> None:
    """Both want all blocks, in orders of their own; they note what they fetch."""
    cache = open_cache()
    size = 60 * BLOCK
    data = content("s3://b/big", size)

    def fetcher(number: int) -> None:
        cached = cache.open_object("s3://b/big", "e", size, BLOCK)
        order = [*range(0, size, BLOCK)]
        random.Random(number).shuffle(order)
        with (tmp_path / f"fetched{number}").open("w") as note:
            for start in order:
                stop = start + BLOCK
                claim = cached.claim(start, stop)
                if claim is None:
                    assert cached.wait(start, stop)
                else:
                    with claim:
                        for begin, end in cached.missing(start, stop):
                            print(begin, file=note)
                            assert cached.insert(begin, data[begin:end])
                assert data[start:stop] == read(cached, start, stop)

    with children(*(lambda n=n: fetcher(n) for n in range(3))) as pids:  # type: ignore[misc]
        assert [0, 0, 0] == [status_of(pid) for pid in pids]
    fetched = [int(line) for number in range(3) for line in (tmp_path / f"fetched{number}").read_text().split()]
    assert [*range(0, size, BLOCK)] == sorted(fetched)


def test_a_killed_process_claims_nothing_any_more(open_cache: Opener) -> None:
    """Not even if a forked child of it lives on, with copies of its descriptors."""
    cache = open_cache()
    cached = cache.open_object("s3://b/x", "e", 2 * BLOCK, BLOCK)
    said, says = os.pipe()

    def claimant() -> None:
        claim = cached.claim(0, 2 * BLOCK)
        assert claim is not None
        grandchild = fork(signal.pause)
        os.write(says, f"{grandchild}\n".encode())
        signal.pause()

    with children(claimant) as (pid,):
        grandchild = int(os.read(said, 20))
        try:
            assert cached.claim(0, BLOCK) is None
            os.kill(pid, signal.SIGKILL)
            assert not cached.wait(0, 2 * BLOCK)
            assert cached.insert(0, content("s3://b/x", 2 * BLOCK))
        finally:
            os.kill(grandchild, signal.SIGKILL)
    os.close(said)
    os.close(says)


def test_a_pickled_cache_is_one_of_the_same_job(tmp_path: Path) -> None:
    cache = DiskCache(tmp_path, "10MB", job=77)
    copy = pickle.loads(pickle.dumps(cache))
    assert (cache.folder, cache.limit, cache.job) == (copy.folder, copy.limit, copy.job)
    assert cache.open_object("s3://b/x", "e", BLOCK, BLOCK).insert(0, bytes(BLOCK))
    assert copy.open_object("s3://b/x", "e", BLOCK, BLOCK).has(0, BLOCK)
    cache.close()
    copy.close()


def test_a_use_ends_with_its_last_process(open_cache: Opener) -> None:
    first = open_cache()
    second = open_cache()
    assert first.node.mark == second.node.mark
    pid = fork(signal.pause)
    first.close()
    second.close()
    during = open_cache()
    os.kill(pid, signal.SIGKILL)
    status_of(pid)
    assert first.node.mark == during.node.mark
    during.close()
    assert first.node.mark != open_cache().node.mark


def test_without_locks_blocks_are_verified_by_every_process(
    open_cache: Opener, monkeypatch: pytest.MonkeyPatch, said: list[str]
) -> None:
    """As on a file system that has none: the calls fail as they do there."""

    def refused(*_: object) -> None:
        raise OSError(95, "Operation not supported")

    monkeypatch.setattr("fcntl.fcntl", refused)
    monkeypatch.setattr("fcntl.flock", refused)
    cache = open_cache(LIMIT)
    assert work(cache, 5, 500) > 50
    assert check_all(cache) > 0
    cached = objects_of(cache)[0]
    assert cached.insert(0, CONTENTS[0])
    with file_of(cached, cache).open("r+b") as file:
        file.seek(cached.shape.data_start)
        file.write(b"wrong")
    assert read(objects_of(open_cache(LIMIT))[0], 0, BLOCK) is None
    assert 1 == len({text for text in said if "no locks" in text})
