"""Kornia's augmentations of whole batches, on the device that holds them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, ClassVar

import torch
from torch import Tensor

from headrace.core.errors import UsageError
from headrace.core.randomness.counter_based import stream_key
from headrace.core.randomness.global_turns import seeded_globals
from headrace.core.randomness.rng import rng
from headrace.transforms.adapters import SEEDS
from headrace.transforms.entries import refuse_missing

IMAGE = "input"
KINDS = {IMAGE: 4, "image": 4, "mask": 4, "bbox": 4, "bbox_xyxy": 3, "bbox_xywh": 3, "keypoints": 3}
"""Kornia's names of what it carries along, and how many dimensions it wants them to have."""


def kornia(
    augmentation: Callable[..., Any], data_keys: Mapping[str, str] | None = None, seed: int | None = None
) -> Kornia:
    """Wraps an augmentation of Kornia for batches, on their device: a dictionary of tensors, or one tensor of images.

    Images uint8 [batch, channels, height, width] become float32, 0 to 1; floating point stays what it is. Masks [batch,
    height, width] or [batch, channels, height, width] keep shape and type, and are not interpolated; boxes are [batch,
    n, 4], key points [batch, n, 2], or a `Padded` of them, whose lengths stay. Coordinates are Kornia's: those of
    pixels' centres, so that x becomes width - 1 - x when an image of that width is mirrored.

    For the length of a call, torch's global generators (of the CPU and the batch's device) are seeded, and then put
    back: the same seed gives the same numbers, whatever else draws.

    Args:
        augmentation: `AugmentationSequential` where targets are carried along; else any augmentation.
        data_keys: entry of the batch -> Kornia's name for it: "input", "mask", "bbox_xyxy", "bbox_xywh", "bbox" or
            "keypoints"; {"image": "input"} by default.
        seed: numbers then depend on it and on the count of calls, `calls`, which may be set to resume. None: each call
            draws from `headrace.rng()`.

    Returns:
        A step from a batch to a batch; all other entries stay as they are.

    Raises:
        UsageError: names that Kornia does not know.

    Examples:
        >>> brighten = headrace.transforms.kornia(lambda images: images + 0.5, seed=0)
        >>> brighten({"image": torch.zeros(1, 3, 8, 8), "label": 7})["image"].max()
        tensor(0.5000)
    """
    kinds: dict[str, str]
    if data_keys is None:
        kinds = {"image": IMAGE}
    else:
        kinds = dict(data_keys)

    return Kornia(augmentation, kinds, seed)


class Kornia:
    """A step that applies an augmentation of Kornia to a batch; see `kornia`."""

    random: ClassVar[bool] = True

    def __init__(self, augmentation: Callable[..., Any], data_keys: dict[str, str], seed: int | None) -> None:
        unknown = []
        for kind in data_keys.values():
            if kind not in KINDS:
                unknown.append(kind)

        if unknown or not data_keys:
            found = ", ".join(map(repr, unknown)) or "no entries"
            raise UsageError.about("unknown data keys", found=found, expected=", ".join(KINDS))

        self.augmentation = augmentation
        self.data_keys = data_keys
        self.seed = seed
        self.calls = 0

    def __call__(self, batch: object) -> Any:
        """Returns the batch, augmented, in memory of its own. Raises `UsageError` for a batch without those entries."""
        names = list(self.data_keys)
        if not isinstance(batch, Mapping):
            if len(names) != 1 or not isinstance(batch, Tensor):
                found = type(batch).__name__
                raise UsageError.about("not a batch of these entries", found=found, expected=f"entries {names}")
            return self({names[0]: batch})[names[0]]

        refuse_missing(batch, names, "kornia")
        given = []
        for name in names:
            given.append(_entering(batch[name], self.data_keys[name]))

        # Only `AugmentationSequential` takes `data_keys`; any augmentation takes images alone.
        with seeded_globals(self._next_seed(), given[0].device):
            if len(given) == 1 and self.data_keys[names[0]] in (IMAGE, "image"):
                made: Any = [self.augmentation(given[0])]
            else:
                made = self.augmentation(*given, data_keys=list(self.data_keys.values()))

        if not isinstance(made, (list, tuple)):
            made = [made]

        result = dict(batch)
        for name, value in zip(names, made, strict=True):
            result[name] = _leaving(value, batch[name], self.data_keys[name])

        return result

    def _next_seed(self) -> int:
        if self.seed is None:
            return int(rng().integers(SEEDS))
        # A generator would have a state to save; a count is one number, and the seed of any call can be told from it.
        self.calls += 1
        return stream_key(self.seed, self.calls) % SEEDS

    def __repr__(self) -> str:
        if self.seed is None:
            seeded = ""
        else:
            seeded = f", seed={self.seed}"
        return f"kornia({type(self.augmentation).__name__}, data_keys={self.data_keys}{seeded})"


def _values(entry: object) -> Tensor:
    # A `Padded` has its numbers in `values`. A tensor has a method of that name.
    if isinstance(entry, Tensor):
        tensor: Any = entry
    else:
        tensor = getattr(entry, "values", entry)

    if not isinstance(tensor, Tensor):
        fix = "stack or pad the entry in the loader first"
        raise UsageError.about("not a tensor", found=type(entry).__name__, expected="a tensor", fix=fix)

    return tensor


def _entering(entry: object, kind: str) -> Tensor:
    """The entry in the form that Kornia wants: floating point, with its number of dimensions."""
    tensor = _values(entry)
    if kind in (IMAGE, "image"):
        if tensor.dtype == torch.uint8:
            return tensor.to(torch.float32).div_(255)
        return tensor

    if not tensor.is_floating_point():
        tensor = tensor.to(torch.float32)
    if kind == "mask" and tensor.ndim == 3:
        return tensor[:, None]
    return tensor


def _leaving(made: Tensor, entry: Any, kind: str) -> Any:
    """What Kornia made, in the entry's own form."""
    if kind in (IMAGE, "image"):
        return made

    given = _values(entry)
    if kind == "mask" and given.ndim == 3:
        made = made[:, 0]
    if not given.is_floating_point():
        made = made.round().to(given.dtype)
    if isinstance(entry, Tensor):
        return made
    return entry._replace(values=made)
