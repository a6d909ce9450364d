"""`headrace cache`: it shows what is there, finds what is wrong, and removes nothing that is not the cache's."""

from __future__ import annotations

import io
import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from headrace.storage.cache import DiskCache
from tests.storage.cache.processes import BLOCK, content, file_of

from .conftest import Command

SIZE = 4 * BLOCK
EVIL = "s3://b/\x1b[2J[red]/a"


@pytest.fixture
def cache(tmp_path: Path) -> Iterator[DiskCache]:
    """A cache of a complete object, one of which a half is there, a small one, and a whole file."""
    cache = DiskCache(tmp_path / "cache", "1MB")
    for url, stop in (("s3://b/train/a.tar", SIZE), (EVIL, 2 * BLOCK)):
        assert cache.open_object(url, "e", SIZE, BLOCK).insert(0, content(url, SIZE)[:stop])
    assert cache.open_object("s3://b/train/b.jpg", "e", 100, BLOCK).insert(0, bytes(100))
    cache.whole_file("s3://b/h5/c.h5", "e", 5, lambda file: file.write(b"12345") and None).release()
    yield cache
    cache.close()


def damage(cache: DiskCache) -> None:
    cached = cache.open_object("s3://b/train/a.tar", "e", SIZE, BLOCK)
    with file_of(cached, cache).open("r+b") as file:
        file.seek(4096 + BLOCK + 5)
        file.write(b"wrong")
    next((cache.folder / "whole").glob("*.h5")).write_bytes(b"1x345")


def test_show_says_what_is_there_and_who_uses_it(cache: DiskCache, command: Command) -> None:
    status, out, _ = command("cache", "show", cache.folder)
    assert 0 == status
    for text in ("of 1.00 MB (5%)", "3 objects: 2 complete, 1 in parts", "7 blocks", "1 whole file", "s3://b/train"):
        assert text in out
    assert "1 job in use now" in out
    assert "\x1b[2J" not in out
    cache.close()
    assert "no job uses it now" in command("cache", "show", cache.folder)[1]


def test_show_as_json_by_the_environment(cache: DiskCache, command: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    (cache.folder / "objects" / "a").mkdir(exist_ok=True)
    (cache.folder / "objects" / "a" / "mine").write_text("mine")
    monkeypatch.setenv("HEADRACE_CACHE_DIR", str(cache.folder))
    status, out, _ = command("cache", "show", "--json")
    found = json.loads(out)
    assert (0, 2, 1, 1, 7) == (status, *(found[name] for name in ("complete", "partial", "whole_files", "blocks")))
    assert (10**6, 1, 1) == (found["limit"], len(found["jobs"]), found["other_files"])
    assert 2 == found["by_prefix"]["s3://b/train"][0]


def test_check_drops_what_is_wrong_and_ends_with_status_1(cache: DiskCache, command: Command) -> None:
    assert 0 == command("cache", "check", cache.folder)[0]
    cached = cache.open_object("s3://b/train/a.tar", "e", SIZE, BLOCK)
    assert cached.read_into(0, SIZE, bytearray(SIZE))
    damage(cache)
    status, out, _ = command("cache", "check", cache.folder)
    assert 1 == status
    assert "2 problems" in out
    assert "s3://b/train/a.tar: wrong bytes 4,096 to 8,192" in out
    assert "s3://b/h5/c.h5: the file is wrong" in out

    status, out, _ = command("cache", "check", "--json", cache.folder)
    assert (0, True) == (status, json.loads(out)["sound"])
    assert [(0, SIZE)] == cached.missing(0, SIZE)
    assert not cached.read_into(0, BLOCK, bytearray(BLOCK))
    assert [] == [*(cache.folder / "whole").iterdir()]


def test_check_finds_a_damaged_header(cache: DiskCache, command: Command) -> None:
    file = file_of(cache.open_object("s3://b/train/a.tar", "e", SIZE, BLOCK), cache)
    whole = file.read_bytes()
    file.write_bytes(whole.replace(b"s3://b/train/a.tar", b"s3://b/train/b.tar"))
    cache.close()
    status, out, _ = command("cache", "check", cache.folder)
    assert 1 == status
    assert "damaged header" in out
    assert not file.exists()


def test_check_keeps_the_limit_that_jobs_gave(cache: DiskCache, command: Command) -> None:
    cache.close()
    assert 0 == command("cache", "check", cache.folder)[0]
    assert "of 1.00 MB" in command("cache", "show", cache.folder)[1]


def test_clear_removes_the_caches_files_only(cache: DiskCache, command: Command) -> None:
    mine = [cache.folder / "mine", cache.folder / "objects" / "a" / "mine", cache.folder / "whole" / f"{'0' * 31}.h5"]
    for file in mine:
        file.parent.mkdir(exist_ok=True)
        file.write_bytes(b"the only copy")
    link = cache.folder / "objects" / "a" / f"{'0' * 31}.blocks"
    link.symlink_to(mine[0])
    cache.close()
    status, out, _ = command("cache", "clear", cache.folder, "--yes")
    assert 0 == status
    assert "removed" in out
    left = {file for file in cache.folder.rglob("*") if not file.is_dir()}
    assert {*mine, link} == left
    for file in mine:
        assert b"the only copy" == file.read_bytes()


def test_clear_refuses_a_cache_in_use_and_can_be_forced(cache: DiskCache, command: Command) -> None:
    status, _, err = command("cache", "clear", cache.folder, "--yes")
    assert 2 == status
    assert "in use" in err
    cached = cache.open_object("s3://b/train/a.tar", "e", SIZE, BLOCK)
    assert cached.has(0, SIZE)
    assert 0 == command("cache", "clear", cache.folder, "--yes", "--force")[0]
    assert [] == [*cache.folder.iterdir()]
    assert not cached.has(0, SIZE)


@pytest.mark.parametrize(("answer", "left"), [("y\n", False), ("n\n", True)])
def test_clear_asks(
    cache: DiskCache, command: Command, monkeypatch: pytest.MonkeyPatch, answer: str, left: bool
) -> None:
    cache.close()
    monkeypatch.setattr("sys.stdin", io.StringIO(answer))
    status, out, _ = command("cache", "clear", cache.folder)
    assert int(left) == status
    assert "Remove 4 objects" in out
    assert left == bool([*cache.folder.iterdir()])


@pytest.mark.parametrize("verb", ["show", "check", "clear"])
def test_what_is_no_cache_is_refused_and_stays_as_it_is(verb: str, command: Command, tmp_path: Path) -> None:
    (tmp_path / "headrace-cache").write_text("mine")
    (tmp_path / "objects").mkdir()
    status, _, err = command("cache", verb, tmp_path)
    assert 2 == status
    assert "not a cache of headrace" in err
    assert {"headrace-cache", "objects"} == {file.name for file in tmp_path.iterdir()}
    assert 1 == command("cache", verb, tmp_path / "nosuch")[0]
    assert 2 == command("cache", verb, "s3://bucket/cache")[0]
    assert 2 == command("cache", verb)[0]


def test_the_command_alone_prints_its_help(command: Command) -> None:
    status, out, _ = command("cache")
    assert 2 == status
    for verb in ("show", "check", "clear"):
        assert verb in out
