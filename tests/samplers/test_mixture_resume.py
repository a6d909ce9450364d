"""What happens to a mixture that resumes with other weights: known ones are refused, later rows take effect."""

from __future__ import annotations

import json
from itertools import islice
from pathlib import Path
from typing import Any

import pytest

import headrace
from headrace.core.errors import StateError
from headrace.samplers import MixtureSampler, PackedBatchSampler
from tests.samplers.makers import ALONE, dealt

SAID = (
    r"(?s)other weights.*place: +MixtureSampler\.load_state_dict\n.*found:.*position {until}\D.*expected:.*"
    r"fix:.*weights=\{{0: \[\.\.\.\], <position>"
)


def made(weights: Any, **more: Any) -> MixtureSampler:
    return MixtureSampler([500, 300], weights, 600, **{**ALONE, **more})


def state_at(position: int, weights: Any, epoch: int = 0) -> Any:
    sampler = made(weights)
    sampler.set_epoch(epoch)
    assert len(list(islice(sampler, position))) == position
    return json.loads(json.dumps(sampler.state_dict()))


def refused(state: Any, weights: Any, until: int) -> None:
    sampler = made(weights)
    before = sampler.state_dict()
    with pytest.raises(StateError, match=SAID.format(until=until)) as caught:
        sampler.load_state_dict(state)
    assert "set_weights" in str(caught.value)
    assert sampler.state_dict() == before


@pytest.mark.parametrize("position", [0, 100, 600])
def test_other_weights_are_refused(position: int) -> None:
    state = state_at(position, [9, 1])
    refused(state, [1, 9], position + 1)
    refused(state, {0: [1, 9], 700: [9, 1]}, position + 1)


def test_a_loader_refuses_other_weights() -> None:
    def loader(weights: Any) -> headrace.DataLoader[Any]:
        return headrace.DataLoader(range(800), sampler=made(weights), batch_size=10, seed=0)  # type: ignore[arg-type]

    first = loader([9, 1])
    next(iter(first))
    with pytest.raises(StateError, match=SAID.format(until=11)):
        loader([1, 9]).load_state_dict(first.state_dict())


@pytest.mark.parametrize("given", [[18, 2], {0: [9, 1]}])
def test_the_same_weights_in_other_words_go_on(given: Any) -> None:
    sampler = made(given)
    sampler.load_state_dict(state_at(100, [9, 1]))
    assert list(sampler) == list(made([9, 1]))[100:]


def test_rows_are_compared_as_far_as_they_begin_before_the_position() -> None:
    schedule = {0: [1, 0], 300: [0, 1], 500: [1, 1]}
    state = state_at(350, schedule)
    for others in (
        {0: [1, 1], 300: [0, 1]},
        {0: [1, 0], 299: [0, 1]},
        {0: [1, 0], 300: [1, 1]},
        {0: [1, 0], 200: [1, 1], 300: [0, 1]},
        {**schedule, 350: [1, 1]},
        [1, 0],
        [0, 1],
    ):
        refused(state, others, 351)
    for later in ({0: [1, 0], 300: [0, 1]}, {**schedule, 351: [1, 0], 500: [0, 1]}, schedule):
        resumed = made(later)
        resumed.load_state_dict(state)
        assert list(resumed) == list(made(later))[350:]


@pytest.mark.parametrize("ranks", [1, 3])
def test_a_row_behind_the_position_takes_effect_in_a_later_epoch(ranks: int) -> None:
    later = {0: [1, 1], 300: [2, 1], 1300: [0, 1]}
    state = state_at(150, {0: [1, 1], 300: [2, 1]}, epoch=1)
    resumed = [made(later, rank=rank, world_size=ranks) for rank in range(ranks)]
    expected = made(later)
    rest = []
    for epoch in (1, 2):
        expected.set_epoch(epoch)
        for sampler in resumed:
            if epoch == 1:
                sampler.load_state_dict(state)
            else:
                sampler.set_epoch(epoch)
        rest = dealt([list(sampler) for sampler in resumed])
        assert rest == list(expected)[150 if epoch == 1 else 0 :]
        assert [sampler.state_dict() for sampler in resumed] == [expected.state_dict()] * ranks
    assert all(key >= 500 for key in rest[100:])


@pytest.mark.parametrize("weights", [[1, 1], {0: [1, 1], 50: [1, 2], 400: [1, 3]}])
def test_a_state_behind_set_weights_holds_where_the_sampler_is_made_alike(weights: Any) -> None:
    sampler = made(weights)
    iterator = iter(sampler)
    assert len(list(islice(iterator, 100))) == 100
    sampler.set_weights([0, 1])
    state = sampler.state_dict()
    resumed = made(weights)
    resumed.load_state_dict(state)
    assert list(resumed) == list(iterator)
    refused(state, [0, 1], 101)


def test_rows_of_tokens_are_compared_where_they_begin() -> None:
    def tokens(weights: Any, lengths: Any = (2, 6)) -> MixtureSampler:
        return made(weights, unit="tokens", lengths=lengths)

    sampler = tokens({0: [1, 0], 400: [0, 1]})
    assert len(list(islice(sampler, 150))) == 150  # 200 samples of 2 tokens
    later = tokens({0: [1, 0], 400: [1, 1]})
    later.load_state_dict(sampler.state_dict())
    assert sum(key < 500 for key in islice(later, 50)) == 50
    for other in (tokens({0: [1, 1], 400: [0, 1]}), tokens({0: [1, 0], 300: [0, 1]})):
        with pytest.raises(StateError, match="other weights and lengths before position 151"):
            other.load_state_dict(sampler.state_dict())


def asked(count: int) -> list[int]:
    return [1, 1 + count % 3]


def test_weights_that_are_asked_for_are_not_compared(tmp_path: Path) -> None:
    path = tmp_path / "weights.json"
    path.write_text("[1, 0]")
    for one, other in ((asked, path), (path, asked), ([1, 5], asked)):
        resumed = made(other, window=50)
        resumed.load_state_dict(state_at(100, one))
        assert len(list(resumed)) == 500


@pytest.mark.parametrize("change", [{"until": "a"}, {"until": [1]}])
def test_a_damaged_end_of_the_rows_is_refused(change: dict[str, Any]) -> None:
    with pytest.raises(StateError, match="damaged"):
        made([1, 1]).load_state_dict({**state_at(100, [1, 1]), **change})


# -- packed ------------------------------------------------------------------------------------------------------------

LENGTHS = [4 + number * 5 % 13 for number in range(800)]


def packed(weights: Any, **more: Any) -> PackedBatchSampler:
    order = made(weights, **more)
    return PackedBatchSampler(LENGTHS, 32, order=order, window=100, **{**ALONE, **more})


def stopped(weights: Any) -> tuple[Any, list[Any]]:
    """A state in the window from 200 to 300, and the batches before it."""
    sampler = packed(weights)
    batches = []
    for batch in sampler:
        batches.append(batch.packs)
        state = sampler.state_dict()
        if state["window"] == 2 and state["batch"] == 3:
            return json.loads(json.dumps(state)), batches
    raise AssertionError(batches)


def test_packs_refuse_other_weights_up_to_the_end_of_their_window() -> None:
    state, _ = stopped([9, 1])
    for others in ([1, 9], {0: [9, 1], 150: [1, 9]}, {0: [9, 1], 250: [1, 9]}, {0: [9, 1], 299: [1, 9]}):
        with pytest.raises(StateError, match=SAID.format(until=300)) as caught:
            packed(others).load_state_dict(state)
        assert "set_weights" not in str(caught.value)


@pytest.mark.parametrize("row", [300, 401])
def test_a_row_behind_the_window_takes_effect_on_packs(row: int) -> None:
    later = {0: [1, 0], row: [0, 1]}
    state, before = stopped([1, 0])
    resumed = packed(later)
    resumed.load_state_dict(state)
    assert before + [batch.packs for batch in resumed] == [batch.packs for batch in packed(later)]


@pytest.mark.parametrize("is_set", [False, True], ids=["behind the last batch", "before the first batch"])
def test_a_row_of_the_next_epoch_may_be_another_one_where_nothing_is_planned(is_set: bool) -> None:
    sampler = packed([1, 0])
    for _ in sampler:
        pass
    if is_set:
        sampler.set_epoch(1)
    later = {0: [1, 0], 601: [0, 1]}
    resumed, expected = packed(later), packed(later)
    resumed.load_state_dict(sampler.state_dict())
    for each in (resumed, expected):
        each.set_epoch(1)
    assert [batch.packs for batch in resumed] == [batch.packs for batch in expected]


def test_states_of_packs_are_the_same_on_all_ranks() -> None:
    samplers = [packed({0: [1, 1], 250: [1, 3]}, rank=rank, world_size=3) for rank in range(3)]
    for batches in zip(*samplers, strict=True):
        assert len(batches) == 3
        states = [sampler.state_dict() for sampler in samplers]
        assert states == [states[0]] * 3
