"""`uneven="keep"`: some ranks have one batch more than others, and all of them end their epochs together."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import headrace
from headrace.samplers import DistributedSampler, LengthBucketBatchSampler

from .datasets import Rows
from .test_resume import no_fixture_problem, saved

Step = dict[int, list[int]]
"""What the ranks get in one step; those that have nothing left are missing."""


class Ranks:
    """So many ranks of a run, in one process, step by step."""

    def __init__(self, kind: str, length: int, ranks: int, size: int, on_rank: Any) -> None:
        self._on_rank = on_rank
        self.loaders = []
        for rank in range(ranks):
            on_rank(rank, ranks)
            if kind == "keys":
                given: dict[str, Any] = {"sampler": DistributedSampler(length, uneven="keep"), "batch_size": size}
            else:
                lengths = [key % 5 for key in range(length)]
                given = {"batch_sampler": LengthBucketBatchSampler(lengths, size, window=8, uneven="keep")}
            self.loaders.append(headrace.DataLoader(Rows(length), **given, seed=3))

    def epoch(self, stop: int | None = None) -> list[Step]:
        """An epoch, or its first steps. In each step, all ranks that are not at the end ask for a batch."""
        iterators = []
        for rank, loader in enumerate(self.loaders):
            self._on_rank(rank, len(self.loaders))
            iterators.append(iter(loader))

        steps: list[Step] = []
        going = set(range(len(iterators)))
        while going and (stop is None or len(steps) < stop):
            step: Step = {}
            for rank in sorted(going):
                self._on_rank(rank, len(self.loaders))
                batch = next(iterators[rank], None)
                if batch is None:
                    going.discard(rank)
                else:
                    step[rank] = batch.tolist()
            if step:
                steps.append(step)
        return steps

    def state(self) -> Any:
        """The state of all ranks."""
        states = []
        for rank, loader in enumerate(self.loaders):
            self._on_rank(rank, len(self.loaders))
            states.append(saved(loader.state_dict()))
        return headrace.merge_states(states)

    def load(self, state: Any) -> None:
        """Has all ranks go on from a state."""
        for rank, loader in enumerate(self.loaders):
            self._on_rank(rank, len(self.loaders))
            loader.load_state_dict(state)


def keys_of(steps: list[Step]) -> list[int]:
    return sorted(key for step in steps for batch in step.values() for key in batch)


@pytest.mark.thorough
@pytest.mark.parametrize("kind", ["keys", "batches"])
@given(
    length=st.integers(1, 40), ranks=st.integers(1, 4), after=st.integers(1, 4), size=st.integers(1, 4),
    stop=st.integers(0, 12),
)  # fmt: skip
@settings(no_fixture_problem)
def test_ranks_that_have_one_batch_less_end_the_epoch_with_the_others(
    kind: str, length: int, ranks: int, after: int, size: int, stop: int, on_rank: Any
) -> None:
    whole = Ranks(kind, length, ranks, size, on_rank)
    epochs = [whole.epoch(), whole.epoch()]
    assert keys_of(epochs[0]) == keys_of(epochs[1]) == list(range(length))

    stopped = Ranks(kind, length, ranks, size, on_rank)
    head = stopped.epoch(stop)
    assert head == epochs[0][:stop]
    state = stopped.state()
    resumed = Ranks(kind, length, ranks, size, on_rank)
    resumed.load(state)
    if len(head) == len(epochs[0]):
        assert resumed.epoch() == epochs[1]
    else:
        assert [resumed.epoch(), resumed.epoch()] == [epochs[0][stop:], epochs[1]]

    others = Ranks(kind, length, after, size, on_rank)
    others.load(state)
    if len(head) == len(epochs[0]):
        assert keys_of(others.epoch()) == list(range(length))
    else:
        assert sorted(keys_of(head) + keys_of(others.epoch())) == list(range(length))
        assert keys_of(others.epoch()) == list(range(length))


def test_states_at_the_very_end_are_merged(on_rank: Any) -> None:
    run = Ranks("keys", 5, 2, 1, on_rank)
    run.epoch()
    resumed = Ranks("keys", 5, 2, 1, on_rank)
    resumed.load(run.state())
    assert resumed.epoch() == run.epoch()
