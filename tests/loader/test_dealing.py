"""`shard="auto"`: every sample of a stream once, whatever the ranks and workers; none twice, none left out."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import chain
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch.utils.data import IterableDataset, get_worker_info

import headrace
from headrace.core.errors import UsageError
from tests.epoch.datasets import Files

pytestmark = pytest.mark.filterwarnings("ignore:This DataLoader will create")


class Counting(IterableDataset[int]):
    def __init__(self, length: int) -> None:
        self.length = length

    def __iter__(self) -> Iterator[int]:
        return iter(range(self.length))


class SplitsItself(IterableDataset[int]):
    def __iter__(self) -> Iterator[int]:
        info = get_worker_info()
        worker, workers = (info.id, info.num_workers) if info is not None else (0, 1)
        return iter(range(worker, 12, workers))


class LooksAtItsNumber(Counting):
    """Reads which worker it is, not how many there are."""

    def __iter__(self) -> Iterator[int]:
        info = get_worker_info()
        assert info is None or info.id >= 0
        return super().__iter__()


@pytest.fixture
def on_every_rank(monkeypatch: pytest.MonkeyPatch) -> Callable[..., list[list[Any]]]:
    """Returns what each of some ranks is delivered."""

    def deliver(dataset: Any, ranks: int, **options: Any) -> list[list[Any]]:
        monkeypatch.setenv("WORLD_SIZE", str(ranks))
        delivered = []
        for rank in range(ranks):
            monkeypatch.setenv("RANK", str(rank))
            loader = headrace.DataLoader(dataset, shard="auto", **options)
            delivered.append([batch.tolist() if hasattr(batch, "tolist") else batch for batch in loader])
        return delivered

    return deliver


many = settings(deadline=None, max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture])


@pytest.mark.thorough
@many
@given(
    length=st.integers(0, 50),
    ranks=st.integers(1, 4),
    resources=st.sampled_from([(0, "process"), (1, "process"), (3, "process"), (1, "thread"), (3, "thread")]),
    batch=st.sampled_from([1, 2, 5]),
    drop=st.booleans(),
)
def test_a_stream_is_delivered_once(
    on_every_rank: Any, length: int, ranks: int, resources: tuple[int, Any], batch: int, drop: bool
) -> None:
    delivered = on_every_rank(
        Counting(length), ranks, batch_size=batch, num_workers=resources[0], backend=resources[1], drop_last=drop
    )
    assert len({len(batches) for batches in delivered}) == 1, "a collective would hang"
    assert len({tuple(map(len, batches)) for batches in delivered}) == 1
    samples = sorted(chain.from_iterable(chain.from_iterable(delivered)))
    if drop:
        assert samples == list(range(length - length % (batch * ranks)))
    else:
        assert sorted(set(samples)) == list(range(length))
        assert len(samples) - length < ranks


@pytest.mark.parametrize("resources", [(0, "process"), (2, "process"), (3, "thread")])
@pytest.mark.parametrize("ranks", [1, 3])
def test_whole_files_are_dealt_out_by_the_helper(on_every_rank: Any, resources: Any, ranks: int) -> None:
    every = [(file, line) for file in range(11) for line in range(3 + file % 4)]
    delivered = on_every_rank(Files(11), ranks, batch_size=None, num_workers=resources[0], backend=resources[1])
    assert sorted(map(tuple, chain.from_iterable(delivered))) == every
    readers = [{file for file, _ in samples} for samples in delivered]
    assert sum(map(len, readers)) == 11, "a file is read by one rank"


@pytest.mark.parametrize("resources", [(2, "process"), (2, "thread")])
def test_a_data_set_that_splits_itself_is_not_split_again(on_every_rank: Any, resources: Any) -> None:
    with pytest.raises(UsageError, match=r"(?s)would be split twice.*get_worker_info.*headrace.shard"):
        on_every_rank(
            SplitsItself(), 1, num_workers=resources[0], backend=resources[1], on_error=headrace.OnError(original=True)
        )
    assert len(on_every_rank(LooksAtItsNumber(12), 1, num_workers=2)[0]) == 12


def test_without_shard_every_worker_yields_the_whole_stream_as_in_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RANK", "1")
    monkeypatch.setenv("WORLD_SIZE", "2")
    loader = headrace.DataLoader(Counting(4), batch_size=None, num_workers=2)
    assert sorted(loader) == [0, 0, 1, 1, 2, 2, 3, 3]


def test_map_style_data_are_dealt_out_with_padding_or_without(on_every_rank: Any) -> None:
    padded = on_every_rank(list(range(10)), 3, batch_size=2)
    assert [len(batches) for batches in padded] == [2, 2, 2]
    assert set(chain.from_iterable(chain.from_iterable(padded))) == set(range(10))
    dropped = on_every_rank(list(range(10)), 3, batch_size=3, drop_last=True)
    assert sorted(chain.from_iterable(chain.from_iterable(dropped))) == list(range(9))


def test_a_seed_on_several_ranks_without_shard_is_warned_of_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RANK", "1")
    monkeypatch.setenv("WORLD_SIZE", "2")
    loader = headrace.DataLoader(list(range(4)), seed=1)  # type: ignore[arg-type, var-annotated]
    with pytest.warns(UserWarning, match="each of the 2 ranks loads all samples in one order. Add shard='auto'"):
        assert len(list(loader)) == 4
    assert len(list(loader)) == 4
    assert len(list(headrace.DataLoader(list(range(4)), seed=1, shard="auto"))) == 2  # type: ignore[arg-type]


class ShuffledFiles(IterableDataset[tuple[int, float]]):
    """Shuffles numbered files, takes its own, and draws a number for each line."""

    def __iter__(self) -> Iterator[tuple[int, float]]:
        for file in headrace.shard(headrace.rng().permutation(12).tolist()):
            for _ in range(3):
                yield file, float(headrace.rng().random())


@pytest.mark.parametrize("resources", [(0, "process"), (2, "process"), (3, "thread")])
@pytest.mark.parametrize("ranks", [1, 2])
def test_files_are_shuffled_alike_and_their_lines_drawn_apart(on_every_rank: Any, resources: Any, ranks: int) -> None:
    options = {"batch_size": None, "num_workers": resources[0], "backend": resources[1], "seed": 4}
    delivered = on_every_rank(ShuffledFiles(), ranks, **options)
    lines = list(chain.from_iterable(delivered))
    assert sorted(file for file, _ in lines) == sorted([*range(12)] * 3)
    assert [file for file, _ in lines] != sorted(file for file, _ in lines)
    assert len({number for _, number in lines}) == 36, "workers draw the same numbers"
    assert on_every_rank(ShuffledFiles(), ranks, **options) == delivered


def test_a_data_pipe_is_refused() -> None:
    from torch.utils.data.datapipes.iter import IterableWrapper

    with pytest.raises(UsageError, match=r"(?s)cannot deal out a data pipe.*sharding_filter"):
        headrace.DataLoader(IterableWrapper([1, 2]), shard="auto")
