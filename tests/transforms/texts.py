"""Small tokenizers, made from scratch, and documents for them."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import Dataset

WORDS = ("the", "cat", "sat", "on", "a", "mat", "and", "saw", "the", "dog", "run", "far", "away", "from", "its", "own")
END = "<end>"


def documents(count: int = 24) -> list[dict[str, Any]]:
    """Samples with a text each, of different lengths, and a number."""
    rng = np.random.default_rng(0)
    lengths = rng.integers(1, 30, count)
    return [{"text": " ".join(rng.choice(WORDS, length)), "number": at} for at, length in enumerate(lengths.tolist())]


def of_tokenizers() -> Any:
    """A tokenizer of `tokenizers`, which begins each text with a token of its own."""
    tokenizers = pytest.importorskip("tokenizers")
    tokenizer = tokenizers.Tokenizer(tokenizers.models.BPE(unk_token="<unk>"))
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    trainer = tokenizers.trainers.BpeTrainer(
        vocab_size=300, special_tokens=["<unk>", "<begin>", END], show_progress=False
    )
    tokenizer.train_from_iterator([document["text"] for document in documents()], trainer)
    tokenizer.post_processor = tokenizers.processors.TemplateProcessing(
        single="<begin> $A", special_tokens=[("<begin>", 1)]
    )
    return tokenizer


def of_tiktoken() -> Any:
    """An encoding of `tiktoken`: one token for each byte, and one for the word "the"."""
    tiktoken = pytest.importorskip("tiktoken")
    ranks = {bytes([byte]): byte for byte in range(256)} | {b"th": 256, b"the": 257}
    return tiktoken.Encoding("small", pat_str=r"\w+|\W+", mergeable_ranks=ranks, special_tokens={END: 258})


MAKERS = {"tokenizers": of_tokenizers, "tiktoken": of_tiktoken}


def expected_ids(library: str, text: str, add_special_tokens: bool = True) -> list[int]:
    """The token ids of a text, by the library itself."""
    tokenizer = MAKERS[library]()
    if library == "tiktoken":
        return list(tokenizer.encode_ordinary(text))
    return list(tokenizer.encode(text, add_special_tokens=add_special_tokens).ids)


class Stepped(Dataset[Any]):
    """A map-style dataset that puts each sample through a step; each sample is a row of tokens, of its own length."""

    def __init__(self, step: Any, samples: list[dict[str, Any]]) -> None:
        self.step = step
        self.samples = samples

    def __len__(self) -> int:
        return len(self.samples)

    def __getitem__(self, index: int) -> dict[str, Any]:
        return dict(self.step(self.samples[index]))


def as_list(samples: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Collates nothing."""
    return samples


def rows_of(batches: Any) -> list[list[int]]:
    """The token ids of each sample, of batches that are lists of samples or padded."""
    found = []
    for batch in batches:
        if isinstance(batch, list):
            found += [torch.as_tensor(sample["input_ids"]).tolist() for sample in batch]
        else:
            values, lengths = batch["input_ids"]
            found += [row[:length].tolist() for row, length in zip(values, lengths.tolist(), strict=True)]

    return found
