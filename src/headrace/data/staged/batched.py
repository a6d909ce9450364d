"""Batched steps, which get samples as columns: what they see, and what they return.

As long as a step returns columns as the next one is to see them, they are handed on as they are; what they are in the
end is looked at behind the last step.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Literal, NamedTuple

import numpy as np
import torch

from headrace.core.errors import FormatError, SampleError
from headrace.core.randomness.rng import enter_step
from headrace.data.formats.columns import Array, Block, Column, Ragged
from headrace.data.formats.columns.schema import NUMBERS
from headrace.data.staged.layout import FIXED, RAGGED, SHAPE, SHAPED, Branch, Leaf, Node, leaves, schema_of
from headrace.data.staged.sample_columns import Names, Place, columns_of_samples, path_text, samples_of
from headrace.data.staged.samples import Columns
from headrace.data.staged.steps import Step


def on_columns(steps: Sequence[Step], first: int, data: Columns, place: Place) -> Columns:
    """Returns samples with some neighbouring batched steps done. Raises what they raise, and `SampleError`."""
    shown: Shown | None = None
    tree: Any = None
    last = first + len(steps) - 1
    for number, step in enumerate(steps, first):
        if step.random is not False:
            enter_step(0, number)
        if shown is None:
            shown = Shown()
            tree = shown.tree(data.node, data)

        try:
            tree = step.apply(tree)
        except Exception as error:
            error.add_note(f"headrace: raised by the step {step.name!r} on {data.count} samples, the first {place(0)}")
            raise

        if number == last or not shown.goes_on(tree, data.count):
            data = _taken(step, tree, data, shown, place)
            shown = None

    return data


def _taken(step: Step, tree: Any, data: Columns, shown: Shown, place: Place) -> Columns:
    """Returns what a step has returned, with its layout. data: what the first of the steps was given."""
    taken = _Taken(step, data, shown, place)
    try:
        node = taken.take(tree, ())
    except SampleError as error:
        error.add_note(f"headrace: in what the step {step.name!r} has returned")
        raise

    return Columns(node, Block(schema_of(node), taken.columns), data.count, taken.lists)


class ShownColumn(NamedTuple):
    """A column as a batched step sees it. `copy`: of a list, which tells whether the step has changed it."""

    leaf: Leaf
    column: Any
    copy: list[Any] | None


class Shown:
    """The columns that steps were given.

    By `id`: a column that a step hands back as it was given keeps its type, though an array says nothing of it.
    """

    def __init__(self) -> None:
        self._columns: dict[int, ShownColumn] = {}

    def tree(self, node: Node, data: Columns) -> Any:
        """Returns columns as a batched step sees them, and notes what each one is."""
        if isinstance(node, Branch):
            parts = [self.tree(part, data) for part in node.parts]
            if node.type == "dict":
                return dict(zip(node.keys, parts, strict=True))
            return tuple(parts)

        copy: list[Any] | None = None
        column: Any = data.block.columns.get(node.name)
        if node.type in ("str", "bytes", "none") or node.form == SHAPED or column is None:
            column = data.lists.get(node.name)
            if column is None:
                column = samples_of(node, data.block, data.count)
            # The step may change the list in place; only a copy tells whether it has.
            if node.type in ("str", "bytes"):
                copy = list(column)
        elif isinstance(column, Ragged):
            column = Ragged(*column.packed())

        self._columns[id(column)] = ShownColumn(node, column, copy)
        return column

    def find(self, column: object) -> ShownColumn | None:
        """Returns what is known of a column that a step has returned; None if it is not one that it was given."""
        return self._columns.get(id(column))

    def goes_on(self, tree: Any, count: int) -> bool:
        """Whether what a step has returned is as the next one is to see it: arrays, `Ragged`, lists as they were."""
        if type(tree) is dict:
            return all(self.goes_on(part, count) for part in tree.values())
        if type(tree) is tuple:
            return all(self.goes_on(part, count) for part in tree)
        if type(tree) is np.ndarray:
            return tree.ndim > 0 and len(tree) == count and tree.dtype in NUMBERS
        if type(tree) is Ragged:
            return len(tree) == count and tree.values.dtype in NUMBERS and tree.is_packed
        known = self.find(tree)
        return type(tree) is list and known is not None and known.copy == tree


class _Taken:
    """The columns that a batched step has returned."""

    def __init__(self, step: Step, data: Columns, shown: Shown, place: Place) -> None:
        self._step = step
        self._data = data
        self._shown = shown
        self._place = place
        self._names = Names()
        self.columns: dict[str, Column] = {}
        self.lists: dict[str, list[Any]] = {}

    def take(self, tree: Any, path: tuple[Any, ...]) -> Node:
        """Returns the layout of one part, and keeps its columns."""
        if type(tree) is dict:
            return self._branch(tree, tuple(tree), path)
        if type(tree) is tuple:
            return self._branch(tree, tuple(range(len(tree))), path)

        known = self._shown.find(tree)
        if not isinstance(tree, (np.ndarray, Ragged, torch.Tensor, list)) or (
            isinstance(tree, (np.ndarray, torch.Tensor)) and tree.ndim == 0
        ):
            raise self._wrong(path, f"{type(tree).__name__}", "arrays, tensors, Ragged or lists, one entry per sample")

        if len(tree) != self._data.count:
            raise self._wrong(path, f"{len(tree)} samples", f"{self._data.count} samples, as many as it was given")

        if isinstance(tree, list):
            unchanged = known is not None and known.copy == tree
            if known and unchanged:
                return self._unchanged(known.leaf, tree, path)
            return self._list(tree, path)

        name = self._names.take(path)
        if isinstance(tree, torch.Tensor):
            self.columns[name] = self._array(tree, path)
        else:
            self.columns[name] = tree

        if known is not None:
            return _called(known.leaf, name)
        if isinstance(tree, Ragged):
            return self._ragged(name, tree, path)
        column: Any = self.columns[name]
        if column.dtype not in NUMBERS:
            raise self._wrong(path, f"an array of {column.dtype}", "numbers; strings as a list")
        return Leaf(name, _kind_of(tree), _name_of(column.dtype), FIXED, column.shape[1:])

    def _branch(self, tree: Any, keys: tuple[Any, ...], path: tuple[Any, ...]) -> Branch:
        parts = []
        for key in keys:
            parts.append(self.take(tree[key], (*path, key)))

        return Branch(type(tree).__name__, keys, tuple(parts))

    def _ragged(self, name: str, values: Ragged, path: tuple[Any, ...]) -> Leaf:
        dtype = values.values.dtype
        if dtype not in NUMBERS:
            raise self._wrong(path, f"values of {dtype}", "numbers; strings as a list")
        try:
            values.check()
        except FormatError as error:
            found = f"offsets that descend, or lead outside of the {len(values.values):,} values"
            expected = "offsets that ascend from 0 on, the last one the number of values"
            raise self._wrong(path, found, expected) from error
        return Leaf(name, "array", _name_of(dtype), RAGGED, values.values.shape[1:])

    def _array(self, tensor: torch.Tensor, path: tuple[Any, ...]) -> Array:
        try:
            array: Array = tensor.detach().cpu().numpy()
        except (TypeError, RuntimeError) as error:
            expected = "a dense tensor of a type that NumPy knows"
            raise self._wrong(path, f"a tensor of {tensor.dtype}, {tensor.layout}", expected) from error

        return array

    def _unchanged(self, leaf: Leaf, values: list[Any], path: tuple[Any, ...]) -> Leaf:
        """Keeps strings that the step passed on, which then need not be put together again."""
        name = self._names.take(path)
        self.columns[name] = self._data.block.columns[leaf.name]
        self.lists[name] = values
        return _called(leaf, name)

    def _list(self, values: list[Any], path: tuple[Any, ...]) -> Node:
        node, block = columns_of_samples(values, self._place)
        new_names = {}
        for leaf in leaves(node):
            # A list of plain values has one column, which is called "value".
            if leaf.name == "value":
                new_names[leaf.name] = self._names.take(path)
            else:
                new_names[leaf.name] = self._names.take((*path, leaf.name))

        for leaf in leaves(node):
            for suffix in ("", SHAPE):
                if leaf.name + suffix in block.columns:
                    self.columns[new_names[leaf.name] + suffix] = block.columns[leaf.name + suffix]

        return _renamed(node, new_names)

    def _wrong(self, path: tuple[Any, ...], found: str, expected: str) -> SampleError:
        place = f"{self._step.name!r}, result{path_text(path)}"
        return SampleError.about(
            "a batched step returned what cannot be used as columns", place=place, found=found, expected=expected
        )


def _called(leaf: Leaf, name: str) -> Leaf:
    """Returns a leaf with another name; mostly it has that name already."""
    if leaf.name == name:
        return leaf
    return replace(leaf, name=name)


def _renamed(node: Node, names: dict[str, str]) -> Node:
    if isinstance(node, Leaf):
        return Leaf(names[node.name], node.type, node.dtype, node.form, node.shape)
    parts = []
    for part in node.parts:
        parts.append(_renamed(part, names))

    return Branch(node.type, node.keys, tuple(parts))


@functools.lru_cache(64)
def _name_of(dtype: np.dtype[Any]) -> str:
    # Kept: NumPy puts the name together anew each time.
    return dtype.name


def _kind_of(tree: np.ndarray | torch.Tensor) -> Literal["tensor", "array", "scalar"]:
    if isinstance(tree, torch.Tensor):
        return "tensor"
    if tree.ndim > 1:
        return "array"
    return "scalar"
