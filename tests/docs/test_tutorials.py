"""The tutorials that need a server: their scripts, in the order of the pages, with a kill in the middle."""

from __future__ import annotations

import os
import re
import signal
from pathlib import Path

import numpy as np
import pytest

import headrace
from tests import programs
from tests.servers.processes import free_ports

from .pages import DOCS, blocks_of

pytestmark = pytest.mark.thorough


def written(page: str, folder: Path) -> None:
    """Writes the files of a tutorial into a folder, as its reader saves them."""
    for block in blocks_of(DOCS / "tutorials" / page):
        assert block.file is not None, block.name
        (folder / block.file).write_text(block.code)


def run(folder: Path, *command: object, expected: int = 0, **environment: str) -> str:
    """Runs a script of the tutorial. Returns what it printed."""
    arguments = [str(word) for word in command]
    done = programs.run(arguments, cwd=folder, env={**os.environ, **environment})
    assert done.returncode == expected, done.stderr[-3000:]
    return done.stdout


def losses(printed: str) -> list[str]:
    return re.findall(r"loss (\S+?),?$", printed, re.MULTILINE)


def test_kafka_is_killed_and_loses_nothing(shared_kafka, tmp_path):
    written("kafka.md", tmp_path)
    url = shared_kafka.url("tutorial-points")
    run(tmp_path, "send.py", url, "--count", 10_000, "--rate", 100_000)
    straight = run(tmp_path, "train.py", url, "straight", "--steps", 200)
    run(tmp_path, "train.py", url, "killed", "--kill-at", 130, expected=-signal.SIGKILL)
    assert shared_kafka.committed("tutorial-points") == {0: 3_000, 1: 3_000}

    resumed = run(tmp_path, "train.py", url, "killed", "--steps", 200)
    assert "resumes after step 120" in resumed
    assert losses(resumed) == losses(straight)[-4:]
    assert run(tmp_path, "check.py", "straight", "killed").splitlines() == [
        "straight: 200 steps, 10000 records, 10000 different, 0 missing",
        "killed: 200 steps, 10000 records, 10000 different, 0 missing",
    ]

    offsets = run(tmp_path, "offsets.py", shared_kafka.address)
    assert [line for line in offsets.splitlines() if "tutorial-points" in line] == [
        "group headrace, tutorial-points/0: committed offset 5000",
        "group headrace, tutorial-points/1: committed offset 5000",
    ]


def test_a_socket_is_killed_and_loses_nothing(tmp_path):
    written("kafka.md", tmp_path)
    url = f"tcp://127.0.0.1:{free_ports(1)[0]}"
    with programs.Program(["send.py", url, "--count", "7000"], cwd=tmp_path) as sending:
        run(tmp_path, "train.py", url, "socket", "--kill-at", 130, expected=-signal.SIGKILL)
        said, failed = sending.communicate(timeout=60)
    assert said == "sent 7000 records\n", failed

    assert "resumes after step 120" in run(tmp_path, "train.py", url, "socket", "--steps", 140)
    assert run(tmp_path, "check.py", "socket") == "socket: 140 steps, 7000 records, 7000 different, 0 missing\n"


def photos_in(folder: Path) -> Path:
    """Makes 320 JPEGs of two classes: five batches."""
    image = pytest.importorskip("PIL.Image")
    rng = np.random.default_rng(0)
    for number in range(320):
        place = folder / ("cat", "dog")[number % 2]
        place.mkdir(parents=True, exist_ok=True)
        image.fromarray(rng.integers(0, 256, (160, 160, 3), dtype=np.uint8)).save(place / f"{number:03}.jpg")
    return folder


def test_a_bucket_is_read_once_and_a_kill_changes_nothing(shared_seaweed, tmp_path):
    written("bucket.md", tmp_path)
    place = "s3://open/tutorial"
    headrace.pack(photos_in(tmp_path / "made"), place, target_options=shared_seaweed.options)
    environment = {
        "AWS_ENDPOINT_URL": shared_seaweed.url,
        "AWS_ACCESS_KEY_ID": shared_seaweed.options["access_key_id"],
        "AWS_SECRET_ACCESS_KEY": shared_seaweed.options["secret_access_key"],
        "AWS_REGION": shared_seaweed.options["region"],
    }
    command = ["train.py", place]
    more = ["--epochs", 8, "--cache", "cache"]

    straight = run(tmp_path, *command, "straight", *more, **environment)
    fetched = [int(count) for count in re.findall(r"(\d+) MB from the bucket", straight)]
    assert fetched[0] > 0
    assert fetched[1:] == [0] * 7

    run(tmp_path, *command, "killed", *more, "--kill-at", 33, expected=-signal.SIGKILL, **environment)
    resumed = run(tmp_path, *command, "killed", *more, **environment)
    assert "rank 0 resumes after step 20" in resumed
    assert re.findall("epoch .: .* loss (.*?),", resumed) == re.findall("epoch .: .* loss (.*?),", straight)[4:]
    assert "network: nothing had to be fetched" in run(tmp_path, *command, "again", *more, "--report", **environment)
