"""A disk that others have filled: what frees a journal's space needs none of it, wherever a process may die."""

from __future__ import annotations

import contextlib
import errno
import json
import logging
import os
import shutil
import socket
import threading
from pathlib import Path

import pytest

import headrace
from headrace.core.errors import StorageError
from headrace.sources.journal import folder
from headrace.sources.journal.folder import IDS, TRIM, segments_in
from headrace.sources.journal.journal import JournalWriter
from headrace.sources.journal.reader import JournalReader
from headrace.sources.journal.segments import segment_name
from tests.sources.reading import opened, take, until
from tests.sources.test_receiving import Broker, source_of

pytestmark = pytest.mark.timeout(60)

SIZE = 10_000


def payloads(start: int, stop: int) -> list[bytes]:
    return [number.to_bytes(SIZE, "big") for number in range(start, stop)]


def fill(disk: Path) -> Path:
    """Writes a file that takes all that the disk has, and returns it."""
    path = disk / "other"
    with path.open("ab", buffering=0) as file:
        try:
            while True:
                file.write(bytes(4096))
        except OSError as error:
            assert error.errno == errno.ENOSPC
    return path


def write(writer: JournalWriter, values: list[bytes], ids: list[bytes] | None = None) -> None:
    while values:
        taken = writer.append(values, ids)
        assert taken
        writer.sync()
        values = values[taken:]
        if ids is not None:
            ids = ids[taken:]


def free(disk: Path) -> int:
    return shutil.disk_usage(disk).free


@pytest.mark.parametrize("count", [1, 10])
def test_a_journal_that_nobody_has_trimmed_yet_frees_its_space(small_disk: Path, count: int) -> None:
    writer = JournalWriter(small_disk / "journal", limit=400_000)
    reader = JournalReader(writer.folder)
    write(writer, payloads(0, count))
    # A reader that has a segment open must not hold its space.
    assert reader.read(0, 1 << 30) == payloads(0, count)
    fill(small_disk)
    assert free(small_disk) == 0
    reader.ask_to_trim(count)
    writer.trim_as_asked()
    assert free(small_disk) >= count * SIZE
    write(writer, payloads(count, count + 1))
    assert reader.read(count, 1 << 30) == payloads(count, count + 1)
    writer.close()
    reader.close()


def test_a_reader_that_is_behind_is_told_so_where_the_last_segment_is_gone(small_disk: Path) -> None:
    writer = JournalWriter(small_disk / "journal")
    write(writer, payloads(0, 20))
    behind = JournalReader(writer.folder)
    assert behind.read(0, 1) == payloads(0, 1)
    fill(small_disk)
    writer.trim(20)
    assert segments_in(writer.folder) == []
    assert (writer.first, writer.durable, writer.size) == (20, 20, 0)
    with pytest.raises(headrace.errors.RecordsLostError, match="the first one that is there is 20"):
        while True:
            behind.read(behind._segment._number, 1 << 30)  # type: ignore[union-attr]
    assert behind.first == 20
    writer.close()
    behind.close()


def test_numbers_go_on_where_a_process_dies_without_a_segment(small_disk: Path) -> None:
    writer = JournalWriter(small_disk / "journal")
    write(writer, payloads(0, 20), [b"%d" % number for number in range(20)])
    fill(small_disk)
    writer.trim(20)
    dead = small_disk.parent / "dead"
    shutil.copytree(writer.folder, dead)
    writer.close()

    again = JournalWriter(dead)
    assert (again.first, again.durable) == (20, 20)
    assert again.append(payloads(0, 20), [b"%d" % number for number in range(20)]) == 20
    assert again.deliveries.dropped == 20
    write(again, payloads(20, 21))
    again.close()
    reader = JournalReader(dead)
    assert reader.read(20, 1 << 30) == payloads(20, 21)
    reader.close()


def test_the_number_behind_the_last_record_is_flushed_before_the_last_segment_goes(
    small_disk: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    writer = JournalWriter(small_disk / "journal")
    write(writer, payloads(0, 20))
    fill(small_disk)
    flushed: list[list[int]] = []
    sync = writer._mark.sync
    monkeypatch.setattr(writer._mark, "sync", lambda: (flushed.append(segments_in(writer.folder)), sync()))
    writer.trim(20)
    assert flushed == [[0]]
    assert segments_in(writer.folder) == []
    writer.close()


def test_ids_that_found_no_room_leave_nothing_and_are_kept_when_there_is_some(small_disk: Path) -> None:
    writer = JournalWriter(small_disk / "journal", limit=800_000)
    ids = [f"{number:040d}".encode() * 400 for number in range(20)]
    write(writer, payloads(0, 20), ids)
    other = fill(small_disk)
    with other.open("ab") as file:
        file.truncate(other.stat().st_size - 8192)
    assert not writer._save_ids()
    assert [path.name for path in writer.folder.iterdir() if path.name.startswith(IDS)] == []
    writer.trim(20)
    writer.close()
    again = JournalWriter(writer.folder, limit=800_000)
    assert again.append(payloads(0, 20), ids) == 20
    assert again.deliveries.dropped == 20
    again.close()


def test_a_full_disk_does_not_keep_a_journal_from_being_opened_and_trimmed(small_disk: Path) -> None:
    writer = JournalWriter(small_disk / "journal", limit=400_000)
    write(writer, payloads(0, 20))
    writer.close()
    # As a process leaves it that was killed before it wrote its number there.
    (writer.folder / "lock").write_bytes(b"")
    fill(small_disk)
    reader = JournalReader(writer.folder)
    reader.ask_to_trim(20)
    again = JournalWriter(writer.folder, limit=400_000)
    assert free(small_disk) >= 20 * SIZE
    write(again, payloads(20, 21))
    again.close()
    reader.close()


def test_a_file_without_room_for_the_number_is_an_error_that_says_what_to_do(small_disk: Path) -> None:
    writer = JournalWriter(small_disk / "journal")
    write(writer, payloads(0, 1))
    (writer.folder / TRIM).write_bytes(b"")
    fill(small_disk)
    reader = JournalReader(writer.folder)
    with pytest.raises(StorageError, match="the disk is full") as caught:
        reader.ask_to_trim(1)
    assert "free space on this disk" in str(caught.value)
    writer.close()
    reader.close()


def test_a_receiver_goes_on_as_soon_as_all_is_committed(small_disk: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING, "headrace")
    sent = payloads(0, 300)
    # Without a limit, all that the disk has room for lies in one segment.
    with opened(source_of(Broker(True, sent), small_disk / "journal")) as log:
        until(lambda: "disk is full" in caplog.text)
        read: list[bytes] = []
        while len(read) < len(sent):
            ready = log.ends()[0] - len(read)
            read += take(log, max(ready, 1))
            log.commit({0: len(read)})
        assert read == sent


def test_a_loader_commits_on_a_full_disk_and_reads_on(small_disk: Path) -> None:
    listener = socket.create_server(("127.0.0.1", 0))
    count = 600
    done = threading.Event()

    def serve() -> None:
        connection, _ = listener.accept()
        with connection, contextlib.suppress(ConnectionError):
            for number in range(count):
                connection.sendall(json.dumps({"id": number, "text": "x" * 2500}).encode() + b"\n")
            done.wait(60)

    server = threading.Thread(target=serve, daemon=True)
    server.start()
    try:
        url = f"tcp://127.0.0.1:{listener.getsockname()[1]}"
        folder = os.fspath(small_disk / "journal")
        data = headrace.follow(url, decode="json", journal=folder, journal_bytes="1MB", until=count, span=50)
        loader = headrace.DataLoader(data, batch_size=10)
        read: list[int] = []
        for batch in loader:
            read += batch["id"].tolist()
            if len(read) == 50:
                fill(small_disk)
            if len(read) % 50 == 0:
                loader.commit(loader.state_dict())
        assert sorted(read) == list(range(count))
    finally:
        done.set()
        listener.close()


def test_other_failures_of_the_disk_are_errors_of_the_journal(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    writer = JournalWriter(tmp_path)
    write(writer, payloads(0, 1))
    reader = JournalReader(tmp_path)

    def fails(number: int) -> None:
        raise OSError(errno.EIO, "Input/output error")

    monkeypatch.setattr(reader._trim, "write", fails)
    with pytest.raises(StorageError, match="cannot write the journal"):
        reader.ask_to_trim(1)
    writer.close()
    reader.close()


def test_the_process_that_writes_is_still_named(tmp_path: Path) -> None:
    (tmp_path / "lock").write_text("123456789")
    writer = JournalWriter(tmp_path)
    with pytest.raises(folder.JournalTaken, match=f"process {os.getpid()} writes"):
        JournalWriter(tmp_path)
    writer.close()


@pytest.mark.parametrize("head", [b"", b"HRJ"])
def test_a_segment_that_was_about_to_begin_is_no_reason_not_to_free(small_disk: Path, head: bytes) -> None:
    writer = JournalWriter(small_disk / "journal", limit=400_000)
    write(writer, payloads(0, 20))
    writer.close()
    (writer.folder / segment_name(20)).write_bytes(head)
    reader = JournalReader(writer.folder)
    fill(small_disk)
    if not head:
        # Not even a place for the head of a segment.
        assert free(small_disk) == 0
    reader.ask_to_trim(20)
    again = JournalWriter(writer.folder, limit=400_000)
    assert free(small_disk) >= 20 * SIZE
    assert (again.first, again.durable) == (20, 20)
    write(again, payloads(20, 22))
    assert reader.read(20, 1 << 30) == payloads(20, 22)
    again.close()
    reader.close()


def test_an_empty_journal_on_a_full_disk_says_so_at_the_first_message(small_disk: Path) -> None:
    writer = JournalWriter(small_disk / "journal")
    write(writer, payloads(0, 3))
    fill(small_disk)
    writer.trim(3)
    writer.close()
    fill(small_disk)
    again = JournalWriter(writer.folder)
    assert again.append(payloads(3, 4)) == 0
    assert again.disk_is_full
    (small_disk / "other").unlink()
    write(again, payloads(3, 4))
    assert again.durable == 4
    again.close()
