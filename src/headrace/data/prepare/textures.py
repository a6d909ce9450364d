"""Pictures to try things on, made from numbers: soft shapes with grain, of as many kinds as there are classes."""

from __future__ import annotations

import json
import secrets
import shutil
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from headrace.core.errors import DatasetError, UsageError
from headrace.core.extras import extra
from headrace.data.prepare.datasets import DatasetCopy, Progress

if TYPE_CHECKING:
    from PIL.Image import Image

LAYOUT_VERSION = 1
"""Raise this when the same count gives other pictures than before."""

MARKER = "textures.json"
CLASSES = 10
WIDTH, HEIGHT = 500, 375
THREADS = 2
JPEG_QUALITY = 85

VALIDATION_EVERY = 10
"""One picture in ten, and at least one, of each class is for validation."""


def texture(number: int) -> Image:
    """Returns a picture of 500 x 375 pixels, RGB, the same for the same number; its class is `number % CLASSES`.

    The classes differ in their colours and in the size of their shapes, which a small network learns.
    """
    from PIL import Image

    kind = number % CLASSES
    rng = np.random.default_rng([number, LAYOUT_VERSION])
    cells = 3 + 2 * (kind % 5)
    colours = np.random.default_rng(kind).uniform(40, 215, 3)
    coarse = colours + rng.normal(0, 45, (cells, cells + cells // 3, 3))
    shapes = Image.fromarray(np.clip(coarse, 0, 255).astype(np.uint8)).resize((WIDTH, HEIGHT), Image.Resampling.BICUBIC)
    grain = rng.integers(0, 25, (HEIGHT, WIDTH, 1), np.uint8)
    return Image.fromarray(np.minimum(np.asarray(shapes), 230) + grain)


def prepare_textures(folder: Path, count: int = 3_000, *, progress: Progress) -> list[DatasetCopy]:
    """Makes `folder`/textures as `make_textures` does. Returns what there is: the pictures to train and to validate."""
    root = folder / "textures"
    made = not _is_complete(root, _marker(count))
    with progress.writing(f"{count:,} JPEGs in {root}"):
        make_textures(root, count)
    parts = []
    for split in ("train", "val"):
        sizes = [file.stat().st_size for file in (root / split).rglob("*.jpg")]
        parts.append(DatasetCopy(root / split, "folder", len(sizes), sum(sizes), made))
    return parts


def _marker(count: int) -> dict[str, int]:
    return {"version": LAYOUT_VERSION, "count": count}


def make_textures(root: Path, count: int, progress: Callable[[int], None] | None = None) -> None:
    """Writes so many JPEGs of about 50 kB to root/train/<class>/ and root/val/<class>/ (one in ten).

    The same count gives the same pictures. They are written to a hidden folder beside `root`, which takes its place
    at the end: what bears the name `root` is complete. A kill may leave the hidden folder; it ends in `.partial` and
    may be deleted. A complete folder of this count is left as it is.

    count: at least 20, so that each class has one for training and one for validation. progress: called in this thread
    with the number of pictures so far, at last with `count`. Raises `UsageError` if `count` is below 20,
    `MissingExtraError` without Pillow, and `DatasetError` if `root` is something else.
    """
    if count < 2 * CLASSES:
        raise UsageError.about("too few pictures", place="count=", found=count, expected=f"{2 * CLASSES} or more")
    extra("PIL", "images")
    root = root.resolve()  # a link keeps its target: the rename stays on one disk
    marker = _marker(count)
    if _is_complete(root, marker):
        if progress is not None:
            progress(count)
        return

    _refuse_other_content(root, count)
    aside = root.with_name(f".{root.name}.{secrets.token_hex(4)}.partial")
    try:
        _write(aside, count, progress)
        (aside / MARKER).write_text(json.dumps(marker), "utf-8")
        try:
            aside.rename(root)
        except OSError:
            # Another process may have made the same folder in the meantime: then there is nothing left to do.
            if not _is_complete(root, marker):
                raise
    finally:
        shutil.rmtree(aside, ignore_errors=True)


def _is_complete(root: Path, marker: dict[str, int]) -> bool:
    try:
        return bool(json.loads((root / MARKER).read_text("utf-8")) == marker)
    except (OSError, ValueError):
        return False


def _refuse_other_content(root: Path, count: int) -> None:
    if not root.exists() or (root.is_dir() and not any(root.iterdir())):
        return

    found = "a file"
    if root.is_dir():
        found = "other files"
    if (root / MARKER).exists():
        found = "pictures of another count or version"
    raise DatasetError.about(
        "the pictures cannot be written",
        place=root,
        found=found,
        expected=f"nothing, or {count} of its pictures",
        fix="delete it or choose another folder",
    )


def _write(folder: Path, count: int, progress: Callable[[int], None] | None) -> None:
    """Writes all pictures in threads: Pillow and NumPy let go of the interpreter's lock while they compute."""
    places = [folder / name for name in names(count)]
    for place in {place.parent for place in places}:
        place.mkdir(parents=True)

    def write(number: int) -> None:
        texture(number).save(places[number], quality=JPEG_QUALITY)

    with ThreadPoolExecutor(THREADS, thread_name_prefix="headrace-textures") as pool:
        # An exception, also Ctrl-C, closes the generator that `map` returns, which cancels what has not begun.
        for done, _ in enumerate(pool.map(write, range(count)), start=1):
            if progress is not None:
                progress(done)


def names(count: int) -> list[str]:
    """Returns the path of each picture below the root, `train/texture-3/00013.jpg` for example."""
    found = []
    for number in range(count):
        kind, index = number % CLASSES, number // CLASSES
        split = "train"
        if index % VALIDATION_EVERY == 0:
            split = "val"
        found.append(f"{split}/texture-{kind}/{number:05d}.jpg")
    return found
