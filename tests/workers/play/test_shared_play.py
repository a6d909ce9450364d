"""Batches that several workers make together are played as their schedules say, by hand and within bounds."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.workers.play.simulation import seconds_for
from headrace.workers.play.work import Rules, Work

MANY = 64
"""Cores, so that nobody waits for one."""

ALONE = Rules(4, free=True, cores=MANY, spare=100)
TOGETHER = replace(ALONE, shares=True)


def work(making: list[float], single: list[float] | None = None, *, loop: float = 0.0, **kept: Any) -> Work:
    """Batches of 8 samples that wait for so many seconds, of which their slowest sample takes a share."""
    seconds = np.array(making, float)
    none = np.zeros(len(seconds))
    shares = None if single is None else np.array(single, float)
    full = {"cpu": none, "send": none, "open": none, "pin": none, "loop": np.full(len(seconds), loop), "samples": 8}
    return Work(wait=seconds, single=shares, **{**full, **kept})


def slow_at(places: list[int], count: int, *, seconds: float = 17.0) -> Work:
    """Batches of 8 seconds; in some of them one sample takes `seconds` by itself."""
    making = np.full(count, 8.0)
    single = np.full(count, 1 / 8)
    making[places] += seconds - 1
    single[places] = seconds / making[places]
    return work(making.tolist(), single.tolist())


@pytest.mark.parametrize(
    ("given", "alone", "together"),
    [
        # the only batch, 8 samples of a second: four workers make two each
        (work([8]), 8, 2),
        # the first of five batches is cut, too, and so is the last: nobody is idle for long
        (work([8] * 5), 16, 10),
        # one sample takes 17 seconds, and is the first of its worker's two; another one makes the second
        (slow_at([0], 1), 24, 17),
        # a worker begins the last batch when the first is there; others make the 3.5 seconds behind its slow sample
        (slow_at([4], 5), 8 + 24, 2 + 3.5 + 17),
    ],
)  # fmt: skip
def test_small_schedules_are_as_by_hand(given: Work, alone: float, together: float) -> None:
    assert seconds_for(given, ALONE) == pytest.approx(alone)
    assert seconds_for(given, TOGETHER) == pytest.approx(together, rel=0.05)


def test_a_first_batch_of_quick_samples_is_made_by_one_worker() -> None:
    quick = work([0.9e-3])
    assert seconds_for(quick, TOGETHER) == seconds_for(quick, ALONE) == pytest.approx(0.9e-3)


def test_workers_help_only_where_batches_are_worth_the_messages() -> None:
    quick = work([0.5e-3] * 9 + [10e-3], [1 / 8] * 10)
    assert seconds_for(quick, TOGETHER) == pytest.approx(seconds_for(quick, ALONE))


def test_samples_that_are_alike_gain_nothing_in_a_long_epoch() -> None:
    even = work([8.0] * 400)
    assert seconds_for(even, TOGETHER) == pytest.approx(seconds_for(even, ALONE), rel=0.01)


def test_the_more_of_a_late_batch_is_one_sample_the_less_others_can_help() -> None:
    took = []
    for share in (1 / 8, 0.5, 0.9, 1.0):
        single = [1 / 8] * 20
        single[-1] = share
        took.append(seconds_for(work([8.0] * 19 + [80.0], single), TOGETHER))
    assert took == sorted(took)
    assert took[-1] > took[0] + 40


def test_a_slow_sample_that_is_known_is_begun_before_its_batch() -> None:
    given = replace(slow_at([30], 40, seconds=40.0), loop=np.full(40, 3.0))
    later = seconds_for(replace(given, slow_known=True), TOGETHER)
    assert later < seconds_for(given, TOGETHER) - 10
    few = replace(TOGETHER, spare=0)  # as where nobody may ask the sampler early
    assert seconds_for(replace(given, slow_known=True), few) == seconds_for(given, few)


def test_batches_are_not_shared_out_of_order_nor_by_one_worker() -> None:
    given = slow_at([3, 9], 12)
    for rules in (replace(TOGETHER, in_order=False), replace(TOGETHER, workers=1), replace(TOGETHER, workers=0)):
        assert seconds_for(given, rules) == seconds_for(given, replace(rules, shares=False))


# -- bounds that every schedule keeps ----------------------------------------------------------------------------------

numbers = st.floats(0, 3).map(lambda value: round(value, 3))


@st.composite
def works(draw: st.DrawFn) -> Work:
    """Draws batches that differ, and whose slowest samples take any share of them."""
    count = draw(st.integers(1, 14))
    making = draw(st.lists(numbers, min_size=count, max_size=count))
    single = draw(st.lists(st.floats(0, 1), min_size=count, max_size=count))
    samples = draw(st.integers(1, 20))
    return work(making, single, loop=draw(numbers), samples=samples, slow_known=draw(st.booleans()))


shared = st.builds(
    Rules,
    workers=st.integers(2, 5),
    prefetch=st.integers(1, 4),
    free=st.just(True),
    cores=st.just(MANY),
    ahead=st.integers(2, 4),
    spare=st.sampled_from([0, 2, 100]),
    shares=st.just(True),
)


@pytest.mark.thorough
@given(works(), shared)
@settings(deadline=None, max_examples=300)
def test_no_epoch_is_shorter_than_its_work_allows_nor_longer_than_one_thing_after_the_other(
    given: Work, rules: Rules
) -> None:
    took = seconds_for(given, rules)
    assert given.single is not None
    assert took >= float(given.loop.sum()) - 1e-6
    assert took >= float(given.wait.sum()) / rules.workers - 1e-6
    assert took >= float((given.wait * given.single).max()) - 1e-6
    assert took <= float((given.wait + given.loop).sum()) + 1e-6
