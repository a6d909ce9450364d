"""An exception on its way from a worker to the main process."""

from __future__ import annotations

import traceback
from typing import Any, NoReturn

from headrace.core.torch_internals import reraise, wrap_exception


class Failure:
    """What a worker sends in the place of a batch.

    By default the main process raises torch's copy: the same type where that can be built from one string, and a text
    with the worker and the traceback. With `original` it raises the exception itself, with the traceback as a note.
    """

    def __init__(self, error: BaseException, where: str, *, original: bool) -> None:
        self._wrapped = wrap_exception(error, where)
        if original:
            self._original: BaseException | None = error
        else:
            self._original = None

        if original:
            self._trace = "".join(traceback.format_exception(error))
        else:
            self._trace = ""

        self._where = where

    def simplified(self) -> Failure:
        """Returns this failure without what may be impossible to pickle; only the text of the exception is kept."""
        self._original = None
        self._wrapped.exc_type = RuntimeError
        return self

    def raise_again(self) -> NoReturn:
        """Raises the exception in the main process."""
        if self._original is None:
            reraise(self._wrapped)
        self._original.add_note(f"headrace: caught {self._where}. There the traceback was:\n{self._trace}")
        raise self._original

    def __getstate__(self) -> dict[str, Any]:
        state = self.__dict__.copy()
        if self._original is not None:
            state["_original"] = self._original.with_traceback(None)
        return state
