"""A draw from a global generator is noticed, whichever way it is made, and can be undone."""

from __future__ import annotations

import random
import threading
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

from headrace.core.randomness import generator_moves
from headrace.core.randomness.generator_moves import GeneratorMoves
from headrace.core.randomness.global_turns import seeded_globals
from headrace.core.randomness.rng import global_states, global_states_kept
from headrace.core.shared_draws import SharedDraws

DRAWS: list[Callable[[], Any]] = [
    random.random,
    lambda: random.gauss(0, 1),
    lambda: random.getrandbits(1),
    lambda: random.sample(range(100), 30),
    lambda: [random.random() for _ in range(312)],  # all words: the position is the same again
    lambda: random.shuffle(list(range(50))),
    np.random.rand,
    np.random.randn,
    lambda: np.random.rand(312),
    lambda: np.random.permutation(5),
    lambda: np.random.standard_normal(2),
    lambda: torch.rand(()),
    lambda: torch.randn(()),
    lambda: torch.randn((), dtype=torch.float64),
    lambda: torch.randn(16),
    lambda: [torch.rand(()) for _ in range(624)],
    lambda: torch.rand(5000),
    lambda: torch.randperm(3),
    lambda: torch.nn.functional.dropout(torch.ones(4)),
]


@pytest.fixture(params=["read", "asked"])
def moves(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> GeneratorMoves:
    """Both ways to look: reading the memory, and asking as on other Pythons."""
    random.seed(1)
    np.random.seed(1)
    torch.manual_seed(1)
    if request.param == "asked":
        monkeypatch.setattr(generator_moves, "_address_in_python", lambda: None)
        monkeypatch.setattr(generator_moves, "_address_in_numpy", lambda: None)
        monkeypatch.setattr(generator_moves, "_address_in_torch", lambda _: None)
    made = GeneratorMoves()
    if request.param == "read":
        assert made._python_words is not None, "CPython has its words elsewhere"
        assert made._numpy_words is not None
        assert made._torch_words is not None, "torch has its words elsewhere"
    return made


@pytest.mark.parametrize("draw", DRAWS)
def test_a_draw_is_noticed_and_undone(moves: GeneratorMoves, draw: Callable[[], Any]) -> None:
    before = global_states()
    assert moves.begin()
    assert not moves.happened()
    assert moves.begin()
    draw()
    assert moves.happened()
    moves.undo()
    assert before.holds_now()
    assert moves.begin()
    assert not moves.happened()


def test_a_second_normal_deviate_is_noticed(moves: GeneratorMoves) -> None:
    """It is in reserve, so that no word is drawn: `random` shows it, NumPy must be asked."""
    random.gauss(0, 1)
    assert moves.begin()
    random.gauss(0, 1)
    assert moves.happened()
    np.random.randn()
    moves.look_before()
    assert not moves.begin(), "the next randn() could not be told"
    np.random.randn()
    assert moves.begin()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_second_normal_deviate_of_torch_is_noticed_and_undone(moves: GeneratorMoves, dtype: torch.dtype) -> None:
    torch.randn((), dtype=dtype)
    before = global_states()
    moves.look_before()
    assert moves.begin()
    expected = torch.randn((), dtype=dtype)
    assert moves.happened()
    moves.undo()
    assert before.holds_now()
    assert torch.equal(torch.randn((), dtype=dtype), expected)


def test_what_is_undone_is_the_last_draw_only(moves: GeneratorMoves) -> None:
    """Also if the program draws between two pieces of work, as a training loop with dropout does."""
    for _ in range(3):
        torch.rand(3), random.random(), np.random.rand()
        moves.look_before()
        before = global_states()
        assert moves.begin()
        torch.rand(3), random.random(), np.random.rand()
        assert moves.happened()
        moves.undo()
        assert before.holds_now()


def test_torch_s_generator_is_asked_where_its_words_are_not_found(monkeypatch: pytest.MonkeyPatch) -> None:
    generator = torch.Generator()
    assert generator_moves._torch_words_in(generator) is not None
    address = generator_moves._torch_words_in(generator)
    torch.rand((), generator=generator)
    assert generator_moves._address_in_torch(generator) == address
    monkeypatch.setattr(generator_moves, "TORCH_BEHIND", 0)  # a reserve that is not seen
    assert generator_moves._address_in_torch(generator) is None


def test_generators_that_were_put_back_have_not_moved(moves: GeneratorMoves) -> None:
    """Whatever they leave in memory that does not count, such as a deviate that is no longer in reserve."""
    assert moves.begin()
    with global_states_kept():
        random.gauss(0, 1), torch.randn(()), torch.randn((), dtype=torch.float64), np.random.rand()
    assert not moves.happened()
    assert moves.begin()
    assert not moves.happened()
    torch.rand(())
    assert moves.happened()


def test_seeding_anew_is_noticed(moves: GeneratorMoves) -> None:
    for seed in (random.seed, np.random.seed, torch.manual_seed):
        moves.look_before()
        assert moves.begin()
        seed(99)
        assert moves.happened()


def test_a_draw_between_two_pieces_of_work_is_not_taken_for_the_second_s(moves: GeneratorMoves) -> None:
    assert moves.begin()
    assert not moves.happened()
    random.random()
    assert moves.begin()
    assert moves.happened()
    assert not moves.is_sure, "it may have been before"
    moves.look_before()
    assert moves.begin()
    assert not moves.happened()


def test_a_transform_of_another_thread_that_seeds_and_puts_back_is_no_move() -> None:
    seeded, may_end = threading.Event(), threading.Event()

    def transform() -> None:
        with seeded_globals(5):
            torch.rand(3)
            seeded.set()
            may_end.wait(20)

    draws = SharedDraws()
    draws.begin()
    other = threading.Thread(target=transform)
    other.start()
    assert seeded.wait(20)
    seen: list[bool] = []
    looking = threading.Thread(target=lambda: seen.append(draws.happened()))
    looking.start()
    looking.join(0.2)  # it must wait; without that it has looked by now
    may_end.set()
    looking.join(20)
    other.join(20)
    assert seen == [False]
