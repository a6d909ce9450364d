"""The state of a loader as a versioned dictionary: what it holds, how it is checked, merged and split.

A snapshot holds plain values, lists, dictionaries and tensors, so `torch.save` with `weights_only=True` loads it.
It says what was delivered, on this rank, of which epoch:

- `batches`: how many index batches (for iterable data: batches of all lanes) were delivered without a gap;
- `beyond`: numbers of those that were delivered out of order behind a gap;
- `sampler`: the state of a sampler that has one; else `random` and `draws`, from which the order is drawn again;
- `lanes`: how many workers the data set saw, and pairs of number and state of those that have one.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from headrace.core.errors import StateError, explain
from headrace.core.world import World

FORMAT, VERSION = "headrace.DataLoader", 1

Snapshot = dict[str, Any]

COUNTS = ("epoch", "rank", "world_size", "batches", "samples")

KEYS = (*COUNTS, "finished", "random", "draws", "elastic", "sampler", "beyond", "lanes", "stream")
"""What a snapshot has besides the fingerprint."""

PER_RANK = ("rank", "random", "lanes", "beyond", "sampler", "samples")
"""What may differ between the states of the ranks of one run."""


def checked(state: Any, fingerprint: Mapping[str, Any]) -> Snapshot:
    """Returns `state` if it is a snapshot of a loader with this fingerprint. Raises `StateError` otherwise."""
    parts = (state.get("ranks") or [state]) if isinstance(state, dict) else [state]
    for part in parts:
        if not isinstance(part, dict) or part.get("format") != FORMAT:
            found = f"the keys {sorted(map(str, part))[:6]}" if isinstance(part, dict) else f"a {type(part).__name__}"
            _refuse("this is no state of a headrace.DataLoader", found, "what its state_dict() returned")
        if part.get("version") != VERSION:
            _refuse("this state was saved by another version", f"version {part.get('version')}", f"version {VERSION}")
        if missing := sorted({*KEYS, *fingerprint} - {*part}):
            _refuse("this state is not whole", f"no {', '.join(missing)}", "what its state_dict() returned")
        for name in COUNTS:
            if not isinstance(part[name], int):
                _refuse("this state is damaged", f"{name}={part[name]!r}", "a whole number")
        for name, here in fingerprint.items():
            if part[name] != here and not (name == "batch_size" and part["elastic"]):
                _refuse(f"this state was saved with another {name}", repr(part[name]), repr(here))
    checked_state: Snapshot = state
    return checked_state


def merge_states(states: Sequence[Snapshot]) -> Snapshot:
    """Returns one state for the states of all ranks, saved at the same step; any rank of any world size can load it.

    Order does not matter. Raises `StateError` if a rank is missing, comes twice, or stopped at another step.
    """
    states = [part for state in states for part in (state.get("ranks", [state]) if isinstance(state, dict) else [{}])]
    if not states or any(state.get("format") != FORMAT for state in states):
        _refuse(
            "cannot merge states", f"{len(states)} states, not all of them of a headrace.DataLoader", "one per rank"
        )
    states.sort(key=lambda state: int(state["rank"]))
    size = states[0]["world_size"]
    ranks = [state["rank"] for state in states]
    if ranks != list(range(size)):
        _refuse("cannot merge states", f"ranks {ranks}", f"each of the ranks 0 to {size - 1} once")
    for name in sorted(set(states[0]) - {*PER_RANK}):
        values = [state[name] for state in states]
        if any(value != values[0] for value in values):
            _refuse(f"cannot merge states: the ranks differ in {name}", str(values), "the same on every rank")
    if size == 1:
        return states[0]
    return {"format": FORMAT, "version": VERSION, "ranks": states}


def part_for(state: Snapshot, world: World) -> Snapshot:
    """Returns the part of a state, merged or not, that the rank `world` goes on from.

    Raises `StateError` if the state was saved with another world size and is not elastic: an order of which each rank
    takes its share (`seed=` with `shard="auto"`, a sampler of `headrace.samplers`) is, and so is a dealt-out stream.
    """
    parts = state.get("ranks", [state])
    size = parts[0]["world_size"]
    mine = [part for part in parts if part["rank"] == world.rank and size == world.size]
    if mine:
        return dict(mine[0])
    if any(part["beyond"] for part in parts):
        _refuse(
            "cannot change the ranks of this state", "batches delivered out of order", "one of an in_order=True run"
        )
    if not parts[0]["elastic"]:
        _refuse(
            "this state was saved by other ranks",
            f"rank {', '.join(str(part['rank']) for part in parts)} of {size}",
            f"rank {world.rank} of {world.size}, or an order that all ranks share (seed= with shard='auto', "
            "or a sampler of headrace.samplers)",
        )
    return dict(parts[0])


def _refuse(what: str, found: str, expected: str) -> None:
    cure = "load the state where it was saved, or begin the epoch anew without it"
    raise StateError(explain(what, place="load_state_dict", found=found, expected=expected, cure=cure))
