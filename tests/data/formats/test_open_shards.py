"""Threads that read more shards than may be open: each reads from the shard that it has opened."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from headrace.data.formats.tar import shard_files


def test_a_shard_stays_open_while_somebody_reads_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shard_files, "OPEN", 1)
    for number in range(3):
        (tmp_path / f"{number}.tar").write_bytes(bytes([number]) * 10)
    opened = shard_files._OpenFiles()
    first = opened.file(0, str(tmp_path / "0.tar"))
    # Another thread comes to its own shards meanwhile, for which the first one makes room.
    for number in (1, 2):
        other = opened.file(number, str(tmp_path / f"{number}.tar"))
        assert os.pread(other.descriptor, 10, 0) == bytes([number]) * 10
    assert os.pread(first.descriptor, 10, 0) == bytes(10)

    descriptor = first.descriptor
    del first
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(descriptor)
