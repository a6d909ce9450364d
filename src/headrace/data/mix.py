"""Mixing streams by weights."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from headrace.core.changing_weights import (
    WINDOW,
    Unit,
    WhenExhausted,
    checked_rows,
    sources_of,
)
from headrace.core.errors import checked_word, wrong_argument
from headrace.data.mixed_stream import MixedStream, MixRules
from headrace.samplers.sampler import positive

PLACE = "headrace.mix"


def mix(
    streams: Sequence[Iterable[Any]] | Mapping[str, Iterable[Any]],
    weights: Any,
    *,
    unit: Unit = "samples",
    length: Callable[[Any], int] | None = None,
    when_exhausted: WhenExhausted = "repeat",
    window: int = WINDOW,
) -> MixedStream:
    """Mixes streams: each sample is the next one of the stream that is furthest behind its share.

    Of tokens, too, each stream is at any time off its share by the length of a few samples at most.

    Each worker mixes its own parts of the streams. These split themselves over workers and ranks: those of headrace do,
    and iterable datasets of your own by `headrace.shard`. All of them must, or none: a stream that does not comes whole
    from each worker.

    Workers do not know of each other. Schedules count from the beginning of an epoch, and take the others to be as far
    as the worker that asks. A file may be read at different moments by different workers.

    A loader's state holds the states of the streams' iterators or of the streams; those that have none are read again
    up to where they were. It also holds what a function, an object or a file has answered: a resumed run asks at the
    next window.

    Args:
        streams: iterable datasets; or a mapping of names to them.
        weights: as for `headrace.samplers.MixtureSampler`.
        unit: whether weights are shares of `"samples"` or of `"tokens"`.
        length: for `"tokens"`: takes a sample and returns its number of tokens. By default the length of the sample's
            `input_ids`; of the sample itself, if it has none.
        when_exhausted: what happens when a stream ends. `"repeat"`: it begins again, until all have ended once
            that have a weight, now or later in the schedule. `"stop"`: the epoch ends. `"drop"`: the others go on
            without it, until all have ended. A stream that has nothing for a worker is left out there.
        window: samples over all workers of all ranks after which a function, an object or a file is asked again.

    Returns:
        A stream.

    Raises:
        UsageError: wrong arguments, or weights that do not fit.

    Examples:
        >>> np.save("a.npy", np.arange(3))
        >>> np.save("b.npy", np.arange(10, 19))
        >>> a, b = headrace.open("a.npy").stream(), headrace.open("b.npy").stream()
        >>> [int(sample["data"]) for sample in headrace.mix([a, b], weights=[1, 3], when_exhausted="drop")]
        [10, 0, 11, 12, 13, 1, 14, 15, 16, 2, 17, 18]
    """
    sources, names = sources_of(streams, "streams")
    wrong = [source for source in sources if not isinstance(source, Iterable)]
    if wrong or not sources:
        raise wrong_argument("streams", streams, "iterable datasets, at least one", place=PLACE)
    if length is not None and not callable(length):
        raise wrong_argument("length", length, "a function that takes a sample", place=PLACE)

    rules = MixRules(
        names,
        len(sources),
        rows=[],
        asked=None,
        unit=checked_word("unit", unit, Unit),
        length=length,
        when_exhausted=checked_word("when_exhausted", when_exhausted, WhenExhausted),
        window=positive("window", window),
    )
    rows, asked = checked_rows(weights, rules.checked)
    return MixedStream(sources, rules._replace(rows=rows, asked=asked))
