"""Packs as models take them: each token once, labels and positions of its own document, and bad documents."""

from __future__ import annotations

import functools
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.nn.functional import cross_entropy

import headrace
from headrace.batches.collate_packed import takes_packs
from headrace.core.errors import SampleError, UsageError
from headrace.samplers import PackedBatch, PackedBatchSampler
from tests.samplers.makers import ALONE


class Documents(torch.utils.data.Dataset[Any]):
    """Documents whose tokens say which document and which place they are of. Those in `bad` cannot be read."""

    def __init__(self, lengths: list[int], bad: tuple[int, ...] = (), **columns: Any) -> None:
        self.lengths = lengths
        self.bad = bad
        self.columns = columns

    def __len__(self) -> int:
        return len(self.lengths)

    def __getitem__(self, key: int) -> dict[str, Any]:
        if key in self.bad:
            raise ValueError(f"document {key} is broken")
        tokens = 1000 * (key + 1) + np.arange(self.lengths[key])
        return {"input_ids": tokens, **{name: column(key, tokens) for name, column in self.columns.items()}}


def loader_of(dataset: Documents, budget: int, packs: int = 1, **options: Any) -> headrace.DataLoader[Any]:
    order = {name: options.pop(name) for name in ("fit", "shapes", "too_long") if name in options}
    sampler = PackedBatchSampler(dataset.lengths, budget, packs, shuffle=False, **order, **ALONE)
    collate = functools.partial(headrace.collate_packed, **options.pop("collate", {}))
    return headrace.DataLoader(dataset, batch_sampler=sampler, collate_fn=collate, **options)


def expected_of(batch: PackedBatch, dataset: Documents) -> dict[str, list[list[int]]]:
    """The columns of a batch, token by token."""
    columns: dict[str, list[list[int]]] = {"input_ids": [], "labels": [], "position_ids": [], "document_ids": []}
    for pack in batch.packs:
        rows: dict[str, list[int]] = {name: [] for name in columns}
        for number, (key, start, stop) in enumerate(pack):
            tokens = dataset[key]["input_ids"].tolist()[start:stop]
            rows["input_ids"] += tokens
            rows["labels"] += [-100, *tokens[1:]][: len(tokens)]
            rows["position_ids"] += range(len(tokens))
            rows["document_ids"] += [number] * len(tokens)
        padding = batch.shape[1] - len(rows["input_ids"])
        rows["input_ids"] += [0] * padding
        rows["labels"] += [-100] * padding
        rows["position_ids"] += range(padding)
        rows["document_ids"] += [-1] * padding
        for name, row in rows.items():
            columns[name].append(row)
    return columns


def bounds_of(positions: torch.Tensor) -> list[int]:
    """Where positions begin anew, and the end."""
    return [*torch.nonzero(positions.reshape(-1) == 0).reshape(-1).tolist(), positions.numel()]


@given(
    lengths=st.lists(st.integers(0, 30), min_size=1, max_size=30),
    packs=st.integers(1, 3),
    fit=st.sampled_from(["best", "first", "split"]),
    shapes=st.integers(1, 3),
)
@settings(deadline=None)
def test_every_name_tells_of_the_same_tokens(lengths: list[int], packs: int, fit: Any, shapes: int) -> None:
    budget = 30 if fit != "split" else 12
    dataset = Documents(lengths)
    sampler = PackedBatchSampler(lengths, budget, packs, fit=fit, shapes=shapes, **ALONE)
    for keys in sampler:
        samples = [dataset[key] for key in keys]
        made = {
            name: headrace.collate_packed(samples, names=name, packs=keys)
            for name in ("headrace", "huggingface", "huggingface-flash", "flash", "torchtitan")
        }
        ours = made["headrace"]
        expected = expected_of(keys, dataset)
        assert {name: ours[name].tolist() for name in expected} == expected
        assert all(ours[name].dtype is torch.int64 for name in expected)

        bounds = bounds_of(ours["position_ids"])
        longest = max(stop - start for start, stop in pairwise(bounds))
        assert ours["cu_seqlens"].tolist() == bounds
        assert ours["cu_seqlens"].dtype is torch.int32
        assert ours["max_seqlen"] == longest
        for name in ("input_ids", "labels", "position_ids"):
            assert torch.equal(made["huggingface"][name], ours[name].view(1, -1))
            assert torch.equal(made["huggingface-flash"][name], ours[name].view(1, -1))
            assert torch.equal(made["flash"][name], ours[name].view(-1))
        for letter in "qk":
            assert made["flash"][f"cu_seqlens_{letter}"].tolist() == bounds
            assert made["flash"][f"max_seqlen_{letter}"] == longest
            assert made["huggingface-flash"][f"cu_seq_lens_{letter}"].tolist() == bounds
            assert made["huggingface-flash"][f"max_length_{letter}"] == longest

        inputs, labels = made["torchtitan"]
        assert torch.equal(inputs["input"], ours["input_ids"])
        assert torch.equal(inputs["positions"], ours["position_ids"])
        # The label of a token is the next token of its document, also where the rest of it is in another pack.
        for token, label in zip(inputs["input"].view(-1).tolist(), labels.view(-1).tolist(), strict=True):
            key, place = token // 1000 - 1, token % 1000
            has_next = key >= 0 and place + 1 < lengths[key]
            assert label == (token + 1 if has_next else -100)


def test_without_packs_all_documents_are_one_without_padding() -> None:
    batch = headrace.collate_packed([torch.tensor([5, 6, 7]), [], [8, 9]])
    assert batch["input_ids"].tolist() == [[5, 6, 7, 8, 9]]
    assert batch["labels"].tolist() == [[-100, 6, 7, -100, 9]]
    assert batch["cu_seqlens"].tolist() == [0, 3, 5]
    assert batch["document_ids"].tolist() == [[0, 0, 0, 2, 2]]


def test_torchs_loader_gets_the_same_from_packs_of_whole_documents() -> None:
    dataset = Documents([5, 3, 8, 2, 7, 1])
    sampler = PackedBatchSampler(dataset.lengths, 10, **ALONE)
    ours = headrace.DataLoader(dataset, batch_sampler=sampler, collate_fn=headrace.collate_packed)
    theirs = torch.utils.data.DataLoader(dataset, batch_sampler=sampler, collate_fn=headrace.collate_packed)
    for mine, other in zip(ours, theirs, strict=True):
        count = other["input_ids"].shape[1]
        for name in ("input_ids", "labels", "position_ids", "document_ids"):
            assert torch.equal(mine[name][:, :count], other[name])


@pytest.mark.parametrize("options", [{"fit": "split"}, {"too_long": "cut"}], ids=["split", "cut"])
@pytest.mark.quick
def test_torchs_loader_may_not_read_documents_that_are_cut(options: Any) -> None:
    """It would read them whole, and train on the same tokens twice."""
    dataset = Documents([5, 3, 8])
    sampler = PackedBatchSampler(dataset.lengths, 4, **options, **ALONE)
    loader = torch.utils.data.DataLoader(dataset, batch_sampler=sampler, collate_fn=headrace.collate_packed)
    with pytest.raises(UsageError, match="documents are cut"):
        next(iter(loader))
    assert len(list(sampler)) > 1
    assert next(iter(loader_of(dataset, 4, **options)))["input_ids"].shape == (1, 4)


@pytest.mark.parametrize("workers", [2, 0])
@pytest.mark.quick
def test_labels_and_other_columns_come_along(workers: int) -> None:
    dataset = Documents(
        [4, 3, 6, 2],
        labels=lambda _, tokens: np.where(tokens % 2, tokens, -100),
        loss_mask=lambda _, tokens: tokens % 2 == 1,
        rewards=lambda _, tokens: tokens / 1000,
        pixels=lambda key, _: torch.full((key, 2), float(key)),
        boxes=lambda key, _: np.full((1, 4), key),
        score=lambda key, _: key / 2,
        name=lambda key, _: f"document {key}",
    )
    batches = list(loader_of(dataset, 8, 2, num_workers=workers, collate={"per_token": ["rewards"], "pad_id": 7}))
    (batch,) = batches
    assert batch["input_ids"].shape == (2, 8)
    assert (batch["input_ids"] == 7).sum() == 1
    for row in range(2):
        tokens = batch["input_ids"][row]
        is_first = batch["position_ids"][row] == 0
        is_padding = batch["document_ids"][row] == -1
        is_odd = tokens % 2 == 1
        assert batch["labels"][row].tolist() == torch.where(is_odd & ~is_first & ~is_padding, tokens, -100).tolist()
        assert batch["loss_mask"][row].tolist() == (is_odd & ~is_padding).tolist()
        assert batch["rewards"][row].tolist() == torch.where(is_padding, 0, tokens.double() / 1000).tolist()
    order = (batch["input_ids"][batch["position_ids"] == 0] // 1000 - 1).tolist()
    order = [key for key in order if key >= 0]
    assert batch["pixels"].tolist() == [[key, key] for key in order for _ in range(key)]
    assert batch["boxes"].tolist() == [[key] * 4 for key in order]
    assert batch["score"].tolist() == [key / 2 for key in order]
    assert batch["name"] == [f"document {key}" for key in order]


def test_columns_of_a_document_that_is_cut_come_once() -> None:
    dataset = Documents([5, 6, 4], score=lambda key, _: key)
    scores = [batch["score"] for batch in loader_of(dataset, 4, fit="split")]
    assert [score.tolist() for score in scores] == [[0], [1], [2], []]
    assert {score.dtype for score in scores} == {torch.int64}


class Model(torch.nn.Module):
    """A transformer of one block, whose attention sees the tokens of the same document up to each token."""

    def __init__(self) -> None:
        super().__init__()
        self.tokens = torch.nn.Embedding(50, 16)
        self.places = torch.nn.Embedding(64, 16)
        self.attention = torch.nn.MultiheadAttention(16, 2, batch_first=True)
        self.head = torch.nn.Linear(16, 50)

    def forward(self, input_ids: torch.Tensor, position_ids: torch.Tensor, document_ids: torch.Tensor) -> torch.Tensor:
        x = self.tokens(input_ids) + self.places(position_ids)
        length = input_ids.shape[1]
        is_other = document_ids[:, :, None] != document_ids[:, None, :]
        is_later = torch.ones(length, length).triu(1).bool()
        mask = (is_other | is_later).repeat_interleave(2, 0)
        seen, _ = self.attention(x, x, x, attn_mask=mask, need_weights=False)
        logits: torch.Tensor = self.head(x + seen)
        return logits


def test_a_model_gives_each_document_of_a_pack_the_loss_it_has_alone() -> None:
    torch.manual_seed(0)
    model = Model()
    documents = [torch.randint(50, (length,)) for length in [9, 1, 20, 14, 3, 30, 2, 17]]
    alone = []
    for tokens in documents:
        where = torch.arange(len(tokens))[None]
        logits = model(tokens[None], where, torch.zeros_like(where))[0]
        alone.append(cross_entropy(logits[:-1], tokens[1:], reduction="sum").item())

    sampler = PackedBatchSampler([len(tokens) for tokens in documents], 32, 2, **ALONE)
    loader = headrace.DataLoader(documents, batch_sampler=sampler, collate_fn=headrace.collate_packed)
    found = [0.0] * len(documents)
    for keys, batch in zip(sampler, loader, strict=True):
        logits = model(batch["input_ids"], batch["position_ids"], batch["document_ids"])
        for row, pack in enumerate(keys.packs):
            losses = cross_entropy(logits[row, :-1], batch["labels"][row, 1:], reduction="none")
            for number, (key, _, _) in enumerate(pack):
                found[key] = losses[batch["document_ids"][row, 1:] == number].sum().item()
    assert found == pytest.approx(alone, abs=1e-5)


@pytest.mark.parametrize("workers", [2, 0])
@pytest.mark.quick
def test_a_document_that_is_skipped_leaves_the_pack_valid_and_is_counted(workers: int) -> None:
    dataset = Documents([4, 3, 6, 2, 5], bad=(2, 4))
    loader = loader_of(dataset, 8, 2, on_error="skip", num_workers=workers)
    batches = list(loader)
    tokens = [token for batch in batches for token in batch["input_ids"].view(-1).tolist() if token]
    assert sorted(tokens) == [*range(1000, 1004), *range(2000, 2003), *range(4000, 4002)]
    for batch in batches:
        assert batch["input_ids"].shape == (2, 8)
        assert batch["cu_seqlens"].tolist() == bounds_of(batch["position_ids"])
        assert ((batch["input_ids"] == 0) == (batch["document_ids"] == -1)).all()
        assert (batch["labels"][batch["position_ids"] == 0] == -100).all()
    assert loader.stats.bad_samples == 2


@pytest.mark.parametrize("bad", [(0,), (0, 1, 2)], ids=["the longest", "all"])
@pytest.mark.parametrize("workers", [2, 0])
@pytest.mark.quick
def test_a_pack_of_bad_documents_alone_is_padding(workers: int, bad: tuple[int, ...]) -> None:
    dataset = Documents([40, 3, 6], bad=bad)
    batches = list(loader_of(dataset, 8, fit="split", on_error="skip", num_workers=workers))
    assert len(batches) == 7
    assert {batch["input_ids"].shape for batch in batches} == {(1, 8)}
    tokens = [token for batch in batches for token in batch["input_ids"].view(-1).tolist() if token]
    good = [1000 * (key + 1) + place for key in range(3) if key not in bad for place in range(dataset.lengths[key])]
    assert sorted(tokens) == good


@pytest.mark.parametrize("workers", [2, 0])
@pytest.mark.quick
def test_a_document_in_the_place_of_a_bad_one_is_cut_to_its_length_and_counted(workers: int) -> None:
    dataset = Documents([4, 3, 6, 2, 5], bad=(3,))
    loader = loader_of(dataset, 8, 2, on_error="replace", num_workers=workers)
    batches = list(loader)
    for batch in batches:
        assert batch["input_ids"].shape == (2, 8)
        assert batch["cu_seqlens"].tolist() == bounds_of(batch["position_ids"])
    tokens = [token for batch in batches for token in batch["input_ids"].view(-1).tolist() if token]
    whole = [
        token for key, length in enumerate(dataset.lengths) if key != 3 for token in 1000 * key + np.arange(length)
    ]
    others = list(tokens)
    for token in whole:
        others.remove(token + 1000)
    # The beginning of another document, two tokens at most.
    assert 1 <= len(others) <= 2
    assert others[0] % 1000 == 0
    assert loader.stats.bad_samples == 1


def test_lengths_that_lie_are_an_error_that_names_the_document() -> None:
    dataset = Documents([4, 3, 6])
    sampler = PackedBatchSampler([4, 5, 6], 8, **ALONE)
    loader = headrace.DataLoader(dataset, batch_sampler=sampler, collate_fn=headrace.collate_packed)
    with pytest.raises(SampleError, match="not as long as it was said") as caught:
        list(loader)
    for part in ("key 1", "3 tokens", "5, as in lengths="):
        assert part in str(caught.value)


def test_with_skip_a_document_whose_length_lies_is_left_out() -> None:
    dataset = Documents([4, 3, 6])
    sampler = PackedBatchSampler([4, 5, 6], 20, **ALONE)
    loader = headrace.DataLoader(dataset, batch_sampler=sampler, collate_fn=headrace.collate_packed, on_error="skip")
    (batch,) = loader
    assert set((batch["input_ids"].view(-1) // 1000).tolist()) == {0, 1, 3}
    assert loader.stats.bad_samples == 1


@pytest.mark.parametrize("fit", ["split", "best"])
@pytest.mark.quick
def test_documents_may_be_shorter_where_a_step_draws_their_lengths(fit: Any) -> None:
    dataset = Documents([4, 3, 6, 12])
    sampler = PackedBatchSampler([7, 6, 9, 12], 20 if fit == "best" else 8, fit=fit, **ALONE)
    collate = functools.partial(headrace.collate_packed, may_be_shorter=True)
    batches = list(headrace.DataLoader(dataset, batch_sampler=sampler, collate_fn=collate))
    tokens = [token for batch in batches for token in batch["input_ids"].view(-1).tolist() if token]
    assert sorted(tokens) == [*range(1000, 1004), *range(2000, 2003), *range(3000, 3006), *range(4000, 4012)]
    for batch in batches:
        assert batch["cu_seqlens"].tolist() == bounds_of(batch["position_ids"])

    sampler = PackedBatchSampler([7, 2, 9, 12], 20, **ALONE)
    with pytest.raises(SampleError, match="not as long as it was said"):
        list(headrace.DataLoader(dataset, batch_sampler=sampler, collate_fn=collate))


@pytest.mark.parametrize(
    "sample, options, said",
    [
        ({"text": "a"}, {}, "a sample with 'text'"),
        ({"input_ids": [1, 2], "labels": [1]}, {}, "'labels' of document 0 of the batch"),
        ({"input_ids": [1, 2], "rewards": [1.0]}, {"per_token": ["rewards"]}, "'rewards' of document 0"),
        ({"input_ids": [1.5, 2.0]}, {}, "float64 of shape (2,)"),
        ({"input_ids": ["a"]}, {}, "of shape (1,)"),
        ({"input_ids": [[1], [2]]}, {}, "of shape (2, 1)"),
        ({"input_ids": 5}, {}, "int"),
        ({"input_ids": [1, 2], "labels": None}, {}, "'labels' of document 0 of the batch"),
        ({"input_ids": [1, 2], "attention_mask": [1, 0]}, {}, "zeros in its 'attention_mask'"),
        ({"input_ids": [1, 2], "attention_mask": [1]}, {}, "'attention_mask' of shape (1,)"),
        ({"input_ids": np.array([1 << 63], np.uint64)}, {}, "uint64 of shape (1,)"),
        ({"input_ids": ([1, 2], 3)}, {}, "document 0 of the batch"),
        ({"input_ids": [1, 2], "position_ids": [1, 2]}, {}, "a column 'position_ids'"),
        ({"input_ids": [1, 2], "input": [1, 2]}, {"names": "torchtitan"}, "a column 'input'"),
    ],
)
@pytest.mark.quick
def test_documents_that_are_none_are_an_error(sample: Any, options: Any, said: str) -> None:
    with pytest.raises(SampleError) as caught:
        headrace.collate_packed([sample], **options)
    assert said in str(caught.value)


@pytest.mark.parametrize(
    "options, said",
    [
        ({"names": "hf"}, "'huggingface'"),
        ({"pad_id": -100}, "pad_id"),
        ({"pad_id": None}, "pad_id"),
        ({"pad_id": True}, "pad_id"),
        ({"pad_id": 1 << 70}, "pad_id"),
        ({"per_token": None}, "a list of names"),
        ({"per_token": "loss_mask"}, "a list of names"),
        ({"per_token": ["weigth"]}, "'weigth', and documents with 'input_ids'"),
    ],
)
@pytest.mark.quick
def test_wrong_arguments_are_named(options: Any, said: str) -> None:
    with pytest.raises(UsageError) as caught:
        headrace.collate_packed([[1]], **options)
    assert said in str(caught.value)


def test_documents_with_different_columns_are_an_error() -> None:
    """The labels, or the images, of the others would be lost without a word."""
    with pytest.raises(SampleError, match="different columns") as caught:
        headrace.collate_packed([{"input_ids": [1]}, {"input_ids": [2], "labels": [-100]}])
    assert "'labels' in one of them only" in str(caught.value)
    with pytest.raises(SampleError, match="cannot be joined") as caught:
        headrace.collate_packed([{"input_ids": [1], "p": np.ones((1, 3))}, {"input_ids": [1], "p": np.ones((1, 4))}])
    assert "column 'p'" in str(caught.value)


@pytest.mark.parametrize("names, shape", [("torchtitan", (1, 3)), ("flash", (3,)), ("huggingface", (1, 3))])
@pytest.mark.quick
def test_values_of_tokens_have_the_shape_of_tokens(names: Any, shape: tuple[int, ...]) -> None:
    samples = [{"input_ids": [1, 2], "w": np.ones((2, 4))}, {"input_ids": [3], "w": np.ones((1, 4))}]
    made: Any = headrace.collate_packed(samples, names=names, per_token=["w"])
    if names == "torchtitan":
        made = made[0]
    assert made["w"].shape == (*shape, 4)


def test_a_mask_of_ones_is_left_out() -> None:
    batch = headrace.collate_packed([{"input_ids": [1, 2], "attention_mask": np.ones(2)}], names="huggingface")
    assert "attention_mask" not in batch


def test_values_of_tokens_may_be_of_bfloat16() -> None:
    weights = torch.tensor([0.5, 1.5], dtype=torch.bfloat16)
    batch = headrace.collate_packed([{"input_ids": [1, 2], "weight": weights}], per_token=["weight"])
    assert batch["weight"].tolist() == [[0.5, 1.5]]
    assert batch["weight"].dtype is torch.bfloat16


@pytest.mark.parametrize("other", [np.zeros(3), np.zeros((3, 1))], ids=["flat", "narrow"])
def test_values_of_tokens_of_other_shapes_are_an_error(other: Any) -> None:
    samples = [{"input_ids": [1, 2], "v": np.zeros((2, 3))}, {"input_ids": [3, 4, 5], "v": other}]
    with pytest.raises(SampleError, match="column 'v'") as caught:
        headrace.collate_packed(samples, per_token=["v"])
    assert "values of shapes" in str(caught.value)


def test_a_document_without_tokens_brings_its_other_columns_once() -> None:
    """With `fit="split"`, each of its parts has none."""
    pixels = {0: np.full((2, 1), 7), 1: np.full((1, 1), 8)}
    dataset = [{"input_ids": [], "pixels": pixels[0]}, {"input_ids": [5, 6], "pixels": pixels[1]}]
    sampler = PackedBatchSampler([9, 2], 4, packs=3, fit="split", shuffle=False, **ALONE)
    collate = functools.partial(headrace.collate_packed, may_be_shorter=True)
    (batch,) = headrace.DataLoader(dataset, batch_sampler=sampler, collate_fn=collate)
    assert batch["pixels"].view(-1).tolist() == [7, 7, 8]


@pytest.mark.parametrize("collate", [None, lambda samples: headrace.collate_packed(samples), list])
@pytest.mark.quick
def test_a_collate_function_that_does_not_ask_for_packs_gets_no_cut_documents(collate: Any) -> None:
    dataset = Documents([5, 3, 8])
    sampler = PackedBatchSampler(dataset.lengths, 4, fit="split", **ALONE)
    with pytest.raises(UsageError, match="does not ask where"):
        headrace.DataLoader(dataset, batch_sampler=sampler, collate_fn=collate)


def test_a_function_that_passes_packs_on_gets_them() -> None:
    dataset = Documents([5, 3, 8])

    def collate(samples: Any, packs: Any = None) -> Any:
        return headrace.collate_packed(samples, packs=packs)

    sampler = PackedBatchSampler(dataset.lengths, 4, fit="split", **ALONE)
    batches = list(headrace.DataLoader(dataset, batch_sampler=sampler, collate_fn=collate))
    assert sum(int((batch["document_ids"] >= 0).sum()) for batch in batches) == 16


def test_a_batch_sampler_as_sampler_is_an_error() -> None:
    with pytest.raises(UsageError, match="batch_sampler="):
        headrace.DataLoader(Documents([5]), sampler=PackedBatchSampler([5], 8))


def test_only_functions_that_name_packs_are_given_them() -> None:
    assert takes_packs(headrace.collate_packed)
    assert takes_packs(functools.partial(headrace.collate_packed, names="flash"))
    assert not takes_packs(torch.utils.data.default_collate)
    assert not takes_packs(lambda samples, **options: samples)
