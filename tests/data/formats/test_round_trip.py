"""What is written comes back: the same values, types, order, names and classes, from every format and to every one."""

from __future__ import annotations

import multiprocessing
import pickle
import tempfile
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

import headrace
from headrace.core.errors import FormatError
from headrace.data.blobs import Blobs
from headrace.data.formats.columns import Block, ragged_from
from headrace.data.formats.columns.schema import Field, Schema
from headrace.data.formats.registry import format_named, open_reader
from tests.data.formats.samples import (
    FORMATS,
    TEXTS,
    all_of,
    assert_same,
    block_of,
    blocks,
    halves,
    held,
    path_of,
    read,
    schemas,
    usual,
    write,
)

TEXT = Field("words", "text")
NUMBER = Field("number", "fixed", np.dtype(np.int64))
HUB = "memmap"
"""It can hold every field, so what goes to it and comes from it says nearly all about a format."""

PAIRS = list(
    dict.fromkeys(
        [
            *((HUB, one) for one in FORMATS),
            *((one, HUB) for one in FORMATS),
            *zip(FORMATS, FORMATS[5:] + FORMATS[:5], strict=True),  # some without it
        ]
    )
)
FEW = settings(
    max_examples=3,
    deadline=None,
    database=None,
    derandomize=True,
    suppress_health_check=list(HealthCheck),
    phases=(Phase.generate, Phase.shrink),
)
MORE = settings(FEW, max_examples=15)


@pytest.mark.quick(one=HUB)
@FEW
@given(data=st.data())
@pytest.mark.parametrize(("one", "other"), PAIRS, ids=["-".join(pair) for pair in PAIRS])
def test_what_two_formats_can_hold_goes_through_both_unchanged(one: str, other: str, data: st.DataObject) -> None:
    block = data.draw(blocks([one, other]))
    sharded = data.draw(st.booleans())
    with tempfile.TemporaryDirectory() as folder:
        first, second = path_of(one, Path(folder) / "1", sharded), path_of(other, Path(folder) / "2", not sharded)
        for path in (first, second):
            path.parent.mkdir()
        reader = open_reader(write(one, first, halves(block)))
        assert reader.format == one
        runs = [reader.fetch(np.arange(run.start, run.stop), reader.schema.names) for run in reader.blocks()]
        write(other, second, runs, reader.schema)
        assert_same(block, all_of(reader))
        assert_same(block, read(second))


@pytest.mark.quick(format=["arrow", "memmap", "hdf5", "webdataset", "pt"])
@MORE
@given(data=st.data())
@pytest.mark.parametrize("format", FORMATS)
def test_random_access_gives_what_the_same_keys_give_in_memory(format: str, data: st.DataObject) -> None:
    block = data.draw(blocks([format]))
    with tempfile.TemporaryDirectory() as folder:
        reader = open_reader(write(format, path_of(format, Path(folder)), [block]))
        assert len(reader) == len(block)
        names = data.draw(st.lists(st.sampled_from(block.schema.names), min_size=1, unique=True))
        for _ in range(3):
            keys = np.array(data.draw(st.lists(st.integers(0, len(block) - 1), max_size=12)), np.int64)
            schema = block.schema.only(names)
            assert_same(block.only(schema).take(keys), reader.fetch(keys, names))
        for name in names:
            column = reader.column(name)
            if column is not None:
                schema = block.schema.only([name])
                assert_same(block.only(schema), Block(schema, {name: column}))


@pytest.mark.parametrize("format", [name for name in FORMATS if held(TEXT, [name]) and held(NUMBER, [name])])
def test_every_special_text_comes_back_alone_and_behind_a_number(format: str, tmp_path: Path) -> None:
    texts = ragged_from(TEXT, list(TEXTS))
    alone = Block(Schema((TEXT,)), {"words": texts})
    assert_same(alone, read(write(format, path_of(format, tmp_path / "alone"), [alone])))

    beside = Block(Schema((NUMBER, TEXT)), {"number": np.arange(len(TEXTS)), "words": texts})
    assert_same(beside, read(write(format, path_of(format, tmp_path / "beside"), [beside])))


@pytest.mark.parametrize("format", FORMATS)
def test_a_data_set_without_samples_comes_back(format: str, tmp_path: Path) -> None:
    block = usual(format).rows(0, 0)
    path = write(format, path_of(format, tmp_path), [block])
    assert_same(block, read(path))
    assert_same(block, read(write(format, path_of(format, tmp_path), [], block.schema)))
    assert list(headrace.open(path).stream()) == []


@pytest.mark.parametrize("format", FORMATS)
def test_blocks_cover_all_samples_once_in_order(format: str, tmp_path: Path) -> None:
    reader = open_reader(write(format, path_of(format, tmp_path), [usual(format, 300)]))
    covered = [key for run in reader.blocks() for key in run]
    assert covered == list(range(300))


@pytest.mark.parametrize("format", FORMATS)
def test_what_is_written_twice_has_the_same_bytes(format: str, tmp_path: Path) -> None:
    trees = []
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
        write(format, path_of(format, tmp_path / name), halves(usual(format)))
        files = sorted(path for path in (tmp_path / name).rglob("*") if path.is_file())
        trees.append({str(path.relative_to(tmp_path / name)): path.read_bytes() for path in files})
    assert trees[0] == trees[1]


@pytest.mark.parametrize("format", FORMATS)
def test_a_writer_that_is_given_up_leaves_nothing_and_one_that_is_sealed_only_the_data(
    format: str, tmp_path: Path
) -> None:
    path, block = path_of(format, tmp_path), usual(format)
    writer = format_named(format).open_writer(str(path), block.schema)
    writer.append(block)
    assert not path.exists()
    writer.abort()
    assert list(tmp_path.iterdir()) == []
    write(format, path, [block])
    assert {one.name for one in tmp_path.iterdir()} <= {
        path.name,
        f"{path.name}.headrace.json",
        f"{path.name}.index",
    }


@pytest.mark.parametrize("format", FORMATS)
def test_old_data_stay_until_new_ones_are_sealed(format: str, tmp_path: Path) -> None:
    path, old, new = path_of(format, tmp_path), usual(format, 5, 1), usual(format, 9, 2)
    write(format, path, [old])
    writer = format_named(format).open_writer(str(path), new.schema)
    writer.append(new)
    assert_same(old, read(path))
    writer.seal()
    assert_same(new, read(path))


@MORE
@given(schemas(["memmap"]), st.sampled_from(FORMATS))
def test_a_format_that_refuses_a_field_says_so_before_it_writes(schema: Schema, format: str) -> None:
    reasons = [format_named(format).refusal(field) for field in schema]
    with tempfile.TemporaryDirectory() as folder:
        path = path_of(format, Path(folder))
        if any(reasons):
            with pytest.raises(FormatError, match="cannot hold"):
                write(format, path, [block_of(schema, 2, 0, finite=True)])
        assert list(Path(folder).iterdir()) == [] or not any(reasons)


def plain(value: Any) -> Any:
    """Returns a batch as plain values."""
    if isinstance(value, dict):
        return {name: plain(part) for name, part in value.items()}
    if isinstance(value, Blobs):
        return [bytes(part) for part in value]
    if isinstance(value, (torch.Tensor, np.ndarray, np.generic)):
        return value.tolist()
    if isinstance(value, (tuple, list)):
        return [plain(part) for part in value]
    return value


def of_stream(batches: Any) -> Counter[str]:
    """Returns how often each sample comes in batches of samples as they are."""
    return Counter(repr(plain(sample)) for batch in batches for sample in batch)


def as_they_are(samples: list[Any]) -> list[Any]:
    """Collates nothing."""
    return samples


SPAWNED = [
    pytest.param(format, "spawn", marks=() if format in ("arrow", "hdf5") else pytest.mark.stress) for format in FORMATS
]


@pytest.mark.quick(format=["arrow", "memmap", "hdf5", "webdataset", "pt"], start="fork")
@pytest.mark.parametrize(("format", "start"), [*((format, "fork") for format in FORMATS), *SPAWNED])
def test_workers_deliver_what_is_delivered_without_them(format: str, start: str, tmp_path: Path) -> None:
    path = write(format, path_of(format, tmp_path), halves(usual(format, 40)))
    dataset = headrace.open(path, decode=False)
    context = multiprocessing.get_context(start)
    alone = [plain(batch) for batch in headrace.DataLoader(dataset, batch_size=7)]
    sent = pickle.loads(pickle.dumps(dataset))
    assert [plain(batch) for batch in headrace.DataLoader(sent, batch_size=7)] == alone
    with_workers = headrace.DataLoader(dataset, batch_size=7, num_workers=2, multiprocessing_context=context)
    assert [plain(batch) for batch in with_workers] == alone
    assert len(alone) == 6


@pytest.mark.quick(format=["arrow", "memmap", "hdf5", "webdataset", "pt"])
@pytest.mark.parametrize("start", ["fork", pytest.param("spawn", marks=pytest.mark.stress)])
@pytest.mark.parametrize("format", FORMATS)
def test_workers_deliver_each_sample_of_a_stream_once(format: str, start: str, tmp_path: Path) -> None:
    path = write(format, path_of(format, tmp_path, sharded=True), halves(usual(format, 40)))
    dataset = headrace.open(path, decode=False)
    wanted = of_stream([[dataset[index]] for index in range(40)])
    context = multiprocessing.get_context(start)
    loader = headrace.DataLoader(
        dataset.stream(shuffle=8), batch_size=7, num_workers=2, multiprocessing_context=context, collate_fn=as_they_are
    )
    assert of_stream(loader) == wanted
    assert of_stream(headrace.DataLoader(dataset.stream(), batch_size=7, collate_fn=as_they_are)) == wanted
