"""Small files that promise or unfold to far more than they should: each function writes one, and returns its path."""

from __future__ import annotations

import io
import json
import struct
import tarfile
import zipfile
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch

MEGA, GIGA = 1 << 20, 1 << 30
HUGE = 10**12
PIECE = 16 * MEGA
NOTHING = bytes(PIECE)


def deflated(count: int, head: bytes = b"") -> bytes:
    """Returns a raw deflate stream of `head` and so many zeros, a thousandth as long, made in no time."""
    packer = zlib.compressobj(9, wbits=-15)
    start = packer.compress(head) + packer.flush(zlib.Z_FULL_FLUSH)
    piece = packer.compress(bytes(PIECE)) + packer.flush(zlib.Z_FULL_FLUSH)
    return start + piece * (count // PIECE) + packer.compress(bytes(count % PIECE)) + packer.flush()


def checked(count: int, head: bytes, check: Callable[[bytes, int], int], start: int) -> int:
    """Returns a checksum of `head` and so many zeros."""
    value = check(head, start)
    for _ in range(count // PIECE):
        value = check(NOTHING, value)
    return check(bytes(count % PIECE), value)


def zlib_of(count: int) -> bytes:
    """Returns zeros as PNG and HDF5 keep them."""
    return b"\x78\xda" + deflated(count) + struct.pack(">I", checked(count, b"", zlib.adler32, 1))


def gzip_of(count: int, head: bytes = b"") -> bytes:
    """Returns `head` and zeros as a .gz file."""
    total = (count + len(head)) & 0xFFFFFFFF
    return (
        b"\x1f\x8b\x08\0\0\0\0\0\2\xff"
        + deflated(count, head)
        + struct.pack("<II", checked(count, head, zlib.crc32, 0), total)
    )


def zip_of(members: dict[str, tuple[bytes, int]]) -> bytes:
    """Returns a .zip; members: by name, what is in front, and how many zeros."""
    body, entries = b"", b""
    for name, (head, count) in members.items():
        data, total = deflated(count, head), count + len(head)
        common = struct.pack(
            "<HHHHHIIIHH", 20, 0, 8, 0, 33, checked(count, head, zlib.crc32, 0), len(data), total, len(name), 0
        )
        entries += b"PK\1\2\x14\0" + common + struct.pack("<HHHII", 0, 0, 0, 0, len(body)) + name.encode()
        body += b"PK\3\4" + common + name.encode() + data
    return (
        body
        + entries
        + b"PK\5\6\0\0\0\0"
        + struct.pack("<HHIIH", len(members), len(members), len(entries), len(body), 0)
    )


# -- images ------------------------------------------------------------------------------------------------------------


def png(width: int, height: int, pixels: bytes, *extra: tuple[bytes, bytes]) -> bytes:
    """Returns a PNG of 8-bit gray. pixels: the content of IDAT, deflated already; extra: (kind, content) before it."""
    parts = [
        (b"IHDR", struct.pack(">IIBBBBB", width, height, 8, 0, 0, 0, 0)),
        *extra,
        (b"IDAT", pixels),
        (b"IEND", b""),
    ]
    chunks = [
        struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data)) for kind, data in parts
    ]
    return b"\x89PNG\r\n\x1a\n" + b"".join(chunks)


def gif(screen: tuple[int, int], frame: tuple[int, int]) -> bytes:
    """Returns a GIF that says how large its screen and its only frame are."""
    head = b"GIF89a" + struct.pack("<HHBBB", *screen, 0, 0, 0)
    return head + b",\0\0\0\0" + struct.pack("<HHB", *frame, 0) + b"\2\2\x4c\1\0;"


def image(kind: str) -> bytes:
    """Returns an encoded image of some 60,000 x 60,000 pixels, or a small one with very much behind its pixels."""
    width = height = 60_000
    if kind == "png":
        return png(width, height, zlib_of(64 * MEGA))
    if kind == "png of a few pixels":
        return png(8, 8, zlib_of(GIGA // 4))
    if kind == "png with a text":
        return png(8, 8, zlib_of(72), (b"zTXt", b"a\0\0" + zlib_of(2 * GIGA)))
    if kind == "png with a profile":
        return png(8, 8, zlib_of(72), (b"iCCP", b"a\0\0" + zlib_of(2 * GIGA)))
    if kind == "gif":
        return gif((width, height), (width, height))
    if kind == "gif with a large frame":
        return gif((8, 8), (width, height))
    if kind == "webp":
        return (
            b"RIFF"
            + struct.pack("<I", 30)
            + b"WEBPVP8X"
            + struct.pack("<IBxxx", 10, 0)
            + (16_383).to_bytes(3, "little") * 2
            + bytes(8)
        )
    if kind == "bmp":
        return b"BM" + struct.pack("<IHHIIiiHHIIiiII", 54, 0, 0, 54, 40, width, height, 1, 24, 0, 0, 0, 0, 0, 0)
    from PIL import Image

    stream = io.BytesIO()
    Image.new("RGB", (16, 16)).save(stream, kind)
    data = stream.getvalue()
    if kind == "jpeg":
        at = data.index(b"\xff\xc0")
        return data[: at + 5] + struct.pack(">HH", 65_535, 65_535) + data[at + 9 :]
    for tag in (256, 257):  # ImageWidth and ImageLength of a TIFF
        at = data.index(
            struct.pack("<HH", tag, 4 if struct.pack("<HHI", tag, 4, 1) in data else 3) + struct.pack("<I", 1)
        )
        data = data[:at] + struct.pack("<HHII", tag, 4, 1, width) + data[at + 12 :]
    return data


IMAGES = (
    "png",
    "png of a few pixels",
    "png with a text",
    "png with a profile",
    "jpeg",
    "gif",
    "gif with a large frame",
    "webp",
    "tiff",
    "bmp",
)


def image_in_folder(room: Path, kind: str) -> Path:
    (room / "data").mkdir()
    (room / "data" / f"0.{kind.split()[0]}").write_bytes(image(kind))
    return room / "data"


# -- arrays ------------------------------------------------------------------------------------------------------------


def npy_head(shape: Any, descr: str = "|u1") -> bytes:
    """Returns the head of an .npy file; shape: a tuple, or the text of one."""
    text = f"{{'descr': {descr!r}, 'fortran_order': False, 'shape': {shape}, }}"
    text += " " * (63 - (10 + len(text)) % 64) + "\n"
    return b"\x93NUMPY\1\0" + struct.pack("<H", len(text)) + text.encode()


def npz(room: Path, members: int = 1, size: int = GIGA) -> Path:
    path = room / "data.npz"
    head = npy_head((size // MEGA, MEGA))
    path.write_bytes(zip_of({f"x{number}.npy": (head, size) for number in range(members)}))
    return path


def npz_offsets(room: Path) -> Path:
    path = room / "data.npz"
    members = {"x.values.npy": (npy_head((4,)), 4), "x.offsets.npy": (npy_head((GIGA // 8,), "<i8"), GIGA)}
    path.write_bytes(zip_of(members))
    return path


def npy(room: Path, shape: Any) -> Path:
    path = room / "data.npy"
    path.write_bytes(npy_head(shape) + bytes(80))
    return path


def memmap(room: Path, shape: Any) -> Path:
    (room / "data").mkdir()
    (room / "data" / "x.npy").write_bytes(npy_head(shape) + bytes(80))
    return room / "data"


def idx(room: Path, shape: tuple[int, ...], there: int | None = 80) -> Path:
    """Bytes of zeros; `there` None: as many as promised, gzipped."""
    path = room / ("x-idx1-ubyte" if there is not None else "x-idx1-ubyte.gz")
    head = struct.pack(f">BBBB{len(shape)}I", 0, 0, 8, len(shape), *shape)
    path.write_bytes(head + bytes(there) if there is not None else gzip_of(int(np.prod(shape)), head))
    return path


# -- tar shards --------------------------------------------------------------------------------------------------------


def tar(room: Path, files: dict[str, bytes]) -> Path:
    """Writes a shard of plain files."""
    path = room / "data.tar"
    with tarfile.open(path, "w", format=tarfile.USTAR_FORMAT) as archive:
        for name, data in files.items():
            info = tarfile.TarInfo(name)
            info.size = len(data)
            archive.addfile(info, io.BytesIO(data))
    return path


def tar_of_size(room: Path, size: bytes) -> Path:
    """A shard whose first file says that it is so long: 12 bytes of its header."""
    path = tar(room, {"0.bin": b"x", "1.bin": b"y"})
    data = bytearray(path.read_bytes())
    data[124:136], data[148:156] = size, b" " * 8
    data[148:156] = b"%06o\0 " % sum(data[:512])
    path.write_bytes(data)
    return path


def tar_of_endings(room: Path) -> Path:
    """Each file a sample and a column of its own: a table of them grows with the square of the shard."""
    return tar(room, {f"{number}.{number}": b"" for number in range(15_000)})


def tar_with_index(room: Path, change: Callable[[Any], None]) -> Path:
    """A shard with an index beside it, whose numbers [length, samples, columns, ...] were changed."""
    from headrace.data.formats.tar.kept_index import MAGIC, keep_index

    path = tar(room, {"0.bin": b"x", "1.bin": b"y"})
    keep_index(path)
    index = Path(f"{path}.index")
    data = index.read_bytes()
    whole = np.frombuffer(data, np.uint8)[16:].copy()
    numbers = whole[: len(whole) // 8 * 8].view("<i8")
    change(numbers)
    index.write_bytes(MAGIC + zlib.crc32(whole.tobytes()).to_bytes(8, "little") + whole.tobytes())
    return path


def no_more(numbers: Any) -> None:
    """Sizes of files: length, samples, columns, names, endings, name_ends [3], starts [2], sizes [2]."""
    numbers[10:12] = 40 * GIGA


def far_away(numbers: Any) -> None:
    numbers[8:10] = HUGE


def many_samples(numbers: Any) -> None:
    numbers[1], numbers[2] = HUGE, 0


# -- .pt files ---------------------------------------------------------------------------------------------------------


class Made:
    """Unpickled by a call that is allowed, with an argument that should not be."""

    def __init__(self, call: Any, *given: Any) -> None:
        self.made = call, given

    def __reduce__(self) -> Any:
        return self.made


def pt(room: Path, sample: Any) -> Path:
    (room / "data").mkdir()
    torch.save(sample, room / "data" / "0.pt")
    return room / "data"


def pt_packed(room: Path, count: int = GIGA + GIGA // 2) -> Path:
    """A tensor of zeros, deflated."""
    path = pt(room, {"x": torch.zeros(MEGA, dtype=torch.uint8)})
    with zipfile.ZipFile(path / "0.pt") as archive:
        members = {name: (archive.read(name), 0) for name in archive.namelist()}
    for name, (data, _) in members.items():
        if name.endswith("data.pkl"):
            members[name] = data.replace(b"J" + struct.pack("<I", MEGA), b"J" + struct.pack("<I", count)), 0
        elif name.endswith("data/0"):
            members[name] = b"", count
    (path / "0.pt").write_bytes(zip_of(members))
    return path


def pt_spread(room: Path) -> Path:
    return pt(room, {"x": torch.zeros(1).expand(40 * GIGA)})


def pt_of_lists(room: Path) -> Path:
    nested: list[Any] = [1.0] * 10
    for _ in range(10):
        nested = [nested] * 10
    return pt(room, {"x": nested})


def pt_of_itself(room: Path) -> Path:
    nested: list[Any] = []
    nested += [nested, nested]
    return pt(room, {"x": nested})


def pt_of_bytes(room: Path) -> Path:
    return pt(room, {"x": Made(bytearray, 3 * GIGA)})


def pt_of_new(room: Path) -> Path:
    return pt(room, {"x": Made(torch.Tensor, 3 * GIGA)})


# -- HDF5 --------------------------------------------------------------------------------------------------------------


def hdf5(room: Path, shape: tuple[int, ...], chunks: tuple[int, ...] | None, packed: int = 0, **more: Any) -> Path:
    """A dataset `x` of zeros that are not there, but for a first chunk of `packed` zeros; more: other datasets."""
    import h5py

    path = room / "data.h5"
    with h5py.File(path, "w") as file:
        data = file.create_dataset("x", shape, np.uint8, chunks=chunks, compression="gzip" if packed else None)
        if packed:
            data.id.write_direct_chunk((0,) * len(shape), zlib_of(packed))
        for name, given in more.items():
            file.create_dataset(name, given, np.uint8, chunks=given)
    return path


# -- others ------------------------------------------------------------------------------------------------------------


def lmdb(room: Path, length: int) -> Path:
    """A database that says of itself that it holds so many samples."""
    import lmdb as library

    path = room / "data"
    schema = [{"name": "x", "kind": "bytes"}]
    with library.open(str(path), map_size=MEGA) as environment, environment.begin(write=True) as transaction:
        transaction.put(b"000000000.x", b"abc")
        transaction.put(b"__headrace__", json.dumps({"length": length, "schema": schema}).encode())
    return path


def tensordict(room: Path, shape: list[int]) -> Path:
    import tensordict as library

    path = room / "data"
    library.TensorDict({"x": torch.zeros(4, 2)}, [4]).memmap(str(path))
    meta = json.loads((path / "meta.json").read_text())
    meta["x"]["shape"] = shape
    (path / "meta.json").write_text(json.dumps(meta | {"shape": shape[:1]}))
    return path
