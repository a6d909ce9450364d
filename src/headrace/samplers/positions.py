"""How the positions of an epoch are dealt to the ranks, in plain numbers.

Position p belongs to rank p mod W, counted from where the epoch (or what is left of it after a resume) starts. So local
batch number g of all W ranks together is a run of neighbours, and depends on batch size x W only. At the uneven end

- `pad`: positions run on past the end, up to a multiple of W; they wrap around, so a few samples come twice;
- `drop`: the last few positions are left out;
- `keep`: every position comes exactly once, and some ranks get one sample more than others.
"""

from __future__ import annotations

from typing import Literal, get_args

from headrace.core.errors import wrong_argument
from headrace.core.world import World

Uneven = Literal["pad", "drop", "keep"]


def checked_uneven(uneven: str) -> Uneven:
    """Returns `uneven` if it is one of the three words. Raises `UsageError` otherwise."""
    for word in get_args(Uneven):
        if uneven == word:
            return word  # type: ignore[no-any-return]
    raise wrong_argument("uneven", uneven, "'pad', 'drop' or 'keep'")


def stop_of(start: int, total: int, size: int, uneven: Uneven) -> int:
    """Returns the end (exclusive) of the positions dealt out among `size` ranks, from `start` of `total` on."""
    left = max(total - start, 0)
    if uneven == "pad":
        left = -(-left // size) * size
    elif uneven == "drop":
        left = left // size * size

    return start + left


def local_range(start: int, total: int, world: World, uneven: Uneven) -> range:
    """Returns the positions of one rank; those of `total` and above wrap around to the beginning."""
    return range(start + world.rank, stop_of(start, total, world.size, uneven), world.size)
