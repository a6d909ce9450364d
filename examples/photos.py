"""A folder of real photographs to try things on, made without a network.

The pictures are crops of ten photographs that scikit-image and scikit-learn carry in their wheels, one class per
photograph. They are free to use; `photos.json` at the root of the folder says where each comes from.
"""

from __future__ import annotations

import importlib.util
import json
import random
import secrets
import shutil
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from headrace.core.errors import DatasetError, MissingExtraError

if TYPE_CHECKING:
    from PIL.Image import Image

# Raise this when the same seed gives other pictures than before.
LAYOUT_VERSION = 1
MARKER = "photos.json"
THREADS = 2
JPEG_QUALITY = 85
# One picture in ten, and at least one, of each class is for validation.
VALIDATION_EVERY = 10


@dataclass(frozen=True)
class Photograph:
    """One photograph: class name, package and file that hold it, and whom to thank for it."""

    name: str
    package: str
    file: str
    credit: str


PHOTOGRAPHS = (
    Photograph("astronaut", "skimage", "data/astronaut.png", "NASA, public domain"),
    Photograph("cat", "skimage", "data/chelsea.png", "Stefan van der Walt, CC0"),
    Photograph("coffee", "skimage", "data/coffee.png", "Rachel Michetti and Pikolo Espresso Bar, CC0"),
    Photograph("flower", "sklearn", "datasets/images/flower.jpg", "vultilion (flickr.com/photos/vultilion), CC BY 2.0"),
    Photograph("galaxies", "skimage", "data/hubble_deep_field.jpg", "NASA, public domain"),
    Photograph("motorcycle", "skimage", "data/motorcycle_left.png", "Middlebury 2014 stereo benchmark, D. Scharstein"),
    Photograph("retina", "skimage", "data/retina.jpg", "Mikael Häggström, CC0"),
    Photograph("rocket", "skimage", "data/rocket.jpg", "SpaceX, public domain"),
    Photograph("temple", "sklearn", "datasets/images/china.jpg", "danielbuechele (flickr.com), CC BY 2.0"),
    Photograph("tissue", "skimage", "data/ihc.png", "Center for Microscopy and Molecular Imaging, public domain"),
)


@dataclass(frozen=True)
class Picture:
    """One JPEG to be written: the number of its source, its path below the root, and the seed of its crop."""

    source: int
    path: str
    seed: str


def make_photo_folder(root: Path, count: int, seed: int = 0, progress: Callable[[int], None] | None = None) -> None:
    """Writes `count` JPEGs of 400x300 to 500x375 pixels to root/train/<class>/ and root/val/<class>/ (one in ten).

    The same count and seed give the same pictures, of some 30 kB each. All is written to a hidden folder next to
    `root`, which takes its place at the end: what bears the name `root` is complete. A kill may leave the hidden
    folder behind; it ends in `.partial` and may be deleted. A complete folder of this count and seed is left as
    it is.

    progress: called in this thread with the number of pictures that exist so far, at last with `count`.

    Raises ValueError if `count` is below 20, MissingExtraError if a library with the photographs is not
    installed, DatasetError if `root` exists and is not such a folder.
    """
    smallest = 2 * len(PHOTOGRAPHS)
    if count < smallest:
        raise ValueError(f"count is {count}, but two pictures for each of the classes make {smallest}")

    # A link is resolved, so that the rename at the end stays on one disk and replaces no link.
    root = root.resolve()
    marker = describe(count, seed)
    if not is_complete(root, marker):
        refuse_other_content(root, marker)
        write_aside(root, plan_pictures(count, seed), marker, progress)
    elif progress is not None:
        progress(count)


def describe(count: int, seed: int) -> dict[str, object]:
    """The content of the marker file, by which a complete folder is recognised."""
    credits = {source.name: source.credit for source in PHOTOGRAPHS}
    return {"version": LAYOUT_VERSION, "count": count, "seed": seed, "credits": credits}


def plan_pictures(count: int, seed: int) -> list[Picture]:
    """What to write, class by class: pure. Classes differ in size by one at most."""
    pictures = []
    for number, source in enumerate(PHOTOGRAPHS):
        in_class = count // len(PHOTOGRAPHS) + (number < count % len(PHOTOGRAPHS))
        validation = max(1, in_class // VALIDATION_EVERY)
        for index in range(in_class):
            if index < validation:
                split = "val"
            else:
                split = "train"

            path = f"{split}/{source.name}/{source.name}_{index:05d}.jpg"
            pictures.append(Picture(number, path, f"{seed}/{source.name}/{index}"))

    return pictures


def is_complete(root: Path, marker: dict[str, object]) -> bool:
    """Whether `root` is a complete folder with this marker."""
    try:
        found = json.loads((root / MARKER).read_text("utf-8"))
    except (OSError, ValueError):
        return False
    return bool(found == marker)


def refuse_other_content(root: Path, marker: dict[str, object]) -> None:
    """Raises DatasetError if something is at `root` that would have to be deleted first."""
    if not root.exists() or (root.is_dir() and not any(root.iterdir())):
        return

    found = "a file"
    if root.is_dir():
        if (root / MARKER).exists():
            found = "photographs of another count, seed or version"
        else:
            found = "other files"

    raise DatasetError.about(
        "cannot write the demo photographs",
        place=root,
        found=found,
        expected=f"nothing, or {marker['count']} photographs of seed {marker['seed']}",
        cure="delete it or choose another folder",
    )


def write_aside(
    root: Path, pictures: list[Picture], marker: dict[str, object], progress: Callable[[int], None] | None
) -> None:
    """Writes everything into a hidden sibling and renames it to `root`; removes the sibling on failure."""
    photographs = [load_photograph(source) for source in PHOTOGRAPHS]
    aside = root.with_name(f".{root.name}.{secrets.token_hex(4)}.partial")
    try:
        for folder in sorted({str(Path(picture.path).parent) for picture in pictures}):
            (aside / folder).mkdir(parents=True)
        write_pictures(aside, pictures, photographs, progress)
        (aside / MARKER).write_text(json.dumps(marker, indent=1, ensure_ascii=False), "utf-8")
        try:
            aside.rename(root)
        except OSError:
            # Another process may have made the same folder in the meantime: then there is nothing left to do.
            if not is_complete(root, marker):
                raise
    finally:
        shutil.rmtree(aside, ignore_errors=True)


def write_pictures(
    folder: Path,
    pictures: list[Picture],
    photographs: list[Image],
    progress: Callable[[int], None] | None,
) -> None:
    """Cuts and writes all pictures in threads: Pillow lets go of the interpreter while it scales and encodes."""

    def write(picture: Picture) -> None:
        cut_out(photographs[picture.source], random.Random(picture.seed)).save(
            folder / picture.path, quality=JPEG_QUALITY
        )

    with ThreadPoolExecutor(THREADS, thread_name_prefix="headrace-photos") as pool:
        # An exception, also Ctrl-C, closes the generator that `map` returns, which cancels what has not begun.
        for done, _ in enumerate(pool.map(write, pictures), start=1):
            if progress is not None:
                progress(done)


def cut_out(photograph: Image, rng: random.Random) -> Image:
    """A random part of a photograph, 400x300 to 500x375 pixels, mirrored in half of the cases.

    The part has the shape 4:3 and 30 to 100 % of the area of the largest such part of the photograph.
    """
    from PIL.Image import Resampling, Transpose

    largest_width = min(photograph.width, photograph.height * 4 / 3)
    width = largest_width * rng.uniform(0.3, 1.0) ** 0.5
    height = width * 3 / 4
    left = rng.uniform(0, photograph.width - width)
    top = rng.uniform(0, photograph.height - height)
    quarter = rng.randint(100, 125)
    size = (4 * quarter, 3 * quarter)
    part = photograph.resize(size, Resampling.BICUBIC, box=(left, top, left + width, top + height))
    if rng.random() < 0.5:
        return part.transpose(Transpose.FLIP_LEFT_RIGHT)
    return part


def load_photograph(source: Photograph) -> Image:
    """The photograph in mode RGB, read from the folder of its package without importing the package."""
    try:
        from PIL import Image
    except ImportError as error:
        raise missing("Pillow") from error

    package = importlib.util.find_spec(source.package)
    if package is None or not package.submodule_search_locations:
        raise missing(source.package)

    path = Path(package.submodule_search_locations[0], source.file)
    if not path.is_file():
        raise missing(str(path))

    with Image.open(path) as image:
        return image.convert("RGB")


def missing(what: str) -> MissingExtraError:
    """The error for a library or a photograph that is not there."""
    expected = "Pillow, and the photographs that scikit-image and scikit-learn carry"
    return MissingExtraError.about(
        "the demo photographs cannot be made",
        found=f"{what} is missing",
        expected=expected,
        cure="pip install 'headrace[demo]'",
    )
