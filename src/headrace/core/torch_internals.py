"""The parts of torch that are not public and that a drop-in cannot do without, all in this one place.

Orders, worker seeds and messages are torch's bit for bit only if they come from torch's own code. When a new torch
moves one of these names, this is the file to change. They were read in torch 2.13 and exist since 2.6.
"""

from __future__ import annotations

import contextlib
import copy
import dataclasses
import multiprocessing.util
import random
import threading
from collections.abc import Callable, Iterator
from typing import Any, NoReturn

import numpy as np

# NumPy loads it at first use: better once here than in every forked worker.
import numpy.random
import torch
from torch._utils import ExceptionWrapper
from torch.autograd import _profiler_enabled as profiler_enabled  # type: ignore[attr-defined]
from torch.utils.data import _utils, get_worker_info
from torch.utils.data._utils import MP_STATUS_CHECK_INTERVAL
from torch.utils.data._utils.collate import collate as torch_collate
from torch.utils.data._utils.collate import collate_float_fn as torch_collate_float
from torch.utils.data._utils.collate import collate_int_fn as torch_collate_int
from torch.utils.data._utils.collate import collate_tensor_fn as torch_collate_tensor
from torch.utils.data._utils.collate import default_collate as torch_default_collate
from torch.utils.data._utils.collate import default_collate_fn_map
from torch.utils.data._utils.pin_memory import pin_memory as torch_pin_memory
from torch.utils.data._utils.worker import WorkerInfo, _generate_state
from torch.utils.data.dataloader import _BaseDataLoaderIter as TorchIterator
from torch.utils.data.dataloader import _DatasetKind as DatasetKind
from torch.utils.data.dataloader import _get_distributed_settings as distributed_settings
from torch.utils.data.dataloader import _InfiniteConstantSampler as StreamSampler
from torch.utils.data.dataloader import _MultiProcessingDataLoaderIter as TorchProcessIterator
from torch.utils.data.dataloader import _sharding_worker_init_fn
from torch.utils.data.dataloader import _share_dist_seed as draw_shared_seed
from torch.utils.data.datapipes.datapipe import IterDataPipe, MapDataPipe
from torch.utils.data.graph_settings import apply_random_seed
from torch.utils.data.graph_settings import apply_sharding as torch_apply_sharding

from headrace.core.process.this_process import ForkLock
from headrace.core.sharding import note_counting

__all__ = [
    "MP_STATUS_CHECK_INTERVAL",
    "DatasetKind",
    "IterDataPipe",
    "MapDataPipe",
    "StreamSampler",
    "TorchIterator",
    "TorchProcessIterator",
    "WorkerInfo",
    "apply_sharding",
    "compute_with_one_thread",
    "deep_copy",
    "default_collate_fn_map",
    "distributed_settings",
    "draw_shared_seed",
    "enter_worker_process",
    "make_worker_info",
    "profiler_enabled",
    "python_is_exiting",
    "reraise",
    "reseed_datapipe",
    "seed_worker",
    "set_thread_worker_info",
    "set_worker_info",
    "shard_datapipe",
    "torch_collate",
    "torch_collate_float",
    "torch_collate_int",
    "torch_collate_tensor",
    "torch_default_collate",
    "torch_pin_memory",
    "worker_info_kept",
    "wrap_exception",
]


class CountingInfo(WorkerInfo):
    """Worker information that records when somebody reads how many workers there are."""

    __slots__ = ()

    def __getattribute__(self, name: str) -> Any:
        if name == "num_workers":
            note_counting()
        return super().__getattribute__(name)


def make_worker_info(number: int, count: int, seed: int, dataset: object, *, watched: bool, thread: bool) -> WorkerInfo:
    """Returns what `get_worker_info()` shall return; `watched` if it must record that the workers were counted."""
    fields: dict[str, Any] = {"id": number, "num_workers": count, "seed": seed, "dataset": dataset}
    if thread and _info_knows_threads():
        fields["worker_method"] = "thread"

    if watched:
        return CountingInfo(**fields)
    return WorkerInfo(**fields)


def _info_knows_threads() -> bool:
    """Tells whether this torch's worker information has the field `worker_method`.

    Older versions of torch (2.6 is one) have a plain class there, which has no list of fields and takes any attribute.
    """
    kind: Any = WorkerInfo
    if not dataclasses.is_dataclass(kind):
        return False
    return any(field.name == "worker_method" for field in dataclasses.fields(kind))


def enter_worker_process() -> None:
    """Makes the calling process a loading worker as torch defines it: signal handlers, thread name, one thread."""
    _utils.signal_handling._set_worker_signal_handlers()  # type: ignore[attr-defined]
    torch.multiprocessing._set_thread_name("pt_data_worker")
    torch.set_num_threads(1)


_counting_threads = ForkLock()


def compute_with_one_thread() -> None:
    """Has torch compute with one thread in the calling thread, and nowhere else.

    `torch.set_num_threads` also sets what threads take over that have not computed yet; it is put back at once, by a
    thread of its own, since that sets the number for the thread that does it, too.
    """
    with _counting_threads.here:
        usual = torch.get_num_threads()
        torch.set_num_threads(1)
        restoring = threading.Thread(target=torch.set_num_threads, args=(usual,), daemon=True)
        restoring.start()
        restoring.join()


def seed_worker(base_seed: int, worker_id: int) -> None:
    """Seeds the three global random states as torch does in worker `worker_id`."""
    random.seed(base_seed + worker_id)
    torch.manual_seed(base_seed + worker_id)
    np.random.seed(_generate_state(base_seed, worker_id))


def set_worker_info(info: WorkerInfo | None) -> None:
    """Sets what `get_worker_info()` returns in this process."""
    _utils.worker._worker_info = info


class _ThreadInfo(threading.local):
    info: WorkerInfo | None = None


def set_thread_worker_info(info: WorkerInfo | None) -> None:
    """Sets what `get_worker_info()` returns in the calling thread; other threads see what they saw.

    torch keeps the information in one variable for the whole process, and user code holds references to the function.
    So it is the function's code that is replaced, once, by one that looks at the thread first.
    """
    namespace = get_worker_info.__globals__
    if "_headrace_thread_info" not in namespace:
        namespace["_headrace_thread_info"] = _ThreadInfo()
        get_worker_info.__code__ = _look_at_the_thread_first.__code__
    namespace["_headrace_thread_info"].info = info


@contextlib.contextmanager
def worker_info_kept() -> Iterator[None]:
    """Leaves what `get_worker_info()` returns as it was: in this process, and in the calling thread."""
    of_process = _utils.worker._worker_info
    own = get_worker_info.__globals__.get("_headrace_thread_info")
    of_thread = None
    if own is not None:
        of_thread = own.info

    try:
        yield
    finally:
        # A signal handler may raise at any call, also here. Assignments come first, since nothing interrupts them: what
        # stayed behind would have later datasets take this process for a worker.
        _utils.worker._worker_info = of_process
        if own is not None:
            own.info = of_thread
        elif "_headrace_thread_info" in get_worker_info.__globals__:
            set_thread_worker_info(None)


def _look_at_the_thread_first() -> Any:
    info = _headrace_thread_info.info  # type: ignore[name-defined]  # noqa: F821 - runs with torch's globals
    return info if info is not None else _worker_info  # type: ignore[name-defined]  # noqa: F821


# torch finds the pipes of a graph by pickling it, with a hook that it sets in the class of all pipes. What another
# thread pickles or copies meanwhile falls into that hook: pipes would be split twice, or not at all.
_graphs = ForkLock(reentrant=True)


def apply_sharding(dataset: Any, shards: int, shard: int) -> None:
    """Splits what a graph of data pipes yields, as torch does, and keeps one of the shards."""
    with _graphs.here:
        torch_apply_sharding(dataset, shards, shard)


def shard_datapipe(init_fn: Callable[[int], object] | None, world_size: int, rank: int, worker: int) -> None:
    """Splits the data pipe of the calling worker over ranks and workers, as torch does; then calls `init_fn`."""
    with _graphs.here:
        _sharding_worker_init_fn(None, world_size, rank, worker)
    # The user's function may wait for other workers, and does so without the lock.
    if init_fn is not None:
        init_fn(worker)


def deep_copy(dataset: Any) -> Any:
    """Returns a deep copy of a dataset, which may be or hold data pipes."""
    with _graphs.here:
        return copy.deepcopy(dataset)


def reseed_datapipe(dataset: object, shared_seed: int | None) -> Any:
    """Gives an IterDataPipe the seed that all workers and ranks of this epoch share; other datasets pass through."""
    if not isinstance(dataset, IterDataPipe) or shared_seed is None:
        return dataset
    shared_rng = torch.Generator()
    shared_rng.manual_seed(shared_seed)
    with _graphs.here:
        return apply_random_seed(dataset, shared_rng)


def wrap_exception(error: BaseException, where: str) -> Any:
    """Returns torch's picklable form of an exception, with its traceback as text."""
    return ExceptionWrapper((type(error), error, error.__traceback__), where=where)


def reraise(wrapped: Any) -> NoReturn:
    """Raises what `wrap_exception` caught, as the same type with torch's message."""
    wrapped.reraise()
    raise AssertionError("torch's ExceptionWrapper did not raise")


def python_is_exiting() -> bool:
    """True once the interpreter has begun to shut down, when processes and pipes must be left alone.

    torch and multiprocessing note it at different times, and multiprocessing ends daemons as soon as it does.
    """
    torch_is_exiting = _utils is None or _utils.python_exit_status is not False
    return torch_is_exiting or multiprocessing.util.is_exiting()
