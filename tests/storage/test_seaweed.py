"""Truth: what a real S3 server, which checks signatures, says and holds."""

from __future__ import annotations

import pickle
import subprocess
import sys
import uuid
from collections.abc import Iterator

import pytest

from headrace.core.errors import ObjectChangedError, ObjectNotFoundError, StorageError, UsageError
from headrace.storage.locations import Location
from headrace.storage.stores.cloud_requests import PART_BYTES
from headrace.storage.stores.objects import Store, store_config
from headrace.storage.stores.opening import open_store
from tests.servers.seaweed import SECRET_KEY, Seaweed

OPEN = Location("s3", "open", "")


@pytest.fixture
def store(shared_seaweed: Seaweed) -> Store:
    return open_store(OPEN, shared_seaweed.options)


@pytest.fixture
def folder() -> str:
    """A folder of the bucket that no other test uses."""
    return uuid.uuid4().hex


NAMES = [
    "plain",
    "with space",
    "per%20cent",
    "a+b",
    "é ü",
    "日本",
    "a#b?c&d=e",
    "a'b",
    "x;y",
    "a*b",
    "(1)",
    "t~",
    "a:b@c",
    "$x!",
]


@pytest.mark.parametrize("name", NAMES)
def test_keys_of_all_kinds_are_written_read_and_listed(store: Store, folder: str, name: str) -> None:
    key = f"{folder}/{name}/{name}.bin"
    data = name.encode()
    info = store.write(key, [data])
    assert (key, len(data)) == (info.key, info.size)
    assert info == store.head(key)
    assert data == bytes(store.read(key, 0, len(data), info.etag))
    assert [info] == [found for page in store.list(folder) for found in page]
    assert ([name], []) == store.list_folder(folder)
    assert ([], [info]) == store.list_folder(f"{folder}/{name}/")


def test_ranges_at_all_edges(store: Store, folder: str) -> None:
    key = f"{folder}/k"
    data = bytes(range(10))
    etag = store.write(key, [data]).etag
    for version in (None, etag):
        for start in range(11):
            for stop in range(start, 11):
                view = store.read(key, start, stop, version)
                assert data[start:stop] == bytes(view)
                assert view.readonly


@pytest.mark.parametrize(("start", "stop"), [(0, 11), (9, 11), (10, 11), (20, 30)])
def test_a_range_behind_the_end_is_an_error_and_never_fewer_bytes(
    store: Store, folder: str, start: int, stop: int
) -> None:
    key = f"{folder}/k"
    etag = store.write(key, [bytes(10)]).etag
    for version in (None, etag):
        with pytest.raises(StorageError, match=f"{folder}/k"):
            store.read(key, start, stop, version)


@pytest.mark.parametrize(("start", "stop"), [(-1, 2), (3, 2)])
def test_a_range_that_is_none_is_refused(store: Store, start: int, stop: int) -> None:
    with pytest.raises(UsageError, match="wrong range"):
        store.read("k", start, stop)


def test_empty_objects(store: Store, folder: str) -> None:
    key = f"{folder}/empty"
    info = store.write(key, [])
    assert 0 == info.size == store.head(key).size
    assert b"" == bytes(store.read(key, 0, 0, info.etag))
    view, again = store.read_whole(key)
    assert (b"", info) == (bytes(view), again)
    with pytest.raises(StorageError):
        store.read(key, 0, 1)


def test_what_begins_with_letters_is_found_among_others(store: Store, folder: str) -> None:
    wanted = [f"{folder}/train-{number:03d}" for number in range(120)]
    others = ["train/a", "train-/a", "train", "train.x", "traim-0", "trainx-0", "a", "z"]
    for key in [*wanted, *(f"{folder}/{name}" for name in others)]:
        store.write(key, [b"x"])
    assert [info.key for info in store.beginning(f"{folder}/train-")] == wanted
    assert [info.key for info in store.beginning(f"{folder}/zz")] == []


@pytest.mark.thorough
def test_listings_of_many_pages_are_complete_and_in_order(store: Store, shared_seaweed: Seaweed, folder: str) -> None:
    expected = [f"{folder}/{index:04d}-{index * 7919 % 997:03d}" for index in range(2300)]
    expected += [f"{folder}/0100/x", f"{folder}/0100-/x", f"{folder}/0100.x"]
    import obstore

    for key in expected:
        obstore.put(store._writer, key, b"x")  # type: ignore[attr-defined]  # without the look at each afterwards

    pages = list(store.list(folder))
    assert len(pages) > 1
    assert sorted(expected) == [info.key for page in pages for info in page]
    names, infos = store.list_folder(folder)
    assert ["0100", "0100-"] == names
    assert 2301 == len(infos)


def test_a_prefix_is_a_folder(store: Store, folder: str) -> None:
    for name in ("train/a", "train/b/c", "training/d", "train.txt"):
        store.write(f"{folder}/{name}", [b"x"])
    for prefix in (f"{folder}/train", f"{folder}/train/"):
        keys = [info.key for page in store.list(prefix) for info in page]
        assert [f"{folder}/train/a", f"{folder}/train/b/c"] == keys
    assert [] == list(store.list(f"{folder}/nothing"))
    assert ([], []) == store.list_folder(f"{folder}/nothing")


@pytest.mark.parametrize("size", [PART_BYTES - 1, PART_BYTES, PART_BYTES + 1, 2 * PART_BYTES + 12345])
def test_large_objects_are_written_in_parts(store: Store, folder: str, size: int) -> None:
    pattern = bytes(range(251)) * 4001
    data = (pattern * (size // len(pattern) + 1))[:size]
    step = 3_000_001
    key = f"{folder}/large"
    info = store.write(key, (memoryview(data)[start : start + step] for start in range(0, size, step)))
    view, whole = store.read_whole(key)
    assert info == whole
    assert data == view
    assert data[size - 100 :] == bytes(store.read(key, size - 100, size, info.etag))


@pytest.mark.parametrize("error", [KeyError, ValueError, OSError])
@pytest.mark.parametrize("size", [0, 1000, PART_BYTES + 1000, 3 * PART_BYTES])
def test_a_write_that_fails_leaves_nothing(
    store: Store, shared_seaweed: Seaweed, folder: str, size: int, error: type[Exception]
) -> None:
    def parts() -> Iterator[bytes]:
        for _ in range(0, size, 1 << 20):
            yield bytes(1 << 20)
        raise error("of the caller")

    with pytest.raises(error, match="of the caller") as caught:
        store.write(f"{folder}/k", parts())
    assert type(caught.value) is error
    assert [] == list(store.list(folder))
    assert [] == shared_seaweed.unfinished_uploads("open")


def test_a_write_that_fails_keeps_what_was_there(store: Store, folder: str) -> None:
    def parts() -> Iterator[bytes]:
        yield bytes(2 * PART_BYTES)
        raise KeyError("of the caller")

    store.write(f"{folder}/k", [b"before"])
    with pytest.raises(KeyError):
        store.write(f"{folder}/k", parts())
    assert b"before" == bytes(store.read_whole(f"{folder}/k")[0])


def test_an_object_that_was_overwritten_is_refused(store: Store, folder: str) -> None:
    key = f"{folder}/k"
    before = store.write(key, [b"aaaa"])
    assert b"aa" == bytes(store.read(key, 0, 2, before.etag))

    after = store.write(key, [b"bbbb"])
    with pytest.raises(ObjectChangedError, match=f"{folder}/k"):
        store.read(key, 0, 2, before.etag)
    assert b"bb" == bytes(store.read(key, 0, 2, after.etag))


def test_an_object_that_is_deleted_is_not_found(store: Store, folder: str) -> None:
    key = f"{folder}/k"
    etag = store.write(key, [b"aaaa"]).etag
    store.delete(key)
    for call in (
        lambda: store.head(key),
        lambda: store.read(key, 0, 2),
        lambda: store.read(key, 0, 2, etag),
        lambda: store.read_whole(key),
    ):
        with pytest.raises(ObjectNotFoundError, match=f"{folder}/k") as caught:
            call()
        assert isinstance(caught.value, FileNotFoundError)


def test_a_bucket_that_does_not_exist_is_named(shared_seaweed: Seaweed) -> None:
    store = open_store(Location("s3", "no-such-bucket", ""), shared_seaweed.options)
    for call in (
        lambda: store.head("k"),
        lambda: store.read("k", 0, 2),
        lambda: store.read_whole("k"),
        lambda: list(store.list("")),
        lambda: store.list_folder("k"),
    ):
        with pytest.raises(ObjectNotFoundError, match="there is no bucket 'no-such-bucket'"):
            call()


WRONG = {
    "secret": ({"secret_access_key": "a-wrong-secret"}, "SignatureDoesNotMatch", "options="),
    "key": ({"access_key_id": "AKIANOBODY"}, "InvalidAccessKeyId", "options="),
    "anonymous": ({"skip_signature": True}, "AccessDenied", "none [(]anonymous"),
}


@pytest.mark.parametrize("kind", WRONG)
def test_no_permission_says_where_the_credentials_come_from(shared_seaweed: Seaweed, kind: str) -> None:
    changed, code, source = WRONG[kind]
    store = open_store(OPEN, {**shared_seaweed.options, **changed})
    for call in (
        lambda: store.head("k"),
        lambda: store.read("k", 0, 2),
        lambda: list(store.list("")),
        lambda: store.write("k", [b"x"]),
    ):
        with pytest.raises(StorageError, match=f"no permission .status 403, {code}.*{source}") as caught:
            call()
        text = repr(caught.value) + str(caught.value) + repr(caught.value.__context__)
        assert "a-wrong-secret" not in text
        assert SECRET_KEY not in text


def test_credentials_of_the_environment(shared_seaweed: Seaweed, monkeypatch: pytest.MonkeyPatch, folder: str) -> None:
    options = shared_seaweed.reader_options
    monkeypatch.setenv("AWS_ENDPOINT_URL", shared_seaweed.url)
    monkeypatch.setenv("AWS_ALLOW_HTTP", "true")
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", str(options["access_key_id"]))
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", str(options["secret_access_key"]))
    open_store(OPEN, shared_seaweed.options).write(f"{folder}/k", [b"data"])
    store = open_store(OPEN)
    assert b"data" == bytes(store.read_whole(f"{folder}/k")[0])
    with pytest.raises(StorageError, match=r"no permission.*the environment .AWS_ACCESS_KEY_ID"):
        store.write(f"{folder}/k", [b"x"])
    with pytest.raises(StorageError, match="no permission"):
        open_store(Location("s3", "closed", "")).read("k", 0, 1)


def test_another_process_opens_the_same_store(store: Store, shared_seaweed: Seaweed, folder: str) -> None:
    store.write(f"{folder}/k", [b"data"])
    config = store_config(OPEN, shared_seaweed.options)
    assert SECRET_KEY not in repr(config)

    script = (
        "import pickle, sys\n"
        "from headrace.storage.stores.opening import open_config\n"
        "config = pickle.load(sys.stdin.buffer)\n"
        "sys.stdout.buffer.write(open_config(config).read_whole(sys.argv[1])[0])\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", script, f"{folder}/k"],
        input=pickle.dumps(config),
        capture_output=True,
        timeout=60,
        check=False,
    )
    assert (b"data", b"") == (done.stdout, done.stderr)


def test_a_forked_child_is_told_what_would_hang(store: Store, shared_seaweed: Seaweed) -> None:
    list(store.list_folder(""))
    script = f"""
import os, sys
from headrace.core.errors import StorageError
from headrace.storage.locations import Location
from headrace.storage.stores.opening import open_store
options = {shared_seaweed.options!r}
open_store(Location("s3", "open", ""), options).list_folder("")
child = os.fork()
if child == 0:
    try:
        open_store(Location("s3", "open", ""), options)
    except StorageError as error:
        os._exit(7 if "forked" in str(error) and "forkserver" in str(error) else 8)
    os._exit(9)
sys.exit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""
    assert 7 == subprocess.run([sys.executable, "-c", script], timeout=60, check=False).returncode


def test_one_store_for_all_who_ask_with_the_same_options(shared_seaweed: Seaweed) -> None:
    options = shared_seaweed.options
    assert open_store(OPEN, options) is open_store(Location("s3", "open", "other/key"), dict(options))
    assert open_store(OPEN, options) is not open_store(OPEN, {**options, "max_retries": 3})
    assert open_store(OPEN, options) is not open_store(Location("s3", "closed", ""), options)
