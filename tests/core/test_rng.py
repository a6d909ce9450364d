"""Random streams of samples and of their steps."""

from __future__ import annotations

import random
import threading

import numpy as np
import torch

import headrace
from headrace.core.randomness.rng import (
    SAMPLE,
    SampleStreams,
    begin_stream,
    enter_step,
    follows_streams,
    global_states_kept,
)


def drawn() -> tuple[float, float, float, float]:
    return random.random(), float(np.random.random()), float(torch.rand(())), float(headrace.rng().random())


def test_each_step_of_each_sample_has_its_own_numbers() -> None:
    streams = SampleStreams(1, seed_globals=True)
    with global_states_kept():
        streams.enter_batch(np.array([5, 9]))
        assert follows_streams()
        seen = {}
        for place in (0, 1):
            for step in (0, 1):
                enter_step(place, step)
                seen[place, step] = drawn()
        enter_step(0, 1)
        assert drawn() == seen[0, 1]
        streams.enter(SAMPLE, 9)
        enter_step(0, 0)
        assert drawn() == seen[1, 0], "a sample has the same numbers alone"
    assert len({number for numbers in seen.values() for number in numbers}) == 16


def test_without_streams_a_step_begins_none() -> None:
    with global_states_kept():
        begin_stream(None)
        torch.manual_seed(0)
        first = headrace.rng()
        enter_step(0, 3)
        assert headrace.rng() is first
        assert not follows_streams()


def test_the_generator_of_a_sample_is_what_a_new_one_would_be() -> None:
    """Keys are exchanged in a generator that is kept; left-over bits of 32 must not leak into the next stream."""
    streams = SampleStreams(1, seed_globals=False)
    with global_states_kept():
        for position in range(4):
            streams.enter(SAMPLE, position)
            alone = headrace.rng().integers(0, 1 << 31, 5, dtype=np.int32).tolist()
            headrace.rng().random(3)
            headrace.rng().integers(0, 9, 1, dtype=np.int32)
            with global_states_kept():
                other = SampleStreams(1, seed_globals=False)
                other.enter(SAMPLE, position)
                assert headrace.rng().integers(0, 1 << 31, 5, dtype=np.int32).tolist() == alone


def test_what_is_drawn_in_between_leaves_a_stream_as_it_was() -> None:
    """A loader within a sample, say: its streams must not move those of the sample."""
    streams = SampleStreams(1, seed_globals=True)
    with global_states_kept():
        streams.enter(SAMPLE, 3)
        first = drawn()
        expected = drawn()
        streams.enter(SAMPLE, 3)
        assert drawn() == first
        with global_states_kept():
            SampleStreams(2, seed_globals=True).enter(SAMPLE, 0)
            drawn()
        assert drawn() == expected


def test_threads_follow_streams_of_their_own() -> None:
    streams, told = SampleStreams(1, seed_globals=False), []
    with global_states_kept():
        streams.enter(SAMPLE, 3)
        thread = threading.Thread(target=lambda: told.append(follows_streams()))
        thread.start()
        thread.join()
        assert (told, follows_streams()) == ([False], True)
