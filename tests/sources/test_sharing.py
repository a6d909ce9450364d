"""Which ranks share the spans of a log: those of one order, and with `headrace.Shard` all ranks of all replicas."""

from __future__ import annotations

from typing import Any

import pytest

import headrace
from headrace.core.errors import UsageError
from headrace.core.spans import Beginning
from headrace.core.world import World
from headrace.samplers.live import LiveSampler
from headrace.sources import ranks


def supply(monkeypatch: pytest.MonkeyPatch, world: World, store: object, sharers: int) -> Any:
    monkeypatch.setattr(ranks, "current_world", lambda: world)
    monkeypatch.setattr(ranks, "common_store", lambda: store)
    for name, role in (("DescribedSupply", "alone"), ("LeadingSupply", "leads"), ("FollowingSupply", "follows")):
        monkeypatch.setattr(ranks, name, lambda *arguments, role=role: role)
    given: Any = None
    return ranks.supply_for(given, given, Beginning(), given, key="a", sharers=sharers)


@pytest.mark.parametrize(
    ("world", "sharers", "expected"),
    [
        (World(0, 1), 1, "alone"),
        (World(1, 2), 0, "alone"),
        (World(0, 2), 2, "leads"),
        (World(1, 2), 2, "follows"),
        (World(0, 2), 1, "leads"),
        (World(1, 2), 1, "follows"),
    ],
)
def test_rank_0_leads_where_ranks_share_a_log(
    world: World, sharers: int, expected: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert supply(monkeypatch, world, object(), sharers) == expected


@pytest.mark.parametrize(("world", "sharers"), [(World(0, 1), 4), (World(1, 2), 1)])
def test_ranks_that_share_a_log_need_a_process_group(
    world: World, sharers: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(UsageError, match="must agree on its spans"):
        supply(monkeypatch, world, None, sharers)


class Log:
    """A log that keeps what the loader asks for."""

    endless = True

    def __init__(self) -> None:
        self.asked: dict[str, Any] = {}

    def __getitem__(self, key: object) -> object:
        return key

    def live_sampler(self, **order: Any) -> LiveSampler:
        self.asked = order
        return LiveSampler(lambda beginning, epoch: None, endless=True)  # type: ignore[arg-type, return-value]


@pytest.mark.parametrize(
    ("shard", "expected"),
    [
        (None, (0, 1, True)),
        ("auto", (None, None, False)),
        (headrace.Shard(0, 1), (0, 1, False)),
        (headrace.Shard(2, 3), (2, 3, False)),
    ],
)
def test_a_loader_says_whether_its_rank_has_an_order_of_its_own(shard: Any, expected: tuple[Any, ...]) -> None:
    log: Any = Log()
    headrace.DataLoader(log, shard=shard)
    assert (log.asked["rank"], log.asked["world_size"], log.asked["alone"]) == expected
