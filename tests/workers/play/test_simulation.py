"""An epoch that is played through takes what its schedule takes, by hand and by recurrences."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.workers.play.cores import paces_of
from headrace.workers.play.simulation import COLD, WARM, seconds_for
from headrace.workers.play.work import Rules, Work

MANY = 64
"""Cores, so that nobody waits for one."""


def work(count: int = 0, **seconds: Any) -> Work:
    """Work of so many batches; what is not given takes no time, a number is for every batch."""
    arrays = {}
    for name in ("wait", "cpu", "send", "open", "pin", "loop"):
        given = seconds.pop(name, 0.0)
        count = count or (len(given) if not isinstance(given, (int, float)) else 0)
        arrays[name] = given
    full = {
        name: np.full(count, float(one)) if isinstance(one, (int, float)) else np.array(one, float)
        for name, one in arrays.items()
    }
    return Work(**full, **seconds)


parts = st.floats(0, 3).map(lambda value: round(value, 3))


@st.composite
def works(draw: st.DrawFn, *, most: int = 14, **kept: Any) -> Work:
    """Draws work whose batches differ."""
    count = draw(st.integers(1, most))
    names = [name for name in ("wait", "cpu", "send", "open", "pin", "loop") if name not in kept]
    drawn = {name: draw(st.lists(parts, min_size=count, max_size=count)) for name in names}
    return work(count, **drawn, **kept)


rules_of_any_kind = st.builds(
    Rules,
    workers=st.integers(1, 5),
    prefetch=st.integers(1, 4),
    in_order=st.booleans(),
    free=st.booleans(),
    cores=st.integers(1, 6),
)
played = settings(deadline=None, max_examples=80)


# -- schedules by hand -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("given", "rules", "expected"),
    [
        # one worker makes a batch a second, training takes 3: the first is waited for, then training is the slower one
        (work(4, cpu=1, loop=3), Rules(1, cores=MANY), 1 + 4 * 3),
        # and the other way round: the last is trained with after all were made
        (work(4, cpu=3, loop=1), Rules(1, cores=MANY), 4 * 3 + 1),
        # two workers: pairs are there at 3, 6, 9
        (work(6, cpu=3, loop=1), Rules(2, cores=MANY), 9 + 2 * 1),
        # the slow batch 0 of worker 0 holds up all the others in order, and worker 1 makes 1 and 3 (4 at once are out)
        (work(cpu=[10, 1, 1, 1, 1, 1], loop=0), Rules(2, cores=MANY), 10 + 1 + 1),
        # to whichever is free: worker 1 makes 1 and 3 beside it; behind it 2 by worker 0, 4 and 5 by worker 1 and 0
        (work(cpu=[10, 1, 1, 1, 1, 1], loop=0), Rules(2, free=True, cores=MANY), 12),
        # with enough batches ahead, worker 1 makes 1, 3, 4 and 5 meanwhile; 2 was given to worker 0
        (work(cpu=[10, 1, 1, 1, 1, 1], loop=0), Rules(2, 8, free=True, cores=MANY), 11),
        # as they come: 1, 3, 4, 5 of worker 1 at 1 to 4, since worker 0 has its share of two; then 0 and 2 of worker 0
        (work(cpu=[10, 1, 1, 1, 1, 1], loop=0), Rules(2, in_order=False, cores=MANY), 11),
        (work(cpu=[10, 1, 1, 1, 1, 1], loop=4), Rules(2, in_order=False, cores=MANY), 1 + 6 * 4),
        (work(cpu=[10, 1, 1, 1, 1, 1], loop=4), Rules(2, cores=MANY), 10 + 6 * 4),
        # one batch out at a time: the worker begins with the next when the one before is taken
        (work(3, cpu=2, loop=5), Rules(1, 1, cores=MANY), 2 + 3 * 5),
        (work(3, cpu=2, loop=1), Rules(1, 1, cores=MANY), 3 * 2 + 1),
        # what comes late: each batch half a second after it was sent, but the worker goes on meanwhile
        (work(4, cpu=3, loop=1, latency=0.5), Rules(1, cores=MANY), 4 * 3 + 0.5 + 1),
        # 3 workers that take 2 seconds each to start
        (work(3, cpu=1, loop=1, start=2), Rules(3, cores=MANY), 3 * 2 + 1 + 3 * 1),
        # unpacking and pinning are the main process's, like training
        (work(4, cpu=1, open=2, loop=1), Rules(1, cores=MANY), 1 + 4 * 3),
        (work(4, wait=1, cpu=1, send=1, loop=0), Rules(1, cores=MANY), 4 * 3),
        # batch 0 is late: worker 1 makes 1 and 3 by second 5, and 5 and 7 when 0 is there
        (work(cpu=[10, 1, 1, 4, 1, 4, 1, 4], loop=0), Rules(2, cores=MANY), 10 + 2 * 4),
        # nothing comes for 2.5 seconds, twice a usual batch over two workers: it makes 5 and 7 right behind 3
        (work(cpu=[10, 1, 1, 4, 1, 4, 1, 4], loop=0), Rules(2, cores=MANY, spare=3), 5 + 2 * 4),
        # two finished batches may wait: it makes 5, and 7 when 0 and 2 are there
        (work(cpu=[10, 1, 1, 4, 1, 4, 1, 4], loop=0), Rules(2, cores=MANY, spare=2), 10 + 1 + 4),
        # to whichever is free: worker 1 makes 1 and 3 by second 2, and from second 3 on seven more; six are left
        (work(cpu=[10, *[1] * 15], loop=0), Rules(2, free=True, cores=MANY, spare=16), 10 + 3),
        (work(cpu=[10, *[1] * 15], loop=0), Rules(2, free=True, cores=MANY), 10 + 7),
    ],
)  # fmt: skip
def test_small_schedules_are_as_by_hand(given: Work, rules: Rules, expected: float) -> None:
    assert seconds_for(given, rules) == pytest.approx(expected, abs=1e-6)


def test_an_epoch_without_batches_takes_no_time() -> None:
    assert seconds_for(work(0), Rules(2)) == seconds_for(work(0), Rules(0)) == 0.0


def recurrence(given: Work, workers: int, prefetch: int) -> float:
    """The schedule of round robin in order with cores for all: a batch is begun when its worker has made the one before
    and the main process has taken the one for which it made room."""
    making, using = given.wait + given.cpu + given.send, given.open + given.pin + given.loop
    limit = workers * prefetch
    made = np.zeros(len(given))
    taken, used = np.zeros(len(given)), given.start * workers
    first = used
    for task in range(len(given)):
        begun = max(
            first, made[task - workers] if task >= workers else 0.0, taken[task - limit] if task >= limit else 0.0
        )
        made[task] = begun + making[task]
        taken[task] = max(made[task] + given.latency, used)
        used = taken[task] + using[task]
    return float(used)


@given(works(latency=0.25, start=0.5), st.integers(1, 4), st.integers(1, 4))
@played
def test_round_robin_in_order_is_the_recurrence(given: Work, workers: int, prefetch: int) -> None:
    expected = recurrence(given, workers, prefetch)
    assert seconds_for(given, Rules(workers, prefetch, cores=MANY)) == pytest.approx(expected, abs=1e-6)


# -- bounds that every schedule keeps ----------------------------------------------------------------------------------


@pytest.mark.thorough
@given(works(), rules_of_any_kind)
@played
def test_no_epoch_is_shorter_than_its_training(given: Work, rules: Rules) -> None:
    assert seconds_for(given, rules) >= float((given.open + given.pin + given.loop).sum()) - 1e-6


@given(works(), rules_of_any_kind)
@played
def test_no_epoch_is_shorter_than_its_core_seconds_over_the_cores(given: Work, rules: Rules) -> None:
    whole = float((given.cpu + given.send + given.open + given.pin + given.loop * given.loop_cores).sum())
    assert seconds_for(given, rules) >= 0.99 * whole / rules.cores - 1e-6


@given(works(), rules_of_any_kind)
@played
def test_no_epoch_is_shorter_than_the_work_of_its_workers_over_their_number(given: Work, rules: Rules) -> None:
    whole = float((given.wait + given.cpu + given.send).sum())
    assert seconds_for(given, rules) >= whole / rules.workers - 1e-6


@pytest.mark.thorough
@given(works(), st.integers(1, 5), st.integers(1, 4), st.booleans(), st.booleans())
@played
def test_no_epoch_is_longer_than_one_thing_after_the_other(
    given: Work, workers: int, prefetch: int, in_order: bool, free: bool
) -> None:
    whole = float(sum(getattr(given, name).sum() for name in ("wait", "cpu", "send", "open", "pin", "loop")))
    assert seconds_for(given, Rules(workers, prefetch, in_order, free, cores=1)) <= whole + 1e-6


@given(works(), rules_of_any_kind)
@played
def test_without_workers_everything_comes_one_after_the_other(given: Work, rules: Rules) -> None:
    measured_here = replace(given, in_workers=False)
    expected = float((given.wait + given.cpu + given.pin + given.loop).sum())
    assert seconds_for(measured_here, replace(rules, workers=0)) == pytest.approx(expected)
    of_workers = seconds_for(given, replace(rules, workers=0))  # which take a moment more, since they slept before
    making = float((given.wait + given.cpu).sum())
    assert max(expected - COLD * len(given), expected - (1 - WARM) * making) - 1e-9 <= of_workers <= expected + 1e-9
    assert of_workers < expected or float(given.cpu.sum()) == 0.0


def test_what_batches_wait_for_is_not_shorter_without_workers() -> None:
    given = work(50, wait=1e-3, loop=2e-3)
    assert seconds_for(given, Rules(0)) == pytest.approx(50 * 3e-3)
    computing = work(50, cpu=1e-3, loop=2e-3)
    assert seconds_for(computing, Rules(0)) == pytest.approx(50 * (3e-3 - COLD))


# -- what helps, and what does not -------------------------------------------------------------------------------------


equal = st.tuples(st.integers(1, 20), parts, parts, parts).map(
    lambda drawn: work(drawn[0], wait=drawn[1], cpu=drawn[2], loop=drawn[3])
)


@given(equal, st.integers(1, 5), st.integers(1, 4), st.booleans())
@played
def test_more_batches_ahead_never_hurt_equal_batches(given: Work, workers: int, prefetch: int, free: bool) -> None:
    rules = Rules(workers, prefetch, free=free, cores=MANY)
    more = replace(rules, prefetch=prefetch + 1)
    assert seconds_for(given, more) <= seconds_for(given, rules) + 1e-6


@given(equal, st.integers(1, 5), st.integers(2, 4))
@played
def test_more_workers_never_hurt_equal_batches_while_there_are_cores(given: Work, workers: int, prefetch: int) -> None:
    rules = Rules(workers, prefetch, cores=MANY)
    more = replace(rules, workers=workers + 1)
    assert seconds_for(given, more) <= seconds_for(given, rules) + 1e-6


@given(works(), st.integers(1, 4), st.integers(1, 4))
@played
def test_more_cores_never_hurt_one_after_the_other(given: Work, workers: int, cores: int) -> None:
    rules = Rules(workers, cores=cores)
    assert seconds_for(given, replace(rules, cores=MANY)) <= seconds_for(given, rules) + 1e-6


@given(equal, st.integers(1, 4), st.integers(1, 4))
@played
def test_without_order_equal_batches_take_as_long_as_in_order(given: Work, workers: int, prefetch: int) -> None:
    rules = Rules(workers, prefetch, cores=MANY)
    assert seconds_for(given, replace(rules, in_order=False)) == pytest.approx(seconds_for(given, rules), abs=1e-6)


@given(works(), st.integers(1, 4), st.integers(1, 4))
@played
def test_one_worker_takes_as_long_in_any_order(given: Work, prefetch: int, cores: int) -> None:
    expected = seconds_for(given, Rules(1, prefetch, cores=MANY))
    for in_order in (True, False):
        assert seconds_for(given, Rules(1, prefetch, in_order, cores=MANY)) == pytest.approx(expected, abs=1e-6)


@pytest.mark.thorough
@given(works(), st.integers(1, 3))
@played
def test_quicker_stages_never_hurt_round_robin_in_order(given: Work, workers: int) -> None:
    rules = Rules(workers, cores=MANY)
    for name in ("wait", "cpu", "send", "open", "pin", "loop"):
        quicker = replace(given, **{name: getattr(given, name) * 0.5})
        assert seconds_for(quicker, rules) <= seconds_for(given, rules) + 1e-6


# -- cores are shared --------------------------------------------------------------------------------------------------


@given(st.integers(1, 12), st.floats(0.1, 3), st.integers(2, 5))
@played
def test_two_workers_on_one_core_take_as_long_as_one(count: int, cpu: float, workers: int) -> None:
    given = work(count, cpu=cpu, loop=0)
    alone = seconds_for(given, Rules(1, cores=1))
    assert seconds_for(given, Rules(workers, cores=1)) == pytest.approx(alone, abs=1e-5)
    assert alone == pytest.approx(count * cpu, abs=1e-5)


def test_two_workers_and_one_core_take_twice_as_long_as_with_two() -> None:
    given = work(10, cpu=1, loop=0)
    assert seconds_for(given, Rules(2, cores=2)) == pytest.approx(5, abs=1e-6)
    assert seconds_for(given, Rules(2, cores=1)) == pytest.approx(10, abs=1e-6)


def test_who_waits_for_something_else_needs_no_core() -> None:
    given = work(16, wait=1, loop=0)
    assert seconds_for(given, Rules(8, cores=1)) == pytest.approx(2, abs=1e-6)


def test_who_waits_half_of_the_time_is_slowed_down_by_as_much_as_cores_are_lacking() -> None:
    given = work(40, wait=0.5, cpu=0.5, loop=0)
    assert seconds_for(given, Rules(2, cores=1)) == pytest.approx(20, rel=1e-6)  # one core is just enough
    for workers in (4, 8):  # more than one core cannot be had
        assert seconds_for(given, Rules(workers, cores=1)) == pytest.approx(20, rel=0.05)


def test_a_loop_on_two_cores_shares_them_with_a_worker() -> None:
    given = work(40, cpu=1, loop=1, loop_cores=2)  # 3 core seconds a batch, on 2 cores
    assert seconds_for(given, Rules(1, cores=2)) == pytest.approx(60, rel=0.05)
    assert seconds_for(given, Rules(1, cores=3)) == pytest.approx(41, rel=0.01)


@given(st.lists(st.floats(0, 1) | st.floats(1, 4), min_size=1, max_size=12), st.integers(1, 6))
@settings(deadline=None)
def test_all_cores_are_taken_where_more_are_wanted(demands: list[float], cores: int) -> None:
    paces = paces_of(demands, cores)
    assert all(0 < pace <= 1 for pace in paces)
    taken = sum(demand * pace for demand, pace in zip(demands, paces, strict=True))
    assert taken == pytest.approx(min(sum(demands), cores), rel=0.01)
    if sum(demands) > cores:
        stretch = [
            (1 / pace - 1) / min(demand, 1) for demand, pace in zip(demands, paces, strict=True) if demand > 0.01
        ]
        assert stretch == pytest.approx([stretch[0]] * len(stretch), rel=1e-3)  # the core part of all by the same


@given(works(most=6), st.integers(2, 5))
@played
def test_parts_of_batches_have_the_same_work_in_all(given: Work, count: int) -> None:
    split = given.split(count)
    assert len(split) == count * len(given)
    for name in ("wait", "cpu", "send", "open", "pin", "loop"):
        assert getattr(split, name).sum() == pytest.approx(getattr(given, name).sum())
        assert getattr(split, name)[:count].tolist() == [getattr(given, name)[0] / count] * count
