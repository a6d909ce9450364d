"""`headrace pack` into a bucket, out of it, and `headrace verify` there: against a server that checks signatures."""

from __future__ import annotations

import signal
import tempfile
import threading
from pathlib import Path

import numpy as np
import pytest

import headrace
from headrace.core.errors import (
    DatasetError,
    FormatError,
    HeadraceError,
    ObjectNotFoundError,
    StorageError,
)
from headrace.data.convert.bucket.packing import spool_of
from headrace.data.convert.bucket.uploads import UploadStopped, upload_file
from headrace.data.convert.pack import pack
from headrace.data.convert.plan import PackOptions
from headrace.data.convert.verify import verify
from headrace.storage.stores.cloud_requests import PART_BYTES
from tests.data.convert.buckets import NAMES, Bucket
from tests.data.convert.packing import COUNT, files_in
from tests.data.formats.samples import assert_same, read, usual, write
from tests.servers.faulty import FaultyServer
from tests.servers.ray import RayCluster
from tests.servers.seaweed import SECRET_KEY
from tests.storage.conftest import no_credentials_of_the_user

__all__ = ["no_credentials_of_the_user"]

pytestmark = pytest.mark.usefixtures("small_pieces")

# -- what is made ----------------------------------------------------------------------------------------------------


@pytest.mark.quick(format=["arrow", "memmap", "hdf5"])
@pytest.mark.parametrize("format", NAMES)
def test_a_pack_into_a_bucket_and_back_gives_the_same_bytes(bucket: Bucket, format: str) -> None:
    name = NAMES[format]
    expected = bucket.here(format, name)
    made = bucket.pack(format, name)
    assert expected == bucket.objects()
    assert (len(expected), sum(map(len, expected.values()))) == (made.files, made.bytes)
    assert not list(Path(tempfile.gettempdir()).iterdir())

    verified = verify(bucket.url(name), options=bucket.options)
    assert (True, COUNT, len(expected) - 1) == (verified.sound, verified.recorded, verified.checksums)
    back = bucket.root / "back" / name
    pack(bucket.url(name), back, PackOptions(format), workers=1, source_options=bucket.options)
    if format != "webdataset":
        assert_same(read(back), usual("npz", COUNT, seed=1))
    assert expected.keys() == files_in(back.parent).keys()


def test_from_one_url_to_another(bucket: Bucket) -> None:
    bucket.pack()
    options = bucket.options
    pack(
        bucket.url(), bucket.url("b.npz"), PackOptions("npz"), workers=1, source_options=options, target_options=options
    )
    assert len(headrace.open(bucket.url("b.npz"), options=options)) == COUNT


def test_packed_data_are_replaced_and_what_is_left_of_them_goes(bucket: Bucket) -> None:
    bucket.pack(shards=7)
    bucket.store.write(f"{bucket.folder}/data/mine.txt", [b"mine"])
    bucket.pack(shards=3)
    expected = bucket.here(shards=3)
    assert expected | {"data/mine.txt": b"mine"} == bucket.objects()


# -- interrupted -----------------------------------------------------------------------------------------------------


@pytest.mark.thorough
@pytest.mark.usefixtures("in_environment")
def test_a_pack_that_is_killed_goes_on_where_it_was(bucket: Bucket) -> None:
    child = bucket.child("--workers", "1", stop=("piece", 4))
    try:
        child.wait_until_there()
        assert child.end(signal.SIGKILL)[0] == -signal.SIGKILL
    finally:
        child.close()

    assert "data/headrace.json" not in bucket.objects()
    with pytest.raises(FormatError, match="these data are not complete"):
        headrace.open(bucket.url(), options=bucket.options)

    before = {info.key: info for page in bucket.store.list(bucket.folder) for info in page}
    made = bucket.pack()
    assert made.kept >= 2
    assert bucket.here() == bucket.objects()
    assert verify(bucket.url(), options=bucket.options).sound
    uploaded_once = f"{bucket.folder}/data/part-00000.arrow"
    assert before[uploaded_once].modified == bucket.store.head(uploaded_once).modified
    assert [] == bucket.server.unfinished_uploads("open")
    assert not list(Path(tempfile.gettempdir()).iterdir())


def test_an_object_that_was_changed_in_between_is_uploaded_again(bucket: Bucket) -> None:
    class Interrupted(Exception):
        pass

    def interrupt(done: int, total: int) -> None:
        if done > total // 2:
            raise Interrupted

    with pytest.raises(Interrupted):
        pack(bucket.source, bucket.url(), PackOptions(), workers=1, report=interrupt, target_options=bucket.options)
    bucket.store.write(f"{bucket.folder}/data/part-00000.arrow", [b"other"])
    made = bucket.pack()
    assert 0 < made.kept < made.pieces
    assert bucket.here() == bucket.objects()


def test_other_options_begin_anew(bucket: Bucket) -> None:
    def interrupt(done: int, total: int) -> None:
        if done:
            raise KeyError

    with pytest.raises(KeyError):
        pack(bucket.source, bucket.url(), PackOptions(), workers=1, report=interrupt, target_options=bucket.options)
    assert bucket.pack(shuffle=3).kept == 0
    assert bucket.here(shuffle=3) == bucket.objects()


@pytest.mark.thorough
def test_a_shard_of_several_parts_is_uploaded(bucket: Bucket) -> None:
    values = np.random.default_rng(0).integers(0, 256, (17, PART_BYTES // 16), dtype=np.uint8)
    source = bucket.root / "large.npy"
    np.save(source, values)
    made = PackOptions("arrow", shards=1)
    pack(source, bucket.url(), made, workers=1, target_options=bucket.options)
    there = headrace.open(bucket.url(), options=bucket.options)
    assert np.array_equal(np.stack([sample[there.schema.names[0]] for sample in there]), values)


def test_an_upload_that_is_given_up_leaves_nothing(bucket: Bucket) -> None:
    stopped = threading.Event()
    file = bucket.root / "large"
    file.write_bytes(bytes(3 * PART_BYTES))
    with pytest.raises(UploadStopped):
        upload_file(bucket.store, f"{bucket.folder}/large", file, lambda: None, lambda count: stopped.set(), stopped)
    assert {} == bucket.objects()
    assert [] == bucket.server.unfinished_uploads("open")


# -- what cannot be done ---------------------------------------------------------------------------------------------


def test_what_headrace_did_not_pack_stays(bucket: Bucket) -> None:
    bucket.store.write(f"{bucket.folder}/data/mine.txt", [b"mine"])
    with pytest.raises(FormatError, match="a folder with 1 files or folders, which headrace did not pack"):
        bucket.pack()
    assert {"data/mine.txt": b"mine"} == bucket.objects()


def test_a_folder_is_not_put_in_the_place_of_an_object(bucket: Bucket) -> None:
    bucket.store.write(f"{bucket.folder}/data", [b"mine"])
    with pytest.raises(FormatError, match="a file"):
        bucket.pack()
    assert {"data": b"mine"} == bucket.objects()


def test_an_object_is_not_put_in_the_place_of_a_folder(bucket: Bucket) -> None:
    bucket.store.write(f"{bucket.folder}/a.npz/mine", [b"mine"])
    with pytest.raises(FormatError, match="a folder"):
        bucket.pack("npz", "a.npz")


def test_source_and_target_that_overlap_are_refused(bucket: Bucket) -> None:
    bucket.pack()
    before = bucket.objects()
    options = bucket.options
    for target in ("data", "data/inner"):
        with pytest.raises(HeadraceError, match=r"overlap|did not pack"):
            pack(bucket.url(), bucket.url(target), PackOptions(), source_options=options, target_options=options)
    assert before == bucket.objects()


NOWHERE = "http://127.0.0.1:1"
WRONG: dict[str, tuple[type[HeadraceError], str, dict[str, object], str]] = {
    "no bucket": (ObjectNotFoundError, "s3://no-such-bucket/data", {}, "there is no bucket 'no-such-bucket'"),
    "secret": (StorageError, "s3://open/x/data", {"secret_access_key": "a-wrong-secret"}, "no permission"),
    "unreachable": (
        StorageError,
        "s3://open/x/data",
        {"endpoint": NOWHERE, "max_retries": 1},
        "connection",
    ),
    "http": (FormatError, "https://host/data", {}, "an http server cannot be written to"),
    "whole bucket": (FormatError, "s3://open", {}, "a whole bucket"),
}


@pytest.mark.parametrize("kind", WRONG)
def test_a_target_that_cannot_be_written_is_told_before_the_source_is_opened(bucket: Bucket, kind: str) -> None:
    expected, url, changed, said = WRONG[kind]
    options = bucket.options | changed
    if kind == "http":
        options = {}
    with pytest.raises(expected, match=said) as caught:
        pack(bucket.root / "no-such-source", url, PackOptions(), target_options=options)
    text = str(caught.value)
    assert "place:" in text
    assert "found:" in text
    for secret in (SECRET_KEY, "a-wrong-secret"):
        assert secret not in text + repr(caught.value.__context__)
    assert not list(Path(tempfile.gettempdir()).iterdir())


def test_a_reader_may_not_pack(bucket: Bucket) -> None:
    with pytest.raises(StorageError, match="no permission"):
        pack(bucket.source, bucket.url(), PackOptions(), target_options=bucket.server.reader_options)
    assert {} == bucket.objects()


def test_a_source_that_is_not_there_leaves_nothing_in_the_bucket(bucket: Bucket) -> None:
    with pytest.raises(HeadraceError, match="there are no such data"):
        pack(bucket.root / "nothing", bucket.url(), PackOptions(), target_options=bucket.options)
    assert {} == bucket.objects()
    assert not list(Path(tempfile.gettempdir()).iterdir())


def test_a_folder_of_another_user_is_no_spool(bucket: Bucket) -> None:
    place = spool_of(bucket.url())
    place.rmdir()
    place.symlink_to(bucket.root)
    with pytest.raises(DatasetError, match="not a folder of this user"):
        bucket.pack()
    place.unlink()


# -- verify ----------------------------------------------------------------------------------------------------------


def test_verify_finds_what_was_changed_cut_removed_and_added(bucket: Bucket) -> None:
    bucket.pack(shards=5)
    folder = f"{bucket.folder}/data"
    data = bytearray(bucket.store.read_whole(f"{folder}/part-00000.arrow")[0])
    data[len(data) // 2] ^= 1
    bucket.store.write(f"{folder}/part-00000.arrow", [data])
    bucket.store.write(f"{folder}/part-00001.arrow", [data[:100]])
    bucket.store.delete(f"{folder}/part-00002.arrow")
    bucket.store.write(f"{folder}/more", [b"x"])
    found = verify(bucket.url(), options=bucket.options)
    expected = {"part-00000": "another checksum", "part-00001": "another bytes", "part-00002": "missing",
                "more": "not in the manifest"}  # fmt: skip
    for name, said in expected.items():
        assert [said in line for line in found.problems if f"data/{name}" in line] == [True]
    assert len(found.problems) == len(expected)


def test_verify_reads_all_samples_where_there_is_no_manifest(bucket: Bucket) -> None:
    bucket.pack("parquet")
    bucket.store.delete(f"{bucket.folder}/data/headrace.json")
    found = verify(bucket.url(), options=bucket.options)
    assert (True, COUNT, 0) == (found.sound, found.samples, found.checksums)


def test_verify_reads_from_a_server_without_signatures(faulty_server: FaultyServer, tmp_path: Path) -> None:
    source = write("npz", tmp_path / "source.npz", [usual("npz", COUNT, seed=1)])
    pack(source, tmp_path / "data", PackOptions(shards=2), workers=1)
    for name, data in files_in(tmp_path / "data").items():
        faulty_server.put("b", f"data/{name}", data)

    sound = verify("s3://b/data", options=faulty_server.s3_options)
    assert sound.sound
    path = faulty_server.folder / "b" / "data" / "part-00001.arrow"
    path.write_bytes(path.read_bytes()[:-1] + b"x")
    found = verify("s3://b/data", options=faulty_server.s3_options)
    assert ["part-00001.arrow" in line for line in found.problems] == [True]


@pytest.mark.thorough
@pytest.mark.parametrize("form", ["arrow", "webdataset", "hdf5"])
def test_a_bucket_that_was_packed_on_ray_holds_what_a_local_pack_makes(
    bucket: Bucket, form: str, on_ray: RayCluster
) -> None:
    name = NAMES[form]
    made = pack(bucket.source, bucket.url(name), PackOptions(form), target_options=bucket.options, on="ray")
    assert made.pieces > 2
    assert {n: d for n, d in bucket.objects().items() if "headrace.json" not in n} == {
        n: d for n, d in bucket.here(form, name).items() if "headrace.json" not in n
    }
