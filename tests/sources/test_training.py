"""Whole trainings: checkpoints, kills, other workers and ranks; each sample once, relative to the last checkpoint."""

from __future__ import annotations

import os
import random
import shutil
import signal
import threading

import pytest

import headrace
from tests.sources.every_source import SOURCES, Source
from tests.sources.loading import flat, read
from tests.sources.training import Training, end
from tests.telemetry.busy_machine import busy_cores

COUNT = 480

KILLS = 5


def undisturbed(source: Source) -> list[list[int]]:
    """Writes the records, and returns the numbers of all batches in their order."""
    writer = threading.Thread(target=source.write, args=(range(COUNT),))
    writer.start()
    data = headrace.follow(source.uri, **opened(source))
    batches = read(headrace.DataLoader(data, batch_size=16, shuffle=True, seed=3))
    writer.join()
    assert sorted(flat(batches)) == list(range(COUNT))
    return batches


def opened(source: Source) -> dict[str, object]:
    return {"span": 100, "until": COUNT, **source.opened}


def with_stress_but(*kinds: str) -> pytest.MarkDecorator:
    """Returns a mark for all kinds of sources; those that are not named belong to the stress tests."""
    cases = [kind if kind in kinds else pytest.param(kind, marks=pytest.mark.stress) for kind in SOURCES]
    return pytest.mark.parametrize("kind", cases)


def check_nc(kind: str) -> None:
    if kind == "tcp" and shutil.which("nc") is None:
        pytest.skip("nc is not installed (Debian: netcat-openbsd)")


@pytest.mark.thorough
@with_stress_but("kafka", "tcp", "postgres")
def test_two_ranks_see_each_sample_once_and_in_the_order_of_one(request, tmp_path, kind):
    check_nc(kind)
    with SOURCES[kind](request, f"of_{kind}_ranks") as source:
        whole = undisturbed(source)
        both = Training.of(tmp_path / "both", source.uri, opened(source))
        both.run(workers=1, ranks=2)
        assert both.trained() == whole


@pytest.mark.thorough
def test_ranks_with_journals_of_their_own_are_refused(request, tmp_path):
    with SOURCES["rabbitmq"](request, "apart") as source:
        training = Training.of(tmp_path / "apart", source.uri, {**opened(source), "journal": "RANK"})
        process = training.start(ranks=2)
        source.write(range(COUNT))
        assert training.wait(process) != 0
        assert "the ranks read different logs" in (training.folder / "log").read_text()


@pytest.mark.thorough
@pytest.mark.timeout(300)
def test_a_resume_beside_programs_that_take_all_cores(request, tmp_path):
    with SOURCES["kafka"](request, "busy") as source:
        whole = undisturbed(source)
        training = Training.of(tmp_path / "busy", source.uri, opened(source), checkpoint_every=1)
        with busy_cores(each=1):
            for count in (4, 15):
                process = training.start(workers=2)
                training.wait_for_batches(process, count)
                end(process)
            training.run(workers=2)
        assert training.trained() == whole


@pytest.mark.thorough
@pytest.mark.parametrize("rounds", [1, pytest.param(5, marks=pytest.mark.stress)])
@with_stress_but("kafka", "redis", "rabbitmq", "sqlite")
@pytest.mark.timeout(3000)
def test_whatever_is_killed_each_sample_comes_once(request, tmp_path, kind, rounds):
    check_nc(kind)
    seed = int(os.environ.get("SEED", "20"))
    for number in range(rounds):
        with SOURCES[kind](request, f"of_{kind}_killed{number}") as source:
            whole = undisturbed(source)
            rng = random.Random(seed + number)
            training = Training.of(tmp_path / str(number), source.uri, opened(source), step_seconds=0.02)
            training.run_with_kills(rng, KILLS, source.hurt)
            assert training.trained() == whole, f"SEED={seed + number}: {training.log}"


@pytest.mark.thorough
@pytest.mark.parametrize("workers", [0, 2])
def test_a_training_killed_behind_the_checkpoint_of_its_last_batch_is_through(request, tmp_path, workers):
    with SOURCES["sqlite"](request, "of_last_batch") as source:
        whole = undisturbed(source)
        training = Training.of(tmp_path / "last", source.uri, opened(source), killed_behind=len(whole))
        process = training.start(workers=workers)
        assert training.wait(process) == -signal.SIGKILL
        assert training.trained() == whole
        training.run(workers=workers)
        assert training.trained() == whole
