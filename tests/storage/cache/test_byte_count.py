"""The bytes in use: never below what lies in files, and right again behind a recount that meets nothing on its way."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.storage.cache import DiskCache
from headrace.storage.cache.byte_count import ByteCount
from headrace.storage.cache.open_files import OpenFile
from headrace.storage.cache.removal import take_file
from tests.storage.cache.conftest import Opener
from tests.storage.cache.processes import BLOCK, content, disk_use, file_of

LIMIT = 100 * BLOCK


def recount(cache: DiskCache) -> None:
    count = cache.node.count
    count.end_recount(count.begin_recount(), cache.node.recount())


def insert(cache: DiskCache, name: str) -> str:
    """Stores an object of one block; returns the name of its file."""
    cached = cache.open_object(name, "e", BLOCK, BLOCK)
    assert cached.insert(0, content(name, BLOCK))
    return cached.name


def test_a_recount_between_reserving_and_writing_takes_nothing_away(open_cache: Opener) -> None:
    writer, other = open_cache(LIMIT), open_cache(LIMIT)
    insert(writer, "s3://b/x")
    before = writer.used()
    assert writer.node.count.reserve(3 * BLOCK)
    recount(other)
    assert before + 3 * BLOCK == writer.used()
    writer.node.count.stored(3 * BLOCK)


@pytest.mark.parametrize("counted", ["before", "behind"])
def test_a_recount_beside_a_removal_changes_nothing(open_cache: Opener, counted: str) -> None:
    """Whether the file was looked at before it was unlinked, or behind that and before it was counted as free."""
    remover, other = open_cache(LIMIT), open_cache(LIMIT)
    name = insert(remover, "s3://b/x")
    insert(remover, "s3://b/y")
    before = disk_use(remover)
    with remover.node.count.removing(2 * BLOCK):
        if counted == "before":
            recount(other)
        remover.node.folders.unlink(name)
        if counted == "behind":
            recount(other)
    assert disk_use(remover) == remover.used() == before - 2 * BLOCK


def test_bytes_of_several_threads_are_on_their_way_until_the_last_is_stored(open_cache: Opener) -> None:
    writer, other = open_cache(LIMIT), open_cache(LIMIT)
    assert writer.node.count.reserve(BLOCK)
    assert writer.node.count.reserve(2 * BLOCK)
    writer.node.count.stored(2 * BLOCK)
    assert 0 == other.node.count.begin_recount()
    writer.node.count.stored(BLOCK)
    assert other.node.count.begin_recount()


@pytest.mark.parametrize("moved", ["inserted", "removed"])
def test_what_moves_while_files_are_counted_cancels_the_recount(open_cache: Opener, moved: str) -> None:
    mover, other = open_cache(LIMIT), open_cache(LIMIT)
    name = insert(mover, "s3://b/x")
    number = other.node.count.begin_recount()
    assert number
    counted = other.node.recount()
    if moved == "inserted":
        insert(mover, "s3://b/y")
    else:
        take_file(mover.node, name)
    other.node.count.end_recount(number, counted)
    assert disk_use(mover) == mover.used()


def test_a_recount_corrects_bytes_that_lie_nowhere(open_cache: Opener) -> None:
    cache, other = open_cache(LIMIT), open_cache(LIMIT)
    insert(cache, "s3://b/x")
    for path in cache.folder.glob("objects/*/*"):
        path.unlink()
    assert 0 < cache.used()
    recount(other)
    assert 0 == cache.used() == other.used()


def test_no_room_cancels_no_recount(open_cache: Opener) -> None:
    """Those who find no room would otherwise keep each other from finding out that there is some."""
    cache, other = open_cache(LIMIT), open_cache(LIMIT)
    number = other.node.count.begin_recount()
    assert not cache.node.count.reserve(2 * LIMIT)
    other.node.count.end_recount(number, 5 * BLOCK)
    assert 5 * BLOCK == cache.used()


def test_bytes_counted_ahead_are_not_counted_any_more_behind_a_correction(open_cache: Opener) -> None:
    limit = 10_000 * BLOCK
    cache, other = open_cache(limit), open_cache(limit)
    insert(cache, "s3://b/x")
    assert disk_use(cache) < other.used()
    recount(other)
    assert disk_use(cache) == cache.used() == other.used()
    insert(cache, "s3://b/y")
    assert disk_use(cache) == cache.used()
    cache.close()
    assert disk_use(other) == other.used()


def test_a_process_whose_own_bytes_are_on_their_way_does_not_recount(open_cache: Opener) -> None:
    cache = open_cache(LIMIT)
    cache.node.count.add(BLOCK)
    assert 0 == cache.node.count.begin_recount()
    cache.node.count.release(BLOCK)
    assert cache.node.count.begin_recount()


def test_a_write_that_fails_holds_up_no_recount(open_cache: Opener, monkeypatch: pytest.MonkeyPatch) -> None:
    cache, other = open_cache(LIMIT), open_cache(LIMIT)
    cached = cache.open_object("s3://b/x", "e", BLOCK, BLOCK)
    with monkeypatch.context() as patched:
        patched.setattr(OpenFile, "write_fully", refused)
        assert not cached.insert(0, bytes(BLOCK))
    assert other.node.count.begin_recount()


def refused(*_: object) -> None:
    raise OSError(28, "No space left on device")


def test_requests_in_flight_store_nothing_above_the_limit(open_cache: Opener) -> None:
    """Each makes a file, whose header is counted also at a full cache; none of the blocks is worth its room."""
    limit = 2500 * BLOCK
    cache = open_cache(limit)
    for number in range(25):
        near = cache.open_object(f"s3://b/near{number}", "e", 100 * BLOCK, BLOCK)
        near.insert(0, bytes(100 * BLOCK), 1)
    for turn in range(20):
        objects = [cache.open_object(f"s3://b/{turn}.{number}", "e", 20 * BLOCK, BLOCK) for number in range(16)]
        claims = [cached.claim(0, BLOCK) for cached in objects]
        for cached, claim in zip(objects, claims, strict=True):
            assert claim is not None
            cached.insert(0, content(cached.url, BLOCK), 10**6)
            claim.release()
    assert disk_use(cache) == cache.used() <= limit


def test_the_last_of_several_claims_removes_a_file_without_blocks(open_cache: Opener) -> None:
    cache = open_cache()
    cached = cache.open_object("s3://b/x", "e", 4 * BLOCK, BLOCK)
    first, second = cached.claim(0, BLOCK), cached.claim(BLOCK, 2 * BLOCK)
    assert first is not None and second is not None
    first.release()
    second.release()
    assert 0 == disk_use(cache) == cache.used()


def test_a_file_that_was_cut_frees_no_more_than_it_takes(open_cache: Opener) -> None:
    cache = open_cache(LIMIT)
    cached = cache.open_object("s3://b/x", "e", 8 * BLOCK, BLOCK)
    assert cached.insert(0, content("s3://b/x", 8 * BLOCK))
    insert(cache, "s3://b/y")
    path = file_of(cached, cache)
    cache.close()
    os.truncate(path, 3 * BLOCK)
    cache = open_cache(LIMIT)
    assert take_file(cache.node, cached.name)
    assert disk_use(cache) == cache.used()


# -- any order ---------------------------------------------------------------------------------------------------------


class Process:
    """What one process does to a few files of a model, step by step as threads and processes interleave."""

    def __init__(self, marker: Path, limit: int, files: dict[int, int], removed: set[int]) -> None:
        self._marker = OpenFile(os.open(marker, os.O_RDWR | os.O_CREAT))
        self.count = ByteCount(self._marker, limit, writable=True)
        self._files = files
        self._removed = removed
        """Files that a process is about to unlink."""
        self._insert: tuple[int, int] | None = None
        self._removal: tuple[int, contextlib.ExitStack] | None = None
        self._recount: Iterator[None] | None = None

    def insert(self, file: int, nbytes: int) -> None:
        """Reserves; at the next call writes; at the one after that says so."""
        if self._insert is None:
            if file not in self._files and self.count.reserve(nbytes):
                self._insert = (file, nbytes)
        elif self._insert[0] in self._files:
            # Written by this call before, or by another process meanwhile, which then was sooner.
            self.finish_insert()
        else:
            self._files[self._insert[0]] = self._insert[1]
            self.count.stored(self._insert[1])
            self._insert = None

    def finish_insert(self) -> None:
        if self._insert is not None:
            self.count.release(self._insert[1])
            self._insert = None

    def remove(self, file: int) -> None:
        """Begins; at the next call unlinks; at the one after that counts as free."""
        if self._removal is None:
            # Others leave alone what one process removes: it holds the file's lock.
            if file in self._files and file not in self._removed:
                self._removed.add(file)
                removal = contextlib.ExitStack()
                removal.enter_context(self.count.removing(self._files[file]))
                self._removal = (file, removal)
        elif self._removal[0] in self._removed:
            del self._files[self._removal[0]]
            self._removed.remove(self._removal[0])
        else:
            self._removal[1].close()
            self._removal = None

    def recount(self) -> None:
        """Looks at one file a call."""
        if self._recount is None:
            self._recount = self._counting()
        if next(self._recount, self) is self:
            self._recount = None

    def _counting(self) -> Iterator[None]:
        number = self.count.begin_recount()
        counted = 0
        for file in range(4):
            counted += self._files.get(file, 0)
            yield
        self.count.end_recount(number, counted)

    def end(self, *, killed: bool) -> None:
        if not killed:
            self.finish_insert()
            while self._removal is not None:
                self.remove(-1)
            self.count.close()
        elif self._removal is not None:
            # What the block does at its end is lost with the process.
            self._removal[1].pop_all()
            self._removed.discard(self._removal[0])
        self._marker.close()


STEPS = st.tuples(
    st.integers(0, 2),
    st.sampled_from(["insert", "insert", "remove", "recount", "recount", "end", "kill"]),
    st.integers(0, 3),
    st.integers(1, 40),
)


@settings(max_examples=300, deadline=None)
@given(limit=st.sampled_from([50, 100, 20_000]), steps=st.lists(STEPS, max_size=60))
def test_in_any_order_no_byte_in_a_file_is_left_out(
    tmp_path_factory: pytest.TempPathFactory, limit: int, steps: list[tuple[int, str, int, int]]
) -> None:
    marker = tmp_path_factory.mktemp("count") / "marker"
    files: dict[int, int] = {}
    removed: set[int] = set()
    processes = [Process(marker, limit, files, removed) for _ in range(3)]
    with contextlib.ExitStack() as stack:
        stack.callback(lambda: [process.end(killed=False) for process in processes])
        killed = False
        for who, what, file, nbytes in steps:
            process = processes[who]
            if what == "insert":
                process.insert(file, nbytes)
            elif what == "remove":
                process.remove(file)
            elif what == "recount":
                process.recount()
            else:
                killed |= what == "kill"
                process.end(killed=what == "kill")
                processes[who] = Process(marker, limit, files, removed)
            counted = min(process.count.used() for process in processes)
            assert sum(files.values()) <= counted

        for who, process in enumerate(processes):
            process.end(killed=False)
            processes[who] = Process(marker, limit, files, removed)
        if not killed:
            assert sum(files.values()) == processes[0].count.used()
        for _ in range(6):
            processes[0].recount()
        assert sum(files.values()) == processes[0].count.used() <= limit
