"""What is wrong with the frames of a stream of bytes."""

from __future__ import annotations


class FrameError(Exception):
    """The bytes are not framed as they should be. Says in words what was found."""


def too_large(size: int, largest: int) -> FrameError:
    """Returns the error of a frame that is too large, or whose length is no length; the caller raises it."""
    return FrameError(f"a frame of {size:,} bytes, where {largest:,} are the most")
