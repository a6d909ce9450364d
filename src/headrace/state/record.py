"""The record of one epoch: its terms and its progress. It outlives the iterator and becomes the loader's state."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

from headrace.core.world import World
from headrace.state.progress import MapProgress, StreamProgress
from headrace.state.snapshot import FORMAT, VERSION, Snapshot


class Terms(NamedTuple):
    """The terms of one epoch, as the loader sets them."""

    loader: str
    """What tells the loader from the others of the script, on all ranks."""
    epoch: int
    announce: bool
    """Whether data sets and samplers are told the epoch's number."""
    seed: int | None
    world: World
    deal: bool
    """Whether an iterable data set is dealt out over ranks and lanes."""
    in_order: bool
    fingerprint: Mapping[str, Any]
    """What a saved state must agree with."""
    resume: Snapshot | None
    """The state from which the epoch goes on."""

    @property
    def global_batch(self) -> int:
        """Samples in a batch of all ranks of a dealt-out stream."""
        return int(self.fingerprint["batch_size"] or 1) * self.world.size


@dataclass
class EpochRecord:
    """What was delivered of an epoch, and how its order came about."""

    terms: Terms
    progress: MapProgress | StreamProgress
    random: Any
    """States of the generators from which the order was drawn; None where it is not drawn from them."""
    draws: str
    """What was drawn from them at the beginning: `i` for the sampler's `__iter__`, `s` for the base seed."""
    lanes: int
    first: int
    """Position of the first sample of a dealt-out stream that the epoch began with."""
    elastic: bool
    """Whether ranks of another world size can go on from here (a stream must also be dealt out in order)."""
    finished: bool = False

    def snapshot(self) -> Snapshot:
        """Returns the state after the batch that was delivered last."""
        terms, progress = self.terms, self.progress
        common = {
            "format": FORMAT,
            "version": VERSION,
            **terms.fingerprint,
            "epoch": terms.epoch,
            "finished": self.finished,
            "rank": terms.world.rank,
            "world_size": terms.world.size,
            "batches": progress.batches,
            "random": self.random,
            "draws": self.draws,
        }
        if isinstance(progress, MapProgress):
            lanes = {"count": self.lanes, "next": 0, "first": 0, "states": sorted(progress.lanes.items())}
            return {
                **common,
                "elastic": self.elastic,
                "samples": progress.samples,
                "sampler": progress.sampler,
                "beyond": sorted(progress.beyond),
                "lanes": lanes if progress.lanes else None,
                "stream": None,
            }
        elastic = terms.in_order and self.elastic and all(state["dealt"] for state in progress.lanes.values())
        states = sorted(progress.lanes.items())
        lanes = {"count": self.lanes, "next": progress.next_lane, "first": self.first, "states": states}
        return {
            **common,
            "elastic": elastic,
            "samples": self.first + (progress.batches - progress.begun) * terms.global_batch,
            "sampler": None,
            "beyond": [],
            "lanes": None if elastic else lanes,
            "stream": progress.latest if elastic else None,
        }


def blank(terms: Terms, *, elastic: bool, random: Any) -> Snapshot:
    """Returns the state of a loader before its first epoch."""
    return EpochRecord(terms, MapProgress(), random, "", 0, 0, elastic).snapshot()
