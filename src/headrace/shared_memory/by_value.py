"""Objects for a program on another machine: the user's code travels with them, and the bytes of tensors as buffers."""

from __future__ import annotations

import functools
import hashlib
import io
import os
import pickle
from collections.abc import Callable
from multiprocessing import reduction
from typing import IO, Any, NamedTuple
from weakref import WeakKeyDictionary

from headrace.cluster.code import user_code_by_value
from headrace.core.extras import extra
from headrace.core.process.descriptors import close_with
from headrace.shared_memory.array_file import ArrayFile, Span, mapped_privately, parts_of, stays_in_pickle
from headrace.shared_memory.codec import BufferReduction
from headrace.shared_memory.memory import Bytes


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
        raise pickle.UnpicklingError("a batch is of a class which is gone: it was defined again meanwhile") from None
    return found


def _cloudpickle() -> Any:
    return extra("cloudpickle", "ray").cloudpickle


class TravellingManifest(NamedTuple):
    """What the receiver must know of a file: the place of the pickle, and of each array."""

    pickle: Span
    arrays: list[Span]


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
    file = ArrayFile("object")
    digest = hashlib.blake2b(digest_size=16)
    arrays: list[Span] = []

    def keep(data: Bytes) -> None:
        digest.update(data.data)
        arrays.append(file.append(data.data))

    try:
        stream = io.BytesIO()
        with user_code_by_value():
            by_value_pickler()(stream, stays_in_pickle(keep)).dump(obj)

        digest.update(stream.getbuffer())
        manifest = TravellingManifest(file.append(stream.getbuffer()), arrays)
    except BaseException:
        os.close(file.fd)
        raise
    return TravellingObject(file.fd, manifest, file.nbytes, digest.hexdigest())


def unpack_travelling(fd: int, manifest: TravellingManifest) -> Any:
    """Rebuilds an object from its file, whose descriptor may be closed afterwards.

    Its arrays are writable and lie in private memory, of which only what is written to is copied. Raises whatever
    unpickling raises.
    """
    whole = mapped_privately(fd)
    start, nbytes = manifest.pickle
    return pickle.loads(whole[start : start + nbytes].data, buffers=parts_of(whole, manifest.arrays))
