"""The thread that takes messages from a receiver, writes them to a journal, and only then acks them."""

from __future__ import annotations

import logging
import os
import sys
import threading
from typing import Protocol

from headrace.core.errors import StorageError
from headrace.core.process.this_process import in_forked_child
from headrace.sources.journal.folder import JournalTaken
from headrace.sources.journal.in_memory import MemoryJournal
from headrace.sources.journal.journal import DiskFull, JournalWriter
from headrace.sources.journal.receiver import Away, Messages, Receiver, ReceiverSource
from headrace.sources.outage import SourceOutage

LOGGER = logging.getLogger("headrace")

WAIT = 0.1
"""Seconds that the thread waits for messages at once: so long it may take to end."""

GROUP = 8 << 20
"""Bytes of messages that share a flush of the disk, about. While it lasts, further ones come together."""


class Journaled(Protocol):
    """Messages of a receiver that go to a journal: frozen, can be compared."""

    @property
    def messages(self) -> ReceiverSource:
        """What the messages come from."""

    @property
    def journal(self) -> str | None:
        """The folder of the journal; None: it is in memory."""

    @property
    def place(self) -> str:
        """What a user would call it: a URL without user, password and query."""

    def open_journal(self) -> JournalWriter | MemoryJournal:
        """Opens the journal to write. Raises `StorageError`, `FormatError`, `UsageError`."""


class Receiving:
    """One receiver that writes to one journal; all logs of the process that read the journal share it."""

    def __init__(self, source: Journaled, journal: JournalWriter | MemoryJournal, receiver: Receiver) -> None:
        self.source = source
        self.journal = journal
        self.users = 0
        self.news = threading.Condition()
        """Notified when there are records to read, and when the thread ends."""

        self.error: BaseException | None = None
        """Why the thread has ended."""

        self._receiver = receiver
        self._closing = threading.Event()
        self._waiting = Messages([])
        self._said_full = False
        self._said_again = False
        self._has_written = False
        self._thread = threading.Thread(target=self._run, name="headrace-receiving", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        outage = SourceOutage(self.source.place)
        try:
            while not self._closing.is_set():
                try:
                    self._receiver.connect()
                    outage.ended()
                    self._receive()
                except Away as away:
                    self._receiver.close()
                    if self._receiver.delivers_again:
                        self._waiting = Messages([])
                    self._closing.wait(outage.wait_after(str(away)))
        except BaseException as error:  # noqa: BLE001 - whoever polls gets it
            self.error = error
        finally:
            self._end()

    def _receive(self) -> None:
        while not self._closing.is_set():
            self._store()
            if self._closing.is_set():
                return
            self._waiting = self._receiver.receive(WAIT, GROUP)

    def _store(self) -> None:
        """Writes what waits, flushes it to the disk, and acks it. Waits for room if there is none."""
        self.journal.trim_as_asked()
        most = sys.maxsize
        while self._waiting.payloads and not self._closing.is_set():
            messages = self._waiting.before(most)
            taken = self._written(messages)
            if taken:
                most = sys.maxsize
                self._waiting = self._waiting.behind(taken)
                with self.news:
                    self.news.notify_all()
                if messages.tokens is not None:
                    self._receiver.ack(messages.tokens[taken - 1])
                self._say_again()
            elif self.journal.disk_is_full and len(messages.payloads) > 1:
                # A disk has room for all of what is written at once, or for nothing of it.
                most = len(messages.payloads) // 2
                continue

            if self._waiting.payloads and self.journal.full is not None:
                self._say_full(self.journal.full)
                self._receiver.rest(WAIT)
                self.journal.trim_as_asked()

        if self._said_full and not self._waiting.payloads:
            self._said_full = False
            LOGGER.warning("The journal of %s has room again.", self.source.place)

    def _written(self, messages: Messages) -> int:
        """Writes messages. Returns how many are safe. Raises `StorageError` if there is no room, and never was any."""
        taken = self.journal.append(messages.payloads, messages.ids, messages.redelivered)
        try:
            self.journal.sync()
        except DiskFull:
            taken = 0

        # A journal that has records waits until they are read, and their space freed.
        journal = self.journal
        has_nothing = not taken and not self._has_written and journal.first == journal.durable
        if isinstance(journal, JournalWriter) and journal.disk_is_full and has_nothing and len(messages.payloads) == 1:
            raise journal.no_room(messages.payloads[0])
        self._has_written = self._has_written or taken > 0
        return taken

    def _say_again(self) -> None:
        """Says once that messages may come twice, which their ids would prevent."""
        if self.journal.deliveries.redelivered and not self._said_again:
            self._said_again = True
            LOGGER.warning(
                "%s sends messages again that have no id: some may come twice. Have senders set message_id, or give "
                'duplicates="drop".',
                self.source.place,
            )

    def _say_full(self, why: str) -> None:
        if not self._said_full:
            self._said_full = True
            LOGGER.warning(
                "The journal of %s is full: %s. Nothing more is received until loader.commit() frees space.",
                self.source.place,
                why,
            )

    def _end(self) -> None:
        self._receiver.close()
        if self._waiting.payloads and not self._receiver.delivers_again:
            LOGGER.warning(
                "%s: %s messages were received, and lost, since the journal was full to the end.",
                self.source.place,
                f"{len(self._waiting.payloads):,}",
            )
        with _LOCK:
            if _RUNNING.get(_key_of(self.source)) is self:
                del _RUNNING[_key_of(self.source)]
            self.journal.close()
        with self.news:
            self.news.notify_all()

    @property
    def ends(self) -> bool:
        """Whether it has ended or is about to, by an error or by `leave`."""
        return self._closing.is_set() or self.error is not None

    def wait_until_ended(self) -> None:
        """Waits for the end of the thread."""
        self._thread.join()

    def leave(self) -> None:
        """Tells that a log needs it no more. With the last one, the thread ends."""
        with _LOCK:
            self.users -= 1
            if self.users:
                return
            self._closing.set()
        self._thread.join()


_RUNNING: dict[object, Receiving] = {}
_LOCK = threading.Lock()


def _key_of(source: Journaled) -> object:
    if source.journal is None:
        return source
    return os.path.realpath(source.journal)


def join(source: Journaled) -> Receiving | None:
    """Returns what receives for a source in this process, and starts it if need be.

    Returns None if another process receives. Raises `StorageError`, `FormatError`, `UsageError`, `MissingExtraError`.
    """
    while True:
        with _LOCK:
            running = _RUNNING.get(_key_of(source))
            if running is None or not running.ends:
                return _joined(source, running)
        # Its journal can be opened when it has ended.
        running.wait_until_ended()


def _joined(source: Journaled, running: Receiving | None) -> Receiving | None:
    if running is not None and running.source.messages != source.messages:
        found = f"the journal of {running.source.place}, which this process writes"
        fix = "give each source a folder of its own as journal="
        raise StorageError.about("the journal is in use", place=source.journal, found=found, fix=fix)

    if running is None:
        receiver = source.messages.receiver()
        try:
            running = Receiving(source, source.open_journal(), receiver)
        except JournalTaken:
            return None
        _RUNNING[_key_of(source)] = running
    running.users += 1
    return running


def _forget_all() -> None:
    # The threads are the parent's, and so are the locks.
    global _LOCK
    _LOCK = threading.Lock()
    _RUNNING.clear()


in_forked_child(_forget_all)
