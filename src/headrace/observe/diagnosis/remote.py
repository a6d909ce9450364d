"""Rules for data that come over a network: what bounds how quickly they come, and what to do about it.

Bytes come as quickly as the line carries them, or as the requests under way are answered. Which of the two holds, the
number of requests that headrace allows tells: it is raised as long as that brings more bytes a second.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterator

from headrace.observe.diagnosis.case import Case
from headrace.observe.diagnosis.finding import WORTH, Finding
from headrace.telemetry.formatting import percent, seconds, size, some
from headrace.telemetry.remote_reads import RemoteReads
from headrace.workers.play.workload import LaterWithout, Without

NETWORKED = 0.3
"""Seconds of waiting for remote bytes for each second that the loop waits, from which on they are why it waits."""

ENOUGH = 20
"""Requests from which on something can be said of them."""

BOUND = 0.5
"""Share of the waiting from which on what bounds it is named."""

SMALL = 128 << 10
"""Bytes of a request below which the request costs more than its bytes do, on usual lines."""

TINY = 16 << 10
"""Bytes of a request below which it is hardly ever the line that is full: as much goes into the request itself."""

REQUEST_CPU = 140e-6
"""Core seconds of a request where they were not measured (docs/design/0014-data-elsewhere.md)."""

TOGETHER = 4
"""Ranges of a request, on average, from which on samples come together, as those of shards do."""

LARGE = 8 << 20
"""Bytes that a request brings where samples lie one behind the other, as `storage.ranges.LARGEST`."""

BUSY_CORE = 0.3
"""Core seconds of the I/O process for each second of waiting from which on requests count as what it is busy with."""

MOST_IN_FLIGHT = 256
"""As `storage.in_flight.MOST`."""

REFUSED = 0.01
"""Share of refused requests from which on they are said."""

AGAIN = 0.05
"""Share of bytes that were fetched again from which on a cache counts as too small."""

BLOCK_OVERHEAD = 8192
"""Bytes of an object in a cache beside its own, about: a header, and a last page that is not full."""


def waits_for_network(case: Case) -> bool:
    """Tells whether the loop waits because bytes come over a network too slowly."""
    remote = case.recording.remote
    if remote is None or case.work is None or remote.requests < ENOUGH:
        return False
    return not case.keeps_up and remote.waited >= NETWORKED * case.waited


def workers_do_not_help(case: Case) -> bool:
    """Tells whether more workers would wait for the same bytes: a loader that reads ahead asks for them by itself."""
    remote = case.recording.remote
    return remote is not None and remote.is_read_ahead and waits_for_network(case)


def remote_findings(case: Case) -> Iterator[Finding]:
    """Yields what is found of data that come over a network."""
    remote = case.recording.remote
    if remote is None:
        return

    yield from _refused(remote)
    yield from _small_cache(case, remote)
    if not waits_for_network(case):
        return

    if remote.waited_at_limit < BOUND * remote.waited:
        yield from _few_in_flight(case, remote)
    elif _requests_cost(remote):
        yield from _small_objects(case, remote)
    elif remote.limit_is == "measured":
        yield from _network(case, remote)
    else:
        yield from _many_in_flight(remote)


def _requests_cost(remote: RemoteReads) -> bool:
    """Tells whether the number of requests bounds the rate, and not their bytes."""
    if remote.bytes_of_request >= SMALL or remote.ranges >= TOGETHER * remote.requests:
        return False
    if remote.limit_is in ("refused", "most") or remote.bytes_of_request < TINY:
        return True

    # The line may be full, or whoever makes the requests is busy with them.
    # What it takes beyond the usual are bytes, such as writing them into a cache.
    cpu = remote.requests * REQUEST_CPU
    if remote.cpu > 0:
        cpu = min(remote.cpu, 2 * cpu)
    return cpu >= BUSY_CORE * remote.waited


def _network(case: Case, remote: RemoteReads) -> Iterator[Finding]:
    line = max(remote.line, remote.rate)
    sentence = (
        f"The network is the limit: while somebody waited for them, {size(remote.rate)} a second came, "
        f"{remote.rate / line:.2f} of the line ({size(line)} a second, the most that came over half a second in this "
        f"run). More than {some(remote.limit, 'request')} at a time brought no more."
    )
    nearer = "a store nearer to this machine"
    if remote.cache == "" and len(case.recording.epochs) > 1:
        change = Without(wait=1.0)
        advice = (
            "Keep the data on this node: headrace.open(..., cache_dir=...). What is predicted holds from the second "
            f"epoch on. Otherwise fewer bytes (name the columns that you need, pack smaller samples), or {nearer}."
        )
    else:
        change = Without(wait=0.5)
        advice = (
            "Fewer bytes: name the columns that you need, or pack smaller samples (headrace pack --resize, a "
            f"compressed form); what is predicted is for half of them. Or {nearer}."
        )
        if remote.cache == "":
            advice = f"{advice} With cache_dir=, the epochs after the first one need no network."

    gain = case.gain(change)
    if gain >= WORTH:
        yield Finding("network-limits", "read", sentence, advice, gain, interval=case.interval(change))


def _few_in_flight(case: Case, remote: RemoteReads) -> Iterator[Finding]:
    """The requests that are allowed were not made: there was nothing to ask for, or no memory for it."""
    is_for_memory = remote.waited_for_memory >= BOUND * (remote.waited - remote.waited_at_limit)
    if is_for_memory:
        # Twice the memory lets twice as much be under way.
        change = Without(wait=0.5)
        holds = "What is predicted is for twice as much"
        because = "there is no more memory for what is read ahead"
        advice = (
            "More memory for this job: headrace reads ahead a sixteenth of it, 512 MB at most. Or smaller samples: "
            "headrace pack --resize, or fewer columns."
        )
    elif not remote.is_read_ahead:
        # Once it is known what comes next, the number under way rises for as long as that brings more.
        change = Without(wait=1.0 - min(remote.in_flight / MOST_IN_FLIGHT, 1.0))
        holds = "What is predicted is for as many as it takes"
        because = "nothing says which samples come next"
        advice = (
            "seed=0 with shuffle=True, or one of headrace.samplers: then the loader asks for samples before they are "
            "needed. A sampler of your own is asked ahead of time with num_workers=1 or more."
        )
    else:
        return

    gain = case.gain(change)
    if gain >= WORTH:
        yield Finding(
            "latency-limits",
            "read",
            f"Latency is the limit: a request takes {seconds(remote.seconds_of_request)}, and {remote.in_flight:.1f} "
            f"are under way while somebody waits; {remote.limit} are allowed, but {because}.",
            f"{advice} {holds}, on {_line_for(case, remote, gain)}",
            gain,
            interval=case.interval(change),
        )


def _line_for(case: Case, remote: RemoteReads, gain: float) -> str:
    """Returns in words which line a loop wants that is so many times as fast, and which one is known."""
    wanted = gain * remote.waited_bytes / max(case.looped, 1e-9)
    seen = max(remote.line, remote.rate)
    return f"a line that carries {size(wanted)} a second; {size(seen)} a second were seen so far."


def _many_in_flight(remote: RemoteReads) -> Iterator[Finding]:
    """As many requests as are allowed were under way, and more would bring more."""
    if remote.limit_is == "refused":
        because = "a server has refused more"
        advice = "See what the server allows. Fewer and larger requests ask less of it: headrace pack."
    elif remote.limit_is == "most":
        because = "headrace makes no more at a time"
        advice = "A store nearer to this machine, or fewer and larger requests: headrace pack."
    else:
        because = "headrace was still raising their number"
        advice = "Look again later in the run. Nothing is to be done until then."

    yield Finding(
        "latency-limits",
        "read",
        f"Latency is the limit: a request takes {seconds(remote.seconds_of_request)} for "
        f"{size(remote.bytes_of_request)}, {remote.in_flight:.0f} are under way while somebody waits, and {because}.",
        advice,
    )


def _small_objects(case: Case, remote: RemoteReads) -> Iterator[Finding]:
    """Each sample is a request of its own, and the requests take longer than their bytes."""
    wanted = remote.first_bytes + remote.again_bytes
    sample = wanted / max(remote.ranges, 1)
    packed = remote.ranges * sample / LARGE
    left = packed / remote.requests

    # A line that was measured full by larger requests would bound what is won; of small ones alone, nobody knows it.
    change = Without(wait=max(1.0 - left, 0.0))
    gain = case.gain(change)
    if gain < WORTH:
        return

    per_second = remote.rate / max(remote.bytes_of_request, 1.0)
    if remote.whole_objects >= BOUND * remote.requests:
        what = "Small objects"
        advice = f"Pack them into shards: {pack_command(remote.place)}."
    else:
        what = "Small pieces of large objects"
        advice = "Read pieces one after the other that lie together."

    yield Finding(
        "small-objects",
        "read",
        f"{what}: requests bring {size(remote.bytes_of_request)} each, and {per_second:,.0f} a second of them are "
        f"answered, however few bytes they bring.",
        f"{advice} What is predicted holds for reading in their order (.stream(shuffle=...)), on "
        f"{_line_for(case, remote, gain)} In random order, less is gained.",
        gain,
        interval=_down_to_line_seen(case, remote, case.interval(change)),
    )


def _down_to_line_seen(case: Case, remote: RemoteReads, interval: tuple[float, float]) -> tuple[float, float]:
    """Returns an interval that reaches down to what is won if no more bytes come than were seen already."""
    seen = max(remote.line, remote.rate)
    at_least = case.gain(Without(wait=1.0 - remote.rate / seen))
    low, high = interval
    return max(min(low, at_least), WORTH), high


def pack_command(place: str) -> str:
    """Returns the command that packs data which lie at a URL; into the same bucket, or here from where none is."""
    target = f"{place.rstrip('/').partition('*')[0].rstrip('/')}-packed"
    if place.startswith(("http:", "https:")) or not place:
        target = f"{target.rpartition('/')[2]}"

    return f"headrace pack {shlex.quote(place or 'URL')} {shlex.quote(target)}"


def _refused(remote: RemoteReads) -> Iterator[Finding]:
    if remote.refused_share < REFUSED or remote.requests + remote.busy < ENOUGH:
        return

    yield Finding(
        "server-refuses",
        "read",
        f"The server refuses {percent(remote.refused_share)} of the requests as too many (status 429 or 503), "
        f"{remote.busy:,} so far. Each is made again after a pause, and {remote.limit} at a time are allowed now.",
        "Ask it less often: pack samples into shards (headrace pack), keep them on this node (cache_dir=), or spread "
        "them over several prefixes or buckets. The store's own limits may be raised, too.",
    )


def _small_cache(case: Case, remote: RemoteReads) -> Iterator[Finding]:
    if remote.cache != "limited" or remote.again_share < AGAIN:
        return

    objects = remote.ranges * (1.0 - remote.again_share)
    needed = 1.05 * remote.first_bytes + BLOCK_OVERHEAD * objects
    gain = None
    interval = None
    if waits_for_network(case):
        # The first epoch fetches all of it in any case. In later ones, so much of what is wanted is missing.
        change = LaterWithout(wait=remote.again_bytes / max(remote.again_bytes + remote.cached_bytes, 1))
        gain = case.gain(change)
        interval = case.interval(change)
        # That it is too small is certain, also where a larger one would hardly make the loop faster.
        if interval[0] <= 1.0:
            gain = None
            interval = None

    yield Finding(
        "cache-too-small",
        "read",
        f"The cache is too small: {percent(remote.again_share)} of the bytes ({size(remote.again_bytes)}) were fetched "
        "another time, since they had to make room.",
        f'cache_limit="{_gigabytes(needed)}" would hold all that was read so far.',
        gain,
        interval=interval,
    )


def _gigabytes(nbytes: float) -> str:
    """Returns a size for `cache_limit=`, rounded up to two digits."""
    for unit, scale in (("TB", 1e12), ("GB", 1e9), ("MB", 1e6)):
        value = nbytes / scale
        if value >= 10:
            return f"{-int(-value // 1)}{unit}"
        if value >= 1:
            return f"{-int(-value * 10 // 1) / 10:.1f}{unit}"

    return "1MB"
