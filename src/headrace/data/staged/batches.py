"""Whole batches of a staged dataset."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from headrace.core.batch_memory import BatchMemory
from headrace.core.errors import SampleError
from headrace.core.protocols import answers
from headrace.core.torch_internals import torch_default_collate
from headrace.data import gather
from headrace.data.formats.columns import Array, Keys, Ragged
from headrace.data.staged.layout import SHAPE, SHAPED, Leaf, Node, leaves
from headrace.data.staged.sample_columns import Place
from headrace.data.staged.samples import Columns, Data, SampleRows, as_columns, named
from headrace.data.staged.step_runner import Pipeline
from headrace.data.staged.steps import Step

if TYPE_CHECKING:
    from headrace.data.staged.staged import Staged


def fetch(staged: Staged, keys: Sequence[Any] | Keys, out: BatchMemory) -> Any:
    if staged.stored is not None and staged.cached is not None and not staged.get_item_transform:
        node = staged.cached.node
        # Arrays of which any dimension may differ lie in two columns, which `collate` puts together.
        if not any(leaf.form == SHAPED for leaf in leaves(node)):
            columns = staged.stored.fetch_batch(keys, out)

            def column_of(leaf: Leaf) -> Any:
                if leaf.type == "none":
                    return [None] * len(keys)
                return columns[leaf.name]

            return built(node, column_of)

    pipeline = staged.pipeline(batches=True)
    data = staged.before_steps(keys)
    place = named(keys, staged.dataset)
    writer = _direct(pipeline.steps)
    if writer is not None:
        return _written(pipeline, writer, data, place, staged.ragged, out)

    data = pipeline.run(data, place)
    if isinstance(data, SampleRows) and pipeline.last not in pipeline.known:
        return torch_default_collate(data.samples)
    return collate(pipeline.columns(data, pipeline.last, place), staged.ragged, out)


def _written(
    pipeline: Pipeline, writer: Step, data: Data, place: Place, ragged: gather.RaggedAs, out: BatchMemory
) -> Any:
    """Returns a batch whose last step writes straight into it."""
    function: Any = writer.function
    tensor, array = gather.allocate(out, (len(data), *function.shape), np.dtype(function.dtype))
    rows = iter(array)

    def write(value: object) -> int:
        function.into(value, out=next(rows))
        return 0

    stand_in = Step(write, writer.name, writer.random, on=writer.on)
    done = pipeline.part((*pipeline.steps[:-1], stand_in), pipeline.first, data, place)
    if writer.on is None:
        return tensor

    batch = collate(as_columns(done, place), ragged, out)
    batch[writer.on] = tensor
    return batch


def _direct(steps: tuple[Step, ...]) -> Step | None:
    """Returns the last step, if it is one that writes arrays of one size where it is told to."""
    if not steps or steps[-1].batched:
        return None

    function = steps[-1].function
    shape = getattr(function, "shape", None)
    dtype = getattr(function, "dtype", None)
    if isinstance(shape, tuple) and dtype is not None and answers(function, "into", 1, "out"):
        return steps[-1]
    return None


def collate(columns: Columns, ragged: gather.RaggedAs, out: BatchMemory) -> Any:
    """Returns samples as a batch: tensors, lists of strings, and what `ragged` says for arrays of different lengths."""

    padder = gather.Padder()

    def make(leaf: Leaf) -> Any:
        if leaf.type == "none":
            return [None] * columns.count
        if leaf.type == "str" and leaf.name in columns.lists:
            return list(columns.lists[leaf.name])

        column: Any = columns.block.columns[leaf.name]
        if leaf.form == SHAPED:
            shapes: Any = columns.block.columns[leaf.name + SHAPE]
            return _shaped(leaf, column, shapes, ragged, out)

        field = leaf.fields()[0]
        if isinstance(column, Ragged):
            return gather.whole(field, column, field.dtype, ragged, out, padder)
        # A step may keep what it has returned, and write to it later.
        return gather.copied(column, field.dtype, out)

    return built(columns.node, make)


def built(node: Node, make: Callable[[Leaf], Any]) -> Any:
    """Returns the structure of a batch, where torch has lists for tuples, too."""
    if isinstance(node, Leaf):
        return make(node)

    parts = [built(part, make) for part in node.parts]
    if node.type == "dict":
        return dict(zip(node.keys, parts, strict=True))
    return parts


def _shaped(leaf: Leaf, column: Ragged, shapes: Array, ragged: gather.RaggedAs, out: BatchMemory) -> Any:
    """Returns arrays of which any dimension may differ: stacked if they are equal, otherwise as a list."""
    dtype = np.dtype(leaf.dtype)
    distinct = np.unique(shapes, axis=0)
    if ragged != "list" and len(distinct) > 1:
        some = ["x".join(map(str, shape)) for shape in distinct[:4].tolist()]
        found = ", ".join(some)
        fix = 'crop or resize them in a step, or set ragged="list"'
        raise SampleError.about(
            "arrays of one batch differ in shape", place=f"column {leaf.name!r}", found=found, fix=fix
        )

    values, offsets = column.packed()
    if ragged != "list":
        return gather.copied(values.reshape(len(shapes), *distinct[0].tolist()), dtype, out)

    flat = gather.ragged(Ragged(values, offsets), leaf.fields()[0], dtype, "list")(np.arange(len(shapes)), out)
    return [part.reshape(shape) for part, shape in zip(flat, shapes.tolist(), strict=True)]
