"""What other tools have written is read as the form's own library reads it, or refused, or told; never else.

At the end of a run stands a table: how many values of which form and writer were compared, and what came of them.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import headrace
from tests.clients.other_tools import every_tool
from tests.clients.other_tools.comparison import Written, judged
from tests.clients.other_tools.table import LEAST_READ, ROWS, Row
from tests.clients.other_tools.tools import TOOLS, Tool

pytestmark = [
    pytest.mark.clients,
    pytest.mark.timeout(120),
    # Of the tools themselves.
    pytest.mark.filterwarnings("ignore"),
]


@pytest.mark.parametrize("tool", TOOLS, ids=str)
def test_each_value_is_read_as_its_own_library_reads_it_or_refused_or_told(tool: Tool, tmp_path: Path) -> None:
    every_tool.skip_if_missing(tool)
    outcomes = [judged(written) for written in tool.write(tmp_path)]
    ROWS.append(Row.of(tool, outcomes))
    faults = "\n".join(str(outcome) for outcome in outcomes if outcome.result == "fault")
    equal = sum(outcome.result == "equal" for outcome in outcomes)
    assert faults == ""
    assert equal >= LEAST_READ[str(tool)]


@pytest.mark.parametrize(
    ("values", "column"),
    [
        ([0, 1, 3], "data"),
        ([0, 1], "data"),
        ([0.0, 1.0, 2.0], "data"),
        ([np.int32(0), np.int32(1), np.int32(2)], "data"),
        (["0", "1", "2"], "data"),
        ([False, True, 2], "data"),
        ([0, 1, None], "data"),
        ([[0], [1], [2]], "data"),
        ([0, 1, 2], "other"),
    ],
)
def test_a_difference_in_value_type_or_name_is_a_fault(values: list[object], column: str, tmp_path: Path) -> None:
    np.save(tmp_path / "x.npy", np.arange(3))
    assert judged(Written("right", tmp_path / "x.npy", [0, 1, 2], "data")).result == "equal"
    assert judged(Written("wrong", tmp_path / "x.npy", values, column)).result == "fault"


@pytest.mark.parametrize(
    ("array", "names", "result"),
    [(np.ones(3, "c8"), ("complex64",), "refused"), (np.ones(3, "c8"), ("another type",), "fault")],
)
def test_an_error_must_name_what_is_refused(
    array: np.ndarray[Any, Any], names: tuple[str, ...], result: str, tmp_path: Path
) -> None:
    np.save(tmp_path / "x.npy", array)
    assert judged(Written("complex", tmp_path / "x.npy", list(array), "missing", names)).result == result


@pytest.mark.parametrize("context", ["fork", "spawn"])
def test_a_worker_unpacks_what_a_plugin_of_hdf5_packed(context: str, tmp_path: Path) -> None:
    tables = pytest.importorskip("tables")
    pytest.importorskip("hdf5plugin")
    values = np.arange(60, dtype="f4")
    with tables.open_file(str(tmp_path / "x.h5"), "w") as file:
        filters = tables.Filters(complevel=5, complib="bzip2", shuffle=True)
        file.create_carray("/", "quality", obj=values, filters=filters, chunkshape=(30,))
    dataset = headrace.open(tmp_path / "x.h5")
    loader = headrace.DataLoader(dataset, 6, num_workers=2, multiprocessing_context=context)
    assert [value for batch in loader for value in batch["quality"].tolist()] == values.tolist()


def test_what_is_left_out_with_a_warning_is_told(tmp_path: Path) -> None:
    pq.write_table(pa.table({"quality": [{"a": 1}], "row": [0]}), tmp_path / "x.parquet")
    assert judged(Written("struct", tmp_path / "x.parquet", [{"a": 1}])).result == "told"
