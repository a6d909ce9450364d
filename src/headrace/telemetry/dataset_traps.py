"""What can be seen of a dataset before it is used that goes wrong in workers: see `findings.traps`."""

from __future__ import annotations

import io
from collections.abc import Iterator

from headrace.core.randomness.own_generators import generators_of
from headrace.telemetry.digest import extend_digest
from headrace.telemetry.object_growth import large_collections
from headrace.telemetry.recording import Setting, Trap

HANDLES = ("h5py", "lmdb", "sqlite3", "tables", "netCDF4", "zarr", "zipfile", "tarfile")
"""Modules whose objects hold an open file."""

DEEP = 4
"""Datasets around datasets that are looked into."""


def hazards(dataset: object, setting: Setting) -> Iterator[Trap]:
    """Yields the traps that show in the attributes of a dataset, and in how its loader is set up."""
    if setting.accelerator and not setting.pin_memory and not setting.device:
        yield Trap("not-pinned", f"There is an accelerator ({setting.accelerator}), and pin_memory and device are off.")
    if setting.backend != "process":
        return

    if not setting.seeded:
        for path, generator in generators_of(dataset):
            yield Trap("generator-copied", f"{path} is a {_kind(generator)} of the dataset's own.")
    for owner, name, value in _attributes(dataset):
        if setting.start_method == "fork" and _is_open(value):
            yield Trap("handle-shared", f"{owner}.{name} is a {_kind(value)}, opened before the workers were started.")

    for name, count, nbytes in large_collections(dataset):
        yield Trap("python-objects", f"{type(dataset).__name__}.{name} holds {count:,} of them, {nbytes / 1e9:.1f} GB.")


def _kind(value: object) -> str:
    return f"{type(value).__module__}.{type(value).__qualname__}"


def _attributes(dataset: object) -> Iterator[tuple[str, str, object]]:
    # A dataset that wraps others keeps the inner one in `dataset`, as torch's `Subset` does.
    for _ in range(DEEP):
        for name, value in getattr(dataset, "__dict__", {}).items():
            yield type(dataset).__name__, name, value
        dataset = getattr(dataset, "dataset", None)


def _is_open(value: object) -> bool:
    module = type(value).__module__.partition(".")[0]
    if module in HANDLES:
        # Told without importing these libraries: an h5py file that is closed is false, tarfile has `closed`, and
        # zipfile drops its `fp`.
        return bool(value) and not getattr(value, "closed", False) and getattr(value, "fp", True) is not None

    # Buffers in memory are files to Python. A fork copies them whole, so nothing is shared.
    if isinstance(value, (io.BytesIO, io.StringIO)):
        return False
    return isinstance(value, (io.BufferedIOBase, io.RawIOBase, io.TextIOBase)) and not value.closed


class StreamComparison:
    """Notices if the first batches of two workers' own streams are the same: nobody has split the data."""

    def __init__(self, replicas: int) -> None:
        self._replicas = replicas
        self._firsts: dict[int, int] | None = {}

    def repeats(self, worker: int, batch: object) -> bool:
        """Tells whether a batch is the first of its worker and equals another worker's first one."""
        firsts = self._firsts
        if firsts is None or worker in firsts:
            return False

        digest = extend_digest(0, batch)
        found = digest in firsts.values()
        firsts[worker] = digest
        if len(firsts) >= self._replicas:
            self._firsts = None
        return found
