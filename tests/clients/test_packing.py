"""Packs in code that nobody here wrote: models and trainers of transformers and TRL, torchtitan's masks, Accelerate."""

from __future__ import annotations

import functools
import importlib.util
import os
import re
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.nn.functional import cross_entropy

import headrace
from headrace.samplers import PackedBatchSampler
from tests.clients.test_clients import LAUNCH, SCRIPTS, output_of

pytestmark = [pytest.mark.clients, pytest.mark.timeout(300)]

VOCABULARY = 64
ALONE: dict[str, Any] = {"rank": 0, "world_size": 1}


def skip_without(module: str) -> None:
    if importlib.util.find_spec(module) is None:
        how = "it comes with torch for CUDA" if module == "triton" else "`make test-clients` installs it"
        pytest.skip(f"{module} is not installed: {how}")


def documents(lengths: list[int]) -> list[dict[str, list[int]]]:
    generator = np.random.default_rng(0)
    return [{"input_ids": generator.integers(1, VOCABULARY, length).tolist()} for length in lengths]


def small_model() -> Any:
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(0)
    small = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4}
    return LlamaForCausalLM(LlamaConfig(vocab_size=VOCABULARY, max_position_embeddings=128, **small))


def loader_of(texts: list[dict[str, list[int]]], packs: int, **options: Any) -> headrace.DataLoader[Any]:
    lengths = [len(text["input_ids"]) for text in texts]
    return headrace.DataLoader(
        texts,
        batch_sampler=PackedBatchSampler(lengths, 64, packs, **options),
        collate_fn=functools.partial(headrace.collate_packed, names="huggingface"),
        num_workers=1,
    )


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of torch, in what transformers calls
@pytest.mark.parametrize("attention", ["eager", "flex_attention", "sdpa"])
def test_a_model_of_transformers_gives_each_document_the_loss_it_has_alone(attention: str) -> None:
    skip_without("transformers")
    model = small_model()
    texts = documents([9, 1, 20, 14, 3, 30, 2, 17, 50, 64])
    with torch.no_grad():
        alone = []
        for text in texts:
            tokens = torch.tensor(text["input_ids"])
            logits = model(tokens[None]).logits[0]
            alone.append(cross_entropy(logits[:-1], tokens[1:], reduction="sum").item())

        model.set_attn_implementation(attention)
        found = {}
        sampler = PackedBatchSampler([len(text["input_ids"]) for text in texts], 64, 2, **ALONE)
        for keys, batch in zip(sampler, loader_of(texts, 2, **ALONE), strict=True):
            losses = cross_entropy(model(**batch).logits[0, :-1], batch["labels"][0, 1:], reduction="none")
            for row, pack in enumerate(keys.packs):
                at = 64 * row
                for key, start, stop in pack:
                    found[key] = losses[at : at + stop - start - 1].sum().item()
                    at += stop - start
    assert len(found) == len(texts)
    assert [found[key] for key in range(len(texts))] == pytest.approx(alone, rel=1e-5)


def test_the_batch_is_that_of_the_collator_of_transformers() -> None:
    skip_without("transformers")
    from transformers import DataCollatorWithFlattening

    texts = documents([9, 1, 20, 3])
    theirs = DataCollatorWithFlattening(return_flash_attn_kwargs=True)(texts)
    ours = headrace.collate_packed(texts, names="huggingface-flash")
    assert ours.pop("use_cache") is False
    assert ours.keys() == theirs.keys()
    for name, value in theirs.items():
        if isinstance(value, torch.Tensor):
            assert torch.equal(ours[name], value)
            assert ours[name].dtype == value.dtype
        else:
            assert ours[name] == value


def trained(base: Any, texts: list[dict[str, list[int]]], **words: Any) -> tuple[list[torch.Tensor], Any]:
    """Trains two epochs, with a loader of packs in the place of the trainer's. Returns its batches, and the trainer."""
    batches = []

    class Packing(base):  # type: ignore[misc]
        def get_train_dataloader(self) -> Any:
            return loader_of(texts, 2)

        def training_step(self, model: Any, inputs: Any, *more: Any, **options: Any) -> Any:
            batches.append(inputs["input_ids"].clone())
            return super().training_step(model, inputs, *more, **options)

    trainer = Packing(model=small_model(), **words)
    trainer.train()
    return batches, trainer


def assert_each_document_comes_once_an_epoch(batches: list[torch.Tensor], texts: list[dict[str, list[int]]]) -> None:
    of_an_epoch = len(batches) // 2
    assert len(batches) == 2 * of_an_epoch
    expected = Counter(token for text in texts for token in text["input_ids"])
    for epoch in range(2):
        some = batches[epoch * of_an_epoch : (epoch + 1) * of_an_epoch]
        assert {tuple(batch.shape) for batch in some} == {(1, 128)}
        found = Counter(torch.cat(some).view(-1).tolist())
        del found[0]  # padding
        assert found == expected


SETTINGS: dict[str, Any] = {
    "num_train_epochs": 2,
    "report_to": [],
    "save_strategy": "no",
    "use_cpu": True,
    "disable_tqdm": True,
    "logging_strategy": "no",
    "seed": 4,
}


def test_the_trainer_of_transformers_trains_on_packs(tmp_path: Path) -> None:
    skip_without("transformers")
    from transformers import Trainer, TrainingArguments

    texts = documents(np.random.default_rng(1).integers(1, 60, 60).tolist())
    arguments = TrainingArguments(output_dir=str(tmp_path), **SETTINGS)
    batches, _ = trained(Trainer, texts, args=arguments, train_dataset=texts)
    assert_each_document_comes_once_an_epoch(batches, texts)


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning")  # of its own code
def test_the_sft_trainer_of_trl_trains_on_packs(tmp_path: Path) -> None:
    skip_without("trl")
    from datasets import Dataset
    from tokenizers import Tokenizer, models
    from transformers import PreTrainedTokenizerFast
    from trl import SFTConfig, SFTTrainer

    words = Tokenizer(models.WordLevel({str(number): number for number in range(VOCABULARY)}, unk_token="0"))
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=words, eos_token="1", pad_token="0")
    texts = documents(np.random.default_rng(1).integers(1, 60, 60).tolist())
    arguments = SFTConfig(output_dir=str(tmp_path), bf16=False, **SETTINGS)
    more = {"train_dataset": Dataset.from_list(texts), "processing_class": tokenizer}
    batches, _ = trained(SFTTrainer, texts, args=arguments, **more)
    assert_each_document_comes_once_an_epoch(batches, texts)


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of torch, in what torchtitan imports
def test_the_batch_is_what_torchtitan_takes() -> None:
    """Its masks and metadata of documents, made of our positions, and the labels that its loss leaves out."""
    skip_without("torchtitan")
    skip_without("triton")
    from torchtitan.components.loss import IGNORE_INDEX
    from torchtitan.models.common.attention import create_varlen_metadata_for_document, get_document_mask_mod

    texts = documents([9, 1, 20, 14, 3, 30, 2, 17, 50, 64])
    lengths = [len(text["input_ids"]) for text in texts]
    for keys in PackedBatchSampler(lengths, 64, 2, **ALONE):
        samples = [texts[key] for key in keys]
        ours = headrace.collate_packed(samples, packs=keys)
        inputs, labels = headrace.collate_packed(samples, names="torchtitan", packs=keys)
        assert inputs["input"].shape == labels.shape == inputs["positions"].shape == (2, 64)

        metadata = create_varlen_metadata_for_document(inputs["positions"])
        assert torch.equal(metadata.cu_seq_q, ours["cu_seqlens"])
        assert metadata.max_q == ours["max_seqlen"]

        sees = get_document_mask_mod(inputs["positions"])
        rows, queries, keys_of_rows = torch.meshgrid(torch.arange(2), torch.arange(64), torch.arange(64), indexing="ij")
        same = ours["document_ids"][:, :, None] == ours["document_ids"][:, None, :]
        assert torch.equal(sees(rows, torch.zeros_like(rows), queries, keys_of_rows), same)

        # Each label is the next token, where that is one of the same document.
        following = torch.nn.functional.pad(ours["input_ids"][:, 1:], (0, 1))
        has_next = torch.nn.functional.pad(ours["position_ids"][:, 1:] > 0, (0, 1)) & (ours["document_ids"] >= 0)
        assert torch.equal(labels, torch.where(has_next, following, IGNORE_INDEX))


@pytest.mark.parametrize("fit", ["split", "best"])
def test_accelerate_trains_on_packs_on_two_ranks(fit: str) -> None:
    skip_without("accelerate")
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    script = str(SCRIPTS / "packed_accelerate.py")
    printed, _ = output_of([sys.executable, *LAUNCH, script, fit], environment)
    lines = re.findall(r"trained (\d) (\S+) ([\d ]+)", printed)
    assert {rank for rank, _, _ in lines} == {"0", "1"}
    assert {shape for _, shape, _ in lines} == {"1x128"}
    found = Counter(int(token) for _, _, tokens in lines for token in tokens.split())
    lengths = np.random.default_rng(0).integers(1, 40, 120)
    expected = Counter({key: int(length) for key, length in enumerate(lengths)})
    del found[119], expected[119]  # padding has the number of the last document
    assert expected - found == Counter()
    # Accelerate gives a rank that has no batch left one again. Ranks write in any order.
    batches = [Counter(int(token) for token in tokens.split() if token != "119") for _, _, tokens in lines]
    assert len(lines) % 2 == 0
    assert found - expected in [Counter(), *batches]
