"""What the name of a target says of its format."""

from __future__ import annotations

import pytest

from headrace.data.convert.pack import defaults_of


@pytest.mark.parametrize("name, format", [("a.h5", "hdf5"), ("a.TAR", "webdataset"), ("a.npz", "npz"), ("a", "arrow"),
                                          ("a.pq", "parquet"), ("a.b/c", "arrow")])  # fmt: skip
def test_the_name_of_the_target_says_the_format(name: str, format: str) -> None:
    assert defaults_of(name) == format
