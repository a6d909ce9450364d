"""The right of one process to fetch blocks of an object."""

from __future__ import annotations

from collections.abc import Callable
from types import TracebackType

from headrace.storage.cache.open_files import OpenFile


class Claim:
    """The right of this process to fetch some blocks. Other processes wait, or fetch something else."""

    def __init__(self, end: Callable[[range, OpenFile], None], blocks: range, file: OpenFile | None) -> None:
        """end: gives the right back, and is called once with the other arguments. file: None if nothing is to end."""
        self._end = end
        self._blocks = blocks
        self._file = file

    def release(self) -> None:
        """Ends the claim. In a forked child the claim stays the parent's."""
        file = self._file
        if file is not None:
            self._file = None
            self._end(self._blocks, file)

    def __enter__(self) -> Claim:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.release()

    def __del__(self) -> None:
        self.release()
