"""What stands in the place of a state that could not be taken.

A loop goes on without states, as torch's does: only who asks the loader for its state is told.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from headrace.core.errors import StateError
from headrace.core.process.signal_handlers import is_of_signal_handler
from headrace.core.protocols import Stateful


class MissingState(NamedTuple):
    """Stands for the state of a dataset, of an iterator or of a sampler that could not be taken."""

    why: str
    """In one line."""


def state_of(thing: Stateful) -> Any:
    """Returns the state of an object, or a `MissingState` if its `state_dict` raises."""
    try:
        return thing.state_dict()
    except Exception as error:
        if is_of_signal_handler(error):
            raise
        return MissingState(f"{type(thing).__name__}.state_dict() raised {_in_a_line(error)}")


def why_missing(state: object, *, is_map: bool) -> str:
    """Returns why the state of a replica is missing; empty if it is not. is_map: of a map-style dataset.

    Of an iterable dataset, only the states of the dataset and of its iterator are: their replica is a dict of ours.
    """
    if isinstance(state, MissingState):
        return state.why
    if not is_map and isinstance(state, dict):
        return str(state.get("missing", ""))
    return ""


def cannot_be_sent(error: Exception) -> MissingState:
    """Returns what stands for a state that a worker cannot send to the main process, because of `error`."""
    return MissingState(f"the worker could not pickle what state_dict() returned: {_in_a_line(error)}")


def _in_a_line(error: Exception) -> str:
    """Returns the type of an exception, and the first line of what it says."""
    said = str(error).strip().partition("\n")[0]
    return f"{type(error).__name__}: {said}".removesuffix(": ")


def no_state(what: str, found: str) -> StateError:
    """Returns the error for a loader whose state cannot be taken. what: whose state is missing. found: why."""
    return StateError.about(
        f"the state of this {what} cannot be taken",
        place="headrace.DataLoader.state_dict",
        found=found,
        expected="state_dict() without arguments, whose result can be pickled, and load_state_dict(state)",
        fix=(
            f"fix these methods, or wrap the {what} in a class without them (samples of a stream are then read again "
            "after a resume); with a library's own loader, save that loader's state"
        ),
    )
