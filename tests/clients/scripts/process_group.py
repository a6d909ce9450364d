"""Has a script leave its process group when it ends, which frameworks leave to the script."""

from __future__ import annotations

import atexit

import torch.distributed as dist


def leave_at_the_end() -> None:
    """Has this process leave the group, if there is one then, before Python goes.

    Otherwise threads of gloo may still hold tensors, and the process is aborted: see
    github.com/pytorch/pytorch/pull/179291.
    """
    atexit.register(_leave)


def _leave() -> None:
    if dist.is_available() and dist.is_initialized():
        dist.destroy_process_group()
