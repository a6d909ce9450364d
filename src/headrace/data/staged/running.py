"""Runs steps on some samples: one by one, or on their columns, with as few changes between the two as can be."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal, NamedTuple

import numpy as np
import torch

from headrace.core.errors import FormatError, SampleError
from headrace.core.rng import enter_step, follows_streams
from headrace.data.formats.columns import Array, Block, Column, Keys, Ragged
from headrace.data.formats.columns.schema import NUMBERS
from headrace.data.staged.layout import FIXED, RAGGED, SHAPE, SHAPED, Branch, Leaf, Node, joined, leaves, schema_of
from headrace.data.staged.sample_columns import Names, Place, columns_of_samples, fitted, path_text, samples_of
from headrace.data.staged.steps import Step
from headrace.faults.bad_sample import path_of


@dataclass(frozen=True)
class Rows:
    """Samples, one by one."""

    samples: list[Any]

    def __len__(self) -> int:
        return len(self.samples)


@dataclass(frozen=True)
class Columns:
    """Samples, column by column."""

    node: Node
    block: Block
    count: int
    lists: dict[str, list[Any]] = field(default_factory=dict)
    """Columns of strings as lists, by their names, where somebody has made these already."""

    def __len__(self) -> int:
        return self.count


Data = Rows | Columns


def named(keys: Sequence[Any] | Keys, dataset: object = None) -> Place:
    """Returns what names samples by their keys, and by their files where the dataset tells them."""

    def place(index: int) -> str:
        key = keys[index]
        if isinstance(key, np.generic):
            key = key.item()
        path = path_of(dataset, key)
        if path is None:
            return f"sample {key!r}"
        return f"sample {key!r}, {path}"

    return place


def as_rows(data: Data) -> list[Any]:
    """Returns samples one by one."""
    if isinstance(data, Rows):
        return data.samples
    return samples_of(data.node, data.block, data.count)


def as_columns(data: Data, place: Place) -> Columns:
    """Returns samples, of which there is at least one, column by column. Raises `SampleError`."""
    if isinstance(data, Columns):
        return data
    return Columns(*columns_of_samples(data.samples, place), len(data))


@dataclass
class Pipeline:
    """Steps in order. `first`: the number of the first one, which names its random streams.

    What differs in length among some samples may not among others. So that a batched step always gets the same kind of
    columns, `known` holds the layouts of samples that come one by one to the steps of these numbers, as `learn` found
    them; that of the results is under the number behind the last step.
    """

    steps: tuple[Step, ...]
    first: int
    known: dict[int, Node] = field(default_factory=dict)
    learned: bool = False

    @property
    def last(self) -> int:
        """The number behind the last step."""
        return self.first + len(self.steps)

    def run(self, data: Data, place: Place) -> Data:
        """Returns samples with all steps done."""
        return self.part(self.steps, self.first, data, place)

    def part(self, steps: Sequence[Step], first: int, data: Data, place: Place) -> Data:
        """Returns samples with some neighbouring steps done."""
        at = 0
        while at < len(steps) and len(data):
            if steps[at].batched:
                data = _on_columns(steps[at], first + at, self.columns(data, first + at, place), place)
                at += 1
                continue

            # All steps up to the next batched one go over the samples together: a sample stays in the cache of a core.
            stop = at
            while stop < len(steps) and not steps[stop].batched:
                stop += 1

            data = Rows(_one_by_one(steps[at:stop], first + at, as_rows(data), place))
            at = stop

        return data

    def columns(self, data: Data, number: int, place: Place) -> Columns:
        """Returns samples as they come to step `number`, column by column, built as others are.

        Raises `SampleError` if they cannot be held so, or are unlike those that were looked at.
        """
        found = as_columns(data, place)
        known = self.known.get(number)
        if known is None or known == found.node or isinstance(data, Columns):
            return found

        both = joined([known, found.node])
        if both != known:
            raise _differ_now(both, known)

        return Columns(known, fitted(found.block, found.node, known), found.count)

    def must_learn(self, *, batches: bool) -> bool:
        """Tells whether samples may come one by one to a batched step, or to where batches are made."""
        batched = [step.batched for step in self.steps]
        return any(batched) or (batches and not (batched and all(batched)))

    def forget(self) -> None:
        """Forgets what was learned."""
        self.known = {}
        self.learned = False

    def learn(self, data: Data, place: Place) -> None:
        """Runs the steps on some samples, and notes how those are built that come one by one."""
        self.known = {}
        self.learned = True
        for number, step in enumerate(self.steps, self.first):
            if isinstance(data, Rows) and step.batched:
                self.known[number] = as_columns(data, place).node
            data = self.part((step,), number, data, place)

        if isinstance(data, Rows):
            # Samples that columns cannot hold may leave a pipeline, one by one.
            with contextlib.suppress(SampleError):
                self.known[self.last] = as_columns(data, place).node


def _differ_now(both: Node, known: Node) -> SampleError:
    """Returns the error for samples that need the layout `both`, where those that were looked at fit into `known`."""
    name = ""
    found = ""
    for leaf, expected in zip(leaves(both), leaves(known), strict=True):
        if leaf != expected:
            name = leaf.name
            found = str(leaf)
            break

    what = "some samples differ in shape, those that were looked at beforehand did not"
    cure = "have the step before it return arrays of one shape, or declare that as batched and return headrace.Ragged"
    return SampleError.about(what, place=f"column {name!r}", found=found, expected="one shape for all", cure=cure)


def _one_by_one(steps: Sequence[Step], first: int, samples: list[Any], place: Place) -> list[Any]:
    done = []
    enters = follows_streams()
    numbered = []
    for step_number, step in enumerate(steps, first):
        draws = enters and step.random is not False
        if step.on is None:
            numbered.append((step.function, draws, step_number))
        else:
            numbered.append((step.apply, draws, step_number))

    index = number = 0
    try:
        for index, sample in enumerate(samples):
            for function, draws, number in numbered:
                if draws:
                    enter_step(index, number)
                sample = function(sample)
            done.append(sample)
    except Exception as error:
        error.add_note(f"headrace: raised by the step {steps[number - first].name!r} on {place(index)}")
        raise

    return done


# -- batched steps -----------------------------------------------------------------------------------------------------


def _on_columns(step: Step, number: int, data: Columns, place: Place) -> Columns:
    if step.random is not False:
        enter_step(0, number)

    # By `id`: a column that the step hands back as it was given keeps its type, though an array says nothing of it.
    shown: dict[int, Shown] = {}
    tree = _shown(data.node, data, shown)
    try:
        tree = step.apply(tree)
    except Exception as error:
        error.add_note(f"headrace: raised by the step {step.name!r} on {data.count} samples, the first {place(0)}")
        raise

    taken = _Taken(step, data, shown, place)
    try:
        node = taken.take(tree, ())
    except SampleError as error:
        error.add_note(f"headrace: in what the step {step.name!r} has returned")
        raise

    return Columns(node, Block(schema_of(node), taken.columns), data.count, taken.lists)


class Shown(NamedTuple):
    """A column as a batched step sees it. `copy`: of a list, which tells whether the step has changed it."""

    leaf: Leaf
    column: Any
    copy: list[Any] | None


def _shown(node: Node, data: Columns, shown: dict[int, Shown]) -> Any:
    """Returns columns as a batched step sees them, and notes under their ids what each one is."""
    if isinstance(node, Branch):
        parts = [_shown(part, data, shown) for part in node.parts]
        if node.type == "dict":
            return dict(zip(node.keys, parts, strict=True))
        return tuple(parts)

    column = data.block.columns.get(node.name)
    shown_column: Any
    if node.type in ("str", "bytes", "none") or node.form == SHAPED or column is None:
        shown_column = data.lists.get(node.name)
        if shown_column is None:
            shown_column = samples_of(node, data.block, data.count)
        # The step may change the list in place; only a copy tells whether it has.
        copy: list[Any] | None
        if node.type in ("str", "bytes"):
            copy = list(shown_column)
        else:
            copy = None

        shown[id(shown_column)] = Shown(node, shown_column, copy)
        return shown_column

    if isinstance(column, Ragged):
        shown_column = Ragged(*column.packed())
    else:
        shown_column = column

    shown[id(shown_column)] = Shown(node, shown_column, None)
    return shown_column


class _Taken:
    """The columns that a batched step has returned."""

    def __init__(self, step: Step, data: Columns, shown: dict[int, Shown], place: Place) -> None:
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

        known = self._shown.get(id(tree))
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
