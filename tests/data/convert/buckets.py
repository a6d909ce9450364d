"""Targets of `headrace pack` in a bucket, and what is there."""

from __future__ import annotations

import uuid
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from headrace.data.convert.pack import pack
from headrace.data.convert.plan import PackOptions
from headrace.storage.locations import Location
from headrace.storage.stores.objects import Store
from headrace.storage.stores.opening import open_store
from tests.data.convert.packing import PIECE, Child, files_in
from tests.servers.seaweed import Seaweed

NAMES = {"arrow": "data", "webdataset": "data", "parquet": "data", "memmap": "data", "hdf5": "data.h5", "npz": "a.npz"}


@dataclass
class Bucket:
    """A folder of the bucket "open" that no other test uses, and a source."""

    server: Seaweed
    folder: str
    root: Path
    source: Path

    @property
    def options(self) -> dict[str, object]:
        return self.server.options

    @property
    def store(self) -> Store:
        return open_store(Location("s3", "open", ""), self.options)

    def url(self, name: str = "data") -> str:
        return f"s3://open/{self.folder}/{name}"

    def pack(self, format: str = "arrow", name: str = "data", **options: Any) -> Any:
        made = PackOptions(format, **options)
        return pack(self.source, self.url(name), made, workers=1, target_options=self.options)

    def objects(self) -> dict[str, bytes]:
        found = {}
        for page in self.store.list(self.folder):
            for info in page:
                found[info.key.removeprefix(f"{self.folder}/")] = bytes(self.store.read_whole(info.key)[0])
        return found

    def here(self, format: str = "arrow", name: str = "data", **options: Any) -> dict[str, bytes]:
        """What the same pack makes on this machine."""
        target = self.root / "here" / uuid.uuid4().hex / name
        pack(self.source, target, PackOptions(format, **options), workers=1)
        return files_in(target.parent)

    def child(self, *more: str, stop: tuple[str, int]) -> Child:
        """The command, which waits before a moment; credentials come from the environment."""
        arguments = [str(self.source), self.url(), *more]
        return Child({"arguments": arguments, "stop": stop, "limit": 0, "piece": PIECE}, self.root)
