"""Documents of a mixture, packed: its weights, its states, and the end of its epochs."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import headrace
from headrace.core.errors import UsageError
from headrace.samplers import DistributedSampler, MixtureSampler, PackedBatch, PackedBatchSampler
from tests.samplers.makers import ALONE

LENGTHS = np.clip(np.random.default_rng(0).lognormal(3, 1, 5000), 1, 256).astype(np.int32)

WEB, CODE = LENGTHS[:3000], LENGTHS[3000:]


def mixed(weights: Any, **options: Any) -> PackedBatchSampler:
    mixture = MixtureSampler({"web": len(WEB), "code": len(CODE)}, weights, 4000, **options, **ALONE)
    return PackedBatchSampler(LENGTHS, 256, order=mixture, window=500, **ALONE)


def keys_of(batches: list[Any]) -> list[int]:
    return [key for batch in batches for key in batch]


def test_a_mixture_orders_the_documents_that_are_packed() -> None:
    mixture = MixtureSampler([len(WEB), len(CODE)], [1, 3], 4000, **ALONE)
    keys = keys_of(list(PackedBatchSampler(LENGTHS, 256, order=mixture, **ALONE)))
    assert sorted(keys) == sorted(mixture)
    assert sum(key >= len(WEB) for key in keys) == pytest.approx(3000, abs=8)


def test_shares_of_tokens_are_those_of_the_packs() -> None:
    sampler = mixed({"web": 1, "code": 1}, unit="tokens", lengths={"web": WEB * 1, "code": CODE})
    tokens = [0, 0]
    for batch in sampler:
        for pack in batch.packs:
            for key, start, stop in pack:
                tokens[key >= len(WEB)] += stop - start
    assert tokens[0] / sum(tokens) == pytest.approx(0.5, abs=0.02)


WITHIN = np.minimum(LENGTHS, 64)
FITTING = np.where(LENGTHS > 64, 0, LENGTHS)


@pytest.mark.parametrize("too_long, trained", [("cut", WITHIN), ("skip", FITTING)])
def test_a_mixture_of_tokens_that_counts_other_lengths_than_the_packs_is_warned_of(too_long: Any, trained: Any) -> None:
    def packed(lengths: Any, **more: Any) -> PackedBatchSampler:
        words = {"unit": "tokens", "lengths": lengths, **more}
        mixture = MixtureSampler({"web": len(WEB), "code": len(CODE), "none": 0}, [1, 1, 0], 4000, **words, **ALONE)
        return PackedBatchSampler(LENGTHS, 64, order=mixture, window=500, too_long=too_long, **ALONE)

    web, code = trained[: len(WEB)], trained[len(WEB) :]
    packed([WEB, CODE, 1], unit="samples")
    tokens = [0, 0]
    for batch in packed([web, code.mean() * 1.005, 1]):
        for key, start, stop in (piece for pack in batch.packs for piece in pack):
            tokens[key >= len(WEB)] += stop - start
    assert tokens[0] / sum(tokens) == pytest.approx(0.5, abs=0.02)

    with pytest.warns(UserWarning, match=r"(?s)place: +the source 'code', of 1 such.*found:.*fix:") as said:
        packed([web, code.mean() * 1.02, 1])
    text = str(said[0].message)
    assert f"{code.mean() * 1.02:,.1f}" in text
    assert f"{code.mean():,.1f}" in text
    assert ("np.minimum(lengths, budget)" in text) == (too_long == "cut")
    with pytest.warns(UserWarning, match="of 2 such sources"):
        packed([WEB, CODE, 1])


def test_a_schedule_holds_from_its_counts_on() -> None:
    batches = list(mixed({0: {"web": 1, "code": 0}, 2000: {"web": 0, "code": 1}}))
    keys = keys_of(batches)
    assert all(key < len(WEB) for key in keys[:2000])
    assert all(key >= len(WEB) for key in keys[2000:])


def test_weights_of_a_file_are_asked_for_each_window_and_a_resume_repeats_them(tmp_path: Path) -> None:
    path = tmp_path / "weights.json"
    path.write_text("[1, 0]")
    sampler = mixed(path)
    whole = []
    states = []
    for number, batch in enumerate(sampler):
        if number == 20:
            path.write_text("[0, 1]")
        whole.append(batch.packs)
        states.append(sampler.state_dict())
    kinds = {key >= len(WEB) for key in keys_of(list(map(keys_in, whole)))}
    assert kinds == {True, False}

    # In the window that was begun with other weights than the file has now.
    path.write_text("[1, 1]")
    again = mixed(path)
    again.load_state_dict(json.loads(json.dumps(states[20])))
    window = states[20]["window"]
    rest = [batch.packs for batch, state in following(again) if state["window"] == window]
    assert rest
    assert (
        rest == [packs for packs, state in zip(whole, states, strict=True) if state["window"] == window][-len(rest) :]
    )


def keys_in(packs: list[list[tuple[int, int, int]]]) -> list[int]:
    return [key for pack in packs for key, _, _ in pack]


def following(sampler: PackedBatchSampler) -> Iterator[tuple[PackedBatch, dict[str, Any]]]:
    for batch in sampler:
        yield batch, sampler.state_dict()


@pytest.mark.parametrize("ranks", [8, 2])
@pytest.mark.quick
def test_ranks_and_resumes_get_the_same_packs_of_a_mixture(ranks: int) -> None:
    def made(rank: int, size: int) -> PackedBatchSampler:
        mixture = MixtureSampler([len(WEB), len(CODE)], {0: [1, 1], 1700: [1, 9]}, 4000)
        return PackedBatchSampler(LENGTHS, 256, order=mixture, window=600, rank=rank, world_size=size, uneven="drop")

    alone = [batch.packs for batch in made(0, 1)]
    samplers = [made(rank, ranks) for rank in range(ranks)]
    steps = list(zip(*samplers, strict=True))
    assert [batch.packs for step in steps for batch in step] == alone[: len(alone) // ranks * ranks]

    sampler = made(0, 1)
    iterator = iter(sampler)
    for _ in range(45):
        next(iterator)
    again = made(0, 1)
    again.load_state_dict(sampler.state_dict())
    assert [batch.packs for batch in again] == alone[45:]


def growing(count: int) -> list[int]:
    """Weights that are asked for, and change."""
    return [9, 1] if count < 1200 else [1, 1]


def asked(rank: int, size: int, **options: Any) -> PackedBatchSampler:
    mixture = MixtureSampler([len(WEB), len(CODE)], growing, 3990)
    return PackedBatchSampler(LENGTHS, 256, order=mixture, window=600, rank=rank, world_size=size, **options)


@pytest.mark.parametrize("ranks", [8, 3, 2])
@pytest.mark.quick
def test_ranks_that_pad_do_not_part_where_weights_are_asked_for(ranks: int) -> None:
    samplers = [asked(rank, ranks) for rank in range(ranks)]
    alone = asked(0, 1)
    for epoch in range(3):
        for sampler in [*samplers, alone]:
            sampler.set_epoch(epoch)
        steps = list(zip(*samplers, strict=True))
        whole = [batch.packs for batch in alone]
        assert [batch.packs for step in steps for batch in step][: len(whole)] == whole


def test_a_state_before_the_first_batch_brings_along_what_came_in_other_epochs() -> None:
    sampler = asked(0, 1)
    for epoch in range(2):
        sampler.set_epoch(epoch)
        assert sum(1 for _ in sampler) > 100
    sampler.set_epoch(2)
    again = asked(0, 1)
    again.load_state_dict(json.loads(json.dumps(sampler.state_dict())))
    assert [batch.packs for batch in again] == [batch.packs for batch in sampler]


@pytest.mark.parametrize("more", [{"seed": 0}, {}])
def test_a_loaders_state_before_the_first_batch_of_an_epoch_has_that_of_the_mixture(more: dict[str, Any]) -> None:
    def made() -> headrace.DataLoader[Any]:
        return headrace.DataLoader(list(range(5000)), batch_sampler=asked(0, 1), collate_fn=list, **more)

    loader = made()
    assert len(list(loader)) > 100
    loader.batch_sampler.set_epoch(1)  # type: ignore[attr-defined]
    batches = iter(loader)
    state = json.loads(json.dumps(loader.state_dict()))
    again = made()
    again.load_state_dict(state)
    resumed = iter(again)
    assert again.state_dict() == state
    assert list(resumed) == list(batches)


@pytest.mark.parametrize("ranks, uneven", [(1, "pad"), (3, "pad"), (3, "drop"), (3, "keep")])
def test_a_state_behind_the_last_batch_begins_the_next_epoch(ranks: int, uneven: Any) -> None:
    def made(rank: int) -> headrace.DataLoader[Any]:
        sampler = asked(rank, ranks, uneven=uneven)
        return headrace.DataLoader(list(range(5000)), batch_sampler=sampler, collate_fn=list)

    def epoch_of(loader: Any, epoch: int) -> Iterator[list[int]]:
        loader.batch_sampler.set_epoch(epoch)
        yield from loader

    for rank in range(ranks):
        loader = made(rank)
        states = []
        for epoch in range(2):
            for _ in epoch_of(loader, epoch):
                states.append(loader.state_dict())
        again = made(rank)
        again.load_state_dict(states[-1])
        # The others have one batch more of this epoch.
        if uneven == "keep" and rank == ranks - 1:
            assert list(again) == []
        assert list(epoch_of(again, 2)) == list(epoch_of(loader, 2))
        again = made(rank)
        again.load_state_dict(states[-2])
        assert len(list(again)) == 1


def test_a_mixture_counts_what_was_planned() -> None:
    mixture = MixtureSampler([len(WEB), len(CODE)], [1, 3], 4000, **ALONE)
    sampler = PackedBatchSampler(LENGTHS, 256, order=mixture, window=600, **ALONE)
    batches = iter(sampler)
    seen: list[int] = []
    while len(seen) < 2000:
        seen += next(batches)
    assert len(seen) % 600
    assert sum(count.samples for count in mixture.stats().values()) == -(-len(seen) // 600) * 600
    for _ in batches:
        pass
    assert sum(count.samples for count in mixture.stats().values()) == 4000


def test_shapes_are_the_same_whatever_a_mixture_is_told() -> None:
    shapes = []
    for weights in ([1, 0], [0, 1]):
        mixture = MixtureSampler([len(WEB), len(CODE)], lambda count, weights=weights: weights, 4000, **ALONE)
        shapes.append(PackedBatchSampler(LENGTHS, 256, order=mixture, window=40, shapes=3, **ALONE).rows)
    assert shapes[0] == shapes[1]


def test_weights_of_a_mixture_that_is_packed_cannot_be_set() -> None:
    mixture = MixtureSampler([2, 2], [1, 1], **ALONE)
    PackedBatchSampler([1, 2, 3, 4], 8, order=mixture, **ALONE)
    with pytest.raises(UsageError, match="planned ahead"):
        mixture.set_weights([1, 2])


@pytest.mark.parametrize("order, said", [(range(4), "a range"), (DistributedSampler(3), "3 samples, and 4 lengths")])
@pytest.mark.quick
def test_what_cannot_order_documents_is_an_error(order: Any, said: str) -> None:
    with pytest.raises(UsageError) as caught:
        PackedBatchSampler([1, 2, 3, 4], 8, order=order)
    assert said in str(caught.value)
