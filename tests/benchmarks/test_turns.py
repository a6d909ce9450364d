"""Contenders take turns, and a check ends the program where something else comes than what should."""

from __future__ import annotations

import os
from multiprocessing.connection import Connection

import pytest
import torch
from benchmarks.harness.turns import apart, beside, count_batches, each_once, in_turn, rates_in_turn, same


def test_each_round_begins_with_another_contender() -> None:
    called: list[str] = []
    found = in_turn({name: lambda name=name: called.append(name) or len(called) for name in "abc"}, 2)
    assert "".join(called) == "cababcbca"
    assert found == {"a": [4, 9], "b": [5, 7], "c": [6, 8]}


def test_a_loop_that_reads_a_part_has_the_rate_of_that_part() -> None:
    rates = rates_in_turn({"whole": lambda: None, "half": lambda: 0.5}, 1e9, 3)
    assert [len(values) for values in rates.values()] == [3, 3]
    assert all(value > 0 for values in rates.values() for value in values)


@pytest.mark.parametrize("keys", [[0, 1, 1], [0, 1], [0, 1, 3], [0, 1, 2, 2]])
def test_samples_that_are_missing_or_come_twice_end_the_program(keys: list[int]) -> None:
    each_once(torch.tensor([2, 0, 1]), 3)
    with pytest.raises(SystemExit, match="missing, or came twice"):
        each_once(torch.tensor(keys), 3)


def test_other_values_end_the_program() -> None:
    same(torch.tensor([1.0, 2.0]), [1.0, 2.0])
    with pytest.raises(SystemExit, match="differs from its source"):
        same(torch.tensor([1.0, 2.0]), [1.0, 2.5])


def test_batches_that_are_missing_end_the_program() -> None:
    class Short(list[int]):
        def __len__(self) -> int:
            return 3

    with pytest.raises(SystemExit, match="2 batches came instead of 3"):
        count_batches(Short([1, 2]))


def tell_process(number: int) -> tuple[int, int]:
    return number, os.getpid()


def end_early() -> None:
    raise SystemExit("wrong samples came")


def answer(connection: Connection, more: int) -> None:
    while True:
        connection.send(connection.recv() + more)


@pytest.mark.thorough
def test_a_function_runs_in_a_process_of_its_own() -> None:
    looked: list[int] = []
    number, pid = apart(tell_process, 7, meanwhile=looked.append)
    assert number == 7 and pid != os.getpid()
    assert set(looked) <= {pid}


@pytest.mark.thorough
def test_a_check_that_fails_in_another_process_ends_the_program() -> None:
    with pytest.raises(SystemExit, match="end_early failed in its process"):
        apart(end_early)


@pytest.mark.thorough
def test_a_process_beside_answers_and_ends_with_the_block() -> None:
    with beside(answer, 1) as connection:
        connection.send(41)
        assert connection.recv() == 42
    with pytest.raises((EOFError, ConnectionError)):
        connection.recv()
