"""Transforms of other libraries as steps, with targets carried along and with the loader's random numbers.

None of the libraries is imported before it is used, or needed to unpickle anything else.
"""

from __future__ import annotations

import copy
import json
import random
import threading
from collections.abc import Callable, Mapping
from typing import Any, ClassVar

import numpy as np
import torch

from headrace.core.errors import MissingExtraError, UsageError
from headrace.core.randomness.global_turns import seeded_globals
from headrace.core.randomness.rng import rng
from headrace.transforms.decoding import decode
from headrace.transforms.entries import Names, as_array, as_names, like, refuse_missing

SEEDS = 1 << 63
"""Seeds are drawn below this, so that a signed word of 64 bits holds them."""


def albumentations(
    compose: Callable[..., Any],
    image: str = "image",
    masks: Names = None,
    bboxes: str | None = None,
    keypoints: str | None = None,
    labels: Names = None,
) -> Albumentations:
    """Wraps a transform of Albumentations (2.0 or newer), per sample: of a dictionary, or of an image alone.

    The result is a copy of the sample with the named entries replaced: arrays for arrays, tensors for tensors (an image
    tensor is [channels, height, width]), lists for lists, with their numbers' types. An image that was bytes, a path or
    a PIL image comes back as an array uint8 [height, width, 3]; what `ToTensorV2` makes stays as it is.

    Random numbers: both generators of the transform are set anew for each sample, from `headrace.rng()`, so that
    results depend on the sample's stream alone: the same in any backend. A `seed` of the compose has no effect.

    Args:
        compose: a `Compose` or a single transform; it is copied for each thread, never changed.
        image: name of the sample's image, which is anything that `decode` takes.
        masks: name of the mask, or a sequence of names of several.
        bboxes: name of the boxes; they need `bbox_params` of the compose.
        keypoints: name of the key points; they need `keypoint_params` of the compose.
        labels: entries that belong to boxes or key points, row by row, under the names in `label_fields`; by default
            all those fields that the sample has. A row goes when its box goes.

    Returns:
        A step from a sample to a sample.

    Raises:
        UsageError: `compose` cannot be seeded.

    Examples:
        >>> import albumentations
        >>> flip = headrace.transforms.albumentations(albumentations.HorizontalFlip(p=1.0))
        >>> flip({"image": np.zeros((30, 40, 3), np.uint8), "label": 7})["label"]
        7
    """
    return Albumentations(compose, image, as_names(masks), bboxes, keypoints, labels)


class Albumentations:
    """A step that applies a transform of Albumentations; see `albumentations`."""

    random: ClassVar[bool] = True

    seeds_itself: ClassVar[bool] = True

    def __init__(
        self,
        compose: Any,
        image: str,
        masks: tuple[str, ...],
        bboxes: str | None,
        keypoints: str | None,
        labels: Names,
    ) -> None:
        if not callable(getattr(compose, "set_random_state", None)):
            expected = "a transform of albumentations 2.0 or newer"
            raise UsageError.about("cannot seed a transform", found=type(compose).__name__, expected=expected)

        self.compose = compose
        self.image = image
        self.masks = masks
        self.bboxes = bboxes
        self.keypoints = keypoints
        if labels is None:
            self.labels = _label_fields(compose)
        else:
            self.labels = as_names(labels)

        further: tuple[str, ...]
        if labels is None:
            further = ()
        else:
            further = self.labels

        self._needed = (image, *masks, *filter(None, (bboxes, keypoints)), *further)
        self._of_thread = threading.local()

    def __call__(self, sample: object) -> Any:
        """Returns the sample, transformed. Raises as `decode` and the transform do, and `UsageError` for a sample
        without the named entries."""
        if not isinstance(sample, Mapping):
            return self({self.image: sample})[self.image]

        refuse_missing(sample, self._needed, "albumentations")
        given = self._given(sample)
        generator = rng()
        # Two generators, as some of its transforms draw from `random`, and others from NumPy.
        transform = self._transform()
        transform.set_random_state(generator, random.Random(int(generator.integers(SEEDS))))
        made = transform(**given)
        result = dict(sample)
        result[self.image] = _image_back(made["image"], sample[self.image])
        for name, mask in zip(self.masks, made.get("masks", ()), strict=False):
            if isinstance(mask, torch.Tensor):
                result[name] = mask
            else:
                result[name] = like(mask, sample[name])

        for name, role in self._rows():
            result[name] = like(made[role], sample[name])

        for name in self.labels:
            if name in given:
                result[name] = like(made[name], sample[name])

        return result

    def fingerprint(self) -> str:
        """Returns text that changes when results do: the transform without the state of its generators.

        Raises `UsageError` if the transform cannot be serialized; declare the step with `version=` then.
        """
        try:
            made = self.compose.to_dict()
        except (NotImplementedError, ValueError) as error:
            fix = "give its Lambda a name, and declare the step with headrace.step(..., version=...)"
            raise UsageError.about("cannot compare a transform", found=str(error), fix=fix) from error

        names = (self.image, self.masks, self.bboxes, self.keypoints, self.labels)
        return json.dumps([names, made], default=repr, sort_keys=True)

    def _given(self, sample: Mapping[str, Any]) -> dict[str, Any]:
        image = sample[self.image]
        if _is_pixels(image):
            pixels = image
        else:
            pixels = decode(image)

        given: dict[str, Any] = {"image": pixels}
        if isinstance(image, torch.Tensor) and image.ndim == 3:
            given["image"] = np.ascontiguousarray(image.numpy().transpose(1, 2, 0))
        if self.masks:
            given["masks"] = [as_array(sample[name]) for name in self.masks]

        for name, role in self._rows():
            rows = as_array(sample[name])
            if rows.size:
                given[role] = rows
            elif role == "bboxes":
                # An image without boxes: of an empty list nothing says how wide its rows would be.
                given[role] = rows.reshape(0, 4)
            else:
                given[role] = rows.reshape(0, 2)

        for name in self.labels:
            if name in sample:
                given[name] = as_array(sample[name])

        return given

    def _rows(self) -> list[tuple[str, str]]:
        """Pairs (entry, Albumentations' name for it) of what comes in rows."""
        pairs = ((self.bboxes, "bboxes"), (self.keypoints, "keypoints"))
        named = []
        for name, role in pairs:
            if name is not None:
                named.append((name, role))

        return named

    def _transform(self) -> Any:
        """This thread's copy: Albumentations keeps state in its transforms while one runs."""
        if not hasattr(self._of_thread, "compose"):
            self._of_thread.compose = copy.deepcopy(self.compose)
        return self._of_thread.compose

    def __getstate__(self) -> dict[str, Any]:
        # A `threading.local` cannot be pickled; the other process makes its own copies.
        state = {}
        for key, value in self.__dict__.items():
            if key != "_of_thread":
                state[key] = value

        return state

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state, _of_thread=threading.local())

    def __repr__(self) -> str:
        roles = {"masks": self.masks, "bboxes": self.bboxes, "keypoints": self.keypoints, "labels": self.labels}
        return f"albumentations({type(self.compose).__name__}, image={self.image!r}{_shown(roles)})"


def _shown(roles: Mapping[str, object]) -> str:
    """Returns the entries that a step was told of, as arguments in its `repr`."""
    text = ""
    for role, name in roles.items():
        if name:
            text += f", {role}={name!r}"

    return text


def _label_fields(compose: object) -> tuple[str, ...]:
    """Returns the names in `label_fields` of boxes and of key points, each once, in their order."""
    names: dict[str, None] = {}
    for processor in getattr(compose, "processors", {}).values():
        names |= dict.fromkeys(processor.params.label_fields or ())

    return tuple(names)


def _is_pixels(image: object) -> bool:
    return isinstance(image, (np.ndarray, torch.Tensor)) and image.ndim in (2, 3)


def _image_back(made: Any, original: object) -> Any:
    if isinstance(made, torch.Tensor) or not isinstance(original, torch.Tensor):
        return made
    if made.ndim == 3:
        channels_first = made.transpose(2, 0, 1)
    else:
        channels_first = made

    return torch.from_numpy(np.ascontiguousarray(channels_first))


def torchvision(
    transform: Callable[..., Any],
    image: str = "image",
    mask: Names = None,
    boxes: str | None = None,
    keypoints: str | None = None,
) -> Torchvision:
    """Wraps a transform of torchvision, per sample: of a dictionary, or of an image alone.

    With targets, the image goes in as `tv_tensors.Image`, the others as `Mask`, `BoundingBoxes` and `KeyPoints`, and
    all come back as plain tensors, or as arrays where arrays were given; an image that was an array [height, width,
    channels] comes back as one. Without targets the transform gets the image itself: an array, a tensor or a PIL image
    as it is, encoded bytes and paths as a PIL image, and what it returns is the result.

    Random numbers: torchvision draws from torch's global generator. For each sample it, `random` and NumPy's are seeded
    from `headrace.rng()` and afterwards put back: the same results in any backend. Threads take turns, since those
    generators are the process's: use worker processes.

    Args:
        transform: any callable of `torchvision.transforms.v2`; without targets also of `torchvision.transforms`.
        image: name of the sample's image.
        mask: name of the mask, or a sequence of names of several.
        boxes: name of the boxes: [n, 4], left, top, right, bottom in pixels.
        keypoints: name of the key points: [n, 2], x and y.

    Returns:
        A step from a sample to a sample.

    Raises:
        UsageError: no callable.

    Examples:
        >>> flip = headrace.transforms.torchvision(np.fliplr)
        >>> flip({"image": np.array([[1, 2, 3]], np.uint8)})
        {'image': array([[3, 2, 1]], dtype=uint8)}
    """
    return Torchvision(transform, image, as_names(mask), boxes, keypoints)


class Torchvision:
    """A step that applies a transform of torchvision; see `torchvision`."""

    random: ClassVar[bool] = True

    def __init__(
        self, transform: Callable[..., Any], image: str, mask: tuple[str, ...], boxes: str | None, keypoints: str | None
    ) -> None:
        if not callable(transform):
            raise UsageError.about("not a transform", found=type(transform).__name__, expected="a callable")

        self.transform = transform
        self.image = image
        self.mask = mask
        self.boxes = boxes
        self.keypoints = keypoints
        self._targets = (*mask, *filter(None, (boxes, keypoints)))

    def __call__(self, sample: object) -> Any:
        """Returns the sample, transformed. Raises as `decode` and the transform do, `UsageError` for a sample without
        the named entries, and `MissingExtraError` if targets are to be carried along without torchvision."""
        if not isinstance(sample, Mapping):
            return self({self.image: sample})[self.image]

        refuse_missing(sample, (self.image, *self._targets), "torchvision")
        if not self._targets:
            image = sample[self.image]
            with seeded_globals(int(rng().integers(SEEDS))):
                if _is_pixels(image) or hasattr(image, "getbands"):
                    given = image
                else:
                    given = _pil(image)

                made = self.transform(given)
            return {**sample, self.image: made}

        given = self._wrapped(sample)
        with seeded_globals(int(rng().integers(SEEDS))):
            changed = self.transform(given)

        result = dict(sample)
        for name, value in changed.items():
            result[name] = _plain(value, sample[name], name == self.image)

        return result

    def _wrapped(self, sample: Mapping[str, Any]) -> dict[str, Any]:
        kinds = _tv_tensors()
        image = sample[self.image]
        if not isinstance(image, torch.Tensor) or image.ndim != 3:
            if _is_pixels(image):
                pixels = image
            else:
                pixels = decode(image)

            if pixels.ndim == 2:
                pixels = pixels[:, :, None]
            image = torch.from_numpy(np.ascontiguousarray(pixels.transpose(2, 0, 1)))

        canvas = (image.shape[-2], image.shape[-1])
        # Copies, as transforms may work in place, and the sample's arrays may be views of a dataset's memory.
        given = {self.image: kinds.Image(image)}
        for name in self.mask:
            given[name] = kinds.Mask(torch.from_numpy(as_array(sample[name]).copy()))

        if self.boxes is not None:
            rows = torch.from_numpy(as_array(sample[self.boxes]).copy()).reshape(-1, 4)
            given[self.boxes] = kinds.BoundingBoxes(rows, format="XYXY", canvas_size=canvas)

        if self.keypoints is not None:
            rows = torch.from_numpy(as_array(sample[self.keypoints]).copy()).reshape(-1, 2)
            given[self.keypoints] = kinds.KeyPoints(rows, canvas_size=canvas)

        return given

    def __repr__(self) -> str:
        roles = {"mask": self.mask, "boxes": self.boxes, "keypoints": self.keypoints}
        return f"torchvision({type(self.transform).__name__}, image={self.image!r}{_shown(roles)})"


def _pil(encoded: object) -> Any:
    try:
        from PIL import Image
    except ImportError as error:
        fix = "pip install 'headrace[images]'"
        raise MissingExtraError.about("images need Pillow", found=str(error), fix=fix) from error

    return Image.fromarray(decode(encoded))


def _tv_tensors() -> Any:
    try:
        from torchvision import tv_tensors
    except (ImportError, RuntimeError) as error:
        # RuntimeError: a torchvision that was built for another torch.
        fix = "pip install torchvision, in the version that belongs to torch"
        raise MissingExtraError.about("targets need torchvision", found=str(error), fix=fix) from error

    return tv_tensors


def _plain(made: object, original: object, is_image: bool) -> object:
    if not isinstance(made, torch.Tensor):
        return made

    plain = made.as_subclass(torch.Tensor)
    if isinstance(original, np.ndarray) and original.ndim > 1:
        array = plain.numpy()
        if is_image and original.ndim == 3:
            return np.ascontiguousarray(array.transpose(1, 2, 0))
        return array

    return plain
