"""Whole trainings: checkpoints, kills, other workers and ranks; each sample once, relative to the last checkpoint."""

from __future__ import annotations

import os
import random

import pytest

from tests.sources.loading import flat, values
from tests.sources.training import Training, stop_for_a_while

pytest.importorskip("confluent_kafka")

COUNT = 480

OPEN = {"decode": "json", "span": 100, "until": COUNT}


@pytest.fixture
def topic(kafka_broker):
    kafka_broker.make_topic("t", 3)
    for partition in range(3):
        kafka_broker.produce("t", values(range(partition, COUNT, 3)), partition=partition)
    return kafka_broker.url("t")


def test_two_ranks_see_each_sample_once_and_in_the_order_of_one(topic, tmp_path):
    alone = Training.of(tmp_path / "alone", topic, OPEN)
    alone.run()
    both = Training.of(tmp_path / "both", topic, OPEN)
    both.run(workers=1, ranks=2)
    assert both.trained() == alone.trained()
    assert sorted(flat(alone.trained())) == list(range(COUNT))


@pytest.mark.parametrize("rounds", [2, pytest.param(40, marks=pytest.mark.stress)])
@pytest.mark.timeout(3000)
def test_whatever_is_killed_each_sample_comes_once(topic, kafka_broker, tmp_path, rounds):
    seed = int(os.environ.get("SEED", "20"))
    whole = Training.of(tmp_path / "whole", topic, OPEN)
    whole.run()
    hurt = stop_for_a_while(kafka_broker.process.pid)
    for number in range(rounds):
        rng = random.Random(seed + number)
        training = Training.of(tmp_path / str(number), topic, OPEN, step_seconds=0.02)
        training.run_with_kills(rng, 5, hurt)
        assert training.trained() == whole.trained(), f"SEED={seed + number}: {training.log}"
