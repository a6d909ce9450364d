"""The loader with workers from a fork server, wherever a test asks for forked workers."""

import multiprocessing
from typing import Any, TypeVar

import headrace

T_co = TypeVar("T_co", covariant=True)

FORKSERVER = multiprocessing.get_context("forkserver")
FORKSERVER.set_forkserver_preload(["torch.utils.data", "headrace"])


class DataLoader(headrace.DataLoader[T_co]):
    def __init__(self, *args: Any, multiprocessing_context: Any = None, **kwargs: Any) -> None:
        if kwargs.get("num_workers", 0) > 0 and multiprocessing_context in ("fork", None):
            multiprocessing_context = FORKSERVER
        super().__init__(*args, multiprocessing_context=multiprocessing_context, **kwargs)
