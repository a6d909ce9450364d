"""Spans that all ranks share: rank 0 closes them, and posts them in the store of the process group."""

from __future__ import annotations

import pickle
import time
from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from headrace.core.errors import StorageError, UsageError
from headrace.core.spans import Beginning, NothingYetError, Span, SpanSupply
from headrace.core.world import common_store, current_world
from headrace.sources.feed.feed_options import FeedOptions
from headrace.sources.feed.supply import FeedName, LocalSupply
from headrace.sources.log import LogSource

if TYPE_CHECKING:
    from torch.distributed.distributed_c10d import Store

Describe = Callable[[FeedName, Span], str]
"""Returns what samples look like, by their first span."""

LOOK_EVERY = 0.02
"""Seconds after which a rank looks for a span that it waits for."""


def supply_for(
    source: LogSource, options: FeedOptions, beginning: Beginning, describe: Describe, *, key: str, sharers: int
) -> SpanSupply:
    """Returns the spans of an epoch, for this rank. Raises `UsageError`.

    key: of this epoch in the store, the same on all ranks. sharers: how many ranks or model
    replicas share the log, as far as the loader knows; 0: each rank has an order of its own.
    """
    world = current_world()
    if not sharers or max(world.size, sharers) == 1:
        return DescribedSupply(source, options, beginning, describe)

    store = common_store()
    if store is None:
        raise UsageError.about(
            "ranks that share a log must agree on its spans",
            place="headrace.DataLoader(shard=)",
            found=f"one of {max(world.size, sharers)} ranks, without a process group",
            fix="call torch.distributed.init_process_group before the first epoch",
        )
    if world.rank == 0:
        return LeadingSupply(source, options, beginning, describe, store, key)
    return FollowingSupply(source, options, beginning, store, key)


class DescribedSupply(LocalSupply):
    """Spans that say what samples look like."""

    def __init__(self, source: LogSource, options: FeedOptions, beginning: Beginning, describe: Describe) -> None:
        super().__init__(source, options, beginning)
        self._describe = describe
        self._schema = ""
        if beginning.known:
            self._schema = beginning.known[0].schema

    def next_span(self) -> Span | None:
        span = super().next_span()
        if span is None:
            return None
        if not self._schema:
            self._schema = self._describe(self.feed, span)
        return replace(span, schema=self._schema)


class LeadingSupply(DescribedSupply):
    """The spans of rank 0, which it posts for the others."""

    def __init__(
        self,
        source: LogSource,
        options: FeedOptions,
        beginning: Beginning,
        describe: Describe,
        store: Store,
        key: str,
    ) -> None:
        super().__init__(source, options, beginning, describe)
        self._store = store
        self._key = key
        self._posted = 0

    def _opened(self, beginning: Beginning) -> None:
        """See `LocalSupply._opened`. The others learn which log it is, also if no record comes."""
        super()._opened(beginning)
        self._post(("opened", beginning))

    def next_span(self) -> Span | None:
        try:
            span = super().next_span()
        except NothingYetError:
            raise
        except Exception as error:
            self._post(("error", f"{type(error).__name__}: {error}"))
            raise

        self._post(("span", self.beginning, span))
        return span

    def _post(self, message: tuple[Any, ...]) -> None:
        # The store takes bytes as well, whatever its types say.
        self._store.set(f"{self._key}/{self._posted}", pickle.dumps(message))  # type: ignore[arg-type]
        self._posted += 1


class FollowingSupply(LocalSupply):
    """The spans of another rank than 0: those that rank 0 has closed, read by this rank's own I/O process."""

    def __init__(self, source: LogSource, options: FeedOptions, beginning: Beginning, store: Store, key: str) -> None:
        super().__init__(source, options, replace(beginning, spans=()), leads=False)
        self._own: Beginning | None = None
        self._store = store
        self._key = key
        self._seen = 0

    def next_span(self) -> Span | None:
        while self._is_readable(0):
            self._receive()
        if self._ended:
            return None

        what, *rest = self._posted()
        while what == "opened":
            (self.beginning,) = rest
            self._compare()
            what, *rest = self._posted()

        if what == "error":
            fix = "see what rank 0 says"
            raise StorageError.about("rank 0 cannot read the source", found=rest[0], fix=fix)

        self.beginning, span = rest
        # Of another log, the records of the span would never come.
        while self._own is None and not self._ended:
            self._is_readable(None)
            self._receive()
        self._compare()
        if span is None:
            self._ended = True
            return None
        self.tell(span)
        return span  # type: ignore[no-any-return]

    def _posted(self) -> tuple[Any, ...]:
        """Returns what rank 0 has posted next. Raises `NothingYetError`."""
        key = f"{self._key}/{self._seen}"
        if not self._store.check([key]):
            raise NothingYetError

        message: tuple[Any, ...] = pickle.loads(self._store.get(key))
        self._seen += 1
        return message

    def _opened(self, beginning: Beginning) -> None:
        """See `LocalSupply._opened`. Where the epoch begins, rank 0 says."""
        self._own = beginning
        self._compare()

    def _compare(self) -> None:
        """Raises `UsageError` if this rank reads another log than rank 0: positions would mean other records."""
        theirs = self.beginning.identity
        if self._own is None or not theirs or self._own.identity == theirs:
            return

        self.close()
        fix = "give all ranks the same source; a queue or a socket, one journal= folder that all can read"
        what = "the ranks read different logs"
        found = f"{self._own.identity} on this rank"
        raise UsageError.about(what, place=self._source.place, found=found, expected=f"{theirs}, as on rank 0", fix=fix)

    def wait(self, timeout: float | None) -> None:
        deadline = None
        if timeout is not None:
            deadline = time.monotonic() + timeout
        while not self._store.check([f"{self._key}/{self._seen}"]) and not self._is_readable(LOOK_EVERY):
            if deadline is not None and time.monotonic() >= deadline:
                return
