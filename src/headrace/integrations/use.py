"""`headrace.use`: headrace's loader in the place of torch's, for scripts that `headrace run` cannot start."""

from __future__ import annotations

import contextlib
import inspect
import sys
import threading
import warnings
from collections.abc import Iterator, Mapping
from types import TracebackType
from typing import Any

import torch.utils.data

from headrace.core.errors import UsageError
from headrace.loader.dataloader import DataLoader
from headrace.measure.children import ChildPlan, measured_too
from headrace.measure.loader_replacement import TORCH_LOADER, Replacement, replace_loader
from headrace.measure.measurement import Measurement

OWN = ("headrace", "torch.utils.data", "torchdata")
"""Modules whose reference to torch's loader stays: ours, torch's, and torchdata's, whose class is derived from it."""

_lock = threading.Lock()
_used: list[contextlib.ExitStack] = []
"""What ends the use. Held here: dropped with what `use` returned, it would take the loader away from children."""


class _Use(contextlib.AbstractContextManager[None]):
    """A context manager, at whose end torch's loader is back in its place."""

    def __init__(self, undo: contextlib.ExitStack) -> None:
        self._undo = undo

    def __enter__(self) -> None:
        return None

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with _lock:
            if self._undo in _used:
                _used.remove(self._undo)
            self._undo.close()


def use(**arguments: Any) -> contextlib.AbstractContextManager[None]:
    """Puts headrace's loader in the place of torch's, in this process and in the Python processes that it starts.

    From here on `torch.utils.data.DataLoader` is headrace's, also in modules that have imported it already, and in
    those that frameworks import later: they make the same batches in the same order. Call it first in a script. As a
    context manager it ends with the block; loaders that were made in it stay what they are.

    Args:
        **arguments: Of `headrace.DataLoader`, for calls that do not give them, such as `on_error="skip"`.

    Returns:
        A context manager.

    Raises:
        UsageError: There is no such argument, or its value is no number, text or truth value.

    Warns:
        UserWarning: Classes have been derived from torch's loader already. They keep it.

    Examples:
        >>> import headrace
        >>> with headrace.use():
        ...     from torch.utils.data import DataLoader
        ...     print([batch.tolist() for batch in DataLoader(range(4), batch_size=2)])
        [[0, 1], [2, 3]]
    """
    _check(arguments)
    undo = contextlib.ExitStack()
    with _lock:
        # Under `headrace run`, and in a process whose parent called this, the loader is in its place.
        if torch.utils.data.DataLoader is not TORCH_LOADER:
            return _Use(undo)

        _warn_of_derived_classes()
        replacement = Replacement()
        undo.callback(replace_loader(Measurement("", is_kept=False), replacement, arguments))
        undo.callback(_replace_in_modules(torch.utils.data.DataLoader))
        undo.enter_context(measured_too(ChildPlan(tuple(replacement), arguments)))
        _used.append(undo)
    return _Use(undo)


def _check(arguments: Mapping[str, Any]) -> None:
    known = inspect.signature(DataLoader).parameters.keys() - {"dataset"}
    for name in arguments.keys() - known:
        raise UsageError.about(f"no such argument: {name}", place="headrace.use", expected=", ".join(sorted(known)))

    for name, value in arguments.items():
        if not isinstance(value, (str, int, float, bool)):
            raise UsageError.about(
                f"{name} cannot be told to the processes that this one starts",
                place="headrace.use",
                found=type(value).__name__,
                expected="a number, a text or a truth value",
                fix="give it to the loaders themselves",
            )


def _warn_of_derived_classes() -> None:
    derived = [kind for kind in _derived(TORCH_LOADER) if not kind.__module__.startswith(OWN)]
    if not derived:
        return

    names = ", ".join(f"{kind.__module__}.{kind.__qualname__}" for kind in derived)
    warnings.warn(
        f"headrace.use() comes too late for classes that are derived from torch's loader: {names}. They keep it. "
        "Call headrace.use() before the imports that define them.",
        UserWarning,
        stacklevel=3,
    )


def _derived(kind: type) -> Iterator[type]:
    derived: type
    for derived in kind.__subclasses__():
        yield derived
        yield from _derived(derived)


def _replace_in_modules(loader: type) -> Any:
    """Sets the loader in modules that have imported torch's by name. Returns what puts it back."""
    replaced: list[tuple[dict[str, Any], str]] = []
    for name, module in list(sys.modules.items()):
        if name.startswith(OWN):
            continue
        names = getattr(module, "__dict__", {})
        for attribute, value in list(names.items()):
            if value is TORCH_LOADER:
                names[attribute] = loader
                replaced.append((names, attribute))

    def undo() -> None:
        for names, attribute in replaced:
            if names.get(attribute) is loader:
                names[attribute] = TORCH_LOADER

    return undo
