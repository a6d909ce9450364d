"""Fine-tunes a small Llama of transformers on conversations, in packs, and learns only what the assistant says.

    pip install transformers jinja2
    python examples/finetune_chat.py

Writes conversations of different lengths as JSON lines, `{"messages": [{"role": ..., "content": ...}, ...]}`, makes a
tokenizer for them, and trains a model from scratch: nothing is downloaded. Each conversation is turned into tokens once
and kept; the lengths are read from what is kept, and conversations are packed to rows by them.
"""

from __future__ import annotations

import argparse
import functools
import importlib.util
import json
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch.utils.data import Dataset

import headrace

SIZES = {"hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2, "num_attention_heads": 4}
TEMPLATE = (
    "{% for turn in messages %}<{{ turn.role }}>"
    "{% if turn.role == 'assistant' %}{% generation %}{{ turn.content }}<end>{% endgeneration %}"
    "{% else %}{{ turn.content }}<end>{% endif %}{% endfor %}"
)
"""What stands between `generation` and `endgeneration` is learned."""


def write_conversations(path: Path, count: int) -> None:
    """One to eight questions each, for the sum of two numbers or for a number in words again and again."""
    rng = np.random.default_rng(0)
    with path.open("w") as file:
        for _ in range(count):
            messages = []
            for one, other in rng.integers(10, size=(rng.integers(1, 9), 2)).tolist():
                question, answer = f"what is {one} + {other} ?", f"it is {one + other} ."
                if rng.random() < 0.3:
                    question, answer = f"say {one} , {other + 1} times", f"{one} " * (other + 1)
                messages += [{"role": "user", "content": question}, {"role": "assistant", "content": answer.strip()}]
            file.write(json.dumps({"messages": messages}) + "\n")


class JsonLines(Dataset[dict[str, Any]]):
    """Sample k is line k. `headrace.open` reads JSON lines of numbers, text and lists, but not of nested messages."""

    def __init__(self, path: Path) -> None:
        self.path = path
        with path.open("rb") as file:
            self.starts = np.cumsum([0, *map(len, file)])

    def __len__(self) -> int:
        return len(self.starts) - 1

    def __getitem__(self, index: int) -> dict[str, Any]:
        with self.path.open("rb") as file:
            file.seek(self.starts[index])
            return dict(json.loads(file.readline()))


def tokenizer_of(conversations: JsonLines) -> Any:
    """Makes a tokenizer with a token for each word. Yours: `AutoTokenizer.from_pretrained(...)`."""
    from tokenizers import Tokenizer, models, pre_tokenizers, trainers
    from transformers import PreTrainedTokenizerFast

    words = Tokenizer(models.WordLevel(unk_token="<unknown>"))
    words.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    special = ["<pad>", "<unknown>", "<end>", "<user>", "<assistant>"]
    texts = (turn["content"] for number in range(len(conversations)) for turn in conversations[number]["messages"])
    words.train_from_iterator(texts, trainers.WordLevelTrainer(special_tokens=special, show_progress=False))
    return PreTrainedTokenizerFast(
        tokenizer_object=words, unk_token="<unknown>", pad_token="<pad>", eos_token="<end>", chat_template=TEMPLATE
    )


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, help="a file of JSON lines; else conversations are made up")
    parser.add_argument("--conversations", type=int, default=1000, help="how many are made up (%(default)s)")
    parser.add_argument("--row", type=int, default=256, help="tokens of a pack (%(default)s)")
    parser.add_argument("--packs", type=int, default=2, help="packs of a batch (%(default)s)")
    parser.add_argument("--workers", type=int, default=2, help="worker processes (%(default)s)")
    return parser.parse_args()


def main(folder: Path, args: argparse.Namespace) -> None:
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(0)
    torch.set_num_threads(1)  # so small a model gains nothing from more
    if args.data is None:
        write_conversations(folder / "chat.jsonl", args.conversations)
    conversations = JsonLines(args.data or folder / "chat.jsonl")
    tokenizer = tokenizer_of(conversations)
    # Yours: a folder that stays, so that the next run finds the tokens.
    data = headrace.Staged(conversations).map(headrace.transforms.ChatTemplate(tokenizer)).cache(folder / "tokens")
    lengths = headrace.lengths_of(data)
    said = data[0]["input_ids"][data[0]["labels"] != -100]
    print(f"learned of the first conversation: {tokenizer.decode(said)}")

    sampler = headrace.samplers.PackedBatchSampler(lengths, args.row, args.packs, too_long="cut", seed=0)
    # The columns are the arguments of the model. Positions tell it where a conversation begins.
    collate = functools.partial(headrace.collate_packed, names="huggingface", pad_id=tokenizer.pad_token_id)
    loader = headrace.DataLoader(data, batch_sampler=sampler, collate_fn=collate, num_workers=args.workers, seed=0)

    model = LlamaForCausalLM(LlamaConfig(vocab_size=len(tokenizer), max_position_embeddings=args.row, **SIZES))
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.003)
    losses = []
    learned = seen = rows = 0
    for batch in loader:
        loss = model(**batch).loss
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
        learned += int((batch["labels"] != -100).sum())
        seen += int((batch["input_ids"] != tokenizer.pad_token_id).sum())
        rows += batch["input_ids"].numel()

    tokens = int(np.minimum(lengths, args.row).sum())
    assert seen == tokens, "each token came once, but for those of conversations that are too long"
    print(f"{len(losses)} steps; loss {losses[0]:.2f}, at the end {losses[-1]:.2f}")
    print(f"{learned:,} of {tokens:,} tokens are the assistant's and learned")
    longest = len(lengths) * min(int(lengths.max()), args.row)
    print(f"padding: {1 - tokens / rows:.1%}; with each conversation padded to the longest {1 - tokens / longest:.1%}")


if __name__ == "__main__":
    args = parse_arguments()
    if importlib.util.find_spec("transformers") is None:
        print("this example needs transformers: pip install transformers jinja2")
        raise SystemExit(0)
    with tempfile.TemporaryDirectory() as made:
        main(Path(made), args)
