"""Which ranges were fetched before: about, in memory that does not grow."""

from __future__ import annotations

from headrace.storage.fetching.ranges import ByteRange

BITS = 1 << 24
"""Places for ranges. Of a million ranges, 3 in 100 are wrongly taken for seen."""


class SeenRanges:
    """Remembers ranges by one bit each, at a place that follows from the range: two ranges may have the same."""

    def __init__(self) -> None:
        # Pages of it that were never touched take no memory.
        self._bits = bytearray(BITS // 8)

    def add(self, wanted: ByteRange) -> bool:
        """Notes a range. Returns whether it was there."""
        # The low bits of a hash of numbers follow the numbers, which lie close together: they are stirred.
        place = (hash(wanted) * 0x9E3779B97F4A7C15 >> 32) % BITS
        byte, bit = place >> 3, 1 << (place & 7)
        found = bool(self._bits[byte] & bit)
        self._bits[byte] |= bit
        return found
