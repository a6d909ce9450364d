"""Which messages are delivered again, by their ids: the same for a journal on a disk and one in memory."""

from __future__ import annotations

from typing import Literal

KEPT_IDS = 100_000

Duplicates = Literal["keep", "drop"]


class Deliveries:
    """What a journal knows of the messages that it was given."""

    def __init__(self, duplicates: Duplicates, kept_ids: int) -> None:
        """duplicates: what becomes of messages without an id that are known to be delivered again. kept_ids: of so
        many messages the ids are known."""
        self.dropped = 0
        """Messages that were delivered again, and were in the journal already."""

        self.redelivered = 0
        """Messages without an id that were delivered again, and kept. Some of them may be in the journal twice."""

        self.ids: dict[bytes, None] = {}
        """The ids that are known, oldest first."""

        self._duplicates = duplicates
        self._kept_ids = kept_ids

    def drops(self, message_id: bytes | None, redelivered: bool) -> bool:
        """Tells whether a message is left out, as one that the journal has, and counts it then."""
        if message_id:
            known = message_id in self.ids
        else:
            known = redelivered and self._duplicates == "drop"
        self.dropped += known
        return known

    def note(self, message_id: bytes | None, redelivered: bool) -> None:
        """Notes that a message is in the journal now."""
        if message_id:
            self.ids[message_id] = None
        else:
            self.redelivered += redelivered

    def forget(self, ids: list[bytes]) -> None:
        """Forgets messages that were taken back."""
        for message_id in ids:
            self.ids.pop(message_id, None)

    def forget_oldest(self) -> None:
        """Forgets the ids beyond the number that is kept."""
        while len(self.ids) > self._kept_ids:
            del self.ids[next(iter(self.ids))]
