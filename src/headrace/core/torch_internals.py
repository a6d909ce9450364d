"""The parts of torch that are not public and that a drop-in cannot do without, all in this one place.

Orders, worker seeds and messages are torch's bit for bit only if they come from torch's own code. When a new torch
moves one of these names, this is the file to mend. They were read in torch 2.13 and exist since 2.4.
"""

from __future__ import annotations

import random
from typing import Any, NoReturn

import numpy as np
import numpy.random  # NumPy loads it at first use: better once here than in every forked worker
import torch
from torch._utils import ExceptionWrapper
from torch.utils.data import _utils
from torch.utils.data._utils import MP_STATUS_CHECK_INTERVAL
from torch.utils.data._utils.collate import collate as torch_collate
from torch.utils.data._utils.collate import collate_tensor_fn as torch_collate_tensor
from torch.utils.data._utils.collate import default_collate as torch_default_collate
from torch.utils.data._utils.collate import default_collate_fn_map
from torch.utils.data._utils.pin_memory import pin_memory as torch_pin_memory
from torch.utils.data._utils.worker import WorkerInfo, _generate_state
from torch.utils.data.dataloader import _BaseDataLoaderIter as TorchIterator
from torch.utils.data.dataloader import _DatasetKind as DatasetKind
from torch.utils.data.dataloader import _sharding_worker_init_fn as sharding_worker_init_fn
from torch.utils.data.datapipes.datapipe import IterDataPipe, MapDataPipe
from torch.utils.data.graph_settings import apply_random_seed, apply_sharding

__all__ = [
    "MP_STATUS_CHECK_INTERVAL",
    "DatasetKind",
    "IterDataPipe",
    "MapDataPipe",
    "TorchIterator",
    "apply_sharding",
    "default_collate_fn_map",
    "enter_worker",
    "python_is_exiting",
    "reraise",
    "reseed_datapipe",
    "sharding_worker_init_fn",
    "torch_collate",
    "torch_collate_tensor",
    "torch_default_collate",
    "torch_pin_memory",
    "wrap_exception",
]


def enter_worker(worker_id: int, num_workers: int, base_seed: int, dataset: Any) -> None:
    """Makes the calling process a loading worker as torch defines it.

    Sets torch's signal handlers, the thread name, one intra-op thread, the three global random states, and what
    `get_worker_info()` returns from here on.
    """
    _utils.signal_handling._set_worker_signal_handlers()  # type: ignore[attr-defined]
    torch.multiprocessing._set_thread_name("pt_data_worker")
    torch.set_num_threads(1)
    seed = base_seed + worker_id
    random.seed(seed)
    torch.manual_seed(seed)
    np.random.seed(_generate_state(base_seed, worker_id))
    _utils.worker._worker_info = WorkerInfo(id=worker_id, num_workers=num_workers, seed=seed, dataset=dataset)


def reseed_datapipe(dataset: Any, shared_seed: int | None) -> Any:
    """Gives an IterDataPipe the seed that all workers and ranks of this epoch share; other data sets pass through."""
    if not isinstance(dataset, IterDataPipe) or shared_seed is None:
        return dataset
    shared_rng = torch.Generator()
    shared_rng.manual_seed(shared_seed)
    return apply_random_seed(dataset, shared_rng)


def wrap_exception(where: str) -> Any:
    """Returns torch's picklable form of the exception being handled, with its traceback as text."""
    return ExceptionWrapper(where=where)


def reraise(wrapped: Any) -> NoReturn:
    """Raises what `wrap_exception` caught, as the same type with torch's message."""
    wrapped.reraise()
    raise AssertionError("torch's ExceptionWrapper did not raise")


def python_is_exiting() -> bool:
    """True once the interpreter has begun to shut down, when processes and pipes must be left alone."""
    return _utils is None or _utils.python_exit_status is not False
