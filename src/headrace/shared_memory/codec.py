"""Any batch object to a small header plus buffers in slots, and back.

Pickle, protocol 5: dense CPU tensors, storages and NumPy arrays leave the pickle as buffers. A buffer that already lies
in a slot of the batch (because collation wrote it there) is sent as it is; another one is copied into a slot; a small
one stays in the header. Tensors that share memory share it afterwards too.

Most batches are plain: see `plain_batches`. Their headers begin with `PLAIN`; a pickle of their description follows.

Both ends are the same program on the same machine, so pickle carries no trust problem here; data *files* never come
this way undecoded.
"""

from __future__ import annotations

import ctypes
import io
import pickle
from collections.abc import Callable
from dataclasses import dataclass
from multiprocessing.reduction import ForkingPickler
from typing import IO, Any, SupportsIndex, cast

import numpy as np
import numpy.typing as npt
import torch

from headrace.shared_memory.memory import Bytes, Slot, address_of
from headrace.shared_memory.plain_batches import (
    Described,
    Found,
    Node,
    NotPlain,
    UnopenedBatch,
    describe,
    rebuild,
    tensor_of,
    tensors_in,
)
from headrace.shared_memory.writer_memory import SMALL, WriterMemory, aligned

PLAIN = b"\x01"
"""The first byte of the header of a plain batch; a pickle begins with another one."""


NOWHERE = (-1, 0, 0)
"""In the place of a buffer that is not placed yet."""


@dataclass(frozen=True, slots=True)
class EncodedBatch:
    """An encoded batch: `slots` says how many bytes of each are used; each of `buffers` is (index, start, nbytes)."""

    header: bytes
    slots: list[tuple[Slot, int]]
    buffers: list[tuple[int, int, int]]


def encode(batch: object, memory: WriterMemory) -> EncodedBatch:
    """Encodes a batch, moving large buffers into slots of `memory`. The caller ends the batch in `memory`.

    Raises whatever pickling the object raises.
    """
    try:
        node, tensors = describe(batch)
    except NotPlain:
        return _Encoder(memory).encode(batch)
    return _Encoder(memory).encode_plain(node, tensors)


def decode(header: bytes | memoryview, buffers: list[Bytes]) -> Any:
    """Rebuilds an object whose buffers alias `buffers` and keep them alive. Raises whatever unpickling raises."""
    if header[0] != PLAIN[0]:
        return pickle.loads(header, buffers=buffers)

    node, told, small = pickle.loads(header[1:])
    leased = iter(buffers)
    tensors = []
    for one, data in zip(told, small, strict=True):
        tensors.append(tensor_of(one, next(leased) if data is None else data))
    return rebuild(node, iter(tensors))


def decode_unopened(
    header: bytes | memoryview, leases: list[Bytes], places: list[tuple[int, int, int]]
) -> tuple[Any, ...]:
    """Returns what `decode` returns, of a tuple; its first part as an `UnopenedBatch`, if it is plain."""
    if header[0] != PLAIN[0]:
        return cast("tuple[Any, ...]", decode(header, buffers_in(leases, places)))

    node, told, small = pickle.loads(header[1:])
    first, *others = node[-1]
    count = len(told) - sum(map(tensors_in, others))
    if any(data is not None for data in small[:count]):  # empty tensors lie in no slot
        return cast("tuple[Any, ...]", decode(header, buffers_in(leases, places)))

    leased = iter(buffers_in(leases, places[count:]))
    tensors = []
    for one, data in zip(told[count:], small[count:], strict=True):
        tensors.append(tensor_of(one, next(leased) if data is None else data))
    rest = iter(tensors)
    return UnopenedBatch(first, told[:count], places[:count], leases), *[rebuild(other, rest) for other in others]


def buffers_in(leases: list[Bytes], places: list[tuple[int, int, int]]) -> list[Bytes]:
    """Returns the buffers of a batch: which of `leases`, where in it, how many bytes. They keep the leases alive."""
    return [leases[index][start : start + nbytes] for index, start, nbytes in places]


def dumps(message: object) -> bytes:
    """Encodes a message without any slot: all of it lies in the bytes returned."""
    stream = io.BytesIO()
    ObjectPickler(stream, lambda _: True).dump(message)
    return stream.getvalue()


_pickler_of_batches: Callable[[IO[bytes], Callable[[pickle.PickleBuffer], bool]], Any]


def pickle_batches_with(pickler: Callable[[IO[bytes], Callable[[pickle.PickleBuffer], bool]], Any]) -> None:
    """Has this process encode its batches with another pickler, made like `ObjectPickler`."""
    global _pickler_of_batches
    _pickler_of_batches = pickler


class _Encoder:
    def __init__(self, memory: WriterMemory) -> None:
        self._memory = memory
        self._slots: dict[Slot, int] = {}
        self._used: dict[Slot, int] = {}
        self._buffers: list[tuple[int, int, int]] = []
        self._gathered: list[tuple[int, Bytes]] = []
        """Buffers that are still to be placed: their numbers, and what they hold."""

    def encode(self, batch: object) -> EncodedBatch:
        stream = io.BytesIO()
        _pickler_of_batches(stream, self._keep_in_header).dump(batch)
        if self._gathered:
            self._place_gathered()
        return EncodedBatch(stream.getvalue(), list(self._used.items()), self._buffers)

    def encode_plain(self, node: Node, tensors: list[Found]) -> EncodedBatch:
        """Encodes a plain batch. Each tensor has a buffer, or lies in the header."""
        told: list[Described] = []
        small: list[bytearray | None] = []
        for described, data, address in tensors:
            told.append(described)
            if self._place(data, address):
                small.append(None)
            else:
                small.append(bytearray(data))

        if self._gathered:
            self._place_gathered()
        header = PLAIN + pickle.dumps((node, told, small), 5)
        return EncodedBatch(header, list(self._used.items()), self._buffers)

    def _keep_in_header(self, buffer: pickle.PickleBuffer) -> bool:
        data = np.frombuffer(buffer.raw(), np.uint8)
        return not self._place(data, address_of(data))

    def _place(self, data: Bytes, address: int) -> bool:
        """Sees to it that these bytes lie in a slot, and notes where. False: they stay in the header."""
        if data.size == 0:
            return False

        place = self._memory.find(address)
        if place is None:
            if data.size < self._memory.gathered_below:
                self._gathered.append((len(self._buffers), data))
                self._buffers.append(NOWHERE)
                return True
            if data.size < SMALL:
                return False
            slot, target = self._memory.take(data.size)
            np.copyto(target, data)
            place = slot, 0

        self._buffers.append(self._placed(*place, data.size))
        return True

    def _placed(self, slot: Slot, start: int, nbytes: int) -> tuple[int, int, int]:
        """Notes that a buffer lies there; returns what the batch says of it."""
        index = self._slots.setdefault(slot, len(self._slots))
        self._used[slot] = max(self._used.get(slot, 0), start + nbytes)
        return index, start, nbytes

    def _place_gathered(self) -> None:
        """Copies the buffers that were gathered side by side into a slot."""
        slot, start, target = self._memory.place(sum(aligned(data.size) for _, data in self._gathered))
        offset = 0
        for number, data in self._gathered:
            np.copyto(target[offset : offset + data.size], data)
            self._buffers[number] = self._placed(slot, start + offset, data.size)
            offset += aligned(data.size)


class ObjectPickler(ForkingPickler):
    """Multiprocessing's pickler, which knows how to send sockets and the like, with tensors as buffers.

    `keep_in_header` gets each buffer and returns whether it stays in the pickle.
    """

    def __init__(self, stream: IO[bytes], keep_in_header: Callable[[pickle.PickleBuffer], bool]) -> None:
        super().__init__(stream, 5, True, keep_in_header)
        self._buffers = BufferReduction()

    def reducer_override(self, obj: Any) -> Any:
        """Returns how an object is pickled, as `pickle.Pickler.reducer_override` does."""
        return self._buffers.reduce(obj)


_pickler_of_batches = ObjectPickler


class BufferReduction:
    """Reduces the tensors, storages and arrays of one pickle so that their bytes leave it as buffers."""

    def __init__(self) -> None:
        self._blocks: dict[int, tuple[torch.UntypedStorage, _Block]] = {}

    def reduce(self, obj: Any) -> Any:
        """Returns what `pickle.Pickler.reducer_override` is to return: `NotImplemented` for all other objects."""
        if isinstance(obj, torch.Tensor):
            return self._reduce_tensor(obj)
        if isinstance(obj, torch.UntypedStorage) and obj.device.type == "cpu":
            return _same, (self._block(obj),)
        if type(obj) is np.ndarray:
            return _reduce_array(obj)
        return NotImplemented

    def _reduce_tensor(self, tensor: torch.Tensor) -> Any:
        # torch's own reduction: CUDA memory travels as a handle.
        if tensor.device.type != "cpu":
            return NotImplemented

        if tensor.requires_grad and not tensor.is_leaf:
            raise RuntimeError(
                "Cowardly refusing to serialize non-leaf tensor which requires_grad, "
                "since autograd does not support crossing process boundaries.  "
                "If you just want to transfer the data, call detach() on the tensor "
                "before serializing (e.g., putting it on the queue)."
            )

        if not _is_plain(tensor):
            return tensor.__reduce_ex__(5)

        storage = tensor.untyped_storage()
        offset = tensor.storage_offset()
        nbytes = tensor.numel() * tensor.element_size()
        if storage.nbytes() > 2 * nbytes + SMALL and not self._has_block(storage):
            # A small piece of a large storage: send the piece.
            piece = tensor.detach()
            if not piece.is_contiguous():
                piece = piece.clone()
            block = _Block(piece.as_strided((piece.numel(),), (1,)).view(torch.uint8).numpy())
            offset = 0
            stride = piece.stride()
        else:
            block = self._block(storage)
            stride = tensor.stride()

        return _rebuild, (block, tensor.dtype, offset, tuple(tensor.shape), stride, tensor.requires_grad)

    def _has_block(self, storage: torch.UntypedStorage) -> bool:
        return storage._cdata in self._blocks

    def _block(self, storage: torch.UntypedStorage) -> _Block:
        entry = self._blocks.get(storage._cdata)
        if entry is None:
            array = torch.empty(0, dtype=torch.uint8).set_(storage).numpy()
            entry = self._blocks[storage._cdata] = storage, _Block(array)
        return entry[1]


class _Block:
    """The bytes of one storage. Pickle writes each object once, so tensors over one block share it when rebuilt."""

    __slots__ = ("array",)

    def __init__(self, array: Bytes) -> None:
        self.array = array

    def __reduce_ex__(self, protocol: SupportsIndex) -> Any:
        return _storage_over, (pickle.PickleBuffer(self.array.data),)


def _reduce_array(array: npt.NDArray[Any]) -> Any:
    """Has an array arrive writable and in the machine's byte order, as by pickle's default protocol.

    With buffers outside of the pickle, a read-only array would arrive read-only, and a foreign byte order stay.
    """
    if array.dtype.hasobject:
        return NotImplemented
    if _is_foreign(array.dtype):
        return _same, (np.array(array, array.dtype.newbyteorder("=")),)
    # Of an array with gaps, pickle makes a copy itself, which is writable.
    if array.flags.writeable or not array.flags.forc:
        return NotImplemented

    # The same memory once more, this time as if it were writable: pickle only reads it, while `array` keeps it alive.
    memory = (ctypes.c_ubyte * array.nbytes).from_address(array.ctypes.data)
    return _same, (np.ndarray(array.shape, array.dtype, memoryview(memory), strides=array.strides),)


def _is_foreign(dtype: np.dtype[Any]) -> bool:
    """True for another byte order than the machine's. Structured types have none of their own; pickle leaves them.

    `byteorder` does not say it: `dtype.newbyteorder("<")` keeps the "<" on a little-endian machine.
    """
    return dtype.names is None and not dtype.isnative


def _is_plain(tensor: torch.Tensor) -> bool:
    """True for what `_rebuild` can make: an ordinary strided tensor without lazy conjugation or negation."""
    return (
        type(tensor) is torch.Tensor
        and tensor.layout is torch.strided
        and not (tensor.is_nested or tensor.is_quantized or tensor.is_conj() or tensor.is_neg())
    )


def _storage_over(buffer: bytearray | Bytes) -> torch.UntypedStorage:
    if len(buffer) == 0:
        return torch.UntypedStorage(0)
    return torch.frombuffer(buffer, dtype=torch.uint8).untyped_storage()


def _rebuild(
    storage: torch.UntypedStorage,
    dtype: torch.dtype,
    *layout: Any,
) -> torch.Tensor:
    offset, shape, stride, requires_grad = layout
    tensor = torch.empty(0, dtype=dtype).set_(storage, offset, shape, stride)
    if requires_grad:
        return tensor.requires_grad_()
    return tensor


def _same(value: Any) -> Any:
    return value
