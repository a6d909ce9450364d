"""Frames: however a stream of bytes is cut on its way, the same records come out."""

from __future__ import annotations

import struct
from itertools import pairwise
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.core.errors import UsageError
from headrace.sources.brokers.frames import Frames, frames

LARGEST = 1000
LINES = st.lists(st.binary(max_size=30).map(lambda line: line.replace(b"\n", b" ").replace(b"\r", b" ")), max_size=8)
CUTS = st.lists(st.integers(0, 300), max_size=6)


def fed(cutting: Frames, data: bytes, cuts: list[int]) -> list[bytes]:
    """Feeds the data in pieces, cut at these places."""
    places = [0, *sorted(cut for cut in cuts if cut < len(data)), len(data)]
    records: list[bytes] = []
    for start, stop in pairwise(places):
        records += cutting.feed(data[start:stop])
    return records


@given(LINES, CUTS, st.sampled_from([b"\n", b"\r\n"]), st.binary(max_size=5).map(lambda rest: rest.replace(b"\n", b"")))
def test_lines_that_are_not_empty_come_out_whole_without_their_ends(
    lines: list[bytes], cuts: list[int], end: bytes, rest: bytes
) -> None:
    cutting = frames("lines", LARGEST)
    found = fed(cutting, b"".join(line + end for line in lines) + rest, cuts)
    assert found == [line for line in lines if line]
    assert cutting.unfinished == len(rest)
    assert cutting.error is None


@given(st.lists(st.binary(max_size=60), max_size=8), CUTS, st.binary(max_size=3))
def test_records_with_lengths_come_out_whole(records: list[bytes], cuts: list[int], rest: bytes) -> None:
    cutting = frames("length", LARGEST)
    data = b"".join(struct.pack(">I", len(record)) + record for record in records)
    assert fed(cutting, data + rest, cuts) == records
    assert cutting.unfinished == len(rest)
    assert cutting.error is None


@pytest.mark.parametrize(
    ("frame", "data", "before"),
    [
        ("length", b"\0\0\0\2okGET / HTTP/1.1", [b"ok"]),
        ("length", b"\xff\xff\xff\xff", []),
        ("lines", b"ok\n" + bytes(2000), [b"ok"]),
        ("arrow", b"GET / HTTP/1.1", []),
        ("arrow", b"\xff\xff\xff\xff\xff\xff\xff\x7f", []),
        ("arrow", b"\xff\xff\xff\xff\x08\0\0\0" + b"\xee" * 8, []),
    ],
)
def test_wrong_frames_are_told_and_nothing_is_kept_for_them(frame: Any, data: bytes, before: list[bytes]) -> None:
    cutting = frames(frame, LARGEST)
    assert fed(cutting, data, [1, 5]) == before
    assert cutting.error is not None


def test_another_way_to_frame_is_refused() -> None:
    with pytest.raises(UsageError, match="'json'"):
        frames("json", LARGEST)  # type: ignore[arg-type]


def stream_of(table: pa.Table, rows_at_once: int) -> bytes:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema) as writer:
        for batch in table.to_batches(max_chunksize=rows_at_once):
            writer.write_batch(batch)
    found: bytes = sink.getvalue().to_pybytes()
    return found


@given(CUTS, st.integers(1, 4))
@settings(deadline=None)
def test_rows_of_arrow_streams_come_out_as_streams_of_one_row(cuts: list[int], rows_at_once: int) -> None:
    words = pa.array(["a", "b", "a", None, "c"]).dictionary_encode()
    table = pa.table(
        {"n": pa.array([1, 2, 3, 4, None]), "word": words, "x": pa.array([[1.5], [], [2.0, 3.0], None, [4]])}
    )
    other = pa.table({"other": pa.array([b"bytes"])})
    cutting = frames("arrow", 1 << 20)
    records = fed(cutting, stream_of(table, rows_at_once) + stream_of(other, 1), cuts)
    assert cutting.error is None
    assert cutting.unfinished == 0
    decoded = [pa.ipc.open_stream(record).read_all() for record in records]
    assert [row.num_rows for row in decoded] == [1] * 6
    assert [row.to_pylist()[0] for row in decoded[:5]] == table.to_pylist()
    assert decoded[0].schema == table.schema
    assert decoded[5].to_pylist() == [{"other": b"bytes"}]
