"""The words of a stream: steps that are done as samples come by, and errors for words that need numbered samples."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, NoReturn

from torch.utils.data import IterableDataset

from headrace.core.errors import UsageError
from headrace.core.protocols import takes_encoded
from headrace.data.staged.steps import Step, as_step


class FluentStream(IterableDataset[Any]):
    """What streams of headrace share. `.map` returns a new stream, and leaves this one as it was."""

    def map(
        self,
        function: Callable[[Any], Any],
        *,
        random: bool | None = None,
        batched: bool = False,
        on: str | int | None = None,
        name: str | None = None,
        version: str | None = None,
    ) -> SteppedStream:
        """Returns the stream with one more step, done on each sample when it is read.

        Workers, ranks and states are those of the stream: each worker does the step on its own samples. Under
        `DataLoader(seed=)` the step draws from a random stream of each sample. An error of the step is one of that
        sample, which `on_error=` can skip.

        Args:
            function: takes a sample and returns one; see `headrace.step`, as for the others.
            random: whether it draws random numbers.
            batched: not for a stream.
            on: the key of the one part of a sample that it takes and returns.
            name: what messages call it.
            version: stands for its code.

        Returns:
            A new stream; this one stays as it is.

        Raises:
            UsageError: the step is a batched one.

        Examples:
            >>> np.save("x.npy", np.arange(3))
            >>> doubled = headrace.open("x.npy").stream().map(lambda value: 2 * value, on="data")
            >>> [int(sample["data"]) for sample in doubled]
            [0, 2, 4]
        """
        given = as_step(function, random=random, batched=batched, on=on, name=name, version=version)
        if given.batched:
            raise UsageError.about(
                "a step of a stream gets one sample at a time",
                place=".stream().map(batched=True)",
                found=str(given),
                expected="a step that takes a sample and returns one",
                fix="leave batched out, or leave .stream() out: data with numbered samples take batched steps",
            )

        source = self
        if takes_encoded(given.function):
            source = self.encoded(given.on)
        return SteppedStream(source, given)

    def encoded(self, part: str | int | None) -> FluentStream:
        """Returns the stream with images in this part of a sample left encoded; itself where there are none."""
        return self

    def cache(self, *arguments: Any, **words: Any) -> NoReturn:
        """Raises `UsageError`: what is kept must have a number for each sample."""
        raise _needs_numbers("cache", "data.map(...).cache(...), without .stream()")

    def select(self, *arguments: Any, **words: Any) -> NoReturn:
        """Raises `UsageError`: samples of a stream have no numbers."""
        raise _needs_numbers("select", "data.select(...), without .stream()")

    def split(self, *arguments: Any, **words: Any) -> NoReturn:
        """Raises `UsageError`: samples of a stream have no numbers."""
        raise _needs_numbers("split", "data.split(...), without .stream()")


class SteppedStream(FluentStream):
    """A stream whose samples go through a step; made by `.map` of a stream.

    Args:
        source: the stream that is read.
        step: what is done with each sample.

    Examples:
        >>> np.save("x.npy", np.arange(3))
        >>> doubled = headrace.open("x.npy").stream().map(lambda value: 2 * value, on="data")
        >>> next(iter(headrace.DataLoader(doubled, batch_size=3)))
        {'data': tensor([0, 2, 4])}
    """

    def __init__(self, source: FluentStream, step: Step) -> None:
        self._source = source
        self._step = step

    def __iter__(self) -> SteppedIterator:
        return SteppedIterator(iter(self._source), self._step)

    def __repr__(self) -> str:
        return f"{self._source!r}, {self._step}"


class SteppedIterator:
    """One pass over a stream with a step. Its state is that of the pass over the stream.

    A sample on which the step fails counts as read: the iterator goes on behind it.
    """

    def __init__(self, samples: Iterator[Any], step: Step) -> None:
        self._samples = samples
        self._step = step

    def __iter__(self) -> SteppedIterator:
        return self

    def __next__(self) -> Any:
        sample = next(self._samples)
        try:
            return self._step.apply(sample)
        except Exception as error:
            error.add_note(f"headrace: raised by the step {self._step.name!r} on {self.place_of_last(self._step.on)}")
            raise

    def place_of_last(self, part: str | int | None) -> str:
        """Returns where the last sample comes from. part: a column, if only one is meant."""
        place: str = self._samples.place_of_last(part)  # type: ignore[attr-defined]  # streams of headrace tell it
        return place

    def state_dict(self) -> Any:
        """Returns where the pass over the stream is."""
        return self._samples.state_dict()  # type: ignore[attr-defined]  # streams of headrace have states

    def load_state_dict(self, state_dict: Any) -> None:
        """Goes on behind the samples that were read."""
        self._samples.load_state_dict(state_dict)  # type: ignore[attr-defined]


def _needs_numbers(word: str, instead: str) -> UsageError:
    return UsageError.about(
        f".{word} needs samples that have numbers",
        place=f".stream().{word}",
        found="a stream, which is read from its beginning to its end",
        fix=f"write {instead}",
    )
