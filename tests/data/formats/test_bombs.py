"""Data that ask for far more memory than they hold are refused before it is taken; what is only large is read."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import headrace
from headrace.core.errors import FormatError
from headrace.data.formats.guards import limits
from tests.data.formats import bombs, table_bombs
from tests.data.formats.bombs import GIGA, HUGE, MEGA
from tests.pairs import in_turn

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="measures memory as Linux tells it")

ROOM = 768 * MEGA
OUT_OF_MEMORY = re.compile("MemoryError|[Aa]llocat|alloc of")


@pytest.fixture(scope="module")
def ask() -> Iterator[Callable[[Path], dict[str, Any]]]:
    """Has data read by a process with little memory; see `hungry`."""
    command = [sys.executable, "-m", "tests.data.formats.hungry"]
    root = Path(__file__).parents[3]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=root) as process:
        assert process.stdin is not None
        assert process.stdout is not None

        def asked(path: Path) -> dict[str, Any]:
            process.stdin.write(json.dumps({"path": str(path), "room": ROOM}) + "\n")
            process.stdin.flush()
            return json.loads(process.stdout.readline())

        yield asked
        process.stdin.close()
        assert process.wait(30) == 0


MANY = "(1000000000000,)"
SHAPES = ("(9223372036854775808,)", "(-5,)", "(-1, -1)", "(4611686018427387904, 4)", "(1000000000000, 0)")


def npz_of_head(room: Path, shape: str) -> Path:
    path = room / "data.npz"
    path.write_bytes(bombs.zip_of({"x.npy": (bombs.npy_head(shape), 80)}))
    return path


def npy_in_tar(room: Path, shape: str) -> Path:
    return bombs.tar(room, {"0.npy": bombs.npy_head(shape) + bytes(80)})


NPY = {"npy in tar": npy_in_tar, "npy": bombs.npy, "memmap": bombs.memmap, "npz": npz_of_head}
"""What holds .npy files: one function reads the heads of all."""


def cases() -> dict[str, Callable[[Path], Path]]:
    """Returns what writes each of the bad data."""
    found: dict[str, Callable[[Path], Path]] = {}
    for kind in bombs.IMAGES:
        found[f"image, {kind}"] = lambda room, kind=kind: bombs.image_in_folder(room, kind)
    for form, shape in [*((form, MANY) for form in NPY), *in_turn(NPY, SHAPES)]:
        found[f"{form} {shape}"] = lambda room, form=form, shape=shape: NPY[form](room, shape)
    for size in (b"77777777777\0", b"\x80\0\0\0" + HUGE.to_bytes(8, "big"), b"\xff" * 12):
        found[f"tar of {size!r}"] = lambda room, size=size: bombs.tar_of_size(room, size)
    for change in (bombs.no_more, bombs.far_away, bombs.many_samples):
        found[f"tar index, {change.__name__}"] = lambda room, change=change: bombs.tar_with_index(room, change)
    for shape in ([HUGE, 2], [2**40, 2**40], [2**63, 2], [-4, 2], [-4, -2]):
        found[f"tensordict {shape}"] = lambda room, shape=shape: bombs.tensordict(room, shape)
    for length in (2, HUGE, 2**62):
        found[f"lmdb {length}"] = lambda room, length=length: bombs.lmdb(room, length)
    more: list[Callable[[Path], Path]] = [
        bombs.npz, bombs.npz_offsets, bombs.tar_of_endings, bombs.pt_packed, bombs.pt_spread, bombs.pt_of_lists,
        bombs.pt_of_itself, bombs.pt_of_bytes, bombs.pt_of_new, table_bombs.csv_of_columns, table_bombs.json_in_depth,
        table_bombs.json_of_keys, table_bombs.arrow_packed, table_bombs.arrow_promise, table_bombs.arrow_dictionary,
        table_bombs.arrow_wrong_dictionary, table_bombs.arrow_views, table_bombs.arrow_wrong_views,
        table_bombs.saved_packed, table_bombs.parquet_of_rows, table_bombs.parquet_of_words,
        table_bombs.parquet_of_prefixes, table_bombs.parquet_page, table_bombs.parquet_of_lists,
    ]  # fmt: skip
    return found | {one.__name__: one for one in more} | {
        "npz, many members": lambda room: bombs.npz(room, 6, 256 * MEGA),
        "idx": lambda room: bombs.idx(room, (0xFFFFFFFF, 0xFFFFFFFF)),
        "idx, gzip": lambda room: bombs.idx(room, (1024, MEGA), None),
        "arrow stream": lambda room: table_bombs.arrow_packed(room, stream=True),
        "hdf5, 2**62 samples": lambda room: bombs.hdf5(room, (2**62,), (MEGA,)),
        "hdf5, a chunk": lambda room: bombs.hdf5(room, (GIGA,), (GIGA,), GIGA),
        "hdf5, a sample": lambda room: bombs.hdf5(room, (4, HUGE), None),
        "hdf5, a sample in chunks": lambda room: bombs.hdf5(room, (4, 3 * GIGA), (1, MEGA)),
    }  # fmt: skip


BAD = cases()
HARMLESS = ("png of a few pixels", "png with a text", "png with a profile")
LATE = ("pt_of_bytes", "pt_of_new")
"""What torch makes before we see it, of memory that nobody has touched yet."""


@pytest.mark.thorough
@pytest.mark.parametrize("case", [case for case in BAD if not case.endswith(HARMLESS)])
def test_what_asks_for_too_much_is_refused_before_memory_is_taken(case: str, ask: Any, tmp_path: Path) -> None:
    answer = ask(BAD[case](tmp_path))
    assert answer["status"] == 0, answer
    assert answer["error"] in ("FormatError", "SampleError", "MachineError"), answer
    assert "place:" in answer["text"]
    assert "fix:" in answer["text"]
    assert case in LATE or not OUT_OF_MEMORY.search(answer["text"]), answer
    assert answer["grown"] <= ROOM, answer


@pytest.mark.thorough
@pytest.mark.parametrize("kind", HARMLESS)
def test_what_lies_behind_the_pixels_of_an_image_is_not_kept(kind: str, ask: Any, tmp_path: Path) -> None:
    answer = ask(bombs.image_in_folder(tmp_path, kind))
    assert (answer["error"], answer["text"], answer["status"]) == (None, "1", 0)
    assert answer["grown"] <= 64 * MEGA


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("count", "make"),
    [
        (HUGE, lambda room: bombs.hdf5(room, (HUGE,), (MEGA,))),
        (HUGE, lambda room: bombs.hdf5(room, (HUGE, 8), (MEGA // 16, 8), MEGA // 2)),
        (HUGE, lambda room: bombs.hdf5(room, (HUGE,), None)),
        (1000, lambda room: bombs.hdf5(room, (1000, 3 * MEGA), (1, MEGA), y=(1000,))),
        (64, lambda room: bombs.npz(room, size=64 * MEGA)),
        (64, lambda room: bombs.idx(room, (64, MEGA), None)),
    ],
    ids=["chunks", "chunks of rows", "never written", "chunks of other lengths", "npz", "idx"],
)
def test_what_is_only_large_is_read(count: int, make: Callable[[Path], Path], ask: Any, tmp_path: Path) -> None:
    answer = ask(make(tmp_path))
    assert (answer["error"], answer["text"], answer["status"]) == (None, str(count), 0)


FORMS: dict[str, Callable[[Path], Path]] = {
    "npz": lambda room: bombs.npz(room, size=4 * MEGA),
    "idx": lambda room: bombs.idx(room, (4, MEGA), None),
    "arrow": lambda room: table_bombs.arrow_packed(room, size=4 * MEGA),
    "huggingface": lambda room: table_bombs.saved_packed(room, size=4 * MEGA),
    "words": lambda room: table_bombs.arrow(room, table_bombs.words_of("x" * 1000, 10_000)),
    "parquet": lambda room: table_bombs.parquet_of_lists(room, 4 * MEGA),
    "pt": lambda room: bombs.pt_packed(room, 4 * MEGA),
    "hdf5": lambda room: bombs.hdf5(room, (4 * MEGA,), (4 * MEGA,), 4 * MEGA),
}


@pytest.mark.thorough
@pytest.mark.parametrize("form", FORMS)
def test_trust_lifts_the_limit(form: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = FORMS[form](tmp_path)
    monkeypatch.setattr(limits, "FREE", MEGA)
    with pytest.raises(FormatError, match="trust=True"):
        headrace.open(path)[0]
    assert len(headrace.open(path, trust=True)[0]) == 1
    monkeypatch.undo()
    assert len(headrace.open(path)[0]) == 1


@pytest.mark.thorough
@pytest.mark.parametrize("codec", ["zstd", "lz4", "none"])
def test_a_long_word_among_many_short_ones_is_read(codec: str, tmp_path: Path) -> None:
    """Every row could be the long one, as far as headers tell: such columns are read a few rows at a time."""
    words = ["short"] * 10_000
    words[5] = "x" * 100_000
    pq.write_table(pa.table({"n": range(10_000), "x": words}), tmp_path / "data.parquet", compression=codec)
    for columns in (None, ["x"]):
        samples = headrace.open(tmp_path / "data.parquet", columns=columns).__getitems__(range(10_000))
        assert [sample["x"] for sample in samples] == words
