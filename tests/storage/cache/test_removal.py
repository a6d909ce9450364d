"""Which objects leave, how they leave, and what becomes of who reads or writes them."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from headrace.storage.cache.node import MARKER
from headrace.storage.cache.object_file import open_object_file
from headrace.storage.cache.removal import begin_writing, end_writing, take_file
from tests.storage.cache.conftest import Opener
from tests.storage.cache.processes import BLOCK, content, disk_use, file_of, read

SIZE = 10 * BLOCK + 100
URL = "s3://bucket/train/000.tar"
DATA = content(URL, SIZE)


def test_the_object_whose_nearest_next_use_is_farthest_leaves(open_cache: Opener) -> None:
    cache = open_cache(3 * 3 * BLOCK)
    objects = [cache.open_object(f"{URL}{number}", "e", 2 * BLOCK, BLOCK) for number in range(4)]
    contents = [content(cached.url, 2 * BLOCK) for cached in objects]
    for number, uses in enumerate([(30, 31), (20, 99), (10, 98)]):
        for block, next_use in enumerate(uses):
            part = contents[number][block * BLOCK : (block + 1) * BLOCK]
            assert objects[number].insert(block * BLOCK, part, next_use)

    assert not objects[3].insert(0, contents[3], 30)
    assert [True, True, True, False] == [cached.has(0, 2 * BLOCK) for cached in objects]
    assert objects[3].insert(0, contents[3], 25)
    assert [False, True, True, True] == [cached.has(0, 1) for cached in objects]
    objects[2].set_next_use(0, 2 * BLOCK, 97)
    assert objects[0].insert(0, contents[0], 50)
    assert [True, True, False, True] == [cached.has(0, 2 * BLOCK) for cached in objects]
    assert contents[0] == read(objects[0], 0, 2 * BLOCK)
    assert disk_use(cache) == cache.used() <= 3 * 3 * BLOCK


def test_an_object_larger_than_the_cache_leaves_for_its_own_blocks_that_are_needed_before(open_cache: Opener) -> None:
    cache = open_cache(4096 + 3 * BLOCK)
    cached = cache.open_object(URL, "e1", SIZE, BLOCK)
    assert cached.insert(0, DATA[: 3 * BLOCK], 50)
    assert not cached.insert(3 * BLOCK, DATA[3 * BLOCK : 4 * BLOCK], 60)
    assert DATA[: 3 * BLOCK] == read(cached, 0, 3 * BLOCK)
    # Its file is removed before the block is written, which is therefore not in the cache.
    assert not cached.insert(3 * BLOCK, DATA[3 * BLOCK : 4 * BLOCK], 40)
    assert [(0, SIZE)] == cached.missing(0, SIZE)
    assert disk_use(cache) == cache.used() == 0
    assert cached.insert(3 * BLOCK, DATA[3 * BLOCK : 4 * BLOCK], 40)
    assert DATA[3 * BLOCK : 4 * BLOCK] == read(cached, 3 * BLOCK, 4 * BLOCK)
    assert disk_use(cache) == cache.used()


def test_a_block_that_was_not_stored_keeps_no_object_in_the_cache(open_cache: Opener) -> None:
    cache = open_cache(4096 + 3 * BLOCK)
    cached = cache.open_object(URL, "e1", SIZE, BLOCK)
    assert cached.insert(0, DATA[: 3 * BLOCK], 50)
    cached.set_next_use(5 * BLOCK, 6 * BLOCK, 3)  # another process has taken it since
    assert not cached.insert(5 * BLOCK, DATA[5 * BLOCK : 6 * BLOCK], 60)
    other = cache.open_object("other", "e1", 2 * BLOCK, BLOCK)
    assert other.insert(0, content("other", 2 * BLOCK), 40)
    assert not cached.has(0, BLOCK)


def test_objects_of_one_block_leave_with_their_headers(open_cache: Opener) -> None:
    cache = open_cache(3 * 2 * BLOCK)
    objects = [cache.open_object(f"{URL}{number}", "e", BLOCK, BLOCK) for number in range(6)]
    for number, cached in enumerate(objects):
        assert cached.insert(0, content(cached.url, BLOCK), 100 - number)
        assert disk_use(cache) == cache.used() <= 3 * 2 * BLOCK + BLOCK
    assert [False, False, False] == [cached.has(0, 1) for cached in objects[:3]]
    for cached in objects[4:]:
        assert content(cached.url, BLOCK) == read(cached, 0, BLOCK)


def test_what_nobody_plans_to_use_leaves_first_and_the_oldest_of_it(open_cache: Opener) -> None:
    before = open_cache()
    old = [before.open_object(f"{URL}{number}", "e", BLOCK, BLOCK) for number in range(3)]
    for number, cached in enumerate(old):
        assert cached.insert(0, content(cached.url, BLOCK))
        os.utime(file_of(cached, before), (10 - number, 10 - number))
    names = [file_of(cached, before) for cached in old]
    before.close()

    cache = open_cache(4 * 2 * BLOCK)
    wanted = cache.open_object(old[2].url, "e", BLOCK, BLOCK)
    wanted.set_next_use(0, BLOCK, 5)
    for number in range(2):
        fresh = cache.open_object(f"new{number}", "e", BLOCK, BLOCK)
        assert fresh.insert(0, content(fresh.url, BLOCK), 1000)
    assert [True, False, True] == [name.exists() for name in names]


def test_blocks_of_another_living_job_leave_only_when_none_of_ones_own_is_left(open_cache: Opener) -> None:
    theirs = open_cache(job=1)
    other = theirs.open_object("other", "e", BLOCK, BLOCK)
    assert other.insert(0, content("other", BLOCK))

    ours = open_cache(2 * 2 * BLOCK + BLOCK, job=2)
    objects = [ours.open_object(f"{URL}{number}", "e", BLOCK, BLOCK) for number in range(3)]
    assert objects[0].insert(0, content(objects[0].url, BLOCK), 10)
    assert objects[1].insert(0, content(objects[1].url, BLOCK), 5)
    assert [True, False, True] == [other.has(0, 1), *(cached.has(0, 1) for cached in objects[:2])]

    take_file(ours.node, objects[1].name)
    ours._evictor.forget_block(objects[1].name, 0)
    assert objects[2].insert(0, content(objects[2].url, BLOCK), 10)
    large = ours.open_object("large", "e", 3 * BLOCK, 4 * BLOCK)
    assert large.insert(0, content("large", 3 * BLOCK), 1)
    assert not other.has(0, 1)


@pytest.mark.parametrize("blocks", [1, 4])
def test_what_is_fetched_for_an_object_that_leaves_meanwhile_does_not_count_as_cached(
    open_cache: Opener, blocks: int
) -> None:
    cache = open_cache()
    cached = cache.open_object(URL, "e1", blocks * BLOCK, BLOCK)
    with cached.claim(0, BLOCK) or pytest.fail("claimed by nobody"):
        assert take_file(cache.node, cached.name) is None
        assert file_of(cached, cache).exists()
        assert take_file(cache.node, cached.name, claimed=True)
        assert not file_of(cached, cache).exists()
        assert not cached.insert(0, DATA[:BLOCK])
    assert not cached.has(0, BLOCK)
    assert cache.used() == 0
    assert cached.insert(0, DATA[:BLOCK])
    assert DATA[:BLOCK] == read(cached, 0, BLOCK)
    assert disk_use(cache) == cache.used()


def test_an_object_does_not_leave_while_a_block_is_written(open_cache: Opener) -> None:
    cache = open_cache()
    cached = cache.open_object(URL, "e1", SIZE, BLOCK)
    assert cached.insert(0, DATA[: 4 * BLOCK])
    file = open_object_file(cache.node, cached.name, cached._identity, cached.shape, os.O_RDWR)
    assert begin_writing(cache.node, file, range(2, 3))
    assert take_file(cache.node, cached.name, claimed=True) is None
    end_writing(file, range(2, 3))
    assert 4096 + 4 * BLOCK == take_file(cache.node, cached.name, claimed=True)
    assert not begin_writing(cache.node, file, range(2, 3))


def test_an_object_that_left_takes_no_space_though_it_is_open(open_cache: Opener) -> None:
    cache = open_cache()
    other = open_cache(job=2)
    cached = cache.open_object(URL, "e1", SIZE, BLOCK)
    assert cached.insert(0, DATA)
    assert DATA == read(cached, 0, SIZE)
    with file_of(cached, cache).open("rb") as file:
        assert take_file(other.node, cached.name)
        assert os.fstat(file.fileno()).st_blocks == 0
    assert read(cached, 0, BLOCK) is None
    assert [(0, SIZE)] == cached.missing(0, SIZE)
    assert other.open_object(URL, "e1", SIZE, BLOCK).insert(0, DATA[:BLOCK])
    assert DATA[:BLOCK] == read(cached, 0, BLOCK)


def test_an_object_stays_whole_though_only_a_part_of_it_is_planned(open_cache: Opener) -> None:
    before = open_cache()
    assert before.open_object(URL, "e1", SIZE, BLOCK).insert(0, DATA[: 4 * BLOCK])
    before.close()

    cache = open_cache(4096 + 4 * BLOCK)
    cached = cache.open_object(URL, "e1", SIZE, BLOCK)
    cached.set_next_use(0, 2 * BLOCK, 7)
    assert not cached.insert(5 * BLOCK, DATA[5 * BLOCK : 7 * BLOCK], 8)
    assert DATA[: 4 * BLOCK] == read(cached, 0, 4 * BLOCK)


# -- the layout before -------------------------------------------------------------------------------------------------


def make_earlier(file: Path, version_at: int) -> None:
    """Has a file say that the version before wrote it."""
    with file.open("r+b") as stream:
        stream.seek(version_at)
        assert stream.read(1) == b"\x02"
        stream.seek(version_at)
        stream.write(b"\x01")


def test_objects_of_the_layout_before_are_removed_and_whole_files_stay(open_cache: Opener, said: list[str]) -> None:
    cache = open_cache()
    cached = cache.open_object(URL, "e1", SIZE, BLOCK)
    assert cached.insert(0, DATA)
    cache.whole_file("s3://b/a.h5", "e", 5, lambda file: file.write(b"12345") and None).release()
    cache.close()
    file = file_of(cached, cache)
    make_earlier(file, 7)
    make_earlier(cache.folder / MARKER, 15)
    mine = file.parent / f"{'0' * 31}.blocks"
    mine.write_bytes(b"the only copy")

    cache = open_cache()
    assert not file.exists()
    assert mine.exists()
    with cache.whole_file("s3://b/a.h5", "e", 5, pytest.fail) as path:
        assert path.read_bytes() == b"12345"
    cached = cache.open_object(URL, "e1", SIZE, BLOCK)
    assert read(cached, 0, BLOCK) is None
    assert cached.insert(0, DATA[:BLOCK])
    assert DATA[:BLOCK] == read(cached, 0, BLOCK)
    assert said == []
    make_earlier(file, 7)  # as an earlier version leaves it that has opened the folder since
    again = open_cache().open_object(URL, "e1", SIZE, BLOCK)
    assert read(again, 0, BLOCK) is None
    assert again.insert(0, DATA[:BLOCK])


def test_a_folder_that_an_earlier_version_uses_now_is_left_alone(open_cache: Opener, said: list[str]) -> None:
    cache = open_cache()
    cached = cache.open_object(URL, "e1", SIZE, BLOCK)
    assert cached.insert(0, DATA)
    make_earlier(cache.folder / MARKER, 15)
    later = open_cache().open_object(URL, "e1", SIZE, BLOCK)
    assert read(later, 0, BLOCK) is None
    assert not later.insert(0, DATA[:BLOCK])
    assert ["an earlier version" in text for text in said] == [True]
    assert file_of(cached, cache).exists()
