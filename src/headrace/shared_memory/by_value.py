"""Objects for a program on another machine: the user's code travels with them, and the bytes of tensors as buffers."""

from __future__ import annotations

import functools
import hashlib
import io
import mmap
import os
import pickle
from collections.abc import Callable
from multiprocessing import reduction
from typing import IO, Any, NamedTuple
from weakref import WeakKeyDictionary

import numpy as np

from headrace.cluster.code import user_code_by_value
from headrace.core.extras import extra
from headrace.core.process.descriptors import close_with, nameless_file
from headrace.shared_memory.codec import BufferReduction

ALIGNMENT = 64
"""Of arrays in the file, in bytes."""

SMALL = 4 << 10
"""Arrays below this many bytes stay in the pickle."""


@functools.cache
def by_value_pickler() -> Callable[[IO[bytes], Callable[[pickle.PickleBuffer], bool]], Any]:
    """Returns a pickler that writes the user's classes and functions by value. Made like `ObjectPickler`.

    Raises `MissingExtraError` without cloudpickle.
    """
    cloudpickle = extra("cloudpickle", "ray")

    class ByValuePickler(cloudpickle.Pickler):  # type: ignore[misc,name-defined]  # known at run time only
        def __init__(self, stream: IO[bytes], keep_in_header: Callable[[pickle.PickleBuffer], bool]) -> None:
            super().__init__(stream, 5, keep_in_header)
            self._buffers = BufferReduction()

        def reducer_override(self, obj: Any) -> Any:
            reduced = self._buffers.reduce(obj)
            if reduced is not NotImplemented:
                return reduced
            if isinstance(obj, type) and obj in _RECEIVED:
                return _sent_before, (_RECEIVED[obj],)
            return super().reducer_override(obj)

    return ByValuePickler


_RECEIVED: WeakKeyDictionary[type, str] = WeakKeyDictionary()
"""Classes that came to this process by value, and the numbers that cloudpickle has given them where they come from."""


def note_received_classes() -> None:
    """Has the classes that came by value so far go back as references.

    By value, they would overwrite the attributes of the class there, and their code would travel with each batch. What
    cloudpickle knows of them is private to it: without that, they go back by value.
    """
    _RECEIVED.update(getattr(_cloudpickle(), "_DYNAMIC_CLASS_TRACKER_BY_CLASS", {}))


def _sent_before(number: str) -> type:
    """Returns the class that this process has sent. Raises UnpicklingError if nobody holds it any more."""
    try:
        found: type = _cloudpickle()._DYNAMIC_CLASS_TRACKER_BY_ID[number]
    except KeyError:
        raise pickle.UnpicklingError("a batch is of a class which is gone: it was defined anew meanwhile") from None
    return found


def _cloudpickle() -> Any:
    return extra("cloudpickle", "ray").cloudpickle


class TravellingManifest(NamedTuple):
    """What the receiver must know of a file: the place of the pickle, and of each array, as (start, nbytes)."""

    pickle: tuple[int, int]
    arrays: list[tuple[int, int]]


class TravellingObject:
    """An object in one file without a name. Owns the descriptor `fd`, and closes it when collected.

    `digest` names the content: two objects with the same one are the same. It can be pickled while a process is being
    started; the new process gets a descriptor of its own.
    """

    def __init__(self, fd: int, manifest: TravellingManifest, nbytes: int, digest: str) -> None:
        """Takes over a descriptor. `pack_travelling` makes new ones."""
        self.fd = fd
        self.manifest = manifest
        self.nbytes = nbytes
        self.digest = digest
        close_with(self, fd)

    def __reduce__(self) -> Any:
        return _received, (reduction.DupFd(self.fd), self.manifest, self.nbytes, self.digest)


def _received(descriptor: Any, manifest: TravellingManifest, nbytes: int, digest: str) -> TravellingObject:
    return TravellingObject(descriptor.detach(), manifest, nbytes, digest)


def pack_travelling(obj: object) -> TravellingObject:
    """Packs an object. Raises whatever pickling it raises, and OSError where there is no memory."""
    packer = _Packer()
    try:
        manifest = packer.pack(obj)
    except BaseException:
        os.close(packer.fd)
        raise
    return TravellingObject(packer.fd, manifest, packer.nbytes, packer.digest.hexdigest())


class _Packer:
    """Writes one object into a new file, `fd`, which belongs to the caller."""

    def __init__(self) -> None:
        self.fd = nameless_file("object")
        self.nbytes = 0
        self.digest = hashlib.blake2b(digest_size=16)

    def pack(self, obj: object) -> TravellingManifest:
        arrays: list[tuple[int, int]] = []

        def keep_in_header(buffer: pickle.PickleBuffer) -> bool:
            data = np.frombuffer(buffer.raw(), np.uint8)
            if data.size < SMALL:
                return True
            arrays.append(self._append(data.data))
            return False

        stream = io.BytesIO()
        with user_code_by_value():
            by_value_pickler()(stream, keep_in_header).dump(obj)
        return TravellingManifest(self._append(stream.getbuffer()), arrays)

    def _append(self, data: memoryview) -> tuple[int, int]:
        self.digest.update(data)
        start = -(-self.nbytes // ALIGNMENT) * ALIGNMENT
        done = 0
        while done < len(data):
            done += os.pwrite(self.fd, data[done:], start + done)

        self.nbytes = start + len(data)
        return start, len(data)


def unpack_travelling(fd: int, manifest: TravellingManifest) -> Any:
    """Rebuilds an object from its file, whose descriptor may be closed afterwards.

    Its arrays are writable and lie in private memory, of which only what is written to is copied. Raises whatever
    unpickling raises.
    """
    mapped = mmap.mmap(fd, 0, flags=mmap.MAP_PRIVATE, prot=mmap.PROT_READ | mmap.PROT_WRITE)
    whole = np.frombuffer(mapped, np.uint8)
    start, length = manifest.pickle
    buffers = (whole[first : first + nbytes] for first, nbytes in manifest.arrays)
    return pickle.loads(whole[start : start + length].data, buffers=buffers)
