"""What the name of a target says of its format."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import headrace
from headrace.data.convert.pack import format_for


@pytest.mark.parametrize("name, format", [("a.h5", "hdf5"), ("a.TAR", "webdataset"), ("a.npz", "npz"), ("a", "arrow"),
                                          ("a.pq", "parquet"), ("a.b/c", "arrow")])  # fmt: skip
def test_the_name_of_the_target_says_the_format(name: str, format: str) -> None:
    assert format_for(name) == format


def test_a_pack_from_python_goes_by_the_name_of_the_target(tmp_path: Path) -> None:
    np.savez(tmp_path / "source.npz", x=np.arange(10))
    assert "hdf5" == headrace.pack(tmp_path / "source.npz", tmp_path / "a.h5", workers=1).format
    assert "arrow" == headrace.pack(tmp_path / "a.h5", tmp_path / "shards", workers=1).format
    assert (tmp_path / "a.h5").is_file()
    assert headrace.open(tmp_path / "shards").schema == headrace.open(tmp_path / "a.h5").schema
