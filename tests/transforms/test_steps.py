"""Single steps on arrays and tensors, and normalization."""

from __future__ import annotations

import colorsys
import copy
import pickle
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image, ImageEnhance

from headrace.core.errors import UsageError
from headrace.core.randomness.rng import begin_stream, rng
from headrace.transforms import (
    CenterCrop,
    ColorJitter,
    Normalize,
    RandomHorizontalFlip,
    RandomResizedCrop,
    Resize,
)
from tests.transforms.pictures import difference, encoded, smooth

PICTURE = smooth(40, 60)
TENSOR = torch.from_numpy(PICTURE.transpose(2, 0, 1).copy())
STEPS = [RandomResizedCrop(16), Resize(20), CenterCrop(16), RandomHorizontalFlip(1), ColorJitter(0.4, 0.4, 0.4, 0.1)]


@pytest.fixture(autouse=True)
def own_stream() -> Any:
    """Each test begins a stream of its own, and leaves none behind."""
    begin_stream(3)
    yield
    begin_stream(None)


@pytest.mark.parametrize("step", STEPS, ids=repr)
def test_a_step_treats_arrays_tensors_and_bytes_alike_and_changes_none(step: Any) -> None:
    forms = {"array": PICTURE.copy(), "png": encoded(PICTURE, "PNG"), "pil": Image.fromarray(PICTURE)}
    begin_stream(3)
    tensor = step(TENSOR.clone())
    for name, form in forms.items():
        begin_stream(3)
        made = step(form)
        assert isinstance(made, np.ndarray)
        assert np.array_equal(tensor.numpy().transpose(1, 2, 0), made), name
    assert np.array_equal(PICTURE, forms["array"])
    begin_stream(3)
    assert difference(255 * step(TENSOR / 255), tensor).max() <= 1  # floating point, to within the rounding
    copied = pickle.loads(pickle.dumps(step))
    assert copied == step
    assert step.random == (type(step) not in (Resize, CenterCrop))


@pytest.mark.parametrize("step", STEPS, ids=repr)
def test_a_result_has_memory_of_its_own(step: Any) -> None:
    for value in (TENSOR.clone(), PICTURE.copy(), TENSOR[None].clone()):
        made = step(value)
        kept = copy.deepcopy(value)
        made[:] = 7
        assert np.array_equal(np.asarray(kept), np.asarray(value))
    same = TENSOR.clone()
    for idle in (Resize((40, 60)), CenterCrop((40, 60)), RandomHorizontalFlip(0), ColorJitter()):
        made = idle(same)
        assert torch.equal(made, same)
        assert made.data_ptr() != same.data_ptr()


def test_resizing_goes_by_the_shorter_side_as_pillow_does_it() -> None:
    expected = Image.fromarray(PICTURE).resize((30, 20), Image.Resampling.BILINEAR)
    assert difference(expected, Resize(20)(PICTURE)).max() <= 1
    expected = Image.fromarray(PICTURE).resize((90, 50), Image.Resampling.BICUBIC)
    assert difference(expected, Resize((50, 90), "bicubic")(PICTURE)).max() <= 1


def test_the_middle_is_cut_out_and_filled_up() -> None:
    assert np.array_equal(PICTURE[12:28, 20:40], CenterCrop((16, 20))(PICTURE))
    made = CenterCrop((44, 20))(PICTURE)
    assert np.array_equal(PICTURE[:, 20:40], made[2:42])
    assert not made[:2].any()
    assert not made[42:].any()


def test_gray_arrays_stay_gray() -> None:
    gray = PICTURE[..., 0]
    assert RandomResizedCrop(16)(gray).shape == (16, 16)
    assert np.array_equal(gray[:, ::-1], RandomHorizontalFlip(1)(gray))
    assert ColorJitter(0.4, 0.4, 0.4, 0.4)(gray).shape == gray.shape


def test_each_image_of_a_batch_gets_its_own_numbers() -> None:
    batch = TENSOR.expand(64, -1, -1, -1)
    flipped = RandomHorizontalFlip()(batch)
    mirrored = [torch.equal(image, TENSOR.flip(-1)) for image in flipped]
    assert all(torch.equal(image, TENSOR) for image, other in zip(flipped, mirrored, strict=True) if not other)
    assert 16 < sum(mirrored) < 48
    assert len({image.numpy().tobytes() for image in RandomResizedCrop(8)(batch)}) > 60
    assert len({image.numpy().tobytes() for image in ColorJitter(0.5)(batch)}) > 60
    assert RandomResizedCrop(8)(batch.reshape(8, 8, 3, 40, 60)).shape == (8, 8, 3, 8, 8)


@pytest.mark.parametrize(
    ("place", "enhance"), [(0, ImageEnhance.Brightness), (1, ImageEnhance.Contrast), (2, ImageEnhance.Color)]
)
@pytest.mark.parametrize("factor", [0.0, 0.6, 1.7])
def test_brightness_contrast_and_saturation_are_those_of_pillow(place: int, enhance: Any, factor: float) -> None:
    ranges: list[Any] = [0, 0, 0]
    ranges[place] = (factor, factor)
    expected = enhance(Image.fromarray(PICTURE)).enhance(factor)
    assert difference(expected, ColorJitter(*ranges)(PICTURE)).max() <= 1


@pytest.mark.parametrize("turns", [-0.5, -0.2, 0.1, 0.5])
def test_a_hue_turns_as_in_the_standard_library(turns: float) -> None:
    few = np.concatenate([PICTURE[::8, ::8].reshape(-1, 3), [[0, 0, 0], [255] * 3, [9, 9, 9], [255, 0, 0]]])
    few = few.astype(np.uint8)[None]
    made = ColorJitter(hue=(turns, turns))(few)
    for before, after in zip(few[0], made[0], strict=True):
        hue, saturation, value = colorsys.rgb_to_hsv(*(before / 255))
        expected = np.array(colorsys.hsv_to_rgb((hue + turns) % 1, saturation, value)) * 255
        assert np.abs(expected - after).max() <= 0.51


def test_factors_are_spread_over_their_range() -> None:
    flat = np.full((1, 1, 3), 100, np.uint8)
    levels = [int(ColorJitter(0.4)(flat)[0, 0, 0]) for _ in range(400)]
    assert min(levels) < 64 < 136 < max(levels) <= 140
    assert min(levels) >= 60


@pytest.mark.parametrize(
    "value",
    [
        np.zeros((4, 5, 3), np.int32),
        np.zeros((0, 4, 3), np.uint8),
        torch.zeros(3, 4, 5, dtype=torch.int64),
        {"a": 1},
        np.zeros((3, 8, 9), np.float32),
        torch.zeros(8, 9, 3, dtype=torch.uint8),
        torch.zeros(2, 8, 9, 3),
    ],
    ids=[
        "integers",
        "no pixels",
        "a tensor of integers",
        "a dictionary",
        "an array with its channels first",
        "a tensor with its channels last",
        "tensors with their channels last",
    ],
)
@pytest.mark.parametrize("step", STEPS, ids=lambda step: type(step).__name__)
def test_what_is_no_image_is_refused(step: Any, value: Any) -> None:
    with pytest.raises(UsageError, match="expected:"):
        step(value)


def test_two_channels_cannot_be_jittered() -> None:
    with pytest.raises(UsageError, match="2 channels"):
        ColorJitter(0.1)(torch.zeros(2, 4, 4))


# ---- normalization


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.float16])
def test_a_batch_is_normalized_as_in_the_definition(dtype: torch.dtype) -> None:
    batch = torch.stack([TENSOR, TENSOR.flip(-1)])
    made = Normalize(dtype=dtype)(batch)
    mean, std = torch.tensor([[0.485, 0.456, 0.406], [0.229, 0.224, 0.225]], dtype=torch.float64)[:, :, None, None]
    expected = (batch.double() / 255 - mean) / std
    assert made.dtype == dtype
    assert torch.allclose(made.double(), expected, atol={torch.bfloat16: 0.02, torch.float16: 2e-3}.get(dtype, 1e-6))
    assert torch.equal(Normalize(dtype=dtype)(batch[0]), made[0])


def layouts() -> dict[str, torch.Tensor]:
    """Batches of different layouts, with more numbers than are normalized at a time."""
    batch = torch.from_numpy(np.random.default_rng(0).integers(0, 256, (7, 3, 160, 170), np.uint8))
    return {
        "contiguous": batch,
        "small images": batch[:, :, :5, :7].contiguous(),
        "channels last": batch.contiguous(memory_format=torch.channels_last),
        "with gaps": batch[1:, :, 3:, ::2],
        "mirrored axes": batch.transpose(-1, -2),
        "video": batch[None].expand(2, 7, 3, 160, 170).contiguous(),
        "one image": batch[0],
        "nothing": batch[:0],
    }


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
@pytest.mark.parametrize("layout", layouts())
def test_normalizing_in_pieces_gives_the_bits_of_three_passes(layout: str, dtype: torch.dtype) -> None:
    images = layouts()[layout]
    normalize = Normalize(dtype=dtype)
    scale, offset = normalize._constants(images.device)
    expected = images.to(scale.dtype).mul_(scale).add_(offset).to(dtype)
    for _ in range(3):  # the later ones in memory that is used again
        made = normalize(images)
        assert (made.dtype, made.stride()) == (dtype, expected.stride())
        assert torch.equal(made, expected)
        del made


def test_a_normalized_batch_that_is_kept_is_not_written_again() -> None:
    normalize = Normalize()
    batches = [torch.full((8, 3, 128, 128), level, dtype=torch.uint8) for level in (0, 100, 200, 255)]
    made = [normalize(batch) for batch in batches]
    assert all(torch.equal(one, Normalize()(batch)) for one, batch in zip(made, batches, strict=True))


def test_arrays_that_torch_cannot_take_are_normalized_too() -> None:
    array = TENSOR.numpy().copy()
    expected = Normalize()(array)
    array.flags.writeable = False
    assert np.array_equal(Normalize()(array), expected)
    assert np.array_equal(Normalize()(array[:, ::-1]), expected[:, ::-1])


def test_normalization_keeps_channels_last_and_arrays_arrays() -> None:
    batch = TENSOR[None].contiguous(memory_format=torch.channels_last)
    assert Normalize()(batch).is_contiguous(memory_format=torch.channels_last)
    made = Normalize()(TENSOR.numpy())
    assert isinstance(made, np.ndarray)
    assert np.array_equal(made, Normalize()(TENSOR).numpy())
    assert torch.equal(TENSOR, torch.from_numpy(PICTURE.transpose(2, 0, 1).copy()))


@pytest.mark.parametrize("images", [TENSOR / 255, TENSOR[:2], TENSOR[0], [1, 2]], ids=["float", "2", "flat", "list"])
def test_normalization_refuses_what_is_not_uint8_in_three_channels(images: Any) -> None:
    with pytest.raises(UsageError, match="cannot normalize"):
        Normalize()(images)


def test_means_and_deviations_belong_together() -> None:
    for wrong in (((0.5,), (0.5, 0.5)), ((), ()), ((0.5,), (0.0,))):
        with pytest.raises(UsageError, match="cannot normalize so"):
            Normalize(*wrong)
    with pytest.raises(UsageError, match="floating-point"):
        Normalize(dtype=torch.uint8)


def test_normalization_survives_pickling() -> None:
    normalize = Normalize((0.5,), (0.25,))
    before = normalize(TENSOR[:1])
    copied = pickle.loads(pickle.dumps(normalize))
    assert (copied, repr(copied)) == (normalize, repr(normalize))
    assert torch.equal(before, copied(TENSOR[:1]))
    assert rng().random() < 1  # nothing of the stream was drawn by it
