"""Samples of a tar shard that follow each other are located the short way, with the same result as the long way."""

from __future__ import annotations

import io
import tarfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from headrace.core.errors import FormatError
from headrace.data.formats.columns import Block
from headrace.data.formats.registry import open_reader
from headrace.data.formats.tar.sample_reader import TarReader, new_bytes

SIZES = {
    "alike": [100] * 12,
    "of all sizes": [0, 1, 511, 512, 513, 5, 70_000, 0, 3, 200_000, 9, 1],
    "far apart": [10, 20, 30, 40, 50, 60, 70, 80, 90, 100, 110, 120],
}
KEYS = [range(12), range(3, 9), range(5, 6), range(0), [4, 2, 7], [3, 3, 4], [0, 5, 11], [2, 4, 3, 5]]


def shard(path: Path, sizes: list[int], *, between: int = 0, without: int | None = None) -> str:
    """Writes samples `key-NUMBER` with the files `b`, of `between` bytes, and `a`, of these sizes."""
    with tarfile.open(path, "w", format=tarfile.USTAR_FORMAT) as file:
        for number, size in enumerate(sizes):
            for ending, content in (("b", b"x" * between), ("a", bytes([number]) * size)):
                if ending == "a" and number == without:
                    continue
                info = tarfile.TarInfo(f"key-{number}.{ending}")
                info.size = len(content)
                file.addfile(info, io.BytesIO(content))
    return str(path)


def seen(block: Block) -> list[tuple[Any, ...]]:
    return [(row["__key__"], row["a"]) for row in block]


def pieces(reader: TarReader, keys: Any) -> list[tuple[Any, ...]]:
    return seen(reader.fetch_pieces([(0, np.array(keys, np.int64))], ["__key__", "a"], new_bytes))


@pytest.mark.parametrize("keys", KEYS, ids=str)
@pytest.mark.parametrize("sizes", SIZES)
def test_samples_are_those_that_were_written(sizes: str, keys: Any, tmp_path: Path) -> None:
    between = 100_000 if sizes == "far apart" else 7
    reader: Any = open_reader(shard(tmp_path / "some.tar", SIZES[sizes], between=between))
    expected = [(f"key-{number}", bytes([number]) * SIZES[sizes][number]) for number in keys]
    assert pieces(reader, keys) == expected
    block = reader.fetch(np.array(keys, np.int64), ["__key__", "a"])
    assert seen(block) == expected
    # The names are memory of their own, end to end: a step may change them.
    assert block.columns["__key__"].offsets[0] == 0
    assert block.columns["__key__"].values.flags.writeable


def test_the_short_way_is_taken_by_neighbours_and_reads_them_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    reader: Any = open_reader(shard(tmp_path / "some.tar", SIZES["of all sizes"]))
    runs: list[Any] = []
    read = reader.files.read
    monkeypatch.setattr(reader.files, "read", lambda wanted, out: (runs.append(wanted), read(wanted, out)))
    pieces(reader, range(2, 10))
    wanted = reader.schema.only(["a"]).fields
    short = reader._locate_neighbours((0, np.arange(2, 10), np.arange(8)), wanted[0])
    monkeypatch.setattr(TarReader, "_locate_neighbours", lambda *_: None)
    long = reader._locate([(0, np.arange(2, 10), np.arange(8))], 8, wanted)
    assert (len(runs[0]), runs[0]) == (1, long[2])
    assert all(np.array_equal(one, other) for one, other in zip(short, long, strict=True))


@pytest.mark.parametrize("first", [2, 4])
def test_a_sample_without_the_file_is_an_error_that_names_it(first: int, tmp_path: Path) -> None:
    reader: Any = open_reader(shard(tmp_path / "some.tar", [5] * 6, without=4))
    assert len(pieces(reader, range(4))) == 4
    with pytest.raises(FormatError, match=r"no key-4\.a"):
        pieces(reader, range(first, 6))
