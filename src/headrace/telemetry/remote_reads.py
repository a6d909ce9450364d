"""What a loader has read from object stores and servers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any, NamedTuple


class TrafficWindow(NamedTuple):
    """A stretch of time, and what came over the network in it."""

    began: float
    """In seconds of `time.perf_counter()`."""
    seconds: float
    bytes: float
    """Those of a request are spread evenly over its time."""
    in_flight: float
    """Requests under way, on average."""


STRETCH = 0.5
"""Seconds over which the highest rate is taken: shorter bursts come out of buffers, and not over a line."""


def best_rate(windows: Sequence[TrafficWindow]) -> float:
    """Returns the most bytes a second over `STRETCH`, of windows of one length; 0 if nothing came for that long."""
    # Without the last window, which may have just begun, and the first, in which connections are made.
    whole = windows[1:-1]
    if not whole:
        return 0.0

    count = max(round(STRETCH / whole[0].seconds), 1)
    if len(whole) < count:
        return 0.0

    inside = sum(window.bytes for window in whole[:count])
    most = inside
    for at in range(count, len(whole)):
        inside += whole[at].bytes - whole[at - count].bytes
        most = max(most, inside)

    return most / (count * whole[0].seconds)


@dataclass
class RemoteReads:
    """Sums over all epochs so far. Sizes are in bytes, times in seconds.

    Figures that begin with `waited` are of the times in which somebody waited for bytes that were not there yet.
    """

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
    retries: int = 0
    """Requests that were made again, for whatever reason."""
    ranges: int = 0
    """That the requests brought: several, where neighbours came together."""
    whole_objects: int = 0
    """Requests that brought all of an object."""
    first_bytes: int = 0
    """Of ranges that were fetched for the first time, about (`storage.fetching.seen.SeenRanges`)."""
    again_bytes: int = 0
    """Of ranges that were fetched another time, about."""
    request_seconds: float = 0.0
    """Of all requests together, from asking to the last byte."""
    waited: float = 0.0
    """How long somebody waited."""
    waited_bytes: int = 0
    """That came meanwhile."""
    waited_in_flight: float = 0.0
    """Times the number of requests under way."""
    waited_at_limit: float = 0.0
    """The part of `waited` in which as many requests were under way as are allowed."""
    waited_for_memory: float = 0.0
    """The part of it in which no more could be read ahead, for want of memory."""
    cpu: float = 0.0
    """Core seconds of the I/O process; 0: there is none."""
    read_directly: int = 0
    """Bytes that workers took out of the cache themselves."""
    stored_ahead: int = 0
    """Bytes that were brought into the cache for that."""

    limit: int = 0
    """Requests that are allowed under way at a time, now."""
    limit_is: str = ""
    """Why it is not higher: "measured" (more brought no more bytes), "refused" (a server said that it is busy), "most"
    (headrace never has more), or "rising"."""
    line: float = 0.0
    """The most bytes a second that came over half a second; 0: unknown."""
    windows: tuple[TrafficWindow, ...] = ()
    """What came when."""

    place: str = ""
    """Of the data, as an error would name it."""
    cache: str = ""
    """"all": a cache keeps everything; "limited": what fits; "": there is none."""
    is_read_ahead: bool = False
    """Whether the loader knows which samples come next, and asks for them before they are needed."""

    def since(self, before: RemoteReads) -> RemoteReads:
        """Returns what came since then; nothing of what was counted anew meanwhile."""
        differences: dict[str, Any] = {}
        for figure in fields(self):
            now = getattr(self, figure.name)
            if figure.name not in NOT_SUMS:
                now = max(now - getattr(before, figure.name), type(now)(0))
            differences[figure.name] = now

        if before.windows:
            begin = before.windows[-1].began
            differences["windows"] = tuple(window for window in self.windows if window.began >= begin)
            # What was read before may have come over another line.
            differences["line"] = best_rate(differences["windows"])
        return RemoteReads(**differences)

    @property
    def hit_rate(self) -> float:
        """Share of the bytes that were in the cache, 0 to 1; 0 if nothing was read."""
        wanted = self.bytes + self.cached_bytes
        if wanted:
            return self.cached_bytes / wanted
        return 0.0

    @property
    def rate(self) -> float:
        """Bytes a second that came while somebody waited for some; 0 if nobody did."""
        if self.waited > 0:
            return self.waited_bytes / self.waited
        return 0.0

    @property
    def in_flight(self) -> float:
        """Requests under way while somebody waited, on average."""
        if self.waited > 0:
            return self.waited_in_flight / self.waited
        return 0.0

    @property
    def bytes_of_request(self) -> float:
        """Of a request, on average."""
        return self.bytes / max(self.requests, 1)

    @property
    def seconds_of_request(self) -> float:
        """Of a request, on average."""
        return self.request_seconds / max(self.requests, 1)

    @property
    def refused_share(self) -> float:
        """Share of the requests that a server refused because it had too many, 0 to 1."""
        return self.busy / max(self.requests + self.busy, 1)

    @property
    def again_share(self) -> float:
        """Share of the bytes that were fetched another time, 0 to 1."""
        return self.again_bytes / max(self.again_bytes + self.first_bytes, 1)

    def without_windows(self) -> RemoteReads:
        """Returns the figures alone."""
        return replace(self, windows=())

    @classmethod
    def from_json(cls, given: Mapping[str, Any]) -> RemoteReads:
        """Returns those that a recording has written; what it did not know stays 0."""
        windows = tuple(TrafficWindow(*window) for window in given.get("windows", ()))
        return cls(**{**given, "windows": windows})


NOT_SUMS = frozenset(("limit", "limit_is", "line", "windows", "place", "cache", "is_read_ahead"))
"""Figures that hold now, or for good."""
