"""The states of all ranks in a checkpoint of `torch.distributed.checkpoint`, for any number of ranks to load."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch.distributed

from headrace.core.errors import UsageError, wrong_argument
from headrace.core.protocols import is_stateful
from headrace.epoch.snapshot import Snapshot, merge_states
from headrace.loader.state_bytes import from_bytes, to_bytes

if TYPE_CHECKING:
    from torch.distributed import ProcessGroup  # not there in every build of torch

KEY = "ranks"


def gathered_state(loader: Any, group: ProcessGroup | None = None) -> Snapshot:
    """Returns the merged states of a loader on all ranks of a group, the same on each. Waits for the other ranks.

    Raises `StateError` if the ranks are not at the same step.
    """
    states: list[Snapshot] = [loader.state_dict()]
    if torch.distributed.is_available() and torch.distributed.is_initialized():
        gathered: list[Any] = [None] * torch.distributed.get_world_size(group)
        torch.distributed.all_gather_object(gathered, states[0], group=group)
        states = gathered
    return merge_states(states)


class LoaderState:
    """A `Stateful` for `torch.distributed.checkpoint` around a loader: saved on n ranks, loaded on any other number.

    A checkpoint gives a rank only the keys that this rank names, and a run with other ranks cannot know the keys of the
    run before. So the states of all ranks lie under one key, as bytes. For this, `state_dict()` gathers them: all ranks
    of the group must call it together, as they call `save` and `load`.

    Args:
        loader: a `headrace.DataLoader`.
        process_group: of the ranks that save and load together; None: all.

    Raises:
        UsageError: the loader has no state.

    Examples:
        >>> loader = headrace.DataLoader([1, 2, 3, 4], batch_size=2)
        >>> checkpoint = {"model": torch.nn.Linear(1, 1).state_dict(), "loader": headrace.LoaderState(loader)}

        Then save and load it, on all ranks:

            torch.distributed.checkpoint.save(checkpoint, checkpoint_id="checkpoints/step-1200")
            torch.distributed.checkpoint.load(checkpoint, checkpoint_id="checkpoints/step-1200")
    """

    def __init__(self, loader: Any, *, process_group: ProcessGroup | None = None) -> None:
        if not is_stateful(loader):
            raise wrong_argument("loader", loader, "a headrace.DataLoader", place="headrace.LoaderState")
        self._loader = loader
        self._group = process_group

    def state_dict(self) -> dict[str, bytes]:
        """Gathers the states of all ranks, and waits for the other ranks.

        Returns:
            The merged states as bytes, the same on all ranks.

        Raises:
            StateError: the ranks are not at the same step, or a dataset's state holds objects that are neither plain
                values nor tensors or arrays.

        Examples:
            >>> loader = headrace.DataLoader([1, 2, 3, 4], batch_size=2)
            >>> [type(state) for state in headrace.LoaderState(loader).state_dict().values()]
            [<class 'bytes'>]
        """
        return {KEY: to_bytes(gathered_state(self._loader, self._group))}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Makes the loader go on from a checkpoint.

        Args:
            state_dict: what `state_dict()` returned, on any number of ranks.

        Raises:
            UsageError: anything else.
            StateError: as `DataLoader.load_state_dict` raises it.

        Examples:
            >>> loader = headrace.DataLoader([1, 2, 3, 4], batch_size=2)
            >>> first = next(iter(loader))
            >>> state = headrace.LoaderState(loader)
            >>> state.load_state_dict(state.state_dict())
            >>> list(loader)
            [tensor([3, 4])]
        """
        content = state_dict.get(KEY)
        if not isinstance(content, bytes):
            raise UsageError.about(
                "this is no state of a headrace.LoaderState",
                place="headrace.LoaderState.load_state_dict",
                found=f"the keys {sorted(map(str, state_dict))[:6]}",
                expected=f"{KEY!r}, with bytes",
                fix="give what its state_dict() returned; a loader's own state belongs to loader.load_state_dict()",
            )
        self._loader.load_state_dict(from_bytes(content))
