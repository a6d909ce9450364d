"""Sample and batch types, and collate functions, that cross process boundaries in the tests."""

from collections import OrderedDict, defaultdict, namedtuple
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch.utils.data import default_collate
from torch.utils.data._utils.collate import default_collate_fn_map

Point = namedtuple("Point", ["x", "y"])


class TaggedDict(dict):
    """A dict with an attribute of its own."""

    tag: str = "none"


class TaggedOrderedDict(OrderedDict):
    """An ordered dict with an attribute of its own."""

    tag: str = "none"


class CountingDict(defaultdict):
    """A subclass of defaultdict."""


class TaggedList(list):
    """A list with an attribute of its own."""

    tag: str = "none"


class FrozenMap(Mapping[str, Any]):
    """A mapping that cannot be changed and is built from another one."""

    def __init__(self, content: Mapping[str, Any]) -> None:
        self.content = dict(content)

    def __getitem__(self, key: str) -> Any:
        return self.content[key]

    def __iter__(self) -> Iterator[str]:
        return iter(self.content)

    def __len__(self) -> int:
        return len(self.content)


class NamedMap(Mapping[str, Any]):
    """A mapping that cannot be changed and cannot be built from another one alone."""

    def __init__(self, name: str, content: Mapping[str, Any]) -> None:
        self.name = name
        self.content = dict(content)

    def __getitem__(self, key: str) -> Any:
        return self.content[key]

    def __iter__(self) -> Iterator[str]:
        return iter(self.content)

    def __len__(self) -> int:
        return len(self.content)


class Marked(torch.Tensor):
    """A tensor subclass without behaviour of its own."""


@dataclass
class Labelled:
    """What many users return from their collate function."""

    images: torch.Tensor
    labels: list[int]


class Box:
    """Any object: neither tensor nor container."""

    def __init__(self, content: Any) -> None:
        self.content = content

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Box) and self.content == other.content

    def __hash__(self) -> int:
        return hash(self.content)


def marked(*values: float) -> torch.Tensor:
    return torch.tensor(values).as_subclass(Marked)


def tagged(container: Any, tag: str) -> Any:
    container.tag = tag
    return container


def into_dataclass(samples: list[torch.Tensor]) -> Labelled:
    return Labelled(torch.stack(samples), [int(sample[0]) for sample in samples])


def into_box(samples: list[torch.Tensor]) -> Box:
    return Box(torch.stack(samples).tolist())


def into_box_of_tensor(samples: list[torch.Tensor]) -> Box:
    return Box(torch.stack(samples))


def into_array(samples: list[torch.Tensor]) -> np.ndarray:
    return np.stack([sample.numpy() for sample in samples])


def into_object_array(samples: list[torch.Tensor]) -> np.ndarray:
    array = np.empty(len(samples), dtype=object)
    array[:] = [f"sample {int(sample[0])}" for sample in samples]
    return array


def into_nothing(samples: list[torch.Tensor]) -> None:
    return None


def into_python(samples: list[torch.Tensor]) -> tuple[Any, ...]:
    first = int(samples[0][0])
    return (
        {first, -1},
        frozenset({first}),
        {"text": "ü", 3: b"\0"},
        1 + 2j,
        range(first),
        slice(0, first),
        None,
        True,
    )


def into_big_python(samples: list[torch.Tensor]) -> dict[str, Any]:
    return {"text": "x" * 200_000, "numbers": list(range(20_000)), "bytes": bytes(300_000)}


def into_tuple(samples: list[torch.Tensor]) -> tuple[torch.Tensor, ...]:
    return tuple(samples)


def into_expanded(samples: list[torch.Tensor]) -> torch.Tensor:
    return torch.stack([sample[:1] for sample in samples]).expand(-1, 5)


def into_transposed(samples: list[torch.Tensor]) -> torch.Tensor:
    return torch.stack(samples).t()


def into_strided(samples: list[torch.Tensor]) -> torch.Tensor:
    return torch.stack(samples)[:, ::2]


def into_views(samples: list[torch.Tensor]) -> list[torch.Tensor]:
    flat = torch.cat(samples)
    width = len(samples[0])
    return [flat[: width + 1], flat[width - 1 :]]


def into_part_of_default(samples: list[torch.Tensor]) -> torch.Tensor:
    return default_collate(samples)[1:, 1:]


def into_two_of_three(samples: list[torch.Tensor]) -> dict[str, torch.Tensor]:
    """Collates three times by default and throws one result away."""
    first = default_collate(samples)
    default_collate(samples).zero_()
    second = default_collate(samples).mul_(2)
    return {"second": second, "first": first, "again": first[:1]}


def into_twins(samples: list[torch.Tensor]) -> tuple[torch.Tensor, torch.Tensor]:
    batch = torch.stack(samples)
    return batch, batch


def into_leaf(samples: list[torch.Tensor]) -> torch.Tensor:
    return torch.stack(samples).requires_grad_()


def into_parameter(samples: list[torch.Tensor]) -> torch.nn.Parameter:
    return torch.nn.Parameter(torch.stack(samples))


def into_sparse(samples: list[torch.Tensor]) -> torch.Tensor:
    return torch.stack(samples).to_sparse()


class Remembering:
    """Collates, and gives with each batch the first one it ever made."""

    first: torch.Tensor | None = None

    def __call__(self, samples: list[torch.Tensor]) -> tuple[torch.Tensor, torch.Tensor]:
        batch = default_collate(samples)
        if self.first is None:
            self.first = batch
        return self.first, batch


remembering = Remembering()


def without_nones(samples: list[Any]) -> Any:
    return default_collate([sample for sample in samples if sample is not None])


def padded(samples: list[torch.Tensor]) -> tuple[torch.Tensor, torch.Tensor]:
    lengths = torch.tensor([len(sample) for sample in samples])
    return torch.nn.utils.rnn.pad_sequence(samples, batch_first=True), lengths


def register_boxes(worker: int) -> None:
    """A `worker_init_fn`: registers a rule for boxes, for the life of the worker."""
    default_collate_fn_map[Box] = unboxed


def in_tens(samples: list[torch.Tensor], *, collate_fn_map: Any = None) -> torch.Tensor:
    """A rule for the collate registry: what torch does, times ten."""
    return torch.stack(list(samples)) * 10


def unboxed(samples: list[Box], *, collate_fn_map: Any = None) -> list[Any]:
    """A rule for the collate registry: boxes become a list of their contents."""
    return [sample.content for sample in samples]
