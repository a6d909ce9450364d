"""Trains a small vision-language model on packs that keep to two budgets: tokens and patches of images.

    python examples/train_vlm.py

Each made-up document has an image of one of eight kinds, or none, then words, then the answer: which kind it is. An
image has 4 to 96 patches, and its text has a placeholder token for each. `PackedBatchSampler` fills packs so that
neither their tokens nor their patches go beyond the budget. The model puts projected patches in the place of the
placeholders, and no token attends to another document: the kinds of others in the pack would mislead it.
"""

from __future__ import annotations

import argparse
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils.data import Dataset

import headrace

BUDGETS = {"tokens": 512, "patches": 256}
KINDS, WORDS, DIM, WIDTH = 8, 64, 48, 64
NO_IMAGE = KINDS
"""The answer where there is no image. Words are the tokens behind it."""
IMAGE = WORDS
"""The placeholder: the token in whose place a patch comes."""


class Documents(Dataset[dict[str, Any]]):
    """Sample k: its tokens, its labels, and the patches of its image, float32 [patches, DIM]."""

    def __init__(self, count: int) -> None:
        rng = np.random.default_rng(0)
        self.looks = rng.normal(size=(KINDS, DIM)).astype(np.float32)
        self.kinds = rng.integers(KINDS, size=count)
        # The sampler needs lengths only: no image is read for them.
        patches = rng.integers(4, 97, size=count) * (rng.random(count) < 0.8)
        self.words = rng.integers(8, 120, size=count)
        self.lengths = {"tokens": patches + self.words + 1, "patches": patches}

    def __len__(self) -> int:
        return len(self.kinds)

    def __getitem__(self, index: int) -> dict[str, Any]:
        # Numbers of its own for each sample, which differ from epoch to epoch.
        rng = headrace.rng()
        kind = self.kinds[index]
        patches = self.lengths["patches"][index]
        # Without an image there are no patches, but the column is there: [0, DIM].
        pixels = self.looks[kind] + rng.normal(size=(patches, DIM))
        words = rng.integers(NO_IMAGE + 1, WORDS, size=self.words[index])
        answer = kind if patches else NO_IMAGE
        tokens = np.concatenate([np.full(patches, IMAGE), words, [answer]])
        labels = np.full(len(tokens), -100)
        labels[-1] = answer
        return {"input_ids": tokens, "labels": labels, "pixel_values": pixels.astype(np.float32), "number": index}


class Model(nn.Module):
    """One layer of attention over tokens, of which some are patches."""

    def __init__(self) -> None:
        super().__init__()
        self.tokens = nn.Embedding(WORDS + 1, WIDTH)
        self.patches = nn.Linear(DIM, WIDTH)
        self.mix = nn.Linear(WIDTH, 3 * WIDTH)
        self.wide = nn.Sequential(nn.LayerNorm(WIDTH), nn.Linear(WIDTH, 4 * WIDTH), nn.GELU())
        self.scores = nn.Linear(4 * WIDTH, WORDS)

    def forward(self, batch: dict[str, Any]) -> Tensor:
        is_patch = batch["input_ids"] == IMAGE
        patches = batch["pixel_values"]  # [patches of all packs, DIM], in the order of the placeholders
        assert is_patch.sum() == len(patches), "each patch has a placeholder, and each placeholder a patch"
        found = self.tokens(batch["input_ids"]).masked_scatter(is_patch[:, :, None], self.patches(patches))

        documents = batch["document_ids"]
        mask = (documents[:, :, None] == documents[:, None, :]).tril()[:, None]  # [packs, 1, row, row]
        heads = self.mix(found).unflatten(-1, (3, 4, -1)).permute(2, 0, 3, 1, 4)  # [3, packs, heads, row, ...]
        mixed = nn.functional.scaled_dot_product_attention(*heads, attn_mask=mask)
        return self.scores(self.wide(found + mixed.transpose(1, 2).flatten(2)))


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--documents", type=int, default=1500, help="how many are made up (%(default)s)")
    parser.add_argument("--packs", type=int, default=2, help="packs of a batch (%(default)s)")
    parser.add_argument("--workers", type=int, default=2, help="worker processes (%(default)s)")
    return parser.parse_args()


def main() -> None:
    args = parse_arguments()
    torch.manual_seed(0)
    torch.set_num_threads(1)  # so small a model gains nothing from more
    documents = Documents(args.documents)
    sampler = headrace.samplers.PackedBatchSampler(documents.lengths, BUDGETS, args.packs, seed=0)
    loader = headrace.DataLoader(
        documents, batch_sampler=sampler, collate_fn=headrace.collate_packed, num_workers=args.workers, seed=0
    )
    model = Model()
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.005)
    losses = []
    numbers = []
    packs = tokens = patches = 0
    for batch in loader:
        # Labels lie at their tokens: what is found for a token is compared with the label of the next.
        scores = model(batch)[:, :-1].flatten(0, 1)
        loss = nn.functional.cross_entropy(scores, batch["labels"][:, 1:].flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())

        patches_of_packs = (batch["input_ids"] == IMAGE).sum(dim=1)
        assert patches_of_packs.max() <= BUDGETS["patches"], "no pack goes beyond the budget"
        packs += len(batch["input_ids"])
        tokens += int((batch["document_ids"] >= 0).sum())  # -1: padding
        patches += int(patches_of_packs.sum())
        numbers.append(batch["number"])

    print(f"{packs:,} packs; loss {losses[0]:.2f}, at the end {losses[-1]:.2f}")
    print(f"tokens: {tokens / packs / BUDGETS['tokens']:.0%} of the budget of {BUDGETS['tokens']}")
    print(f"patches: {patches / packs / BUDGETS['patches']:.0%} of the budget of {BUDGETS['patches']}")
    once = torch.equal(torch.cat(numbers).sort().values, torch.arange(len(documents)))
    print(f"each of {len(documents):,} documents came once" if once else "documents are MISSING or came TWICE")
    raise SystemExit(not once)


if __name__ == "__main__":
    main()
