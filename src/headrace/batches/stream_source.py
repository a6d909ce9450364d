"""One pass over an iterable dataset: its samples one by one, and its state."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterator
from types import GeneratorType
from typing import Any

from headrace.batches.bad_samples_stream import Ending
from headrace.batches.notes import note
from headrace.core.batch_memory import BatchMemory
from headrace.core.hugging_face_streams import Beginnings, going_on_from, is_hugging_face_stream, order_of
from headrace.core.missing_state import MissingState, state_of
from headrace.core.process.activity import LOAD, PLACE, STAGE, TOGETHER, Activity, private_activity
from headrace.core.protocols import answers, is_stateful, other_state_protocol
from headrace.core.randomness.resumed_generators import ResumedGenerators
from headrace.core.randomness.rng import SAMPLE, START, SampleStreams

PEEKED = 100
"""Samples that are looked at to find a good one, where a whole batch is bad."""


class StreamSource:
    """An iterator over a dataset that counts, seeds, names the sample that failed, and can be restored."""

    def __init__(
        self,
        dataset: Any,
        streams: SampleStreams | None,
        state: dict[str, Any] | None,
        activity: Activity | None = None,
        generators: ResumedGenerators | None = None,
    ) -> None:
        self._dataset = dataset
        if activity is None:
            self._activity = private_activity()
        else:
            self._activity = activity

        self._ending = Ending()
        self.streams = streams
        if generators is None:
            self.generators = ResumedGenerators()
        else:
            self.generators = generators

        state = state or {}
        is_restored = False
        self._beginnings: Beginnings | None = None
        self._order: dict[str, int] = {}
        if is_hugging_face_stream(dataset):
            self._order = order_of(dataset)
        if state.get("dataset") is not None and is_stateful(dataset):
            is_restored = True
            with self.generators.loading():
                dataset = self._dataset = self._restored(dataset, state)

        if streams is not None:
            streams.enter(START)

        # The state of a dataset goes in before `iter`, that of its iterator right behind: `__iter__` may already read
        # the first, and the second belongs to what it returns.
        with self.generators.making_iterator():
            self._iterator: Iterator[Any] = iter(dataset)

        self._iterator_has_state = is_stateful(self._iterator)
        # A dataset that is its own iterator has one state, not two.
        self._dataset_has_state = dataset is not self._iterator and is_stateful(dataset)
        self._missing: MissingState | None = None
        signature = other_state_protocol(self._iterator)
        if signature and dataset is not self._iterator:  # of the dataset, the loader speaks itself
            self._missing = MissingState(f"{type(self._iterator).__name__}.{signature}")

        if state.get("iterator") is not None and self._iterator_has_state:
            is_restored = True
            self._iterator.load_state_dict(state["iterator"])  # type: ignore[attr-defined]  # it was looked at

        self._next: Callable[[], Any] = functools.partial(next, self._iterator)
        self.gives_packs = answers(self._iterator, "next_pack")
        """Whether samples are packs, which may go without documents that were bad."""
        if self.gives_packs:
            self._next = self._iterator.next_pack  # type: ignore[attr-defined]  # `answers` has looked
        self._makes_batches = answers(self._iterator, "next_batch", 1, "out")
        self._ahead: list[Any] = []
        if is_restored:
            self.position = state.get("items", 0)
        else:
            self.position = 0

        self.to_replay = state.get("items", 0) - self.position

    def _restored(self, dataset: Any, state: dict[str, Any]) -> Any:
        """Returns the dataset with its state, for this pass."""
        if not is_hugging_face_stream(dataset):
            self._beginnings = Beginnings(dataset)
            dataset.load_state_dict(state["dataset"])
            return dataset
        if state["items"]:
            return going_on_from(dataset, state["dataset"])
        return dataset  # the state is that of the end of the epoch before

    def state(self) -> dict[str, Any]:
        """Returns the states of the dataset and of the iterator, where they have one, and the number of samples.

        Where one of them cannot be taken, `missing` says why, and there is neither.
        """
        of_iterator = of_dataset = None
        missing = self._missing
        if missing is None and self._iterator_has_state:
            of_iterator = state_of(self._iterator)  # type: ignore[arg-type]  # it was looked at
        if missing is None and self._dataset_has_state:
            of_dataset = state_of(self._dataset)

        for state in (of_iterator, of_dataset):
            if type(state) is MissingState:
                missing = state

        more: dict[str, Any] = {**self._order}
        if self.gives_packs:
            more["documents"] = self._iterator.documents  # type: ignore[attr-defined]  # beside `next_pack`
        if missing is not None:
            return {"items": self.position, "dataset": None, "iterator": None, "missing": missing.why, **more}
        return {"items": self.position, "dataset": of_dataset, "iterator": of_iterator, **more}

    def give_up_state(self, missing: MissingState) -> None:
        self._missing = missing

    def let_go_of_state(self) -> None:
        """Has later iterations of the dataset not begin at the state of this one, which has begun."""
        if self._beginnings is not None:
            self._beginnings.put_back()
        self._beginnings = None

    @property
    def has_begun(self) -> bool:
        iterator = self._iterator
        if not isinstance(iterator, GeneratorType):
            return True
        return inspect.getgeneratorstate(iterator) != inspect.GEN_CREATED

    def next(self) -> Any:
        """Returns the next sample. Raises `StopIteration` at the end."""
        if self._ahead:
            self.position += 1
            return self._ahead.pop()

        self._activity[STAGE] = LOAD
        self._activity[PLACE] = self.position
        if self.streams is not None:
            self.streams.enter(SAMPLE, self.position)

        try:
            sample = self._next()
        except StopIteration:
            self._ending.check()
            raise
        except Exception as error:
            note(error, f"raised while loading sample number {self.position} of this iterator")
            raise

        self.position += 1
        if self._ending.alarmed:
            self._ending.passed()
        return sample

    def pass_over(self, error: Exception) -> None:
        """Goes on behind a sample that raised. Raises `error` if the iterator cannot go on."""
        self._ending.note(error, self._iterator)
        self.position += 1

    def peek(self, collate: Callable[[Any], object]) -> tuple[int, Any] | None:
        """Returns the next good sample, with its number, and goes back; None without a state, or if there is none.

        collate: raises if a sample cannot be collated.
        """
        before = self.iterator_state()
        position = self.position
        if before is None:
            return None

        try:
            for number in range(position, position + PEEKED):
                try:
                    sample = next(self._iterator)
                    collate(sample)
                    return number, sample
                except StopIteration:
                    return None
                except Exception:  # noqa: BLE001 - another bad one; its own batch will judge it
                    continue
        finally:
            self.rewind(before)

        return None

    def rewind(self, state: object) -> None:
        """Takes an iterator back to where its `state_dict` returned `state`."""
        self._iterator.load_state_dict(state)  # type: ignore[attr-defined]

    def iterator_state(self) -> Any:
        """Returns the state of the iterator; None if it has none."""
        if not self._iterator_has_state:
            return None

        state = state_of(self._iterator)  # type: ignore[arg-type]  # it was looked at
        if type(state) is MissingState:
            return None
        return state

    def next_batch(self, count: int, out: BatchMemory) -> tuple[Any, int]:
        """Returns the next batch of an iterator that makes whole batches, and how many samples it has."""
        self._activity[STAGE] = LOAD
        self._activity[PLACE] = TOGETHER
        try:
            batch, got = self._iterator.next_batch(count, out=out)  # type: ignore[attr-defined]
        except Exception as error:
            note(error, f"raised while loading samples from number {self.position} of this iterator on")
            raise

        self.position += got
        return batch, got

    @property
    def makes_batches(self) -> bool:
        """Whether the iterator makes whole batches: `next_batch(count, out)` beside `__next__`."""
        return self._makes_batches and not self._ahead

    def look_ahead(self) -> None:
        """Has the dataset make its next sample, which `next` then returns. Raises `StopIteration` at the end."""
        self._ahead.append(self.next())
        self.position -= 1
