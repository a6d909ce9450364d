"""Arrays in a store are read by ranges, and give what the same files give on this machine."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.ipc
import pytest
from torch.utils.data import Subset

import headrace
from headrace.core.batch_memory import OwnMemory
from headrace.core.errors import UsageError
from headrace.data.formats.arrow import ipc_ranges
from headrace.data.formats.columns import remote_arrays
from headrace.data.formats.columns.remote_reader import RemoteColumnsReader
from headrace.data.formats.fetched_whole import FetchedReader
from headrace.storage.fetching.ranges import ByteRange
from headrace.storage.locations import parse
from headrace.storage.stores.opening import open_store
from tests.data.formats.by_ranges import ROWS, both, plain, samples, store, values
from tests.servers import nginx
from tests.servers.faulty import FaultyServer
from tests.servers.nginx import Nginx
from tests.servers.seaweed import Seaweed

FORMS = ("memmap", "arrow", "arrow compressed", "arrow stream", "npy", "idx", "tensordict", "huggingface")


# -- the same as here --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("small", [True, False])
def test_samples_are_those_of_the_local_reader(
    form: str, small: bool, faulty_server: FaultyServer, request: pytest.FixtureRequest
) -> None:
    if not small:
        request.getfixturevalue("everything_by_ranges")
    here, there = both(faulty_server, store(form, faulty_server.folder / "bucket"))
    assert isinstance(there.reader, RemoteColumnsReader)
    assert here.schema == there.schema
    random = np.random.default_rng(1)
    for keys in (random.integers(0, ROWS, 30), [7, 7, 299, 0, 7], [], range(60, 90), range(ROWS)):
        assert samples(here, keys) == samples(there, keys)

    assert values(here[-1]) == values(there[-1])


@pytest.mark.usefixtures("everything_by_ranges")
@pytest.mark.parametrize("form", ["memmap", "arrow", "arrow stream"])
def test_offsets_that_are_too_many_to_be_kept_are_read_in_blocks(
    form: str, faulty_server: FaultyServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(remote_arrays, "OFFSETS", 0)
    here, there = both(faulty_server, store(form, faulty_server.folder / "bucket"))
    for keys in ([3], [299, 0, 69, 70, 71], [], range(ROWS)):
        assert samples(here, keys) == samples(there, keys)


@pytest.mark.thorough
@pytest.mark.usefixtures("everything_by_ranges")
def test_all_types_of_arrow_are_those_of_the_local_reader(faulty_server: FaultyServer) -> None:
    numbers = range(ROWS)
    table = pa.table(
        {
            "half": pa.array(np.arange(ROWS).astype(np.float16)),
            "list": pa.array([[1, 2, 3][: number % 4] for number in numbers]),
            "pairs": pa.array([[[1, number]] * (number % 3) for number in numbers], pa.list_(pa.list_(pa.int32(), 2))),
            "grid": pa.array([[[1, 2], [3, 4], [5, number % 9]] for number in numbers],
                             pa.list_(pa.list_(pa.int8(), 2), 3)),
            "dictionary": pa.array([f"word {number % 7}" for number in numbers]).dictionary_encode(),
            "bool": pa.array([number % 3 == 0 for number in numbers]),
            "holes": pa.array([None if number % 10 == 0 else 1.5 * number for number in numbers]),
            "time": pa.array(np.arange(ROWS), pa.timestamp("ms")),
            "day": pa.array(np.arange(ROWS, dtype=np.int32), pa.date32()),
            "decimal": pa.array(np.arange(ROWS)).cast(pa.decimal128(25, 2)).cast(pa.decimal128(12, 2)),
            "three": pa.array([b"abc"] * ROWS, pa.binary(3)),
            "view": pa.array([f"long, long view {number}" if number % 2 else "s" for number in numbers],
                             pa.string_view()),
            "struct": pa.array([{"a": 1, "b": "x"}] * ROWS),
            "map": pa.array([[("k", 1)]] * ROWS, pa.map_(pa.string(), pa.int8())),
            "none": pa.nulls(ROWS),
            "last": pa.array([f"text {number}" for number in numbers], pa.large_string()),
        }
    )  # fmt: skip
    folder = faulty_server.folder / "bucket"
    folder.mkdir()
    for number, compression in enumerate((None, "lz4")):
        options = pa.ipc.IpcWriteOptions(compression=compression)
        with pa.ipc.new_file(str(folder / f"{number}.arrow"), table.schema, options=options) as file:
            file.write_table(table, max_chunksize=110)

        with pytest.warns(UserWarning, match="left out"):
            here, there = both(faulty_server, f"{number}.arrow")
        assert here.schema == there.schema
        for keys in (range(ROWS), [299, 5, 5, 110], []):
            assert samples(here, keys) == samples(there, keys)


@pytest.mark.parametrize("array", [np.arange(12.0).reshape(3, 4).T, np.arange(20, dtype=">i4").reshape(5, 4)])
def test_other_orders_of_numbers_are_read(array: np.ndarray[Any, Any], faulty_server: FaultyServer) -> None:
    (faulty_server.folder / "bucket").mkdir()
    np.save(faulty_server.folder / "bucket" / "a.npy", array)
    here, there = both(faulty_server, "a.npy")
    assert isinstance(there.reader, FetchedReader) == (not array.flags.c_contiguous)
    assert samples(here, range(len(array))) == samples(there, range(len(array)))


# -- through loaders ---------------------------------------------------------------------------------------------------


@pytest.mark.usefixtures("everything_by_ranges")
@pytest.mark.parametrize("form", ["memmap", "arrow", "arrow compressed", "huggingface"])
@pytest.mark.parametrize("workers", [0, 2])
def test_batches_are_those_of_the_local_reader(form: str, workers: int, faulty_server: FaultyServer) -> None:
    here, there = both(faulty_server, store(form, faulty_server.folder / "bucket", 90))
    expected = list(headrace.DataLoader(here, batch_size=8, shuffle=True, seed=3))
    found = list(headrace.DataLoader(there, batch_size=8, shuffle=True, seed=3, num_workers=workers))
    assert plain({str(number): batch for number, batch in enumerate(expected)}) == plain(
        {str(number): batch for number, batch in enumerate(found)}
    )


@pytest.mark.thorough
@pytest.mark.parametrize("form", ["npy", "arrow", "arrow compressed"])
def test_spawned_workers_read_by_ranges(form: str, nginx_server: Nginx) -> None:
    name = "x.npy"
    if form != "npy":
        name = store(form, nginx_server.root / "b", 40)
    else:
        (nginx_server.root / "b").mkdir()
        np.save(nginx_server.root / "b" / name, np.arange(40 * 600).reshape(40, 600))

    here = headrace.open(nginx_server.root / "b" / name)
    there = headrace.open(f"{nginx_server.url}/b/{name}")
    loader = headrace.DataLoader(
        Subset(there, range(1, 39)), batch_size=8, num_workers=2, multiprocessing_context="spawn"
    )
    expected = headrace.DataLoader(Subset(here, range(1, 39)), batch_size=8)
    for batch, other in zip(loader, expected, strict=True):
        assert plain(batch) == plain(other)


@pytest.mark.usefixtures("everything_by_ranges")
@pytest.mark.parametrize("form", ["memmap", "arrow", "arrow compressed", "npy"])
@pytest.mark.parametrize("shuffle", [0, 20])
def test_streams_are_those_of_the_local_reader_and_go_on_in_the_middle(
    form: str, shuffle: int, faulty_server: FaultyServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    _, there = both(faulty_server, store(form, faulty_server.folder / "bucket"))
    monkeypatch.setattr(there.reader, "blocks", lambda: [range(at, at + 60) for at in range(0, ROWS, 60)])
    here = headrace.open(faulty_server.folder / "bucket" / store(form, faulty_server.folder / "bucket"))
    monkeypatch.setattr(here.reader, "blocks", there.reader.blocks)

    def loader(dataset: Any) -> Any:
        return headrace.DataLoader(dataset.stream(shuffle=shuffle), batch_size=16, seed=3)

    expected = [plain(batch) for batch in loader(here)]
    assert expected == [plain(batch) for batch in loader(there)]

    first = loader(there)
    batches = iter(first)
    for _ in range(5):
        next(batches)

    again = loader(there)
    again.load_state_dict(first.state_dict())
    assert expected[5:] == [plain(batch) for batch in again]


# -- windows -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("window", [7, 700])
@pytest.mark.parametrize("stride", [None, 3])
@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.usefixtures("everything_by_ranges")
def test_windows_of_tokens_are_those_of_the_local_file(
    window: int, stride: int | None, workers: int, faulty_server: FaultyServer
) -> None:
    (faulty_server.folder / "bucket").mkdir()
    np.random.default_rng(2).integers(0, 50_000, 5000).astype(np.uint16).tofile(
        faulty_server.folder / "bucket" / "train.bin"
    )
    here, there = both(faulty_server, "train.bin", headrace.open_tokens, dtype="uint16", window=window, stride=stride)
    assert len(here) == len(there)
    assert there.lies_elsewhere and not there.lies_in_memory
    keys = np.random.default_rng(3).integers(0, len(here), 40)
    assert plain(here.fetch_batch(keys, OwnMemory())) == plain(there.fetch_batch(keys, OwnMemory()))
    some = range(min(len(here), 40))
    loader = headrace.DataLoader(Subset(there, some), batch_size=4, shuffle=True, seed=1, num_workers=workers)
    expected = headrace.DataLoader(Subset(here, some), batch_size=4, shuffle=True, seed=1)
    for batch, other in zip(loader, expected, strict=True):
        assert plain(batch) == plain(other)


@pytest.mark.usefixtures("everything_by_ranges")
@pytest.mark.parametrize("form", ["npy", "memmap", "arrow", "arrow compressed"])
def test_windows_of_columns_lead_over_record_batches(form: str, faulty_server: FaultyServer) -> None:
    name = store(form, faulty_server.folder / "bucket")
    there = both(faulty_server, name, columns=["image", "label"])[1].windows(9, 4)
    whole = headrace.open(faulty_server.folder / "bucket" / name, columns=["image", "label"])
    batch = there.fetch_batch(np.array([70, 0, 16, 17, 0]), OwnMemory())
    for row, key in enumerate((70, 0, 16, 17, 0)):
        for at in range(9):
            sample = whole[key * 4 + at]
            assert np.array_equal(sample["image"], batch["image"][row, at].numpy())
            assert sample["label"] == batch["label"][row, at]

    assert there.fetch_batch([], OwnMemory())["image"].shape == (0, 9, 4, 5)


def test_windows_of_texts_are_refused(faulty_server: FaultyServer) -> None:
    there = both(faulty_server, store("memmap", faulty_server.folder / "bucket"))[1]
    with pytest.raises(UsageError, match="windows cannot be cut"):
        there.windows(4)


# -- what is asked for -------------------------------------------------------------------------------------------------


class Asked:
    """Records which ranges are read."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.ranges: list[ByteRange] = []
        read = remote_arrays.read_into

        def read_into(ranges: Any, out: memoryview) -> None:
            self.ranges += ranges
            read(ranges, out)

        monkeypatch.setattr(remote_arrays, "read_into", read_into)


@pytest.mark.usefixtures("everything_by_ranges")
@pytest.mark.parametrize("form", FORMS)
def test_what_is_announced_is_what_is_read(
    form: str, faulty_server: FaultyServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    there = both(faulty_server, store(form, faulty_server.folder / "bucket"))[1]
    # Blocks that were decoded are kept.
    monkeypatch.setattr(ipc_ranges, "KEEP", 0)
    there.__getitems__([0])
    for keys in ([5, 9, 200, 9], [], list(range(100, 140))):
        announced = there.byte_ranges(np.array(keys, np.int64))
        asked = Asked(monkeypatch)
        there.__getitems__(keys)
        if form == "arrow compressed":
            assert set(asked.ranges) <= set(announced)
        else:
            assert sorted(asked.ranges) == sorted(announced)


@pytest.mark.usefixtures("everything_by_ranges")
def test_keys_that_are_not_there_are_not_announced(faulty_server: FaultyServer) -> None:
    there = both(faulty_server, store("npy", faulty_server.folder / "bucket"))[1]
    for dataset in (there, there.windows(10)):
        with pytest.raises(IndexError):
            dataset.byte_ranges(np.array([0, ROWS]))


@pytest.mark.usefixtures("everything_by_ranges")
def test_announced_windows_are_what_is_read(faulty_server: FaultyServer, monkeypatch: pytest.MonkeyPatch) -> None:
    (faulty_server.folder / "bucket").mkdir()
    np.arange(9000, dtype=np.uint16).tofile(faulty_server.folder / "bucket" / "train.bin")
    there = both(faulty_server, "train.bin", headrace.open_tokens, dtype="uint16", window=1024, stride=8)[1]
    keys = np.array([3, 900, 4, 3])
    announced = there.byte_ranges(keys)
    asked = Asked(monkeypatch)
    there.fetch_batch(keys, OwnMemory())
    assert asked.ranges == announced
    # The windows that overlap become one range.
    assert [(24 * 2, (32 + 1025) * 2), (7200 * 2, (7200 + 1025) * 2)] == [(one.start, one.stop) for one in announced]


def bytes_sent(server: Nginx) -> tuple[int, int]:
    """Returns how many requests were answered with bytes, and how many bytes these were."""
    # It writes down a request once all of it is sent; before that it takes up no other one.
    assert nginx.ready(server.url)
    sizes = []
    for line in (server.run / "access.log").read_text().splitlines():
        request, _, rest = line.partition('" ')
        if '"GET /b/' in request:
            sizes.append(int(rest.split()[1]))

    return len(sizes), sum(sizes)


def test_random_rows_of_a_large_array_bring_little_more_than_themselves(nginx_server: Nginx) -> None:
    (nginx_server.root / "b").mkdir()
    array = np.lib.format.open_memmap(nginx_server.root / "b" / "a.npy", "w+", np.uint8, (70_000, 3000))
    array[::7] = 5
    array[69_999] = 9
    there = headrace.open(f"{nginx_server.url}/b/a.npy")
    before = bytes_sent(nginx_server)
    keys = np.random.default_rng(4).integers(0, 70_000, 64)
    found = there.__getitems__(keys)
    after = bytes_sent(nginx_server)
    assert all(np.array_equal(sample["data"], array[key]) for sample, key in zip(found, keys, strict=True))
    assert before[1] < 50_000
    # Rows that are near each other come with what lies between them.
    assert 64 * 3000 <= after[1] - before[1] < 1 << 20


def test_small_columns_are_read_once(faulty_server: FaultyServer) -> None:
    there = both(faulty_server, store("memmap", faulty_server.folder / "bucket"))[1]
    there.__getitems__([1, 2])
    asked = len(faulty_server.asked())
    there.__getitems__(range(200))
    assert there.byte_ranges(np.arange(200)).__len__() == 0
    assert there.lies_in_memory
    assert len(faulty_server.asked()) == asked


def test_runs_of_samples_are_long(faulty_server: FaultyServer) -> None:
    (faulty_server.folder / "bucket").mkdir()
    np.save(faulty_server.folder / "bucket" / "a.npy", np.zeros((40_000, 1000), np.uint8))
    there = both(faulty_server, "a.npy")[1]
    runs = there.reader.blocks()
    assert {len(run) for run in runs[:-1]} == {16_384}
    assert sum(map(len, runs)) == 40_000
    assert len(there.byte_ranges(np.arange(16_384))) < 10


def test_seaweed_gives_the_same(shared_seaweed: Seaweed, tmp_path: Path) -> None:
    array = np.random.default_rng(7).integers(0, 255, (5000, 1100), np.uint8)
    np.save(tmp_path / "a.npy", array)
    store = open_store(parse("s3://open"), shared_seaweed.options)
    store.write("ranges/a.npy", [(tmp_path / "a.npy").read_bytes()])
    there = headrace.open("s3://open/ranges/a.npy", options=shared_seaweed.options)
    keys = [4999, 0, 77, 77]
    assert np.array_equal(array[keys], [sample["data"] for sample in there.__getitems__(keys)])
