"""What users are told by, and cost, buckets that are large, that may not be listed, or whose server is away."""

from __future__ import annotations

import json
import logging
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import headrace
from headrace.core import outage as outages
from headrace.core.errors import DatasetNotFoundError, StorageError
from tests.data.by_url.test_naming import picture
from tests.servers.faulty import Fault, FaultyServer

# -- large buckets -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["wrong.tar", "wrong", "folder/wrong.npz", "wrong/", "wrong/deeper.parquet"])
@pytest.mark.parametrize("format", [None, "npz", "webdataset", "idx"])
def test_a_wrong_name_costs_few_requests_however_large_the_bucket_is(
    faulty_server: FaultyServer, name: str, format: str | None
) -> None:
    for number in range(400):
        faulty_server.put("b", f"{'folder/' * (number % 2)}x{number}.jpg", b"x")
    faulty_server.page = 50  # a whole listing takes eight
    with pytest.raises(DatasetNotFoundError, match="there are no such data"):
        headrace.open(f"s3://b/{name}", format=format, options=faulty_server.s3_options)
    listings = [request for request in faulty_server.requests if "list-type" in request.query]
    assert len(listings) <= 2
    assert len(faulty_server.requests) <= 6


def test_files_with_a_common_beginning_are_found_without_listing_the_rest(faulty_server: FaultyServer) -> None:
    faulty_server.folder.joinpath("b").mkdir()
    here = faulty_server.folder / "b" / "train"
    writer = headrace.open_writer(
        here, headrace.types.Schema((headrace.types.Field("x", "fixed", np.dtype("uint8")),)), "idx"
    )
    writer.append(headrace.types.Block(writer._schema, {"x": np.arange(9, dtype=np.uint8)}))  # type: ignore[attr-defined]
    writer.seal()
    for number in range(400):
        faulty_server.put("b", f"other-{number}", b"x")
        faulty_server.put("b", f"x{number}", b"x")
    faulty_server.page = 50
    data = headrace.open("s3://b/train", options=faulty_server.s3_options)
    assert [int(sample["x"]) for sample in data.__getitems__(range(9))] == list(range(9))
    listings = [request for request in faulty_server.requests if "list-type" in request.query]
    assert len(listings) <= 3


# -- objects that may be read, and not listed --------------------------------------------------------------------------


def test_a_refused_listing_says_what_works_without_one(faulty_server: FaultyServer) -> None:
    for number in range(4):
        faulty_server.put("b", f"photos/{number}.jpg", picture(0))
    faulty_server.refuses_lists = True
    for url in ("s3://b/photos", "s3://b/photos/*.parquet"):
        with pytest.raises(StorageError) as caught:
            headrace.open(url, options=faulty_server.s3_options)
        text = str(caught.value)
        assert "no permission (status 403, AccessDenied) to list" in text
        for word in ("the URL of one", "a list of URLs", "a range", "headrace pack"):
            assert word in text


def test_what_needs_no_listing_is_read_where_listing_is_refused(faulty_server: FaultyServer, tmp_path: Path) -> None:
    np.savez(tmp_path / "x.npz", x=np.arange(12))
    packed = faulty_server.folder / "b" / "packed"
    headrace.pack(tmp_path / "x.npz", packed, headrace.PackOptions("parquet"), workers=1)
    names = sorted(path.name for path in packed.glob("*.parquet"))
    faulty_server.refuses_lists = True
    urls = [f"s3://b/packed/{name}" for name in names]
    source: Any
    for source in (urls[0], urls, "s3://b/packed", "s3://b/packed/part-{00000..00000}.parquet"):
        data = headrace.open(source, options=faulty_server.s3_options)
        assert [int(sample["x"]) for sample in data.__getitems__(range(12))] == list(range(12))


# -- a server that is away ---------------------------------------------------------------------------------------------


class Told(logging.Handler):
    """Sets an event when a message with some words comes."""

    def __init__(self, words: str) -> None:
        super().__init__()
        self.words = words
        self.event = threading.Event()

    def emit(self, record: logging.LogRecord) -> None:
        if self.words in record.getMessage():
            self.event.set()


@pytest.mark.parametrize("fault", [Fault("reset"), Fault("status", 500, "InternalError")], ids=["reset", "500"])
def test_a_server_that_is_away_is_told_once_and_when_it_is_back(
    faulty_server: FaultyServer, fault: Fault, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(outages, "AFTER", 0.2)
    for number in range(8):
        faulty_server.put("b", f"photos/{number}.jpg", picture(0))
    data = headrace.open("s3://b/photos", options=faulty_server.s3_options)
    faulty_server.always = fault
    told = Told("has not answered")
    logger = logging.getLogger("headrace")
    logger.addHandler(told)
    found: list[Any] = []
    readers = []
    try:
        for number in range(8):
            readers.append(threading.Thread(target=lambda number=number: found.append(data[number]), daemon=True))
            readers[-1].start()
        assert told.event.wait(60)
        faulty_server.always = None
        for reader in readers:
            reader.join(60)
    finally:
        logger.removeHandler(told)

    assert len(found) == 8
    away = [record.getMessage() for record in caplog.records if "has not answered" in record.getMessage()]
    back = [record.getMessage() for record in caplog.records if "answers again" in record.getMessage()]
    assert len(away) == 1
    assert len(back) == 1
    assert f"s3://b/ at {faulty_server.url} has not answered for" in away[0]
    assert "It is asked again for " in away[0]
    assert "retry_timeout" in away[0]


def test_a_failure_that_passes_soon_is_not_told(faulty_server: FaultyServer, caplog: pytest.LogCaptureFixture) -> None:
    faulty_server.put("b", "photos/0.jpg", picture(0))
    data = headrace.open("s3://b/photos", options=faulty_server.s3_options)
    faulty_server.faults.extend([Fault("reset"), Fault("status", 503)])
    assert data[0]["image"].shape == (32, 32, 3)
    assert caplog.records == []


LOOP = """
import json, sys
import headrace
data = headrace.open("s3://b/photos", options=json.loads(sys.argv[1]))
print("opened", flush=True)
sys.stdin.readline()
print(len(list(headrace.DataLoader(data, batch_size=4, num_workers=1))))
"""


@pytest.mark.thorough
def test_the_io_process_of_workers_tells_it_on_stderr(faulty_server: FaultyServer) -> None:
    """In a program of its own: the I/O process that tests share writes to where another of them has begun it."""
    for number in range(8):
        faulty_server.put("b", f"photos/{number}.jpg", picture(0))
    command = [sys.executable, "-c", LOOP, json.dumps(faulty_server.s3_options)]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=pipe, text=True) as program:
        assert program.stdin and program.stdout and program.stderr
        assert program.stdout.readline() == "opened\n"
        faulty_server.always = Fault("reset")
        program.stdin.write("\n")
        program.stdin.flush()
        told = program.stderr.readline()
        faulty_server.always = None
        batches, more = program.communicate(timeout=60)
    assert batches == "2\n"
    assert "has not answered for" in told
    assert (told + more).count("has not answered for") == 1
    assert more.count("answers again") == 1


# -- errors that name what the user knows ------------------------------------------------------------------------------


def test_an_error_about_a_fetched_copy_names_the_url(faulty_server: FaultyServer) -> None:
    faulty_server.put("b", "folder/a.jpg", picture(0))
    with pytest.raises(IsADirectoryError) as caught:
        headrace.open("s3://b/folder", format="npz", options=faulty_server.s3_options)
    assert caught.value.filename == "s3://b/folder"


def test_a_whole_server_is_no_folder_of_its_own_name(faulty_server: FaultyServer) -> None:
    with pytest.raises(DatasetNotFoundError) as caught:
        headrace.open(f"{faulty_server.url}/")
    assert f"place:    {faulty_server.url}/\n" in str(caught.value)
    assert "web servers cannot list other folders" in str(caught.value)


def test_a_server_of_fsspec_that_is_not_there_is_no_wrong_option() -> None:
    with pytest.raises(StorageError, match="the server cannot be reached") as caught:
        headrace.open("ftp://127.0.0.1:1/x.npz")
    assert "retry_timeout" not in str(caught.value)
    assert "check host, port and network" in str(caught.value)
