"""Sockets as sources, with `nc` at the other end: as client and as server, cut off, wrong, large, and back again."""

from __future__ import annotations

import logging
import os
import pickle
import shutil
import socket
import struct
import subprocess
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from headrace.core.errors import RecordsLostError, StorageError, UsageError
from headrace.sources.brokers.sockets import SocketSource
from headrace.sources.journal.journal_log import JournalSource
from headrace.testing.leaks import no_leaks
from tests import programs
from tests.servers.processes import free_ports, listens
from tests.sources.reading import LIMIT, PATIENCE, bytes_in, opened, take, until


@contextmanager
def nc(*arguments: object, **options: Any) -> Iterator[subprocess.Popen[bytes]]:
    """Runs netcat. As a client, once somebody listens: it does not try again."""
    program = shutil.which("nc")
    if program is None:
        pytest.skip("nc is not installed (Debian: netcat-openbsd)")
    if not {"-l", "-lU"}.intersection(arguments):
        until(lambda: listens(arguments[-1]))
    process = subprocess.Popen([program, *map(str, arguments)], stdin=subprocess.PIPE, **options)
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


def send(process: subprocess.Popen[bytes], data: bytes) -> None:
    assert process.stdin is not None
    process.stdin.write(data)
    process.stdin.flush()


@pytest.fixture
def port() -> int:
    return free_ports(1)[0]


@pytest.fixture
def journal(tmp_path: Path) -> str:
    return str(tmp_path / "journal")


def test_lines_of_a_server_that_comes_up_later_goes_and_comes_back(port: int, journal: str) -> None:
    source = JournalSource(SocketSource(f"tcp://127.0.0.1:{port}"), journal)
    with opened(source) as log:
        for turn in range(3):
            with nc("-l", "127.0.0.1", port) as server:
                send(server, b"%d one\n\n%d two\r\n\r\n%d three\n\n" % (turn, turn, turn))
                assert take(log, 3) == [b"%d one" % turn, b"%d two" % turn, b"%d three" % turn]
        assert log.ends() == {0: 9}
        assert log.at_end() == {0}
    with opened(source) as log:
        log.seek(log.resolve("earliest"))
        assert take(log, 9)[3:6] == [b"1 one", b"1 two", b"1 three"]
        log.seek({0: 7})
        assert take(log, 2) == [b"2 two", b"2 three"]


def test_several_clients_at_once_are_listened_to(port: int, journal: str) -> None:
    source = JournalSource(SocketSource(f"tcp://127.0.0.1:{port}?listen"), journal)
    with opened(source) as log, nc("127.0.0.1", port) as one, nc("127.0.0.1", port) as two:
        send(one, b"from one\n")
        assert take(log, 1) == [b"from one"]
        send(two, b"from two\n")
        assert take(log, 1) == [b"from two"]
        send(one, b"again\n")
        assert take(log, 1) == [b"again"]


@pytest.mark.parametrize("listen", [False, True])
def test_unix_sockets(tmp_path: Path, journal: str, listen: bool) -> None:
    path = tmp_path / "a socket"
    source = JournalSource(SocketSource(f"unix://{path}".replace(" ", "%20"), listen=listen), journal)
    if listen:
        # A file that a killed process has left.
        with socket.socket(socket.AF_UNIX) as left:
            left.bind(str(path))
        with opened(source) as log, nc("-U", path) as client:
            send(client, b"hello\n")
            assert take(log, 1) == [b"hello"]
        assert not path.exists()
    else:
        with opened(source) as log, nc("-lU", path) as server:
            send(server, b"hello\n")
            assert take(log, 1) == [b"hello"]


def test_half_a_record_at_the_end_is_dropped_and_counted(
    port: int, journal: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING, "headrace")
    source = JournalSource(SocketSource(f"tcp://127.0.0.1:{port}", listen=True), journal)
    with opened(source) as log:
        with nc("-N", "127.0.0.1", port) as client:
            client.communicate(b"whole\nhalf", timeout=PATIENCE)
        assert take(log, 1) == [b"whole"]
        until(lambda: "within a record: its 4 bytes are dropped" in caplog.text)


@pytest.mark.thorough
def test_a_record_of_64_megabytes(port: int, journal: str) -> None:
    record = os.urandom(1 << 20) * 64
    source = JournalSource(SocketSource(f"tcp://127.0.0.1:{port}", "length"), journal)
    with opened(source) as log, nc("-l", "127.0.0.1", port) as server:
        framed = struct.pack(">I", len(record)) + record + b"\0\0\0\5small"
        sending = threading.Thread(target=send, args=(server, framed))
        sending.start()
        assert take(log, 2) == [record, b"small"]
        sending.join()


def test_a_wrong_length_is_an_error_behind_what_came_before(port: int, journal: str) -> None:
    source = JournalSource(SocketSource(f"tcp://127.0.0.1:{port}", "length", largest_frame="1MB"), journal)
    with opened(source) as log, nc("-l", "127.0.0.1", port) as server:
        send(server, b"\0\0\0\2okGET / HTTP/1.1\r\n")
        assert take(log, 1) == [b"ok"]
        with pytest.raises(StorageError, match=r"a frame of 1,195,725,856 bytes") as caught:
            take(log, 1)
        assert f"tcp://127.0.0.1:{port}" in str(caught.value)


def test_one_client_with_wrong_frames_does_not_stop_the_others(
    port: int, journal: str, caplog: pytest.LogCaptureFixture
) -> None:
    source = JournalSource(SocketSource(f"tcp://127.0.0.1:{port}", "length", listen=True), journal)
    with opened(source) as log, nc("127.0.0.1", port) as wrong, nc("127.0.0.1", port) as right:
        send(wrong, b"\xff\xff\xff\xff")
        until(lambda: "a frame of 4,294,967,295 bytes" in caplog.text)
        send(right, b"\0\0\0\5right")
        assert take(log, 1) == [b"right"]


def test_an_address_that_is_taken_is_an_error(journal: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        source = JournalSource(SocketSource(f"tcp://127.0.0.1:{other.getsockname()[1]}?listen"), journal)
        with opened(source) as log, pytest.raises(StorageError, match="cannot listen"):
            log.poll(PATIENCE, LIMIT)


@pytest.mark.parametrize(
    "url", ["tcp://host", "tcp://host:x", "udp://host:1", "unix://path", "tcp://h:1?frame=lines", "tcp://me:word@h:1"]
)
def test_urls_that_mean_nothing_are_refused(url: str) -> None:
    with pytest.raises(UsageError) as caught:
        SocketSource(url)
    assert ":word" not in str(caught.value)


def test_sources_can_be_pickled_and_know_their_place(port: int, journal: str) -> None:
    source = JournalSource(SocketSource(f"tcp://127.0.0.1:{port}?listen", "length"), journal, "10GB")
    assert pickle.loads(pickle.dumps(source)) == source
    assert source.place == f"tcp://127.0.0.1:{port}"
    with pytest.raises(UsageError, match="journal_bytes"):
        JournalSource(source.messages, journal, "ten")


# -- the log over it -------------------------------------------------------------------------------------------------


def test_start_means_positions_and_no_times(port: int, journal: str) -> None:
    source = JournalSource(SocketSource(f"tcp://127.0.0.1:{port}?listen"), journal)
    with opened(source) as log, nc("127.0.0.1", port) as client:
        assert log.partitions() == [0]
        send(client, b"0\n1\n2\n")
        take(log, 3)
        assert log.resolve("earliest") == {0: 0}
        assert log.resolve("latest") == {0: 3}
        assert log.resolve({0: 2}) == {0: 2}
        for wrong in (1.5, {1: 0}, "now"):
            with pytest.raises(UsageError, match="a journal knows no times"):
                log.resolve(wrong)
        log.seek({0: 5})
        with pytest.raises(RecordsLostError, match="ends with record 2"):
            log.poll(1, LIMIT)


def test_nothing_comes_within_the_timeout(port: int, journal: str) -> None:
    with opened(JournalSource(SocketSource(f"tcp://127.0.0.1:{port}?listen"), journal)) as log:
        assert log.poll(0, LIMIT) == []
        assert log.poll(0.05, LIMIT) == []


@pytest.mark.thorough
def test_two_logs_of_a_process_share_what_receives(port: int, journal: str) -> None:
    source = JournalSource(SocketSource(f"tcp://127.0.0.1:{port}?listen"), journal)
    with no_leaks(), opened(source) as one:
        with opened(source) as two, nc("127.0.0.1", port) as client:
            send(client, b"0\n1\n")
            assert take(one, 2) == take(two, 2) == [b"0", b"1"]
            assert one.identity == two.identity
            other = JournalSource(SocketSource(f"tcp://127.0.0.2:{port}?listen"), journal)
            with pytest.raises(StorageError, match="the journal is in use"):
                other.open()
        assert one.receives


READS = """
import sys
from headrace.sources.journal.journal_log import JournalSource
from headrace.sources.brokers.sockets import SocketSource
log = JournalSource(SocketSource(sys.argv[1]), sys.argv[2]).open()
print("receives" if log.receives else "reads", flush=True)
while True:
    for records in log.poll(10, 1 << 20):
        for value in records.values:
            print(value.decode(), "receives" if log.receives else "reads", flush=True)
"""


@pytest.mark.thorough
def test_another_process_reads_and_takes_over_when_this_one_goes(port: int, journal: str) -> None:
    url = f"tcp://127.0.0.1:{port}?listen"
    log = JournalSource(SocketSource(url), journal).open()
    with programs.Program(["-c", READS, url, journal]) as other:
        assert other.read_line() == "reads\n"
        with nc("127.0.0.1", port) as client:
            send(client, b"one\n")
            assert other.read_line() == "one reads\n"
        log.close()
        with nc("127.0.0.1", port) as client:
            send(client, b"two\n")
            assert other.read_line() == "two receives\n"


@pytest.mark.thorough
def test_a_full_journal_makes_the_sender_wait_and_nothing_is_lost(
    port: int, journal: str, caplog: pytest.LogCaptureFixture
) -> None:
    source = JournalSource(SocketSource(f"tcp://127.0.0.1:{port}?listen"), journal, "1MB")
    lines = [b"%d " % number + bytes(10_000).replace(b"\0", b".") for number in range(3000)]
    with opened(source) as log, nc("-N", "127.0.0.1", port) as client:
        sending = threading.Thread(target=client.communicate, args=(b"\n".join(lines) + b"\n",))
        sending.start()
        until(lambda: "is full" in caplog.text)
        read: list[bytes] = []
        while len(read) < len(lines):
            read += take(log, 1)
            log.commit({0: len(read)})
            assert bytes_in(journal) <= 1_000_000
        assert read == lines
        sending.join()


# -- without a journal on the disk -----------------------------------------------------------------------------------


@pytest.mark.thorough
def test_in_memory_what_was_read_makes_room(port: int) -> None:
    source = JournalSource(SocketSource(f"tcp://127.0.0.1:{port}?listen"), None, "100kB")
    lines = [b"%d " % number + bytes(1000).replace(b"\0", b".") for number in range(2000)]
    with opened(source) as log, nc("-N", "127.0.0.1", port) as client:
        sending = threading.Thread(target=client.communicate, args=(b"\n".join(lines) + b"\n",))
        sending.start()
        assert take(log, len(lines)) == lines
        sending.join()
        assert log.resolve("earliest")[0] > 1000
        log.seek({0: 0})
        with pytest.raises(RecordsLostError, match="give journal= a folder"):
            log.poll(1, LIMIT)
        log.seek(log.resolve("earliest"))
        first = log.resolve("earliest")[0]
        assert take(log, 1)[0] == lines[first]


@pytest.mark.thorough
def test_in_memory_each_process_has_another_identity(port: int) -> None:
    source = JournalSource(SocketSource(f"tcp://127.0.0.1:{port}?listen"), None)
    with opened(source) as log:
        identity = log.identity
    with opened(source) as log:
        assert log.identity != identity
