"""Packs of a stream: each document once, with workers and ranks, behind a resume, and where documents are bad."""

from __future__ import annotations

import functools
import gc
import weakref
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import headrace
from headrace.core.errors import SampleError, StateError, UsageError

LENGTHS = np.random.default_rng(0).integers(0, 40, 300).tolist()


class Documents(torch.utils.data.IterableDataset[Any]):
    """Documents whose tokens say which they are of. Those in `bad` cannot be read; the stream goes on behind them."""

    def __init__(self, lengths: list[int], bad: tuple[int, ...] = (), *, noisy: bool = False) -> None:
        self.lengths = lengths
        self.bad = bad
        self.noisy = noisy

    def __iter__(self) -> Reading:
        return Reading(self)


class Reading:
    """One pass. It has a state."""

    def __init__(self, stream: Documents) -> None:
        self.stream = stream
        self.numbers = list(headrace.shard(range(len(stream.lengths))))
        self.next = 0

    def __iter__(self) -> Iterator[Any]:
        return self

    def __next__(self) -> Any:
        if self.next == len(self.numbers):
            raise StopIteration
        number = self.numbers[self.next]
        self.next += 1
        if number in self.stream.bad:
            raise ValueError(f"document {number} is broken")
        length = self.stream.lengths[number]
        if self.stream.noisy:
            length = int(headrace.rng().integers(1, 40))
        return {"input_ids": np.full(length, number), "number": number}

    def state_dict(self) -> dict[str, int]:
        return {"next": self.next}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.next = state["next"]


class Forgetful(torch.utils.data.IterableDataset[Any]):
    """The same without a state."""

    def __init__(self, lengths: list[int]) -> None:
        self.lengths = lengths

    def __iter__(self) -> Iterator[Any]:
        for number in headrace.shard(range(len(self.lengths))):
            yield np.full(self.lengths[number], number)


class Generated(torch.utils.data.IterableDataset[Any]):
    """What a generator function yields."""

    def __init__(self, function: Callable[[], Iterator[Any]]) -> None:
        self.function = function

    def __iter__(self) -> Iterator[Any]:
        return self.function()


def loader_of(stream: headrace.PackedStream, **options: Any) -> Any:
    return headrace.DataLoader(stream, batch_size=2, collate_fn=headrace.collate_packed, **options)


def stopped(make: Callable[[], Any], count: int) -> tuple[list[Any], Any]:
    """The first batches of a loader, and another loader that goes on behind them."""
    loader = make()
    before = []
    for batch in loader:
        before.append(batch)
        if len(before) == count:
            break
    again = make()
    again.load_state_dict(loader.state_dict())
    return before, again


def tokens_of(batches: list[Any]) -> Counter[int]:
    found: Counter[int] = Counter()
    for batch in batches:
        found.update(batch["input_ids"][batch["document_ids"] >= 0].tolist())
    return found


def expected(lengths: list[int]) -> Counter[int]:
    return Counter({number: length for number, length in enumerate(lengths) if length})


def plain(batches: list[Any]) -> list[Any]:
    return [{name: value.tolist() if isinstance(value, torch.Tensor) else value for name, value in batch.items()}
            for batch in batches]  # fmt: skip


@given(
    lengths=st.lists(st.integers(0, 30), max_size=40),
    fit=st.sampled_from(["best", "first", "split"]),
    window=st.integers(1, 20),
    stop=st.integers(0, 30),
)
@settings(deadline=None)
def test_each_token_comes_once_also_behind_a_resume(lengths: list[int], fit: Any, window: int, stop: int) -> None:
    budget = 30 if fit != "split" else 11
    stream = headrace.PackedStream(Documents(lengths), budget, fit=fit, window=window)
    whole = [headrace.collate_packed([pack]) for pack in stream]
    assert tokens_of(whole) == expected(lengths)
    assert all(batch["input_ids"].shape == (1, budget) for batch in whole)

    packs = iter(stream)
    before = [headrace.collate_packed([pack]) for _, pack in zip(range(stop), packs, strict=False)]
    again: Any = iter(stream)
    again.load_state_dict(packs.state_dict())
    assert plain(before + [headrace.collate_packed([pack]) for pack in again]) == plain(whole)


@pytest.mark.parametrize("kind", [Forgetful, Documents])
@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.quick
def test_a_loader_goes_on_in_mid_window(workers: int, kind: Any) -> None:
    def made() -> Any:
        return loader_of(headrace.PackedStream(kind(LENGTHS), 64, window=70), num_workers=workers)

    whole = list(made())
    assert tokens_of(whole) == expected(LENGTHS)
    before, again = stopped(made, 11)
    assert plain(before + list(again)) == plain(whole)


def test_random_steps_draw_the_same_numbers_again() -> None:
    def made() -> Any:
        return loader_of(headrace.PackedStream(Documents(LENGTHS, noisy=True), 64, window=70), seed=3)

    whole = list(made())
    assert len(set(tokens_of(whole).values())) > 10
    before, again = stopped(made, 11)
    assert plain(before + list(again)) == plain(whole)


class Live(torch.utils.data.IterableDataset[Any]):
    """A stream that hands out the very object in which it counts."""

    def __init__(self) -> None:
        self.state = {"at": 0}

    def __iter__(self) -> Iterator[Any]:
        while self.state["at"] < 200:
            self.state["at"] += 1
            yield np.full(10, self.state["at"])
        self.state["at"] = 0

    def state_dict(self) -> dict[str, int]:
        return self.state

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.state = state


def test_a_state_that_goes_on_changing_is_copied() -> None:
    def made() -> Any:
        return loader_of(headrace.PackedStream(Live(), 60, window=50))

    loader = made()
    batches = iter(loader)
    before = [next(batches), next(batches)]
    again = made()
    again.load_state_dict(loader.state_dict())
    assert tokens_of(before + list(again)) == Counter(dict.fromkeys(range(1, 201), 10))


def test_each_pack_reads_its_share_of_the_next_window() -> None:
    """No pack but the first waits for a whole window, and no more than one window of documents is in memory."""
    alive: weakref.WeakSet[Any] = weakref.WeakSet()
    read = []

    class Document:
        def __init__(self, length: int) -> None:
            self.input_ids = np.zeros(length)

    def documents() -> Iterator[Document]:
        for length in [10] * 1000:
            read.append(length)
            document = Document(length)
            alive.add(document)
            yield document

    packs = headrace.PackedStream(Generated(documents), 50, window=100, length=lambda document: len(document.input_ids))
    counts = []
    for pack in packs:
        counts.append(len(read))
        del pack
        gc.collect()
        assert len(alive) <= 100 + 10
    assert counts[0] == 100 + 5
    assert set(np.diff(counts)) == {5, 0}


@pytest.mark.parametrize("fit", ["best", "first", "split"])
def test_what_ends_the_stream_is_raised_behind_the_packs_before_it(fit: Any) -> None:
    def documents() -> Iterator[Any]:
        for number in range(73):
            yield np.full(10, number)
        raise MemoryError("the machine is full")

    packs = iter(headrace.PackedStream(Generated(documents), 40, fit=fit, window=30))
    came = []
    with pytest.raises(MemoryError, match="the machine is full"):
        came.extend(packs)
    whole = [headrace.collate_packed([pack]) for pack in came]
    assert tokens_of(whole) == Counter(dict.fromkeys(range(60), 10))


def test_an_error_that_ends_the_stream_is_not_asked_for_again() -> None:
    """A generator that has ended raises its exception for ever: not once for each document of a window."""
    asked = []

    class Ended:
        error = ValueError("broken")

        def __iter__(self) -> Ended:
            return self

        def __next__(self) -> Any:
            asked.append(len(asked))
            if len(asked) > 50:
                raise self.error
            return np.full(10, len(asked))

    packs = iter(headrace.PackedStream(Generated(Ended), 64, window=10_000))
    for _ in range(2):
        with pytest.raises(ValueError, match="broken"):
            list(packs)
    assert len(asked) <= 50 + 2 * 2


def test_other_documents_behind_a_resume_are_an_error() -> None:
    packs: Any = iter(headrace.PackedStream(Documents(LENGTHS), 64, window=70))
    next(packs)
    again: Any = iter(headrace.PackedStream(Documents(LENGTHS[::-1]), 64, window=70))
    again.load_state_dict(packs.state_dict())
    assert again.state_dict() == packs.state_dict()
    with pytest.raises(StateError, match="other documents"):
        next(again)


@pytest.mark.parametrize("workers", [2, 0])
@pytest.mark.quick
def test_bad_documents_are_left_out_and_counted_once(workers: int) -> None:
    bad = (3, 77, 150, 151, 298, 299)

    def made() -> Any:
        stream = headrace.PackedStream(Documents(LENGTHS, bad), 64, window=70)
        return loader_of(stream, num_workers=workers, on_error="skip")

    loader = made()
    whole = list(loader)
    good = [0 if number in bad else length for number, length in enumerate(LENGTHS)]
    assert tokens_of(whole) == expected(good)
    assert loader.stats.bad_samples == len(bad)

    before, again = stopped(made, 9)
    rest = list(again)
    assert plain(before + rest) == plain(whole)


@pytest.mark.parametrize(
    "bad, said", [({"text": "a"}, "has no tokens.*'text'"), ({"input_ids": None}, "has no length.*a NoneType")]
)
@pytest.mark.quick
def test_a_document_without_tokens_is_a_bad_one(bad: Any, said: str) -> None:
    class Some(headrace.IterableDataset[Any]):
        def __iter__(self) -> Any:
            for number in range(8):
                yield bad if number == 5 else {"input_ids": np.full(4, number), "number": number}

    with pytest.raises(SampleError, match=rf"(?s){said}.*document number 5 "):
        list(loader_of(headrace.PackedStream(Some(), 10)))
    loader = loader_of(headrace.PackedStream(Some(), 10), on_error="skip")
    assert tokens_of(list(loader)) == Counter({number: 4 for number in range(8) if number != 5})
    assert loader.stats.bad_samples == 1


class Refused(Documents):
    """Documents of which collation refuses those in `bad`, each for another reason."""

    def __iter__(self) -> Reading:
        return ReadingRefused(self)


class ReadingRefused(Reading):
    def __next__(self) -> Any:
        number = self.numbers[self.next] if self.next < len(self.numbers) else -1
        bad = self.stream.bad
        self.stream.bad = ()
        document = super().__next__()
        self.stream.bad = bad
        if number not in bad:
            return document
        tokens = document["input_ids"]
        wrong: list[dict[str, Any]] = [
            {"input_ids": tokens + 0.5},
            {"labels": [1] * 50},
            {"attention_mask": 0 * tokens},
        ]
        return {**document, **wrong[bad.index(number) % len(wrong)]}


@pytest.mark.parametrize("fit", ["best", "split"])
@pytest.mark.parametrize("action", ["skip", "replace"])
@pytest.mark.parametrize("workers", [2, 0])
@pytest.mark.quick
def test_documents_that_collation_refuses_are_left_out_and_counted(workers: int, action: Any, fit: Any) -> None:
    lengths = [length + 1 for length in LENGTHS]
    bad = (3, 77, 150, 151, 298, 299)

    def made() -> Any:
        stream = headrace.PackedStream(Refused(lengths, bad), 64, window=70, fit=fit)
        return loader_of(stream, num_workers=workers, on_error=action)

    loader = made()
    whole = list(loader)
    assert tokens_of(whole) == expected([0 if number in bad else length for number, length in enumerate(lengths)])
    for batch in whole:
        assert batch["input_ids"].shape[1] == 64
        assert (batch["labels"][batch["position_ids"] == 0] == -100).all()
    # A document that is cut is counted once for each of its parts.
    faults = loader.faults
    assert faults.skipped == faults.bad >= len(bad)
    assert fit == "split" or faults.bad == len(bad)
    assert {record.stage for record in faults.records} == {"collate"}
    # Each worker counts its own documents.
    assert {record.key * max(workers, 1) + (record.worker or 0) for record in faults.records} == set(bad)

    before, again = stopped(made, 9)
    assert plain(before + list(again)) == plain(whole)


def test_a_document_with_other_columns_than_the_rest_of_its_batch_is_left_out() -> None:
    def documents() -> Iterator[Any]:
        for number in range(24):
            document = {"input_ids": np.full(4, number), "number": number}
            yield {**document, "extra": 1} if number == 7 else document

    loader = loader_of(headrace.PackedStream(Generated(documents), 16), on_error="skip")
    assert tokens_of(list(loader)) == Counter({number: 4 for number in range(24) if number != 7})
    assert [record.key for record in loader.faults.records] == [7]


@pytest.mark.parametrize("kind", [Documents, Refused])
def test_a_pack_of_bad_documents_alone_has_the_columns_of_those_before(kind: Any) -> None:
    stream = headrace.PackedStream(kind([4] * 6, (4, 5)), 4, window=2)
    loader = headrace.DataLoader(stream, batch_size=1, collate_fn=headrace.collate_packed, on_error="skip")
    batches = list(loader)
    assert sorted(number for batch in batches for number in batch["number"].tolist()) == [0, 1, 2, 3]
    assert loader.faults.bad == 2
    (empty, *_) = [batch for batch in batches if not len(batch["number"])]
    assert (empty["document_ids"] == -1).all()


def test_dealt_out_packs_go_without_documents_that_collation_refuses(monkeypatch: pytest.MonkeyPatch) -> None:
    found: Counter[int] = Counter()
    for rank in range(2):
        monkeypatch.setenv("RANK", str(rank))
        monkeypatch.setenv("WORLD_SIZE", "2")
        monkeypatch.setattr(headrace, "shard", list)
        stream = headrace.PackedStream(Refused([4] * 16, (2, 9)), 4)
        loader = loader_of(stream, shard="auto", on_error="skip")
        batches = list(loader)
        assert len(batches) == 4
        found |= tokens_of(batches)
    assert found == Counter({number: 4 for number in range(16) if number not in (2, 9)})


def test_packs_without_a_collate_function_are_an_error_that_names_it() -> None:
    for action in ("raise", "skip"):
        with pytest.raises(UsageError, match=r"collate_fn=headrace\.collate_packed"):
            list(headrace.DataLoader(headrace.PackedStream(Documents([3, 4]), 10), batch_size=1, on_error=action))


def test_documents_that_are_too_long_are_an_error_left_out_or_cut(caplog: pytest.LogCaptureFixture) -> None:
    lengths = [5, 30, 7, 11]
    with pytest.raises(SampleError, match="longer than a pack may be") as caught:
        list(headrace.PackedStream(Documents(lengths), 10))
    assert "30 tokens" in str(caught.value)

    loader = loader_of(headrace.PackedStream(Documents(lengths), 10), on_error="skip")
    assert tokens_of(list(loader)) == Counter({0: 5, 2: 7})
    assert loader.stats.bad_samples == 2

    assert tokens_of(list(loader_of(headrace.PackedStream(Documents(lengths), 10, too_long="cut")))) == Counter(
        {0: 5, 1: 10, 2: 7, 3: 10}
    )
    assert len([record for record in caplog.records if "are cut" in record.message]) == 1


def test_several_budgets_hold_at_once() -> None:
    def length(document: Any) -> dict[str, int]:
        return {"tokens": len(document["input_ids"]), "images": document["number"] % 3}

    stream = headrace.PackedStream(Documents(LENGTHS), {"tokens": 64, "images": 3}, length=length, window=50)
    packs = list(stream)
    assert sum(len(pack.documents) for pack in packs) == len(LENGTHS)
    for pack in packs:
        assert sum(len(document["input_ids"]) for document in pack.documents) <= 64
        assert sum(document["number"] % 3 for document in pack.documents) <= 3


def test_a_length_that_lies_is_an_error() -> None:
    stream = headrace.PackedStream(Documents([3, 4]), 10, length=lambda document: len(document["input_ids"]) - 1)
    with pytest.raises(SampleError, match=r"(?s)not as long as it was said.*document 0 of the batch.*as length= said"):
        list(loader_of(stream))


def test_streams_of_headrace_and_mixtures_are_packed(tmp_path: Any) -> None:
    np.save(tmp_path / "a.npy", np.arange(6).reshape(3, 2))
    a = headrace.open(str(tmp_path / "a.npy")).stream().map(lambda sample: {"input_ids": sample["data"]})
    b = a.map(lambda sample: {"input_ids": sample["input_ids"] + 10})
    stream = headrace.PackedStream(headrace.mix([a, b], weights=[1, 1], when_exhausted="drop"), 5)
    assert tokens_of(list(loader_of(stream))) == Counter([*range(6), *range(10, 16)])


@pytest.mark.parametrize(
    "make, said",
    [
        (lambda: headrace.PackedStream([[1, 2]], 8), "PackedBatchSampler"),
        (lambda: headrace.PackedStream(5, 8), "an iterable dataset"),
        (lambda: headrace.PackedStream(Documents([1]), 0), "budget"),
        (lambda: headrace.PackedStream(Documents([1]), 8, fit="worst"), "'best', 'first' or 'split'"),
        (lambda: headrace.PackedStream(Documents([1]), 8, window=0), "window"),
        (lambda: headrace.PackedStream(Documents([1]), 8, too_long="skip"), "'raise' or 'cut'"),
        (lambda: headrace.PackedStream(Documents([1]), {"a": 8}), "a function, where budgets have names"),
        (lambda: list(headrace.PackedStream(Documents([1]), {"a": 8}, length=len)), "a mapping with 'a'"),
        (lambda: list(headrace.PackedStream(Documents([1]), 8, length=lambda _: "a")), "number of tokens"),
        (lambda: list(headrace.PackedStream(Documents([1]), {"a": 8}, length=lambda _: {"a": -5})), "-5 a"),
        (lambda: list(headrace.PackedStream(Documents([1]), {"a": 8}, length=lambda _: {"a": None})), "None a"),
        (lambda: list(headrace.PackedStream(Documents([1]), 8, length=lambda _: 1.5)), "1.5 tokens"),
    ],
)
@pytest.mark.quick
def test_wrong_arguments_are_named(make: Any, said: str) -> None:
    with pytest.raises(UsageError) as caught:
        make()
    assert said in str(caught.value)


def test_an_empty_stream_has_no_packs() -> None:
    assert list(headrace.PackedStream(Documents([]), 8)) == []
    assert list(loader_of(headrace.PackedStream(Documents([]), 8))) == []


def test_packs_have_the_names_that_models_take() -> None:
    stream = headrace.PackedStream(Documents([4, 4]), 8)
    collate = functools.partial(headrace.collate_packed, names="huggingface")
    (batch,) = headrace.DataLoader(stream, batch_size=1, collate_fn=collate)
    assert batch["input_ids"].shape == (1, 8)
