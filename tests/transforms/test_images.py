"""Whole pipelines: the plain way's pixels, the same for every backend, written once."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torch.utils.data import Dataset

import headrace
from headrace.core.errors import SampleError, UsageError
from headrace.core.randomness.rng import begin_stream, rng
from headrace.transforms import EvalImages, RandomResizedCrop, TrainImages, decode
from headrace.transforms.images import on_grid
from headrace.transforms.random_crops import Box, draw_crop
from tests.transforms.pictures import by_pillow, difference, encoded, smooth

PICTURES = [encoded(smooth(60 + 7 * place, 90 - 5 * place, seed=place), quality=90) for place in range(6)]
READ_ONLY = np.zeros((3, 32, 32), np.uint8)
READ_ONLY.setflags(write=False)
JITTERED = TrainImages(32, jitter=(0.4, 0.4, 0.4, 0.1))


@pytest.fixture(autouse=True)
def own_stream() -> Any:
    """Each test begins a stream of its own, and leaves none behind."""
    begin_stream(11)
    yield
    begin_stream(None)


def again(transform: Callable[[Any], Any], value: Any, key: int = 5) -> Any:
    """What the transform gives under one stream of random numbers."""
    begin_stream(key)
    return transform(value)


# ---- the same as the plain way


def plain_view(data: bytes, box: Box, size: int, flip: bool) -> np.ndarray:
    image = Image.fromarray(by_pillow(data)).crop((box.left, box.top, box.left + box.width, box.top + box.height))
    image = image.resize((size, size), Image.Resampling.BILINEAR)
    image = image.transpose(Image.Transpose.FLIP_LEFT_RIGHT) if flip else image
    return np.asarray(image).transpose(2, 0, 1)


def test_a_training_view_is_the_one_that_pillow_cuts() -> None:
    mirrored = 0
    for key in range(40):
        data = PICTURES[key % 6]
        height, width, _ = by_pillow(data).shape
        begin_stream(key)
        box = draw_crop(rng(), (height, width), (0.08, 1), (3 / 4, 4 / 3))
        flip = bool(rng().random() < 0.5)
        mirrored += flip
        view = again(TrainImages(64), data, key)
        assert difference(plain_view(data, box, 64, flip), view).max() <= 1
    assert 8 < mirrored < 32


@pytest.mark.parametrize("shape", [(60, 90), (90, 60), (300, 400), (1000, 10), (1, 1)])
def test_an_evaluation_view_is_the_one_that_pillow_cuts(shape: tuple[int, int]) -> None:
    data = encoded(smooth(*shape), "PNG")
    height, width = shape if shape != (1000, 10) else (80, 10)
    top = (shape[0] - height) // 2
    image = Image.fromarray(by_pillow(data)[top : top + height])
    larger = max(height, width) * 64 // min(height, width)
    size = (64, larger) if width < height else (larger, 64)
    whole = np.asarray(image.resize(size, Image.Resampling.BILINEAR)).transpose(2, 0, 1)
    top, left = round((size[1] - 56) / 2), round((size[0] - 56) / 2)
    expected = whole[:, top : top + 56, left : left + 56]
    assert difference(expected, EvalImages(56, resize=64)(data)).max() <= 1


def test_a_reduced_crop_is_near_the_one_from_the_whole_image() -> None:
    data = encoded(smooth(603, 805), quality=92)
    for key in range(12):
        reduced = again(TrainImages(64), data, key)
        whole = again(TrainImages(64), by_pillow(data), key)
        far = difference(reduced, whole)
        assert far.max() > 0  # it is indeed reduced
        assert far.mean() < 2
        assert np.percentile(far, 99) <= 8


def test_a_reduced_evaluation_view_is_near_the_one_from_the_whole_image() -> None:
    data = encoded(smooth(608, 832), quality=92)
    far = difference(EvalImages(64)(data), EvalImages(64)(by_pillow(data)))
    assert 0 < far.max() <= 6
    assert far.mean() < 0.6


def test_crops_have_the_area_and_shape_asked_for_and_lie_anywhere() -> None:
    boxes = [draw_crop(rng(), (300, 400), (0.1, 0.2), (0.8, 2)) for _ in range(2000)]
    areas = np.array([box.height * box.width for box in boxes]) / 120_000
    shapes = np.array([box.width / box.height for box in boxes])
    assert 0.098 < areas.min() < 0.103 < 0.197 < areas.max() < 0.202
    assert abs(areas.mean() - 0.15) < 0.003
    assert 0.79 < shapes.min() < 0.82 < 1.95 < shapes.max() < 2.03
    assert abs(np.log(shapes).mean() - np.log([0.8, 2]).mean()) < 0.03
    assert min(box.top for box in boxes) == min(box.left for box in boxes) == 0
    assert max(box.top + box.height for box in boxes) == 300
    assert max(box.left + box.width for box in boxes) == 400


def test_a_crop_moves_to_the_nearest_pixel_of_the_reduced_image() -> None:
    assert on_grid(Box(6, 9, 80, 70), 8, (100, 101)) == Box(8, 8, 80, 72)
    assert on_grid(Box(0, 0, 100, 101), 8, (100, 101)) == Box(0, 0, 96, 96)
    assert on_grid(Box(3, 5, 80, 70), 1, (100, 101)) == Box(3, 5, 80, 70)


def test_a_line_of_pixels_is_not_blown_up() -> None:
    line = np.full((1, 10_000_000, 3), 9, np.uint8)  # resized whole it would take 200 GB
    assert np.array_equal(np.full((3, 64, 64), 9, np.uint8), EvalImages(64)(line))


def test_where_no_crop_fits_the_middle_is_taken() -> None:
    assert draw_crop(rng(), (1000, 10), (1, 1), (3 / 4, 4 / 3)) == Box(493, 0, 13, 10)
    assert draw_crop(rng(), (10, 1000), (1, 1), (3 / 4, 4 / 3)) == Box(0, 493, 10, 13)


# ---- the same everywhere


class Views(Dataset[Any]):
    """Pictures through a transform."""

    def __init__(self, transform: Callable[[Any], Any]) -> None:
        self.transform = transform

    def __len__(self) -> int:
        return 24

    def __getitem__(self, index: int) -> Any:
        return self.transform(PICTURES[index % 6])


def epoch(transform: Callable[[Any], Any], **how: Any) -> torch.Tensor:
    return torch.cat(list(headrace.DataLoader(Views(transform), batch_size=5, shuffle=True, seed=0, **how)))


@pytest.mark.parametrize("transform", [JITTERED, RandomResizedCrop(32)], ids=["pipeline", "step"])
def test_one_seed_gives_the_same_pixels_in_processes_threads_and_inline(transform: Any) -> None:
    inline = epoch(transform)
    assert len({view.numpy().tobytes() for view in inline}) == 24
    for backend in ("process", "thread"):
        for workers in (1, 2):
            assert torch.equal(inline, epoch(transform, num_workers=workers, backend=backend))


def test_views_do_not_depend_on_the_number_of_threads_of_torch() -> None:
    picture, transform = smooth(300, 400), TrainImages(256, jitter=(0.5, 0.5, 0.5, 0.2))
    before = torch.get_num_threads()
    try:
        torch.set_num_threads(1)
        alone = again(transform, picture)
        torch.set_num_threads(4)
        assert np.array_equal(alone, again(transform, picture))
    finally:
        torch.set_num_threads(before)


def test_a_path_bytes_an_array_and_an_image_give_the_same_view(tmp_path: Path) -> None:
    path = tmp_path / "x.jpg"
    path.write_bytes(PICTURES[0])
    pixels = by_pillow(PICTURES[0])
    for transform in (JITTERED, EvalImages(32)):
        expected = again(transform, PICTURES[0])
        for form in (path, str(path), pixels, pixels[:, ::-1][:, ::-1], Image.fromarray(pixels)):
            assert np.array_equal(expected, again(transform, form)), type(form)


# ---- into memory that is there


@pytest.mark.parametrize("transform", [JITTERED, TrainImages((24, 40), flip=1), EvalImages(32)], ids=repr)
def test_into_writes_what_a_call_returns(transform: Any) -> None:
    assert transform.dtype == np.uint8
    batch = np.zeros((3, *transform.shape), np.uint8)
    begin_stream(5)
    transform.into(PICTURES[1], batch[1])
    made = again(transform, PICTURES[1])
    assert made.flags.c_contiguous
    assert made.shape == transform.shape
    assert np.array_equal(made, batch[1])
    assert not batch[[0, 2]].any()
    wide = np.zeros((*transform.shape, 2), np.uint8)
    begin_stream(5)
    transform.into(PICTURES[1], wide[..., 0])
    assert np.array_equal(made, wide[..., 0])
    assert not wide[..., 1].any()


@pytest.mark.parametrize(
    "out",
    [READ_ONLY, np.zeros((3, 32, 32), np.float32), np.zeros((3, 32, 31), np.uint8), torch.zeros(3, 32, 32), None],
    ids=["read-only", "floats", "another shape", "a tensor", "nothing"],
)
def test_memory_that_does_not_fit_is_refused_before_anything_is_drawn(out: Any) -> None:
    with pytest.raises(UsageError, match=r"uint8 \[3, 32, 32\]"):
        JITTERED.into(PICTURES[0], out)
    begin_stream(5)
    first = rng().random()
    begin_stream(5)
    with pytest.raises(UsageError):
        JITTERED.into(PICTURES[0], out)
    assert rng().random() == first


def test_a_result_is_not_the_input() -> None:
    picture = smooth(32, 32)
    kept = picture.copy()
    for transform in (TrainImages(32, scale=(1, 1), ratio=(1, 1), flip=0), EvalImages(32, resize=32)):
        made = transform(picture)
        assert np.array_equal(kept.transpose(2, 0, 1), made)
        made[:] = 0
        assert np.array_equal(kept, picture)


# ---- small, strange and wrong


@pytest.mark.parametrize("shape", [(1, 1), (1, 50), (50, 1), (3, 2), (8, 8)])
@pytest.mark.parametrize("form", ["JPEG", "PNG"])
def test_images_smaller_than_the_view_are_enlarged(shape: tuple[int, int], form: str) -> None:
    data = encoded(np.full((*shape, 3), 200, np.uint8), form)
    for transform in (TrainImages(32), EvalImages(32)):
        view = transform(data)
        assert view.shape == (3, 32, 32)
        assert difference(view, 200).max() <= 1


@pytest.mark.parametrize("mode", ["L", "LA", "P", "RGBA", "CMYK", "1", "I;16"])
def test_images_of_every_mode_become_views_of_three_channels(mode: str) -> None:
    image = Image.fromarray(smooth(40, 50))
    image = Image.fromarray(np.asarray(image.convert("L")).astype(np.uint16) << 8) if mode == "I;16" else image
    image = image if mode == "I;16" else image.convert(mode)
    data = encoded(image, "JPEG" if mode == "CMYK" else "PNG")
    assert np.array_equal(EvalImages(28)(decode(data)), EvalImages(28)(data))
    assert again(TrainImages(28), data).std() > 5


def test_damage_is_named_with_the_file(tmp_path: Path) -> None:
    (tmp_path / "cut.jpg").write_bytes(PICTURES[0][:500])
    for transform in (TrainImages(32), EvalImages(32)):
        with pytest.raises(SampleError, match=r"cut\.jpg"):
            transform(tmp_path / "cut.jpg")


@pytest.mark.parametrize(
    "build",
    [
        lambda: TrainImages(0),
        lambda: TrainImages((224,)),  # type: ignore[arg-type]
        lambda: TrainImages(2.5),  # type: ignore[arg-type]
        lambda: TrainImages(scale=(0.5, 0.1)),
        lambda: TrainImages(scale=(0, 2)),
        lambda: TrainImages(ratio=(0, 1)),
        lambda: TrainImages(flip=1.5),
        lambda: TrainImages(jitter=(0.1, 0.1, 0.1, 0.7)),
        lambda: TrainImages(jitter=(-0.1,)),
        lambda: TrainImages(interpolation="lanczos"),  # type: ignore[arg-type]
        lambda: EvalImages(224, resize=200),
    ],
)
def test_arguments_that_cannot_be_are_refused_at_once(build: Callable[[], Any]) -> None:
    with pytest.raises(UsageError, match="expected:"):
        build()


def test_pipelines_survive_pickling_and_say_what_they_are() -> None:
    for transform in (JITTERED, EvalImages(32, resize=40)):
        copied = pickle.loads(pickle.dumps(transform))
        assert copied == transform
        assert eval(repr(transform)) == transform
        assert np.array_equal(again(transform, PICTURES[0]), again(copied, PICTURES[0]))
    assert (TrainImages.random, EvalImages.random) == (True, False)
