"""All tools: each module enters its own into the table when it is imported."""

from __future__ import annotations

import pytest

from tests.clients.other_tools import (
    array_files,
    arrow_files,
    csv_files,
    folder_files,
    frame_files,
    hdf5_files,
    image_files,
    json_files,
    random_tables,
    several_files,
    store_files,
    tar_files,
)
from tests.clients.other_tools.tools import Tool

MODULES = (
    arrow_files,
    frame_files,
    array_files,
    csv_files,
    folder_files,
    json_files,
    random_tables,
    several_files,
    hdf5_files,
    tar_files,
    image_files,
    store_files,
)
"""That have entered some."""


def skip_if_missing(tool: Tool) -> None:
    """Skips a test of a tool that is not installed."""
    missing = tool.missing()
    if missing:
        pytest.skip(f"{', '.join(missing)} is not installed: `make test-clients` installs it")
