"""What the disk does to a cache: full, read-only, gone, used elsewhere. Nothing raises, and it is said once."""

from __future__ import annotations

import os
import resource
import shutil
import signal
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from headrace.core.errors import MachineError, UsageError
from headrace.storage.cache import DiskCache
from headrace.storage.cache.marker import MAGIC, MARKER
from tests.servers.parent import bound_to_this_process
from tests.storage.cache.conftest import Opener
from tests.storage.cache.processes import BLOCK, content, disk_use, file_of, read

SIZE = 40 * BLOCK
DATA = content("s3://b/x", SIZE)


@dataclass
class Disk:
    """A file system of its own, which is there as long as a process lives in whose view it is mounted."""

    folder: Path
    """How it is reached from elsewhere."""

    inside: Path
    holder: int

    def make_read_only(self) -> None:
        view = ["nsenter", "-t", str(self.holder), "-m"]
        subprocess.run([*view, "mount", "-o", "remount,ro", str(self.inside)], check=True)


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Disk]:
    """A file system of 128 KiB, where this user may mount one. It goes with this process, also a killed one."""
    folder = tmp_path / "disk"
    folder.mkdir()
    script = 'mount -t tmpfs -o size=128k none "$0" && echo mounted && exec cat'
    command = ["unshare", "--mount", "sh", "-c", script, str(folder)]
    if shutil.which("unshare") is None or shutil.which("nsenter") is None:
        pytest.skip("there are no programs unshare and nsenter")

    pipe = subprocess.PIPE
    with subprocess.Popen(bound_to_this_process(command), stdin=pipe, stdout=pipe, stderr=subprocess.DEVNULL) as holder:
        assert holder.stdout is not None
        if holder.stdout.readline() != b"mounted\n":
            pytest.skip("this user cannot mount a file system")
        yield Disk(Path(f"/proc/{holder.pid}/root", *folder.parts[1:]), folder, holder.pid)
    assert not list(folder.iterdir())


def fill(cache: DiskCache) -> list[bool]:
    cached = cache.open_object("s3://b/x", "e", SIZE, BLOCK)
    return [cached.insert(start, DATA[start : start + BLOCK]) for start in range(0, SIZE, BLOCK)]


def check(cache: DiskCache) -> None:
    cached = cache.open_object("s3://b/x", "e", SIZE, BLOCK)
    for start in range(0, SIZE, BLOCK):
        assert read(cached, start, start + BLOCK) in (None, DATA[start : start + BLOCK])


def test_a_full_disk_is_said_once_and_the_rest_is_not_stored(
    open_cache: Opener, said: list[str], small_disk: Disk
) -> None:
    cache = open_cache(folder=small_disk.folder / "cache")
    inserted = fill(cache)
    assert 10 < sum(inserted) < 40
    check(cache)
    assert disk_use(cache) == cache.used()
    assert ["No space left" in text for text in said] == [True]
    small = cache.open_object("s3://b/y", "e", 3 * BLOCK, 8 * BLOCK)
    assert not small.insert(0, DATA[: 3 * BLOCK])
    assert read(small, 0, 10) is None
    cache.close()


def test_a_limit_of_file_sizes_is_trouble_of_the_same_kind(open_cache: Opener, said: list[str]) -> None:
    cache = open_cache()
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    handler = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (20 * BLOCK, before[1]))
    try:
        inserted = fill(cache)
        check(cache)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
        signal.signal(signal.SIGXFSZ, handler)
    assert not any(inserted)
    assert 1 == len(said)
    assert all(fill(cache))


def test_a_folder_that_is_removed_while_in_use_counts_as_empty(open_cache: Opener, said: list[str]) -> None:
    cache = open_cache("1MB")
    assert all(fill(cache))
    shutil.rmtree(cache.folder)
    check(cache)
    small = cache.open_object("s3://b/y", "e", BLOCK, BLOCK)
    assert not small.insert(0, DATA[:BLOCK])
    assert not small.has(0, BLOCK)
    claim = small.claim(0, BLOCK)
    assert claim is not None
    claim.release()
    assert ["gone" in text for text in said] == [True]


def test_a_cache_on_a_disk_that_is_read_only_is_read(open_cache: Opener, said: list[str], small_disk: Disk) -> None:
    cache = open_cache(folder=small_disk.folder / "cache")
    cached = cache.open_object("s3://b/x", "e", SIZE, BLOCK)
    assert cached.insert(0, DATA[:BLOCK])
    cache.close()
    small_disk.make_read_only()

    cache = open_cache(folder=small_disk.folder / "cache")
    cached = cache.open_object("s3://b/x", "e", SIZE, BLOCK)
    assert DATA[:BLOCK] == read(cached, 0, BLOCK)
    assert not cached.insert(BLOCK, DATA[BLOCK : 2 * BLOCK])
    assert [(BLOCK, SIZE)] == cached.missing(0, SIZE)
    assert ["cannot be written" in text for text in said] == [True]
    cache.close()


def test_a_folder_that_cannot_be_made_is_an_error_at_opening(open_cache: Opener, tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.write_text("mine")
    for folder in (file, file / "cache"):
        with pytest.raises(UsageError, match="cannot open the cache"):
            open_cache(folder=folder)
    assert "mine" == file.read_text()


@pytest.mark.parametrize("left", [bytes(68), MAGIC[:10], b""], ids=["zeros", "cut", "empty"])
def test_a_marker_that_a_power_cut_has_damaged_is_written_anew(open_cache: Opener, left: bytes) -> None:
    cache = open_cache()
    cached = cache.open_object("s3://b/x", "e", BLOCK, BLOCK)
    assert cached.insert(0, content("s3://b/x", BLOCK))
    cache.close()
    (cache.folder / MARKER).write_bytes(left)
    again = open_cache()
    assert content("s3://b/x", BLOCK) == read(again.open_object("s3://b/x", "e", BLOCK, BLOCK), 0, BLOCK)
    assert disk_use(again) == again.used()


def test_an_error_at_opening_holds_no_lock_though_it_is_kept(
    open_cache: Opener, monkeypatch: pytest.MonkeyPatch
) -> None:
    def unknown() -> bytes:
        raise RuntimeError("no boot")

    with monkeypatch.context() as patched, pytest.raises(RuntimeError) as kept:
        patched.setattr("headrace.storage.cache.node.boot", unknown)
        open_cache()
    assert open_cache().node.writable
    assert kept.value.__traceback__ is not None


def test_a_limit_that_the_marker_has_no_room_for_is_an_error(open_cache: Opener) -> None:
    with pytest.raises(UsageError, match="limit"):
        open_cache(1 << 64)
    assert open_cache(1 << 62).node.writable


def test_a_marker_of_somebody_else_is_an_error_at_opening(open_cache: Opener, tmp_path: Path) -> None:
    (tmp_path / "cache").mkdir()
    (tmp_path / "cache" / MARKER).write_text("mine")
    with pytest.raises(UsageError, match="not a cache of headrace"):
        open_cache()
    assert "mine" == (tmp_path / "cache" / MARKER).read_text()


def test_other_files_in_the_folder_stay(open_cache: Opener, tmp_path: Path) -> None:
    mine = tmp_path / "cache" / "mine" / "a.tar"
    mine.parent.mkdir(parents=True)
    mine.write_bytes(b"the only copy")
    cache = open_cache("100kB")
    fill(cache)
    cache.close()
    open_cache("50kB")
    assert b"the only copy" == mine.read_bytes()


def test_a_folder_that_another_machine_uses_now_is_left_alone(
    open_cache: Opener, said: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    cache = open_cache()
    assert all(fill(cache))
    monkeypatch.setattr("headrace.storage.cache.node.boot", lambda: b"another machine!")
    elsewhere = open_cache()
    cached = elsewhere.open_object("s3://b/x", "e", SIZE, BLOCK)
    assert read(cached, 0, BLOCK) is None
    assert not cached.insert(0, DATA[:BLOCK])
    assert ["another machine" in text for text in said] == [True]
    with pytest.raises(MachineError, match="cannot cache a whole file"):
        elsewhere.whole_file("s3://b/x.h5", "e", 5, pytest.fail)
    assert file_of(cached, cache).exists()


def test_a_damaged_record_of_the_use_is_made_anew(open_cache: Opener) -> None:
    cache = open_cache()
    assert all(fill(cache))
    cache.close()
    os.truncate(cache.folder / MARKER, 20)
    cache = open_cache()
    assert disk_use(cache) == cache.used()
    check(cache)
