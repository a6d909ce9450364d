"""Pre-trains a small language model on a file of tokens, in packs, with a stop in mid-epoch.

    python examples/pretrain_tokens.py

The folder holds `train.bin`, documents end to end as uint16, each with a token at its end, and `lengths.npy`, how many
tokens each has, int32. Without `--data`, the script makes up documents that count upwards by 1 to 5. It packs them to
rows of one length, cuts them where a row is full, and lets no token attend to another document. In the middle of the
epoch it saves the loader's state and goes on in a new loader; at the end it shows that each token came once.
"""

from __future__ import annotations

import argparse
import functools
import itertools
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils.data import Dataset

import headrace

ROW, PACKS = 256, 4
"""Tokens of a pack, and packs of a batch."""
WIDTH = 64
END = 0
"""The token at the end of a document."""


def write_documents(folder: Path, count: int) -> None:
    """Writes documents of 10 to 600 tokens below 64."""
    rng = np.random.default_rng(0)
    lengths = np.exp(rng.uniform(np.log(10), np.log(600), count)).astype(np.int32)
    with Path(folder, "train.bin").open("wb") as file:
        for length in lengths.tolist():
            numbers = rng.integers(63) + rng.integers(1, 6) * np.arange(length - 1)
            np.append(1 + numbers % 63, END).astype(np.uint16).tofile(file)
    np.save(folder / "lengths.npy", lengths)


class Documents(Dataset[dict[str, Any]]):
    """Sample k is document k: its tokens, and the place of each in the file."""

    def __init__(self, folder: Path) -> None:
        self.file = folder / "train.bin"
        self.lengths = np.load(folder / "lengths.npy", mmap_mode="r")
        self.ends = np.cumsum(self.lengths, dtype=np.int64)

    def __len__(self) -> int:
        return len(self.lengths)

    def __getitem__(self, index: int) -> dict[str, Any]:
        end = int(self.ends[index])
        start = end - int(self.lengths[index])
        tokens = np.fromfile(self.file, np.uint16, count=end - start, offset=2 * start)
        return {"input_ids": tokens, "places": np.arange(start, end)}


def loader_of(documents: Documents, args: argparse.Namespace) -> headrace.DataLoader[Any]:
    # Ranks get packs of like cost: attention costs the square of the length of each document.
    sampler = headrace.samplers.PackedBatchSampler(
        documents.lengths, ROW, PACKS, fit="split", balance="attention", seed=0
    )
    # Places are cut and padded as the tokens are.
    collate = functools.partial(headrace.collate_packed, per_token=["places"])
    # With seed= on the loader, too, each epoch has another order.
    return headrace.DataLoader(documents, batch_sampler=sampler, collate_fn=collate, num_workers=args.workers, seed=0)


class Model(nn.Module):
    """One layer of a transformer. Tokens attend to those before them in the same document."""

    def __init__(self, vocabulary: int) -> None:
        super().__init__()
        self.tokens = nn.Embedding(vocabulary, WIDTH)
        self.positions = nn.Embedding(ROW, WIDTH)
        self.mix = nn.Linear(WIDTH, 3 * WIDTH)
        self.wide = nn.Sequential(nn.LayerNorm(WIDTH), nn.Linear(WIDTH, 8 * WIDTH), nn.GELU())
        self.scores = nn.Linear(8 * WIDTH, vocabulary)

    def forward(self, batch: dict[str, Tensor]) -> Tensor:
        documents = batch["document_ids"]
        mask = (documents[:, :, None] == documents[:, None, :]).tril()[:, None]  # [packs, 1, row, row]
        found = self.tokens(batch["input_ids"]) + self.positions(batch["position_ids"])
        heads = self.mix(found).unflatten(-1, (3, 4, -1)).permute(2, 0, 3, 1, 4)  # [3, packs, heads, row, ...]
        mixed = nn.functional.scaled_dot_product_attention(*heads, attn_mask=mask)
        return self.scores(self.wide(found + mixed.transpose(1, 2).flatten(2)))


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, help="folder with train.bin and lengths.npy; else documents are made up")
    parser.add_argument("--documents", type=int, default=2000, help="how many are made up (%(default)s)")
    parser.add_argument("--workers", type=int, default=2, help="worker processes (%(default)s)")
    return parser.parse_args()


def train(
    model: Model, optimizer: Any, loader: headrace.DataLoader[Any], stop_after: int | None = None
) -> tuple[list[float], Tensor]:
    """Trains on the rest of the epoch, or for so many steps. Returns losses, and the places of the tokens."""
    losses = []
    places = []
    for batch in itertools.islice(loader, stop_after):
        # Labels lie at their tokens: what is found for a token is compared with the label of the next.
        scores = model(batch)[:, :-1].flatten(0, 1)
        loss = nn.functional.cross_entropy(scores, batch["labels"][:, 1:].flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
        places.append(batch["places"][batch["document_ids"] >= 0])  # -1: padding
    return losses, torch.cat(places)


def main() -> None:
    args = parse_arguments()
    torch.manual_seed(0)
    torch.set_num_threads(1)  # so small a model gains nothing from more
    with tempfile.TemporaryDirectory() as made:
        checkpoint = Path(made, "loader.pt")
        if args.data is None:
            write_documents(Path(made), args.documents)
        documents = Documents(args.data or Path(made))
        model = Model(int(np.memmap(documents.file, np.uint16, "r").max()) + 1)
        optimizer = torch.optim.AdamW(model.parameters(), lr=0.003)

        loader = loader_of(documents, args)
        before, places = train(model, optimizer, loader, stop_after=len(loader) // 2)
        torch.save(loader.state_dict(), checkpoint)

        # As after a restart: another loader goes on where the first one stopped. See resume.py for the rest.
        loader = loader_of(documents, args)
        loader.load_state_dict(torch.load(checkpoint, weights_only=True))
        after, other_places = train(model, optimizer, loader)

        tokens = int(documents.ends[-1])
        laid = (len(before) + len(after)) * PACKS * ROW
        print(f"{len(documents):,} documents, {tokens:,} tokens, {1 - tokens / laid:.2%} padding")
        print(f"{len(before)} + {len(after)} steps; loss {before[0]:.2f}, at the end {after[-1]:.2f}")
        once = torch.equal(torch.cat([places, other_places]).sort().values, torch.arange(tokens))
        print("each token came once" if once else "tokens are MISSING or came TWICE")
    raise SystemExit(not once)


if __name__ == "__main__":
    main()
