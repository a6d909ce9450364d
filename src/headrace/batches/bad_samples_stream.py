"""Bad samples of iterable datasets: whether the iterator can go on behind one, and what comes in its place."""

from __future__ import annotations

from collections.abc import Sequence
from types import GeneratorType
from typing import Any, Protocol

from headrace.batches.notes import note
from headrace.core.errors import SampleError
from headrace.core.randomness.counter_based import stream_key
from headrace.faults.bad_sample import BadSample
from headrace.faults.classify import IN_A_ROW, went_through_a_generator
from headrace.faults.handler import FaultHandler
from headrace.faults.replacements import SPARE
from headrace.packing.document_pack import DocumentPack

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
            bad, action = self._handler.judge(number, "load", error)
            if action == "replace":
                self._samples.append(bad)
            else:
                self._handler.losses.append(bad.settled("skip"))

    @property
    def has_good(self) -> bool:
        """Whether a good sample came."""
        return self.first is not None

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
        if good and self._handler is not None:
            next_spare = good[-1]

        if self._handler is None or len(good) == self.length:
            return [sample for _, sample in good], next_spare

        # All were skipped. An empty batch would put this rank behind the others, so that the last one is replaced.
        if not self._samples:
            self._samples.append(self._handler.losses.pop())

        choices = good
        if not choices and spare is not None:
            choices = [spare]

        samples = []
        for entry in self._samples:
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
