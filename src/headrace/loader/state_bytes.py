"""The state of a loader as bytes. Reading them never runs code that somebody has put into them.

They are JSON, which is read in a tenth of the time that `torch.load` takes with `weights_only=True`: a merge reads the
states of thousands of ranks. A dataset's own state may hold what JSON does not know. It stands as a dictionary with one
key, such as `{"$bytes": "AAE="}`; `ENCODERS` and `DECODERS` list them all.
"""

from __future__ import annotations

import json
from base64 import b64decode, b64encode
from collections import OrderedDict
from collections.abc import Callable
from typing import Any

import numpy as np
import torch

from headrace.core.errors import StateError
from headrace.epoch.snapshot import Snapshot

TAG = "$"

PLAIN = (str, int, float, bool, type(None))
"""Types that come back from JSON as they were."""


def to_bytes(state: Snapshot) -> bytes:
    """Returns a state as bytes. Raises `StateError` if it holds objects of other types."""
    return json.dumps(_encoded(state)).encode()


def from_bytes(content: bytes) -> Snapshot:
    """Returns the state that `to_bytes` has written; its tensors are in the memory of the CPU. Raises `StateError`."""
    try:
        state = json.loads(content, object_hook=_decoded)
    except (ValueError, TypeError, KeyError, AttributeError, RuntimeError, RecursionError) as error:
        raise _damaged(f"{len(content):,} bytes: {type(error).__name__}: {error!s:.200}") from error

    if not isinstance(state, dict):
        raise _damaged(f"a {type(state).__name__}")
    return state


def _damaged(found: str) -> StateError:
    return StateError.about(
        "a saved state is damaged",
        found=found,
        expected="what headrace.save_state or headrace.LoaderState has written",
        fix="use the state of another step",
    )


def _encoded(value: Any) -> Any:
    kind = type(value)
    if kind in PLAIN:
        return value
    if kind is list:
        return [_encoded(item) for item in value]
    if kind in (dict, OrderedDict):
        if all(type(key) is str and not key.startswith(TAG) for key in value):
            return {key: _encoded(item) for key, item in value.items()}
        return {"$dict": [[_encoded(key), _encoded(item)] for key, item in value.items()]}

    for known, (tag, encode) in ENCODERS.items():
        if kind is known or (known is np.generic and isinstance(value, known)):
            return {tag: encode(value)}

    raise StateError.about(
        "the state of the dataset cannot be saved",
        place="state_dict()",
        found=f"a {kind.__module__}.{kind.__qualname__}",
        expected="numbers, texts, bytes, lists, tuples, sets, dictionaries, tensors and NumPy arrays",
        fix="have the dataset's state_dict() return such values only",
    )


def _of_tensor(tensor: torch.Tensor) -> list[Any]:
    if tensor.layout != torch.strided or tensor.is_quantized:
        found = f"a tensor with the layout {tensor.layout}, dtype {tensor.dtype}"
        fix = "have the dataset's state_dict() return dense tensors"
        raise StateError.about("the state of the dataset cannot be saved", found=found, fix=fix)

    flat = tensor.detach().cpu().contiguous().reshape(-1)
    name = str(tensor.dtype).removeprefix("torch.")
    return [name, list(tensor.shape), b64encode(flat.view(torch.uint8).numpy().tobytes()).decode()]


def _to_tensor(encoded: list[Any]) -> torch.Tensor:
    name, shape, text = encoded
    dtype = getattr(torch, name)
    if not isinstance(dtype, torch.dtype):
        raise TypeError(f"no dtype: {name}")

    content = bytearray(b64decode(text))
    if not content:
        return torch.empty(shape, dtype=dtype)
    return torch.frombuffer(content, dtype=torch.uint8).view(dtype).reshape(shape)


def _of_array(array: Any) -> list[Any]:
    if array.dtype.kind not in "biufcSUmM":
        found = f"a NumPy array with the dtype {array.dtype}"
        fix = "have the dataset's state_dict() return arrays of numbers or texts"
        raise StateError.about("the state of the dataset cannot be saved", found=found, fix=fix)
    return [array.dtype.str, list(array.shape), b64encode(array.tobytes()).decode()]


def _to_array(encoded: list[Any]) -> Any:
    dtype, shape, text = encoded
    return np.frombuffer(bytearray(b64decode(text)), np.dtype(str(dtype))).reshape(shape)


ENCODERS: dict[type, tuple[str, Callable[[Any], Any]]] = {
    bytes: ("$bytes", lambda value: b64encode(value).decode()),
    tuple: ("$tuple", lambda value: [_encoded(item) for item in value]),
    set: ("$set", lambda value: [_encoded(item) for item in value]),
    torch.Tensor: ("$tensor", _of_tensor),
    np.ndarray: ("$array", _of_array),
    np.generic: ("$number", _of_array),
}
"""By type: the key that stands for it, and what is behind the key."""

DECODERS: dict[str, Callable[[Any], Any]] = {
    "$dict": dict,
    "$bytes": b64decode,
    "$tuple": tuple,
    "$set": set,
    "$tensor": _to_tensor,
    "$array": _to_array,
    "$number": lambda encoded: _to_array(encoded)[()],
}


def _decoded(value: dict[str, Any]) -> Any:
    """Returns what a dictionary stands for, the inner ones of which are decoded already."""
    if len(value) != 1:
        return value

    ((key, content),) = value.items()
    if not key.startswith(TAG):
        return value
    return DECODERS[key](content)
