"""Whose turn it is with the global generators of this process, which its threads share.

Who seeds them for a while puts them back when it is done. Until then no other thread may seed them, nor look whether
anybody has drawn.
"""

from __future__ import annotations

import contextlib
import random
from collections.abc import Iterator
from contextlib import AbstractContextManager
from typing import Any

import numpy as np
import torch

from headrace.core.process.this_process import ForkLock
from headrace.core.randomness.rng import global_states_kept

_TURN = ForkLock(reentrant=True)  # a transform that seeds may be a part of another one


def global_turn() -> AbstractContextManager[Any]:
    """Returns the lock to hold for as long as the global generators are another's than the program's."""
    return _TURN.here


@contextlib.contextmanager
def seeded_globals(seed: int, device: torch.device | None = None) -> Iterator[None]:
    """Seeds the global generators of torch, NumPy and `random`, and puts them back; one thread at a time.

    device: torch's generator for it is seeded, too; None: only that for the CPU.
    """
    # The generators are the process's. Without taking turns, another thread would draw from them in between, or put
    # back a state that this one has seeded.
    with global_turn(), global_states_kept(), _seeded_device(device, seed):
        random.seed(seed)
        np.random.seed(seed & 0xFFFFFFFF)
        torch.default_generator.manual_seed(seed)
        yield


@contextlib.contextmanager
def _seeded_device(device: torch.device | None, seed: int) -> Iterator[None]:
    if device is None or device.type == "cpu":
        yield
        return

    module: Any = torch.get_device_module(device)
    before = module.get_rng_state(device)
    try:
        if device.type == "cuda":
            module.default_generators[device.index].manual_seed(seed)  # of this device alone
        else:
            module.manual_seed(seed)
        yield
    finally:
        module.set_rng_state(before, device)
