"""Faults happen at their keys and positions, as often as they should, and nothing else changes."""

from __future__ import annotations

import pickle
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from torch.utils.data import DataLoader, IterableDataset

from headrace import DataLoader as OurLoader
from headrace.testing import Attempts, Exit, Faulty, FaultyStream, Raise

BAD = Raise(ValueError("bad pixel"))


class Numbers:
    """Samples are their keys."""

    color = "blue"

    def __len__(self) -> int:
        return 8

    def __getitem__(self, key: Any) -> Any:
        return key


class Batches(Numbers):
    """Reads several at once, and marks those."""

    def __getitems__(self, keys: list[int]) -> list[int]:
        return [key + 100 for key in keys]


class Counting(IterableDataset[int]):
    """Holds its state itself, and goes on from it in its next iterator."""

    def __init__(self) -> None:
        self.at = 0

    def __iter__(self) -> Iterator[int]:
        return self._from(self.at)

    def _from(self, start: int) -> Iterator[int]:
        for number in range(start, 6):
            self.at = number + 1
            yield number

    def state_dict(self) -> dict[str, int]:
        return {"at": self.at}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.at = state["at"]


def seen(source: Any, keys: Any = range(8)) -> list[Any]:
    samples: list[Any] = []
    for key in keys:
        try:
            samples.append(source[key])
        except ValueError:
            samples.append("bad")
    return samples


def drained(iterator: Iterator[Any]) -> list[Any]:
    samples: list[Any] = []
    while True:
        try:
            samples.append(next(iterator))
        except ValueError:
            samples.append("bad")
        except StopIteration:
            return samples


def test_the_faults_happen_at_their_keys_and_all_else_is_as_before() -> None:
    faulty = Faulty(Numbers(), {3: BAD, 5: BAD})
    assert seen(faulty) == [0, 1, 2, "bad", 4, "bad", 6, 7]
    assert (len(faulty), faulty.color, hasattr(faulty, "missing")) == (8, "blue", False)
    assert seen(faulty, [np.int64(3), [2, 3], [0, 1]]) == ["bad", "bad", [0, 1]]


def test_the_fault_happens_in_the_first_attempts_only() -> None:
    faulty = Faulty(Numbers(), {3: BAD}, times=2)
    assert [seen(faulty, [3]) for _ in range(4)] == [["bad"], ["bad"], [3], [3]]
    assert (faulty.attempts.of(3), faulty.attempts.of(4)) == (4, 0)


def test_several_are_read_at_once_only_where_the_data_set_does() -> None:
    assert not hasattr(Faulty(Numbers(), {}), "__getitems__")
    faulty = Faulty(Batches(), {3: BAD}, times=1)
    assert faulty.__getitems__([1, 2]) == [101, 102]
    with pytest.raises(ValueError, match="bad pixel"):
        faulty.__getitems__([2, 3])
    assert faulty.__getitems__([2, 3]) == [102, 103]


def test_a_fault_at_a_batch_spares_each_sample_alone() -> None:
    faulty = Faulty(Batches(), {3: BAD}, at="batch")
    with pytest.raises(ValueError, match="bad pixel"):
        faulty.__getitems__([2, 3])
    assert seen(faulty) == list(range(8))


@pytest.mark.parametrize(("source", "method"), [(Numbers(), "fork"), (Batches(), "fork"), (Batches(), "spawn")])
def test_a_loader_meets_the_fault_in_a_worker_and_not_again(source: Any, method: str) -> None:
    faulty = Faulty(source, {3: Exit(9)}, times=1)
    with pytest.raises(RuntimeError, match="exited unexpectedly"):
        list(DataLoader(faulty, batch_size=4, num_workers=1, multiprocessing_context=method))
    assert faulty.attempts.of(3) == 1
    batches = list(DataLoader(faulty, batch_size=4, num_workers=1))
    assert [batch.tolist()[0] % 100 for batch in batches] == [0, 4]


def test_copies_share_the_counter() -> None:
    with Attempts() as attempts:
        faulty = Faulty(Batches(), {3: BAD}, times=1, attempts=attempts)
        copy = pickle.loads(pickle.dumps(faulty))
        assert (seen(copy, [3]), seen(faulty, [3]), attempts.of(3)) == (["bad"], [3], 2)
        assert copy.__getitems__([3]) == [103]


def test_a_stream_goes_on_behind_a_bad_sample() -> None:
    stream = FaultyStream(range(6), {1: BAD, 2: BAD, 9: BAD})
    assert [drained(iter(stream)) for _ in range(2)] == [[0, "bad", "bad", 3, 4, 5]] * 2
    assert (stream.attempts.of(1), stream.attempts.of(9), len(stream)) == (2, 0, 6)


def test_a_stream_fails_so_many_times() -> None:
    stream = FaultyStream(range(3), {1: BAD}, times=1)
    assert [drained(iter(stream)) for _ in range(2)] == [[0, "bad", 2], [0, 1, 2]]


def test_positions_count_samples_at_which_the_stream_itself_failed() -> None:
    inner = FaultyStream(range(4), {0: BAD})
    assert drained(iter(FaultyStream(inner, {1: BAD}))) == ["bad", "bad", 2, 3]


def test_a_stream_has_a_state_where_the_wrapped_one_has() -> None:
    assert not hasattr(iter(FaultyStream(range(6), {})), "state_dict")
    iterator: Any = iter(FaultyStream(Counting(), {4: BAD}))
    assert [next(iterator) for _ in range(3)] == [0, 1, 2]
    state = iterator.state_dict()
    again: Any = iter(FaultyStream(Counting(), {4: BAD}))
    again.load_state_dict(state)
    assert drained(again) == [3, "bad", 5]


def test_workers_share_the_count_of_a_stream() -> None:
    stream = FaultyStream(range(4), {2: BAD}, times=1)
    loader = OurLoader(stream, batch_size=None, num_workers=2)
    with pytest.raises(ValueError, match="bad pixel"):
        list(loader)
    assert sorted(OurLoader(stream, batch_size=None, num_workers=2)) == [0, 0, 1, 1, 2, 2, 3, 3]
