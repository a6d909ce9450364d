"""What URLs mean, and that a location holds no secret."""

from __future__ import annotations

import pickle
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.core.errors import MissingExtraError, UsageError
from headrace.storage.locations import Location, is_url, local_path, parse, url_options


@pytest.mark.parametrize(
    ("url", "expected"),
    [
        ("s3://bucket/a/b.tar", Location("s3", "bucket", "a/b.tar")),
        ("S3://bucket", Location("s3", "bucket", "")),
        ("s3a://bucket/k", Location("s3", "bucket", "k")),
        ("s3://bucket/a b%20c+d?e#f", Location("s3", "bucket", "a b%20c+d?e#f")),
        ("s3://user:password@bucket/k", Location("s3", "bucket", "k")),
        ("gs://bucket/k/", Location("gs", "bucket", "k/")),
        ("gcs://bucket/k", Location("gs", "bucket", "k")),
        ("az://container/k", Location("az", "container", "k")),
        ("abfss://c@account.dfs.core.windows.net/k", Location("az", "c@account.dfs.core.windows.net", "k")),
        ("http://host:8080/a/b", Location("http", "host:8080", "a/b")),
        ("https://HOST/a%20b%25?X-Amz-Signature=abc#part", Location("https", "host", "a b%")),
        ("https://user:password@host/a", Location("https", "host", "a")),
        ("https://[::1]:80/a", Location("https", "[::1]:80", "a")),
        ("file:///data/a%20b", Location("file", "", "data/a b")),
        ("file://localhost/data", Location("file", "", "data")),
        ("memory://a/b", Location("memory", "a", "b")),
        ("ftp://user:password@host/a", Location("ftp", "host", "a")),
    ],
)
def test_urls_and_their_locations(url: str, expected: Location) -> None:
    assert parse(url) == expected
    assert parse(expected.url) == expected


@pytest.mark.parametrize(
    ("url", "words"),
    [
        ("s3:/bucket/k", ["did you mean s3://bucket/k"]),
        ("s3:///k", ["no bucket", "s3://BUCKET/k"]),
        ("az://@account/k", ["no bucket"]),
        ("gs://", ["no bucket"]),
        ("s3://data\n/k", ["space or line break"]),
        ("https:///a", ["no host"]),
        ("https://host:99999/a", ["no host and port"]),
        ("https://host/o/a%2Fb", ["%2F"]),
        ("s33://bucket/k", ["'s33'", "headrace[cloud]", "hf"]),
        ("file://server/share", ["server", "file:///"]),
        ("zip://a.zip::s3://bucket/b.zip", ["a URL inside of a URL"]),
        ("plain/path", ["s3://bucket/key"]),
    ],
)
def test_wrong_urls_are_told_with_a_fix(url: str, words: list[str]) -> None:
    with pytest.raises(UsageError) as caught:
        parse(url)
    for word in ["place:", "found:", "expected:", "fix:", *words]:
        assert word in str(caught.value)


@pytest.mark.parametrize(("scheme", "package"), [("webdav", "webdav4"), ("smb", "smbprotocol")])
def test_a_scheme_whose_package_is_missing_names_the_package(scheme: str, package: str) -> None:
    with pytest.raises(MissingExtraError, match=f"pip install {package}"):
        parse(f"{scheme}://host/a")


@pytest.mark.parametrize(
    ("url", "expected"),
    [
        ("https://host/a?X-Amz-Signature=abc&e=1", {"query": "X-Amz-Signature=abc&e=1"}),
        ("https://me:p%40ss@host/a", {"username": "me", "password": "p@ss"}),
        ("ftp://me:pass@host/a", {"username": "me", "password": "pass"}),
        ("abfss://c@account.dfs.core.windows.net/k", {}),
        ("s3://bucket/k?a=b", {}),
        ("s3://bucket/a@b", {}),
        ("file:///a@b", {}),
    ],
)
def test_what_a_url_holds_besides_its_location(url: str, expected: dict[str, object]) -> None:
    assert url_options(url) == expected


@pytest.mark.parametrize(
    "url",
    [
        "https://me:GEHEIM@host/a?sig=GEHEIM",
        "https://me:GEHEIM@host:99999/a?sig=GEHEIM",
        "https://me:GEHEIM@/a?sig=GEHEIM",
        "https://host/a%2Fb?sig=GEHEIM",
        "https:/me:GEHEIM@host/a?sig=GEHEIM",
        "https://host?sig=GEHEIM",
        "https://host#GEHEIM",
        "s3://me:GEHEIM@bucket/k",
        "s3:/me:GEHEIM@bucket/k",
        "s3://me:GEHEIM@/k",
        "sftp://me:GEHEIM@host/k",
        "nothing://me:GEHEIM@host/k",
        "zip://me:GEHEIM@host/k::x",
        "file://me:GEHEIM@host/k",
        "abfss://me:GEHEIM@host/k",
    ],
)
def test_no_secret_of_a_url_is_in_its_location_or_in_an_error(url: str) -> None:
    shown = []
    try:
        location = parse(url)
        shown += [repr(location), str(location), location.url, repr(pickle.dumps(location))]
    except (UsageError, MissingExtraError) as error:
        shown += [str(error), repr(error), repr(error.__cause__)]
    assert "GEHEIM" not in " ".join(shown)


KEYS = st.text(st.characters(exclude_categories=["Cs"]), max_size=30).map(lambda key: key.lstrip("/"))
NAMES = st.text("abcdefghijklmnopqrstuvwxyz0123456789-.", min_size=1, max_size=20)


@given(st.sampled_from(["s3", "gs", "az"]), NAMES, KEYS)
def test_every_key_of_a_bucket_comes_back_from_its_url(scheme: str, container: str, key: str) -> None:
    location = Location(scheme, container, key)
    assert parse(location.url) == location


@given(st.sampled_from(["http", "https", "file"]), KEYS)
def test_every_key_of_a_server_comes_back_from_its_url(scheme: str, key: str) -> None:
    location = Location(scheme, "" if scheme == "file" else "host", key)
    assert parse(location.url) == location


@settings(deadline=None)  # the first text of a scheme imports what reads it
@given(st.text(max_size=40))
def test_any_text_is_parsed_or_refused(text: str) -> None:
    for given_text in (text, f"s3://{text}", f"https://{text}", f"file://{text}", f"memory://{text}"):
        try:
            location = parse(given_text)
        except (UsageError, MissingExtraError):
            continue
        assert parse(location.url) == location


def test_what_is_a_url(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert is_url("s3://bucket")
    assert is_url(Path("s3://bucket/k"))
    assert not is_url("plain/path")
    assert not is_url("C:/windows")
    assert not is_url(3)

    Path("s3:").mkdir()
    assert not is_url(Path("s3://bucket/k"))
    assert is_url("s3://bucket/k")


def test_file_urls_are_paths() -> None:
    assert local_path("file:///data/a%20b") == "/data/a b"
    assert local_path("file:/data/a") == "/data/a"
    assert local_path(Path("file:///data/a")) == "/data/a"
    assert local_path("file://localhost/data") == "/data"
    assert local_path("/data/a%20b") == "/data/a%20b"
    assert local_path("s3://bucket/k") == "s3://bucket/k"
    assert local_path((Path("/data") / "é ü").as_uri()) == "/data/é ü"
    with pytest.raises(UsageError, match="server"):
        local_path("file://server/share")
