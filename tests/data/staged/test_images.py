"""Image pipelines as steps: they get encoded images, and write straight into the batch."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

import headrace
from headrace.data.convert.pack import pack
from headrace.data.convert.plan import PackOptions
from headrace.transforms import EvalImages, TrainImages
from tests.data.staged.pipelines import same


@pytest.fixture(scope="module")
def photos(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("photos")
    rng = np.random.default_rng(0)
    for number in range(12):
        path = root / "ab"[number % 2] / f"{number:02}.jpg"
        path.parent.mkdir(exist_ok=True)
        pixels = np.kron(rng.integers(0, 255, (6, 8, 3)), np.ones((10 + number, 10 + number % 3, 1))).astype(np.uint8)
        Image.fromarray(pixels).save(path, quality=90)
    return root


def loaded(data: Any, **words: Any) -> list[Any]:
    return list(headrace.DataLoader(data, batch_size=5, shuffle=True, seed=4, **words))


def test_a_pipeline_on_an_image_folder_gets_paths_and_gives_the_same_as_a_transform(photos: Path) -> None:
    kinds = set()

    class Spying(EvalImages):
        def into(self, value: Any, out: Any) -> None:
            kinds.add(type(value))
            super().into(value, out)

    mapped = headrace.ImageFolder(photos).map(Spying(32), on=0)
    plain = headrace.ImageFolder(photos, EvalImages(32))
    assert same(loaded(mapped), loaded(plain))
    assert kinds == {str}
    assert same(mapped[3], plain[3])


@pytest.mark.parametrize("words", [{"num_workers": 2}, {"num_workers": 2, "backend": "thread"}], ids=str)
def test_crops_are_the_same_in_any_worker(photos: Path, words: dict[str, Any]) -> None:
    data = headrace.ImageFolder(photos).map(TrainImages(32, jitter=(0.2,)), on=0)
    assert same(loaded(data, **words), loaded(data))
    assert not torch.equal(loaded(data)[0][0], loaded(headrace.ImageFolder(photos).map(EvalImages(32), on=0))[0][0])


def test_the_way_into_the_batch_changes_no_pixel(photos: Path) -> None:
    """`into` writes where `__call__` returns; the random numbers are those of the same step."""
    pipeline = TrainImages(32)
    direct = headrace.ImageFolder(photos).map(pipeline, on=0)
    returned = headrace.ImageFolder(photos, loader=str).map(lambda path: pipeline(path), on=0, random=True)
    assert same(loaded(direct), loaded(returned))


def test_stored_images_reach_a_pipeline_encoded(photos: Path, tmp_path: Path) -> None:
    pack(str(photos), str(tmp_path / "packed"), PackOptions(format="arrow"), workers=1)
    stored = headrace.open(tmp_path / "packed")
    name = next(one for one in stored.schema.names if stored.schema[one].kind == "bytes")
    got = stored.map(EvalImages(32), on=name)
    assert type(stored.map(lambda one: one)[0][name]) is np.ndarray
    assert type(got.dataset[0][name]) is bytes
    plain = headrace.ImageFolder(photos, EvalImages(32))
    assert sorted(one[name].tobytes() for one in got) == sorted(one[0].tobytes() for one in plain)
    batch = next(iter(headrace.DataLoader(got, batch_size=12)))
    assert batch[name].shape == (12, 3, 32, 32)
    assert batch[name].dtype == torch.uint8


def test_decoded_crops_can_be_kept(photos: Path, tmp_path: Path) -> None:
    kept = headrace.ImageFolder(photos).map(EvalImages(32), on=0).cache(tmp_path / "c")
    assert same(loaded(kept), loaded(headrace.ImageFolder(photos, EvalImages(32))))
    with pytest.raises(headrace.core.errors.UsageError, match="random"):
        headrace.ImageFolder(photos).map(TrainImages(32), on=0).cache(tmp_path / "d")


def test_a_damaged_image_is_named_by_its_sample(photos: Path, tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "0.jpg").write_bytes(b"\xff\xd8 nothing")
    data = headrace.ImageFolder(tmp_path).map(EvalImages(32), on=0)
    with pytest.raises(headrace.core.errors.SampleError, match=r"0\.jpg") as caught:
        loaded(data)
    assert any("EvalImages" in note and "sample 0" in note for note in caught.value.__notes__)


def test_images_of_different_sizes_keep_their_shapes_in_a_cache(photos: Path, tmp_path: Path) -> None:
    decoded = headrace.ImageFolder(photos).map(np.asarray, on=0).cache(tmp_path / "c")
    shapes = {decoded[key][0].shape for key in range(12)}
    assert len(shapes) == 12
    assert all(np.array_equal(decoded[key][0], np.asarray(headrace.ImageFolder(photos)[key][0])) for key in range(12))
    with pytest.raises(headrace.core.errors.SampleError, match="differ in shape"):
        loaded(decoded)
    listed = headrace.ImageFolder(photos).map(np.asarray, on=0)
    batch = loaded(headrace.Staged(listed, cache="memory", ragged="list"))[0][0]
    assert [type(one) for one in batch] == [torch.Tensor] * 5
