"""The state of a loader as a versioned dictionary: what it holds, how it is checked, merged and split.

A snapshot holds plain values, lists and dictionaries (and what a dataset's own `state_dict` returns). So it can be
compared, written as JSON, and loaded by `torch.load` with `weights_only=True`. It says what was delivered, on this
rank, of which epoch:

- `told`: the number that datasets and samplers were told of the epoch; None: none;
- `next`: the number of the next epoch, where `set_epoch` gave it in the middle of this one; None: it did not;
- `batches`: how many index batches (for iterable data: batches of all replicas) were delivered without a gap;
- `beyond`: numbers of those that were delivered out of order behind a gap;
- `deferred`: samples that are still to come, and do not lie where the sampler put them: place, position and key of
  each, and whether this rank has taken it from the sampler already;
- `sampler`: the state of a sampler that has one;
- `random` and `draws`, from which the order (of other samplers) and the base seed are drawn again, and `later_draws`:
  what each later epoch draws;
- `replicas`: how many workers the dataset saw, and pairs of number and state of those that have one;
- `portion`: how many batches of a portion (`batches_per_epoch=`) were delivered;
- `samplers`: the classes of the index sampler and of the one in it;
- `datasets`: pairs of replica and state, with which copies of a dataset that has a state begin the next epoch;
- `checksum`: CRC-32 of all that, so that damage is noticed before anything is taken from it.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any
from zlib import crc32

from headrace.core.errors import StateError
from headrace.core.protocols import answers
from headrace.core.world import World
from headrace.epoch.deferral import merged
from headrace.epoch.generators import decoded

FORMAT, VERSION = "headrace.DataLoader", 4

Snapshot = dict[str, Any]

COUNTS = ("epoch", "rank", "world_size", "batches", "samples", "portion")

KEYS_OF_TORCHDATA = frozenset({"_snapshot", "_num_yielded"})
"""A state of torchdata's StatefulDataLoader has the first one with workers, and the second one without."""

FINGERPRINT = ("dataset", "length", "seed", "batch_size", "samplers")
"""What a loader must agree with to load a state."""

KEYS = (
    *COUNTS, "finished", "told", "next", "random", "draws", "later_draws", "datasets", "elastic", "sampler", "beyond",
    "deferred", "replicas", "stream",
)  # fmt: skip
"""What a snapshot has besides the fingerprint and the checksum."""

PER_RANK = ("rank", "random", "replicas", "beyond", "deferred", "sampler", "samples", "datasets", "stream", "checksum")
"""What may differ between the states of the ranks of one run."""

MOST_REPLICAS = 1 << 16
"""More workers than this have never been; a larger number is damage, and must not be made room for."""

REPLICA_COUNTS = ("count", "next", "first")

MOST_DRAWS = 5
"""Of one epoch: with workers a data pipe draws a shared seed, and torch begins two times."""


def sealed(state: Snapshot) -> Snapshot:
    """Returns a snapshot with its checksum."""
    return {**state, "checksum": _checksum(state)}


def _checksum(state: Snapshot) -> int:
    """Returns the CRC-32 of what a snapshot says; other keys, which frameworks may add, do not count."""
    said = [state[name] for name in ("format", "version", *FINGERPRINT, *KEYS)]
    return crc32(json.dumps(said, skipkeys=True, default=_kind).encode())


def _kind(value: object) -> str:
    """Stands for a value in a dataset's or a sampler's own state that JSON does not know, such as a tensor."""
    return type(value).__name__


def checked(state: Any, fingerprint: Mapping[str, Any]) -> Snapshot:
    """Returns `state` if it is a whole snapshot of a loader with this fingerprint. Raises `StateError` otherwise."""
    for part in parts_of(state):
        _check_whole(part, fingerprint)
    checked_state: Snapshot = state
    return checked_state


def parts_of(state: object) -> list[Any]:
    """Returns the states of the ranks that a state consists of: of one, if it was not merged."""
    if not isinstance(state, dict):
        return [state]

    parts = state.get("ranks", [])
    if not isinstance(parts, list):
        _refuse("this state is damaged", f"ranks={_shown(parts)}", "a list of the states of all ranks")
    return list(parts) or [state]


def _check_whole(part: Any, fingerprint: Mapping[str, Any] | None = None) -> None:
    """Raises `StateError` unless a state has all its parts, each is what it may be, and it belongs to the loader."""
    if not _has_format(part):
        _refuse_stranger(part)

    if not _is_count(part.get("version")) or part["version"] != VERSION:
        _refuse("this state was saved by another version", f"version {part.get('version')}", f"version {VERSION}")
    if missing := sorted({*KEYS, *FINGERPRINT, "checksum"} - {*part}):
        _refuse("this state is not whole", f"no {', '.join(missing)}", "what its state_dict() returned")

    for name in COUNTS:
        if not _is_count(part[name]):
            _damaged(name, part[name], "a whole number that is not negative")

    for name, (holds, expected) in RULES.items():
        if not holds(part[name]):
            _damaged(name, part[name], expected)

    if part["rank"] >= part["world_size"]:
        _damaged("rank", part["rank"], f"a number below world_size={part['world_size']}")

    for name, here in (fingerprint or {}).items():
        if part[name] != here and not (name == "batch_size" and part["elastic"]):
            what = WORDS.get(name, name)
            _refuse(
                f"this state was saved with another {what}",
                f"state: {name}={_shown(part[name])}, this loader: {name}={_shown(here)}",
                f"the same {what} in both",
            )

    decoded(part["random"])
    if part["checksum"] != _checksum(part):
        _refuse(
            "this state is damaged",
            "a checksum that does not belong to it",
            "what state_dict() returned, unchanged",
        )


def _refuse_stranger(part: Any) -> None:
    """Raises `StateError` for what is no state of ours."""
    found = _found_instead(part)
    if _is_of_torchdata(part):
        what = "a state of torchdata's StatefulDataLoader cannot be converted"
        fix = "finish this epoch with StatefulDataLoader, or begin the epoch again without the state"
        _refuse(what, found, "a state of headrace.DataLoader", fix)
    _refuse("this is no state of a headrace.DataLoader", found, "what its state_dict() returned")


def _has_format(part: object) -> bool:
    # In a damaged state it may be an array, which cannot be compared with a text.
    return isinstance(part, dict) and isinstance(part.get("format"), str) and part["format"] == FORMAT


def _is_of_torchdata(part: object) -> bool:
    return isinstance(part, dict) and not KEYS_OF_TORCHDATA.isdisjoint(part)


def _found_instead(part: object) -> str:
    if isinstance(part, dict):
        return f"the keys {sorted(map(str, part))[:6]}"
    return f"a {type(part).__name__}"


def _is_count(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0


def _is_whole(value: object) -> bool:
    """Tells whether a value is a whole number, or None."""
    return value is None or (isinstance(value, int) and not isinstance(value, bool))


def _is_names(value: object) -> bool:
    return isinstance(value, (list, tuple)) and all(isinstance(name, str) for name in value)


def _is_draws(value: object) -> bool:
    return isinstance(value, str) and set(value) <= {"i", "s", "p"} and len(value) <= MOST_DRAWS


def _is_pairs(value: object) -> bool:
    """Tells whether a value holds pairs of a number and a state."""
    if not isinstance(value, (list, tuple)):
        return False
    return all(isinstance(pair, (list, tuple)) and len(pair) == 2 and _is_count(pair[0]) for pair in value)


def _is_moved(value: object) -> bool:
    """Tells whether a value holds places, positions and keys of samples; see `epoch.deferral`."""
    if not isinstance(value, (list, tuple)):
        return False
    return all(
        isinstance(entry, (list, tuple))
        and len(entry) == 4
        and _is_count(entry[0])
        and _is_count(entry[1])
        and isinstance(entry[2], (int, str))
        and isinstance(entry[3], bool)
        for entry in value
    )


def _is_replicas(value: object) -> bool:
    if value is None:
        return True
    if not isinstance(value, dict) or not _is_pairs(value.get("states")):
        return False
    if not all(_is_count(value.get(name)) for name in REPLICA_COUNTS) or value["count"] > MOST_REPLICAS:
        return False

    most = max(value["count"], 1)
    return value["next"] < most and all(number < most for number, _ in value["states"])


def _is_stream_state(value: object) -> bool:
    if value is None:
        return True
    return isinstance(value, dict) and {"items", "batches", "dealt", "ended", "dataset", "iterator"} <= {*value}


WORDS = {"samplers": "kind of sampler"}
"""What an error calls a part of the fingerprint, where it is not its name."""

RULES: dict[str, tuple[Callable[[Any], bool], str]] = {
    "dataset": (lambda value: isinstance(value, str), "the name of a class"),
    "length": (_is_whole, "a whole number, or None"),
    "seed": (_is_whole, "a whole number, or None"),
    "batch_size": (_is_whole, "a whole number, or None"),
    "samplers": (_is_names, "a list of names of classes"),
    "checksum": (_is_count, "a whole number that is not negative"),
    "finished": (lambda value: isinstance(value, bool), "True or False"),
    "told": (_is_whole, "a whole number, or None"),
    "next": (_is_whole, "a whole number, or None"),
    "elastic": (lambda value: isinstance(value, bool), "True or False"),
    "draws": (_is_draws, f"up to {MOST_DRAWS} letters, each i, s or p"),
    "later_draws": (_is_draws, f"up to {MOST_DRAWS} letters, each i, s or p"),
    "beyond": (
        lambda value: isinstance(value, (list, tuple)) and all(map(_is_count, value)),
        "a list of numbers of batches",
    ),
    "deferred": (_is_moved, "a list of place, position, key, and True or False, for each sample"),
    "replicas": (_is_replicas, f"count (up to {MOST_REPLICAS}), next, first, and pairs of number and state; or None"),
    "stream": (_is_stream_state, "the state of a stream, or None"),
    "datasets": (lambda value: value is None or (_is_pairs(value) and len(value) > 0), "pairs of number and state"),
}
"""For each part: what it may be, as a test and in words."""


def check_reach(state: Snapshot, batches: int | None, sampler: object, generators: int) -> None:
    """Raises `StateError` if a state says that more was delivered than there is, or is of another kind of order.

    batches: of an epoch of this loader; None: that is not known. sampler: the loader's, if it has a state. generators:
    how many the loader and its samplers own.
    """
    if batches is not None and not state["elastic"]:
        reached = max([state["batches"], *(number + 1 for number in state["beyond"])])
        if reached > batches:
            _refuse(
                "this state is past the end of the epoch",
                f"state: batch {reached}, this loader: {batches} batches",
                f"at most {batches} batches",
            )

    if state["random"] is not None and len(state["random"]["own"]) != generators:
        own = len(state["random"]["own"])
        _refuse(
            "this state was saved with another sampler or generator",
            f"state: generators of its own={own}, this loader: generators of its own={generators}",
            "the same samplers and generator= in both",
        )

    if state["sampler"] is not None and answers(sampler, "check_state", 1):
        sampler.check_state(state["sampler"])  # type: ignore[attr-defined]  # `answers` has looked


def merge_states(states: Sequence[Snapshot]) -> Snapshot:
    """Joins the states of all ranks. `headrace.merge_states` is this, for folders too.

    states: one per rank, in any order. Ranks that share a `headrace.Shard` have one state, which may come several
    times. Raises `StateError` if a rank is missing, comes twice with different states, or stopped at another step, and
    if a state is damaged or is no state.
    """
    if not isinstance(states, (list, tuple)):
        _refuse_merge("cannot merge states", _shown(states), "a list with the state of each rank")

    parts = [part for state in states for part in parts_of(state)]
    if not parts or not all(map(_has_format, parts)):
        found = "no state"
        if parts:
            found = "one that is no state of a headrace.DataLoader"
        if any(map(_is_of_torchdata, parts)):
            found = "a state of torchdata's StatefulDataLoader, which cannot be converted"
        _refuse_merge("cannot merge states", found, "one per rank")

    for part in parts:
        _check_whole(part)

    # By number and checksum: the ranks of one model replica say the same.
    one_of_each = {(part["rank"], part["checksum"]): part for part in parts}
    parts = [one_of_each[key] for key in sorted(one_of_each)]
    size = parts[0]["world_size"]
    ranks = [part["rank"] for part in parts]
    if ranks != list(range(size)):
        _refuse_merge("cannot merge states", f"ranks {ranks}", f"each of the ranks 0 to {size - 1} once")

    may_differ = {*PER_RANK}
    if all(part["finished"] for part in parts):
        may_differ.add("batches")  # with uneven="keep" some ranks have one more
    for name in sorted({*parts[0]} - may_differ):
        values = [part.get(name) for part in parts]
        if any(value != values[0] for value in values):
            _refuse_merge(f"cannot merge states: the ranks differ in {name}", _shown(values), "the same on every rank")

    if size == 1:
        only: Snapshot = parts[0]
        return only

    return {"format": FORMAT, "version": VERSION, "ranks": parts}


def part_for(state: Snapshot, world: World, *, in_step: bool = False) -> Snapshot:
    """Returns the part of a state, merged or not, that the rank `world` goes on from.

    Raises `StateError` if the state was saved with another world size and is not elastic: an order of which each rank
    takes its share (`seed=` with `shard="auto"`, a sampler of `headrace.samplers`) is, and so is a dealt-out stream.

    in_step: whether how many batches were delivered says where each rank is. Then the state of any rank will do, with
    the same number of ranks: frameworks save that of rank 0 only.
    """
    parts = parts_of(state)
    size = parts[0]["world_size"]
    mine = [part for part in parts if part["rank"] == world.rank and size == world.size]
    if mine:
        return dict(mine[0])

    if any(part["beyond"] for part in parts):
        _refuse(
            "cannot change the ranks of this state", "batches delivered out of order", "one of an in_order=True run"
        )

    stands_for_all = in_step and size == world.size and not _holds_datasets(parts[0])
    if not (parts[0]["elastic"] or stands_for_all):
        _refuse(
            "this state was saved by other ranks",
            f"state: rank {', '.join(str(part['rank']) for part in parts)} of {size}, "
            f"this loader: rank {world.rank} of {world.size}",
            "the same ranks, or an order that all ranks share (seed= with shard='auto', or a sampler of "
            "headrace.samplers)",
        )

    # From here on it is this rank's: a state that is taken before the first batch must say so.
    part = {**parts[0], "rank": world.rank, "world_size": world.size}
    part["deferred"] = merged(one["deferred"] for one in parts)
    if part["sampler"] is not None or stands_for_all:
        part["random"] = None  # another rank's base seed: two ranks must not draw the same random numbers
    return sealed(part)


def _holds_datasets(part: Snapshot) -> bool:
    """Tells whether a state holds that of a dataset, or of an iterator over one."""
    if part["datasets"]:
        return True
    states = (part["replicas"] or {"states": []})["states"]
    return any(state.get("dataset") is not None or state.get("iterator") is not None for _, state in states)


def with_sampler(state: Snapshot, sampler: object, following: int | None) -> Snapshot:
    """Returns the state with another one of the sampler. following: number of the next epoch, if it was set."""
    return sealed({**state, "sampler": sampler, "next": following})


def next_epoch(state: Snapshot) -> Snapshot:
    """Returns the state at the beginning of the epoch after a finished one."""
    following = {
        **state,
        "finished": False,
        "epoch": state["epoch"] + 1,
        "batches": 0,
        "samples": 0,
        "draws": state["later_draws"],
        "sampler": None,
        "beyond": [],
        "deferred": [],
        "replicas": None,
        "stream": None,
    }
    return sealed(following)


def in_the_middle(state: Snapshot) -> bool:
    """Tells whether a part of the state's epoch was delivered."""
    return not state["finished"] and bool(state["batches"] or state["beyond"])


def _shown(value: object) -> str:
    """Returns a value as an error shows it: the beginning of it, if it is long."""
    text = repr(value)
    if len(text) <= 200:
        return text
    return f"{text[:200]} ..."


def _damaged(name: str, value: object, expected: str) -> None:
    _refuse("this state is damaged", f"{name}={_shown(value)}", expected)


def _refuse(
    what: str,
    found: str,
    expected: str,
    fix: str = "load the state where it was saved, or begin the epoch again without it",
) -> None:
    raise StateError.about(what, place="load_state_dict", found=found, expected=expected, fix=fix)


def _refuse_merge(what: str, found: str, expected: str) -> None:
    fix = "pass one state of each rank, all of them saved at the same step"
    raise StateError.about(what, place="headrace.merge_states", found=found, expected=expected, fix=fix)
