"""Schemes that fsspec reads."""

from __future__ import annotations

import subprocess
import sys
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

import headrace
from headrace.core.errors import ObjectChangedError, ObjectNotFoundError, StorageError, UsageError
from headrace.storage.locations import parse
from headrace.storage.stores.objects import Store
from headrace.storage.stores.opening import open_store


@pytest.fixture
def store() -> Store:
    """A bucket in the memory of this process."""
    return open_store(parse(f"memory://{uuid.uuid4().hex}/"))


def test_objects_are_written_read_listed_and_deleted(store: Store) -> None:
    data = bytes(range(100))
    for key in ("b/c/d", "a", "b/a é%20+#", "b/b"):
        info = store.write(key, [data[:50], memoryview(data)[50:]])
        assert (key, 100) == (info.key, info.size)
    assert ["a", "b/a é%20+#", "b/b", "b/c/d"] == [info.key for page in store.list("") for info in page]
    assert ["b/c/d"] == [info.key for page in store.list("b/c/") for info in page]
    names, infos = store.list_folder("b")
    assert (["c"], ["b/a é%20+#", "b/b"]) == (names, [info.key for info in infos])
    assert [] == list(store.list("nothing"))
    assert ([], []) == store.list_folder("nothing")

    for start, stop in ((0, 0), (0, 1), (99, 100), (10, 60)):
        assert data[start:stop] == bytes(store.read("a", start, stop))
    assert data == bytes(store.read_whole("a")[0])
    store.delete("a")
    for call in (lambda: store.head("a"), lambda: store.read("a", 0, 1), lambda: store.read_whole("a")):
        with pytest.raises(ObjectNotFoundError, match=r"memory://.*/a"):
            call()


def test_a_range_behind_the_end_is_an_error(store: Store) -> None:
    store.write("k", [bytes(10)])
    with pytest.raises(ObjectChangedError, match="10 bytes"):
        store.read("k", 5, 11)
    with pytest.raises(UsageError, match="wrong range"):
        store.read("k", 5, 4)


def test_another_version_is_refused(store: Store) -> None:
    store.write("k", [bytes(10)])
    with pytest.raises(ObjectChangedError, match="another version"):
        store.read("k", 0, 5, '"one that it never had"')


def test_a_write_that_fails_leaves_nothing(store: Store) -> None:
    def parts() -> Iterator[bytes]:
        yield bytes(1000)
        raise KeyError("of the caller")

    with pytest.raises(KeyError):
        store.write("k", parts())
    assert [] == list(store.list(""))


@pytest.mark.parametrize(
    ("url", "options", "words"),
    [
        ("hf://datasets/o/n/x.parquet", {"tokn": "GEHEIM"}, ["'tokn'", "did you mean 'token'", "endpoint"]),
        ("ftp://127.0.0.1/x.npy", {"passwd": "GEHEIM"}, ["'passwd'", "did you mean 'password'", "username"]),
        ("memory://b/x.npy", {"region": "GEHEIM"}, ["'region'", "global_store", "retry_timeout"]),
        ("github://main/x.npy", {"sha": "main"}, ["no org and no repo", "expected: org, repo"]),
        ("memory://b/x.npy", {"max_retries": "many"}, ["max_retries", "'many'", "an integer"]),
        ("memory://b/x.npy", {"retry_timeout": [3]}, ["retry_timeout", "seconds"]),
    ],
)
@pytest.mark.parametrize("several", [False, True])
def test_a_wrong_option_is_named_with_those_that_are_known(
    url: str, options: dict[str, object], words: list[str], several: bool
) -> None:
    with pytest.raises(UsageError) as caught:
        headrace.open([url, url] if several else url, options=options)
    for word in ("place:", "found:", "expected:", "fix:", *words):
        assert word in str(caught.value)
    assert "manifest" not in str(caught.value)
    assert "GEHEIM" not in str(caught.value)


@pytest.mark.parametrize("options", [{"typo": 1}, {"region": 5}, {"max_retries": "many"}])
@pytest.mark.parametrize(
    "url", ["s3://b/x-{0..3}.tar", "http://127.0.0.1:1/x-{0..3}.tar", "s3://b/x.npz", "gs://b/x-*.tar"]
)
@pytest.mark.parametrize("format", [None, "webdataset"])
def test_a_wrong_option_is_no_damage_to_data(url: str, options: dict[str, object], format: str | None) -> None:
    given = {"skip_signature": True, **options}
    if url.startswith("http"):
        given = dict(options)
    with pytest.raises(UsageError, match="option of a store") as caught:
        headrace.open(url, format=format, options=given)
    assert next(iter(options)) in str(caught.value)
    assert "manifest" not in str(caught.value)


def test_a_listing_is_never_an_old_one(store: Store) -> None:
    store.write("f/a", [b"1"])
    assert len(store.list_folder("f")[1]) == 1
    store.write("f/b", [b"1"])
    assert len(store.list_folder("f")[1]) == 2


def test_an_error_of_a_filesystem_while_writing_is_an_error_of_the_store(store: Store) -> None:
    def fails(*args: object, **settings: object) -> None:
        raise OSError("disk of the server GEHEIM")

    store._system.open = fails  # type: ignore[attr-defined]
    with pytest.raises(StorageError, match="cannot write an object") as caught:
        store.write("k", [b"1"])
    assert "GEHEIM" not in str(caught.value)


def test_options_that_a_filesystem_does_not_take() -> None:
    with pytest.raises((UsageError, StorageError), match="cannot open a store"):
        open_store(parse("ftp://127.0.0.1/"), {"port": 1, "password": "GEHEIM"})


def test_without_obstore_the_extra_is_named(tmp_path: Path) -> None:
    script = """
import sys
sys.modules["obstore"] = None
sys.modules["s3fs"] = None
sys.modules["adlfs"] = None
from headrace.core.errors import MissingExtraError
from headrace.storage.locations import parse
from headrace.storage.stores.opening import open_store
for url in ("s3://b", "az://c"):
    try:
        open_store(parse(url))
    except MissingExtraError as error:
        assert "pip install 'headrace[cloud]'" in str(error), error
    else:
        sys.exit(f"{url} was opened")
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60, check=False)
    assert (0, "") == (done.returncode, done.stderr)


def test_storage_is_light_until_it_is_used() -> None:
    script = """
import sys
import headrace.storage.locations, headrace.storage.stores.objects
headrace.storage.locations.parse("s3://bucket/key")
heavy = {"torch", "obstore", "fsspec", "numpy", "pyarrow", "asyncio"} & sys.modules.keys()
sys.exit(" ".join(heavy) or 0)
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60, check=False)
    assert (0, "") == (done.returncode, done.stderr)
