"""`DecodeJpegs`: the JPEGs of a batch to pixels on its device, by this package on the CPU, and in a loader."""

from __future__ import annotations

import logging
import pickle
import types
from collections import namedtuple
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torch.nn.functional import interpolate
from torch.utils.data import Dataset

import headrace
from headrace.core.errors import SampleError, UsageError
from headrace.testing import SimulatedAccelerator
from headrace.transforms import DecodeJpegs
from tests.transforms.jpegs import CUT_OFF, HEIGHT, JPEGS, KINDS, OTHER_SIZE, WIDTH, on_cpu
from tests.transforms.pictures import by_pillow, difference, encoded, smooth
from tests.transforms.simulated_cuda import SimulatedCuda, StandIn

pytestmark = pytest.mark.usefixtures("looked_for_anew")

Pair = namedtuple("Pair", ["jpg", "label"])


# ---- on the CPU


@pytest.mark.quick
def test_pixels_are_those_of_this_packages_decoder_whatever_holds_the_bytes() -> None:
    expected = on_cpu(JPEGS)
    tensors = [torch.frombuffer(bytearray(data), dtype=torch.uint8) for data in JPEGS]
    arrays = [np.frombuffer(data, np.uint8) for data in JPEGS]
    views = [memoryview(data) for data in JPEGS]
    for batch in (JPEGS, tuple(JPEGS), [bytearray(data) for data in JPEGS], tensors, arrays, views):
        images = DecodeJpegs()(batch)
        assert (images.dtype, images.shape) == (torch.uint8, (5, 3, HEIGHT, WIDTH))
        assert images.is_contiguous()
        assert torch.equal(expected, images)


@pytest.mark.parametrize("kind", KINDS)
def test_any_image_is_decoded_as_by_decode(kind: str) -> None:
    data, _ = KINDS[kind]
    assert torch.equal(on_cpu([data]), DecodeJpegs()([data]))


LABELS = torch.arange(5)


@pytest.mark.quick
@pytest.mark.parametrize(
    ("batch", "key"),
    [
        ({"jpg": JPEGS, "label": LABELS}, "jpg"),
        (types.MappingProxyType({"jpg": JPEGS, "label": LABELS}), "jpg"),
        ({7: JPEGS, "label": LABELS}, 7),
        ((JPEGS, LABELS), 0),
        ([LABELS, JPEGS], 1),
        ([LABELS, JPEGS], -1),
        (Pair(JPEGS, LABELS), "jpg"),
        (Pair(JPEGS, LABELS), 0),
    ],
)
def test_the_rest_of_the_batch_stays_as_it_is(batch: Any, key: Any) -> None:
    made = DecodeJpegs(key)(batch)
    kind = dict if isinstance(batch, types.MappingProxyType) else type(batch)
    assert type(made) is kind
    assert len(made) == len(batch) == 2

    if isinstance(batch, Pair):
        key = 0
    assert torch.equal(on_cpu(JPEGS), made[key])
    assert batch[key] is JPEGS
    others = list(made.values()) if isinstance(made, dict) else list(made)
    assert any(other is LABELS for other in others)


def test_images_are_resized_as_pillow_does_it_to_one_level() -> None:
    images = [JPEGS[0], OTHER_SIZE, encoded(smooth(20, 21))]
    made = DecodeJpegs(size=(HEIGHT, WIDTH))(images)
    assert made.shape == (3, 3, HEIGHT, WIDTH)
    assert torch.equal(on_cpu(JPEGS[:1])[0], made[0])  # has that size already
    for data, image in zip(images[1:], made[1:], strict=True):
        resized = Image.fromarray(by_pillow(data)).resize((WIDTH, HEIGHT), Image.Resampling.BILINEAR)
        assert difference(np.asarray(resized).transpose(2, 0, 1), image).max() <= 1

    small = DecodeJpegs(size=16)(images)
    assert small.shape == (3, 3, 16, 16)
    for data, image in zip(images, small, strict=True):
        resized = Image.fromarray(by_pillow(data)).resize((16, 16), Image.Resampling.BILINEAR)
        assert difference(np.asarray(resized).transpose(2, 0, 1), image).max() <= 1


def test_resized_pixels_are_rounded_to_the_nearest_level() -> None:
    images = DecodeJpegs(size=(31, 33))(JPEGS)
    exact = interpolate(on_cpu(JPEGS).double(), size=(31, 33), mode="bilinear", antialias=True)
    assert (images - exact).abs().max() < 0.501


def test_images_of_several_sizes_need_a_size() -> None:
    with pytest.raises(UsageError, match="several sizes") as raised:
        DecodeJpegs("jpg")({"jpg": [*JPEGS[:2], OTHER_SIZE]})
    text = str(raised.value)
    assert "image 2 of the batch's entry 'jpg'" in text
    assert "found:    30 x 80 pixels" in text
    assert "expected: 48 x 64 pixels" in text
    assert "size=(height, width)" in text


@pytest.mark.quick
@pytest.mark.parametrize(
    ("batch", "key", "texts"),
    [
        ({"jpeg": JPEGS, "label": 1}, "jpg", ["no entry 'jpg'", "entries 'jpeg', 'label'"]),
        ((JPEGS, 1), 2, ["no entry 2", "a tuple of 2 entries"]),
        (Pair(JPEGS, 1), "jpeg", ["no entry 'jpeg'", "'jpg', 'label'"]),
        ([JPEGS], "jpg", ["no entry 'jpg'", "a list of 1 entries"]),
        (torch.zeros(3), "jpg", ["no entry 'jpg'", "Tensor"]),
        ({"jpg": []}, "jpg", ["no encoded images", "an empty list"]),
        ([], None, ["no encoded images", "an empty list"]),
        ({"jpg": JPEGS}, None, ["no encoded images", "found:    dict", "key="]),
        (JPEGS[0], None, ["no encoded images", "found:    bytes"]),
        (torch.zeros(4, 100, dtype=torch.uint8), None, ["Tensor torch.uint8 [4, 100]"]),
        (["a.jpg", "b.jpg"], None, ["image 0 of the batch", "found:    str", "the bytes of the file"]),
        ([JPEGS[0], torch.zeros(5)], None, ["image 1 of the batch", "float32 [5]"]),
        ([JPEGS[0], torch.zeros(3, 4, 5, dtype=torch.uint8)], None, ["image 1 of the batch", "uint8 [3, 4, 5]"]),
        ([3, 4], None, ["image 0 of the batch", "found:    int"]),
    ],
)
def test_a_batch_without_encoded_images_is_told_at_the_call(batch: Any, key: Any, texts: list[str]) -> None:
    with pytest.raises(UsageError) as raised:
        DecodeJpegs(key)(batch)
    for text in texts:
        assert text in str(raised.value)


@pytest.mark.quick
@pytest.mark.parametrize("arguments", [{"key": True}, {"key": 1.5}, {"key": ("a",)}, {"size": 0}, {"size": (3, 4, 5)}])
def test_wrong_arguments_are_told_at_once(arguments: dict[str, Any]) -> None:
    with pytest.raises(UsageError):
        DecodeJpegs(**arguments)


@pytest.mark.quick
@pytest.mark.parametrize("damaged", [CUT_OFF, b"", b"no image at all", JPEGS[0][:2]])
@pytest.mark.parametrize("by_library", [False, True])
def test_a_damaged_image_is_an_error_that_names_it(
    damaged: bytes, by_library: bool, cuda: SimulatedCuda, torchvision: StandIn
) -> None:
    step: Any = DecodeJpegs("jpg")
    if by_library:
        step = cuda.placed(step)
    with pytest.raises(SampleError, match="cannot decode an image") as raised:
        step({"jpg": [*JPEGS[:2], damaged]})
    text = str(raised.value)
    assert "place:    image 2 of the batch's entry 'jpg'" in text
    for word in ("found:", "expected:", "fix:"):
        assert word in text


def test_a_step_has_no_values_and_comes_back_from_a_pickle() -> None:
    step = DecodeJpegs("jpg", size=(3, 4))
    assert step.state_dict() == {}
    assert repr(step) == "DecodeJpegs(key='jpg', size=(3, 4))"
    again = pickle.loads(pickle.dumps(step))
    assert repr(again) == repr(step)
    assert torch.equal(step({"jpg": JPEGS})["jpg"], again({"jpg": JPEGS})["jpg"])


# ---- in a loader


class Photos(Dataset[Any]):
    """JPEGs and labels; photo 6 is damaged, if asked for."""

    def __init__(self, damaged: bool = False) -> None:
        self.damaged = damaged

    def __len__(self) -> int:
        return 12

    def __getitem__(self, index: int) -> Any:
        if self.damaged and index == 6:
            return {"jpg": CUT_OFF, "label": index}
        return {"jpg": JPEGS[index % 5], "label": index}


@pytest.mark.quick
@pytest.mark.parametrize("num_workers", [0, 2])
def test_a_loader_decodes_its_batches_and_says_once_that_the_cpu_does_it(
    num_workers: int, accelerator: SimulatedAccelerator, caplog: pytest.LogCaptureFixture
) -> None:
    step = torch.nn.Sequential(DecodeJpegs("jpg", size=(20, 30)))
    loader = headrace.DataLoader(Photos(), 5, num_workers=num_workers, device="cuda", device_transform=step)
    labels = []
    with caplog.at_level(logging.WARNING, "headrace"):
        for _ in range(2):
            for batch in loader:
                accelerator.synchronize()
                numbers = batch["label"].tolist()
                labels += numbers
                alone = DecodeJpegs(size=(20, 30))([JPEGS[number % 5] for number in numbers])
                assert torch.equal(alone, batch["jpg"])

    assert labels == [*range(12)] * 2
    (record,) = caplog.records
    assert "decodes images on the CPU, in the process of the loop" in record.getMessage()


@pytest.mark.quick
@pytest.mark.parametrize("num_workers", [0, 2])
def test_images_of_stored_data_are_decoded_from_where_they_lie(
    num_workers: int, accelerator: SimulatedAccelerator, tmp_path: Path
) -> None:
    for number, data in enumerate(JPEGS):
        (tmp_path / "a").mkdir(exist_ok=True)
        (tmp_path / "a" / f"{number}.jpg").write_bytes(data)

    dataset = headrace.open(tmp_path, decode=False)
    loader = headrace.DataLoader(
        dataset, 2, num_workers=num_workers, device="cuda", device_transform=DecodeJpegs("image")
    )
    images = [batch["image"] for batch in loader]
    assert torch.equal(on_cpu(JPEGS), torch.cat(images))


def test_a_damaged_image_takes_the_place_of_its_batch_and_the_next_one_comes(accelerator: SimulatedAccelerator) -> None:
    loader = headrace.DataLoader(Photos(damaged=True), 4, device="cuda", device_transform=DecodeJpegs("jpg"))
    batches = iter(loader)
    assert next(batches)["label"].shape == (4,)
    with pytest.raises(SampleError, match="image 2 of the batch's entry 'jpg'"):
        next(batches)
    last = next(batches)
    accelerator.synchronize()
    assert last["label"].tolist() == [8, 9, 10, 11]


@pytest.mark.quick
@pytest.mark.parametrize("num_workers", [0, 2])
def test_a_loader_has_a_library_decode_each_batch_by_one_call(
    num_workers: int, cuda: SimulatedCuda, torchvision: StandIn, caplog: pytest.LogCaptureFixture
) -> None:
    """By stand-ins for torchvision and CUDA, which cannot be had here; the last test asks the real ones."""
    step = cuda.placed(DecodeJpegs("jpg"))
    loader = headrace.DataLoader(Photos(), 5, num_workers=num_workers, device="cuda", device_transform=step)
    for batch in loader:
        cuda.accelerator.synchronize()
        numbers = batch["label"].tolist()
        assert torch.equal(on_cpu([JPEGS[number % 5] for number in numbers]), batch["jpg"])

    assert [len(images) for images, _, _ in torchvision.calls] == [5, 5, 2]
    assert caplog.records == []
