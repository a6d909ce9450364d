"""Folders of fetched files: removed with their owner, or by the next process after a kill; and nothing else is."""

from __future__ import annotations

import contextlib
import errno
import os
import resource
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

import headrace
from headrace.core.errors import MachineError
from headrace.storage.fetched_folder import FILES, LOCK, MARK, PREFIX, FetchedFolder, remove_abandoned
from tests.servers.faulty import FaultyServer

OWNER = """
import os, sys, tempfile
from headrace.storage.fetched_folder import FetchedFolder
folder = FetchedFolder()
with open(os.path.join(folder.path, "data"), "w") as file:
    file.write("data")
os.symlink(sys.argv[1], os.path.join(folder.path, "link"))
child = 0
if sys.argv[2] == "fork":
    child = os.fork()
    if child == 0:
        sys.stdin.read()
        os._exit(0)
print(os.path.dirname(folder.path), flush=True)
sys.stdin.read()
"""


@pytest.fixture
def temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder for temporary files."""
    folder = tmp_path / "temporary"
    folder.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(folder))
    monkeypatch.setenv("TMPDIR", str(folder))
    return folder


@contextlib.contextmanager
def owner(kept: Path, *, forks: bool) -> Iterator[tuple[subprocess.Popen[str], Path]]:
    """Runs a process with a folder of its own, in which a link leads to `kept`. A child ends with its stdin."""
    command = [sys.executable, "-c", OWNER, str(kept), "fork" if forks else "alone"]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True) as process:
        assert process.stdout is not None
        try:
            yield process, Path(process.stdout.readline().strip())
        finally:
            process.kill()


def names(folder: Path) -> set[str]:
    return {path.name for path in folder.iterdir()}


def test_what_a_killed_process_left_is_removed_by_the_next(temporary: Path, tmp_path: Path) -> None:
    kept = tmp_path / "kept"
    kept.mkdir()
    (kept / "of the cache").write_text("stays")
    with owner(kept, forks=False) as (process, folder):
        FetchedFolder().close()
        assert (folder / FILES / "data").read_text() == "data"
        process.send_signal(signal.SIGKILL)
        process.wait(60)
        assert folder.is_dir()
        mine = FetchedFolder()
        assert names(temporary) == {Path(mine.path).parent.name}
        mine.close()

    assert names(temporary) == set()
    assert (kept / "of the cache").read_text() == "stays"


def test_a_forked_child_of_a_killed_owner_keeps_the_folder(temporary: Path, tmp_path: Path) -> None:
    with owner(tmp_path, forks=True) as (process, folder):
        process.send_signal(signal.SIGKILL)
        process.wait(60)
        remove_abandoned(str(temporary))
        assert (folder / FILES / "data").read_text() == "data"
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.close()
        process.stdout.read()  # to the end of the child, which has its other end

    remove_abandoned(str(temporary))
    assert names(temporary) == set()


def test_a_forked_child_does_not_remove_the_folder_of_its_parent(temporary: Path) -> None:
    mine = FetchedFolder()
    child = os.fork()
    if child == 0:
        mine.close()
        os._exit(0)
    os.waitpid(child, 0)
    assert Path(mine.path).is_dir()
    # The child had a copy of the descriptor, and has closed it at its end: the lock is still the parent's.
    remove_abandoned(str(temporary))
    assert Path(mine.path).is_dir()
    mine.close()
    assert names(temporary) == set()


def abandoned(folder: Path, mark: bytes = MARK) -> Path:
    (folder / FILES).mkdir(parents=True)
    (folder / LOCK).write_bytes(mark)
    return folder


def test_only_what_headrace_made_is_removed(temporary: Path, tmp_path: Path) -> None:
    elsewhere = abandoned(tmp_path / "elsewhere")
    (temporary / f"{PREFIX}link").symlink_to(elsewhere)
    (temporary / f"{PREFIX}file").write_bytes(MARK)
    (temporary / f"{PREFIX}empty").mkdir()
    (temporary / f"{PREFIX}no-mark").mkdir()
    (temporary / f"{PREFIX}no-mark" / "results").write_text("mine")
    abandoned(temporary / f"{PREFIX}other-mark", b"mine")
    abandoned(temporary / f"{PREFIX}begun", MARK[:20])
    abandoned(temporary / f"{PREFIX}more-in-it").joinpath("results").write_text("mine")
    linked = temporary / f"{PREFIX}linked-lock"
    (linked / FILES).mkdir(parents=True)
    (linked / LOCK).symlink_to(elsewhere / LOCK)
    pipe = temporary / f"{PREFIX}pipe"
    (pipe / FILES).mkdir(parents=True)
    os.mkfifo(pipe / LOCK)
    before = names(temporary)
    gone = abandoned(temporary / f"{PREFIX}gone")
    remove_abandoned(str(temporary))
    assert not gone.exists()
    assert names(temporary) == before
    assert (elsewhere / FILES).is_dir()


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can make a folder of another user")
def test_folders_of_others_stay(temporary: Path) -> None:
    folder = abandoned(temporary / f"{PREFIX}theirs")
    os.chown(folder, 12345, 12345)
    mine = abandoned(temporary / f"{PREFIX}their-lock")
    os.chown(mine / LOCK, 12345, 12345)
    remove_abandoned(str(temporary))
    assert folder.is_dir()
    assert mine.is_dir()


def test_many_processes_begin_at_once_and_none_loses_its_folder(temporary: Path) -> None:
    program = (
        "import os\nfrom headrace.storage.fetched_folder import FetchedFolder\n"
        "for _ in range(200):\n"
        "    folder = FetchedFolder()\n"
        "    open(os.path.join(folder.path, 'x'), 'w').close()\n"
        "    assert os.path.exists(os.path.join(folder.path, 'x'))\n"
        "    folder.close()\n"
    )
    processes = [subprocess.Popen([sys.executable, "-c", program]) for _ in range(3)]
    assert [process.wait(120) for process in processes] == [0, 0, 0]
    assert names(temporary) == set()


# -- no room -----------------------------------------------------------------------------------------------------------


@pytest.fixture
def large(faulty_server: FaultyServer) -> tuple[str, dict[str, object], int]:
    """An archive of 2 MB: its URL, how it is opened, and its size."""
    (faulty_server.folder / "b").mkdir()
    path = faulty_server.folder / "b" / "large.npz"
    np.savez(path, x=np.random.default_rng(1).integers(0, 255, (200, 10_000), np.uint8))
    return "s3://b/large.npz", faulty_server.s3_options, path.stat().st_size


def check_told(error: MachineError, folder: Path, size: int) -> None:
    text = str(error)
    assert "no room for data that must be fetched whole" in text
    assert f"s3://b/large.npz, fetched into {folder}" in text or f"s3://b, fetched into {folder}" in text
    assert f"expected: {size:,} bytes" in text
    assert "bytes are free" in text
    assert "fix:      make room there, or name a folder on a larger disk" in text


@pytest.mark.parametrize("cached", [False, True])
def test_a_disk_without_room_is_named_with_a_fix(
    temporary: Path, tmp_path: Path, large: tuple[str, dict[str, object], int], cached: bool
) -> None:
    url, options, size = large
    cache = tmp_path / "cache" if cached else None
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    handler = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 20, before[1]))
    try:
        with pytest.raises(MachineError) as caught:
            headrace.open(url, options=options, cache_dir=cache)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
        signal.signal(signal.SIGXFSZ, handler)

    check_told(caught.value, cache or temporary, size)
    assert os.strerror(errno.EFBIG) in str(caught.value)
    assert ("TMPDIR" in str(caught.value)) != cached
    assert names(temporary) == set()


def test_a_small_disk_is_told_before_anything_is_fetched(
    small_disk: Path,
    large: tuple[str, dict[str, object], int],
    faulty_server: FaultyServer,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    url, options, size = large
    monkeypatch.setattr(tempfile, "tempdir", str(small_disk))
    with pytest.raises(MachineError) as caught:
        headrace.open(url, options=options)
    check_told(caught.value, small_disk, size)
    assert os.strerror(errno.ENOSPC) in str(caught.value)
    assert faulty_server.bytes_sent < size
    assert names(small_disk) == set()


def test_a_variable_that_names_no_folder_is_told_once(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", None)
    monkeypatch.setenv("TMPDIR", str(tmp_path / "nowhere"))
    for _ in range(2):
        FetchedFolder().close()
    (told,) = [record.getMessage() for record in caplog.records]
    assert told.startswith(f"TMPDIR={tmp_path / 'nowhere'} is no folder")


def test_no_folder_for_temporary_files_is_named_with_a_fix(
    large: tuple[str, dict[str, object], int], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    url, options, _ = large
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "nowhere"))
    with pytest.raises(MachineError) as caught:
        headrace.open(url, options=options)
    for word in (str(tmp_path / "nowhere"), "TMPDIR", "cache_dir="):
        assert word in str(caught.value)
