"""Transforms of other libraries: targets go along, and the loader's seed decides."""

from __future__ import annotations

import pickle
import subprocess
import sys
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torch.utils.data import Dataset

import headrace
from headrace.core.errors import MissingExtraError, UsageError
from headrace.core.randomness.rng import begin_stream, rng
from headrace.transforms import albumentations, kornia, torchvision
from headrace.transforms.entries import like
from tests.transforms.pictures import encoded, smooth

PICTURE = smooth(40, 60)
MASK = (PICTURE[..., 0] > 128).astype(np.uint8)


@pytest.fixture(autouse=True)
def own_stream() -> Any:
    """Each test begins a stream of its own, and leaves none behind."""
    begin_stream(3)
    yield
    begin_stream(None)


@pytest.fixture
def album(monkeypatch: pytest.MonkeyPatch) -> Any:
    """The module albumentations, which asks the network for its version unless told not to."""
    monkeypatch.setenv("NO_ALBUMENTATIONS_UPDATE", "1")
    return pytest.importorskip("albumentations")


@pytest.fixture
def augmentations() -> Any:
    """The module kornia.augmentation."""
    return pytest.importorskip("kornia.augmentation")


@pytest.fixture
def v2() -> Any:
    """The module torchvision.transforms.v2; RuntimeError where it was built for another torch."""
    try:
        from torchvision.transforms import v2
    except (ImportError, RuntimeError) as error:
        pytest.skip(f"torchvision cannot be imported: {error}")
    return v2


def sample() -> dict[str, Any]:
    return {
        "image": PICTURE.copy(),
        "mask": MASK.copy(),
        "boxes": np.array([[10, 5, 30, 25], [50, 30, 60, 40]], np.float32),
        "points": np.array([[20.0, 10.0]], np.float32),
        "labels": np.array([7, 9]),
        "name": "a",
    }


class Samples(Dataset[Any]):
    """Small dictionaries through a step."""

    def __init__(self, step: Any) -> None:
        self.step = step

    def __len__(self) -> int:
        return 12

    def __getitem__(self, index: int) -> Any:
        made = self.step({"image": np.roll(PICTURE, index, 0), "mask": MASK})
        return {name: torch.as_tensor(np.ascontiguousarray(made[name])) for name in ("image", "mask")}


def epoch(step: Any, **how: Any) -> dict[str, torch.Tensor]:
    batches = list(headrace.DataLoader(Samples(step), batch_size=4, seed=0, **how))
    return {name: torch.cat([batch[name] for batch in batches]) for name in ("image", "mask")}


def check_one_result_for_all_backends(step: Any) -> None:
    inline = epoch(step)
    assert len({image.numpy().tobytes() for image in inline["image"]}) == 12
    for backend in ("process", "thread"):
        other = epoch(step, num_workers=2, backend=backend)
        assert torch.equal(inline["image"], other["image"])
        assert torch.equal(inline["mask"], other["mask"])


@pytest.mark.thorough
def test_no_library_is_imported_before_it_is_used() -> None:
    names = "albumentations", "kornia", "torchvision", "cv2", "PIL", "simplejpeg"
    program = f"import sys, headrace.transforms; print([name for name in {names} if name in sys.modules])"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


# ---- albumentations


def unchanged(image: Any, **_: Any) -> Any:
    return image


def boxed(album: Any, *transforms: Any) -> Any:
    return album.Compose(
        transforms,
        bbox_params=album.BboxParams(format="pascal_voc", label_fields=["labels"], min_visibility=0.3),
        keypoint_params=album.KeypointParams(format="xy"),
    )


def test_albumentations_mirrors_masks_boxes_and_points_too(album: Any) -> None:
    step = albumentations(boxed(album, album.HorizontalFlip(p=1)), masks="mask", bboxes="boxes", keypoints="points")
    before = sample()
    made = step(before)
    assert np.array_equal(PICTURE[:, ::-1], made["image"])
    assert np.array_equal(MASK[:, ::-1], made["mask"])
    assert np.allclose([[30, 5, 50, 25], [0, 30, 10, 40]], made["boxes"], atol=1e-4)
    assert np.allclose([[39, 10]], made["points"], atol=1e-4)
    assert made["labels"].tolist() == [7, 9]
    assert (made["name"], list(made)) == ("a", list(before))
    assert all(np.array_equal(before[name], sample()[name]) for name in ("image", "mask", "boxes", "labels"))


def test_a_box_that_is_cropped_away_takes_its_label_along(album: Any) -> None:
    step = albumentations(boxed(album, album.Crop(0, 0, 40, 30)), masks=["mask"], bboxes="boxes")
    made = step(sample())
    assert np.array_equal(PICTURE[:30, :40], made["image"])
    assert np.array_equal(MASK[:30, :40], made["mask"])
    assert np.allclose([[10, 5, 30, 25]], made["boxes"])
    assert (made["boxes"].dtype, made["labels"].tolist(), made["labels"].dtype) == (np.float32, [7], np.int64)
    empty = step({**sample(), "boxes": np.zeros((0, 4), np.float32), "labels": np.zeros(0, np.int64)})
    assert (empty["boxes"].shape, empty["labels"].shape) == ((0, 4), (0,))
    gone = step({**sample(), "boxes": np.array([[50, 32, 60, 40]], np.float32), "labels": np.array([1])})
    assert (gone["boxes"].shape, gone["labels"].tolist()) == ((0, 4), [])


def test_albumentations_gives_back_tensors_lists_and_single_images(album: Any) -> None:
    flip = album.Compose([album.HorizontalFlip(p=1)])
    tensor = torch.from_numpy(PICTURE.transpose(2, 0, 1).copy())
    assert torch.equal(tensor.flip(-1), albumentations(flip)(tensor))
    for form in (PICTURE, encoded(PICTURE, "PNG"), Image.fromarray(PICTURE)):
        assert np.array_equal(PICTURE[:, ::-1], albumentations(flip)(form))
    made = albumentations(flip, masks="mask")({"image": tensor, "mask": torch.from_numpy(MASK)})
    assert torch.equal(torch.from_numpy(MASK).flip(-1), made["mask"])
    step = albumentations(boxed(album, album.HorizontalFlip(p=1)), bboxes="boxes")
    listed = step({"image": PICTURE, "boxes": [[10.0, 5.0, 30.0, 25.0]], "labels": ["cat"]})
    assert np.allclose([[30, 5, 50, 25]], listed["boxes"], atol=1e-4)
    assert (type(listed["boxes"]), listed["labels"]) == (list, ["cat"])


def test_albumentations_gives_one_result_for_all_backends(album: Any) -> None:
    compose = album.Compose(
        [
            album.OneOf([album.RandomBrightnessContrast(p=1), album.GaussNoise(p=1)], p=0.9),
            album.RandomCrop(24, 24),
            album.HorizontalFlip(),
            album.CoarseDropout(),
        ],
        seed=1,
    )
    check_one_result_for_all_backends(albumentations(compose, masks="mask"))


def test_albumentations_keeps_its_own_transform_untouched_and_survives_pickling(album: Any) -> None:
    crop = album.RandomCrop(16, 16)
    before = crop.random_generator, crop.py_random, crop.py_random.getstate()
    step = albumentations(crop)
    first = [step(PICTURE) for _ in range(3)]
    assert before == (crop.random_generator, crop.py_random, crop.py_random.getstate())
    begin_stream(3)
    again = pickle.loads(pickle.dumps(step))
    assert all(np.array_equal(one, again(PICTURE)) for one in first)
    assert not np.array_equal(first[0], first[1])
    assert repr(step) == "albumentations(RandomCrop, image='image')"


def test_a_fingerprint_tells_transforms_apart_but_not_their_generators(album: Any) -> None:
    def fingerprint(side: int, **names: Any) -> str:
        return albumentations(album.Compose([album.CenterCrop(side, 16)]), **names).fingerprint()

    assert fingerprint(16) == fingerprint(16)
    assert len({fingerprint(16), fingerprint(18), fingerprint(16, masks="mask")}) == 3
    with pytest.raises(UsageError, match="version="):
        albumentations(album.Compose([album.Lambda(image=unchanged)])).fingerprint()


def test_albumentations_wants_a_transform_and_its_entries(album: Any) -> None:
    with pytest.raises(UsageError, match=r"albumentations 2\.0"):
        albumentations(lambda image: image)
    with pytest.raises(UsageError, match="no entry 'photo'"):
        albumentations(album.HorizontalFlip(), image="photo")(sample())


# ---- kornia


def batch() -> dict[str, Any]:
    image = torch.from_numpy(PICTURE.transpose(2, 0, 1).copy())
    return {
        "image": torch.stack([image, image.flip(-2)]),
        "mask": torch.from_numpy(MASK).to(torch.int64).expand(2, -1, -1).clone(),
        "boxes": torch.tensor([[[10.0, 5, 30, 25]], [[0, 0, 59, 39]]]),
        "points": torch.tensor([[[20.0, 10]], [[0, 0]]]),
        "label": torch.tensor([1, 2]),
    }


KEYS = {"image": "input", "mask": "mask", "boxes": "bbox_xyxy", "points": "keypoints"}


def test_kornia_mirrors_masks_boxes_and_points_too(augmentations: Any) -> None:
    step = kornia(augmentations.AugmentationSequential(augmentations.RandomHorizontalFlip(p=1.0)), KEYS)
    before = batch()
    made = step(before)
    assert torch.allclose(before["image"].flip(-1) / 255, made["image"])
    assert torch.equal(before["mask"].flip(-1), made["mask"])
    assert made["mask"].dtype == torch.int64
    assert torch.allclose(torch.tensor([[[29.0, 5, 49, 25]], [[0, 0, 59, 39]]]), made["boxes"], atol=1e-3)
    assert torch.allclose(torch.tensor([[[39.0, 10]], [[59, 0]]]), made["points"], atol=1e-3)
    assert made["label"] is before["label"]
    assert all(torch.equal(before[name], batch()[name]) for name in KEYS)


def test_kornia_takes_padded_boxes_and_one_tensor(augmentations: Any) -> None:
    from typing import NamedTuple

    class Padded(NamedTuple):
        values: torch.Tensor
        lengths: torch.Tensor

    flip = augmentations.AugmentationSequential(augmentations.RandomHorizontalFlip(p=1.0))
    boxes = Padded(batch()["boxes"], torch.tensor([1, 1]))
    made = kornia(flip, {"image": "input", "boxes": "bbox_xyxy"})({"image": batch()["image"], "boxes": boxes})
    assert torch.allclose(made["boxes"].values[0], torch.tensor([[29.0, 5, 49, 25]]), atol=1e-3)
    assert made["boxes"].lengths is boxes.lengths
    images = kornia(augmentations.RandomHorizontalFlip(p=1.0))(batch()["image"])
    assert torch.allclose(batch()["image"].flip(-1) / 255, images)


def test_kornia_follows_its_seed_and_leaves_the_global_generator_alone(augmentations: Any) -> None:
    crop = augmentations.AugmentationSequential(
        augmentations.RandomResizedCrop((24, 24)), augmentations.RandomGaussianNoise(p=1.0)
    )
    torch.manual_seed(5)
    expected = torch.rand(3)
    runs = []
    for _ in range(2):
        step = kornia(crop, seed=4)
        torch.manual_seed(5)
        runs.append([step(batch())["image"] for _ in range(3)])
        assert torch.equal(expected, torch.rand(3))
    assert all(torch.equal(one, other) for one, other in zip(*runs, strict=True))
    assert not torch.equal(runs[0][0], runs[0][1])
    resumed = kornia(crop, seed=4)
    resumed.calls = 2
    assert torch.equal(runs[0][2], resumed(batch())["image"])
    assert not torch.equal(runs[0][0], kornia(crop, seed=5)(batch())["image"])


def test_kornia_without_a_seed_follows_the_stream(augmentations: Any) -> None:
    step = kornia(augmentations.RandomResizedCrop((24, 24)))
    begin_stream(8)
    first, second = step(batch()["image"]), step(batch()["image"])
    begin_stream(8)
    assert torch.equal(first, step(batch()["image"]))
    assert not torch.equal(first, second)


def test_kornia_wants_known_names_and_tensors(augmentations: Any) -> None:
    flip = augmentations.RandomHorizontalFlip()
    with pytest.raises(UsageError, match="unknown data keys"):
        kornia(flip, {"image": "picture"})
    with pytest.raises(UsageError, match="no entry 'image'"):
        kornia(flip)({"photo": 1})
    with pytest.raises(UsageError, match="not a tensor"):
        kornia(flip)({"image": [1, 2]})


# ---- torchvision


def test_a_plain_transform_gets_the_image_as_it_is_and_bytes_as_a_pil_image() -> None:
    seen: list[Any] = []
    step = torchvision(lambda image: seen.append(image) or image)
    tensor, picture = torch.zeros(3, 4, 5), Image.fromarray(PICTURE)
    for form in (PICTURE, tensor, picture):
        assert step(form) is form
    step({"image": encoded(PICTURE, "PNG"), "name": "a"})
    assert all(one is other for one, other in zip(seen, (PICTURE, tensor, picture), strict=False))
    assert np.array_equal(PICTURE, np.asarray(seen[3]))


class Drawing:
    """A transform that draws from torch's global generator, as torchvision's do."""

    def __call__(self, image: Any) -> Any:
        return np.roll(image, int(torch.randint(0, 1 << 20, ())), 1) ^ np.uint8(torch.randint(0, 256, ()).item())


def test_transforms_that_draw_from_torch_give_one_result_for_all_backends() -> None:
    check_one_result_for_all_backends(torchvision(Drawing()))


def test_the_global_generators_are_put_back() -> None:
    torch.manual_seed(5)
    expected = torch.rand(2)
    torch.manual_seed(5)
    torchvision(Drawing())(PICTURE)
    assert torch.equal(expected, torch.rand(2))
    first = rng().random()
    begin_stream(3)
    torchvision(Drawing())(PICTURE)
    assert rng().random() == first  # one number of the stream is drawn, no matter what the transform does


def test_targets_without_torchvision_name_what_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torchvision", None)
    with pytest.raises(MissingExtraError, match="pip install torchvision"):
        torchvision(Drawing(), mask="mask")(sample())


def test_torchvision_mirrors_masks_boxes_and_points_too(v2: Any) -> None:
    step = torchvision(v2.RandomHorizontalFlip(1.0), mask="mask", boxes="boxes", keypoints="points")
    made = step(sample())
    assert np.array_equal(PICTURE[:, ::-1], made["image"])
    assert np.array_equal(MASK[:, ::-1], made["mask"])
    assert made["boxes"].tolist() == [[30, 5, 50, 25], [0, 30, 10, 40]]
    assert made["points"].tolist() == [[39, 10]]
    assert made["labels"].tolist() == [7, 9]
    tensors = {name: torch.as_tensor(value) for name, value in sample().items() if name in ("mask", "boxes")}
    plain = step({**sample(), **tensors, "image": encoded(PICTURE, "PNG")})
    assert {type(plain[name]) for name in ("image", "mask", "boxes")} == {torch.Tensor}
    assert plain["image"].shape == (3, 40, 60)


def test_torchvision_gives_one_result_for_all_backends(v2: Any) -> None:
    crop = v2.Compose([v2.RandomResizedCrop(24, antialias=True), v2.ColorJitter(0.4, 0.4, 0.4, 0.1)])
    check_one_result_for_all_backends(torchvision(crop, mask="mask"))


# ---- entries


def test_an_entry_comes_back_as_it_was() -> None:
    assert like([[1, 2]], [[3, 4]]) == [[1, 2]]
    made = like([], np.zeros((2, 4), np.float32))
    assert (made.shape, made.dtype) == ((0, 4), np.float32)
    made = like(np.array([1.0, 2.0]), torch.tensor([1, 2, 3]))
    assert torch.equal(made, torch.tensor([1, 2]))
