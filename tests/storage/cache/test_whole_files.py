"""Whole objects as local files: fetched once, pinned while they are used, and never seen half."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import BinaryIO

import pytest

from headrace.core.errors import MachineError
from tests.storage.cache.conftest import Opener
from tests.storage.cache.processes import BLOCK, children, content, disk_use, fork, status_of

URL = "https://user:secret@host/data/train.h5?sig=hidden"
SIZE = 5 * BLOCK + 7
DATA = content(URL, SIZE)


class Fetching:
    """A fetch that notes how often it was called."""

    def __init__(self, data: bytes = DATA, note: Path | None = None) -> None:
        self.data = data
        self.calls = 0
        self.note = note

    def __call__(self, file: BinaryIO) -> None:
        self.calls += 1
        if self.note is not None:
            with self.note.open("a") as note:
                print(os.getpid(), file=note)
        file.seek(len(self.data) // 2)
        file.write(self.data[len(self.data) // 2 :])
        file.seek(0)
        file.write(self.data[: len(self.data) // 2])


def never(file: BinaryIO) -> None:
    pytest.fail("fetched again")


def test_a_file_has_the_bytes_and_the_suffix_of_the_object_and_is_fetched_once(open_cache: Opener) -> None:
    cache = open_cache()
    fetching = Fetching()
    for _ in range(2):
        with cache.whole_file(URL, "e1", SIZE, fetching) as path:
            assert DATA == path.read_bytes()
            assert ".h5" == path.suffix
            assert "secret" not in str(path)
    assert 1 == fetching.calls
    assert disk_use(cache) <= cache.used() <= disk_use(cache) + BLOCK
    cache.close()
    again = open_cache()
    with again.whole_file(URL, "e1", SIZE, never) as path:
        assert DATA == path.read_bytes()
    with again.whole_file(URL, "e2", SIZE, fetching) as other:
        assert other != path
    for file in (again.folder / "whole").iterdir():
        assert b"secret" not in file.read_bytes()
        assert b"hidden" not in file.read_bytes()


@pytest.mark.parametrize(
    ("url", "suffix"),
    [
        ("s3://b/a.tar.gz", ".tar.gz"),
        ("s3://b/a", ""),
        ("s3://b/folder.zarr/a", ""),
        ("s3://b/a.record", ""),
        ("s3://b/a.new", ""),
        ("s3://b/a.$(reboot)", ""),
        ("s3://b/data.v2.npz", ".v2.npz"),
    ],
)
def test_suffixes(open_cache: Opener, url: str, suffix: str) -> None:
    with open_cache().whole_file(url, "e", SIZE, Fetching()) as path:
        assert suffix == "".join(path.suffixes)


def test_what_is_not_fetched_as_a_whole_is_not_there(open_cache: Opener) -> None:
    cache = open_cache()

    def fails(file: BinaryIO) -> None:
        file.write(b"some")
        raise ConnectionError("gone")

    with pytest.raises(MachineError, match="not fetched as a whole"):
        cache.whole_file(URL, "e", SIZE, Fetching(DATA[:-1]))
    with pytest.raises(ConnectionError):
        cache.whole_file(URL, "e", SIZE, fails)
    assert 1 == len([*(cache.folder / "whole").iterdir()])  # the lock
    with cache.whole_file(URL, "e", SIZE, Fetching()) as path:
        assert DATA == path.read_bytes()


def test_a_leased_file_stays_and_leaves_after_that(open_cache: Opener) -> None:
    cache = open_cache(12 * BLOCK)
    lease = cache.whole_file(URL, "e", SIZE, Fetching())
    with pytest.raises(MachineError, match="no room"):
        open_cache(12 * BLOCK, job=5).whole_file(URL + "2", "e", SIZE, Fetching())
    assert DATA == lease.path.read_bytes()

    lease.release()
    other = open_cache(12 * BLOCK, job=6)
    with other.whole_file(URL + "2", "e", SIZE, Fetching()) as path:
        assert DATA == path.read_bytes()
        assert not lease.path.exists()
        assert disk_use(cache) <= 12 * BLOCK


def test_blocks_leave_for_a_whole_file(open_cache: Opener) -> None:
    cache = open_cache(12 * BLOCK)
    cached = cache.open_object("s3://b/x", "e", 8 * BLOCK, BLOCK)
    assert cached.insert(0, content("s3://b/x", 8 * BLOCK), 0)
    with cache.whole_file(URL, "e", SIZE, Fetching()):
        assert disk_use(cache) <= 12 * BLOCK
    assert not cached.has(0, 8 * BLOCK)


def test_processes_fetch_a_file_once(open_cache: Opener, tmp_path: Path, said: list[str]) -> None:
    cache = open_cache()
    note = tmp_path / "note"

    def user() -> None:
        with cache.whole_file(URL, "e", SIZE, Fetching(note=note)) as path:
            assert DATA == path.read_bytes()

    with children(user, user, user, user) as pids:
        assert [0] * 4 == [status_of(pid) for pid in pids]
    assert 1 == len(note.read_text().split())


def test_a_killed_fetch_and_a_killed_lease_hold_nothing_back(open_cache: Opener) -> None:
    cache = open_cache(12 * BLOCK)
    said, says = os.pipe()

    def fetcher() -> None:
        def hangs(file: BinaryIO) -> None:
            file.write(DATA)
            file.flush()
            os.write(says, b"%d" % fork(signal.pause))
            signal.pause()

        cache.whole_file(URL, "e", SIZE, hangs)

    def lessee() -> None:
        with cache.whole_file(URL, "e", SIZE, never):
            os.write(says, b"x")
            signal.pause()

    with children(fetcher) as (pid,):
        grandchild = int(os.read(said, 20))
        try:
            os.kill(pid, signal.SIGKILL)
            with cache.whole_file(URL, "e", SIZE, Fetching()) as path:
                assert DATA == path.read_bytes()
        finally:
            os.kill(grandchild, signal.SIGKILL)

    with children(lessee) as (pid,):
        os.read(said, 1)
        with pytest.raises(MachineError):
            cache.whole_file(URL + "2", "e", SIZE, Fetching())
        os.kill(pid, signal.SIGKILL)
        status_of(pid)
        with cache.whole_file(URL + "2", "e", SIZE, Fetching()) as path:
            assert DATA == path.read_bytes()
    os.close(said)
    os.close(says)


def test_a_fetch_that_failed_holds_nothing_back_though_its_exception_is_kept(open_cache: Opener) -> None:
    def fails(file: BinaryIO) -> None:
        raise ConnectionError("reset")

    cache = open_cache()
    with pytest.raises(ConnectionError) as kept:
        cache.whole_file(URL, "e", SIZE, fails)
    with cache.whole_file(URL, "e", SIZE, Fetching()) as path:
        assert DATA == path.read_bytes()
    assert kept.value.__traceback__ is not None


def test_old_files_leave_for_each_new_one_and_their_records_bytes_with_them(open_cache: Opener) -> None:
    """Also where the list of what may leave, which was made before, is at its end."""
    cache = open_cache(100 * BLOCK)
    for number in range(120):
        data = content(str(number), 20_000)
        with cache.whole_file(f"https://host/{number}", "e", 20_000, Fetching(data)) as path:
            assert data == path.read_bytes()
    assert disk_use(cache) == cache.used() <= 100 * BLOCK


def test_a_file_of_another_in_the_place_of_a_record_is_an_error_and_stays(open_cache: Opener) -> None:
    cache = open_cache()
    with cache.whole_file(URL, "e", SIZE, Fetching()) as path:
        pass
    record = next((cache.folder / "whole").glob("*.record"))
    record.unlink()
    target = cache.folder / "mine"
    target.write_bytes(b"the only copy")
    record.symlink_to(target)
    with pytest.raises(MachineError, match="cannot cache a whole file"):
        cache.whole_file(URL, "e", SIZE, Fetching())
    assert b"the only copy" == target.read_bytes()
    assert path.exists()
