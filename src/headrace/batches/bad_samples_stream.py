"""Bad samples of iterable datasets: whether the iterator can go on behind one, and what comes in its place."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from types import GeneratorType
from typing import Any, Protocol

from headrace.batches.notes import note
from headrace.batches.odd_samples import odd_ones_out
from headrace.core.errors import SampleError
from headrace.core.randomness.counter_based import stream_key
from headrace.faults.bad_sample import BadSample, Stage
from headrace.faults.classify import IN_A_ROW, went_through_a_generator
from headrace.faults.handler import FaultHandler
from headrace.faults.replacements import SPARE
from headrace.packing.document_pack import DocumentPack

Collate = Callable[[list[Any], list[int]], object]
"""Makes a batch of samples, or of packs with some of their documents; and is told their numbers."""

GENERATOR = (
    "a generator ends when it raises, so on_error= cannot continue after this sample: catch the exception inside of "
    "__iter__, or write the iterator as a class with __next__"
)


class SampleStream(Protocol):
    """What a batch takes its samples from: `stream_source.StreamSource`."""

    position: int
    """The number of the next sample."""

    def next(self) -> Any:
        """Returns the next sample. Raises `StopIteration` at the end."""

    def pass_over(self, error: Exception) -> None:
        """Goes on behind a sample that raised. Raises `error` if the iterator cannot go on."""


class Ending:
    """Tells the end of a stream from the end of a generator that an exception has killed."""

    def __init__(self) -> None:
        self.killed_by: Exception | None = None
        """What may have killed a generator; None as long as samples come."""
        self.reached = False
        """Whether a generator was found to be dead."""
        self.alarmed = False
        """Whether the last sample was bad."""
        self._in_a_row = 0

    def note(self, error: Exception, iterator: object) -> None:
        """Notes that a sample raised. Raises `error` if the iterator is a generator, which ends with that, or stuck."""
        self._in_a_row += 1
        if isinstance(iterator, GeneratorType):
            note(error, GENERATOR)
        if isinstance(iterator, GeneratorType) or self.reached or self._in_a_row >= IN_A_ROW:
            raise error

        # A class with `__next__` may ask a generator within: that one is dead now, though the iterator lives. Whether
        # the iterator can do without it shows at its next sample.
        self.alarmed = True
        if went_through_a_generator(error):
            self.killed_by = error
        else:
            self.killed_by = None

    def check(self) -> None:
        """Looks at an end: raises the exception if it came right behind a sample that raised within a generator."""
        if self.killed_by is not None:
            self.reached = True
            note(self.killed_by, GENERATOR)
            raise self.killed_by

    def passed(self) -> None:
        """Notes that a good sample came behind bad ones: the iterator lives."""
        self.killed_by = None
        self._in_a_row = 0
        self.alarmed = False


def errors_of(sample: Any) -> Sequence[tuple[int, Exception]]:
    """Returns the documents that a pack of a stream goes without: the number of each, and its exception."""
    if isinstance(sample, DocumentPack):
        return sample.errors
    return ()


def is_empty(sample: Any) -> bool:
    """Tells whether a sample is a pack without documents."""
    return isinstance(sample, DocumentPack) and not sample.documents


class StreamBatch:
    """The samples of one batch as they come, with what is to become of the bad ones."""

    def __init__(self, handler: FaultHandler | None) -> None:
        self._handler = handler
        self._samples: list[tuple[int, Any] | BadSample] = []
        self.length = 0
        """Samples that it took from the stream, the skipped ones too."""
        self.first: tuple[int, Any] | None = None
        """The first good sample, with its number."""
        self._latest: tuple[int, Any] | None = None

    def read(self, source: SampleStream) -> Exception | None:
        """Takes the next sample of a stream; returns the exception of a bad one. Raises `StopIteration` at the end."""
        number = source.position
        try:
            sample = source.next()
        except StopIteration:
            raise
        except Exception as error:
            if self._handler is None:
                raise
            source.pass_over(error)
            return error

        self._latest = number, sample
        if self.first is None:
            self.first = self._latest
        return None

    def _leave_out(self, errors: Sequence[tuple[int, Exception]]) -> None:
        """Counts the documents that a pack goes without. Raises the first of their exceptions if the policy does."""
        for number, error in errors:
            if self._handler is None:
                raise error
            bad, _ = self._handler.judge(number, "load", error)
            self._handler.losses.append(bad.settled("skip"))

    def add(self, source: SampleStream) -> None:
        """Takes the next sample of a stream into the batch, or judges it."""
        number = source.position
        error = self.read(source)
        self.length += 1
        if error is None and self._latest is not None:
            self._leave_out(errors_of(self._latest[1]))
            self._samples.append(self._latest)
        elif error is not None and self._handler is not None:
            self._samples += self._judged(self._handler, number, "load", error)

    def _judged(self, handler: FaultHandler, number: int, stage: Stage, error: Exception) -> list[BadSample]:
        """Returns the record of a bad sample that is to be replaced; of one that is skipped, nothing."""
        bad, action = handler.judge(number, stage, error)
        if action == "replace":
            return [bad]
        handler.losses.append(bad.settled("skip"))
        return []

    @property
    def has_good(self) -> bool:
        """Whether there is a good sample among those that came."""
        return any(isinstance(entry, tuple) for entry in self._samples)

    def settle_odd_ones(self, collate: Collate) -> bool:
        """Judges the samples that cannot be collated, or not with the others; tells whether there were any.

        Of packs, it judges their documents, and leaves out those that are bad, whatever the action.
        """
        if self._handler is None:
            return False

        good = [(place, *entry) for place, entry in enumerate(self._samples) if isinstance(entry, tuple)]
        if good and all(isinstance(sample, DocumentPack) for _, _, sample in good):
            return self._settle_odd_documents(self._handler, good, collate)

        def collate_some(chosen: list[int]) -> object:
            return collate([good[number][2] for number in chosen], [good[number][1] for number in chosen])

        odd = {good[number][0]: error for number, error in odd_ones_out(len(good), collate_some).items()}
        samples = self._samples
        self._samples = []
        for place, entry in enumerate(samples):
            if place in odd and isinstance(entry, tuple):
                self._samples += self._judged(self._handler, entry[0], "collate", odd[place])
            else:
                self._samples.append(entry)
        return bool(odd)

    def _settle_odd_documents(self, handler: FaultHandler, good: list[tuple[int, int, Any]], collate: Collate) -> bool:
        """Does so for packs, each with its place in the batch and its number."""
        pieces = [(entry, piece) for entry in good for piece in range(len(entry[2].documents))]

        def collate_some(chosen: list[int]) -> object:
            packs, numbers = [], []
            for entry in good:
                kept = [pieces[number][1] for number in sorted(chosen) if pieces[number][0] is entry]
                if kept:
                    packs.append(entry[2].with_some(kept))
                    numbers.append(entry[1])
            return collate(packs, numbers)

        odd = odd_ones_out(len(pieces), collate_some)
        for number, error in odd.items():
            (_, _, pack), piece = pieces[number]
            bad, _ = handler.judge(int(pack.numbers[piece]), "collate", error)
            handler.losses.append(bad.settled("skip"))

        for entry in good:
            kept = [piece for number, (of, piece) in enumerate(pieces) if of is entry and number not in odd]
            self._samples[entry[0]] = entry[1], entry[2].with_some(kept)
        return bool(odd)

    def drop_first(self, collate: Collate) -> bool:
        """Lets go of the first good sample if it cannot be collated; tells whether it did so."""
        if self.first is None:
            return False
        number, sample = self.first
        if not odd_ones_out(1, lambda _: collate([sample], [number])):
            return False
        self.first = None
        return True

    def pass_over(self) -> None:
        """Begins the batch anew behind what came so far, all of which is bad."""
        if self._handler is not None:
            for bad in self._samples:
                if isinstance(bad, BadSample):
                    self._handler.losses.append(bad.settled("skip"))

        self._samples = []
        self.length = 0

    def settled(self, spare: tuple[int, Any] | None) -> tuple[list[Any], tuple[int, Any] | None]:
        """Returns the samples of the batch, and one that may serve the next batch as `spare`.

        A bad sample is replaced by a good one of its batch, drawn at random, or by `spare` if there is none. A batch of
        which all are skipped gets `spare`, too. Raises `SampleError` if there is no good sample at all.
        """
        # The spare lives on into the next batch, and its memory with it: it is kept only where bad samples are settled.
        good = [entry for entry in self._samples if isinstance(entry, tuple)]
        next_spare = spare
        if self._handler is not None:
            # A pack without documents does not show which columns there are.
            next_spare = next((entry for entry in reversed(good) if not is_empty(entry[1])), spare)

        if self._handler is None or len(good) == self.length:
            return [sample for _, sample in good], next_spare

        # All were skipped. An empty batch would put this rank behind the others, so that the last one is replaced.
        entries = self._samples or [self._handler.losses.pop()]
        choices = good
        if not choices and spare is not None:
            choices = [spare]

        samples = []
        for entry in entries:
            if isinstance(entry, BadSample):
                number, sample = self._chosen(entry, choices)
                self._handler.losses.append(entry.settled("replace", number))
                samples.append(sample)
            else:
                samples.append(entry[1])

        return samples, next_spare

    def _chosen(self, bad: BadSample, good: list[tuple[int, Any]]) -> tuple[int, Any]:
        if good and self._handler is not None:
            return good[stream_key(SPARE, self._handler.seed, bad.epoch, bad.key) % len(good)]

        raise SampleError.about(
            "found no good sample for the place of a bad one",
            place=f"sample number {bad.key} of the stream",
            found=f"{bad.error.splitlines()[0]}, and no good sample before it",
            expected="a stream whose samples are good in the main",
            fix="see whether the dataset itself is at fault",
        ) from bad.exception
