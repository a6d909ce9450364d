"""What becomes of the work of dead workers: the rules alone, without processes."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.core.process.activity import COLLATE, IDLE, LOAD, SEND, START, TOGETHER, UNBORN
from headrace.workers.restart_policy import DEATHS, HANGS, IN_A_ROW, RestartPolicy, Sighting


def seen(stage: int, place: int = 0, *, task: int = 7, worker: int = 0, hung: bool = False, spare: int = 0) -> Sighting:
    return Sighting(worker, task, stage, place, spare, hung)


def test_a_sample_at_which_workers_die_again_and_again_is_isolated() -> None:
    restart_policy = RestartPolicy()
    verdicts = [restart_policy.judge(seen(LOAD, 3)) for _ in range(DEATHS)]
    assert verdicts == ["again"] * (DEATHS - 1) + ["isolate"]


def test_of_hanging_fewer_are_needed() -> None:
    restart_policy = RestartPolicy()
    verdicts = [restart_policy.judge(seen(LOAD, 3, hung=True)) for _ in range(HANGS)]
    assert verdicts == ["again"] * (HANGS - 1) + ["isolate"]


def test_a_death_and_a_hang_are_not_the_same() -> None:
    restart_policy = RestartPolicy()
    assert restart_policy.judge(seen(LOAD, 3)) == "again"
    assert restart_policy.judge(seen(LOAD, 3, hung=True)) == "again"
    assert restart_policy.judge(seen(LOAD, 3, hung=True)) == "isolate"


def test_a_batch_that_is_loaded_at_once_is_done_again_sample_by_sample() -> None:
    restart_policy = RestartPolicy()
    assert restart_policy.judge(seen(LOAD, TOGETHER)) == "carefully"
    assert [restart_policy.judge(seen(LOAD, 5)) for _ in range(DEATHS)][-1] == "isolate"
    at_once = RestartPolicy()
    assert [at_once.judge(seen(LOAD, TOGETHER)) for _ in range(DEATHS)] == ["carefully", "carefully", "give up"]


def test_deaths_by_chance_at_different_samples_accuse_none() -> None:
    restart_policy = RestartPolicy()
    for place in range(100):
        assert restart_policy.judge(seen(LOAD, place, task=place // 10)) == "again"
        restart_policy.made_progress(0)


def test_deaths_at_different_samples_without_any_result_are_given_up() -> None:
    """Something kills the worker sooner than it can make a batch: to isolate samples would be wrong."""
    restart_policy = RestartPolicy()
    verdicts = [restart_policy.judge(seen(LOAD, place)) for place in range(IN_A_ROW)]
    assert verdicts == ["again"] * (IN_A_ROW - 1) + ["give up"]


def test_several_deadly_samples_of_one_batch_are_isolated_one_after_the_other() -> None:
    restart_policy = RestartPolicy()
    verdicts = [restart_policy.judge(seen(LOAD, place)) for place in range(12) for _ in range(DEATHS)]
    assert verdicts == (["again"] * (DEATHS - 1) + ["isolate"]) * 12


def test_a_replacement_in_the_place_of_a_suspect_is_a_new_suspect() -> None:
    restart_policy = RestartPolicy()
    verdicts = [restart_policy.judge(seen(LOAD, 3, spare=spare)) for spare in (0, 9, 0, 9)]
    assert verdicts == ["again"] * 4


def test_what_no_sample_is_to_blame_for_is_given_up() -> None:
    for stage in (COLLATE, SEND, START, UNBORN):
        restart_policy = RestartPolicy()
        assert [restart_policy.judge(seen(stage, TOGETHER)) for _ in range(DEATHS)] == ["again", "again", "give up"]


def test_progress_forgives_deaths_while_starting() -> None:
    restart_policy = RestartPolicy()
    for _ in range(50):
        assert restart_policy.judge(seen(START)) == "again"
        assert restart_policy.judge(seen(IDLE)) == "again"
        restart_policy.made_progress(0)


@pytest.mark.thorough
@given(
    st.lists(
        st.tuples(
            st.sampled_from([UNBORN, START, IDLE, LOAD, COLLATE, SEND]),
            st.integers(-1, 3), st.integers(0, 2), st.booleans(),
        ),
        min_size=200, max_size=200,
    )
)  # fmt: skip
@settings(max_examples=60, deadline=None)
def test_without_any_result_every_loop_comes_to_an_end(deaths: list[tuple[int, int, int, bool]]) -> None:
    """An isolated sample is one less: so the number of isolated samples bounds the deaths."""
    restart_policy, isolated = RestartPolicy(), 0
    for count, (stage, place, task, hung) in enumerate(deaths):
        decision = restart_policy.judge(seen(stage, place, task=task, hung=hung))
        isolated += decision == "isolate"
        if decision == "give up":
            return
        assert count <= (isolated + 1) * (IN_A_ROW + DEATHS) * 12
