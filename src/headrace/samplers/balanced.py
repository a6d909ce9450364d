"""Every class equally often, however rare it is."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from headrace.core.errors import UsageError
from headrace.core.randomness.counter_based import GOLDEN, mix_words, words_at
from headrace.samplers.frameworks import SplitOverRanks
from headrace.samplers.permutation import Permutations
from headrace.samplers.positions import Uneven
from headrace.samplers.sampler import Keys, PositionalSampler, digest_of, positive
from headrace.samplers.weighted import numbers_of

CLASSES, SAMPLES = 0, 1
"""What is shuffled."""


class ClassBalancedSampler(PositionalSampler, SplitOverRanks):
    """Samples all classes equally often: with n classes, every n positions hold each class once, in random order.

    The samples of a class are shuffled, and shuffled again after all of them have come. So a sample of a rare class
    comes again only after all others of its class. Each class continues in the next epoch where it stopped, so all
    samples of a large class come over time. Memory: 8 bytes per label, 32 per class.

    Args:
        labels: one for each sample: a one-dimensional array, tensor or sequence of hashable values.
        num_samples: samples of an epoch over all ranks; by default the number of labels.
        seed: of the order.
        rank: of this process; None: that of `torch.distributed` or the launcher's environment.
        world_size: number of ranks; None: likewise.
        uneven: as in `DistributedSampler`.

    Raises:
        UsageError: wrong arguments.

    Examples:
        >>> labels = ["cat", "dog", "dog", "dog"]
        >>> sampler = headrace.samplers.ClassBalancedSampler(labels, num_samples=4)
        >>> sorted(labels[key] for key in sampler)
        ['cat', 'cat', 'dog', 'dog']
    """

    def __init__(
        self,
        labels: npt.ArrayLike | torch.Tensor | Sequence[Hashable],
        num_samples: int | None = None,
        *,
        seed: int = 0,
        rank: int | None = None,
        world_size: int | None = None,
        uneven: Uneven = "pad",
    ) -> None:
        super().__init__(seed=seed, rank=rank, world_size=world_size, uneven=uneven)
        classes = numbered(labels)
        if num_samples is None:
            self.total = classes.size
        else:
            self.total = positive("num_samples", num_samples)

        self._digest = digest_of(classes)
        # The keys of class 0, then those of class 1, and so on.
        self._members = np.argsort(classes, kind="stable")
        self._sizes = np.bincount(classes)
        self._starts = np.cumsum(self._sizes) - self._sizes
        self._order = Permutations([len(self._sizes)])
        self._shuffles = Permutations(self._sizes)

    @property
    def samples_of_dataset(self) -> int:
        """How many samples the dataset must have: the number of labels."""
        return len(self._members)

    def keys_at(self, epoch: int, positions: Keys) -> Keys:
        count = len(self._sizes)
        rounds, places = np.divmod(positions, count)
        words = words_at(self._stream(CLASSES, epoch), rounds)
        classes = self._order.at(np.zeros_like(places), words, places)

        # Each round holds every class once, so a class has come as often as there were rounds, over all epochs.
        turns = rounds + epoch * -(-self.total // count)
        passes, places = np.divmod(turns, self._sizes[classes])
        words = words_at(self._stream(SAMPLES, 0), classes) + passes.astype(np.uint64) * np.uint64(GOLDEN)
        keys: Keys = self._members[self._starts[classes] + self._shuffles.at(classes, mix_words(words), places)]
        return keys

    def _identity(self) -> dict[str, Any]:
        more = {"labels": len(self._members), "classes": len(self._sizes), "digest": self._digest}
        return {**super()._identity(), **more}


def numbered(labels: Any) -> Keys:
    """Returns the class of each sample, shape (n,); classes are numbered as they come first. Raises `UsageError`."""
    if isinstance(labels, torch.Tensor | np.ndarray):
        array = numbers_of(labels)
        if array.ndim != 1 or not array.size:
            raise _bad_labels(f"an array of shape {array.shape}")
        if array.dtype.kind != "O":
            return _numbered_array(array)

    try:
        numbers: dict[Hashable, int] = {}
        classes = [numbers.setdefault(_plain(label), len(numbers)) for label in labels]
    except TypeError as error:
        raise _bad_labels(f"{type(labels).__name__}: {error}") from error

    if not classes:
        raise _bad_labels("none")
    return np.array(classes, np.int64)


def _numbered_array(labels: npt.NDArray[Any]) -> Keys:
    # `unique` numbers classes by their values. They are numbered as they come first, so that classes have the same
    # numbers whether labels come as an array or as a list.
    _, firsts, classes = np.unique(labels, return_index=True, return_inverse=True)
    return np.argsort(np.argsort(firsts))[classes].astype(np.int64, copy=False)


def _plain(label: Any) -> Any:
    # Tensors hash by identity.
    if isinstance(label, torch.Tensor) and label.ndim == 0:
        return label.item()
    return label


def _bad_labels(found: str) -> UsageError:
    expected = "one label for each sample, in one dimension: numbers, strings or anything that can be hashed"
    fix = "give the class of each sample, in the order of the dataset"
    return UsageError.about("cannot balance these labels", place="labels=", found=found, expected=expected, fix=fix)
