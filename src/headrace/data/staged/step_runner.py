"""Runs steps on some samples: one by one, or on their columns, with as few changes between the two as can be."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from headrace.core.errors import SampleError
from headrace.core.randomness.rng import enter_step, follows_streams
from headrace.data.staged.batched import on_columns
from headrace.data.staged.layout import Node, joined, leaves
from headrace.data.staged.sample_columns import Place, fitted
from headrace.data.staged.samples import Columns, Data, SampleRows, as_columns, as_rows
from headrace.data.staged.steps import Step


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
            # All steps up to the next one of the other kind go over the samples together: one by one, a sample stays in
            # the cache of a core; batched ones hand their columns on as they are.
            stop = at
            while stop < len(steps) and steps[stop].batched == steps[at].batched:
                stop += 1

            if steps[at].batched:
                data = on_columns(steps[at:stop], first + at, self.columns(data, first + at, place), place)
            else:
                data = SampleRows(_one_by_one(steps[at:stop], first + at, as_rows(data), place))
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
            if isinstance(data, SampleRows) and step.batched:
                self.known[number] = as_columns(data, place).node
            data = self.part((step,), number, data, place)

        if isinstance(data, SampleRows):
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
    fix = (
        "have the step before it return arrays of one shape, or declare it as batched and return headrace.types.Ragged"
    )
    return SampleError.about(what, place=f"column {name!r}", found=found, expected="one shape for all", fix=fix)


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
