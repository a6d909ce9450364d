"""Accelerate on each rank: a loop over packs, whose loader Accelerate prepares, trains a model of transformers."""

import functools
import sys

import numpy as np
import torch
from accelerate import Accelerator
from transformers import LlamaConfig, LlamaForCausalLM

import headrace
from headrace.samplers import PackedBatchSampler

headrace.use()

LENGTHS = np.random.default_rng(0).integers(1, 40, 120)
FIT = sys.argv[1]


class Documents(torch.utils.data.Dataset):
    """Documents whose tokens are their own numbers."""

    def __len__(self):
        return len(LENGTHS)

    def __getitem__(self, key):
        return {"input_ids": np.full(LENGTHS[key], key)}


if __name__ == "__main__":
    accelerator = Accelerator(cpu=True)
    torch.manual_seed(0)
    small = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 16}
    model = LlamaForCausalLM(LlamaConfig(vocab_size=len(LENGTHS), **small))
    loader = headrace.DataLoader(
        Documents(),
        batch_sampler=PackedBatchSampler(LENGTHS, 64, 2, fit=FIT, balance="tokens", uneven="keep"),
        collate_fn=functools.partial(headrace.collate_packed, names="huggingface", pad_id=len(LENGTHS) - 1),
        num_workers=1,
    )
    model, optimizer, loader = accelerator.prepare(model, torch.optim.SGD(model.parameters(), 0.1), loader)
    for batch in loader:
        loss = model(**batch).loss
        accelerator.backward(loss)
        optimizer.step()
        optimizer.zero_grad()
        shape = "x".join(map(str, batch["input_ids"].shape))
        tokens = " ".join(map(str, batch["input_ids"].view(-1).tolist()))
        sys.stdout.write(f"trained {accelerator.process_index} {shape} {tokens}\n")
        sys.stdout.flush()
    accelerator.end_training()
