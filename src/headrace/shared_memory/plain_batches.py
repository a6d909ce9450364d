"""Plain batches: tensors in dictionaries, lists and tuples, described without a pickler that looks at each object.

Most batches are of this kind. Their tensors leave the description as they are, in their order, and all else in it is of
Python's own types, which pickle writes in C. What is not plain (other classes, arrays, tensors that share memory, or an
object that lies in the batch twice) takes the way of `codec`, which keeps all that pickle keeps.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch

from headrace.core.plain_tensors import DTYPES, is_plain
from headrace.shared_memory.memory import Bytes

TENSOR, VALUE, DICT, LIST, TUPLE = range(5)
"""What a node of a description is. The next tensor; a value as it is; the others with the nodes of what they hold."""

VALUES = frozenset({int, float, str, bytes, bool, type(None)})
"""Types of values that nobody can change, so that it does not matter whether they are shared."""

KEYS = frozenset({int, str})

NUMBERS = {dtype: number for number, dtype in enumerate(DTYPES)}

Node = tuple[Any, ...]
Described = tuple[int, tuple[int, ...]]
"""A tensor: the number of its type, and its shape."""


class NotPlain(Exception):
    """A batch must be pickled."""


def describe(batch: object) -> tuple[Node, list[torch.Tensor]]:
    """Returns what `rebuild` needs, and the tensors of a batch in their order. Raises `NotPlain`."""
    tensors: list[torch.Tensor] = []
    return _node(batch, tensors, set()), tensors


def described(tensor: torch.Tensor) -> Described:
    """Returns what is said of one of these tensors."""
    return NUMBERS[tensor.dtype], tuple(tensor.shape)


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


def tensor_of(told: Described, data: Bytes | bytearray) -> torch.Tensor:
    """Returns a tensor over its bytes, which it keeps alive."""
    number, shape = told
    if len(data) == 0:
        return torch.empty(shape, dtype=DTYPES[number])
    return torch.frombuffer(data, dtype=DTYPES[number]).view(shape)


def bytes_of(tensor: torch.Tensor) -> Bytes:
    """Returns the memory of a tensor, uint8 [bytes]."""
    data: Bytes = tensor.view(-1).view(torch.uint8).numpy()
    return data


def _node(value: Any, tensors: list[torch.Tensor], seen: set[int]) -> Node:
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


def _add(tensor: torch.Tensor, tensors: list[torch.Tensor], seen: set[int]) -> None:
    """Adds a tensor that has all of its memory, and nothing but that."""
    if not is_plain(tensor):
        raise NotPlain
    if tensor.untyped_storage().nbytes() != tensor.nbytes:
        raise NotPlain

    address = tensor.data_ptr()
    if tensor.nbytes and address in seen:
        raise NotPlain
    seen.add(address)
    tensors.append(tensor)
