"""Plain batches: tensors in dictionaries, lists and tuples, described without a pickler that looks at each object.

Most batches are of this kind. Their tensors leave the description as they are, in their order, and all else in it is of
Python's own types, which pickle writes in C. What is not plain (other classes, arrays, tensors that share memory, or an
object that lies in the batch twice) takes the way of `codec`, which keeps all that pickle keeps.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import torch

from headrace.core.plain_tensors import DTYPES, is_plain
from headrace.shared_memory.leases import tensor_over
from headrace.shared_memory.memory import Bytes

TENSOR, VALUE, DICT, LIST, TUPLE = range(5)
"""What a node of a description is. The next tensor; a value as it is; the others with the nodes of what they hold."""

VALUES = frozenset({int, float, str, bytes, bool, type(None)})
"""Types of values that nobody can change, so that it does not matter whether they are shared."""

KEYS = frozenset({int, str})

BYTE = np.dtype(np.uint8)
NUMBERS = {dtype: number for number, dtype in enumerate(DTYPES)}

Node = tuple[Any, ...]
Described = tuple[int, tuple[int, ...]]
"""A tensor: the number of its type, and its shape."""

Found = tuple[Described, Bytes, int]
"""A tensor of a batch: what it is, its memory, and the address of that."""


class NotPlain(Exception):
    """A batch must be pickled."""


def describe(batch: object) -> tuple[Node, list[Found]]:
    """Returns what `rebuild` needs, and the tensors of a batch in their order: what they are, and their memory.

    Raises `NotPlain`.
    """
    tensors: list[Found] = []
    return _node(batch, tensors, set()), tensors


def rebuild(node: Node, tensors: Iterator[torch.Tensor]) -> Any:
    """Returns a batch whose tensors come from `tensors`, in their order."""
    kind = node[0]
    if kind == TENSOR:
        return next(tensors)
    if kind == VALUE:
        return node[1]
    if kind == DICT:
        return {key: rebuild(inner, tensors) for key, inner in zip(node[1], node[2], strict=True)}
    if kind == LIST:
        return [rebuild(inner, tensors) for inner in node[1]]
    return tuple([rebuild(inner, tensors) for inner in node[1]])


class UnopenedBatch:
    """A plain batch whose tensors are not made: what they are, and where their bytes lie. Keeps its memory leased."""

    __slots__ = ("leases", "node", "places", "told")

    def __init__(
        self, node: Node, told: list[Described], places: list[tuple[int, int, int]], leases: list[Bytes]
    ) -> None:
        """places: of the tensors, in the order of `told`: which of `leases`, where in it, how many bytes."""
        self.node = node
        self.told = told
        self.places = places
        self.leases = leases

    def opened(self) -> Any:
        """Returns the batch, over its memory."""
        tensors = []
        for told, (index, start, nbytes) in zip(self.told, self.places, strict=True):
            tensors.append(tensor_of(told, self.leases[index][start : start + nbytes]))
        return rebuild(self.node, iter(tensors))


def tensors_in(node: Node) -> int:
    """Returns how many tensors a description has."""
    kind = node[0]
    if kind == TENSOR:
        return 1
    if kind == VALUE:
        return 0
    return sum(map(tensors_in, node[-1]))


def tensor_of(told: Described, data: Bytes | bytearray) -> torch.Tensor:
    """Returns a tensor over its bytes, which it keeps alive."""
    number, shape = told
    if len(data) == 0:
        return torch.empty(shape, dtype=DTYPES[number])
    return tensor_over(data, shape, DTYPES[number])


def _node(value: Any, tensors: list[Found], seen: set[int]) -> Node:
    kind = type(value)
    if kind is torch.Tensor:
        _add(value, tensors, seen)
        return (TENSOR,)
    if kind in VALUES:
        return VALUE, value
    if kind is tuple:
        return TUPLE, [_node(inner, tensors, seen) for inner in value]

    # What can be changed must be one object afterwards if it was one before.
    if kind not in (dict, list) or id(value) in seen:
        raise NotPlain
    seen.add(id(value))
    if kind is list:
        if VALUES.issuperset(map(type, value)):
            return VALUE, value
        return LIST, [_node(inner, tensors, seen) for inner in value]
    if not KEYS.issuperset(map(type, value)):
        raise NotPlain
    return DICT, list(value), [_node(inner, tensors, seen) for inner in value.values()]


def _add(tensor: torch.Tensor, tensors: list[Found], seen: set[int]) -> None:
    """Adds a tensor that has all of its memory, and nothing but that."""
    data = memory_of(tensor)
    if data is None or tensor.untyped_storage().nbytes() != data.size:
        raise NotPlain
    address = tensor.data_ptr()
    if data.size and address in seen:
        raise NotPlain
    seen.add(address)
    tensors.append(((NUMBERS[tensor.dtype], tuple(tensor.shape)), data, address))


def memory_of(tensor: torch.Tensor) -> Bytes | None:
    """Returns the memory of a plain tensor, uint8 [bytes]; None for any other."""
    if tensor.dtype is torch.bfloat16 and is_plain(tensor):  # which NumPy has not
        tensor = tensor.view(torch.int16)
    if tensor.dtype not in NUMBERS:
        return None

    # To ask torch for all that makes a tensor plain takes four times as long. NumPy gets no tensor that has a gradient,
    # a lazy sign, another layout or another device.
    try:
        array = tensor.numpy()
    except (RuntimeError, TypeError):
        return None
    if not array.flags.c_contiguous:
        return None
    data: Bytes = array.reshape(-1).view(BYTE)
    return data
