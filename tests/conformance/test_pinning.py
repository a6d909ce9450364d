"""Pinned memory: a warning where there is no accelerator, pinned batches where there is one."""

from collections import OrderedDict, UserDict
from collections.abc import Iterator
from typing import Any

import pytest
import torch

from .batches import Point
from .datasets import Numbers, Stream
from .running import forked, numbers, with_and_without_workers
from .torches import ignores_the_device_of_pinning, warns_of_no_accelerator

pytestmark = with_and_without_workers

NO_ACCELERATOR = (
    "'pin_memory' argument is set as true but no accelerator is found, then device pinned memory won't be used."
)
OLD_DEVICE = (
    "pin_memory_device is deprecated, the current accelerator will be used as the device,"
    "ignore pin_memory_device='cuda'."
)

without_accelerator = pytest.mark.skipif(torch.accelerator.is_available(), reason="there is an accelerator")


@pytest.fixture(name="accelerator")
def _accelerator() -> Iterator[None]:
    """An accelerator: a real one where there is one, else one that is simulated."""
    if torch.accelerator.is_available():
        yield
        return
    from headrace.testing import SimulatedAccelerator

    with SimulatedAccelerator():
        yield


with_accelerator = pytest.mark.usefixtures("accelerator")


def delivered(loader: Any) -> tuple[list[Any], list[str]]:
    """All batches of an epoch, and the texts of the warnings on the way."""
    with pytest.warns(UserWarning) as caught:
        batches = list(loader)
    return batches, [str(warning.message) for warning in caught if warning.category is UserWarning]


@warns_of_no_accelerator
@without_accelerator
def test_pinning_without_an_accelerator_is_warned_of_and_left_out(Loader: Any, num_workers: int) -> None:
    loader = Loader(Numbers(5), batch_size=2, pin_memory=True, **forked(num_workers))
    batches, texts = delivered(loader)
    assert ([[0, 1], [2, 3], [4]], [NO_ACCELERATOR]) == (numbers(batches), texts)
    assert [False] * 3 == [batch.is_pinned() for batch in batches]


@warns_of_no_accelerator
@without_accelerator
def test_pinning_a_stream_without_an_accelerator_is_warned_of_too(Loader: Any, num_workers: int) -> None:
    batches, texts = delivered(Loader(Stream(1), pin_memory=True, **forked(num_workers)))
    assert ([[0]] * max(num_workers, 1), [NO_ACCELERATOR]) == (numbers(batches), texts)


@ignores_the_device_of_pinning
@without_accelerator
def test_a_device_for_pinning_is_warned_of_first(Loader: Any, num_workers: int) -> None:
    loader = Loader(Numbers(1), pin_memory=True, pin_memory_device="cuda", **forked(num_workers))
    batches, texts = delivered(loader)
    assert ([[0]], [OLD_DEVICE, NO_ACCELERATOR]) == (numbers(batches), texts)


@warns_of_no_accelerator
@without_accelerator
def test_every_epoch_warns_again(Loader: Any, num_workers: int) -> None:
    loader = Loader(Numbers(1), pin_memory=True, **forked(num_workers))
    assert [[NO_ACCELERATOR]] * 2 == [delivered(loader)[1] for _ in range(2)]


@ignores_the_device_of_pinning
def test_a_device_alone_means_nothing(Loader: Any, num_workers: int) -> None:
    assert numbers(Loader(Numbers(1), pin_memory_device="cuda", **forked(num_workers))) == [[0]]


class Pinnable:
    """A batch type that knows how to pin itself."""

    def __init__(self, tensor: torch.Tensor) -> None:
        self.tensor = tensor
        self.asked = False

    def pin_memory(self) -> "Pinnable":
        self.tensor = self.tensor.pin_memory()
        self.asked = True
        return self


def in_containers(samples: list[torch.Tensor]) -> Any:
    batch = torch.stack(samples)
    return (OrderedDict(a=batch, b="text"), Point(batch + 1, [batch + 2, 3]))


def as_pinnable(samples: list[torch.Tensor]) -> Pinnable:
    return Pinnable(torch.stack(samples))


@with_accelerator
def test_tensors_come_pinned(Loader: Any, num_workers: int) -> None:
    loader = Loader(Numbers(5), batch_size=2, pin_memory=True, **forked(num_workers))
    batches = list(loader)
    assert [True] * 3 == [batch.is_pinned() for batch in batches]
    assert numbers(batches) == [[0, 1], [2, 3], [4]]


@with_accelerator
def test_containers_keep_their_types_and_their_tensors_come_pinned(Loader: Any, num_workers: int) -> None:
    loader = Loader(Numbers(2), batch_size=2, collate_fn=in_containers, pin_memory=True, **forked(num_workers))
    (batch,) = loader
    mapping, point = batch
    assert (tuple, OrderedDict, Point, list) == (type(batch), type(mapping), type(point), type(point.y))
    assert ("text", 3) == (mapping["b"], point.y[1])
    assert [True] * 3 == [tensor.is_pinned() for tensor in (mapping["a"], point.x, point.y[0])]
    assert [[0, 1], [1, 2], [2, 3]] == numbers([mapping["a"], point.x, point.y[0]])


@with_accelerator
def test_an_object_that_can_pin_itself_is_asked_to(Loader: Any, num_workers: int) -> None:
    loader = Loader(Numbers(2), batch_size=2, collate_fn=as_pinnable, pin_memory=True, **forked(num_workers))
    (batch,) = loader
    assert (True, True) == (batch.asked, batch.tensor.is_pinned())


class Fussy(Pinnable):
    """A batch type that cannot be pinned."""

    def pin_memory(self) -> "Pinnable":
        raise KeyError("not this one")


class Row(tuple):  # type: ignore[type-arg]  # of whatever
    """A tuple of a type of its own."""


def in_odd_containers(samples: list[torch.Tensor]) -> Any:
    batch = torch.stack(samples)
    return [UserDict(a=batch), Row((batch + 1, b"bytes")), range(2), {"deep": [(batch + 2,)]}, 1.5, None]


def in_many_sizes(samples: list[torch.Tensor]) -> Any:
    return [torch.full((size,), len(samples), dtype=torch.uint8) for size in (1, 100, 5_000, 20_000, 3_000_000)]


def as_views(samples: list[torch.Tensor]) -> Any:
    batch = torch.arange(4096.0).view(64, 64) + samples[0]
    return batch, batch[:, 1:], batch.t(), batch[0, :0]


def as_fussy(samples: list[torch.Tensor]) -> Fussy:
    return Fussy(torch.stack(samples))


@with_accelerator
def test_odd_containers_come_as_torch_leaves_them(Loader: Any, num_workers: int) -> None:
    loader = Loader(Numbers(2), batch_size=2, collate_fn=in_odd_containers, pin_memory=True, **forked(num_workers))
    ((mapping, row, numbers_, nested, one, nothing),) = loader
    assert [UserDict, Row, list, dict] == [type(mapping), type(row), type(numbers_), type(nested)]
    assert ([0, 1], b"bytes", 1.5, None) == (numbers_, row[1], one, nothing)
    tensors = [mapping["a"], row[0], nested["deep"][0][0]]
    assert [True] * 3 == [tensor.is_pinned() for tensor in tensors]
    assert [[0, 1], [1, 2], [2, 3]] == numbers(tensors)


@with_accelerator
def test_tensors_of_all_sizes_come_pinned(Loader: Any, num_workers: int) -> None:
    loader = Loader(Numbers(6), batch_size=2, collate_fn=in_many_sizes, pin_memory=True, **forked(num_workers))
    for batch in loader:
        assert [True] * 5 == [tensor.is_pinned() for tensor in batch]
        assert all(bool((tensor == 2).all()) for tensor in batch)


@with_accelerator
def test_views_and_empty_tensors_come_as_they_are(Loader: Any, num_workers: int) -> None:
    loader = Loader(Numbers(1), batch_size=1, collate_fn=as_views, pin_memory=True, **forked(num_workers))
    ((whole, part, turned, nothing),) = loader
    expected = torch.arange(4096.0).view(64, 64)
    assert [True] * 3 == [tensor.is_pinned() for tensor in (whole, part, turned)]
    assert torch.equal(whole, expected)
    assert torch.equal(part, expected[:, 1:])
    assert torch.equal(turned, expected.t())
    assert nothing.shape == (0,)


@with_accelerator
def test_what_pinning_raises_reaches_the_loop(Loader: Any, num_workers: int) -> None:
    loader = Loader(Numbers(2), batch_size=2, collate_fn=as_fussy, pin_memory=True, **forked(num_workers))
    with pytest.raises(KeyError, match="not this one"):
        list(loader)


@with_accelerator
def test_a_batch_that_is_kept_keeps_its_bytes(Loader: Any, num_workers: int) -> None:
    loader = Loader(Numbers(40), batch_size=2, collate_fn=in_many_sizes, pin_memory=True, **forked(num_workers))
    kept = list(loader)
    assert all(bool((tensor == 2).all()) for batch in kept for tensor in batch)
