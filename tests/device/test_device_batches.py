"""`DataLoader(device=)`: the loader's batches, on the device, whatever makes them and in whatever they lie."""

from __future__ import annotations

import gc
import itertools
import os
import signal
import threading
import warnings
import weakref
from collections import namedtuple
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.nn.utils.rnn import PackedSequence, pack_padded_sequence
from torch.utils.data import Dataset, IterableDataset

import headrace
from headrace.core.errors import UsageError
from headrace.device.choice import page_lock_for
from headrace.device.feed import DeviceFeed
from headrace.device.options import OnDevice
from headrace.shared_memory.locked_memory import LockedMemory
from headrace.testing import SimulatedAccelerator
from headrace.types import Blobs

HOW = [
    {"num_workers": 0},
    {"num_workers": 2, "backend": "thread"},
    {"num_workers": 2, "in_order": False},
    {"num_workers": 2, "ahead": 0},
    {"num_workers": 2, "ahead": 3},
    {"num_workers": 2},
]
everyhow = pytest.mark.parametrize("how", HOW)

Point = namedtuple("Point", ["x", "y"])


@pytest.fixture
def accelerator() -> Iterator[SimulatedAccelerator]:
    with SimulatedAccelerator(7) as simulated:
        yield simulated
        gc.collect()
        simulated.synchronize()
        assert simulated.driver.faults == []


class Images(Dataset[Any]):
    """Images and labels of a key, large and small."""

    def __init__(self, length: int = 50, side: int = 40) -> None:
        self.length = length
        self.side = side

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, key: int) -> Any:
        noise = np.random.default_rng(key).integers(0, 256, (3, self.side, self.side), np.uint8)
        return {"image": torch.from_numpy(noise), "label": key, "name": f"image {key}"}


class Lines(IterableDataset[Any]):
    """A stream that is split over workers."""

    def __iter__(self) -> Iterator[Any]:
        info = torch.utils.data.get_worker_info()
        first, step = (0, 1) if info is None else (info.id, info.num_workers)
        for key in range(first, 40, step):
            yield torch.full((5_000,), float(key)), key


def read(accelerator: SimulatedAccelerator, batch: Any, into: list[Any]) -> None:
    """Has the device read all tensors of a batch; their bytes come into a list."""
    if isinstance(batch, torch.Tensor):
        accelerator.seen(batch, into.append)
    elif isinstance(batch, dict):
        for part in batch.values():
            read(accelerator, part, into)
    elif isinstance(batch, (list, tuple)):
        for part in batch:
            read(accelerator, part, into)


def bytes_of(batch: Any) -> list[bytes]:
    """The bytes of all tensors of a batch."""
    if isinstance(batch, torch.Tensor):
        return [batch.contiguous().numpy().tobytes()]
    if isinstance(batch, dict):
        batch = list(batch.values())
    if isinstance(batch, (list, tuple)):
        return list(itertools.chain.from_iterable(map(bytes_of, batch)))
    return []


def seen(accelerator: SimulatedAccelerator, loader: Any, most: int | None = None) -> list[Any]:
    """What the device reads of the batches of an epoch, while the loop goes on."""
    found: list[Any] = []
    for batch in itertools.islice(loader, most):
        read(accelerator, batch, found)
    accelerator.synchronize()
    return found


@everyhow
def test_the_batches_are_those_of_the_loader_without_a_device(
    how: dict[str, Any], accelerator: SimulatedAccelerator
) -> None:
    loader = headrace.DataLoader(Images(), 8, device="cuda", **how)
    expected = list(itertools.chain.from_iterable(map(bytes_of, headrace.DataLoader(Images(), 8))))
    found = seen(accelerator, loader)
    if how.get("in_order", True):
        assert found == expected
    else:
        assert sorted(found) == sorted(expected)
    assert seen(accelerator, loader)[:1] in ([expected[0]], found[:1]) or not how.get("in_order", True)


@pytest.mark.parametrize("num_workers", [0, 2])
def test_batches_of_a_stream_come_too(num_workers: int, accelerator: SimulatedAccelerator) -> None:
    loader = headrace.DataLoader(Lines(), 4, num_workers=num_workers, device="auto")
    expected = [part for batch in headrace.DataLoader(Lines(), 4, num_workers=num_workers) for part in bytes_of(batch)]
    assert seen(accelerator, loader) == expected


def many(count: int) -> Any:
    def collate(samples: list[Any]) -> Any:
        first = samples[0]["label"]
        tensors = [torch.full((60 + number,), float(first + number)) for number in range(count)]
        return {"deep": [tensors[: count // 2], (tensors[count // 2 :],)], "names": ["a"]}

    return collate


@pytest.mark.quick
@pytest.mark.parametrize("num_workers", [0, 2])
@pytest.mark.parametrize("count", [1, 10, 500])
def test_a_batch_is_one_transfer(count: int, num_workers: int, accelerator: SimulatedAccelerator) -> None:
    loader = headrace.DataLoader(Images(), 5, num_workers=num_workers, collate_fn=many(count), device="cuda")
    expected = [part for batch in headrace.DataLoader(Images(), 5, collate_fn=many(count)) for part in bytes_of(batch)]
    assert seen(accelerator, loader) == expected
    transfers = loader._session.resources.feed.transfers
    assert transfers.copies == 10
    payload = sum(map(len, expected))
    assert payload <= transfers.times.copies().bytes <= payload + 10 * 256 * count


def test_a_batch_of_default_collation_is_one_transfer_once_its_size_is_known(accelerator: SimulatedAccelerator) -> None:
    loader = headrace.DataLoader(Images(80), 8, num_workers=2, device="cuda")
    seen(accelerator, loader)
    transfers = loader._session.resources.feed.transfers
    before = transfers.copies
    seen(accelerator, loader)
    assert transfers.copies - before <= 10 + 2 * 2  # new workers learn the size from their first batch


@dataclass(frozen=True)
class Sample:
    pixels: torch.Tensor
    note: str


class Graph:
    """Moves itself, as graphs do."""

    def __init__(self, edges: torch.Tensor) -> None:
        self.edges = edges
        self.moved_to: list[Any] = []

    def to(self, device: torch.device, non_blocking: bool = False) -> Graph:
        self.moved_to.append((device, non_blocking))
        return self


class Plain(Graph):
    """Moves itself, and knows no `non_blocking`."""

    def to(self, device: torch.device) -> Plain:  # type: ignore[override]
        self.moved_to.append(device)
        return self


def in_all_kinds(samples: list[Any]) -> Any:
    images = torch.stack([sample["image"] for sample in samples]).float()
    return {
        "point": Point(images[:, 0], [images.new_zeros(0), "text", 3]),
        "sample": Sample(images.bool(), "note"),
        "last": images.to(memory_format=torch.channels_last),
        "turned": images.transpose(0, 1),
        "sparse": torch.eye(3).to_sparse(),
        "half": images.bfloat16(),
        "complex": torch.complex(images, images),
        "scalar": torch.tensor(5),
        "packed": pack_padded_sequence(images[:, 0, 0].unsqueeze(-1), torch.tensor([3] * len(images)), True),
        "graph": Graph(torch.arange(4)),
        "plain": Plain(torch.arange(4)),
        "array": np.arange(3),
        "none": None,
    }


@pytest.mark.parametrize("num_workers", [0, 2])
def test_whatever_a_batch_consists_of_arrives(num_workers: int, accelerator: SimulatedAccelerator) -> None:
    (batch,) = headrace.DataLoader(Images(4), 4, num_workers=num_workers, collate_fn=in_all_kinds, device="cuda")
    accelerator.synchronize()
    expected = in_all_kinds([Images(4)[key] for key in range(4)])
    assert list(batch) == list(expected)
    assert type(batch["point"]) is Point
    assert (batch["point"].y[1:], batch["none"]) == (["text", 3], None)
    assert batch["point"].y[0].shape == (0,)
    assert type(batch["sample"]) is Sample
    assert batch["sample"].note == "note"
    assert torch.equal(batch["sample"].pixels, expected["sample"].pixels)
    for name in ("last", "turned", "half", "complex", "scalar"):
        assert torch.equal(batch[name], expected[name]), name
        assert batch[name].stride() == expected[name].stride(), name
    assert torch.equal(batch["sparse"].to_dense(), torch.eye(3))
    assert type(batch["packed"]) is PackedSequence
    assert torch.equal(batch["packed"].data, expected["packed"].data)
    assert batch["graph"].moved_to == [(accelerator.device, True)]
    assert batch["plain"].moved_to == [accelerator.device]
    assert isinstance(batch["array"], np.ndarray)


@pytest.mark.quick
@pytest.mark.parametrize("num_workers", [0, 2])
@pytest.mark.parametrize("where", [{"pin_memory": True}, {"device": "cuda"}])
def test_byte_strings_of_stored_data_stay_what_they_are(
    where: dict[str, Any], num_workers: int, accelerator: SimulatedAccelerator, tmp_path: Path
) -> None:
    for number in range(4):
        (tmp_path / "a").mkdir(exist_ok=True)
        (tmp_path / "a" / f"{number}.jpg").write_bytes(bytes([number]) * (number + 1))

    dataset = headrace.open(tmp_path, decode=False)
    (batch,) = headrace.DataLoader(dataset, 4, num_workers=num_workers, **where)
    accelerator.synchronize()
    assert type(batch["image"]) is Blobs
    assert [bytes(data) for data in batch["image"]] == [b"\0", b"\1\1", b"\2\2\2", b"\3\3\3\3"]
    assert batch["label"].tolist() == [0, 0, 0, 0]


@pytest.mark.quick
def test_bytes_of_any_kind_and_ranges_stay_what_they_are(accelerator: SimulatedAccelerator) -> None:
    def collate(samples: list[Any]) -> Any:
        return [bytes(3), bytearray(b"abc"), memoryview(b"def"), range(4), torch.ones(3)]

    (batch,) = headrace.DataLoader(Images(4), 4, collate_fn=collate, device="cuda")
    accelerator.synchronize()
    assert batch[:4] == [bytes(3), bytearray(b"abc"), memoryview(b"def"), range(4)]
    assert batch[4].tolist() == [1, 1, 1]


def test_labels_that_are_kept_keep_no_images(accelerator: SimulatedAccelerator) -> None:
    loader = headrace.DataLoader(Images(64), 8, num_workers=2, device="cuda")
    labels = [batch["label"] for batch in loader]
    assert all(label.untyped_storage().nbytes() < 4096 for label in labels)
    accelerator.synchronize()
    assert [int(label) for batch in labels for label in batch] == list(range(64))


def test_a_change_in_place_counts_for_one_tensor_alone(accelerator: SimulatedAccelerator) -> None:
    (batch,) = headrace.DataLoader(Images(4), 4, num_workers=2, collate_fn=many(4), device="cuda")
    tensors = [*batch["deep"][0], *batch["deep"][1][0]]
    versions = [tensor._version for tensor in tensors]
    tensors[0].add_(1)
    assert [tensor._version for tensor in tensors] == [versions[0] + 1, *versions[1:]]


@pytest.mark.thorough
@pytest.mark.parametrize("how", [{"num_workers": 0}, {"num_workers": 2}, {"num_workers": 2, "ahead": 3}])
def test_memory_and_streams_do_not_grow_from_epoch_to_epoch(
    how: dict[str, Any], accelerator: SimulatedAccelerator
) -> None:
    loader = headrace.DataLoader(Images(48), 8, device="cuda", **how)
    peaks = []
    for _ in range(10):
        for batch in loader:
            accelerator.synchronize()
            assert batch["image"].shape == (8, 3, 40, 40)
        peaks.append(accelerator.peak)
    largest = 8 * 3 * 40 * 40 + 8 * 8 + 2 * 256 + 8 * 8
    ahead = how.get("ahead", 1)
    assert peaks[-1] <= (ahead + 2) * largest  # those ahead, the new one, and the one that the loop still holds
    assert len(accelerator.driver.streams) == 2


def test_a_batch_that_was_only_sent_ahead_does_not_count_as_delivered(accelerator: SimulatedAccelerator) -> None:
    loader = headrace.DataLoader(Images(48), 4, shuffle=True, seed=3, num_workers=2, device="cuda", ahead=3)
    whole = seen(accelerator, loader)
    loader = headrace.DataLoader(Images(48), 4, shuffle=True, seed=3, num_workers=2, device="cuda", ahead=3)
    first = seen(accelerator, loader, 5)
    state = loader.state_dict()
    again = headrace.DataLoader(Images(48), 4, shuffle=True, seed=3, num_workers=1, device="cuda")
    again.load_state_dict(state)
    assert first + seen(accelerator, again) == whole


def test_torch_is_told_of_a_missing_accelerator_as_by_pin_memory() -> None:
    if torch.accelerator.is_available():
        pytest.skip("there is an accelerator")
    loader = headrace.DataLoader(Images(4), 4, device="cuda")
    with pytest.warns(UserWarning, match="is set but no accelerator is found") as told:
        (batch,) = loader
    assert [one.filename for one in told] == [__file__]
    assert bytes_of(batch) == bytes_of(next(iter(headrace.DataLoader(Images(4), 4))))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        list(headrace.DataLoader(Images(4), 4, device="cpu"))


@pytest.mark.quick
@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ({"device": "cudaa"}, "no such device"),
        ({"device": 1}, "write 'cuda:1'"),
        ({"device": "meta"}, "a device that holds numbers"),
        ({"device": "cuda", "ahead": -1}, "how many batches are on their way"),
        ({"device": "cuda", "ahead": 1.5}, "how many batches are on their way"),
        ({"device": "cuda", "device_transform": 3}, "a function of a batch"),
        ({"device": "cuda", "fixed_addresses": "yes"}, "True or False"),
        ({"ahead": 1}, "add device="),
        ({"device_transform": print}, "add device="),
        ({"fixed_addresses": True}, "add device="),
    ],
)
def test_wrong_arguments_are_told_at_once(arguments: dict[str, Any], text: str) -> None:
    with pytest.raises(UsageError, match=text):
        headrace.DataLoader(Images(), **arguments)


@pytest.mark.quick
@pytest.mark.parametrize("device", ["cuda:1", "xpu"])
def test_a_device_that_is_not_there_is_an_error_where_others_are(
    device: str, accelerator: SimulatedAccelerator
) -> None:
    with pytest.raises(UsageError, match=r"no such device(.|\n)*'cuda(:0)?', on this machine"):
        iter(headrace.DataLoader(Images(), device=device))


def test_two_devices_have_loaders_of_their_own(accelerator: SimulatedAccelerator) -> None:
    other = accelerator.another()
    loaders = [headrace.DataLoader(Images(24), 4, device=name, num_workers=1) for name in ("cuda:0", "cuda:1")]
    expected = [part for batch in headrace.DataLoader(Images(24), 4) for part in bytes_of(batch)]
    found: list[list[Any]] = [[], []]
    for batches in zip(*loaders, strict=True):
        for device, batch, into in zip((accelerator, other), batches, found, strict=True):
            assert device.allocated > 0
            read(device, batch, into)
    accelerator.synchronize()
    assert found == [expected, expected]


def test_without_memory_for_batches_ahead_each_is_sent_when_its_turn_comes(caplog: pytest.LogCaptureFixture) -> None:
    first, second = torch.arange(1000.0), torch.arange(1000.0) + 1
    with SimulatedAccelerator(3, memory=6000) as accelerator:
        lock = page_lock_for(accelerator)
        assert lock is not None
        feed = DeviceFeed(accelerator, LockedMemory(lock), OnDevice("cuda", ahead=2))
        batch = feed.finish(feed.begin(first), None)
        assert feed.begin_early(second) is second
        assert (feed.ahead, "no memory for 2 batches ahead (0.0 MB)" in caplog.text) == (0, True)
        accelerator.synchronize()
        assert torch.equal(batch, first)
        del batch
        batch = feed.finish(feed.begin(second), None)
        accelerator.synchronize()
        assert torch.equal(batch, second)


def test_a_batch_that_the_device_has_no_memory_for_is_an_error_that_says_how_large_it_is() -> None:
    with SimulatedAccelerator(3, memory=30_000):
        loader = headrace.DataLoader(Images(20), 8, num_workers=1, device="cuda")
        iterator = iter(loader)
        for _ in range(2):
            with pytest.raises(torch.OutOfMemoryError, match=r"a batch of 0\.0 MB, with [01] ahead"):
                next(iterator)
        assert next(iterator)["label"].tolist() is not None  # the last batch is smaller


@pytest.mark.quick
@pytest.mark.parametrize(
    "how",
    [
        {"device": "cuda"},
        {"device": "cuda", "num_workers": 2},
        {"device": "cuda", "device_transform": lambda batch: batch, "seed": 1},
        {"pin_memory": True},
    ],
)
def test_memory_goes_with_the_loader_without_a_garbage_collection(
    how: dict[str, Any], accelerator: SimulatedAccelerator
) -> None:
    gc.disable()
    try:
        loader = headrace.DataLoader(Images(), 8, **how)
        iterator = iter(loader)
        batch = next(iterator)
        session = weakref.ref(loader._session)
        del loader, iterator, batch
        assert session() is None
        torchs_own = {tensor.data_ptr() for tensor in accelerator.driver.pinned}
        assert accelerator.driver.registered.keys() == torchs_own
        assert accelerator.allocated == 0
    finally:
        gc.enable()


def test_no_thread_is_started(accelerator: SimulatedAccelerator) -> None:
    before = threading.active_count()
    loader = headrace.DataLoader(Images(), 8, num_workers=2, device="cuda")
    for _ in loader:
        assert threading.active_count() == before


class TimeLimit(Exception):
    """What a handler of the user's raises."""


class Alarming(dict[str, Any]):
    """A batch that is looked at when it is sent; the one with key 8 brings a signal once."""

    rings_in = 0
    """The process in which it does."""

    def items(self) -> Any:
        if Alarming.rings_in == os.getpid() and int(self["key"][0]) == 8:
            Alarming.rings_in = 0
            signal.raise_signal(signal.SIGUSR1)
        return super().items()


def alarming(samples: list[int]) -> Alarming:
    return Alarming(key=torch.tensor(samples))


def test_what_a_signal_handler_raises_while_a_batch_is_sent_ahead_reaches_the_loop(
    accelerator: SimulatedAccelerator,
) -> None:
    def handler(number: int, frame: object) -> None:
        raise TimeLimit

    before = signal.signal(signal.SIGUSR1, handler)
    Alarming.rings_in = os.getpid()
    try:
        numbers: Any = list(range(16))
        iterator = iter(headrace.DataLoader(numbers, 4, num_workers=1, collate_fn=alarming, device="cuda", ahead=3))
        found: list[bytes] = []
        raised = 0
        while True:
            try:
                read(accelerator, dict(next(iterator)), found)
            except StopIteration:
                break
            except TimeLimit:
                raised += 1
    finally:
        signal.signal(signal.SIGUSR1, before)
    accelerator.synchronize()
    assert raised == 1
    assert [int.from_bytes(one[:8], "little") for one in found] == [0, 4, 8, 12]


@pytest.mark.parametrize("name", ["device", "ahead", "device_transform", "fixed_addresses"])
def test_an_argument_that_would_have_no_effect_any_more_is_refused(name: str) -> None:
    loader = headrace.DataLoader(Images(), device="cpu")
    with pytest.raises(ValueError, match=f"{name} attribute should not be set after DataLoader is initialized"):
        setattr(loader, name, None)
    plain = headrace.DataLoader(Images())
    setattr(plain, name, "of a subclass")
    assert getattr(plain, name) == "of a subclass"


def test_a_wrapper_that_takes_over_all_attributes_may_have_a_device_of_its_own() -> None:
    class Wrapper(headrace.DataLoader[Any]):
        def __init__(self, loader: headrace.DataLoader[Any]) -> None:
            vars(self).update(vars(loader))
            self.device = torch.device("meta")

    wrapper = Wrapper(headrace.DataLoader(Images(), device="cpu"))
    assert wrapper.device == torch.device("meta")
