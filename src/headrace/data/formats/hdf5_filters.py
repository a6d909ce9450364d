"""Filters of HDF5: what unpacks the chunks of a dataset. HDF5 brings gzip and a few more; all others are plugins."""

from __future__ import annotations

import importlib
from typing import Any

from headrace.core.errors import FormatError
from headrace.core.extras import extra, has

PLUGINS = "hdf5plugin"
"""The package that brings most plugins, among them Blosc, bzip2, LZ4 and Zstandard."""


def missing_filters(dataset: Any) -> dict[int, str]:
    """Returns the filters of a dataset that HDF5 lacks in this process: each one's place in the row, and its name.

    hdf5plugin is imported if it is installed. It registers filters in the process that imports it, and a worker that is
    not forked is another one than the program's.
    """
    missing = _missing(dataset)
    if not missing or not has(PLUGINS):
        return missing

    try:
        importlib.import_module(PLUGINS)
    except ImportError:
        # Built for other versions of HDF5 or h5py.
        return missing
    return _missing(dataset)


def _missing(dataset: Any) -> dict[int, str]:
    available = extra("h5py", "hdf5").h5z.filter_avail
    layout = dataset.id.get_create_plist()
    missing = {}
    for number in range(layout.get_nfilters()):
        code, _, _, name = layout.get_filter(number)
        if not available(code):
            missing[number] = f"{name.decode(errors='replace') or 'without a name'} (number {code})"

    return missing


def check_filters(path: str, name: str, dataset: Any) -> None:
    """Raises `FormatError` if HDF5 lacks a filter that the first chunk went through."""
    missing = missing_filters(dataset)
    if not missing or not dataset.id.get_num_chunks():
        return

    # A filter that gains nothing is left out of a chunk, and its bit in the mask is set.
    skipped = dataset.id.get_chunk_info(0).filter_mask
    if any(not skipped >> number & 1 for number in missing):
        raise without_filters(f"{path}, dataset {name!r}", missing)


def without_filters(place: str, missing: dict[int, str]) -> FormatError:
    """Returns the error for a dataset that cannot be unpacked."""
    if has(PLUGINS):
        fix = f"write it again with gzip: {PLUGINS} is installed, but lacks this filter or does not go with your h5py"
    else:
        fix = f"pip install {PLUGINS}, which headrace then uses by itself; or write the dataset again with gzip"
    return FormatError.about(
        "an HDF5 dataset needs a filter that is not installed",
        place=place,
        found=f"chunks packed by {', '.join(missing.values())}",
        expected="filters that HDF5 has, such as gzip",
        fix=fix,
    )
