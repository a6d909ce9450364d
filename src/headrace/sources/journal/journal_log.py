"""A queue or a socket as a log of one partition: what was received is read from the journal."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from headrace.core.errors import wrong_argument
from headrace.core.sizes import bytes_in
from headrace.sources.journal import receiver_thread
from headrace.sources.journal.deliveries import KEPT_IDS, Duplicates
from headrace.sources.journal.folder import check_source
from headrace.sources.journal.in_memory import MemoryJournal
from headrace.sources.journal.journal import JournalWriter
from headrace.sources.journal.reader import JournalReader
from headrace.sources.journal.receiver import ReceiverSource
from headrace.sources.log import Positions, Records, Start

IN_MEMORY = 256_000_000
"""Bytes of a journal in memory, unless the user says otherwise."""

LOOK = 0.02
"""Seconds between two looks for what another process has received."""

TAKE_OVER = 1.0
"""Seconds between two looks whether the process that receives is gone."""


@dataclass(frozen=True)
class JournalSource:
    """Messages of a receiver, through a journal."""

    messages: ReceiverSource
    journal: str | None
    """A folder; None: in memory. What was received and not read is lost then when the process ends."""

    journal_bytes: int | str | None = None
    """What the journal may take; when it is full, nothing more is received. None: what the disk has, or 256 MB of
    memory."""

    duplicates: Duplicates = "keep"
    """What becomes of messages that are delivered again and have no id. "keep": some are in the journal twice. "drop":
    some are lost, since a broker says the same of those that it had sent ahead, and that never were in the journal."""

    kept_ids: int = KEPT_IDS
    """The ids of so many messages are known, to drop those that are delivered again."""

    def __post_init__(self) -> None:
        if self.duplicates not in ("keep", "drop"):
            raise wrong_argument("duplicates", self.duplicates, '"keep" or "drop"')
        if self.journal_bytes is not None:
            bytes_in(self.journal_bytes, "journal_bytes")

    @property
    def place(self) -> str:
        """What a user would call it: a URL without user, password and query."""
        return self.messages.place

    def open(self) -> JournalLog:
        """Starts to receive, unless another log of this journal does already, in this process or another one."""
        return JournalLog(self)

    def open_journal(self) -> JournalWriter | MemoryJournal:
        """Opens the journal to write. Raises `StorageError`, `FormatError`, `UsageError`."""
        limit = None
        if self.journal_bytes is not None:
            limit = bytes_in(self.journal_bytes, "journal_bytes")
        if self.journal is None:
            return MemoryJournal(self.place, limit or IN_MEMORY, self.duplicates, self.kept_ids)
        journal = JournalWriter(self.journal, limit=limit, duplicates=self.duplicates, kept_ids=self.kept_ids)
        try:
            # Before messages take what room there is on the disk.
            check_source(journal.folder, self.place)
        except BaseException:
            journal.close()
            raise
        return journal


class JournalLog:
    """Reads a journal, while this process or another one writes it. If that one ends, this one goes on with it."""

    def __init__(self, source: JournalSource) -> None:
        self._source = source
        self._position = 0
        self._looked = time.monotonic()
        self._receiving = receiver_thread.join(source)
        try:
            self._journal = self._readable()
        except BaseException:
            if self._receiving is not None:
                self._receiving.leave()
            raise
        self.identity = {"kind": "journal", "journal": self._journal.identity}

    def _readable(self) -> JournalReader | MemoryJournal:
        if self._receiving is not None and isinstance(self._receiving.journal, MemoryJournal):
            return self._receiving.journal
        folder = Path(self._source.journal or "")
        check_source(folder, self._source.place)
        return JournalReader(folder)

    @property
    def receives(self) -> bool:
        """Whether this process receives; if not, another one does."""
        return self._receiving is not None

    def partitions(self) -> Sequence[int]:
        """Returns the one partition."""
        return [0]

    def resolve(self, start: Start) -> Positions:
        """Returns the position that `start` means now. Raises `UsageError` for a time: a journal knows none."""
        if start == "earliest":
            return {0: self._journal.first}
        if start == "latest":
            return {0: self._journal.durable}
        if isinstance(start, Mapping) and set(start) == {0}:
            return {0: start[0]}
        raise wrong_argument("start", start, '"earliest", "latest", or {0: position}; a journal knows no times')

    def ends(self) -> Positions:
        """Returns the position behind the last record that is safe."""
        return {0: self._journal.durable}

    def seek(self, positions: Positions) -> None:
        """Has `poll` go on there."""
        self._position = positions.get(0, self._position)

    def poll(self, timeout: float, limit: int) -> list[Records]:
        """Returns what comes next; waits for it up to `timeout` seconds.

        Raises `RecordsLostError`; `FormatError` at damage; and why nothing more is received, once all is read.
        """
        deadline = time.monotonic() + timeout
        while True:
            values = self._read(limit)
            if values:
                first = self._position
                self._position += len(values)
                return [Records(0, range(first, self._position), values, self._position)]

            remaining = deadline - time.monotonic()
            if remaining <= 0:
                return []
            if self._receiving is not None:
                self._wait(self._receiving, remaining)
            else:
                self._wait_for_other_process(remaining)

    def _read(self, limit: int) -> list[bytes]:
        if isinstance(self._journal, MemoryJournal):
            return self._journal.read(self._position, limit, self)
        return self._journal.read(self._position, limit)

    def _wait(self, running: receiver_thread.Receiving, timeout: float) -> None:
        with running.news:
            if self._journal.durable > self._position:
                return
            if running.error is not None:
                raise running.error.with_traceback(None)
            running.news.wait(timeout)

    def _wait_for_other_process(self, timeout: float) -> None:
        time.sleep(min(timeout, LOOK))
        if time.monotonic() > self._looked + TAKE_OVER and self._journal.durable == self._position:
            self._looked = time.monotonic()
            self._receiving = receiver_thread.join(self._source)

    def at_end(self) -> set[int]:
        """Returns the partition if all records that are safe were read."""
        if self._position >= self._journal.durable:
            return {0}
        return set()

    def commit(self, positions: Positions) -> None:
        """Has the writer free the space of all before this position."""
        if 0 in positions:
            self._journal.ask_to_trim(positions[0])

    def close(self) -> None:
        """Ends reading; receiving too, unless other logs of this process need it."""
        if isinstance(self._journal, MemoryJournal):
            self._journal.forget(self)
        else:
            self._journal.close()
        if self._receiving is not None:
            self._receiving.leave()
            self._receiving = None
