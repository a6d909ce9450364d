"""Images in one folder per class, as torchvision's ImageFolder reads them, at a fraction of the memory."""

from __future__ import annotations

import copy
import heapq
import os
from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate
from pathlib import Path
from typing import TYPE_CHECKING, Any, overload

import numpy as np
from numpy.typing import NDArray
from torch.utils.data import Dataset

from headrace.core.errors import DatasetError, DatasetNotFoundError, MissingExtraError
from headrace.core.protocols import takes_encoded
from headrace.core.text.urls import refuse_url
from headrace.data.fluent import Fluent
from headrace.data.path_table import PathTable
from headrace.storage.files import identity_of
from headrace.storage.locations import bound_path, local_path
from headrace.transforms.decoders import rgb_by_pillow
from headrace.transforms.decoding import read_file

if TYPE_CHECKING:
    from PIL.Image import Image

IMAGE_EXTENSIONS = (".jpg", ".jpeg", ".png", ".ppm", ".bmp", ".pgm", ".tif", ".tiff", ".webp")

OPEN_INSTEAD = "headrace.open(url) reads such a folder from a store: samples with image, label and path"

LAYOUT = "one sub-folder per class with images in it: root/cat/1.jpg, root/dog/2.jpg"


class ImageFolder(Fluent, Dataset[tuple[Any, Any]]):
    """Pairs (image, class index) of the images below `root`, one sub-folder per class.

    Reads like torchvision's ImageFolder, with the same order: classes by name, then folders by path, then files by
    name. It differs in these points: `samples` and `targets` are compact views instead of lists (a list may be assigned
    to either); a folder that cannot be read is an error instead of empty; a link that leads back to a folder it lies in
    is not followed; `~` is not expanded; 16-bit gray images keep their upper 8 bits instead of turning white.

    Making it lists the files; the cost is one directory scan and, per folder, one `stat`. Files are not opened: damage
    is found when an image is read. The dataset holds no open file and no lock: it may be forked, pickled and read by
    many threads.

    Attributes:
        root: the folder.
        classes: names of the classes, in order.
        class_to_idx: index of each class by its name.
        samples: pairs (path, class index).
        transform: as given.
        target_transform: as given.
        loader: reads an image.
        extensions: as given, in lower case.

    Args:
        root: the folder that holds the folders of the classes.
        transform: applied to the image; without it, items hold a PIL image in mode RGB. One that decodes itself (it has
            an attribute `takes_encoded` that is true, as `headrace.transforms.TrainImages`) gets the path.
        target_transform: applied to the class index.
        loader: path -> image, in place of Pillow.
        extensions: ends of file names to accept, in upper or lower case.
        allow_empty: accept classes without images; they keep their index.

    Raises:
        DatasetNotFoundError: `root` is missing, has no sub-folders or has classes without images; also a
            FileNotFoundError.
        DatasetError: a folder cannot be read.

    Examples:
        >>> from pathlib import Path
        >>> from PIL import Image
        >>> Path("photos/cat").mkdir(parents=True)
        >>> Image.new("RGB", (64, 48)).save("photos/cat/1.jpg")
        >>> image, label = headrace.ImageFolder("photos")[0]
        >>> image.size, label
        ((64, 48), 0)
    """

    def __init__(
        self,
        root: str | os.PathLike[str],
        transform: Callable[[Any], Any] | None = None,
        target_transform: Callable[[int], Any] | None = None,
        loader: Callable[[str], Any] | None = None,
        *,
        extensions: str | Sequence[str] = IMAGE_EXTENSIONS,
        allow_empty: bool = False,
    ) -> None:
        refuse_url(local_path(root), "headrace.ImageFolder", OPEN_INSTEAD)
        self.root = bound_path(local_path(root))
        self.transform = transform
        self.target_transform = target_transform
        if loader is None:
            self.loader: Callable[[str], Any] = load_rgb
        else:
            self.loader = loader

        self.extensions = tuple(map(str.lower, as_tuple(extensions)))
        self.classes: list[str] = []
        self.class_to_idx: dict[str, int] = {}
        folders = []
        for index, (name, folder) in enumerate(find_class_folders(self.root)):
            self.classes.append(name)
            self.class_to_idx[name] = index
            folders.append(folder)

        labelled = label_paths(self.root, folders, self.extensions)
        if not allow_empty:
            refuse_empty_classes(self.root, self.classes, labelled, self.extensions)

        self.samples: Sequence[tuple[str, int]] = labelled
        self._own_targets: NDArray[np.int64] | None = None

    @property
    def imgs(self) -> Sequence[tuple[str, int]]:
        """The same object as `samples`."""
        return self.samples

    @property
    def targets(self) -> NDArray[np.int64]:
        """Class index of each sample, int64 [len], before `target_transform`; read-only, and not pickled."""
        if self._own_targets is not None:
            return self._own_targets
        if isinstance(self.samples, LabelledPaths):
            return self.samples.class_indices
        return np.array([class_index for _, class_index in self.samples], dtype=np.int64)

    @targets.setter
    def targets(self, targets: NDArray[np.int64]) -> None:
        self._own_targets = targets

    @property
    def draws(self) -> bool:
        """Whether samples may draw random numbers: only what the user adds does, transforms, a loader, a subclass."""
        has_loader = self._is_subclass or (self.loader is not load_rgb and self.loader is not os.fspath)
        return has_loader or self.transform is not None or self.target_transform is not None

    @property
    def _is_subclass(self) -> bool:
        """Whether samples may be made in another way than here."""
        return type(self).__getitem__ is not ImageFolder.__getitem__

    def __len__(self) -> int:
        return len(self.samples)

    def __getitem__(self, index: int) -> tuple[Any, Any]:
        """Reads and decodes one image.

        Raises IndexError, SampleError if the file cannot be decoded, and OSError, which names the path, if it
        cannot be read.
        """
        path, target = self.samples[index]
        encoded = self.loader is load_rgb and takes_encoded(self.transform)
        if encoded:
            image = path
        else:
            image = self.loader(path)

        if self.transform is not None:
            image = self.transform(image)
        if self.target_transform is not None:
            target = self.target_transform(target)
        return image, target

    def encoded(self, part: str | int | None) -> ImageFolder:
        """See `Fluent.encoded`: for the image, which then is its path."""
        if part != 0 or self.transform is not None or self.loader is not load_rgb or self._is_subclass:
            return self
        paths = copy.copy(self)
        paths.loader = os.fspath
        return paths

    def __repr__(self) -> str:
        if len(self.classes) > 8:
            more = ", ..."
        else:
            more = ""

        shown = ", ".join(self.classes[:8]) + more
        lines = [
            f"ImageFolder with {len(self):,} images in {len(self.classes):,} classes",
            f"  root:             {printable(self.root)}",
            f"  classes:          {printable(shown)}",
        ]
        if self.transform is not None:
            lines.append(f"  transform:        {self.transform!r}")
        if self.target_transform is not None:
            lines.append(f"  target_transform: {self.target_transform!r}")
        return "\n".join(lines)


@dataclass(frozen=True, eq=False)
class LabelledPaths(Sequence[tuple[str, int]]):
    """Pairs (path, class index), made when asked for; a slice is a list of pairs.

    starts: row at which each class begins, and the count at the end; ascending [classes + 1].
    """

    paths: PathTable
    starts: tuple[int, ...]

    def __reduce__(self) -> tuple[type[LabelledPaths], tuple[PathTable, tuple[int, ...]]]:
        return LabelledPaths, (self.paths, self.starts)

    @cached_property
    def class_indices(self) -> NDArray[np.int64]:
        """Class index of each row, int64 [len], read-only; made once per process."""
        indices = np.repeat(np.arange(len(self.starts) - 1, dtype=np.int64), np.diff(self.starts))
        indices.setflags(write=False)
        return indices

    def __len__(self) -> int:
        return len(self.paths)

    @overload
    def __getitem__(self, index: int) -> tuple[str, int]: ...

    @overload
    def __getitem__(self, index: slice) -> list[tuple[str, int]]: ...

    def __getitem__(self, index: int | slice) -> tuple[str, int] | list[tuple[str, int]]:
        if isinstance(index, slice):
            return [self[row] for row in range(*index.indices(len(self)))]

        path = self.paths[index]
        if index >= 0:
            row = index
        else:
            row = index + len(self)

        return path, bisect_right(self.starts, row) - 1

    def __repr__(self) -> str:
        return f"LabelledPaths({len(self):,} pairs (path, class index) in {len(self.starts) - 1:,} classes)"


def load_rgb(path: str) -> Image:
    """Reads an image file whole, closes it and decodes it to a PIL image in mode RGB, with its `info`.

    As in torchvision, transparency is dropped and EXIF orientation is not applied (`PIL.ImageOps.exif_transpose` as a
    transform does that). 16-bit gray keeps its upper 8 bits. Raises `SampleError` if Pillow cannot decode the bytes or
    refuses the size of the image, `OSError` that names the path if the file cannot be read, `MissingExtraError` without
    Pillow.
    """
    image = rgb_by_pillow(memoryview(read_file(path)), printable(path))
    if image is None:
        fix = "pip install 'headrace[images]'"
        raise MissingExtraError.about("images need Pillow", found="it cannot be imported", fix=fix)
    return image


def find_class_folders(root: str) -> list[tuple[str, str]]:
    """Pairs (class name, path) of the sub-folders of `root`, by name; DatasetNotFoundError if it has none."""
    folders = []
    for entry in scan(root):
        if is_folder(entry):
            folders.append((entry.name, entry.path))

    folders = sorted(folders)
    if not folders:
        raise DatasetNotFoundError.about(
            "found no class folders",
            place=printable(root),
            found="a folder without sub-folders",
            expected=LAYOUT,
            fix="pass the folder that holds the class folders",
        )

    return folders


def label_paths(root: str, class_folders: Sequence[str], extensions: tuple[str, ...]) -> LabelledPaths:
    """The paths of all classes, one class after the other, straight into a table."""
    counts = [0] * len(class_folders)

    def all_paths() -> Iterator[str]:
        above = identity(root)
        for class_index, folder in enumerate(class_folders):
            for path in walk_files(folder, extensions, above):
                counts[class_index] += 1
                yield path

    paths = PathTable.from_paths(all_paths())
    return LabelledPaths(paths, tuple(accumulate(counts, initial=0)))


def walk_files(top: str, extensions: tuple[str, ...], above: tuple[int, int]) -> Iterator[str]:
    """Files below `top` that end in one of `extensions`, in the order of `sorted(os.walk(top))`.

    A folder sorts before all that lies in it, so the smallest unvisited path is always the next one. Links
    are followed unless they lead back to `above` or to a folder on their own way down from `top`.
    """
    pending: list[tuple[str, tuple[tuple[int, int], ...]]] = [(top, (above,))]
    while pending:
        folder, parents = heapq.heappop(pending)
        # By device and inode: a link to a folder above has another path at each turn.
        here = identity(folder)
        if here in parents:
            continue
        names: list[tuple[str, str]] = []
        for entry in scan(folder):
            if is_folder(entry):
                heapq.heappush(pending, (entry.path, (*parents, here)))
            elif entry.name.lower().endswith(extensions):
                names.append((entry.name, entry.path))

        for _, path in sorted(names):
            yield path


def scan(folder: str) -> list[os.DirEntry[str]]:
    """The entries of a folder, unsorted; raises DatasetError if it cannot be read."""
    try:
        with os.scandir(folder) as entries:
            return list(entries)
    except OSError as error:
        raise unreadable(folder, error) from error


def identity(folder: str) -> tuple[int, int]:
    """(device, inode): the same for all paths that lead to one folder."""
    try:
        return identity_of(Path(folder))
    except OSError as error:
        raise unreadable(folder, error) from error


def is_folder(entry: os.DirEntry[str]) -> bool:
    """Whether an entry is a folder or a link to one; a link that cannot be resolved is not."""
    try:
        return entry.is_dir()
    except OSError:
        return False


def unreadable(folder: str, error: OSError) -> DatasetError:
    """The error that says why `folder` could not be listed."""
    place = printable(folder)
    found = error.strerror or str(error)
    if isinstance(error, FileNotFoundError):
        what = "an image folder does not exist"
        return DatasetNotFoundError.about(what, place=place, found=found, expected=LAYOUT, fix="correct the path")

    fix = "pass the folder itself, not a file in it"
    if isinstance(error, PermissionError):
        fix = "let this user list the folder: chmod u+rx on it and on the folders above"
    elif not isinstance(error, NotADirectoryError):
        fix = "check the disk or the mount that holds the folder"

    return DatasetError.about("cannot read an image folder", place=place, found=found, expected=LAYOUT, fix=fix)


def refuse_empty_classes(
    root: str, classes: Sequence[str], labelled: LabelledPaths, extensions: tuple[str, ...]
) -> None:
    """Raises DatasetNotFoundError that names the classes without images, ten at most."""
    starts = labelled.starts
    empty = []
    for index, name in enumerate(classes):
        if starts[index] == starts[index + 1]:
            empty.append(name)

    if not empty:
        return

    if len(empty) > 10:
        more = f" and {len(empty) - 10} more"
    else:
        more = ""

    raise DatasetNotFoundError.about(
        f"{len(empty)} of {len(classes)} class folders hold no images",
        place=printable(root),
        found="no images in " + printable(", ".join(empty[:10])) + more,
        expected="files ending in " + ", ".join(extensions),
        fix="remove these folders, or pass allow_empty=True or other extensions",
    )


def as_tuple(extensions: str | Sequence[str]) -> tuple[str, ...]:
    """One extension or several, as `str.endswith` takes them."""
    if isinstance(extensions, str):
        return (extensions,)
    return tuple(extensions)


def printable(path: str) -> str:
    """A path with bytes that are not UTF-8 written as \\xNN, so that every terminal and log takes it."""
    return os.fsencode(path).decode("utf-8", errors="backslashreplace")
