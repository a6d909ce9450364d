"""The journal on the disk: written and read at once, trimmed, full, and opened again after all that can happen."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.core.errors import FormatError, RecordsLostError, StorageError
from headrace.core.files.temporary_folder import temporary_folder
from headrace.sources.journal.folder import TRIM, JournalTaken, segments_in
from headrace.sources.journal.journal import JournalWriter
from headrace.sources.journal.reader import JournalReader
from headrace.sources.journal.segments import HEAD, RECORD, segment_name

EVERYTHING = 1 << 40


def write(writer: JournalWriter, payloads: list[bytes], ids: list[bytes | None] | None = None) -> None:
    """Appends all of them, and syncs."""
    while payloads:
        taken = writer.append(payloads, ids)
        writer.sync()
        assert writer.full is None
        payloads = payloads[taken:]
        if ids is not None:
            ids = ids[taken:]


def all_in(folder: Path, first: int = 0) -> list[bytes]:
    """Returns all payloads from a number on."""
    reader = JournalReader(folder)
    values: list[bytes] = []
    while first + len(values) < reader.durable:
        values += reader.read(first + len(values), 1000)
    reader.close()
    return values


def numbers(start: int, stop: int, size: int = 8) -> list[bytes]:
    return [number.to_bytes(size, "big") for number in range(start, stop)]


@pytest.fixture
def journal(tmp_path: Path) -> Iterator[JournalWriter]:
    writer = JournalWriter(tmp_path / "journal")
    yield writer
    writer.close()


def test_records_are_read_from_any_number_on(journal: JournalWriter) -> None:
    payloads = [bytes([number % 256]) * (number % 3000) for number in range(2000)]
    write(journal, payloads)
    reader = JournalReader(journal.folder)
    for number in (1999, 0, 700, 701, 3, 1500, 1998):
        assert reader.read(number, 1) == [payloads[number]]
        assert reader.read(number, EVERYTHING)[:50] == payloads[number : number + 50]
    assert reader.read(2000, EVERYTHING) == []
    reader.close()


def test_what_is_not_synced_is_not_read(journal: JournalWriter) -> None:
    reader = JournalReader(journal.folder)
    assert journal.append([b"a", b"b"]) == 2
    assert (reader.durable, reader.read(0, EVERYTHING)) == (0, [])
    assert journal.sync() == 2
    assert reader.read(0, EVERYTHING) == [b"a", b"b"]
    reader.close()


def test_a_reader_goes_on_over_segments_that_begin_meanwhile(tmp_path: Path) -> None:
    writer = JournalWriter(tmp_path, limit=80_000)
    reader = JournalReader(tmp_path)
    for start in range(0, 1500, 30):
        write(writer, numbers(start, start + 30))
        assert reader.read(start, EVERYTHING) == numbers(start, start + 30)
    assert len(segments_in(tmp_path)) > 4
    for start in (1499, 0, 312, 313, 311, 939):
        assert reader.read(start, EVERYTHING) == numbers(start, 1500)
    writer.close()
    reader.close()


def test_a_record_larger_than_a_segment_has_its_place(tmp_path: Path) -> None:
    writer = JournalWriter(tmp_path, limit=40_000_000)
    payloads = [b"small", os.urandom(9_000_000), b"", os.urandom(6_000_000), b"last"]
    write(writer, payloads)
    writer.close()
    assert all_in(tmp_path) == payloads


def test_the_identity_stays_and_is_that_of_the_folder(tmp_path: Path) -> None:
    first = JournalWriter(tmp_path / "one")
    first.close()
    again = JournalWriter(tmp_path / "one")
    other = JournalWriter(tmp_path / "two")
    assert first.identity == again.identity == JournalReader(tmp_path / "one").identity
    assert first.identity != other.identity
    again.close()
    other.close()


def test_a_folder_with_other_files_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "photo.jpg").write_bytes(b"")
    with pytest.raises(StorageError, match="1 other file"):
        JournalWriter(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["photo.jpg"]


def test_a_second_writer_is_told_who_writes(journal: JournalWriter) -> None:
    with pytest.raises(JournalTaken, match=f"process {os.getpid()} writes to it"):
        JournalWriter(journal.folder)


def test_a_forked_child_does_not_keep_the_lock(tmp_path: Path) -> None:
    writer = JournalWriter(tmp_path)
    ours, theirs = socket.socketpair()
    child = os.fork()
    if child == 0:
        ours.close()
        theirs.send(b".")
        theirs.recv(1)
        os._exit(0)
    theirs.close()
    ours.recv(1)
    # As if this process was killed: its descriptor goes, and nothing else is done.
    os.close(writer._lock._fd)
    writer._lock._fd = -1
    JournalWriter(tmp_path).close()
    ours.close()
    os.waitpid(child, 0)
    writer.close()


# -- delivered again -------------------------------------------------------------------------------------------------


def test_what_is_delivered_again_is_dropped_by_its_id(tmp_path: Path) -> None:
    writer = JournalWriter(tmp_path)
    assert writer.append([b"a", b"b", b"a again"], [b"1", b"2", b"1"]) == 3
    writer.sync()
    writer.close()
    again = JournalWriter(tmp_path)
    assert again.append([b"b again", b"c", b"no id"], [b"2", b"3", None]) == 3
    again.sync()
    assert (writer.deliveries.dropped, again.deliveries.dropped) == (1, 1)
    again.close()
    assert all_in(tmp_path) == [b"a", b"b", b"c", b"no id"]


def test_ids_are_known_when_their_segments_are_gone(tmp_path: Path) -> None:
    writer = JournalWriter(tmp_path, limit=8000)
    for number in range(40):
        write(writer, [bytes(500)], [b"%d" % number])
        writer.trim(writer.durable)
    writer.close()
    assert segments_in(tmp_path) == [40]
    again = JournalWriter(tmp_path)
    assert again.append([b""] * 41, [b"%d" % number for number in range(41)]) == 41
    assert again.deliveries.dropped == 40
    again.close()


def test_so_many_ids_are_kept_and_no_more(tmp_path: Path) -> None:
    writer = JournalWriter(tmp_path, kept_ids=10, limit=2000)
    for number in range(30):
        write(writer, [b""], [b"%d" % number])
    writer.trim(12)
    writer.close()
    again = JournalWriter(tmp_path, kept_ids=10)
    again.append([b""] * 30, [b"%d" % number for number in reversed(range(30))])
    assert again.deliveries.dropped == 10
    again.close()


@pytest.mark.parametrize(("duplicates", "kept"), [("keep", [b"a", b"a", b"b"]), ("drop", [b"a", b"b"])])
def test_without_an_id_the_user_decides(tmp_path: Path, duplicates: str, kept: list[bytes]) -> None:
    writer = JournalWriter(tmp_path, duplicates=duplicates)  # type: ignore[arg-type]
    assert writer.append([b"a", b"a", b"b"], None, [False, True, False]) == 3
    writer.sync()
    assert writer.deliveries.redelivered + writer.deliveries.dropped == 1
    writer.close()
    assert all_in(tmp_path) == kept


# -- trimmed and full ------------------------------------------------------------------------------------------------


def test_trimming_deletes_what_lies_behind_and_nothing_else(tmp_path: Path) -> None:
    writer = JournalWriter(tmp_path, limit=80_000)
    write(writer, numbers(0, 1500))
    writer.trim(700)
    assert 300 < writer.first <= 700
    reader = JournalReader(tmp_path)
    assert reader.first == writer.first
    assert reader.read(700, EVERYTHING) == numbers(700, 1500)
    with pytest.raises(RecordsLostError, match=f"the first one that is there is {writer.first}") as caught:
        reader.read(0, EVERYTHING)
    assert (caught.value.partition, caught.value.earliest) == (0, writer.first)
    writer.close()
    reader.close()


def test_a_reader_that_is_behind_is_told_that_its_records_are_gone(tmp_path: Path) -> None:
    writer = JournalWriter(tmp_path, limit=80_000)
    write(writer, numbers(0, 1500))
    reader = JournalReader(tmp_path)
    # It holds a segment open whose successor is gone as well.
    assert reader.read(0, 1) == numbers(0, 1)
    writer.trim(1500)
    with pytest.raises(RecordsLostError):
        while True:
            reader.read(reader._segment._number, 100_000)  # type: ignore[union-attr]
    with pytest.raises(RecordsLostError, match="the journal ends with record 1,499"):
        reader.read(1501, 1)
    writer.close()
    reader.close()


def test_readers_ask_and_the_writer_trims(tmp_path: Path) -> None:
    writer = JournalWriter(tmp_path, limit=80_000)
    write(writer, numbers(0, 1500))
    reader = JournalReader(tmp_path)
    reader.ask_to_trim(1500)
    reader.ask_to_trim(3)
    assert writer.first == 0
    writer.trim_as_asked()
    assert writer.first == 1500
    writer.close()
    reader.close()
    # A request that came while nobody wrote.
    write(writer := JournalWriter(tmp_path), numbers(0, 10))
    writer.close()
    (tmp_path / TRIM).write_bytes((1510).to_bytes(8, "little"))
    writer = JournalWriter(tmp_path)
    assert writer.first == 1510
    writer.close()


@given(st.lists(st.integers(0, 3000), min_size=1, max_size=40), st.integers(4000, 20_000))
@settings(max_examples=40, deadline=None)
def test_a_journal_never_grows_beyond_its_limit_nor_drops(sizes: list[int], limit: int) -> None:
    with temporary_folder("headrace-journal-") as folder:
        writer = JournalWriter(folder / "journal", limit=limit)
        waiting = [os.urandom(size) for size in sizes]
        sent = list(waiting)
        read: list[bytes] = []
        while waiting:
            taken = writer.append(waiting)
            writer.sync()
            del waiting[:taken]
            on_disk = sum(path.stat().st_size for path in writer.folder.glob("*.journal"))
            assert on_disk == writer.size <= limit + HEAD.size
            if writer.full is not None:
                read += all_in(writer.folder, len(read))
                writer.trim(len(read))
        read += all_in(writer.folder, len(read))
        assert read == sent
        writer.close()


def test_a_message_that_will_never_fit_is_an_error(tmp_path: Path) -> None:
    writer = JournalWriter(tmp_path, limit=1000)
    with pytest.raises(StorageError, match="1,000 bytes at most"):
        writer.append([bytes(1000)])
    write(writer, [bytes(1000 - RECORD.size - HEAD.size)])
    writer.close()


def test_once_all_is_read_a_message_as_large_as_the_limit_has_room(tmp_path: Path) -> None:
    writer = JournalWriter(tmp_path, limit=10_000)
    write(writer, [b"small"])
    large = bytes(10_000 - RECORD.size - HEAD.size)
    assert writer.append([large]) == 0
    assert writer.full is not None
    writer.trim(1)
    write(writer, [large])
    assert all_in(tmp_path, 1) == [large]
    writer.close()


def test_on_a_full_disk_it_stands_still_and_goes_on_when_there_is_space(small_disk: Path) -> None:
    writer = JournalWriter(small_disk / "journal")
    other = small_disk / "other"
    other.write_bytes(bytes(600_000))
    payloads = [os.urandom(10_000) for _ in range(50)]
    ids = [b"%d" % number for number in range(50)]
    sent = 0
    while writer.full is None:
        sent += writer.append(payloads[sent : sent + 3], ids[sent : sent + 3])
        writer.sync()
    assert "disk is full" in writer.full
    assert all_in(writer.folder) == payloads[:sent]
    other.unlink()
    write(writer, payloads, [*ids])
    assert writer.deliveries.dropped == sent
    assert all_in(writer.folder) == payloads

    while writer.full is None:
        writer.append(payloads)
        writer.sync()
    writer.trim(writer.durable)
    write(writer, [b"after"], [b"after"])
    writer.close()


# -- damage ----------------------------------------------------------------------------------------------------------


def damaged_copy(folder: Path, name: str, place: int) -> None:
    data = bytearray((folder / name).read_bytes())
    data[place] ^= 0x55
    (folder / name).write_bytes(data)


@pytest.mark.parametrize("mark", ["as it was", "older", "gone"])
def test_a_torn_tail_goes_and_synced_records_stay(tmp_path: Path, mark: str) -> None:
    writer = JournalWriter(tmp_path)
    write(writer, numbers(0, 10))
    writer.append([*numbers(10, 12), bytes(5000)])
    writer.close()
    path = tmp_path / segment_name(0)
    # The last record is half there, as after a loss of power.
    os.truncate(path, path.stat().st_size - 5)
    if mark == "older":
        (tmp_path / "durable").write_bytes((3).to_bytes(8, "little"))
    elif mark == "gone":
        (tmp_path / "durable").unlink()

    again = JournalWriter(tmp_path)
    assert again.durable == 12
    assert path.stat().st_size == HEAD.size + 12 * (RECORD.size + 8)
    write(again, [b"next"])
    again.close()
    assert all_in(tmp_path) == [*numbers(0, 12), b"next"]


@pytest.mark.parametrize("mark", ["as it was", "gone"])
def test_damage_to_what_was_synced_names_file_and_byte(tmp_path: Path, mark: str) -> None:
    writer = JournalWriter(tmp_path)
    write(writer, numbers(0, 10))
    write(writer, numbers(10, 20))
    writer.close()
    record = RECORD.size + 8
    damaged_copy(tmp_path, segment_name(0), HEAD.size + 4 * record + RECORD.size)
    if mark == "gone":
        # The records of the second group tell that those of the first were synced.
        (tmp_path / "durable").unlink()
    with pytest.raises(FormatError, match=rf"{segment_name(0)}\n.*record 4 is wrong, at byte {HEAD.size + 4 * record}"):
        JournalWriter(tmp_path)


def test_damage_to_the_last_group_is_no_torn_tail(tmp_path: Path) -> None:
    writer = JournalWriter(tmp_path)
    write(writer, numbers(0, 10))
    writer.close()
    path = tmp_path / segment_name(0)
    before = path.read_bytes()
    damaged_copy(tmp_path, segment_name(0), len(before) - 1)
    with pytest.raises(FormatError, match="record 9 is wrong"):
        JournalWriter(tmp_path)
    path.write_bytes(before[:-1])
    with pytest.raises(FormatError, match="the file ends within record 9"):
        JournalWriter(tmp_path)


def test_damage_is_found_by_readers_too(tmp_path: Path) -> None:
    writer = JournalWriter(tmp_path, limit=8000)
    write(writer, numbers(0, 100))
    writer.close()
    second = segments_in(tmp_path)[1]
    damaged_copy(tmp_path, segment_name(second), HEAD.size + RECORD.size)
    reader = JournalReader(tmp_path)
    assert reader.read(0, 8) == numbers(0, 1)
    with pytest.raises(FormatError, match=rf"{segment_name(second)}\n.*record {second} is wrong, at byte {HEAD.size}"):
        reader.read(second, EVERYTHING)
    reader.close()


def test_a_segment_that_was_cut_is_found_before_it_is_missed(tmp_path: Path) -> None:
    writer = JournalWriter(tmp_path, limit=8000)
    write(writer, numbers(0, 100), [b"%d" % number for number in range(100)])
    writer.close()
    path = tmp_path / segment_name(0)
    os.truncate(path, path.stat().st_size - 5)
    with pytest.raises(FormatError, match="since the next segment begins with record"):
        JournalWriter(tmp_path)
    reader = JournalReader(tmp_path)
    with pytest.raises(FormatError, match="the file ends before record"):
        while True:
            reader.read(segments_in(tmp_path)[1] - 1, EVERYTHING)
    reader.close()


@pytest.mark.parametrize("length", [0, 7, HEAD.size])
def test_a_segment_that_was_about_to_begin_is_made_anew(tmp_path: Path, length: int) -> None:
    writer = JournalWriter(tmp_path)
    write(writer, numbers(0, 10), [b"%d" % number for number in range(10)])
    writer.close()
    (tmp_path / segment_name(10)).write_bytes(bytes(length))
    again = JournalWriter(tmp_path)
    write(again, numbers(10, 12), [b"0", b"11"])
    assert again.deliveries.dropped == 1
    again.close()
    assert all_in(tmp_path) == [*numbers(0, 10), *numbers(11, 12)]


def test_another_version_is_refused_and_left_as_it_is(tmp_path: Path) -> None:
    writer = JournalWriter(tmp_path)
    write(writer, numbers(0, 10))
    writer.close()
    path = tmp_path / segment_name(0)
    damaged_copy(tmp_path, segment_name(0), 7)
    before = path.read_bytes()
    with pytest.raises(FormatError, match="another format"):
        JournalWriter(tmp_path)
    assert path.read_bytes() == before
