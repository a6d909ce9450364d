"""What came over a network, in words: for reports, the live view and the page."""

from __future__ import annotations

from collections.abc import Sequence

from headrace.telemetry.formatting import digits, percent, seconds, size, some
from headrace.telemetry.live_reads import LiveReads
from headrace.telemetry.remote_reads import RemoteReads, TrafficWindow

RECENT = 5.0
"""Seconds that the live view is of."""


def remote_line(remote: RemoteReads) -> str:
    """Returns one line for a report."""
    parts = ["network: nothing had to be fetched"]
    if remote.requests:
        parts = [f"network: {size(remote.bytes)} in {some(remote.requests, 'request')}"]
    if remote.waited > 0 and remote.requests:
        parts.append(f"{size(remote.rate)}/s while it was waited for, {digits(remote.in_flight)} requests in flight")
    if is_cached(remote):
        parts.append(f"{percent(remote.hit_rate)} of the bytes from the cache")
    if remote.retries:
        parts.append(f"{remote.retries:,} made again")
    return ", ".join(parts)


def live_line(remote: RemoteReads, now: float) -> str:
    """Returns one line for the live view, of the latest seconds before a time of `time.perf_counter()`."""
    recent = recent_windows(remote.windows, now)
    spent = sum(window.seconds for window in recent)
    rate = 0.0
    in_flight = 0.0
    if spent > 0:
        rate = sum(window.bytes for window in recent) / spent
        in_flight = sum(window.in_flight * window.seconds for window in recent) / spent

    parts = [f"network {size(rate)}/s, {in_flight:.0f} requests in flight, {size(remote.bytes)} so far"]
    if is_cached(remote):
        parts.append(f"{percent(remote.hit_rate)} from the cache")
    return ", ".join(parts)


def source_line(live: LiveReads) -> str:
    """Returns in one line what was read from a source that never ends, and how far that is ahead."""
    parts = [f"source: {live.records:,} records in {some(live.spans, 'span')}"]
    if live.read_rate >= 1:
        parts.append(f"{live.read_rate:,.0f} a second of late")
    if live.lag == 0:
        parts.append("all that there is")
    elif live.lag > 0:
        parts.append(f"{live.lag:,} behind")
    if live.waited >= 1:
        parts.append(f"{seconds(live.waited)} waited for it")
    return ", ".join(parts)


def is_cached(remote: RemoteReads) -> bool:
    """Tells whether there is a hit rate that says something."""
    return bool(remote.cache) or remote.cached_bytes > 0


def recent_windows(windows: Sequence[TrafficWindow], now: float) -> list[TrafficWindow]:
    """Returns the windows of the latest `RECENT` seconds; the latest one alone, if they are longer."""
    recent = []
    for window in windows:
        if window.began + window.seconds > now - RECENT and window.began < now:
            recent.append(window)

    # Only requests that have ended are known: the window that is going on seems slow.
    if len(recent) > 1:
        recent.pop()
    return recent
