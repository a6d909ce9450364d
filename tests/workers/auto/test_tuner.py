"""The tuner reaches the best setting of a modelled loop, within the memory, and then leaves it alone."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from headrace.telemetry.recording import BATCH, MAIN, Recording, Setting
from headrace.workers.auto.tuner import SLACK, Choice, Limits, Taken, Tuner

MS = 1e-3
ROOM = 10**12
NOTHING = Taken(0.0, 0.0)


@dataclass(frozen=True)
class Model:
    """What a batch takes in seconds: to wait, of a core, to hand over, and to train with; on so many cores."""

    wait: float = 0.0
    cpu: float = 0.0
    open: float = 0.0
    loop: float = 0.0
    cores: int = 64
    hump: float = 0.0
    """By which share batches take longer for each worker beyond four: a disk whose head is moved about."""
    uneven: float = 0.0
    """By which share batches come later with only one ahead; half with two, and so on."""

    def period(self, choice: Choice) -> float:
        """Seconds from one batch to the next."""
        workers, prefetch = choice
        if workers == 0:
            return self.wait + self.cpu + self.loop
        making = self.wait * (1 + self.hump * max(workers - 4, 0)) + self.cpu
        busy = (self.cpu + self.open + self.loop) / self.cores
        return max(making / workers, busy, self.open + self.loop) * (1 + self.uneven / prefetch)

    def rows(self, choice: Choice, ends: np.ndarray, first: int) -> np.ndarray:
        """Batches that are delivered at these times."""
        rows, period = np.zeros(len(ends), BATCH), self.period(choice)
        for name in BATCH.names or ():
            if BATCH[name].kind == "f":
                rows[name] = np.nan
        rows["number"] = first + np.arange(len(ends))
        rows["samples"] = 8
        rows["delivered"] = ends
        making = self.wait + self.cpu
        rows["asked"] = ends - (period - self.loop)
        rows["load_cpu"] = rows["cpu"] = self.cpu
        rows["main_cpu"] = rows["loop_cpu"] = self.loop + (self.open if choice.workers else 0.0)
        rows["loop_queued"] = 0.0
        if choice.workers == 0:
            rows["worker"], rows["begun"] = MAIN, rows["asked"]
            rows["loaded"] = rows["collated"] = rows["asked"] + making
            return rows
        spent = max(period * choice.workers, making) if period > self.loop + self.open else making
        rows["worker"] = np.arange(len(ends)) % choice.workers
        rows["opened"], rows["pinned"] = self.open, 0.0
        rows["sent"] = rows["arrived"] = rows["collated"] = rows["loaded"] = ends - self.open
        rows["begun"] = rows["loaded"] - spent
        rows["queued"] = max(spent - making, 0.0)
        rows["posted"] = rows["begun"] - period * choice.workers
        return rows


@dataclass
class Training:
    """A loop that goes on by a model, looked at by a tuner every 0.2 seconds of a clock of its own."""

    model: Model
    tuner: Tuner
    taken: Callable[[Choice], Taken] = lambda choice: NOTHING
    noise: float = 0.0
    now: float = 100.0
    changes: list[Choice] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.chance = np.random.default_rng(0)
        self.batches = np.zeros(0, BATCH)
        self.tuner.changed(self.now)
        self.delivered, self.due = 0, self.now

    def run(self, seconds: float, *, until: Callable[[], bool] = lambda: False) -> None:
        """Trains for so long, or until something holds behind a look."""
        end = self.now + seconds
        while self.now < end and not until():
            self.now += 0.2
            choice = self.tuner.now
            ends = []
            while self.due <= self.now:
                ends.append(self.due)
                self.due += self.model.period(choice) * (1 + self.noise * self.chance.uniform(-1, 1))
            rows = self.model.rows(choice, np.array(ends), self.delivered)
            self.delivered += len(rows)
            self.batches = np.concatenate([self.batches, rows])[-4096:]
            setting = Setting(num_workers=choice.workers, prefetch_factor=choice.prefetch, cores=self.model.cores)
            recording = Recording(batches=self.batches, setting=setting)
            changed = self.tuner.look(self.now, recording, self.taken(choice))
            if changed is not None:
                assert changed == self.tuner.now
                self.changes.append(changed)
                self.tuner.changed(self.now)
                self.due = max(self.due, self.now) + self.model.wait + self.model.cpu  # the pipe fills anew

    def pause(self, seconds: float) -> None:
        """Does something else for so long, before the next batch is asked for."""
        self.now += seconds
        self.due += seconds

    def settle(self, seconds: float = 400.0) -> Choice:
        """Trains until the tuner has settled."""
        self.run(seconds, until=lambda: self.tuner.settled)
        assert self.tuner.settled
        return self.tuner.now


def limits(most: int = 16, budget: int = ROOM, **rest: Any) -> Limits:
    return Limits(most, budget, **rest)


def best(model: Model, most: int) -> float:
    return min(model.period(Choice(workers, ahead)) for workers in range(most + 1) for ahead in (2, 4, 8, 16))


STORAGE = Model(wait=100 * MS, cpu=1 * MS, loop=5 * MS, cores=2)
ENOUGH = Model(wait=50 * MS, cpu=1 * MS, loop=10 * MS, cores=2)
DECODING = Model(cpu=20 * MS, loop=1 * MS, cores=2)
MANY_CORES = Model(cpu=20 * MS, loop=2 * MS, cores=16)
CHEAP = Model(cpu=0.5 * MS, open=1.5 * MS, loop=0.5 * MS, cores=2)
TRAINING = Model(cpu=10 * MS, loop=50 * MS, cores=2)
HUMP = Model(wait=60 * MS, cpu=1 * MS, loop=1 * MS, cores=4, hump=0.12)
UNEVEN = Model(wait=50 * MS, cpu=1 * MS, loop=1 * MS, cores=8, uneven=0.8)
SLOW = Model(wait=2.0, cpu=0.1, loop=0.2, cores=4)

models = pytest.mark.parametrize(
    "model",
    [STORAGE, ENOUGH, DECODING, MANY_CORES, CHEAP, TRAINING, HUMP, UNEVEN, SLOW],
    ids=["storage", "enough", "decoding", "many cores", "cheap", "training", "hump", "uneven", "slow"],
)


@models
def test_the_best_setting_is_reached_and_kept(model: Model) -> None:
    training = Training(model, Tuner(limits(), Choice(1, 2)))
    found = training.settle()
    assert model.period(found) <= 1.05 * best(model, 16)
    assert len(training.changes) < 20
    before = len(training.changes)
    training.run(100)
    assert len(training.changes) == before
    assert training.tuner.now == found


@models
def test_noise_neither_misleads_nor_unsettles(model: Model) -> None:
    training = Training(model, Tuner(limits(), Choice(1, 2)), noise=0.2)
    found = training.settle()
    assert model.period(found) <= 1.08 * best(model, 16)
    before = len(training.changes)
    training.run(100)
    assert len(training.changes) == before


@pytest.mark.parametrize(
    ("model", "workers"), [(ENOUGH, {5, 6}), (DECODING, {2}), (CHEAP, {0}), (TRAINING, {1}), (STORAGE, {15, 16})]
)
def test_no_more_workers_are_taken_than_are_of_use(model: Model, workers: set[int]) -> None:
    training = Training(model, Tuner(limits(), Choice(1, 2)))
    assert training.settle().workers in workers


def test_the_reason_says_what_was_measured() -> None:
    training = Training(DECODING, Tuner(limits(), Choice(1, 2)))
    assert training.tuner.reason == "to begin with"
    training.run(60, until=lambda: bool(training.changes))
    assert "predicted to be" in training.tuner.reason
    training.settle()
    assert "2 workers: " in training.tuner.reason
    assert "batches/s" in training.tuner.reason


# -- limits ------------------------------------------------------------------------------------------------------------


@models
@pytest.mark.parametrize("most", [1, 3])
def test_no_setting_is_beyond_the_most_workers(model: Model, most: int) -> None:
    training = Training(model, Tuner(limits(most), Choice(1, 2)))
    assert model.period(training.settle()) <= 1.05 * best(model, most)
    assert all(choice.workers <= most for choice in training.changes)


def test_where_there_must_be_workers_there_are() -> None:
    training = Training(CHEAP, Tuner(limits(may_be_none=False), Choice(1, 2)))
    assert training.settle().workers == 1
    assert all(choice.workers >= 1 for choice in training.changes)


@models
def test_what_is_not_to_be_tuned_stays(model: Model) -> None:
    training = Training(model, Tuner(limits(tunes_prefetch=False), Choice(1, 3)))
    training.settle()
    assert {choice.prefetch for choice in training.changes} <= {3}
    training = Training(model, Tuner(limits(4, tunes_workers=False), Choice(4, 2)))
    training.settle()
    assert {choice.workers for choice in training.changes} <= {4}


def test_more_batches_ahead_are_taken_where_they_help() -> None:
    training = Training(UNEVEN, Tuner(limits(4, tunes_workers=False), Choice(4, 2)))
    assert training.settle().prefetch >= 8
    even = Training(replace(UNEVEN, uneven=0.0), Tuner(limits(4, tunes_workers=False), Choice(4, 2)))
    assert even.settle().prefetch == 2


sizes = st.floats(0, 3e9)


@pytest.mark.thorough
@given(st.sampled_from([STORAGE, UNEVEN, SLOW]), sizes, sizes, st.integers(10**8, 3 * 10**10))
@settings(deadline=None, max_examples=25)
def test_nothing_is_tried_that_does_not_fit_into_the_memory(
    model: Model, worker: float, batch: float, budget: int
) -> None:
    training = Training(model, Tuner(limits(budget=budget), Choice(1, 2)), lambda choice: Taken(worker, batch))
    training.run(60)
    for workers, prefetch in training.changes:
        smallest = workers <= 1 and prefetch <= 2
        assert smallest or workers * (worker + (prefetch + 1) * batch) <= budget


@given(st.floats(1e6, 3e9), st.integers(10**8, 3 * 10**10))
@example(266010207.0, 3_059_096_892)  # nine fit, but not three more than the eight that are tried first
@settings(deadline=None, max_examples=25)
def test_within_the_memory_the_best_that_fits_is_reached(worker: float, budget: int) -> None:
    most = max(min(int(budget / (SLACK * worker)), 16), 1)
    training = Training(STORAGE, Tuner(limits(budget=budget), Choice(1, 2)), lambda choice: Taken(worker, 0.0))
    found = training.settle()
    assert STORAGE.period(found) <= 1.1 * best(STORAGE, most)


def test_workers_are_retired_when_their_memory_grows() -> None:
    size = 100e6
    training = Training(STORAGE, Tuner(limits(budget=2 * 10**9), Choice(1, 2)), lambda choice: Taken(size, 1e6))
    assert training.settle().workers >= 14
    size = 400e6
    training.run(20)
    assert training.tuner.now.workers * (400e6 + 3e6) <= 2 * 10**9
    assert training.tuner.now.workers == 4
    assert "memory" in training.tuner.reason
    before = len(training.changes)
    training.run(100)
    assert len(training.changes) == before  # and are not brought back
    size = 10e9
    training.run(20)
    assert training.tuner.now.workers == 1  # without one there is nothing


@pytest.mark.thorough
def test_workers_whose_memory_grows_while_it_is_looked_are_not_brought_back_again_and_again() -> None:
    """Each worker grows with the time that it is there: at first all fit."""
    training = Training(
        STORAGE, Tuner(limits(budget=2 * 10**9), Choice(1, 2)), lambda choice: Taken(50e6 * (training.now - 99), 0.0)
    )
    training.run(300)
    assert training.tuner.now.workers == 1
    assert len(training.changes) < 30


def test_large_batches_ahead_are_given_up_before_workers() -> None:
    taken = Taken(1e6, 1e6)
    training = Training(UNEVEN, Tuner(limits(4, 400 * 10**6), Choice(1, 2)), lambda choice: taken)
    found = training.settle()
    assert found.workers == 4
    assert found.prefetch >= 8
    taken = Taken(1e6, 20e6)
    training.run(10)
    assert training.tuner.now.workers == 4
    assert 4 * (1e6 + (training.tuner.now.prefetch + 1) * 20e6) <= 400e6


# -- afterwards --------------------------------------------------------------------------------------------------------


def test_all_is_looked_at_anew_once_the_rate_has_fallen_for_good() -> None:
    training = Training(Model(wait=20 * MS, cpu=1 * MS, loop=10 * MS), Tuner(limits(), Choice(1, 2)))
    assert training.settle().workers <= 3
    training.model = STORAGE
    training.run(60, until=lambda: not training.tuner.settled)
    assert not training.tuner.settled
    found = training.settle()
    assert STORAGE.period(found) <= 1.05 * best(STORAGE, 16)


def test_a_short_slump_is_waited_out() -> None:
    training = Training(ENOUGH, Tuner(limits(), Choice(1, 2)))
    found = training.settle()
    training.model = replace(ENOUGH, loop=40 * MS)
    training.run(2)
    training.model = ENOUGH
    training.run(60)
    assert training.tuner.settled
    assert training.tuner.now == found


def test_pauses_in_the_middle_of_an_epoch_do_not_unsettle() -> None:
    """Training stops every second for a validation that takes longer than that."""
    training = Training(DECODING, Tuner(limits(), Choice(1, 2)))
    found = training.settle()
    for _ in range(20):
        training.run(1)
        training.pause(3)
    assert training.tuner.settled
    assert training.tuner.now == found


def test_what_is_found_out_begins_anew_in_a_copy() -> None:
    training = Training(STORAGE, Tuner(limits(), Choice(1, 2)))
    training.settle()
    fresh = training.tuner.anew()
    assert (fresh.now, fresh.settled, fresh.limits) == (Choice(1, 2), False, training.tuner.limits)
    assert training.tuner.settled


def test_time_between_epochs_does_not_count() -> None:
    """Half of the wall time is between epochs: rates are those of training all the same."""
    training = Training(DECODING, Tuner(limits(), Choice(1, 2)))
    for epoch in range(200):
        training.run(1.0)
        training.now += 1.0
        training.due = training.now
        rows = training.batches
        rows["epoch"][rows["epoch"] == 0] = epoch + 1  # all of those before
        training.delivered = 0
        if training.tuner.settled:
            break
    assert training.tuner.settled
    assert training.tuner.now.workers == 2


def test_nothing_is_decided_without_batches() -> None:
    tuner = Tuner(limits(), Choice(1, 2))
    tuner.changed(5.0)
    for now in range(5, 100):
        assert tuner.look(float(now), Recording(), NOTHING) is None
    rows = STORAGE.rows(Choice(1, 2), np.linspace(1.0, 4.0, 30), 0)  # all from before the last change
    assert tuner.look(200.0, Recording(batches=rows), NOTHING) is None
    assert tuner.now == Choice(1, 2)
