"""Fetches batches from an iterable dataset: a worker's own stream, or a worker's part of one that all workers see.

A stream that is *dealt out* is cut into global batches of `batch size x ranks` samples. Global batch b goes to worker
b mod n, and its sample p to rank p mod ranks; each worker reads all of the stream and keeps what is its own. So the
batches come out as one process would make them, whatever the number of workers.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from headrace.batches.bad_samples_stream import StreamBatch, errors_of, is_empty
from headrace.batches.notes import note
from headrace.batches.odd_samples import collated
from headrace.batches.stream_source import StreamSource
from headrace.batches.whole_batches import memory_of
from headrace.core.batch_memory import BatchMemory
from headrace.core.errors import SampleError, UsageError
from headrace.core.missing_state import MissingState
from headrace.core.process.activity import Activity, note_collation, private_activity
from headrace.core.randomness.rng import BATCH
from headrace.core.sharding import WorkerContext
from headrace.faults.bad_sample import BadSample
from headrace.faults.classify import is_never_skipped
from headrace.faults.handler import FaultHandler
from headrace.packing.document_pack import DocumentPack


class Deal(NamedTuple):
    """What a worker has of a dealt-out stream: its share of the global batches behind sample `first`."""

    place: WorkerContext
    first: int

    def share(self, number: int, count: int) -> range:
        """Returns the positions in the stream of this rank's samples of this worker's batch `number`.

        count: samples of a batch of one rank.
        """
        rank, size = self.place.world
        start = self.first + (self.place.worker + number * self.place.workers) * count * size
        return range(start + rank, start + count * size, size)


class TakenSamples(NamedTuple):
    """What was taken from a stream for a batch."""

    batch: StreamBatch
    others: StreamBatch | None = None
    """What was taken for other ranks."""
    share: int = 0
    """How many samples each rank must have, at least."""


class IterableFetcher:
    """Fetches from one pass over a dataset."""

    def __init__(  # noqa: PLR0913 - what a pass is
        self,
        source: StreamSource,
        batched: bool,
        collate: Callable[[Any], Any],
        drop_last: bool,
        deal: Deal | None = None,
        state: dict[str, Any] | None = None,
        *,
        handler: FaultHandler | None = None,
        activity: Activity | None = None,
    ) -> None:
        self._source = source
        self._handler = handler
        if activity is None:
            self._activity = private_activity()
        else:
            self._activity = activity

        self._spare: tuple[int, Any] | None = None
        self._batched = batched
        self._collate = collate
        self._memory = memory_of(collate)
        self._drop_last = drop_last
        self._deal = deal
        self._ended = bool((state or {}).get("ended"))
        self._batches = (state or {}).get("batches", 0)
        # Whether the first sample has shown that the stream is to be dealt out.
        self._sure = False

    @property
    def has_begun(self) -> bool:
        """Whether any line of the dataset's `__iter__` has run; of a generator none has, before its first sample."""
        return self._source.has_begun

    def fetch(self, index: Any) -> Any:
        if self._ended:
            raise StopIteration

        if self._batched:
            count = len(index)
        else:
            count = 1

        if self._deal is not None and not self._sure:
            self._make_sure(self._deal)
        if self._handler is not None:
            self._handler.losses.clear()

        # Whole batches leave no sample behind that could take the place of a bad one: the first batch is made one by
        # one.
        can_replace = self._handler is None or self._spare is not None
        at_once = self._batched and self._deal is None and can_replace and self._source.makes_batches
        if at_once and self._memory is not None:
            whole = self._whole(count, self._memory)
            if whole is not None:
                return whole

        # Counted before anything can raise: the batch of a sample that raises is lost, and the next call makes the
        # next.
        number = self._batches
        self._batches += 1
        if self._deal is not None:
            return self._collated(self._dealt(self._deal, number, count), count)
        if self._handler is not None:
            batch = StreamBatch(self._handler)
            self._fill(batch, count)
            return self._collated(TakenSamples(batch), count)

        samples = self._own(count)
        self._source.let_go_of_state()
        return self._made(samples)

    def losses(self) -> Sequence[BadSample]:
        if self._handler is None:
            return ()
        return tuple(self._handler.losses)

    def state(self) -> Any:
        dealt = self._deal is not None
        return {**self._source.state(), "batches": self._batches, "ended": self._ended, "dealt": dealt}

    def give_up_state(self, missing: MissingState) -> None:
        self._source.give_up_state(missing)

    def replay(self, report: Callable[[int, int], None]) -> None:
        """Runs through the samples that were delivered before; calls `report(done, all)` now and then."""
        if self._ended:
            return

        total = self._source.to_replay
        if not total:
            return

        with self._source.generators.replaying():
            self._read_again(total, report)

        report(total, total)

    def _read_again(self, total: int, report: Callable[[int, int], None]) -> None:
        """Reads so many samples and throws them away."""
        passing = StreamBatch(self._handler)
        for done in range(total):
            if done % 256 == 0:
                report(done, total)
            try:
                passing.read(self._source)
            except StopIteration as end:
                raise UsageError.about(
                    "the stream is shorter than when its state was saved",
                    found=f"the end after {done} samples",
                    expected=f"at least the {total} samples that were delivered before",
                    fix="resume with the data that were there, or begin the epoch again",
                ) from end

    def _whole(self, count: int, memory: BatchMemory) -> Any:
        """Returns a batch that the iterator made itself; None if one by one is how its bad samples are found."""
        if self._handler is not None:
            before = self._source.iterator_state()
        else:
            before = None

        if self._handler is not None and before is None:
            return None

        try:
            batch, got = self._source.next_batch(count, memory)
        except Exception as error:
            if self._handler is None or is_never_skipped(error):
                self._batches += 1
                raise

            self._source.rewind(before)
            return None

        self._batches += 1
        self._ended = got < count
        if got == 0 or (self._drop_last and got < count):
            raise StopIteration
        return batch

    def _own(self, count: int) -> list[Any]:
        samples: list[Any] = []
        for done in range(count):
            try:
                samples.append(self._source.next())
                if self._source.gives_packs:
                    for _, error in errors_of(samples[-1]):
                        raise error
            except StopIteration:
                self._ended = True
                if not done or self._drop_last:
                    raise
                break

        return samples

    def _fill(self, batch: StreamBatch, count: int) -> None:
        """Takes the samples of a batch: one is good, or there is a spare. Raises `StopIteration` at the end."""
        while not self._ended:
            if batch.length == count and not batch.has_good and self._spare is None:
                self._spare = self._source.peek(lambda sample: self._made([sample]))
                # A stream that begins with nothing but bad samples begins behind them.
                if self._spare is None:
                    batch.pass_over()

            if batch.length == count:
                break

            try:
                batch.add(self._source)
            except StopIteration:
                self._ended = True

        if not batch.length or (self._drop_last and batch.length < count):
            raise StopIteration

    def _dealt(self, deal: Deal, number: int, count: int) -> TakenSamples:
        """Takes this worker's global batch `number` from the stream. Raises `StopIteration` at the end."""
        source = self._source
        rank, size = deal.place.world
        mine = deal.share(number, count)
        start = mine.start - rank
        batch = StreamBatch(self._handler)
        others = StreamBatch(self._handler)
        share = count
        try:
            while source.position < start:
                others.read(source)
            for position in range(start, start + count * size):
                if position in mine:
                    batch.add(source)
                else:
                    others.read(source)
        except StopIteration:
            self._ended = True
            share = -(-max(source.position - start, 0) // size)
            if share == 0 or self._drop_last:
                raise

        return TakenSamples(batch, others, share)

    def _settled(self, taken: TakenSamples) -> tuple[list[Any], tuple[int, Any] | None]:
        """Returns the samples of a batch, and one that may serve the next batch as spare.

        At the end of the stream all ranks get equally many: one that is short repeats a sample of the last batch.
        """
        batch, others, share = taken
        beside = None
        if others is not None:
            beside = others.first
        samples, spare = batch.settled(self._spare or beside)
        # Ranks must take equally many steps, or the last one waits for ever in its all-reduce.
        if batch.length < share:
            repeated = beside or self._spare
            if samples:
                samples.append(samples[-1])
            elif repeated is not None:
                samples.append(repeated[1])
            else:
                raise SampleError.about(
                    "found no good sample for this rank's last batch",
                    place="the end of the stream",
                    expected="a stream whose samples are good in the main",
                    fix="see whether the dataset itself is at fault",
                )

        # Also packs without documents have the columns of those before.
        if spare is not None and samples and all(map(is_empty, samples)) and not is_empty(spare[1]):
            samples[0] = samples[0].with_columns_of(spare[1])
        return samples, spare

    def _collated(self, taken: TakenSamples, count: int) -> Any:
        """Returns the batch of samples that were taken, without those that cannot be collated."""
        self._source.let_go_of_state()
        if self._handler is None:
            return self._made(self._settled(taken)[0])

        losses = self._handler.losses

        def collate() -> Any:
            before = [*losses]
            try:
                samples, spare = self._settled(taken)
                batch = self._made(samples)
            except Exception:
                losses[:] = before
                raise
            self._spare = spare
            return batch

        return collated(collate, lambda: self._settles_odd_ones(taken, count))

    def _settles_odd_ones(self, taken: TakenSamples, count: int) -> bool:
        """Deals with samples that cannot be collated; tells whether there were any."""
        batch, others, _ = taken
        if not batch.settle_odd_ones(self._made):
            return others is not None and others.drop_first(self._made)
        if others is not None:
            return True

        try:
            self._fill(batch, count)
        except StopIteration:
            # Nothing of the stream can be collated: its samples are not to blame.
            return False
        return True

    def _made(self, samples: list[Any], numbers: Sequence[int] = ()) -> Any:
        """Returns samples as the collate function makes them a batch. numbers: of the samples, where they are a few."""
        note_collation(self._activity)
        if self._source.streams is not None:
            self._source.streams.enter(BATCH, self._source.position)

        try:
            return self._collate(samples if self._batched else samples[0])
        except Exception as error:
            if self._memory is not None and any(isinstance(sample, DocumentPack) for sample in samples):
                raise UsageError.about(
                    "packs of documents need a collate function of their own",
                    place="DataLoader(collate_fn=)",
                    found=f"default_collate, and packs of a PackedStream: {error}",
                    expected="headrace.collate_packed, or a function that calls it",
                    fix="DataLoader(..., collate_fn=headrace.collate_packed)",
                ) from error
            which = f"samples up to number {self._source.position - 1}"
            if numbers:
                which = f"sample number {' and '.join(map(str, numbers))}"
                if isinstance(samples[0], DocumentPack):
                    which = f"single documents of {which}"
            note(error, f"raised while collating {which} of this iterator")
            raise

    def _make_sure(self, deal: Deal) -> None:
        """Looks at the first sample: a dataset that splits itself must not be split again."""
        self._sure = True
        try:
            self._source.look_ahead()
        except StopIteration:
            self._ended = True
            raise

        if deal.place.claimed:
            self._deal = None
        elif deal.place.counted:
            raise UsageError.about(
                "this dataset would be split twice",
                place="shard='auto'",
                found="its __iter__ reads get_worker_info(), as datasets do that split themselves over the workers",
                expected="a dataset that yields the same samples in every worker, or one that uses headrace.shard",
                fix="leave shard= out, or replace the splitting in __iter__ by headrace.shard(...)",
            )
