"""A batch belongs to its user: an ordinary tensor that may be kept, changed, copied and sent."""

import copy
import io
import pickle
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import default_collate

from headrace.shared_memory.leases import SMALL_LOCALLY

from .batches import remembering
from .datasets import Rows, ShardedStream
from .equality import assert_same
from .running import forked, outcomes, processes_only, small_and_large, with_and_without_workers

pytestmark = [with_and_without_workers, small_and_large]


def counted(rows: int, width: int) -> torch.Tensor:
    """All samples of `Rows` in one tensor."""
    return torch.arange(float(rows))[:, None].expand(rows, width)


def first_batch(Loader: Any, num_workers: int, width: int) -> torch.Tensor:
    return next(iter(Loader(Rows(40, width), batch_size=4, **forked(num_workers))))


def saved_and_loaded(value: Any) -> Any:
    file = io.BytesIO()
    torch.save(value, file)
    file.seek(0)
    return torch.load(file, weights_only=True)


def test_a_batch_of_tensors_can_be_written_without_effect_on_later_batches(
    Loader: Any, num_workers: int, width: int
) -> None:
    seen = []
    for batch in Loader(Rows(40, width), batch_size=4, **forked(num_workers)):
        seen.append(batch[:, 0].tolist())
        batch.fill_(-1)
    assert [[float(number) for number in range(start, start + 4)] for start in range(0, 40, 4)] == seen


def test_all_batches_can_be_kept(Loader: Any, num_workers: int, width: int) -> None:
    loader = Loader(Rows(60, width), batch_size=2, **forked(num_workers))
    kept = list(loader)
    list(loader)
    assert torch.equal(counted(60, width), torch.cat(kept))


def test_a_batch_outlives_its_loader(Loader: Any, num_workers: int, width: int) -> None:
    batch = next(iter(Loader(Rows(40, width), batch_size=4, **forked(num_workers))))
    for other in Loader(Rows(40, width), batch_size=4, **forked(num_workers)):
        other.fill_(-1)
    assert_same(counted(4, width), batch)


def test_a_part_of_a_batch_can_be_kept_alone(Loader: Any, num_workers: int, width: int) -> None:
    kept = [batch[1] for batch in Loader(Rows(100, width), batch_size=2, **forked(num_workers))]
    assert [float(number) for number in range(1, 100, 2)] == [float(row[0]) for row in kept]


def test_a_batch_can_be_resized_like_any_tensor(Loader: Any, num_workers: int, width: int) -> None:
    batch = first_batch(Loader, num_workers, width)
    assert torch.equal(counted(4, width)[0], batch.resize_(width))


@processes_only
def test_a_batch_can_grow_in_the_main_process_unless_it_is_leased(Loader: Any, num_workers: int, width: int) -> None:
    batch = first_batch(Loader, num_workers, width)
    leased = Loader is not torch.utils.data.DataLoader and batch.nbytes >= SMALL_LOCALLY
    if num_workers == 0 and not leased:
        batch.resize_(100, width)
        assert torch.equal(counted(4, width), batch[:4])
    else:
        with pytest.raises(RuntimeError, match="not resizable"):
            batch.resize_(100, width)


@pytest.mark.parametrize(
    "duplicate",
    [copy.copy, copy.deepcopy, lambda batch: pickle.loads(pickle.dumps(batch)), saved_and_loaded, torch.clone],
    ids=["copy", "deepcopy", "pickle", "save", "clone"],
)
def test_a_batch_can_be_copied(Loader: Any, num_workers: int, width: int, duplicate: Any) -> None:
    batch = first_batch(Loader, num_workers, width)
    twin = duplicate(batch)
    del batch
    for other in Loader(Rows(40, width), batch_size=4, **forked(num_workers)):
        other.fill_(-1)
    assert_same(counted(4, width), twin)


def test_a_batch_can_be_seen_and_written_as_an_array(Loader: Any, num_workers: int, width: int) -> None:
    array = first_batch(Loader, num_workers, width).numpy()
    array += 1
    for other in Loader(Rows(40, width), batch_size=4, **forked(num_workers)):
        other.fill_(-1)
    assert [[number + 1.0] * width for number in range(4)] == array.tolist()


def test_a_batch_can_move_to_shared_memory(Loader: Any, num_workers: int, width: int) -> None:
    batch = first_batch(Loader, num_workers, width).share_memory_()
    assert batch.is_shared()
    assert_same(counted(4, width), batch)


def test_a_gradient_flows_back_to_a_batch(Loader: Any, num_workers: int, width: int) -> None:
    batch = first_batch(Loader, num_workers, width).requires_grad_()
    (batch * batch).sum().backward()
    assert_same(2 * counted(4, width), batch.grad)


def test_a_batch_has_memory_of_its_own_and_no_more(Loader: Any, num_workers: int, width: int) -> None:
    sample = torch.ones(width + 1, dtype=torch.uint8), torch.ones(width, dtype=torch.int64), np.ones(width + 2)
    batch = next(iter(Loader([sample] * 5, batch_size=5, **forked(num_workers))))
    storages = [tensor.untyped_storage() for tensor in batch]
    assert [5 * (width + 1), 40 * width, 40 * (width + 2)] == [storage.nbytes() for storage in storages]
    assert [0, 0, 0] == [tensor.storage_offset() for tensor in batch]
    assert len({storage.data_ptr() for storage in storages}) == 3


def test_the_parts_of_a_batch_can_be_written_one_by_one(Loader: Any, num_workers: int, width: int) -> None:
    sample = torch.ones(width + 1, dtype=torch.uint8), torch.ones(width, dtype=torch.int64), np.ones(width + 2)
    batch = next(iter(Loader([sample] * 5, batch_size=5, **forked(num_workers))))
    for number, tensor in enumerate(batch):
        tensor.fill_(number)
    assert [{0}, {1}, {2}] == [set(tensor.flatten().tolist()) for tensor in batch]


@processes_only
def test_a_batch_that_is_made_once_and_given_again_stays_the_same(Loader: Any, num_workers: int, width: int) -> None:
    remembering.first = None
    loader = Loader(Rows(80, width), batch_size=4, collate_fn=remembering, **forked(num_workers))
    for number, (first, batch) in enumerate(loader):
        maker = number % max(num_workers, 1)
        assert [4.0 * maker + row for row in range(4)] == first[:, 0].tolist()
        assert [4.0 * number + row for row in range(4)] == batch[:, 0].tolist()


def test_batches_of_several_epochs_can_be_kept_together(Loader: Any, num_workers: int, width: int) -> None:
    options = {"persistent_workers": True} if num_workers else {}
    loader = Loader(Rows(24, width), batch_size=4, **options, **forked(num_workers))
    kept = [batch for _ in range(4) for batch in loader]
    assert torch.equal(counted(24, width).repeat(4, 1), torch.cat(kept))


def test_batches_of_two_loaders_can_be_kept_together(Loader: Any, num_workers: int, width: int) -> None:
    loaders = [Loader(Rows(60, width), batch_size=4, **forked(num_workers)) for _ in range(2)]
    kept = [torch.cat(pair) for pair in zip(*loaders, strict=True)]
    loaders.clear()
    expected = torch.arange(60.0).reshape(15, 4).repeat(1, 2)
    assert torch.equal(expected, torch.stack(kept)[:, :, 0])


def test_batches_of_epochs_left_half_way_can_be_kept(Loader: Any, num_workers: int, width: int) -> None:
    options = {"persistent_workers": True} if num_workers else {}
    loader = Loader(Rows(40, width), batch_size=4, **options, **forked(num_workers))
    kept = []
    for epoch in range(4):
        iterator = iter(loader)
        kept += [next(iterator) for _ in range(epoch)]
    kept += list(loader)
    whole = counted(40, width)
    assert torch.equal(torch.cat([whole[:4], whole[:8], whole[:12], whole]), torch.cat(kept))


def test_batches_can_be_kept_while_others_fail(Loader: Any, num_workers: int, width: int) -> None:
    loader = Loader(Rows(48, width), batch_size=4, collate_fn=every_third_fails, **forked(num_workers))
    kept = [batch for batch in outcomes(iter(loader), ValueError) if batch is not ValueError]
    expected = [batch for number, batch in enumerate(counted(48, width).split(4)) if number % 3]
    assert torch.equal(torch.cat(expected), torch.cat(kept))


def every_third_fails(samples: list[torch.Tensor]) -> torch.Tensor:
    batch = default_collate(samples)
    if int(samples[0][0]) // 4 % 3 == 0:
        raise ValueError("every third batch fails")
    return batch


def test_out_of_order_batches_can_be_kept(Loader: Any, num_workers: int, width: int) -> None:
    kept = torch.cat(list(Loader(Rows(60, width), batch_size=4, in_order=False, **forked(num_workers))))
    assert torch.equal(counted(60, width), kept[kept[:, 0].argsort()])


def test_a_streams_batches_can_be_kept(Loader: Any, num_workers: int, width: int) -> None:
    kept = torch.cat(list(Loader(RowStream(30, width), batch_size=4, **forked(num_workers))))
    assert torch.equal(counted(30, width), kept[kept[:, 0].argsort()])


class RowStream(ShardedStream):
    """The samples of `Rows`, as a stream."""

    def __init__(self, length: int, width: int) -> None:
        super().__init__(length)
        self.rows = Rows(length, width)

    def __iter__(self) -> Iterator[torch.Tensor]:
        return map(self.rows.__getitem__, super().__iter__())
