"""The example of swipes: its steps give the same result one by one and in blocks, and its parts work together."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as some
from hypothesis.extra.numpy import arrays

import headrace
from headrace.data.formats.columns import Ragged
from tests import programs

FOLDER = Path(__file__).parents[2] / "examples" / "trajectories"
PARTS = ("keyboard", "generate", "features", "augment", "collate", "model")


@pytest.fixture(scope="module")
def parts() -> Iterator[Any]:
    """The example's modules, as a script beside them imports them; afterwards they are gone again."""
    sys.path.insert(0, str(FOLDER))
    before = set(sys.modules)
    try:
        yield type("Parts", (), {name: __import__(name) for name in PARTS})
    finally:
        sys.path.remove(str(FOLDER))
        for name in set(PARTS) - before:
            sys.modules.pop(name, None)


@pytest.fixture(scope="module")
def swipes(parts: Any) -> list[dict[str, Any]]:
    block = next(parts.generate.blocks(200, seed=3))
    return [block.row(number) for number in range(200)]


def block_of(samples: list[dict[str, Any]]) -> dict[str, Any]:
    """What a batched step gets for these samples."""
    offsets = np.cumsum([0, *(len(sample["points"]) for sample in samples)])
    values = np.concatenate([np.empty((0, 3), np.float32), *(sample["points"] for sample in samples)])
    return {"points": Ragged(values, offsets), "word": [sample["word"] for sample in samples]}


def done_one_by_one(parts: Any, samples: list[dict[str, Any]], steps: Any = None) -> list[dict[str, Any]]:
    done = []
    for sample in samples:
        for step in steps or parts.features.ONE_BY_ONE:
            sample = step(sample)
        done.append(sample)
    return done


def done_in_a_block(parts: Any, samples: list[dict[str, Any]], steps: Any = None) -> dict[str, Any]:
    block = block_of(samples)
    for step in steps or parts.features.IN_BLOCKS:
        block = step(block)
    return block


def assert_equal(samples: list[dict[str, Any]], block: dict[str, Any]) -> None:
    assert {len(column) for column in block.values()} == {len(samples)}
    for number, sample in enumerate(samples):
        assert set(sample) == set(block)
        for name, expected in sample.items():
            actual = block[name][number]
            assert (actual.dtype, actual.shape) == (expected.dtype, expected.shape), name
            np.testing.assert_array_equal(actual, expected, err_msg=f"{name} of sample {number}")


coordinates = some.floats(-2000, 2000, width=32)
pauses = some.sampled_from([0, 0, 1, 16, 17, 250])
a_swipe = some.integers(0, 12).flatmap(
    lambda count: some.tuples(
        arrays(np.float32, (count, 2), elements=coordinates),
        arrays(np.float32, count, elements=pauses),
        some.text("abcdefghijklmnopqrstuvwxyz", max_size=9),
    )
)


@pytest.mark.thorough
@given(some.lists(a_swipe, min_size=1, max_size=8))
@settings(max_examples=150, deadline=None)
def test_features_of_a_block_are_those_of_its_samples_bit_for_bit(parts: Any, swipes: Any) -> None:
    samples = [
        {"points": np.column_stack([positions, np.cumsum(steps)]).astype(np.float32), "word": word}
        for positions, steps, word in swipes
    ]
    assert_equal(done_one_by_one(parts, samples), done_in_a_block(parts, samples))


@pytest.mark.parametrize("size", [1, 7, 200])
def test_features_do_not_depend_on_the_block_a_sample_is_in(parts: Any, swipes: Any, size: int) -> None:
    expected = done_one_by_one(parts, swipes)
    for start in range(0, len(swipes), size):
        assert_equal(expected[start : start + size], done_in_a_block(parts, swipes[start : start + size]))


def test_the_two_later_steps_may_come_in_any_order(parts: Any, swipes: Any) -> None:
    normalise, derivatives, tokens = parts.features.ONE_BY_ONE
    other = done_one_by_one(parts, swipes, (normalise, tokens, derivatives))
    assert_equal(other, done_in_a_block(parts, swipes))
    normalise, derivatives, tokens = parts.features.IN_BLOCKS
    assert_equal(other, done_in_a_block(parts, swipes, (normalise, tokens, derivatives)))


def test_velocities_are_numpy_s_gradients_where_times_differ(parts: Any) -> None:
    rng = np.random.default_rng(0)
    milliseconds = np.cumsum(rng.integers(5, 40, 30))
    points = np.column_stack([rng.uniform(0, 1000, (30, 2)), milliseconds]).astype(np.float32)
    features = done_one_by_one(parts, [{"points": points, "word": "x"}])[0]["features"]
    f = parts.features
    for position, velocity, acceleration in ((f.X, f.VX, f.AX), (f.Y, f.VY, f.AY)):
        expected = np.gradient(features[:, position].astype(np.float64), features[:, f.TIME].astype(np.float64))
        np.testing.assert_allclose(features[:, velocity], expected, rtol=1e-3, atol=1e-2)
        expected = np.gradient(expected, features[:, f.TIME].astype(np.float64))
        np.testing.assert_allclose(features[:, acceleration], expected, rtol=1e-3, atol=1)
    np.testing.assert_allclose(features[:, f.SPEED], np.hypot(features[:, f.VX], features[:, f.VY]), rtol=1e-6)


def test_points_of_one_time_have_no_infinite_velocity(parts: Any) -> None:
    points = np.float32([[0, 0, 5], [108, 0, 5], [108, 0, 5]])
    features = done_one_by_one(parts, [{"points": points, "word": "x"}])[0]["features"]
    assert features[0, parts.features.VX] == pytest.approx(1000)  # a key in the shortest time, 1 ms
    assert np.isfinite(features).all()


def test_a_finger_on_a_key_gets_the_key_s_token_and_no_distance(parts: Any) -> None:
    centres = parts.keyboard.CENTRES[1:]
    points = np.column_stack([centres, np.zeros(26)]).astype(np.float32)
    done = done_one_by_one(parts, [{"points": points, "word": "zebra"}])[0]
    assert done["keys"].tolist() == list(range(1, 27))
    assert done["target"].tolist() == [26, 5, 2, 18, 1]
    np.testing.assert_allclose(done["features"][:, parts.features.DISTANCE], 0, atol=1e-5)


def test_the_nearest_key_is_nearest_to_within_a_cell(parts: Any, swipes: Any) -> None:
    for done in done_one_by_one(parts, swipes[:50]):
        position = done["features"][:, :2].T[:, :, None]
        distances = np.hypot(*(position - parts.keyboard.CENTRES_IN_KEYS[:, None, 1:]))
        inside = (np.abs(position[:, :, 0]).T < parts.keyboard.REACH).all(1)
        nearest = distances.min(1)
        assert (done["features"][inside, parts.features.DISTANCE] <= nearest[inside] + 2 / parts.keyboard.CELLS).all()
        assert (done["keys"] == distances.argmin(1) + 1).mean() > 0.9


def test_noise_of_a_block_is_that_of_its_samples(parts: Any, swipes: Any) -> None:
    torch.manual_seed(5)
    headrace.rng().bit_generator.state = state = headrace.rng().bit_generator.state
    expected = [parts.augment.noise(sample) for sample in done_one_by_one(parts, swipes)]
    headrace.rng().bit_generator.state = state
    block = parts.augment.noise_all(done_in_a_block(parts, swipes))
    assert_equal(expected, block)
    moved = block["features"].values - done_in_a_block(parts, swipes)["features"].values
    assert moved[:, :2].std() == pytest.approx(parts.augment.STRENGTH, rel=0.1)
    assert not moved[:, 2:].any()


def test_padding_tensors_and_padding_arrays_make_the_same_batch(parts: Any, swipes: Any) -> None:
    samples = done_one_by_one(parts, swipes)
    one, other = parts.collate.pad_tensors(samples), parts.collate.pad_arrays(samples)
    assert list(one) == ["features", "keys", "target"] == list(other)
    for name in one:
        assert torch.equal(one[name].values, other[name].values)
        assert one[name].lengths.tolist() == [len(sample[name]) for sample in samples] == other[name].lengths.tolist()


def test_swipes_have_lengths_as_promised_and_are_the_same_for_a_seed(parts: Any) -> None:
    block, again, other = (next(parts.generate.blocks(5000, seed)) for seed in (0, 0, 1))
    lengths = block.columns["points"].lengths
    assert (len(lengths), lengths.min() >= 5, lengths.max() <= 150) == (5000, True, True)
    assert 35 < lengths.mean() < 46
    for name in ("points", "word"):
        np.testing.assert_array_equal(block.columns[name].values, again.columns[name].values)
    assert block.columns["points"].values.shape != other.columns["points"].values.shape


def test_a_larger_set_of_swipes_begins_with_the_smaller_set(parts: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parts.generate, "BLOCK", 64)
    few, many = (
        [block.row(n) for block in parts.generate.blocks(count) for n in range(len(block))] for count in (100, 200)
    )
    assert (len(few), len(many)) == (100, 200)
    for one, other in zip(few, many, strict=False):
        assert one["word"] == other["word"]
        np.testing.assert_array_equal(one["points"], other["points"])


def test_a_swipe_begins_and_ends_near_the_keys_of_its_word(parts: Any, swipes: Any) -> None:
    centres = parts.keyboard.CENTRES
    ends = [(sample["points"][place, :2], sample["word"][place]) for sample in swipes for place in (0, -1)]
    away = [np.hypot(*(point - centres[ord(letter) - 96])) / parts.keyboard.KEY_WIDTH for point, letter in ends]
    assert np.median(away) < 0.5
    assert max(away) < 2
    times = [np.diff(sample["points"][:, 2]) for sample in swipes]
    assert min(step.min() for step in times) == 0
    assert max(step.max() for step in times) > 40


def test_written_swipes_are_those_that_were_made(parts: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parts.generate, "BLOCK", 64)
    parts.generate.write(tmp_path / "swipes", 150, seed=2)
    stored = headrace.open(tmp_path / "swipes")
    rows = [block.row(n) for block in parts.generate.blocks(150, 2) for n in range(len(block))]
    assert len(stored) == 150
    for number in (0, 63, 64, 149):
        assert stored[number]["word"] == rows[number]["word"]
        np.testing.assert_array_equal(stored[number]["points"], rows[number]["points"])


@pytest.mark.thorough
def test_the_network_learns_to_read_swipes(parts: Any, swipes: Any) -> None:
    torch.manual_seed(0)
    batch = parts.collate.pad_arrays(done_one_by_one(parts, swipes))
    model = parts.model.Reader(16)
    optimizer = torch.optim.Adam(model.parameters(), 1e-2)
    losses = []
    for _ in range(15):
        loss, _ = parts.model.loss_of(model, batch)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert losses[-1] < losses[0] / 2


@pytest.mark.thorough
@pytest.mark.parametrize(
    "arguments",
    [
        pytest.param(["--cut", "3"], id="all kept"),
        pytest.param(["--cut", "0", "--one-by-one"], id="none kept", marks=pytest.mark.stress),
        pytest.param(["--cut", "1", "--workers", "2"], id="some kept", marks=pytest.mark.stress),
    ],
)
def test_training_ends_with_a_smaller_loss(arguments: list[str], tmp_path: Path) -> None:
    small = ["--trajectories", "2000", "--epochs", "2", "--batches", "10", "--folder", str(tmp_path)]
    command = [FOLDER / "train.py", *small, *arguments]
    for ready in ("made", "found") if "3" in arguments else ("made",):
        run = programs.run(command)
        assert (ready, run.returncode, run.stderr) == (ready, 0, "")
        losses = [float(line.split("loss ")[1].split(",")[0]) for line in run.stdout.splitlines() if "loss" in line]
        assert len(losses) == 2
        assert losses[1] < losses[0]


def test_batches_are_the_same_wherever_the_list_is_cut(parts: Any, tmp_path: Path) -> None:
    parts.generate.write(tmp_path / "swipes", 100)
    data = headrace.open(tmp_path / "swipes")
    normalise, derivatives, tokens = (headrace.step(one, batched=True) for one in parts.features.IN_BLOCKS)
    noise = headrace.step(parts.augment.noise, random=True)
    orders = [([], [normalise, derivatives, tokens]), ([normalise, derivatives], [tokens]),
              ([normalise, derivatives, tokens], []), ([], list(parts.features.ONE_BY_ONE))]  # fmt: skip
    expected = None
    for number, (made_once, each_time) in enumerate(orders):
        cache = tmp_path / f"cache-{number}" if made_once else None
        staged = headrace.Staged(data, initial_transform=made_once, get_item_transform=[*each_time, noise], cache=cache)
        batches = list(headrace.DataLoader(staged, batch_size=32, shuffle=True, seed=1))
        expected = expected or batches
        assert len(batches) == len(expected) == 4
        for one, other in zip(batches, expected, strict=True):
            assert list(one) == list(other)
            for name in one:
                assert torch.equal(one[name].values, other[name].values), f"{name}, cut {number}"
                assert torch.equal(one[name].lengths, other[name].lengths)
