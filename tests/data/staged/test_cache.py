"""What lies in a cache comes out of it; one that is out of date, damaged or in the way is an error with a fix."""

from __future__ import annotations

import json
import logging
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import headrace
from headrace import Staged, step
from headrace.core.errors import FormatError, HeadraceError, StaleCacheError, UsageError
from headrace.data.formats.registry import FORMATS
from tests.data.formats.samples import usual, write
from tests.data.staged.building import Counting, is_whole, left_in
from tests.data.staged.pipelines import same, samples

SOURCE = [{"x": np.arange(4.0) + number, "text": "a" * number} for number in range(6)]


def doubled(one: dict[str, Any]) -> dict[str, Any]:
    return {**one, "x": one["x"] * 2}


def negated(one: dict[str, Any]) -> dict[str, Any]:
    return {**one, "x": -one["x"]}


@pytest.fixture
def cache(tmp_path: Path) -> Path:
    """A complete cache of `SOURCE`."""
    Staged(SOURCE, cache=tmp_path / "c")
    return tmp_path / "c"


# -- formats ---------------------------------------------------------------------------------------------------------


NUMBERS = [{"x": np.full(3, number, np.float32), "n": np.int16(number), "id": number} for number in range(20)]
TEXTS = [{"text": "wörd " * (number % 3), "weight": number / 7} for number in range(20)]
CONTENT = [{"image": bytes([number % 256] * 9)} for number in range(20)]
HOLDS = {
    "arrow": "nmtc", "memmap": "nmtc", "parquet": "ntc", "webdataset": "ntc", "lmdb": "nmtc", "hdf5": "nmtc",
    "npz": "nmtc", "npy": "n", "idx": "", "tensordict": "n", "huggingface": "ntc", "pt": "nmtc", "csv": "t", "tsv": "t",
    "jsonl": "nt", "folder": "c",
}  # fmt: skip
"""Which of these samples a format holds: numbers, mixed ones, texts, content of files."""

KINDS = {"n": NUMBERS, "m": samples(30, 1), "t": TEXTS, "c": CONTENT}


@pytest.mark.parametrize("format", FORMATS)
@pytest.mark.parametrize("kind", KINDS)
def test_any_format_gives_the_same_samples_or_is_refused_at_once(tmp_path: Path, format: str, kind: str) -> None:
    source, counting = KINDS[kind], Counting()

    def opened() -> Staged:
        return Staged(source, counting, cache=tmp_path / "c", format=format)

    if kind in HOLDS[format]:
        assert is_whole(opened(), source)
        counting.calls = 0
        again = opened()
        assert is_whole(again, source)
        assert counting.calls == 0
        batch = next(iter(headrace.DataLoader(again.map(without_images), batch_size=4, shuffle=True, seed=1)))
        plain = Staged(source).map(without_images)
        assert same(batch, next(iter(headrace.DataLoader(plain, batch_size=4, shuffle=True, seed=1))))
        return
    with pytest.raises(FormatError, match=rf"{format}(.|\n)*fix:"):
        opened()
    assert not (tmp_path / "c").exists() or left_in(tmp_path / "c") == []


def without_images(one: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in one.items() if name != "image"}


def test_a_format_that_cannot_is_refused_before_all_is_computed(tmp_path: Path) -> None:
    counting = Counting()
    with pytest.raises(FormatError, match="csv"):
        Staged([{"x": np.zeros(3)}] * 1000, counting, cache=tmp_path / "c", format="csv")
    assert counting.calls < 500


def test_a_format_that_is_not_there_is_refused_at_once(tmp_path: Path) -> None:
    counting = Counting()
    with pytest.raises(UsageError, match="memmap"):
        Staged(SOURCE, counting, cache=tmp_path / "c", format="memap")
    assert counting.calls == 0
    assert not (tmp_path / "c").exists()


@pytest.mark.parametrize("old", ["memmap", "hdf5", "npz"])
@pytest.mark.parametrize("new", ["memmap", "arrow", "hdf5"])
def test_a_cache_is_built_anew_in_another_format(tmp_path: Path, old: str, new: str) -> None:
    Staged(SOURCE, cache=tmp_path / "c", format=old)
    if old != new:
        with pytest.raises(StaleCacheError, match=f"the format was {old}, is {new}"):
            Staged(SOURCE, cache=tmp_path / "c", format=new)
    assert is_whole(Staged(SOURCE, cache=tmp_path / "c", format=new, stale="rebuild"), SOURCE)
    assert is_whole(Staged(SOURCE, cache=tmp_path / "c", format=new), SOURCE)
    assert len({one.partition(".")[0] for one in left_in(tmp_path / "c")}) == 1


# -- out of date -----------------------------------------------------------------------------------------------------


def a_closure(factor: int) -> Callable[[Any], Any]:
    def scaled(one: Any) -> Any:
        return {**one, "x": one["x"] * factor}

    return scaled


def of_code(code: str) -> Any:
    space: dict[str, Any] = {"__name__": "__main__"}
    exec(code, space)
    return space["f"]


CHANGES: dict[str, tuple[Any, Any, str]] = {
    "code": (of_code("def f(s): return s"), of_code("def f(s): return dict(s)"), r"step 1 'f', code was .*, is"),
    "closure": (a_closure(2), a_closure(3), r"step 1 'scaled', value of factor was 2, is 3"),
    "global": (of_code("K = 5\ndef f(s): return {'x': K}"), of_code("K = 6\ndef f(s): return {'x': K}"),
               r"value of K was 5, is 6"),
    "argument": (step(doubled, on=None, version="1"), step(doubled, version="2"), r"version was '1', is '2'"),
    "order": ([doubled, negated], [negated, doubled], r"step 1 'doubled', code is gone"),
    "one more": ([doubled], [doubled, negated], r"step 2 'negated', code is new"),
    "batched": (of_code("def f(s): return s"), step(of_code("def f(s): return s"), batched=True), r"batched is new"),
}  # fmt: skip


@pytest.mark.parametrize("change", CHANGES)
def test_a_change_of_steps_is_named_and_built_anew_when_asked(
    tmp_path: Path, change: str, caplog: pytest.LogCaptureFixture
) -> None:
    before, after, words = CHANGES[change]
    old = [Staged(SOURCE, before)[key] for key in range(6)]
    Staged(SOURCE, before, cache=tmp_path / "c")
    with pytest.raises(StaleCacheError, match=rf"{tmp_path}(.|\n)*{words}(.|\n)*rebuild"):
        Staged(SOURCE, after, cache=tmp_path / "c")
    assert is_whole(Staged(SOURCE, before, cache=tmp_path / "c"), old)
    with caplog.at_level(logging.INFO, "headrace"):
        made = Staged(SOURCE, after, cache=tmp_path / "c", stale="rebuild")
    assert [one.levelname for one in caplog.records] == ["WARNING"]
    assert caplog.records[0].getMessage().count("is rebuilt") == 1
    assert is_whole(made, [Staged(SOURCE, after)[key] for key in range(6)])
    assert len(left_in(tmp_path / "c")) == 1
    caplog.clear()
    Staged(SOURCE, after, cache=tmp_path / "c", stale="rebuild")
    assert caplog.records == []


@pytest.mark.parametrize("change", ["replaced", "touched", "longer"])
def test_a_change_of_stored_data_is_noticed(tmp_path: Path, change: str) -> None:
    path = write("npz", tmp_path / "source.npz", [usual("npz", 30, seed=1)])
    Staged(headrace.open(path), cache=tmp_path / "c")
    Staged(headrace.open(path), cache=tmp_path / "c")
    if change == "touched":
        os.utime(path, (1, 1))
    else:
        path.unlink()
        write("npz", path, [usual("npz", 30 if change == "replaced" else 31, seed=2)])
    with pytest.raises(StaleCacheError, match="dataset"):
        Staged(headrace.open(path), cache=tmp_path / "c")
    made = Staged(headrace.open(path), cache=tmp_path / "c", stale="rebuild")
    assert is_whole(made, list(headrace.open(path)))


def changed(**words: Any) -> Callable[[Path], None]:
    def change(cache: Path) -> None:
        path = cache / "staged.json"
        path.write_text(json.dumps({**json.loads(path.read_text()), **words}))

    return change


def test_a_changed_version_of_a_library_is_named(cache: Path) -> None:
    changed(libraries={"python": "2.7"})(cache)
    with pytest.raises(StaleCacheError, match=r"version of python was 2.7, is 3"):
        Staged(SOURCE, cache=cache)


@pytest.mark.parametrize("stale", ["rebuilt", None, True])
def test_unknown_values_of_stale_are_refused(tmp_path: Path, stale: Any) -> None:
    with pytest.raises(UsageError, match="stale"):
        Staged(SOURCE, cache=tmp_path / "c", stale=stale)


def test_data_that_are_only_in_memory_are_compared_by_their_values(tmp_path: Path) -> None:
    Staged(samples(5, 0), cache=tmp_path / "c")
    assert is_whole(Staged(samples(5, 0), cache=tmp_path / "c"), samples(5, 0))
    with pytest.raises(StaleCacheError, match="dataset"):
        Staged(samples(5, 1), cache=tmp_path / "c")


# -- damaged ---------------------------------------------------------------------------------------------------------


def leaf(name: Any, kind: str = "array", dtype: str = "float64", form: str = "fixed", shape: Any = (4,)) -> Any:
    return [name, kind, dtype, form, list(shape)]


def tree(*parts: Any, keys: Any = ("x", "text"), kind: str = "dict") -> Any:
    return {"type": kind, "keys": list(keys), "parts": list(parts)}


TEXT = leaf("text", "str", "uint8", "fixed", ())
LAYOUTS: dict[str, Any] = {
    "one leaf": leaf("x"), "a shape": tree(leaf("x", shape=(5,)), TEXT), "a type": tree(leaf("x", "foo"), TEXT),
    "keys": tree(leaf("x"), TEXT, keys=("x", ["text"])), "twice": tree(leaf("x"), leaf("x")),
    "no dict": tree(kind="set", keys=()),
    "a form": tree(leaf("x", form="ragged", shape=()), TEXT), "negative": tree(leaf("x", shape=(-4,)), TEXT),
    "a dtype": tree(leaf("x", dtype="object"), TEXT), "a name": tree(leaf("y"), TEXT), "null": None,
}  # fmt: skip


def each_array(change: Callable[[Path], None]) -> Callable[[Path], None]:
    def damage(cache: Path) -> None:
        change(next(iter(sorted(cache.glob("data-*/x*.npy")))))

    return damage


DAMAGE: dict[str, Callable[[Path], Any]] = {
    "cut off": lambda cache: (cache / "staged.json").write_text((cache / "staged.json").read_text()[:50]),
    "empty": lambda cache: (cache / "staged.json").write_text(""),
    "no text": lambda cache: (cache / "staged.json").write_bytes(b"\xff\xfe\0"),
    "deep": lambda cache: (cache / "staged.json").write_text("[" * 100_000),
    "a list": lambda cache: (cache / "staged.json").write_text("[]"),
    "a folder": lambda cache: ((cache / "staged.json").unlink(), (cache / "staged.json").mkdir()),
    "no data": lambda cache: shutil.rmtree(next(cache.glob("data-*"))),
    "an array cut off": each_array(lambda path: os.truncate(path, path.stat().st_size - 5)),
    "an array missing": each_array(Path.unlink),
    "version": changed(headrace=99),
    "parts": changed(parts=3),
    "outside": changed(data="../data-1"),
    "other data": changed(data="data-0123456789abcdef"),
    **{f"length {length}": changed(length=length) for length in (7, 0, -1, 1e400, "6x", None)},
    **{f"format {format}": changed(format=format) for format in ("zip", [], None)},
    **{f"layout: {name}": changed(layout=layout) for name, layout in LAYOUTS.items()},
}


@pytest.mark.parametrize("damage", DAMAGE)
def test_a_damaged_cache_is_an_error_that_says_what_to_do(cache: Path, damage: str) -> None:
    DAMAGE[damage](cache)
    with pytest.raises(HeadraceError) as caught:
        [Staged(SOURCE, cache=cache)[key] for key in range(6)]
    assert str(cache) in str(caught.value)
    assert "delete the folder" in str(caught.value) or damage == "a folder"
    assert not isinstance(caught.value, UsageError)
    shutil.rmtree(cache)
    assert is_whole(Staged(SOURCE, cache=cache), SOURCE)


def test_a_cache_that_lost_its_description_is_built_anew(cache: Path) -> None:
    (cache / "staged.json").unlink()
    assert is_whole(Staged(SOURCE, cache=cache), SOURCE)
    assert len(left_in(cache)) == 1


# -- in the way ------------------------------------------------------------------------------------------------------


def test_files_of_others_are_never_taken_for_a_cache(tmp_path: Path) -> None:
    names = ["data-train/x", "data-2/y", ".data-mine/z", "notes.txt"]
    for name in names:
        folder = tmp_path / name.replace("/", "_")
        (folder / name).parent.mkdir(parents=True)
        (folder / name).write_text("precious")
        with pytest.raises(UsageError, match=r"already(.|\n)*fix:"):
            Staged(SOURCE, cache=folder)
        assert (folder / name).read_text() == "precious"


def test_files_that_are_put_beside_a_cache_stay(cache: Path) -> None:
    for name in ("data-mine", ".data-mine", "data-0123456789abcdefg", "staged.json.old"):
        (cache / name).write_text("precious")
    Staged(SOURCE, doubled, cache=cache, stale="rebuild")
    assert len(left_in(cache)) == 5
