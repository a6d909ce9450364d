"""Lightning: the states of all ranks in its checkpoints, for any number of ranks, and `commit` behind each of them."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterator
from typing import Any

from headrace.core.errors import UsageError
from headrace.core.protocols import is_live
from headrace.core.text.versions import numbers_of
from headrace.loader.dataloader import DataLoader
from headrace.loader.loader_state import gathered_state

EXACT_AT_END = (2, 5, 3)
"""The first version of Lightning whose loop goes on with the right batch if it resumes at the end of an epoch."""


def _package() -> Any:
    """Returns the package that the script uses: `lightning.pytorch`, or the one that is installed by its old name."""
    if "pytorch_lightning" in sys.modules and "lightning.pytorch" not in sys.modules:
        return sys.modules["pytorch_lightning"]
    return importlib.import_module("lightning.pytorch")


class LoaderCallback(_package().Callback):  # type: ignore[misc]
    """Keeps training loaders exact in Lightning's checkpoints.

    Lightning saves the state of rank 0's loader, and gives it to all ranks. With this callback the checkpoint holds the
    states of all ranks, merged: a run resumes after the last batch, in mid-epoch and at its end, also on another number
    of ranks. Where the data is a source that never ends, the records of a checkpoint are committed
    once the next batch begins.

    Examples:
        >>> import lightning
        >>> from headrace.integrations.lightning import LoaderCallback
        >>> trainer = lightning.Trainer(callbacks=[LoaderCallback()], logger=False)
    """

    def __init__(self) -> None:
        self._uncommitted: list[tuple[Any, Any]] = []

    def on_save_checkpoint(self, trainer: Any, pl_module: Any, checkpoint: dict[str, Any]) -> None:
        """Puts the merged states in the place of this rank's. Waits for the other ranks, as Lightning does."""
        states = checkpoint["loops"]["fit_loop"]["state_dict"].get("combined_loader")
        if not states:
            return

        own = list(_stateful(trainer))
        merged = [gathered_state(loader) if isinstance(loader, DataLoader) else None for loader in own]
        checkpoint["loops"]["fit_loop"]["state_dict"]["combined_loader"] = [
            state if whole is None else whole for state, whole in zip(states, merged, strict=True)
        ]
        self._uncommitted = [(loader, whole) for loader, whole in zip(own, merged, strict=True) if whole is not None]

    def on_load_checkpoint(self, trainer: Any, pl_module: Any, checkpoint: dict[str, Any]) -> None:
        """Refuses to go on at the end of an epoch with an older Lightning, which would lose batches.

        Raises:
            UsageError: The checkpoint stands at the end of an epoch, and Lightning is older than 2.5.3.
        """
        loop = checkpoint.get("loops", {}).get("fit_loop", {})
        if trainer.state.fn != "fit" or not loop.get("state_dict", {}).get("combined_loader"):
            return

        version = _package().__version__
        if numbers_of(version) < EXACT_AT_END and loop["epoch_loop.batch_progress"]["is_last_batch"]:
            raise UsageError.about(
                "Lightning would go on with other batches than the run before",
                place="headrace.integrations.lightning.LoaderCallback",
                found=f"Lightning {version}, and a checkpoint at the end of an epoch",
                expected=f"Lightning {'.'.join(map(str, EXACT_AT_END))} or newer",
                fix="update Lightning, or resume from a checkpoint in the middle of an epoch",
            )

    def on_train_start(self, trainer: Any, pl_module: Any) -> None:
        """Loads states that Lightning has left: it does if something asked for the number of steps before."""
        loop = trainer.fit_loop
        states = loop._combined_loader_states_to_load
        if states and loop._combined_loader is not None:
            loop._combined_loader._load_state_dicts(states)
            loop._combined_loader_states_to_load = []
            iter(loop._data_fetcher)

    def on_train_batch_start(self, trainer: Any, pl_module: Any, batch: Any, batch_idx: int) -> None:
        """Commits what the last checkpoint holds: it has been written by now."""
        self._commit(trainer)

    def on_train_end(self, trainer: Any, pl_module: Any) -> None:
        """Commits what the last checkpoint holds."""
        self._commit(trainer)

    def _commit(self, trainer: Any) -> None:
        if not self._uncommitted:
            return
        for loader, state in self._uncommitted:
            if trainer.is_global_zero and is_live(loader.dataset):
                loader.commit(state)
        self._uncommitted = []


def _stateful(trainer: Any) -> Iterator[Any]:
    """Yields the training loaders whose states Lightning keeps, in its order."""
    for loader in trainer.fit_loop._combined_loader.flattened:
        if hasattr(loader, "state_dict"):
            yield loader
