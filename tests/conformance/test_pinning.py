"""Pinned memory: a warning where there is no accelerator, pinned batches where there is one."""

from collections import OrderedDict
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
with_accelerator = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")


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
