"""Kills at random what reads by URL: the batches stay the same, the cache whole, and nothing is left."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.data.by_url import kills


@pytest.mark.thorough
def test_some_kills_change_nothing(tmp_path: Path) -> None:
    outcome = kills.run(7, range(6), tmp_path, seconds=240, servers=("nginx", "faulty"))
    assert outcome.findings == []
    assert outcome.rounds > 0
    assert outcome.killed.total() > 0


@pytest.mark.stress
def test_a_hundred_rounds_of_kills_change_nothing(tmp_path: Path) -> None:
    """Five of them with a server that stops for 30 seconds."""
    outcome = kills.run(kills.new_seed(), range(100), tmp_path, long_every=20, seconds=3600)
    assert outcome.findings == []
    assert outcome.rounds == 100
    assert outcome.killed.total() > 90


def test_rounds_are_drawn_from_the_seed_alone() -> None:
    sizes = dict.fromkeys(kills.FORMS, 2_000_000)
    plans = [kills.plan_of(3, number, ["nginx", "faulty"], sizes, long_stop=False) for number in range(200)]
    assert plans == [kills.plan_of(3, number, ["nginx", "faulty"], sizes, long_stop=False) for number in range(200)]
    assert {plan.form for plan in plans} == kills.FORMS.keys()
    assert {plan.workers for plan in plans} == {0, 2}
    assert {plan.limit for plan in plans} == {None, 1_000_000}
    victims = {event.victim for plan in plans for event in plan.events}
    assert victims == {"trainer", "worker", "io", "server", "stop"}
    long = kills.plan_of(3, 0, ["nginx"], sizes, long_stop=True)
    assert (long.events[0].victim, long.events[0].seconds) == ("stop", 30.0)
