"""Accelerate with a loader that stays whole: trains, is stopped behind a step, and goes on from the checkpoint."""

from __future__ import annotations

from typing import Any

import torch
from accelerate import Accelerator
from resumed import EPOCHS, STEPS_OF_EPOCH, Noisy, asked, told

from headrace import DataLoader
from headrace.integrations.accelerate import prepare

if __name__ == "__main__":
    folder, stop, begun, batch_size = asked()
    accelerator = Accelerator(cpu=True, gradient_accumulation_steps=4)
    torch.manual_seed(1)
    model = torch.nn.Linear(4, 1)
    model, optimizer = accelerator.prepare(model, torch.optim.SGD(model.parameters(), 0.01))
    own = DataLoader(Noisy(), batch_size=batch_size, shuffle=True, num_workers=1, seed=3, shard="auto")
    loader = prepare(accelerator, own)
    if begun:
        accelerator.load_state(f"{folder}/{begun}")

    # Which epoch it is, a loop of one's own knows: the loader continues in the middle of it.
    seen: list[Any] = []
    for _ in range(begun // STEPS_OF_EPOCH, EPOCHS):
        for values, numbers in loader:
            with accelerator.accumulate(model):
                accelerator.backward(model(values).mean())
                optimizer.step()
                optimizer.zero_grad()
            seen.append((values, numbers))
            if len(seen) == stop:
                accelerator.save_state(f"{folder}/{stop}")
                break
        else:
            assert accelerator.sync_gradients  # the optimizer takes its step at the end of an epoch
        if len(seen) == stop:
            break
    told(seen)
