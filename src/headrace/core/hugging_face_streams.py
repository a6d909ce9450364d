"""Streams of Hugging Face's `datasets`: what a state of them says, and what it does not.

They have the methods of torchdata's protocol, with four differences (seen in versions 4.0 to 5.2):

- A loaded state is where *every* iteration begins from then on. An epoch behind a resumed one would begin at its
  checkpoint, and one behind a state that was taken at the end of an epoch would be empty.
- It counts only while the stream is at the epoch of the state.
- Before 4.8.5, the state of a stream with `.map()` or `.filter()` is ahead: samples would be lost.
- It does not hold the buffer of `.shuffle()`; and a worker cannot load the state of a stream that has several sources,
  because it gives that state to the whole stream first, before it takes its share.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from typing import Any
from zlib import crc32

import numpy as np
import torch
from torch.utils.data import get_worker_info

from headrace.core.copies import shallow_copy
from headrace.core.errors import StateError
from headrace.core.text.versions import numbers_of

START = "_starting_state_dict"
"""The attribute of a stream that holds the state that was loaded."""

MAPPED_RIGHT = (4, 8, 5)
"""From this version on, the state of a stream with `.map()` is that of its last sample."""


def is_hugging_face_stream(thing: object) -> bool:
    """Tells whether this is an `IterableDataset` of Hugging Face's `datasets`."""
    if "datasets" not in sys.modules:
        return False
    kinds = type(thing).__mro__
    return any(kind.__name__ == "IterableDataset" and kind.__module__ == "datasets.iterable_dataset" for kind in kinds)


def missing_in_state(thing: object, *, in_worker: bool | None = None) -> str:
    """Returns why such a stream does not go on where its state was taken; empty if it does, and for all other things.

    in_worker: whether a worker reads it; None: whether the caller is one.
    """
    if not is_hugging_face_stream(thing):
        return ""
    if in_worker is None:
        in_worker = get_worker_info() is not None

    is_ahead = numbers_of(sys.modules["datasets"].__version__) < MAPPED_RIGHT
    for part in _parts(vars(thing).get("_ex_iterable")):
        kind = type(part).__name__
        if is_ahead and any(one.__name__ == "MappedExamplesIterable" for one in type(part).__mro__):
            return "its state is ahead of a sample of .map() or .filter(), before version 4.8.5 of datasets"
        if kind == "BufferShuffledExamplesIterable" and vars(part).get("buffer_size") != 1:
            return "its state does not hold the buffer of .shuffle()"
        if in_worker and ("ex_iterables" in vars(part) or kind == "InterleavedShardsExamplesIterable"):
            return "its workers cannot load the state of several sources"

    return ""


def _parts(part: Any) -> Iterator[Any]:
    """Yields the steps of a stream, from the last one on."""
    while part is not None:
        yield part
        for source in vars(part).get("ex_iterables", ()):
            yield from _parts(source)
        part = vars(part).get("ex_iterable")


class Beginnings:
    """Where the streams begin their iterations that an object has as attributes, as it is now."""

    def __init__(self, holder: object) -> None:
        self._before: list[tuple[Any, Any]] = []
        if "datasets" not in sys.modules:
            return

        for thing in getattr(holder, "__dict__", {}).values():
            if is_hugging_face_stream(thing) and START in vars(thing):
                self._before.append((thing, vars(thing)[START]))

    def put_back(self) -> None:
        """Has iterations that are made from here on begin as they did then."""
        for stream, state in self._before:
            setattr(stream, START, state)


def epoch_of(stream: Any) -> int:
    """Returns the number of the epoch of a stream, from which its order follows."""
    return int(stream.epoch)


def order_of(stream: Any) -> dict[str, int]:
    """Returns from what the order of a stream follows: its epoch, and a checksum of its generators.

    Without a seed, these are others in each process that makes the stream.
    """
    generators = [vars(part).get("generator") for part in _parts(vars(stream).get("_ex_iterable"))]
    states = [one.bit_generator.state for one in generators if isinstance(one, np.random.Generator)]
    return {"epoch": epoch_of(stream), "order": crc32(repr(states).encode())}


def take_up_order(stream: Any, state: Mapping[str, Any]) -> None:
    """Sets the epoch of a stream to that of the state of a replica. Raises `StateError` if its order is another one."""
    found = order_of(stream)["order"]
    if state["order"] != found:
        raise StateError.about(
            "this state was saved with another order of the stream",
            place="load_state_dict",
            found="another random order of its samples than when the state was saved",
            expected="a stream that is shuffled or interleaved with a seed",
            fix="give .shuffle() and interleave_datasets() the same seed= in each run, and begin this epoch again",
        )
    set_stream_epoch(stream, state["epoch"])


def told_epoch(dataset: object) -> int:
    """Returns the number of the epoch that a stream was told; 0 if it was told none, and for all other datasets."""
    if is_hugging_face_stream(dataset):
        return epoch_of(dataset)
    return 0


def set_stream_epoch(stream: Any, epoch: int) -> None:
    """Sets the number of the epoch of a stream.

    All forked copies of a stream have it in one place, and `set_epoch` adds the difference to what it finds there: of
    two workers that do so at the same time, both would add it.
    """
    shared = vars(stream).get("_epoch")
    if isinstance(shared, torch.Tensor):
        shared.fill_(epoch)
    else:
        stream.set_epoch(epoch)


def going_on_from(stream: Any, state: Any) -> Any:
    """Returns a copy of a stream that goes on from a state. The stream itself begins later iterations as before."""
    copied = shallow_copy(stream)
    copied.load_state_dict(state)
    return copied
