"""The loader with worker threads, wherever a test asks for forked workers."""

from typing import Any, TypeVar

import headrace

T_co = TypeVar("T_co", covariant=True)


class DataLoader(headrace.DataLoader[T_co]):
    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, backend="thread", **kwargs)
