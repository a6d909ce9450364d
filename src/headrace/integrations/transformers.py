"""The Trainer of transformers: headrace's loaders in it, and their states beside its checkpoints."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import transformers
from accelerate.data_loader import BatchSamplerShard
from torch.utils.data import BatchSampler, SequentialSampler

from headrace.core.errors import UsageError
from headrace.integrations.accelerate import PreparedLoader
from headrace.loader.dataloader import DataLoader
from headrace.loader.options import is_map
from headrace.loader.rank_files import merge_states, save_state

STATES = "headrace"
"""The folder of the loader's states within a checkpoint."""

KEPT = ("collate_fn", "num_workers", "pin_memory", "prefetch_factor", "persistent_workers", "worker_init_fn")
"""What a loader takes over from the one that the Trainer makes."""


class LoaderMixin:
    """Gives a Trainer headrace's loaders, which go on in mid-epoch from its checkpoints.

    Put it before the Trainer among the bases. The Trainer's arguments hold as ever: batch sizes, workers, seeds. Each
    checkpoint gets the states of all ranks, and `train(resume_from_checkpoint=...)` resumes after the last batch, also
    on another number of ranks, with no batch loaded to be skipped.

    Attributes:
        loader_arguments: Further arguments of the loader for training, such as `{"on_error": "skip"}`.

    Examples:
        >>> import transformers
        >>> from headrace.integrations.transformers import LoaderMixin
        >>> class Trainer(LoaderMixin, transformers.Trainer):
        ...     loader_arguments = {"on_error": "skip"}
    """

    loader_arguments: dict[str, Any] = {}
    _loader: DataLoader[Any] | None = None
    _checkpoint: Path | None = None

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.add_callback(_States(self))  # type: ignore[attr-defined]

    def train(self, resume_from_checkpoint: Any = None, *args: Any, **kwargs: Any) -> Any:
        """Trains as the Trainer does."""
        checkpoint = resume_from_checkpoint
        if checkpoint is True:
            checkpoint = transformers.trainer_utils.get_last_checkpoint(self.args.output_dir)  # type: ignore[attr-defined]
        self._checkpoint = Path(checkpoint) if checkpoint else None
        with _skipping_left_to_loaders():
            return super().train(resume_from_checkpoint, *args, **kwargs)  # type: ignore[misc]

    def get_train_dataloader(self) -> Any:
        """Returns headrace's loader, with the dataset, collation and workers of the Trainer's own."""
        theirs = super().get_train_dataloader()  # type: ignore[misc]
        args: Any = self.args  # type: ignore[attr-defined]
        strategy = getattr(args, "train_sampling_strategy", "group_by_length" if _groups(args) else "random")
        if strategy not in ("random", "sequential"):
            raise UsageError.about(
                "this order is the Trainer's own",
                place="headrace.integrations.transformers.LoaderMixin",
                found=f"train_sampling_strategy={strategy!r}",
                expected="'random' or 'sequential'",
                fix="give batches of similar length with loader_arguments = {'batch_sampler': "
                "headrace.samplers.LengthBatchSampler(...)}",
            )

        arguments: dict[str, Any] = {name: getattr(theirs, name) for name in KEPT}
        arguments |= {
            "batch_size": self._train_batch_size,  # type: ignore[attr-defined]
            "shuffle": strategy == "random" and is_map(theirs.dataset),
            "drop_last": args.dataloader_drop_last,
            "shard": "auto",
            "seed": args.seed if args.data_seed is None else args.data_seed,
        }
        if "batch_sampler" in self.loader_arguments:
            for name in ("batch_size", "shuffle", "drop_last"):
                del arguments[name]
        self._loader = DataLoader(theirs.dataset, **{**arguments, **self.loader_arguments})
        return PreparedLoader(self._loader, self.accelerator)  # type: ignore[attr-defined]

    def get_eval_dataloader(self, *args: Any, **kwargs: Any) -> Any:
        """Returns headrace's loader for the samples in their order, split over ranks as Accelerate gathers them."""
        theirs = super().get_eval_dataloader(*args, **kwargs)  # type: ignore[misc]
        if not is_map(theirs.dataset):
            return theirs

        accelerator: Any = self.accelerator  # type: ignore[attr-defined]
        size = self.args.eval_batch_size  # type: ignore[attr-defined]
        batches = BatchSampler(SequentialSampler(theirs.dataset), size, drop_last=False)
        split = BatchSamplerShard(batches, accelerator.num_processes, accelerator.process_index)
        arguments = {name: getattr(theirs, name) for name in KEPT}
        loader: DataLoader[Any] = DataLoader(theirs.dataset, batch_sampler=split, **arguments)
        return PreparedLoader(loader, accelerator)


def _groups(args: Any) -> bool:
    """Tells whether an older Trainer groups samples by their lengths."""
    return bool(getattr(args, "group_by_length", False))


class _States(transformers.TrainerCallback):  # type: ignore[misc]
    """Saves the states of the loader of each rank with each checkpoint, and loads them when training begins."""

    def __init__(self, trainer: LoaderMixin) -> None:
        self._trainer = trainer

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Loads the states of the checkpoint that training goes on from."""
        if self._trainer._checkpoint is not None and self._trainer._loader is not None:
            self._trainer._loader.load_state_dict(merge_states(self._trainer._checkpoint / STATES))

    def on_save(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Saves the state of this rank."""
        if self._trainer._loader is not None:
            name = f"{transformers.trainer_utils.PREFIX_CHECKPOINT_DIR}-{state.global_step}"
            save_state(self._trainer._loader, Path(args.output_dir, name, STATES))


@contextlib.contextmanager
def _skipping_left_to_loaders() -> Iterator[None]:
    """Has the Trainer skip no batches of loaders of ours: their states have them behind them already."""
    skip = transformers.trainer.skip_first_batches

    def skip_first_batches(dataloader: Any, num_batches: int = 0) -> Any:
        if isinstance(dataloader, PreparedLoader):
            return dataloader
        return skip(dataloader, num_batches)

    transformers.trainer.skip_first_batches = skip_first_batches
    try:
        yield
    finally:
        transformers.trainer.skip_first_batches = skip
