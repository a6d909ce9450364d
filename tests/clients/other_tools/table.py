"""The table at the end of a run."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from tests.clients.other_tools.comparison import Outcome
from tests.clients.other_tools.tools import Tool

RESULTS = ("equal", "refused", "told", "fault")


@dataclass(frozen=True)
class Row:
    """What came of the files of one tool."""

    form: str
    writer: str
    values: int
    results: Counter[str]

    @classmethod
    def of(cls, tool: Tool, outcomes: Sequence[Outcome]) -> Row:
        """Counts outcomes: kinds of values by result, and all values together."""
        values = sum(len(outcome.written.values) for outcome in outcomes)
        return cls(tool.form, tool.writer, values, Counter(outcome.result for outcome in outcomes))

    @property
    def kinds(self) -> int:
        """How many kinds of values, each in a file of its own."""
        return self.results.total()


LEAST_READ: Mapping[str, int] = {
    "npy-numpy.save": 45,
    "npz-numpy.savez": 81,
    "npz-zipfile": 6,
    "memmap-numpy.save": 40,
    "idx-bytes as of MNIST": 22,
    "pt-torch.save": 25,
    "tensordict-TensorDict.memmap": 18,
    "arrow-pyarrow file": 78,
    "arrow-pyarrow stream": 78,
    "arrow-pyarrow layouts": 27,
    "parquet-pyarrow": 76,
    "parquet-pyarrow, without Arrow's schema": 82,
    "parquet-pyarrow layouts": 67,
    "csv-csv module": 108,
    "csv-spreadsheets, by hand": 22,
    "csv-pandas.to_csv": 21,
    "csv-polars, pyarrow, duckdb": 28,
    "csv-several files": 3,
    "folder-text files": 4,
    "folder-files by hand": 26,
    "arrow-polars": 91,
    "arrow-polars stream": 30,
    "parquet-polars": 30,
    "parquet-pandas": 24,
    "arrow-pandas feather": 24,
    "parquet-fastparquet": 41,
    "parquet-duckdb": 45,
    "hdf5-h5py": 63,
    "hdf5-h5py, kinds of types below NumPy's": 2,
    "hdf5-hdf5plugin": 8,
    "hdf5-h5py, structures": 12,
    "hdf5-PyTables": 8,
    "hdf5-pandas.to_hdf": 0,
    "hdf5-netCDF4, xarray": 6,
    "folder-Pillow, modes": 81,
    "folder-Pillow, options": 58,
    "folder-OpenCV": 32,
    "folder-tifffile": 16,
    "folder-ImageMagick": 71,
    "jsonl-json module": 27,
    "jsonl-lines, by hand": 10,
    "jsonl-pandas, polars, duckdb": 41,
    "arrow-pyarrow, at random": 66,
    "parquet-pyarrow, at random": 35,
    "parquet-pyarrow, several files": 14,
    "arrow-pyarrow, several files": 14,
    "jsonl-json module, several files": 2,
    "several-something beside the column": 22,
    "lmdb-lmdb": 9,
    "huggingface-save_to_disk": 29,
    "webdataset-GNU tar": 28,
    "webdataset-bsdtar": 11,
    "webdataset-tarfile": 41,
    "webdataset-webdataset": 13,
}
"""For each tool: of how many kinds headrace reads the values, at least. To refuse more and more is no way to be right.

A tenth fewer than were read when this was written: newer versions of the tools write some kinds otherwise.
"""

ROWS: list[Row] = []
"""In the order in which the tests ran."""


def lines() -> list[str]:
    """Returns the table as text, with a line for all together."""
    found = [f"{'form':<12} {'writer':<34} {'kinds':>6} {'values':>7} " + " ".join(f"{one:>8}" for one in RESULTS)]
    total = sum((row.results for row in ROWS), Counter[str]())
    for row in [*ROWS, Row("all", "", sum(row.values for row in ROWS), total)]:
        counts = " ".join(f"{row.results[one]:>8}" for one in RESULTS)
        found.append(f"{row.form:<12} {row.writer:<34} {row.kinds:>6} {row.values:>7} {counts}")
    return found
