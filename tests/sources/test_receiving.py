"""The thread between receiver and journal: what it acks, what it keeps, and what it begins again."""

from __future__ import annotations

import dataclasses
import logging
import shutil
import threading
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from headrace.core.errors import StorageError
from headrace.sources.journal.journal_log import JournalSource
from headrace.sources.journal.reader import JournalReader
from headrace.sources.journal.receiver import Away, Messages
from tests.sources.reading import LIMIT, opened, take, until


@dataclass
class Broker:
    """A queue in this process, which keeps messages until they are acked, or forgets them at once as a socket does."""

    delivers_again: bool
    messages: list[bytes] = field(default_factory=list)
    acked: int = 0
    sent: int = 0
    connections: int = 0
    breaks: threading.Event = field(default_factory=threading.Event)
    folder: Path | None = None
    durable_at_ack: list[tuple[int, int]] = field(default_factory=list)
    """Of each ack: what was acked, and what the journal had on the disk."""

    refuses: bool = False

    def connect(self) -> None:
        if self.refuses:
            raise StorageError.about("refused")
        self.connections += 1
        if self.delivers_again:
            self.sent = self.acked

    def receive(self, timeout: float, limit: int) -> Messages:
        self.rest(timeout if self.sent == len(self.messages) else 0)
        start = self.sent
        self.sent = len(self.messages)
        tokens = list(range(start + 1, self.sent + 1)) if self.delivers_again else None
        return Messages(self.messages[start:], None, None, tokens)

    def ack(self, token: object) -> None:
        assert isinstance(token, int)
        self.acked = token
        if self.folder is not None:
            reader = JournalReader(self.folder)
            self.durable_at_ack.append((token, reader.durable))
            reader.close()

    def rest(self, timeout: float) -> None:
        if self.breaks.wait(timeout):
            self.breaks.clear()
            raise Away("it broke")

    def close(self) -> None:
        pass


BROKERS: dict[str, Broker] = {}


class ForgetfulBroker(Broker):
    """Says of each message that it was sent before."""

    def receive(self, timeout: float, limit: int) -> Messages:
        messages = super().receive(timeout, limit)
        return dataclasses.replace(messages, redelivered=[True] * len(messages.payloads))


@dataclass(frozen=True)
class BrokerSource:
    """Finds a broker by its name."""

    place: str

    def receiver(self) -> Broker:
        return BROKERS[self.place]


def source_of(broker: Broker, journal: Path, limit: int | None = None) -> JournalSource:
    BROKERS[str(journal)] = broker
    return JournalSource(BrokerSource(str(journal)), str(journal), limit)


def numbers(start: int, stop: int, size: int = 8) -> list[bytes]:
    return [number.to_bytes(size, "big") for number in range(start, stop)]


def test_messages_are_acked_when_they_are_on_the_disk(tmp_path: Path) -> None:
    broker = Broker(True, numbers(0, 100), folder=tmp_path)
    with opened(source_of(broker, tmp_path)) as log:
        assert take(log, 100) == numbers(0, 100)
        broker.messages += numbers(100, 150)
        assert take(log, 50) == numbers(100, 150)
        until(lambda: broker.acked == 150)
    assert all(acked <= durable for acked, durable in broker.durable_at_ack)


@pytest.mark.parametrize("delivers_again", [True, False])
def test_a_connection_that_breaks_while_the_journal_is_full_costs_nothing(
    tmp_path: Path, delivers_again: bool, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING, "headrace")
    broker = Broker(delivers_again, numbers(0, 30, 1000))
    with opened(source_of(broker, tmp_path, 10_000)) as log:
        until(lambda: "is full" in caplog.text)
        first = take(log, 1)
        broker.breaks.set()
        until(lambda: broker.connections == 2)
        read = first
        while len(read) < 30:
            log.commit({0: len(read)})
            read += take(log, 1)
        assert read == numbers(0, 30, 1000)
        assert log.poll(0.3, LIMIT) == []
    assert broker.acked == (30 if delivers_again else 0)


def test_what_a_socket_sent_and_found_no_room_is_counted_at_the_end(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING, "headrace")
    broker = Broker(False, numbers(0, 30, 1000))
    with opened(source_of(broker, tmp_path, 10_000)) as log:
        until(lambda: "is full" in caplog.text)
        safe = log.ends()[0]
    assert f"{30 - safe} messages were received, and lost" in caplog.text


def test_a_refusal_comes_behind_what_is_in_the_journal(tmp_path: Path) -> None:
    with opened(source_of(Broker(True, numbers(0, 5)), tmp_path)) as log:
        take(log, 5)
    refusing = source_of(Broker(True, refuses=True), tmp_path)
    with opened(refusing) as log:
        assert take(log, 5) == numbers(0, 5)
        for _ in range(2):
            with pytest.raises(StorageError, match="refused"):
                log.poll(10, LIMIT)
    # And another log begins anew.
    BROKERS[str(tmp_path)].refuses = False
    BROKERS[str(tmp_path)].messages += numbers(5, 6)
    with opened(refusing) as log:
        log.seek({0: 5})
        assert take(log, 1) == numbers(5, 6)


def test_a_message_that_never_fits_is_an_error(tmp_path: Path) -> None:
    source = source_of(Broker(True, [bytes(20_000)]), tmp_path, 10_000)
    with opened(source) as log, pytest.raises(StorageError, match="cannot hold a message"):
        log.poll(10, LIMIT)


def test_a_disk_with_room_for_some_messages_takes_these_and_goes_on_when_there_is_more(
    small_disk: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING, "headrace")
    other = small_disk / "other"
    other.write_bytes(bytes(600_000))
    sent = numbers(0, 60, 10_000)
    with opened(source_of(Broker(True, sent), small_disk / "journal")) as log:
        until(lambda: "disk is full" in caplog.text)
        assert 40 <= log.ends()[0] < 60
        other.unlink()
        assert take(log, 60) == sent


def test_a_disk_without_room_for_the_first_message_is_an_error(small_disk: Path) -> None:
    sent = numbers(0, 3, 2_000_000)
    folder = small_disk / "journal"
    with opened(source_of(Broker(True, sent), folder)) as log, pytest.raises(StorageError) as raised:
        take(log, 1)
    text = str(raised.value)
    assert f"place:    {folder}" in text
    assert "found:    1,0" in text  # bytes free, of a megabyte
    assert "expected: 2,000,024 bytes at least" in text
    assert "fix:      free space" in text


def test_a_disk_without_room_for_a_journal_is_an_error(small_disk: Path) -> None:
    (small_disk / "other").write_bytes(bytes(shutil.disk_usage(small_disk).free))
    with pytest.raises(StorageError, match="0 bytes free") as raised:
        source_of(Broker(True), small_disk / "journal").open()
    assert "free space on this disk" in str(raised.value)


def test_messages_without_ids_that_come_again_are_told_once(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    broker = ForgetfulBroker(True, numbers(0, 5))
    with opened(source_of(broker, tmp_path / "journal")) as log:
        assert take(log, 5) == numbers(0, 5)
        broker.messages += numbers(5, 9)
        assert take(log, 4) == numbers(5, 9)
    assert caplog.text.count("some may come twice") == 1
    assert "message_id" in caplog.text
