"""Samplers whose order is a function of the position: they start at once, anywhere, on any number of ranks.

`ElasticSampler` is what they have in common: rank and world, the epoch, and a state that is a few plain values.
`PositionalSampler` adds the loop for those that yield single keys.
"""

from __future__ import annotations

import functools
from abc import abstractmethod
from collections.abc import Callable, Iterator, Sized
from numbers import Integral
from operator import index
from typing import Any, ClassVar, TypedDict
from zlib import crc32

import numpy as np
import numpy.typing as npt
from torch.utils.data import Sampler

from headrace.core.errors import StateError, UsageError, wrong_argument
from headrace.core.randomness.counter_based import stream_key
from headrace.core.splitters import splitter
from headrace.core.world import ALONE, World, checked_world
from headrace.samplers.positions import Uneven, checked_uneven, local_range

Keys = npt.NDArray[np.int64]
State = dict[str, Any]

FIRST_CHUNK, LARGEST_CHUNK = 256, 16384

DIGESTED = 1 << 16

ORDER = 0x6F72646572
"""Sets the random streams of this folder apart from those that seed samples and workers."""


class Dealing(TypedDict, total=False):
    """Further keywords of samplers that have many of their own; they mean what they mean everywhere."""

    rank: int | None
    world_size: int | None
    uneven: Uneven


class ElasticSampler(Sampler[Any]):
    """A sampler that splits its samples over all ranks, and resumes anywhere from a small state.

    The ranks must iterate in step. Without `rank` and `world_size`, each iteration takes them from `torch.distributed`
    or the launcher's environment when it begins.

    An iteration begins with its first element, not with `iter()`. The first iteration after `load_state_dict` continues
    from the loaded state; later ones begin at the beginning of the epoch. No iteration changes the epoch: call
    `set_epoch`. If several iterations run at once, `state_dict` reports the one that began last.

    Args:
        seed: of the order.
        rank: of this process; None: see above.
        world_size: number of ranks; None: see above.
        uneven: as in `DistributedSampler`.

    Raises:
        UsageError: wrong arguments.

    Examples:
        >>> isinstance(headrace.samplers.DistributedSampler(4), headrace.samplers.ElasticSampler)
        True
    """

    name: ClassVar[str]
    """What its states call it."""

    elastic: ClassVar[bool] = True
    """Whether another number of ranks can load its states."""

    batches_vary: ClassVar[bool] = False
    """Whether it makes batches, and of different sizes."""

    length_takes_long: ClassVar[bool] = False
    """Whether `len()` makes the order of the whole epoch."""

    changes: int = 0
    """How often that was done."""

    def __init__(
        self, *, seed: int = 0, rank: int | None = None, world_size: int | None = None, uneven: Uneven = "pad"
    ) -> None:
        self.seed = checked_whole("seed", seed)
        self.uneven = checked_uneven(uneven)
        self.epoch = 0
        self._rank = rank
        self._world_size = world_size
        self._start: State | None = None
        if rank is not None and world_size is not None:
            checked_world(rank, world_size)

    @property
    def may_change(self) -> bool:
        """Whether the order depends on more than the epoch: on what came before, or on what the user changes on the
        way. Then a loader does what `begin_change` says."""
        return False

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        if "name" not in vars(cls):
            cls.name = cls.__name__

    @property
    def world(self) -> World:
        """This sampler's rank, and the number of ranks.

        Where a framework splits what it gives once more, it gives all: `World(0, 1)`. Raises `UsageError` if it was
        made for one of several ranks, or if the framework would lose samples.
        """
        world = checked_world(self._rank, self._world_size)
        if world.size == 1 or (asking := splitter()) is None:
            return world
        if self.batches_vary and asking.joins:
            raise UsageError.about(
                f"{asking.framework} would lose samples: it joins the ranks' batches, and cuts them into equal parts",
                place=type(self).__name__,
                found="batches of different sizes",
                expected="batches of one size, as dispatch_batches=True needs them",
                fix="give DataLoaderConfiguration(dispatch_batches=False)",
            )
        if self._rank is None and self._world_size is None:
            return ALONE

        raise UsageError.about(
            f"the samples of a rank would be split once more, by {asking.framework}",
            place=type(self).__name__,
            found=f"rank={world.rank}, world_size={world.size} of the sampler",
            expected="one that splits the samples: the sampler, or the framework",
            fix=f"leave rank= and world_size= of the sampler out, or keep its loader from {asking.framework}",
        )

    def adopt_world(self, world: World) -> None:
        """Splits the samples by the shard of a loader. Raises `UsageError` if this sampler has another rank or world.

        A rank or world size that the sampler was made without is taken from the shard.
        """
        own = world
        if self._rank is not None:
            own = own._replace(rank=self._rank)
        if self._world_size is not None:
            own = own._replace(size=self._world_size)

        if own != world:
            raise UsageError.about(
                "the sampler and the loader split the data differently",
                place=f"headrace.DataLoader(shard=), {type(self).__name__}",
                found=f"rank={own.rank}, world_size={own.size} of the sampler",
                expected=f"rank={world.rank}, world_size={world.size}, as the shard says",
                fix="leave rank= and world_size= of the sampler out, and make one sampler for each loader",
            )

        self._rank = world.rank
        self._world_size = world.size

    def set_epoch(self, epoch: int) -> None:
        """Sets the number of the epoch, on which the order depends, and goes to the beginning of the epoch.

        Args:
            epoch: counted from 0.

        Examples:
            >>> sampler = headrace.samplers.DistributedSampler(4)
            >>> sampler.set_epoch(1)
        """
        self.epoch = checked_whole("epoch", epoch)
        self._start = None
        self._go_to(self._beginning())

    def state_dict(self) -> State:
        """Tells where the iteration is, after its last element.

        Returns:
            Plain values, the same on all ranks that are in step.

        Examples:
            >>> sampler = headrace.samplers.DistributedSampler(4)
            >>> sampler.state_dict()["position"]
            0
        """
        return {"sampler": self.name, **self._identity(), "epoch": self.epoch, **self._reached()}

    def order_key(self) -> State:
        """Returns what its order depends on, besides the epoch: the same on all ranks that belong together."""
        return {"sampler": self.name, **self._identity()}

    def checkpoint(self) -> Any:
        """Returns a cheap note of the current position, from which `state_at` makes the state."""
        return self.state_dict()

    def follow(self) -> Callable[[], Any]:
        """Returns what gives the checkpoints of the iteration that began last, whatever begins or is set after it."""
        return self.checkpoint

    def state_at(self, checkpoint: Any) -> State:
        """Returns the state of a `checkpoint()`; returns a state unchanged."""
        state: State = checkpoint
        return state

    def upcoming(self) -> Any:
        """Returns a checkpoint of where an iteration begins that is asked for now."""
        return self.checkpoint()

    def others_go_on(self, checkpoint: Any) -> bool:
        """Tells whether a rank that has nothing left behind a checkpoint is one short: other ranks have one more.

        That is so with `uneven="keep"` only.
        """
        return self.uneven == "keep" and not self._is_end(self.state_at(checkpoint))

    def is_last(self, checkpoint: Any) -> bool:
        """Tells whether the batch before a checkpoint is the last one of all ranks, if the length takes long to tell.

        Otherwise it is counted.
        """
        return self.length_takes_long and self._is_end(self.state_at(checkpoint))

    def _is_end(self, state: State) -> bool:
        """Tells whether nothing is left on any rank."""
        return True

    def begin_change(self, checkpoint: Any) -> None:
        """Has the last change begin at a checkpoint: behind the batch that the loop got before it asked for the change.

        So it begins at the same place whatever was drawn ahead, which must be drawn again. `state_at` does the same.
        """

    def load_state_dict(self, state_dict: State) -> None:
        """Makes the next iteration continue from a state.

        Args:
            state_dict: what `state_dict()` returned, of any number of ranks.

        Raises:
            StateError: the state belongs to another sampler.

        Examples:
            >>> sampler = headrace.samplers.DistributedSampler(4, shuffle=False)
            >>> first = next(iter(sampler))
            >>> sampler.load_state_dict(sampler.state_dict())
            >>> list(sampler)
            [1, 2, 3]
        """
        self.check_state(state_dict)
        self.epoch = state_dict["epoch"]
        self._start = {name: state_dict[name] for name in self._beginning()}
        self._go_to(self._start)

    def check_state(self, state: Any) -> None:
        """Raises `StateError` unless `state` comes from a sampler with the same arguments and data, and is whole."""
        what = "this state belongs to another sampler"
        if not isinstance(state, dict):
            self._refuse(what, f"a {type(state).__name__}", "what state_dict() returned")

        expected = {"sampler": self.name, **self._identity()}
        differing = [name for name, value in expected.items() if not _are_equal(state.get(name), value)]
        if differing:
            theirs = ", ".join(f"{name}={state.get(name)!r}" for name in differing)
            mine = ", ".join(f"{name}={expected[name]!r}" for name in differing)
            self._refuse(what, f"state: {theirs}; this sampler: {mine}", f"the same {', '.join(differing)} in both")

        counts = {name: state.get(name) for name in ("epoch", *self._beginning())}
        if not all(isinstance(count, int) and count >= 0 for count in counts.values()):
            self._refuse("this state is damaged", counts, "whole numbers that are not negative")

    def _refuse(self, what: str, found: object, expected: object) -> None:
        place = f"{type(self).__name__}.load_state_dict"
        fix = "load it into a sampler made with the same arguments, or begin the epoch again"
        raise StateError.about(what, place=place, found=found, expected=expected, fix=fix)

    def _upcoming(self) -> State:
        """Returns where an iteration begins that is asked for now."""
        if self._start is not None:
            return self._start
        return self._beginning()

    def _begin(self) -> State:
        """Begins an iteration, and returns where."""
        start = self._upcoming()
        self._start = None
        self._go_to(start)
        return start

    def _stream(self, purpose: int, epoch: int) -> int:
        """Returns the key of the random numbers of one epoch that serve one purpose (a number within the class)."""
        return stream_key(self.seed, ORDER, purpose, epoch)

    @abstractmethod
    def _identity(self) -> State:
        """Returns what a state must agree with: plain values, few, whatever decides the order."""

    def _beginning(self) -> State:
        """Returns where an epoch begins."""
        return {"position": 0}

    @abstractmethod
    def _go_to(self, state: State) -> None:
        """Has `_reached` report `state`, which has the names of `_beginning`."""

    @abstractmethod
    def _reached(self) -> State:
        """Returns how far the iteration has come that began last."""


Cursor = tuple[int, int, list[int]]


class PositionalSampler(ElasticSampler):
    """A sampler of single keys. A subclass sets `total` and defines the order by `keys_at`.

    Memory is constant unless a subclass says otherwise. `state_dict()["position"]` counts the positions that all ranks
    together have used.

    Args:
        seed: of the order.
        rank: of this process; None: that of `torch.distributed` or the launcher's environment.
        world_size: number of ranks; None: likewise.
        uneven: as in `DistributedSampler`.

    Raises:
        UsageError: wrong arguments.

    Examples:
        >>> class Backwards(headrace.samplers.PositionalSampler):
        ...     total = 3
        ...     def keys_at(self, epoch, positions):
        ...         return self.total - 1 - positions
        >>> list(Backwards())
        [2, 1, 0]
    """

    total: int = 0
    """Positions of one epoch, over all ranks."""

    _cursor: Cursor = (0, 1, [0])
    """Where the iteration began, the world size, and how many keys it has yielded."""

    @abstractmethod
    def keys_at(self, epoch: int, positions: Keys) -> Keys:
        """Tells which keys come at some positions of an epoch.

        Args:
            epoch: counted from 0.
            positions: whole numbers from 0 to `total` - 1, an int64 array.

        Returns:
            An array of the same shape.

        Examples:
            >>> headrace.samplers.DistributedSampler(4, shuffle=False).keys_at(0, np.array([2, 0]))
            array([2, 0])
        """

    def positions_of(self, epoch: int, keys: Keys) -> Keys | None:
        """Returns at which positions of an epoch the keys come, over all ranks; None if that cannot be told."""
        return None

    def __iter__(self) -> Iterator[int]:
        start = self._begin()["position"]
        epoch = self.epoch
        world = self.world
        mine = local_range(start, self.total, world, self.uneven)
        count = [0]
        self._cursor = (start, world.size, count)
        done = 0
        size = FIRST_CHUNK
        while done < len(mine):
            # The loop counts in the cursor's own list: a state that is asked for between two keys knows of the last.
            chunk = mine[done : done + size]
            for count[0], key in enumerate(self.keys_at(epoch, self._wrapped(chunk)).tolist(), done + 1):
                yield key
            done = done + len(chunk)
            size = min(2 * size, LARGEST_CHUNK)

        # With "keep" this rank may be one short of the others. They are all at the end, and states are the same on all.
        count[0] = self.total

    def key_arrays(self, size: int, *, drop_last: bool) -> Iterator[Keys]:
        """Yields the same keys as `__iter__`, in batches of `size`, each an array: many times faster."""
        return self._key_batches(size, drop_last=drop_last, as_lists=False)

    def key_lists(self, size: int, *, drop_last: bool) -> Iterator[list[int]]:
        """Yields the same batches as lists, a little later than arrays."""
        return self._key_batches(size, drop_last=drop_last, as_lists=True)

    def _key_batches(self, size: int, *, drop_last: bool, as_lists: bool) -> Iterator[Any]:
        start = self._begin()["position"]
        epoch = self.epoch
        world = self.world
        mine = local_range(start, self.total, world, self.uneven)
        count = [0]
        self._cursor = (start, world.size, count)
        many = max(LARGEST_CHUNK // size, 1) * size
        for done in range(0, len(mine), many):
            keys: Any = self.keys_at(epoch, self._wrapped(mine[done : done + many])).astype(np.int64, copy=False)
            if as_lists:
                keys = keys.tolist()
            for at in range(0, len(keys), size):
                batch = keys[at : at + size]
                if len(batch) == size or not drop_last:
                    if len(batch) == size:
                        count[0] = done + at + len(batch)
                    else:
                        count[0] = self.total
                    yield batch

        count[0] = self.total

    def __len__(self) -> int:
        return len(local_range(0, self.total, self.world, self.uneven))

    def checkpoint(self) -> Any:
        """See `ElasticSampler.checkpoint`: the epoch and the position, unless a subclass has more in its state."""
        if type(self).state_dict is not ElasticSampler.state_dict:
            return self.state_dict()
        return self._noted(self.epoch, self._cursor)

    def follow(self) -> Callable[[], Any]:
        if type(self).state_dict is not ElasticSampler.state_dict:
            return self.checkpoint
        return functools.partial(self._noted, self.epoch, self._cursor)

    def _is_end(self, state: State) -> bool:
        return bool(state["position"] >= self.total)

    def upcoming(self) -> Any:
        return self._noted(self.epoch, (self._upcoming()["position"], 1, [0]))

    def state_before(self, epoch: int, position: int, planned: int = 0) -> State:
        """Returns the state in which all samples before a position of an epoch have come: for who plans ahead.

        planned: the position behind the last one whose key was used.
        """
        return self.state_at(self._noted(epoch, (position, 1, [0])))

    def _noted(self, epoch: int, cursor: Cursor) -> Any:
        start, size, count = cursor
        return epoch, min(start + count[0] * size, self.total)

    def state_at(self, checkpoint: Any) -> State:
        if isinstance(checkpoint, dict):
            return checkpoint
        epoch, position = checkpoint
        return {"sampler": self.name, **self._identity(), "epoch": epoch, "position": position}

    def _wrapped(self, chunk: range) -> Keys:
        return np.arange(chunk.start, chunk.stop, chunk.step, dtype=np.int64) % self.total

    def _identity(self) -> State:
        return {"total": self.total, "seed": self.seed}

    def _go_to(self, state: State) -> None:
        self._cursor = (state["position"], 1, [0])

    def _reached(self) -> State:
        return {"position": self._noted(self.epoch, self._cursor)[1]}


def length_of(dataset: Sized | int) -> int:
    """Returns the length that is meant: of a dataset, or the number itself. Raises `UsageError` for anything else."""
    if (number := _as_whole(dataset)) is not None and number >= 0:
        return number
    if isinstance(dataset, Sized):
        return len(dataset)

    raise UsageError.about(
        "cannot tell how many samples there are",
        place="the dataset, or its length",
        found=f"{dataset!r} of type {type(dataset).__name__}",
        expected="a dataset with a length, or a whole number that is not negative",
        fix="give the length as a number",
    )


def positive(name: str, value: Any) -> int:
    """Returns `value` if it is a whole number above zero. Raises `UsageError` otherwise."""
    if (number := _as_whole(value)) is not None and number > 0:
        return number
    raise wrong_argument(name, value, "a whole number above 0")


def checked_whole(name: str, value: Any) -> int:
    """Returns `value` if it is a whole number. Raises `UsageError` otherwise."""
    try:
        return index(value)
    except TypeError:
        raise wrong_argument(name, value, "a whole number") from None


def _as_whole(value: Any) -> int | None:
    if isinstance(value, bool) or not isinstance(value, Integral):
        return None
    return int(value)


def digest_of(array: npt.NDArray[Any]) -> int:
    """Returns a number by which a state tells one row of numbers from another, whatever their types."""
    digest = 0
    for start in range(0, len(array), DIGESTED):
        digest = crc32(array[start : start + DIGESTED].astype(np.float64).data, digest)
    return digest


def _are_equal(found: object, expected: object) -> bool:
    try:
        return bool(found == expected)
    except (RuntimeError, ValueError):
        return False  # an array, in a damaged state
