"""Small tables, of Arrow, Parquet and text, that unfold to far more than they should; see `bombs`."""

from __future__ import annotations

import struct
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from tests.data.formats.bombs import GIGA, MEGA, NOTHING, PIECE

# -- Arrow -------------------------------------------------------------------------------------------------------------


def arrow(room: Path, *batches: pa.RecordBatch, packed: str | None = None, stream: bool = False) -> Path:
    path = room / "data.arrow"
    options = pa.ipc.IpcWriteOptions(compression=packed)
    begin = pa.ipc.new_stream if stream else pa.ipc.new_file
    with begin(str(path), batches[0].schema, options=options) as writer:
        for batch in batches:
            writer.write_batch(batch)
    return path


def batch_of(column: pa.Array) -> pa.RecordBatch:
    return pa.RecordBatch.from_arrays([column], ["x"])


def arrow_packed(room: Path, stream: bool = False, size: int = GIGA + GIGA // 2) -> Path:
    """Zeros in six batches."""
    return arrow(room, *[batch_of(pa.array(np.zeros(size // 6, np.uint8)))] * 6, packed="zstd", stream=stream)


def arrow_promise(room: Path) -> Path:
    """A compressed buffer that says that it unfolds to 40 GiB."""
    path = arrow(room, batch_of(pa.array(np.zeros(MEGA, np.uint8))), packed="zstd")
    data = path.read_bytes()
    path.write_bytes(
        data.replace(struct.pack("<q", MEGA) + b"\x28\xb5\x2f\xfd", struct.pack("<q", 40 * GIGA) + b"\x28\xb5\x2f\xfd")
    )
    return path


def arrow_dictionary(room: Path) -> Path:
    """A long word, named a million times."""
    return arrow(room, words_of("x" * MEGA, MEGA))


def words_of(word: str, count: int) -> pa.RecordBatch:
    """Returns a batch that names one word so many times."""
    return batch_of(pa.DictionaryArray.from_arrays(pa.array(np.zeros(count, np.int8)), pa.array([word])))


def saved_packed(room: Path, size: int = GIGA + GIGA // 2) -> Path:
    """The same zeros as `arrow_packed`, as the file of a Hugging Face dataset."""
    import datasets

    datasets.Dataset.from_dict({"x": [1, 2]}).cast_column("x", datasets.Value("uint8")).save_to_disk(str(room / "data"))
    file = next((room / "data").glob("*.arrow"))
    arrow_packed(room, stream=True, size=size).rename(file)
    return room / "data"


def arrow_wrong_dictionary(room: Path) -> Path:
    numbers = pa.DictionaryArray.from_arrays(pa.array([0, 1 << 30, -5], pa.int32()), pa.array(["a", "b"]), safe=False)
    return arrow(room, batch_of(numbers))


def arrow_views(room: Path) -> Path:
    """A hundred thousand views of one mebibyte."""
    view = struct.pack("<i4sii", MEGA, b"xxxx", 0, 0)
    buffers = [None, pa.py_buffer(view * 100_000), pa.py_buffer(b"x" * MEGA)]
    return arrow(room, batch_of(pa.Array.from_buffers(pa.string_view(), 100_000, buffers)))


def arrow_wrong_views(room: Path) -> Path:
    view = struct.pack("<i4sii", 4096, b"xxxx", 0, 1 << 30)
    buffers = [None, pa.py_buffer(view * 10), pa.py_buffer(b"x" * 100)]
    return arrow(room, batch_of(pa.Array.from_buffers(pa.string_view(), 10, buffers)))


# -- Parquet, by hand: parquet.thrift in Thrift's compact protocol -----------------------------------------------------


def varint(value: int) -> bytes:
    out = b""
    while value > 0x7F:
        out, value = out + bytes([value & 0x7F | 0x80]), value >> 7
    return out + bytes([value])


def thrift(**fields: Any) -> bytes:
    """Returns a struct; fields: `_ID=value`, whole numbers (of 64 bits), bytes, structs and lists of one of them."""
    out, last = b"", 0
    for name, value in fields.items():
        number = int(name[1:])
        kind, data = _encoded(value)
        out, last = out + bytes([(number - last) << 4 | kind]) + data, number
    return Struct(out + b"\0")


class Struct(bytes):
    """An encoded struct."""


def _encoded(value: Any) -> tuple[int, bytes]:
    if isinstance(value, Struct):
        return 12, value
    if isinstance(value, bytes):
        return 8, varint(len(value)) + value
    if isinstance(value, list):
        parts = [_encoded(one) for one in value]
        size = (
            bytes([len(parts) << 4 | parts[0][0]])
            if len(parts) < 15
            else bytes([0xF0 | parts[0][0]]) + varint(len(parts))
        )
        return 9, size + b"".join(data for _, data in parts)
    kind, plain = (5, int(value)) if isinstance(value, Short) else (6, value)
    return kind, varint(plain << 1 if plain >= 0 else (-plain << 1) - 1)


class Short(int):
    """A number of 32 bits."""


def page(kind: int, content: bytes, unpacked: int, count: int, encoding: int) -> bytes:
    """Returns a page; kind: 0 data, 2 dictionary."""
    about = thrift(_1=Short(count), _2=Short(encoding), **({"_3": Short(3), "_4": Short(3)} if kind == 0 else {}))
    where = "_5" if kind == 0 else "_7"
    return thrift(_1=Short(kind), _2=Short(unpacked), _3=Short(len(content)), **{where: about}) + content


def parquet(room: Path, kind: int, rows: int, pages: bytes, dictionary: bytes = b"", values: int | None = None) -> Path:
    """One column `x`; kind: 2 int64, 6 bytes. values: not `rows`, if it is a column of lists."""
    path, start, count = room / "data.parquet", 4 + len(dictionary), rows if values is None else values
    named = [b"x"] if values is None else [b"x", b"list", b"element"]
    size = len(dictionary) + len(pages)
    extra = {"_11": 4} if dictionary else {}
    about = thrift(_1=Short(kind), _2=[Short(0)], _3=named, _4=Short(6), _5=count, _6=size, _7=size, _9=start, **extra)
    leaf = thrift(_1=Short(kind), _3=Short(0), _4=named[-1])
    schema = [thrift(_4=b"schema", _5=Short(1))]
    if values is not None:
        schema += [thrift(_3=Short(0), _4=b"x", _5=Short(1), _6=Short(3)), thrift(_3=Short(2), _4=b"list", _5=Short(1))]
    group = thrift(_1=[thrift(_2=4, _3=about)], _2=size, _3=rows)
    footer = thrift(_1=Short(1), _2=[*schema, leaf], _3=rows, _4=[group])
    path.write_bytes(b"PAR1" + dictionary + pages + footer + struct.pack("<I", len(footer)) + b"PAR1")
    return path


def zstd_of(count: int, head: bytes = b"") -> bytes:
    codec = pa.Codec("zstd")
    piece = codec.compress(NOTHING, asbytes=True)
    rest = codec.compress(bytes(count % PIECE), asbytes=True)
    return codec.compress(head, asbytes=True) + piece * (count // PIECE) + rest


def run_of(count: int, value: bytes) -> bytes:
    """Returns a run of one number, so many times."""
    return varint(count << 1) + value


def parquet_of_rows(room: Path) -> Path:
    """Eight thousand million rows that are all the same."""
    count, content = GIGA, b"\1" + run_of(GIGA, b"\0")
    data = pa.Codec("zstd").compress(content, asbytes=True)
    dictionary = page(2, pa.Codec("zstd").compress(bytes(8), asbytes=True), 8, 1, 0)
    return parquet(room, 2, 8 * count, page(0, data, len(content), count, 8) * 8, dictionary)


def parquet_of_words(room: Path) -> Path:
    """A thousand rows of one word of 64 MiB."""
    count, size, content = 1000, 64 * MEGA, b"\1" + run_of(1000, b"\0")
    data = pa.Codec("zstd").compress(content, asbytes=True)
    dictionary = page(2, zstd_of(size, struct.pack("<I", size)), size + 4, 1, 0)
    return parquet(room, 6, count, page(0, data, len(content), count, 8), dictionary)


def parquet_of_prefixes(room: Path) -> Path:
    """A thousand rows that repeat the 16 MiB of the first one, by DELTA_BYTE_ARRAY."""
    count, size, start = 1024, PIECE, b"\x80\1\4\x80\x08"  # blocks of 128 in 4 parts; 1,024 values
    rest = b"\0\0\0\0\0" * 7  # blocks without differences
    prefixes = start + b"\0" + b"\0\x20\0\0\0" + struct.pack("<32I", size, *[0] * 31) + rest
    differences = struct.pack("<128I", 0, *[size] * 127)
    suffixes = start + varint(2 * size) + varint(2 * size - 1) + b"\x20" * 4 + differences + rest
    head = prefixes + suffixes
    return parquet(room, 6, count, page(0, zstd_of(size, head), size + len(head), count, 7))


def parquet_page(room: Path) -> Path:
    """Eight numbers, in a page of 2 GiB."""
    size = 2 * GIGA - 2 * MEGA
    return parquet(room, 2, 8, page(0, zstd_of(size), size, 8, 0))


def parquet_of_lists(room: Path, count: int = GIGA) -> Path:
    """One list of so many numbers."""
    levels = run_of(1, b"\0") + run_of(count - 1, b"\1")
    defined = run_of(count, b"\1")
    content = (
        struct.pack("<I", len(levels))
        + levels
        + struct.pack("<I", len(defined))
        + defined
        + b"\1"
        + run_of(count, b"\0")
    )
    data = pa.Codec("zstd").compress(content, asbytes=True)
    dictionary = page(2, pa.Codec("zstd").compress(bytes(8), asbytes=True), 8, 1, 0)
    return parquet(room, 2, 1, page(0, data, len(content), count, 8), dictionary, values=count)


# -- text --------------------------------------------------------------------------------------------------------------


def csv_of_columns(room: Path) -> Path:
    path = room / "data.csv"
    names = ",".join(f"{number:x}" for number in range(2_000_000))
    path.write_text(f"{names}\n{'1,' * 1_999_999}1\n")
    return path


def json_in_depth(room: Path) -> Path:
    path = room / "data.jsonl"
    path.write_text('{"a":' + "[" * 1_000_000 + "]" * 1_000_000 + "}\n")
    return path


def json_of_keys(room: Path) -> Path:
    path = room / "data.jsonl"
    path.write_text("{" + ",".join(f'"{number:x}":1' for number in range(1_000_000)) + "}\n")
    return path
