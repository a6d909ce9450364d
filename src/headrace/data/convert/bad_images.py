"""Which images of some samples cannot be decoded."""

from __future__ import annotations

from headrace.core.errors import SampleError
from headrace.data.formats.columns import Block, Keys, value_of
from headrace.data.images import decode_image, holds_images
from headrace.transforms.decoders import is_sound_jpeg


def bad_images(block: Block, keys: Keys, source: str) -> list[str]:
    """Returns a line for each encoded image that cannot be decoded: the sample's number, and what is wrong.

    keys: the numbers of the samples of a block, int64 [n]. source: where they come from, for messages.
    """
    bad = []
    named = block.numbered(source, keys)
    for field in block.schema:
        if not holds_images(field):
            continue
        for row, key in enumerate(keys.tolist()):
            fault = fault_of(value_of(field, block.columns[field.name], row), named.place_of(row, field.name))
            if fault is not None:
                bad.append(f"sample {key}: {fault}")

    return bad


def fault_of(data: bytes, place: str) -> str | None:
    """Returns what is wrong with an encoded image, in one line; None if it can be decoded."""
    if is_sound_jpeg(data):
        return None

    try:
        decode_image(data, place)
    except SampleError as error:
        return one_line(error)

    return None


def one_line(error: BaseException) -> str:
    """Returns an error in one line."""
    return "; ".join(map(str.strip, str(error).splitlines())) or type(error).__name__
