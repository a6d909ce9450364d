"""What a loader has read from object stores and servers."""

from __future__ import annotations

from dataclasses import dataclass, fields


@dataclass
class RemoteReads:
    """Sums over all epochs so far. Sizes are in bytes."""

    requests: int = 0
    """That were answered."""
    bytes: int = 0
    """That came over the network."""
    cached_bytes: int = 0
    """That were in the cache of this node when they were wanted."""
    hits: int = 0
    """Ranges that were there when a worker asked for them, because they had been read ahead."""
    waits: int = 0
    """Ranges that a worker had to wait for."""
    busy: int = 0
    """Answers by which a server said that it has too many requests."""

    def since(self, before: RemoteReads) -> RemoteReads:
        """Returns what came since then; nothing of what was counted anew meanwhile."""
        differences = {}
        for figure in fields(self):
            differences[figure.name] = max(getattr(self, figure.name) - getattr(before, figure.name), 0)

        return RemoteReads(**differences)

    @property
    def hit_rate(self) -> float:
        """Share of the bytes that were in the cache, 0 to 1; 0 if nothing was read."""
        wanted = self.bytes + self.cached_bytes
        if wanted:
            return self.cached_bytes / wanted
        return 0.0
