"""The three doors to data: the wrong one is an error that names the right one."""

from __future__ import annotations

import contextlib
import inspect
import sqlite3
from pathlib import Path
from typing import Any

import pytest

import headrace
from headrace.errors import UsageError

FILE = "train.bin"


@pytest.mark.parametrize("name", ["until", "span", "journal", "frame", "settle", "linger"])
def test_a_keyword_of_what_never_ends_names_its_door(name: str) -> None:
    with pytest.raises(TypeError, match=rf"headrace\.open\(\).*{name!r}: it is one of headrace\.follow\(\)"):
        headrace.open(FILE, **{name: 1})


@pytest.mark.parametrize("name", ["dtype", "window", "stride"])
def test_a_keyword_of_flat_files_names_its_door(name: str) -> None:
    with pytest.raises(TypeError, match=rf"headrace\.open\(\).*{name!r}: it is one of headrace\.open_tokens\(\)"):
        headrace.open(FILE, **{name: 1})


def test_a_keyword_of_two_doors_names_both() -> None:
    both = r"headrace\.open\(\) and headrace\.open_tokens\(\)"
    with pytest.raises(TypeError, match=rf"headrace\.follow\(\).*'cache_dir': it is one of {both}"):
        headrace.follow("kafka://host/topic", cache_dir="here")
    both = r"headrace\.open\(\) and headrace\.follow\(\)"
    with pytest.raises(TypeError, match=rf"headrace\.open_tokens\(\).*'table': it is one of {both}"):
        headrace.open_tokens(FILE, "uint16", 4, table="x")  # type: ignore[call-overload]


@pytest.mark.parametrize("door", [headrace.open, headrace.open_tokens, headrace.follow])
def test_a_keyword_of_none_is_refused_as_python_does(door: Any) -> None:
    given = {"dtype": "uint16"} if door is headrace.open_tokens else {}
    with pytest.raises(TypeError, match=r"unexpected keyword argument 'untl'$"):
        door("kafka://host/topic", **given, untl="now")


@pytest.mark.parametrize("url", ["kafka://host/t", "redis://host/s", "amqp://host/q", "tcp://host:1", "unix:///path"])
def test_a_source_that_never_ends_is_not_opened(url: str) -> None:
    for opening in (headrace.open, lambda uri: headrace.open_tokens(uri, "uint16", 4)):
        with pytest.raises(UsageError, match="never ends") as raised:
            opening(url)
        assert f"headrace.follow('{url}'" in str(raised.value)


def test_secrets_in_a_url_are_not_shown_at_the_wrong_door() -> None:
    with pytest.raises(UsageError, match="never ends") as raised:
        headrace.open("amqp://me:geheim@host/queue")
    assert "geheim" not in str(raised.value)


@pytest.mark.parametrize("what", ["data.parquet", "s3://bucket/data.parquet", Path("folder"), ["a.npy"], 5])
def test_what_has_an_end_is_not_followed(what: Any) -> None:
    with pytest.raises(UsageError, match="could be followed") as raised:
        headrace.follow(what)
    assert "headrace.open" in str(raised.value)


def test_a_word_for_records_is_none_for_stored_data(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"headrace\.open\(decode=\)"):
        headrace.open(tmp_path, decode="json")  # type: ignore[arg-type]


def test_each_door_shows_its_signature() -> None:
    for door in (headrace.open, headrace.open_tokens, headrace.follow):
        parameters = inspect.signature(door).parameters
        assert all(word in (door.__doc__ or "") for word in parameters if word != "others"), door.__name__


@pytest.mark.parametrize("name", ["trust", "decode", "format"])
def test_what_is_no_value_of_a_keyword_is_refused(name: str, tmp_path: Path) -> None:
    """Above all `trust="no"`, which is true for Python."""
    value: Any = 3 if name == "format" else "no"
    with pytest.raises(UsageError, match=rf"headrace\.open\({name}=\)"):
        headrace.open(tmp_path, **{name: value})
    if name == "trust":
        for other in (headrace.verify, lambda path, **words: headrace.pack(path, path / "there", **words)):
            with pytest.raises(UsageError, match=r"\(trust=\)"):
                other(tmp_path, trust=value)


@pytest.mark.parametrize("name", ["format", "options", "cache_dir", "cache_limit"])
@pytest.mark.parametrize("kind", ["database", "datasets.Dataset", "file", "file URL", "list"])
def test_what_would_say_nothing_about_the_data_is_refused(kind: str, name: str, tmp_path: Path) -> None:
    value: Any = {"format": "csv", "options": {"region": "x"}, "cache_dir": tmp_path / "c", "cache_limit": "2GB"}[name]
    path = tmp_path / "a.csv"
    path.write_text("x\n1\n2\n")
    source: Any = path
    if kind == "database":
        source = f"sqlite:///{tmp_path}/a.db"
        sqlite3.connect(tmp_path / "a.db").execute("create table t (k integer primary key)").connection.close()
    elif kind == "datasets.Dataset":
        source = pytest.importorskip("datasets").Dataset.from_dict({"x": [1, 2]})
    elif kind == "file URL":
        source = path.as_uri()
    elif kind == "list":
        source = [path, path]
    if name == "format" and kind in ("file", "file URL", "list"):
        assert len(headrace.open(source, format=value)) > 0
        return

    with pytest.raises(UsageError, match=rf"headrace\.open\({name}=\)"):
        headrace.open(source, **{name: value})
    assert {one.name for one in tmp_path.iterdir()} <= {"a.csv", "a.db"}


def open_connection() -> Any:
    return sqlite3.connect(":memory:")


@pytest.mark.parametrize(
    ("given", "words", "told"),
    [
        (lambda name: open_connection(), {"table": "t"}, r"argument: 'name'(.|\n)*functools\.partial"),
        (open_connection, {"format": "csv"}, r"headrace\.open\(format=\)(.|\n)*leave format= out"),
        (b"data.csv", {}, r"os\.fsdecode"),
        ({"train": 1, "test": 2}, {}, r"choose one of 'train', 'test', as in data\['train'\]"),
        ("a\0b", {}, "a zero byte"),
        ("https://[::1/x", {}, "https://HOST:PORT/PATH"),
        ("a.db", {"query": "select 1"}, "sqlite:///PATH"),
        (Path, {}, "of type type"),
    ],
)
def test_what_people_give_by_mistake_has_a_fix(given: Any, words: dict[str, Any], told: str) -> None:
    with pytest.raises(UsageError, match=told):
        headrace.open(given, **words)


def test_an_open_connection_has_a_fix() -> None:
    with (
        contextlib.closing(open_connection()) as connection,
        pytest.raises(UsageError, match="a function that connects"),
    ):
        headrace.open(connection, table="t", key="k")


def test_a_file_url_may_have_one_slash(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("x\n1\n2\n")
    assert [row["x"] for row in headrace.open(f"file:{tmp_path}/a.csv")] == [1, 2]


def test_no_options_are_nothing_that_was_given(tmp_path: Path) -> None:
    """As the command line passes them."""
    with contextlib.closing(sqlite3.connect(tmp_path / "a.db")) as connection:
        connection.execute("create table t (k integer primary key)")
        connection.execute("insert into t values (7)")
        connection.commit()
    assert headrace.open(f"sqlite:///{tmp_path}/a.db", table="t", key="k", options={})[0]["k"] == 7
