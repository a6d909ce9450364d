"""What a user reads when something fails: type, worker, key, traceback."""

from __future__ import annotations

import os
from typing import Any

import pytest
import torch

from headrace import DataLoader, OnError
from headrace.workers.processes.messages import UNREAD
from tests.workers.datasets import Failing, FailingStream, Photos, keep_python_objects, lambdas, make_large_text


class TwoArguments(Exception):
    def __init__(self, first: int, second: int) -> None:
        super().__init__(first, second)


def test_a_worker_s_error_names_type_worker_key_and_traceback() -> None:
    loader = DataLoader(Failing(13, ValueError("bad pixel")), batch_size=4, num_workers=2)
    with pytest.raises(ValueError, match="bad pixel") as caught:
        list(loader)
    text = str(caught.value)
    assert text.startswith("Caught ValueError in DataLoader worker process 1.\nOriginal Traceback")
    assert "in __getitem__\n    raise self.error" in text
    assert "headrace: raised while loading the sample with key 13" in text


def test_without_workers_the_very_exception_arrives_with_a_note() -> None:
    error = ValueError("bad pixel")
    with pytest.raises(ValueError) as caught:
        list(DataLoader(Failing(13, error), batch_size=4))
    assert caught.value is error
    assert str(error) == "bad pixel"
    assert error.__notes__ == ["headrace: raised while loading the sample with key 13"]


class Listed(Failing):
    """Knows the files of its samples, as torchvision's folders do."""

    samples = tuple((f"photos/{number}.jpg", 0) for number in range(20))


class Raises(Failing):
    def path_of_sample(self, key: int) -> str:
        raise KeyError(key)


def test_the_file_of_the_sample_is_named_where_the_dataset_knows_it() -> None:
    for text, said in (("bad", "key 13, photos/13.jpg"), ("photos/13.jpg is bad", "key 13")):
        with pytest.raises(ValueError) as caught:
            list(DataLoader(Listed(13, ValueError(text)), batch_size=4))
        assert caught.value.__notes__ == [f"headrace: raised while loading the sample with {said}"]


def test_a_dataset_that_cannot_name_the_file_changes_no_error() -> None:
    dataset = Raises(13, ValueError("bad"))
    with pytest.raises(ValueError, match="bad"):
        list(DataLoader(dataset, batch_size=4))

    loader = DataLoader(dataset, batch_size=4, on_error="skip")
    assert sum(map(len, loader)) == 19
    assert [(bad.key, bad.path) for bad in loader.faults.records] == [(13, None)]


def test_an_error_in_collation_names_the_keys_of_the_batch() -> None:
    loader = DataLoader([torch.ones(n) for n in range(12)], batch_size=12)  # type: ignore[arg-type]
    with pytest.raises(RuntimeError) as caught:
        list(loader)
    assert "collating the batch with keys 0, 1, 2, 3, 4, 5, 6, 7, ... (12 in all)" in caught.value.__notes__[0]


def test_an_error_in_a_stream_names_the_position() -> None:
    with pytest.raises(ValueError, match="loading sample number 3 of this iterator"):
        list(DataLoader(FailingStream(), batch_size=2, num_workers=1))


def test_a_batch_that_cannot_be_sent_is_an_error_and_not_a_hang() -> None:
    loader = DataLoader(Photos(), batch_size=4, num_workers=1, collate_fn=lambdas)
    with pytest.raises(Exception, match="prepared for sending to the main process"):
        next(iter(loader))


def test_an_exception_class_that_cannot_be_sent_arrives_with_its_traceback() -> None:
    class Local(Exception):
        pass

    loader = DataLoader(Failing(2, Local("here")), batch_size=4, num_workers=1)
    with pytest.raises(RuntimeError, match="Local: here"):
        next(iter(loader))


def test_an_exception_class_with_other_arguments_becomes_a_runtime_error_with_its_text() -> None:
    loader = DataLoader(Failing(2, TwoArguments(1, 2)), batch_size=4, num_workers=1)
    with pytest.raises(RuntimeError, match=r"Caught TwoArguments in DataLoader worker process 0"):
        next(iter(loader))


@pytest.mark.parametrize("num_workers", [0, 2])
def test_after_an_error_the_following_batches_come(num_workers: int) -> None:
    iterator = iter(DataLoader(Failing(5, ValueError("bad pixel")), batch_size=4, num_workers=num_workers))
    seen: list[Any] = []
    for _ in range(5):
        try:
            seen.append(next(iterator).tolist()[0])
        except ValueError:
            seen.append("error")
    assert seen == [0, "error", 8, 12, 16]


def test_indices_and_results_larger_than_a_pipe_pass() -> None:
    long_index = list(range(64)) * 3000
    loader = DataLoader(
        range(64),  # type: ignore[arg-type]
        batch_sampler=[long_index] * 6,
        num_workers=2,
        collate_fn=keep_python_objects,
    )
    assert [len(batch) for batch in loader] == [len(long_index)] * 6


def test_text_and_bytes_of_megabytes_pass() -> None:
    loader = DataLoader(Photos(64), batch_size=4, num_workers=2, prefetch_factor=8, collate_fn=make_large_text)
    for _ in range(2):
        assert [(len(text), len(data)) for text, data in loader] == [(1_000_000, 3_000_000)] * 16


@pytest.mark.thorough
def test_deep_prefetching_never_blocks_either_side() -> None:
    loader = DataLoader(Photos(3000, side=2), batch_size=1, num_workers=2, prefetch_factor=700)
    assert [int(label) for _, label in loader] == list(range(3000))


class WaitsAt(Photos):
    """Item 30 says that it was reached, and waits for the answer."""

    def __init__(self, reached: int, answer: int) -> None:
        super().__init__(60, side=1)
        self.reached = reached
        self.answer = answer

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        if index == 30:
            os.write(self.reached, b"!")
            os.read(self.answer, 1)
        return super().__getitem__(index)


def test_few_messages_wait_in_the_pipe_of_a_busy_worker() -> None:
    reached, say_reached = os.pipe()
    answer, say_answer = os.pipe()
    loader = DataLoader(WaitsAt(say_reached, answer), batch_size=1, num_workers=1, prefetch_factor=50)
    iterator = iter(loader)
    os.read(reached, 1)  # from here on the worker reads no message
    delivered = [int(next(iterator)[1]) for _ in range(30)]
    (worker,) = iterator.executor.pool.workers
    unread = worker.sent - worker.read
    os.write(say_answer, b"!")
    delivered += [int(label) for _, label in iterator]
    for pipe in (reached, say_reached, answer, say_answer):
        os.close(pipe)
    assert unread == UNREAD
    assert delivered == list(range(60))


@pytest.mark.parametrize("backend", ["process", "thread"])
def test_an_exception_may_come_as_it_was(backend: str) -> None:
    loader = DataLoader(Failing(3, TwoArguments(1, 2)), num_workers=2, backend=backend, on_error=OnError(original=True))  # type: ignore[arg-type]
    with pytest.raises(TwoArguments) as caught:
        list(loader)
    assert caught.value.args == (1, 2)
    assert any("raised while loading the sample" in line for line in caught.value.__notes__)
