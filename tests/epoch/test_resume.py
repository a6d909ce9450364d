"""The state of a loader: what is left of an epoch is the same, bit for bit, whoever goes on with it."""

from __future__ import annotations

import io
import json
import warnings
from collections.abc import Callable, Iterator
from itertools import chain, islice
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

import headrace
from headrace.core.errors import UsageError

from .datasets import Counting, Drawing, DrawingEverywhere, Rows, SelfSplitting, StatefulStream, Stream

pytestmark = [
    pytest.mark.filterwarnings("ignore:This DataLoader will create"),
]

Run = Callable[..., Any]

workers = st.sampled_from(
    [(0, "process"), (1, "process"), (2, "process"), (3, "process"), (1, "thread"), (3, "thread")]
)
no_fixture_problem = settings(deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])


def lists(batches: Any) -> list[Any]:
    return [batch.tolist() if isinstance(batch, torch.Tensor) else batch for batch in batches]


def by_step(ranks: list[list[Any]]) -> list[Any]:
    """Global batches: the samples of all ranks at each step, in the order of the positions."""
    steps = []
    for parts in zip(*ranks, strict=True):
        rows = (
            zip(*parts, strict=True) if len({len(part) for part in parts}) == 1 else [list(chain.from_iterable(parts))]
        )
        steps.append([sample for row in rows for sample in row])
    return steps


def saved(state: Any) -> Any:
    """Through a file, as a checkpoint goes, without trusting it."""
    file = io.BytesIO()
    torch.save(state, file)
    file.seek(0)
    return torch.load(file, weights_only=True)


def run(loader: Any, stop: int) -> tuple[list[Any], Any]:
    """The first `stop` batches, and the state after them."""
    iterator = iter(loader)
    head = lists(next(iterator) for _ in range(stop))
    return head, saved(loader.state_dict())


class TestWithSeed:
    """The grid: workers and backend before and after, ranks before and after, position, map and stream."""

    GLOBAL_BATCH = 12

    def loader(self, dataset: Any, ranks: int, crew: tuple[int, str], **more: Any) -> Any:
        number, backend = crew
        options = {"persistent_workers": True} if more.pop("persistent", False) and number else {}
        return headrace.DataLoader(
            dataset,
            batch_size=more.pop("batch_size", self.GLOBAL_BATCH // ranks),
            shuffle=None if isinstance(dataset, torch.utils.data.IterableDataset) else True,
            num_workers=number,
            backend=backend,
            seed=7,
            shard="auto",
            **options,
            **more,
        )

    @pytest.mark.thorough
    @pytest.mark.parametrize("kind", [Drawing, DrawingEverywhere, Rows, Stream, StatefulStream])
    @given(
        before=workers,
        after=workers,
        ranks=st.tuples(st.sampled_from([1, 2, 3, 4]), st.sampled_from([1, 2, 3, 4])),
        length=st.sampled_from([96, 131, 132]),
        share=st.floats(0, 1),
        epoch=st.integers(0, 2),
        persistent=st.booleans(),
    )
    @example(before=(2, "process"), after=(3, "thread"), ranks=(2, 3), length=132, share=1.0, epoch=1, persistent=False)
    @settings(no_fixture_problem, max_examples=12)
    def test_the_rest_of_the_epoch_is_the_same(
        self,
        kind: Any,
        before: tuple[int, str],
        after: tuple[int, str],
        ranks: tuple[int, int],
        length: int,
        share: float,
        epoch: int,
        persistent: bool,
        on_rank: Any,
    ) -> None:
        length -= length % 12 if kind in (Stream, StatefulStream) else 0
        if kind is DrawingEverywhere:  # it draws from generators that threads share, which is an error there
            before, after = (before[0], "process"), (after[0], "process")
        on_rank(0, 1)
        reference = self.loader(kind(length), 1, (0, "process"))
        reference.set_epoch(epoch)
        whole, following, third = lists(reference), lists(reference), lists(reference)
        stop = int(share * (length // self.GLOBAL_BATCH))
        heads, states = [], []
        for rank in range(ranks[0]):
            on_rank(rank, ranks[0])
            loader = self.loader(kind(length), ranks[0], before, persistent=persistent)
            loader.set_epoch(epoch)
            head, state = run(loader, stop)
            heads.append(head)
            states.append(state)
        assert by_step(heads) == whole[:stop]
        merged = headrace.merge_states(states[::-1])
        rests, nexts = [], []
        for rank in range(ranks[1]):
            on_rank(rank, ranks[1])
            loader = self.loader(kind(length), ranks[1], after, persistent=persistent)
            loader.load_state_dict(merged)
            with warnings.catch_warnings():
                warnings.filterwarnings("ignore", ".*cannot say where it was")
                rests.append(lists(loader))
            nexts.append(lists(loader))
        full = length // self.GLOBAL_BATCH
        if stop == len(whole):  # a state behind the last batch is the beginning of the next epoch
            assert by_step(rests)[:full] == following[:full]
            assert by_step(nexts)[:full] == third[:full]
            return
        assert by_step(rests)[: full - stop] == whole[stop:full]
        assert by_step(nexts)[:full] == following[:full]
        if full < len(whole):
            tail = by_step(rests)[-1]
            assert len(tail) >= len(whole[full])
            assert sorted(map(str, whole[full])) == sorted(map(str, tail))[: len(whole[full])] or all(
                sample in tail for sample in whole[full]
            )

    def test_a_stateful_stream_is_not_read_again(self, on_rank: Any) -> None:
        on_rank(0, 1)
        _, state = run(self.loader(StatefulStream(120), 1, (2, "process")), 5)
        dataset = StatefulStream(120)
        loader = self.loader(dataset, 1, (0, "process"))
        loader.load_state_dict(state)
        assert len(lists(loader)) == 5
        assert dataset.made == 60

    def test_a_stream_without_a_state_is_replayed_with_a_warning(self, on_rank: Any) -> None:
        on_rank(0, 1)
        for crew in ((0, "process"), (2, "process"), (2, "thread")):
            _, state = run(self.loader(Stream(120), 1, crew), 5)
            loader = self.loader(Stream(120), 1, crew)
            loader.load_state_dict(state)
            with pytest.warns(UserWarning, match="Stream cannot say where it was.*60 samples are read again"):
                assert len(lists(loader)) == 5

    @pytest.mark.thorough
    @given(
        kind=st.sampled_from([Drawing, Stream, StatefulStream]),
        crews=st.lists(workers, min_size=3, max_size=3),
        sizes=st.lists(st.sampled_from([3, 5, 6, 11]), min_size=3, max_size=3),
        ranks=st.lists(st.sampled_from([1, 2, 3]), min_size=3, max_size=3),
        stops=st.tuples(st.integers(0, 3), st.integers(0, 3)),
    )
    @settings(no_fixture_problem, max_examples=12)
    def test_the_batch_size_may_change_too(
        self, kind: Any, crews: Any, sizes: Any, ranks: Any, stops: Any, on_rank: Any
    ) -> None:
        """Samples come in the same order, once each, through two restarts with other batch sizes and ranks."""
        seen: list[Any] = []
        state: Any = {}
        for crew, size, world, stop in zip(crews, sizes, ranks, (*stops, 1000), strict=True):
            parts, states = [], []
            for rank in range(world):
                on_rank(rank, world)
                loader = self.loader(kind(132), world, crew, batch_size=size)
                loader.load_state_dict(state)
                with warnings.catch_warnings():
                    warnings.filterwarnings("ignore", ".*cannot say where it was")
                    parts.append(lists(islice(loader, stop)))
                states.append(saved(loader.state_dict()))
            seen += list(chain.from_iterable(by_step(parts)))
            state = headrace.merge_states(states)
            if len(seen) >= 132:
                break  # from here on the next epoch would come
        on_rank(0, 1)
        whole = list(chain.from_iterable(lists(self.loader(kind(132), 1, (0, "process")))))
        assert seen[:132] == whole
        assert len(seen) - 132 < max(ranks), "only to make ranks even does a sample come twice"

    @pytest.mark.parametrize("crew", [(0, "process"), (2, "process"), (2, "thread")])
    def test_a_state_can_be_taken_before_the_first_batch_and_after_the_last(self, crew: Any, on_rank: Any) -> None:
        on_rank(0, 1)
        loader = self.loader(Drawing(60), 1, crew)
        fresh, epochs = saved(loader.state_dict()), [lists(loader) for _ in range(3)]
        again = self.loader(Drawing(60), 1, crew)
        again.load_state_dict(fresh)
        assert [lists(again) for _ in range(3)] == epochs
        iterator = iter(loader)
        for _ in range(5):
            next(iterator)
        last = saved(loader.state_dict())
        assert next(iterator, None) is None
        ended = saved(loader.state_dict())
        following = [lists(loader) for _ in range(2)]
        for state in (last, ended):
            again.load_state_dict(state)
            assert [lists(again) for _ in range(2)] == following

    def test_the_state_of_a_large_shuffle_is_small(self, on_rank: Any) -> None:
        on_rank(0, 1)
        loader = self.loader(Drawing(10**9), 1, (0, "process"))
        iterator = iter(loader)
        for _ in range(3):
            next(iterator)
        state = saved(loader.state_dict())
        assert len(json.dumps(state)) < 2048
        again = self.loader(Drawing(10**9), 1, (0, "process"))
        again.load_state_dict(state)
        assert next(iter(again)).tolist() == next(iterator).tolist()


class TestWithoutSeed:
    """Orders are torch's; the state holds the generators that they were drawn from."""

    def loader(self, crew: tuple[int, str], **options: Any) -> Any:
        number, backend = crew
        return headrace.DataLoader(Rows(61), batch_size=4, num_workers=number, backend=backend, **options)

    @pytest.mark.thorough
    @given(before=workers, after=workers, stop=st.integers(0, 15), epoch=st.integers(0, 2), persistent=st.booleans())
    @settings(no_fixture_problem, max_examples=12)
    @pytest.mark.parametrize("source", ["global", "generator", "sampler", "weighted", "numpy"])
    def test_a_random_order_goes_on(
        self, source: str, before: Any, after: Any, stop: int, epoch: int, persistent: bool
    ) -> None:
        def made(crew: tuple[int, str], seed: int) -> Any:
            torch.manual_seed(seed)
            generator = torch.Generator().manual_seed(seed)
            ways: dict[str, dict[str, Any]] = {
                "global": {"shuffle": True},
                "generator": {"shuffle": True, "generator": generator},
                "sampler": {"sampler": torch.utils.data.RandomSampler(range(61), generator=generator)},
                "weighted": {"sampler": torch.utils.data.WeightedRandomSampler([1.0] * 61, 61)},
                "numpy": {"sampler": ByNumPy(61)},
            }
            kept = {"persistent_workers": True} if persistent and crew[0] else {}
            return self.loader(crew, **ways[source], **kept)

        loader = made(before, 1)
        for _ in range(epoch):
            list(loader)
        iterator = iter(loader)
        for _ in range(stop):
            next(iterator)
        state = saved(loader.state_dict())
        rest = lists(iterator)
        resumed = made(after, 2)
        resumed.load_state_dict(state)
        untouched = torch.get_rng_state()
        assert lists(resumed) == rest
        assert torch.equal(torch.get_rng_state(), untouched)

    def test_the_state_before_the_first_batch_holds_the_order_to_come(self) -> None:
        for crew in ((0, "process"), (2, "process"), (2, "thread")):
            torch.manual_seed(3)
            loader = self.loader(crew, shuffle=True)
            state = saved(loader.state_dict())
            expected = lists(loader)
            torch.manual_seed(4)
            again = self.loader(crew, shuffle=True)
            again.load_state_dict(state)
            assert lists(again) == expected

    @pytest.mark.thorough
    @given(before=workers.filter(lambda crew: crew[0] > 0), after=workers, stop=st.integers(0, 15))
    @settings(no_fixture_problem, max_examples=12)
    def test_batches_delivered_out_of_order_do_not_come_twice(self, before: Any, after: Any, stop: int) -> None:
        loader = self.loader(before, in_order=False)
        iterator = iter(loader)
        head = lists(next(iterator) for _ in range(stop))
        resumed = self.loader(after, in_order=False)
        resumed.load_state_dict(saved(loader.state_dict()))
        assert sorted(head + lists(resumed)) == lists(self.loader((0, "process")))

    @pytest.mark.thorough
    @given(before=workers, after=workers, stop=st.integers(0, 12), stateful=st.booleans())
    @settings(no_fixture_problem, max_examples=40)
    def test_a_stream_that_depends_on_its_worker_goes_on_with_other_workers(
        self, before: Any, after: Any, stop: int, stateful: bool
    ) -> None:
        def made(crew: tuple[int, str]) -> Any:
            dataset = SelfSplitting(62, stateful)
            return headrace.DataLoader(dataset, batch_size=4, num_workers=crew[0], backend=crew[1])

        loader = made(before)
        iterator = iter(loader)
        for _ in range(stop):
            next(iterator)
        state = saved(loader.state_dict())
        rest = lists(iterator)
        resumed = made(after)
        resumed.load_state_dict(state)
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", ".*cannot say where it was")
            assert lists(resumed) == rest
        assert sorted(chain.from_iterable(lists(resumed))) == sorted(chain.from_iterable(lists(made(after))))

    @pytest.mark.parametrize("after", [(0, "process"), (1, "process"), (2, "process"), (3, "thread")])
    def test_a_map_style_dataset_with_a_state_goes_on_with_other_workers(self, after: Any) -> None:
        loader = headrace.DataLoader(Counting(40), batch_size=4, num_workers=2)
        iterator = iter(loader)
        for _ in range(3):
            next(iterator)
        state = saved(loader.state_dict())
        rest = lists(iterator)
        resumed = headrace.DataLoader(Counting(40), batch_size=4, num_workers=after[0], backend=after[1])
        resumed.load_state_dict(state)
        assert lists(resumed) == rest


class ByNumPy(torch.utils.data.Sampler[int]):
    """A sampler as people write it: drawn at once, from NumPy's global generator."""

    def __init__(self, length: int) -> None:
        self.length = length

    def __iter__(self) -> Iterator[int]:
        import numpy as np

        return iter(np.random.permutation(self.length).tolist())

    def __len__(self) -> int:
        return self.length


def test_threads_notice_draws_after_a_resume_at_the_end_of_an_epoch() -> None:
    def loader(number: int, backend: str) -> Any:
        data = DrawingEverywhere(24)
        return headrace.DataLoader(data, batch_size=12, shuffle=True, seed=5, num_workers=number, backend=backend)

    ended = loader(0, "process")
    iterator = iter(ended)
    for _ in range(2):
        next(iterator)
    resumed = loader(1, "thread")
    resumed.load_state_dict(saved(ended.state_dict()))
    with pytest.raises(UsageError, match=r"headrace\.rng\(\)"):
        next(iter(resumed))
