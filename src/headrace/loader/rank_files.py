"""States of ranks as files beside a checkpoint: each rank writes its own, and no rank waits for another one.

    checkpoints/step-1200/loader-0-of-2
    checkpoints/step-1200/loader-1-of-2

A file appears under its name when all of it is on the disk. So a step is complete as soon as the files of all ranks of
one world size are there, and what a killed run leaves behind is at worst a step that is not.
"""

from __future__ import annotations

import contextlib
import os
import re
from collections import defaultdict
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import islice
from numbers import Integral
from pathlib import Path
from typing import Any

from headrace.core.errors import HeadraceError, StateError, wrong_argument
from headrace.core.files.atomic_file import write_atomically
from headrace.core.files.regular_files import read_side_file
from headrace.core.protocols import is_stateful
from headrace.core.text.urls import refuse_url
from headrace.epoch import snapshot
from headrace.epoch.snapshot import Snapshot
from headrace.loader.state_bytes import from_bytes, to_bytes

RANK_FILE = re.compile(r"loader-(\d{1,9})-of-(\d{1,9})")
STEP_FOLDER = re.compile(r"step-(\d{1,18})")

READERS = 32
"""Files that are read at the same time: a shared file system takes milliseconds to open one."""

TOLD_STEPS = 3
TOLD_RANKS = 8


@dataclass(frozen=True)
class StepFiles:
    """The files of one step."""

    number: int
    """-1: of a folder that holds files of ranks itself."""
    folder: Path
    ranks: dict[int, frozenset[int]]
    """By world size: the ranks whose files are there."""

    @property
    def is_complete(self) -> bool:
        """Whether all ranks of a world size are there."""
        return any(len(ranks) == size for size, ranks in self.ranks.items())

    @property
    def name(self) -> str:
        """What an error calls the step."""
        if self.number < 0:
            return "the folder"
        return f"step {self.number}"

    def files(self, size: int) -> list[Path]:
        """Returns the files of a world size, by rank."""
        return [self.folder / f"loader-{rank}-of-{size}" for rank in sorted(self.ranks[size])]


def save_state(loader: Any, folder: str | os.PathLike[str], step: int | None = None, *, keep: int = 2) -> Path:
    """Writes the state of this rank's loader into a folder that all ranks see.

    Each rank calls it at the same step, after it has saved its part of the model. No rank waits for another one.
    `headrace.merge_states(folder)` joins the files of the last step of which all ranks have saved. The disk has the
    file when the call returns.

    Args:
        loader: a loader, or what its `state_dict()` returned.
        folder: is made if it is missing. Each loader of a script needs one of its own.
        step: the number of the checkpoint, for a file such as `step-1200/loader-3-of-8`; None: the folder is that of
            one checkpoint, and the file is `loader-3-of-8`.
        keep: complete steps that stay, this one included. This rank removes its share of older files with the next
            save; other files in the folders stay.

    Returns:
        The path of the file.

    Raises:
        StateError: the state of the dataset holds objects that are neither plain values nor tensors or arrays.
        UsageError: wrong arguments.
        OSError: the file cannot be written.

    Examples:
        >>> loader = headrace.DataLoader([1, 2, 3, 4], batch_size=2)
        >>> str(headrace.save_state(loader, "states", step=1200))
        'states/step-1200/loader-0-of-1'
        >>> loader.load_state_dict(headrace.merge_states("states"))
    """
    _check_arguments(folder, step, "headrace.save_state")
    if not _is_count(keep) or keep < 1:
        raise wrong_argument("keep", keep, "a whole number above 0", place="headrace.save_state")

    state = loader
    if is_stateful(loader):
        state = loader.state_dict()
    if not isinstance(state, dict) or "ranks" in state:
        expected = "a loader, or what its state_dict() returned on this rank"
        raise wrong_argument(
            "loader", loader, expected, place="headrace.save_state", found=f"a {type(loader).__name__}"
        )

    snapshot.checked(state, {})
    target = Path(folder)
    if step is not None:
        state = {**state, "step": int(step)}
        target = target / f"step-{step}"

    target.mkdir(parents=True, exist_ok=True)
    path = target / f"loader-{state['rank']}-of-{state['world_size']}"
    write_atomically(path, to_bytes(state), durable=True)
    if step is not None:
        _remove_old(Path(folder), int(step), keep, state["rank"], state["world_size"])
    return path


def merge_states(states: Sequence[Snapshot] | str | os.PathLike[str], *, step: int | None = None) -> Snapshot:
    """Joins the states of all ranks, saved at the same step. Any rank of any world size can load the result.

    Args:
        states: one per rank, in any order; ranks that share a `headrace.Shard` have one state, which may come several
            times. Or the folder of `headrace.save_state`: then the last step counts of which the states of all ranks
            are there and whole.
        step: takes this step of a folder, not the last.

    Returns:
        A state for `DataLoader.load_state_dict`. Of a folder, it has the number of the step under `"step"`.

    Raises:
        StateError: a rank is missing, comes twice with different states, or stopped at another step; a state is damaged
            or is no state; or no step of a folder is complete.

    Examples:
        >>> loader = headrace.DataLoader([1, 2, 3, 4], batch_size=2)
        >>> merged = headrace.merge_states([loader.state_dict()])
        >>> loader.load_state_dict(merged)
    """
    if not isinstance(states, (str, os.PathLike)):
        if step is not None:
            raise wrong_argument("step", step, "a folder in states=", place="headrace.merge_states")
        return snapshot.merge_states(states)

    _check_arguments(states, step, "headrace.merge_states")
    folder = Path(states)
    told: list[str] = []
    for one in reversed(_steps_in(folder)):
        if step is not None and one.number != step:
            continue
        merged = _merged(one, told)
        if merged is not None:
            return merged

    raise _nothing_complete(folder, step, told)


def _merged(step: StepFiles, told: list[str]) -> Snapshot | None:
    """Returns the merged state of a step; None if it has none. Adds to `told` what is missing."""
    # A run with other ranks may have come to a step that an earlier one had saved: what was written last counts.
    complete = [size for size, ranks in step.ranks.items() if len(ranks) == size]
    complete.sort(key=lambda size: _last_written(step.files(size)), reverse=True)
    for size in complete:
        states, damaged = _read(step, size)
        if damaged:
            told.append(f"{step.name}: cannot read {_listed(damaged, len(damaged))} of {size}")
            continue

        try:
            merged = snapshot.merge_states(states)
        except StateError as error:
            reason = str(error).replace("\n", ";")
            told.append(f"{step.name}: {' '.join(reason.split())}")
            continue

        if step.number >= 0:
            merged = {**merged, "step": step.number}
        return merged

    for size, ranks in step.ranks.items():
        if len(ranks) < size:
            missing = (rank for rank in range(size) if rank not in ranks)
            told.append(f"{step.name}: no file of {_listed(missing, size - len(ranks))} of {size}")
    return None


def _read(step: StepFiles, size: int) -> tuple[list[Snapshot], list[int]]:
    """Returns the states of all ranks, and the ranks whose files are damaged."""
    files = step.files(size)
    with ThreadPoolExecutor(min(READERS, len(files))) as pool:
        contents = list(pool.map(_content, files))

    states = []
    damaged = []
    for rank, content in enumerate(contents):
        try:
            states.append(from_bytes(content))
        except StateError:
            damaged.append(rank)
    return states, damaged


def _content(path: Path) -> bytes:
    """Returns the bytes of a file; none if it cannot be read."""
    try:
        return read_side_file(path)
    except (OSError, HeadraceError):
        return b""


def _last_written(files: list[Path]) -> float:
    """Returns when the newest of the files was written."""
    times = [0.0]
    for path in files:
        with contextlib.suppress(OSError):
            times.append(path.stat().st_mtime)
    return max(times)


def _steps_in(folder: Path) -> list[StepFiles]:
    """Returns the steps of a folder that hold files of ranks, the oldest first."""
    found = [_step(-1, folder)]
    for name in _names(folder):
        match = STEP_FOLDER.fullmatch(name)
        if match is not None:
            found.append(_step(int(match[1]), folder / name))

    steps = [step for step in found if step.ranks]
    steps.sort(key=lambda step: step.number)
    return steps


def _step(number: int, folder: Path) -> StepFiles:
    ranks: dict[int, set[int]] = defaultdict(set)
    for name in _names(folder):
        match = RANK_FILE.fullmatch(name)
        if match is not None and int(match[1]) < int(match[2]):
            ranks[int(match[2])].add(int(match[1]))
    return StepFiles(number, folder, {size: frozenset(of_size) for size, of_size in ranks.items()})


def _names(folder: Path) -> list[str]:
    try:
        return os.listdir(folder)  # noqa: PTH208 - names alone, of a folder that may have many
    except OSError:
        return []


def _remove_old(folder: Path, step: int, keep: int, rank: int, size: int) -> None:
    """Removes this rank's share of the files of steps in front of the last `keep` complete ones.

    A file that cannot be removed stays: a full run is worth more than an empty folder.
    """
    steps = [one for one in _steps_in(folder) if 0 <= one.number <= step]
    complete = [one.number for one in steps if one.is_complete]
    if len(complete) < keep:
        return

    for one in steps:
        if one.number >= complete[-keep]:
            break
        for of_size in one.ranks:
            for path in one.files(of_size):
                # The files of ranks that are there no more are shared out among those that are.
                if int(path.name.split("-")[1]) % size == rank:
                    with contextlib.suppress(OSError):
                        path.unlink()
        with contextlib.suppress(OSError):
            one.folder.rmdir()  # if nothing else is in it


def _check_arguments(folder: object, step: object, place: str) -> None:
    if not isinstance(folder, (str, os.PathLike)):
        raise wrong_argument("folder", folder, "a path", place=place)
    refuse_url(folder, place, "give a folder of a file system that all ranks see")
    if step is not None and not _is_count(step):
        raise wrong_argument("step", step, "a whole number that is not negative, or None", place=place)


def _is_count(value: object) -> bool:
    if isinstance(value, bool) or not isinstance(value, Integral):
        return False
    return int(value) >= 0


def _listed(ranks: Iterable[int], count: int) -> str:
    """Returns `count` ranks in words, the first ones of many."""
    shown = ", ".join(str(rank) for rank in islice(ranks, TOLD_RANKS))
    if count > TOLD_RANKS:
        return f"ranks {shown} and {count - TOLD_RANKS} more"
    if count == 1:
        return f"rank {shown}"
    return f"ranks {shown}"


def _nothing_complete(folder: Path, step: int | None, told: list[str]) -> StateError:
    found = "; ".join(told[:TOLD_STEPS])
    if not told:
        found = "no files of ranks"
    expected = "a step with the files of all ranks"
    if step is not None:
        expected = f"step {step} with the files of all ranks"
    return StateError.about(
        "no saved step is complete",
        place=folder,
        found=found,
        expected=expected,
        fix="give the folder of headrace.save_state, copy missing files into it, or begin without a state",
    )
