"""Ranks that differ: whether all of them make equally many batches, found out without waiting for anybody.

In training all ranks take each step together, so a rank with a batch more than the others waits for ever. Each rank
posts in the store of the process group how many batches it plans, how many it has delivered and when it has ended, and
looks at what the others have posted by then. It posts before it looks: of two ranks that differ, at least one sees it.

Where each rank counts its epochs itself, a rank that has looked at a batch before is in another epoch than the others,
with another order. In training they are at the same batch all the same: so ranks post their epoch with the first ones.

Where a sampler would have to make its whole order to tell how many batches it has, the ranks compare its arguments.

With `headrace.Shard` the ranks also post their shards: all must count as many replicas, and the ranks of one replica
must make the same batches.
"""

from __future__ import annotations

import json
import sys
from collections import Counter
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any
from zlib import crc32

from headrace.core.errors import RanksDifferError, explain, warn
from headrace.core.world import Shard, World, common_store, distributed_world
from headrace.epoch.record import Terms
from headrace.loader.options import Options
from headrace.samplers.sampler import ElasticSampler

if TYPE_CHECKING:
    from torch.distributed.distributed_c10d import Store  # not there in every build of torch

FRAMES = 12
"""Calls that tell one loader of a script from another."""

FIRST_BATCHES = 2
"""Of an epoch: at which ranks that are in step may be when one of them gets its second batch."""

_made: Counter[str] = Counter()


def name_here() -> str:
    """Returns a name for the loader that is being made: the same on all ranks, if they make it at the same place."""
    frame = sys._getframe(2)
    places = list[str]()
    while frame.f_back is not None and len(places) < FRAMES:
        places.append(f"{frame.f_code.co_name}:{frame.f_lineno}")
        if frame.f_globals.get("__name__") == "__main__" and frame.f_code.co_name == "<module>":
            break  # what is around the script may differ: `headrace run` on one rank, python on the others
        frame = frame.f_back

    place = f"{crc32(' '.join(places).encode()):08x}"
    _made[place] += 1
    return f"{place}-{_made[place]}"


class RankWatch:
    """One epoch of one loader, on one rank.

    strict: whether ranks that differ are an error, or only a warning. counts: whether all must make equally many
    batches. replica: what `replica_of` says of this rank. counted: the loader's name and the epoch, where each rank
    counts its own; None: the user numbers them. order: what `order_of` says of its sampler.
    """

    def __init__(  # noqa: PLR0913 - what ranks are told apart by
        self,
        store: Store,
        name: str,
        world: World,
        *,
        strict: bool,
        counts: bool = True,
        replica: Mapping[str, Any] | None = None,
        counted: tuple[str, int] | None = None,
        order: str | None = None,
    ) -> None:
        self._store = store
        self._name = name
        self._world = world
        self._strict = strict
        self._counts = counts
        self._replica = replica
        self._counted = counted
        self._others = [rank for rank in range(world.size) if rank != world.rank]
        self._planned: int | None = None
        self._order = order
        self._ended = f"{name}/ended"
        self._said = False

    def begin(self, planned: int | None) -> None:
        """Posts how many batches this rank will make, if that is known. Raises `RanksDifferError`."""
        self._planned = planned
        if self._replica is not None:
            self._post("replica", json.dumps(self._replica))
            self._compare_replicas()
        if not self._counts:
            return
        self._post_epoch(0)
        if planned is not None:
            self._post("planned", planned)
        if self._order is not None:
            self._post("order", json.dumps(self._order))
        self._compare()

    def delivers(self, count: int) -> None:
        """Looks at the others before the batch with this number, counted from 1, is delivered."""
        if count == 2 and self._replica is not None:
            self._compare_replicas()
        if not self._counts:
            return
        if count <= FIRST_BATCHES + 1:
            self._post_epoch(count)
        if count == 2:  # in step with the others, who have begun by now
            self._compare()
            self._compare_epochs()
        if self._planned is not None:
            return

        self._post("delivered", count)
        # One key for all ranks: this is asked for each batch.
        if self._store.check([self._ended]):
            rank, ended = json.loads(self._store.get(self._ended))
            if ended < count:
                self._tell_counts(
                    f"rank {rank} has ended after {ended} batches, rank {self._world.rank} goes on with {count}"
                )

    def ends(self, count: int) -> None:
        """Posts that this rank has delivered all of its batches, and looks whether others go on."""
        if not self._counts:
            return

        self._post_epoch(FIRST_BATCHES + 1)
        self._store.set(self._ended, json.dumps([self._world.rank, count]))
        for kind in ("planned", "delivered"):
            for rank, others in self._posted(kind).items():
                if others > count:
                    self._tell_counts(
                        f"rank {self._world.rank} has ended after {count} batches, rank {rank} goes on with more"
                    )
                    return

    def _compare(self) -> None:
        """Compares what is known at the beginning: the number of batches, or what the order depends on."""
        if self._planned is not None:
            counts = {**self._posted("planned"), self._world.rank: self._planned}
            if len(set(counts.values())) > 1:
                listed = ", ".join(f"rank {rank}: {count}" for rank, count in sorted(counts.items()))
                self._tell_counts(f"batches in this epoch: {listed}")
            return

        if self._order is not None:
            for rank, theirs in self._posted("order").items():
                if theirs != self._order:
                    self._tell(
                        "the samplers of the ranks do not belong together",
                        found=f"{theirs} on rank {rank}, {self._order} on rank {self._world.rank}",
                        expected="the same arguments on every rank, or samples come twice and others never",
                        fix="make the samplers of all ranks with the same data, weights, seed and other arguments",
                    )
                    return

    def _post_epoch(self, count: int) -> None:
        if self._counted is not None:
            loader, epoch = self._counted
            self._store.set(f"{loader}/epoch/{self._world.rank}", json.dumps([epoch, count]))

    def _compare_epochs(self) -> None:
        """Warns of a rank that is at the first batches of another epoch. Never an error: ranks may be out of step."""
        if self._counted is None:
            return
        loader, mine = self._counted
        for rank, (epoch, count) in self._posted_under(f"{loader}/epoch").items():
            if epoch != mine and count <= FIRST_BATCHES:
                warn(
                    f"Rank {self._world.rank} is in epoch {mine}, and rank {rank} in epoch {epoch}: their orders "
                    "differ, so samples come twice and others never. Has one of them begun to iterate once more "
                    "(next(iter(loader)))? Call loader.set_epoch(epoch) before each epoch, on all ranks."
                )
                return

    def _compare_replicas(self) -> None:
        """Raises `RanksDifferError` if shards do not belong together, or ranks with one shard make other batches."""
        mine = dict(self._replica or {})
        for rank, theirs in self._posted("replica").items():
            if theirs["world"] == mine["world"] and theirs["rank"] != mine["rank"]:
                continue

            for name, value in mine.items():
                if theirs.get(name) != value:
                    self._refuse_replica(rank, name, theirs.get(name), value)

    def _refuse_replica(self, rank: int, name: str, theirs: object, mine: object) -> None:
        if name == "world":
            what = "the shards of the ranks do not belong together"
            expected = "the same number of replicas on every rank"
            fix = "give every rank the same world in headrace.Shard(rank, world): the number of model replicas"
        else:
            what = "the ranks of one model replica would get different batches"
            expected = f"the same {name} on all ranks that pass the same headrace.Shard"
            fix = "make the loaders of these ranks with the same data and arguments, and load the same state"

        raise RanksDifferError.about(
            what,
            place=f"rank {self._world.rank} of {self._world.size}",
            found=f"{name}: {mine!r} on rank {self._world.rank}, {theirs!r} on rank {rank}",
            expected=expected,
            fix=fix,
        )

    def _post(self, kind: str, value: int | str) -> None:
        self._store.set(f"{self._name}/{kind}/{self._world.rank}", str(value))

    def _posted(self, kind: str) -> dict[int, Any]:
        """Returns what the other ranks have posted by now: a count, or what `replica_of` says."""
        return self._posted_under(f"{self._name}/{kind}")

    def _posted_under(self, place: str) -> dict[int, Any]:
        keys = {rank: f"{place}/{rank}" for rank in self._others}
        return {rank: json.loads(self._store.get(key)) for rank, key in keys.items() if self._store.check([key])}

    def _tell_counts(self, found: str) -> None:
        self._tell(
            "the ranks have different numbers of batches",
            found=found,
            expected="equally many on every rank, or the last collective of training waits for ever",
            fix="give all ranks data of the same length with shard='auto', or set batches_per_epoch=",
        )

    def _tell(self, what: str, *, found: str, expected: str, fix: str) -> None:
        place = f"rank {self._world.rank} of {self._world.size}"
        message = explain(what, place=place, found=found, expected=expected, fix=fix)
        if self._strict:
            raise RanksDifferError(message)
        if not self._said:
            self._said = True
            warn(message)


def rank_watch(options: Options, terms: Terms, sampler: object, *, is_map: bool) -> RankWatch | None:
    """Returns what compares an epoch with those of the other ranks; None where they need not be in step.

    sampler: the one that knows where it is.
    """
    uneven = getattr(sampler, "uneven", "pad")
    replica = replica_of(options, terms)
    on_purpose = uneven == "keep" or options.batches_per_epoch is not None
    if replica is None and (on_purpose or terms.world.size == 1):
        return None

    store = common_store()
    if store is None:
        return None

    strict = options.shard is not None and is_map
    number = terms.epoch
    order = order_of(sampler)
    # A rank that has looked at a batch before has begun more epochs than the others.
    if order is not None:
        number = sampler.epoch  # type: ignore[attr-defined]  # `order_of` has looked
    name = f"{terms.loader}/{number}"
    counted = None
    if options.counts_epochs:
        counted = terms.loader, terms.epoch
    return RankWatch(
        store, name, distributed_world(), strict=strict, counts=not on_purpose, replica=replica, counted=counted,
        order=order,
    )  # fmt: skip


def order_of(sampler: object) -> str | None:
    """Returns what tells a sampler's arguments from others; None unless it deals out one order, and counts slowly."""
    if not isinstance(sampler, ElasticSampler) or not sampler.length_takes_long or sampler.world != distributed_world():
        return None
    arguments = json.dumps(sampler.order_key(), sort_keys=True, default=str)
    return f"a {sampler.name} with the digest {crc32(arguments.encode()):08x}"


def replica_of(options: Options, terms: Terms) -> dict[str, Any] | None:
    """Returns the shard of this rank, and what the batches of its model replica depend on; None without a shard."""
    if not isinstance(options.shard, Shard):
        return None
    return {"world": options.shard.world, "rank": options.shard.rank, **terms.fingerprint}
