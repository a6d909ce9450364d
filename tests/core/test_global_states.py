"""The global generators are put back, also where a signal handler raises meanwhile."""

from __future__ import annotations

import random
import sys
from types import FrameType
from typing import Any

import numpy as np
import pytest
import torch

from headrace.core.randomness.rng import global_states, global_states_kept, set_global_states

LINES = range(1, 4)


@pytest.mark.quick
@pytest.mark.parametrize("line", LINES)
def test_an_interrupt_while_generators_are_put_back_leaves_none_of_them_changed(line: int) -> None:
    """line: of `set_global_states`, before which the interrupt comes."""
    code = set_global_states.__code__
    interrupts = [KeyboardInterrupt]
    first = 0

    def trace(frame: FrameType, event: str, argument: Any) -> Any:
        nonlocal first
        if frame.f_code is not code:
            return None
        if event == "call":
            first = frame.f_lineno
        if event == "line" and frame.f_lineno == first + 1 + line and interrupts:
            raise interrupts.pop()
        return trace

    before = global_states()
    tracer = sys.gettrace()
    with pytest.raises(KeyboardInterrupt), global_states_kept():
        random.random()
        np.random.rand()
        torch.rand(1)
        sys.settrace(trace)
    sys.settrace(tracer)
    assert not interrupts
    assert before.holds_now()
