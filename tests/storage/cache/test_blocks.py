"""Blocks of objects: what was inserted comes back, and nothing else ever does."""

from __future__ import annotations

import random
import threading
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from headrace.core.errors import UsageError
from headrace.storage.cache import DiskCache
from headrace.storage.cache.removal import take_file
from tests.belongings import open_files
from tests.storage.cache.conftest import Opener
from tests.storage.cache.processes import BLOCK, content, disk_use, file_of, fork, read, status_of

SIZE = 10 * BLOCK + 100
URL = "s3://bucket/train/000.tar"
DATA = content(URL, SIZE)


def test_what_was_inserted_is_read_and_the_rest_is_missing(open_cache: Opener) -> None:
    cached = open_cache().open_object(URL, "e1", SIZE, BLOCK)
    assert [(0, SIZE)] == cached.missing(0, SIZE)
    assert cached.insert(2 * BLOCK, DATA[2 * BLOCK : 4 * BLOCK])
    assert cached.insert(10 * BLOCK, DATA[10 * BLOCK :])

    assert [(0, 2 * BLOCK), (4 * BLOCK, 10 * BLOCK)] == cached.missing(0, SIZE)
    assert [(BLOCK, 2 * BLOCK)] == cached.missing(BLOCK + 5, 3 * BLOCK)
    assert DATA[2 * BLOCK + 7 : 4 * BLOCK - 9] == read(cached, 2 * BLOCK + 7, 4 * BLOCK - 9)
    assert DATA[SIZE - 50 :] == read(cached, SIZE - 50, SIZE)
    assert read(cached, 4 * BLOCK - 1, 4 * BLOCK + 1) is None
    assert cached.has(2 * BLOCK, 4 * BLOCK)
    assert not cached.has(2 * BLOCK, 4 * BLOCK + 1)


@pytest.mark.parametrize("size", [0, 1, BLOCK - 1, BLOCK])
def test_a_small_object_is_one_block(open_cache: Opener, size: int) -> None:
    cache = open_cache()
    cached = cache.open_object(URL, "e1", size, BLOCK)
    assert (not size) == cached.has(0, size)
    assert cached.insert(0, DATA[:size])
    assert DATA[:size] == read(cached, 0, size)
    assert DATA[size // 2 : size] == read(cached, size // 2, size)
    assert DATA[: size // 2] == read(cached, 0, size // 2)
    assert cache.used() == disk_use(cache)


def test_nothing_is_made_on_the_disk_before_the_first_block(open_cache: Opener, tmp_path: Path) -> None:
    cache = open_cache()
    cached = cache.open_object(URL, "e1", SIZE, BLOCK)
    assert not cached.has(0, SIZE)
    with cached.claim(0, SIZE) or pytest.fail("claimed by nobody"):
        assert file_of(cached, cache).exists()
    assert not file_of(cached, cache).exists()
    assert 0 == cache.used()


def test_other_versions_share_no_blocks(open_cache: Opener) -> None:
    cache = open_cache()
    assert cache.open_object(URL, "e1", SIZE, BLOCK).insert(0, DATA[:BLOCK])
    for url, etag, size in ((URL + "x", "e1", SIZE), (URL, "e2", SIZE), (URL, "e1", SIZE + 1)):
        assert not cache.open_object(url, etag, size, BLOCK).has(0, 1)
    assert cache.open_object(URL, "e1", SIZE, BLOCK).has(0, 1)


def test_blocks_are_found_by_a_later_use(open_cache: Opener) -> None:
    first = open_cache()
    assert first.open_object(URL, "e1", SIZE, BLOCK).insert(0, DATA[: 2 * BLOCK])
    first.close()

    second = open_cache()
    assert disk_use(second) == second.used()
    assert DATA[: 2 * BLOCK] == read(second.open_object(URL, "e1", SIZE, BLOCK), 0, 2 * BLOCK)


def test_nothing_secret_is_written(open_cache: Opener) -> None:
    cache = open_cache()
    url = "https://user:password@host/a.tar?X-Signature=hidden#token"
    cached = cache.open_object(url, "e1", SIZE, BLOCK)
    assert cached.insert(0, DATA[:BLOCK])
    written = file_of(cached, cache).read_bytes() + str(file_of(cached, cache)).encode() + repr(cached).encode()
    assert b"https://host/a.tar" in written
    for secret in (b"user", b"password", b"hidden", b"token"):
        assert secret not in written


def test_data_that_are_not_whole_blocks_are_refused(open_cache: Opener) -> None:
    cached = open_cache().open_object(URL, "e1", SIZE, BLOCK)
    for start, stop in ((1, BLOCK), (0, BLOCK - 1), (10 * BLOCK, SIZE - 1), (10 * BLOCK, SIZE + BLOCK)):
        with pytest.raises(ValueError, match="whole blocks"):
            cached.insert(start, bytes(stop - start))


@pytest.mark.parametrize("block", [0, 2048, 5000, 1 << 24])
def test_sizes_of_blocks_are_powers_of_two(open_cache: Opener, block: int) -> None:
    with pytest.raises(UsageError, match="power of two"):
        open_cache().open_object(URL, "e1", SIZE, block)


def test_a_limit_below_one_block_is_refused(open_cache: Opener) -> None:
    with pytest.raises(UsageError, match="limit="):
        open_cache(4096)
    cache = open_cache("100kB")
    with pytest.raises(UsageError, match="room for one block"):
        cache.open_object(URL, "e1", 1 << 20, 1 << 17)


# -- a file against a model --------------------------------------------------------------------------------------------

STEPS = st.lists(
    st.tuples(st.sampled_from(["insert", "remove", "read", "reopen"]), st.integers(0, 10), st.integers(1, 4)),
    max_size=25,
)


@settings(deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=60)
@given(STEPS, st.sampled_from([SIZE, 3 * BLOCK, BLOCK, 100]), st.integers(0, 1 << 30))
def test_a_cache_says_what_a_dictionary_says(
    tmp_path: Path, steps: list[tuple[str, int, int]], size: int, salt: int
) -> None:
    url = f"s3://b/{salt}/{size}"
    data = content(url, size)
    cache = DiskCache(tmp_path / "model", say=pytest.fail)
    cached = cache.open_object(url, "e", size, BLOCK)
    blocks = cached.shape.blocks
    model: set[int] = {n for n in range(blocks) if cached.has(n * BLOCK, n * BLOCK + 1)}
    for step, first, count in steps:
        numbers = range(first % blocks, min(first % blocks + count, blocks))
        start, stop = cached.shape.start_of(numbers[0]), cached.shape.stop_of(numbers[-1])
        if step == "insert":
            assert cached.insert(start, data[start:stop])
            model |= {*numbers}
        elif step == "remove":
            take_file(cache.node, cached.name)
            model.clear()
        elif step == "reopen":
            cache.close()
            cache = DiskCache(tmp_path / "model", say=pytest.fail)
            cached = cache.open_object(url, "e", size, BLOCK)
        found = read(cached, start, stop)
        assert found == (data[start:stop] if model.issuperset(numbers) else None)
        assert {n for n in range(blocks) if cached.has(n * BLOCK, n * BLOCK + 1)} == model
        for n in range(blocks):
            begin, end = cached.shape.start_of(n), cached.shape.stop_of(n)
            assert read(cached, begin, end) == (data[begin:end] if n in model else None)
        assert disk_use(cache) == cache.used()
    take_file(cache.node, cached.name)
    cache.close()


# -- damage ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("size", [SIZE, BLOCK])
def test_damaged_bytes_anywhere_are_never_delivered(open_cache: Opener, size: int) -> None:
    draw = random.Random(0)
    for _ in range(150):
        cache = open_cache()
        cached = cache.open_object(URL, "e1", size, BLOCK)
        assert cached.insert(0, DATA[:size])
        file = file_of(cached, cache)
        cache.close()

        whole = bytearray(file.read_bytes())
        region = draw.choice([range(8, 2048), range(2048, 4096), range(4096, len(whole))])
        start = draw.choice(region)
        for position in range(start, min(start + draw.choice([1, 8, 5000]), len(whole))):
            whole[position] = draw.choice([0, 255, whole[position] ^ 1 << draw.randrange(8)])
        if draw.random() < 0.1:
            del whole[draw.randrange(len(whole)) :]
        file.write_bytes(whole)

        cache = open_cache()
        cached = cache.open_object(URL, "e1", size, BLOCK)
        for begin in range(0, size, BLOCK):
            end = min(begin + BLOCK, size)
            assert read(cached, begin, end) in (None, DATA[begin:end])
        assert cached.insert(0, DATA[:size])
        assert DATA[:size] == read(cached, 0, size)
        cache.close()


def test_blocks_that_never_reached_the_disk_are_dropped_and_fetched_again(open_cache: Opener) -> None:
    cache = open_cache()
    cached = cache.open_object(URL, "e1", SIZE, BLOCK)
    assert cached.insert(0, DATA)
    with file_of(cached, cache).open("r+b") as file:
        file.seek(4096 + BLOCK)
        file.write(bytes(2 * BLOCK))
    cache.close()

    cache = open_cache()
    cached = cache.open_object(URL, "e1", SIZE, BLOCK)
    assert DATA[:BLOCK] == read(cached, 0, BLOCK)
    assert read(cached, 0, 2 * BLOCK) is None
    assert read(cached, 2 * BLOCK, 3 * BLOCK) is None
    assert [(BLOCK, 3 * BLOCK)] == cached.missing(0, SIZE)
    assert disk_use(cache) == cache.used()


def test_a_block_is_verified_once_in_a_use_whatever_process_reads_it(
    open_cache: Opener, monkeypatch: pytest.MonkeyPatch
) -> None:
    cache = open_cache()
    assert cache.open_object(URL, "e1", SIZE, BLOCK).insert(0, DATA)
    cache.close()

    verified = []
    crc32 = __import__("zlib").crc32
    monkeypatch.setattr("headrace.storage.cache.blocks.zlib.crc32", lambda *a: verified.append(len(a[0])) or crc32(*a))
    first = open_cache().open_object(URL, "e1", SIZE, BLOCK)
    second = open_cache().open_object(URL, "e1", SIZE, BLOCK)
    for cached in (first, second, first):
        assert DATA[: 3 * BLOCK] == read(cached, 0, 3 * BLOCK)
    assert 3 == verified.count(BLOCK)


@pytest.mark.parametrize("size", [SIZE, BLOCK])
def test_a_file_under_the_name_of_another_object_is_not_taken_for_it(open_cache: Opener, size: int) -> None:
    cache = open_cache()
    cached = cache.open_object(URL, "e1", size, BLOCK)
    other = cache.open_object("s3://bucket/other", "e1", size, BLOCK)
    assert cached.insert(0, DATA[:size])
    assert other.insert(0, content(other.url, size))
    cache.close()
    file_of(other, cache).rename(file_of(cached, cache))

    cache = open_cache()
    assert read(cache.open_object(URL, "e1", size, BLOCK), 0, size) is None
    assert not file_of(cached, cache).exists()


@pytest.mark.parametrize("left", [b"", bytes(4096), bytes(100)])
def test_a_file_that_a_power_cut_left_empty_is_made_anew(open_cache: Opener, left: bytes) -> None:
    cache = open_cache()
    cached = cache.open_object(URL, "e1", SIZE, BLOCK)
    file_of(cached, cache).parent.mkdir(parents=True)
    file_of(cached, cache).write_bytes(left)
    assert read(cached, 0, BLOCK) is None
    assert cached.insert(0, DATA[:BLOCK])
    assert DATA[:BLOCK] == read(cached, 0, BLOCK)


# -- what is not the cache's -------------------------------------------------------------------------------------------


def test_a_foreign_file_in_the_place_of_an_object_is_left_alone(open_cache: Opener, said: list[str]) -> None:
    cache = open_cache(10 * BLOCK)
    cached = cache.open_object(URL, "e1", SIZE, BLOCK)
    file = file_of(cached, cache)
    file.parent.mkdir(parents=True)
    file.write_bytes(b"the only copy" * 1000)
    other = file.parent / "notes.txt"
    other.write_bytes(b"also the only copy")
    for _ in range(2):
        assert read(cached, 0, BLOCK) is None
        assert not cached.insert(0, DATA[:BLOCK])
    for number in range(10):
        filler = cache.open_object(f"f{number}", "e", BLOCK, BLOCK)
        filler.insert(0, content(filler.url, BLOCK), 10 - number)
    assert b"the only copy" * 1000 == file.read_bytes()
    assert b"also the only copy" == other.read_bytes()
    assert ["none of the cache's files" in text for text in said] == [True]


@pytest.mark.parametrize("kind", ["file", "folder", "objects"])
def test_links_are_never_followed(open_cache: Opener, tmp_path: Path, kind: str) -> None:
    elsewhere = open_cache(folder=tmp_path / "elsewhere")
    original = elsewhere.open_object(URL, "e1", SIZE, BLOCK)
    assert original.insert(0, DATA)
    target = file_of(original, elsewhere)

    cache = open_cache(20 * BLOCK)
    cached = cache.open_object(URL, "e1", SIZE, BLOCK)
    link = file_of(cached, cache)
    if kind == "file":
        link.parent.mkdir(parents=True)
        link.symlink_to(target)
    elif kind == "folder":
        link.parent.parent.mkdir(parents=True)
        link.parent.symlink_to(target.parent)
    else:
        link.parent.parent.symlink_to(target.parent.parent)

    assert read(cached, 0, BLOCK) is None
    assert not cached.insert(0, DATA[:BLOCK])
    for number in range(20):
        filler = cache.open_object(f"f{number}", "e", BLOCK, BLOCK)
        filler.insert(0, content(filler.url, BLOCK), 100 - number)
    assert target.exists()
    assert DATA == read(original, 0, SIZE)


# -- forks and threads -------------------------------------------------------------------------------------------------


def test_a_forked_child_reads_and_inserts_with_descriptors_of_its_own(open_cache: Opener) -> None:
    cache = open_cache()
    cached = cache.open_object(URL, "e1", SIZE, BLOCK)
    assert cached.insert(0, DATA[: 4 * BLOCK])
    assert DATA[:BLOCK] == read(cached, 0, BLOCK)
    claim = cached.claim(8 * BLOCK, 9 * BLOCK)
    assert claim is not None

    def child() -> None:
        assert DATA[: 4 * BLOCK] == read(cached, 0, 4 * BLOCK)
        assert cached.claim(8 * BLOCK, 9 * BLOCK) is None
        claim.release()
        assert cached.claim(8 * BLOCK, 9 * BLOCK) is None
        assert cached.insert(5 * BLOCK, DATA[5 * BLOCK : 6 * BLOCK])

    assert 0 == status_of(fork(child))
    assert cached.has(5 * BLOCK, 6 * BLOCK)
    assert cached.insert(8 * BLOCK, DATA[8 * BLOCK : 9 * BLOCK])
    claim.release()
    assert cached.claim(8 * BLOCK, 9 * BLOCK) is not None


def test_threads_read_and_evict_at_the_same_time(open_cache: Opener) -> None:
    cache = open_cache()
    objects = [cache.open_object(f"{URL}{number}", "e", SIZE, BLOCK) for number in range(80)]
    contents = [content(cached.url, SIZE) for cached in objects]
    for cached, data in zip(objects, contents, strict=True):
        assert cached.insert(0, data)
    wrong = []
    hits = []

    def reader(seed: int) -> None:
        draw = random.Random(seed)
        for _ in range(1500):
            index = draw.randrange(len(objects))
            start = draw.randrange(SIZE - 2 * BLOCK)
            found = read(objects[index], start, start + 2 * BLOCK)
            if found is None:
                first = start // BLOCK * BLOCK
                stop = min(first + 3 * BLOCK, SIZE)
                objects[index].insert(first, contents[index][first:stop])
            elif found != contents[index][start : start + 2 * BLOCK]:
                wrong.append((index, start))
            else:
                hits.append(index)
            if draw.random() < 0.05:
                take_file(cache.node, objects[index].name, claimed=True)

    threads = [threading.Thread(target=reader, args=(seed,)) for seed in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []
    assert len(hits) > 500
    assert disk_use(cache) == cache.used()


def test_few_files_stay_open(open_cache: Opener, tmp_path: Path) -> None:
    cache = open_cache()
    before = len(open_files(tmp_path))
    for number in range(150):
        cached = cache.open_object(f"{URL}{number}", "e", 2 * BLOCK, BLOCK)
        assert cached.insert(0, DATA[: 2 * BLOCK])
        assert DATA[:5] == read(cached, 0, 5)
    assert 0 < len(open_files(tmp_path)) - before <= 64 + 17
