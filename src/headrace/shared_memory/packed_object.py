"""An object for another process, as two files without names and some descriptors.

One file holds the pickle, the other the bytes of arrays and tensors, which the receiver maps privately: it can write to
them, and what nobody writes to exists once, however many processes are forked from the receiver. Locks, queues, pipes
and shared tensors travel as they do when multiprocessing starts a process.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import hashlib
import io
import mmap
import os
import pickle
import struct
import sys
from collections.abc import Callable, Iterator
from multiprocessing import context, reduction
from types import FunctionType
from typing import IO, Any

import numpy as np
import torch

from headrace.core.process.descriptors import nameless_file
from headrace.core.randomness.own_generators import KINDS, digest
from headrace.shared_memory.array_file import ArrayFile, Span, mapped_privately, parts_of, stays_in_pickle
from headrace.shared_memory.codec import ObjectPickler
from headrace.shared_memory.memory import Bytes, address_of

COMPARED = 1 << 20
"""Bytes that NumPy compares at a time: what it notes of them stays in the cache, and needs no new pages."""


class PackedObject:
    """A packed object. Owns `pickle` and `bytes`, descriptors of its files; `inside` belong to the object.

    As an argument of a process that multiprocessing starts, it arrives there as the object. The first call of `holds`
    maps the bytes file, and the mapping stays: its pages need not be faulted in each time.
    """

    def __init__(self, obj: object) -> None:
        """Packs `obj`. Raises whatever pickling it raises, and OSError where there is no memory."""
        self.inside: list[int] = []
        self._owns_inside = False
        self._spans: list[Span] = []
        self._mapped: Bytes | None = None
        self.pickle = self.bytes = -1
        try:
            self.pickle = nameless_file("pickle")
            arrays = ArrayFile("arrays")
            self.bytes = arrays.fd
            with os.fdopen(self.pickle, "wb", closefd=False) as stream:
                writer = _HashingWriter(stream)
                keep = functools.partial(_keep, arrays, self._spans)
                self.generators = _dump(obj, writer, keep, self.inside)

            self._digest = writer.digest()
            self.manifest = arrays.append(memoryview(pickle.dumps(self._spans, 5)))
            """Where the places of the arrays lie in their file: what the receiver must know besides the descriptors."""
        except BaseException:
            self.close()
            raise

    def holds(self, obj: object) -> bool:
        """True if packing `obj` now would give the same. Descriptors cannot be compared: False if there are any.

        Raises whatever pickling `obj` raises. Stops at the first array that differs.
        """
        if self.inside:
            return False
        if self._mapped is None:
            self._mapped = np.frombuffer(mmap.mmap(self.bytes, 0, prot=mmap.PROT_READ), np.uint8)

        packed = self._mapped
        spans = iter(self._spans)
        inside = list[int]()
        writer = _HashingWriter(io.BytesIO(), keep=False)

        def compare(data: Bytes) -> None:
            start, length = next(spans, (0, -1))
            if length != data.size or not _are_same(packed[start : start + length], data):
                raise _Differs

        try:
            _dump(obj, writer, compare, inside)
        except _Differs:
            return False
        return not inside and next(spans, None) is None and writer.digest() == self._digest

    def keep_inside(self) -> None:
        """Has the descriptors inside live as long as this does, whatever becomes of the object."""
        self.inside = list(map(os.dup, self.inside))
        self._owns_inside = True

    def __reduce__(self) -> Any:
        pickled, *others = map(reduction.DupFd, [self.pickle, self.bytes, *self.inside])
        return _arrive, (self.manifest, pickled, *others)

    def close_pickle(self) -> None:
        """Gives up the pickle once it was received; the rest serves `holds`."""
        if self.pickle >= 0:
            os.close(self.pickle)
        self.pickle = -1

    def __del__(self, exiting: Callable[[], bool] = sys.is_finalizing) -> None:
        """Closes both files. Does nothing while Python exits, when module globals such as `os` may be None."""
        if not exiting():
            self.close()

    def close(self) -> None:
        """Closes both files. May be called twice."""
        self.close_pickle()
        self._mapped = None
        if self.bytes >= 0:
            os.close(self.bytes)
        self.bytes = -1
        if self._owns_inside:
            for fd in self.inside:
                os.close(fd)
        self._owns_inside = False


def unpack(manifest: Span, pickle_fd: int, bytes_fd: int, inside: list[int]) -> Any:
    """Rebuilds an object from copies of a packed's descriptors, and closes the first two.

    Raises whatever unpickling raises.
    """
    _arrived[:] = inside
    try:
        whole = mapped_privately(bytes_fd)
        (places,) = parts_of(whole, [manifest])
        # Mapped, not read: several processes may do this, and the place in the file is one for all.
        pickled = mmap.mmap(pickle_fd, 0, prot=mmap.PROT_READ)
        return pickle.loads(pickled, buffers=parts_of(whole, pickle.loads(places.data)))
    finally:
        _arrived.clear()
        os.close(pickle_fd)
        os.close(bytes_fd)


def _arrive(manifest: Span, *descriptors: Any) -> Any:
    pickle_fd, bytes_fd, *inside = [descriptor.detach() for descriptor in descriptors]
    try:
        return unpack(manifest, pickle_fd, bytes_fd, inside)
    finally:
        for fd in inside:
            os.close(fd)


_arrived: list[int] = []
"""Descriptors inside the object that is being unpacked."""


class _ShippedFd:
    """A descriptor inside an object on its way; `detach` is what multiprocessing calls at the other end."""

    def __init__(self, number: int) -> None:
        self._number = number

    def detach(self) -> int:
        return os.dup(_arrived[self._number])


class _Departure:
    """Stands for the process that is being started, so that whatever multiprocessing can hand to it can be packed."""

    def __init__(self, inside: list[int]) -> None:
        self._inside = inside

    def duplicate_for_child(self, fd: int) -> int:
        self._inside.append(fd)
        return len(self._inside) - 1

    def DupFd(self, number: int) -> _ShippedFd:
        return _ShippedFd(number)


class _ShippingPickler(ObjectPickler):
    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self.generators: set[int] = set()
        """The states of the random generators that were met; see `digest`."""

    def reducer_override(self, obj: Any) -> Any:
        if isinstance(obj, KINDS):
            self.generators.add(digest(obj))
        if isinstance(obj, (torch.Tensor, torch.UntypedStorage)) and _is_shared(obj):
            # torch's own reduction: the memory stays shared.
            return NotImplemented
        return super().reducer_override(obj)


class _FoundInMain(Exception):
    """An object refers to something of the program's own module."""


class _MainFinder(_ShippingPickler):
    """Looks for classes and functions of the program's own module, and stops at the first."""

    def reducer_override(self, obj: Any) -> Any:
        if isinstance(obj, (type, FunctionType)) and obj.__module__ == "__main__":
            raise _FoundInMain(obj.__qualname__)
        return super().reducer_override(obj)


def first_of_main(obj: object) -> str | None:
    """Returns the name of a class or function of the program's own module that an object refers to; None without any.

    Raises whatever pickling `obj` raises.
    """
    try:
        with _departing(_Departure([])):
            _MainFinder(_HashingWriter(io.BytesIO(), keep=False), lambda _: False).dump(obj)
    except _FoundInMain as found:
        return str(found)
    return None


def _is_shared(obj: torch.Tensor | torch.UntypedStorage) -> bool:
    """True for CPU memory that processes share."""
    if obj.device.type != "cpu":
        return False

    try:
        return bool(obj.is_shared())
    except NotImplementedError:
        # A tensor without a storage, as sparse ones are. The tensors inside are asked instead.
        return False


_LENGTH_AND_HASH = struct.Struct("=qq")


class _Differs(Exception):
    """An array is not the one that was packed."""


class _HashingWriter:
    """A stream that also hashes what it writes; with `keep=False` it only hashes.

    Python's own hash of bytes has 64 bits and is faster than any in hashlib. Pickle hands over bytes of 64 KB and more
    as the objects that they are, and such an object keeps its hash: the second time, nobody reads its content.
    """

    def __init__(self, stream: IO[bytes], *, keep: bool = True) -> None:
        self._stream = stream
        self._keep = keep
        self._hash = hashlib.blake2b()

    def write(self, data: bytes | memoryview) -> int:
        if type(data) is bytes:
            self._hash.update(_LENGTH_AND_HASH.pack(len(data), hash(data)))
        else:
            self._hash.update(data)
        if self._keep:
            return self._stream.write(data)
        return len(data)

    def digest(self) -> bytes:
        return self._hash.digest()


def _keep(file: ArrayFile, spans: list[Span], data: Bytes) -> None:
    spans.append(file.append(data.data))


def _dump(obj: object, stream: Any, keep: Callable[[Bytes], None], inside: list[int]) -> set[int]:
    """Pickles an object. Returns the states of the random generators that it holds; see `digest`."""

    with _departing(_Departure(inside)):
        pickler = _ShippingPickler(stream, stays_in_pickle(keep))
        pickler.dump(obj)
    return pickler.generators


@contextlib.contextmanager
def _departing(departure: _Departure) -> Iterator[None]:
    before = context.get_spawning_popen()
    context.set_spawning_popen(departure)  # type: ignore[arg-type]  # has what is asked of one
    try:
        yield
    finally:
        context.set_spawning_popen(before)


def _are_same(one: Bytes, other: Bytes) -> bool:
    """Compares two arrays of one length. Lets other threads run meanwhile."""
    if _memcmp is not None:
        return _memcmp(address_of(one), address_of(other), len(one)) == 0

    parts = range(0, len(one), COMPARED)
    return all(np.array_equal(one[at : at + COMPARED], other[at : at + COMPARED]) for at in parts)


def _memcmp_of_c() -> Callable[[int, int, int], int] | None:
    """Returns C's `memcmp`; None on Windows, where fork servers do not exist."""
    if sys.platform == "win32":
        return None

    memcmp = ctypes.CDLL(None).memcmp
    memcmp.argtypes = [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t]
    memcmp.restype = ctypes.c_int
    return memcmp


_memcmp = _memcmp_of_c()
