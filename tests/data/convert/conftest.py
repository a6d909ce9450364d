"""What tests of `headrace pack` share."""

from __future__ import annotations

import tempfile
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

from headrace.data.convert import plan
from tests.data.convert.buckets import Bucket
from tests.data.convert.packing import COUNT, PIECE
from tests.data.formats.samples import usual, write
from tests.servers.seaweed import Seaweed


@pytest.fixture
def small_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    """Few samples in a piece and in a shard, so that small data have several."""
    monkeypatch.setattr(plan, "PIECE", PIECE)
    monkeypatch.setattr(plan, "SHARD", PIECE)


@pytest.fixture
def bucket(shared_seaweed: Seaweed, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Bucket]:
    spools = tmp_path / "spools"
    spools.mkdir()
    monkeypatch.setenv("TMPDIR", str(spools))
    monkeypatch.setattr(tempfile, "tempdir", None)
    source = write("npz", tmp_path / "source.npz", [usual("npz", COUNT, seed=1)])
    yield Bucket(shared_seaweed, uuid.uuid4().hex, tmp_path, source)
    monkeypatch.setattr(tempfile, "tempdir", None)


@pytest.fixture
def in_environment(shared_seaweed: Seaweed, monkeypatch: pytest.MonkeyPatch) -> None:
    options = shared_seaweed.options
    monkeypatch.setenv("AWS_ENDPOINT_URL", shared_seaweed.url)
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", str(options["access_key_id"]))
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", str(options["secret_access_key"]))
    monkeypatch.setenv("AWS_REGION", "us-east-1")
