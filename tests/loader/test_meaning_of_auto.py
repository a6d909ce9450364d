"""What "auto" means for which loader, within what a number of workers is looked for, and which values are refused."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch.utils.data import IterableDataset

import headrace
from headrace.core.errors import UsageError
from headrace.loader import automatic as arguments
from headrace.workers.auto import scaling as automatic
from headrace.workers.auto.scaling import FOR_A_CORE, MOST_WORKERS, AutoScaler
from headrace.workers.auto.tuner import Choice, Limits
from headrace.workers.inline import InlineExecutor
from headrace.workers.threads import ThreadExecutor
from tests.workers.scripted import Drawing, Scripted

pytestmark = pytest.mark.usefixtures("looked_at_each_time")


class Stream(IterableDataset[int]):
    """Numbers, dealt out over the workers."""

    def __iter__(self) -> Iterator[int]:
        return iter(headrace.shard(range(40)))


class Stateful(Drawing):
    """Has a state, which lies in its workers."""

    def state_dict(self) -> dict[str, int]:
        return {"length": self.length}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.length = state["length"]


@pytest.mark.parametrize("dataset", [Stream(), Stateful()], ids=["stream", "stateful"])
def test_where_it_matters_who_loads_what_the_number_is_fixed(dataset: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(arguments, "cores", lambda: 5)
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "2")
    loader = headrace.DataLoader(dataset, 4, num_workers="auto")
    assert (loader.num_workers, loader._session.tuner, loader.persistent_workers) == (2, None, False)
    assert sum(len(batch) for batch in loader) == len(list(dataset)) if isinstance(dataset, Stream) else 160
    assert "decided" not in {one.kind for one in loader.recording.events}


@pytest.mark.parametrize(
    ("options", "workers", "prefetch", "tuned", "kind"),
    [
        ({"num_workers": "auto"}, 1, 2, True, AutoScaler),
        ({"num_workers": "auto", "prefetch_factor": 4}, 1, 4, True, AutoScaler),
        ({"num_workers": "auto", "prefetch_factor": "auto"}, 1, 2, True, AutoScaler),
        ({"num_workers": 2, "prefetch_factor": "auto"}, 2, 2, True, AutoScaler),
        ({"num_workers": 0, "prefetch_factor": "auto"}, 0, None, False, InlineExecutor),
        ({"num_workers": "auto", "backend": "inline"}, 0, None, False, InlineExecutor),
        ({"num_workers": "auto", "backend": "thread"}, 2, 2, False, ThreadExecutor),
        ({"num_workers": "auto", "backend": "auto"}, 1, 2, True, AutoScaler),
        ({"num_workers": 2, "prefetch_factor": "auto", "backend": "thread"}, 2, 2, False, ThreadExecutor),
    ],
)
def test_what_auto_means(
    options: dict[str, Any], workers: int, prefetch: int, tuned: bool, kind: type, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(arguments, "cores", lambda: 2)
    loader = headrace.DataLoader(range(40), 4, **options)
    assert (loader.num_workers, loader.prefetch_factor, loader._session.tuner is not None) == (workers, prefetch, tuned)
    iterator = iter(loader)
    assert type(iterator.executor) is kind
    assert [batch.tolist() for batch in iterator] == [list(range(first, first + 4)) for first in range(0, 40, 4)]
    tuner = loader._session.tuner
    if tuner is not None:
        chosen = options["num_workers"] == "auto", options.get("prefetch_factor") == "auto"
        assert (tuner.limits.tunes_workers, tuner.limits.tunes_prefetch) == chosen
        assert (loader.seed, loader.persistent_workers) == ((0, True) if chosen[0] else (None, False))


AHEAD_ONLY = Limits(most=2, budget=10**12, tunes_workers=False)


def test_batches_ahead_alone_are_tuned_without_a_seed() -> None:
    loader = headrace.DataLoader(range(160), 4, num_workers=2, prefetch_factor="auto")
    tuner = loader._session.tuner = Scripted((Choice(2, 8), Choice(2, 1), Choice(2, 3)), limits=AHEAD_ONLY, first=2)
    for _ in range(2):
        assert [batch.tolist() for batch in loader] == [list(range(first, first + 4)) for first in range(0, 160, 4)]
    assert (loader.setting.num_workers, loader.setting.prefetch_factor, tuner.now) == (2, 3, Choice(2, 3))
    assert set(loader.recording.batches["worker"].tolist()) == {0, 1}


@pytest.mark.parametrize(
    "options",
    [
        {"num_workers": "many"}, {"num_workers": "2"}, {"num_workers": None}, {"num_workers": headrace.Auto},
        {"prefetch_factor": "many"},
        {"on_stats": "print"},
    ],
)  # fmt: skip
def test_wrong_values_are_refused(options: dict[str, Any]) -> None:
    ((name, value),) = options.items()
    with pytest.raises(UsageError, match=rf"headrace.DataLoader\({name}=\)(?s:.*){value!r}"):
        headrace.DataLoader(range(4), **options)


@pytest.mark.parametrize("memory", [0, -1, 1.5, True, "much", "-3 GB", "3 bytes"])
def test_memory_is_a_number_of_bytes_or_text_with_a_unit(memory: Any) -> None:
    with pytest.raises(UsageError, match=rf"headrace.Auto\(memory=\)(?s:.*){memory!r}"):
        headrace.Auto(memory=memory)


def test_the_limits_are_those_of_the_machine_and_of_the_ranks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(automatic, "cores", lambda: 4)
    monkeypatch.setattr(automatic, "free_memory", lambda: 8 * 10**9)

    def limits(**options: Any) -> Any:
        options.setdefault("num_workers", "auto")
        return headrace.DataLoader(range(4), **options)._session.tuner.limits

    assert (limits().most, limits().budget) == (MOST_WORKERS, 4 * 10**9)
    assert limits(num_workers=headrace.Auto(memory=123)).budget == 123
    assert limits(num_workers=headrace.Auto(memory="1.5 GiB")).budget == 3 << 29
    assert limits().may_be_none
    assert not limits(worker_init_fn=print).may_be_none
    assert not limits(timeout=5).may_be_none
    assert not limits(on_error=headrace.OnError(timeout=5)).may_be_none
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "2")
    assert (limits().most, limits().budget) == (2 * FOR_A_CORE, 2 * 10**9)
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "8")
    assert limits().most == FOR_A_CORE


@pytest.mark.thorough
@pytest.mark.parametrize("workers", ["auto", 2])
def test_a_real_tuner_decides_by_what_it_measures(workers: Any) -> None:
    loader = headrace.DataLoader(Drawing(600), 4, shuffle=True, seed=3, num_workers=workers, prefetch_factor="auto")
    assert all(map(torch.equal, loader, headrace.DataLoader(Drawing(600), 4, shuffle=True, seed=3)))
    assert loader._session.tuner.limits.most >= loader.num_workers


class Whole(IterableDataset[int]):
    """Gives all of its numbers to each worker."""

    def __iter__(self) -> Iterator[int]:
        return iter(range(40))


@pytest.mark.parametrize(("options", "workers"), [({}, 1), ({"shard": "auto"}, 2)])
def test_a_stream_is_not_repeated_by_as_many_workers_as_there_are_cores(
    options: dict[str, Any], workers: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(arguments, "cores", lambda: 2)
    loader = headrace.DataLoader(Whole(), 4, num_workers="auto", **options)
    assert loader.num_workers == workers
    assert sorted(number for batch in loader for number in batch.tolist()) == list(range(40))


@pytest.mark.parametrize("prefetch_factor", [0, -1, 1.5, True])
def test_workers_that_are_found_by_measuring_need_batches_ahead(prefetch_factor: Any) -> None:
    with pytest.raises(UsageError, match=rf"headrace.DataLoader\(prefetch_factor=\)(?s:.*){prefetch_factor}"):
        headrace.DataLoader(range(4), num_workers="auto", prefetch_factor=prefetch_factor)
