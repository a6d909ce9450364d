"""Which format a folder is in that nothing describes: by most of its files, and never by a single one beside others."""

from __future__ import annotations

import os
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from itertools import islice

from headrace.core.errors import FormatError
from headrace.data.formats import other_kinds
from headrace.data.formats.folder import CONTENTS, is_litter
from headrace.data.formats.manifest import plain_files
from headrace.storage.files import entries_below, join, objects_below
from headrace.storage.locations import is_url

Endings = Mapping[str, tuple[str, ...]]

ALONE = (".npz", ".h5", ".hdf5", ".hdf", ".mdb", ".lmdb")
"""Endings of formats of which each file is a dataset of its own."""

MEDIA = (*CONTENTS["image"], *CONTENTS["audio"])

NUMBERED = re.compile(r"\D*?[-_]?\d+\.npy")
"""A name that a sample may have, and hardly a column."""

BY_VALUE = re.compile(r"[^=/]+=[^/]*/")
"""A folder that holds the rows of one value: `label=cat/`."""

PACKED = re.compile(r"\.(?:tar|csv|tsv|jsonl|ndjson)\.(?:gz|bz2|xz|zst)$|\.tgz$")
"""Files of a form that is not read compressed."""

LOOKED_AT = 2000
"""Files in sub-folders that are looked at."""


def format_of_folder(path: str, endings: Endings) -> str:
    """Returns the name of the format of a folder. Raises `FormatError` where it is unclear, or of a kind not read.

    endings: of the names of files, by the formats that a folder of files may be in.
    """
    names = [name for name in plain_files(path) if not is_litter(name)]
    kind = other_kinds.kind_of_folder(path, names)
    if kind is not None:
        raise other_kinds.refusal_of_kind(path, kind)

    forms = {}
    for form, suffixes in endings.items():
        if found := [name for name in names if name.endswith(suffixes)]:
            forms[form] = found

    below = list(_below(path))
    media = [name for name in (*names, *below) if name.lower().endswith(MEDIA)]
    if len(forms) > 1 or (forms and media):
        raise _unclear(path, forms, media)
    packed = [name for name in names if PACKED.search(name)]
    if forms and packed:
        fix = "unpack them, as by gunzip; or list the files that are wanted"
        beside = next(iter(forms.values()))[0]
        both = f"{len(packed):,} compressed files such as {packed[0]} beside {beside}"
        what = "some files of this folder would be left out"
        raise FormatError.about(what, place=path, found=both, expected="files of one format", fix=fix)
    if not forms:
        _check_files(path, [*names, *below], endings)
        return "folder"

    ((form, found),) = forms.items()
    if form == "memmap" and len(found) > 1 and all(NUMBERED.fullmatch(name) for name in found):
        raise _one_a_sample(path, found)
    return form


def _below(path: str) -> Iterator[str]:
    """Yields names of files in sub-folders, relative to the folder: the first ones."""
    if is_url(path):
        names = [name for name, _ in objects_below(path) if "/" in name]
        yield from names[:LOOKED_AT]
        return

    found = (name for name, _ in entries_below(path, _is_hidden) if "/" in name)
    yield from islice(found, LOOKED_AT)


def _is_hidden(name: str) -> bool:
    return name.startswith(".") or is_litter(name)


def _unclear(path: str, forms: dict[str, list[str]], media: Sequence[str]) -> FormatError:
    """Returns the error for a folder of which there are several readings."""
    found = []
    readings = []
    if media:
        found.append(f"{len(media):,} images or sounds such as {media[0]}")
        readings.append("format='folder' for these")

    for form, names in forms.items():
        found.append(f"{len(names):,} files of {form} such as {names[0]}")
        readings.append(f"format={form!r}, or open {join(path, names[0])}")

    fix = f"say which: {'; '.join(readings)}"
    expected = "files of one format, or no such files beside them"
    what = "this folder can be read in several ways"
    return FormatError.about(what, place=path, found=", ".join(found), expected=expected, fix=fix)


def _one_a_sample(path: str, names: Sequence[str]) -> FormatError:
    fix = (
        "if each is a sample, put them together: np.save('all.npy', np.stack([np.load(file) for file in files])); "
        "if each is a column, format='memmap'"
    )
    found = f"{len(names):,} numbered files of .npy, such as {names[0]}"
    what = "this folder can be read in several ways"
    return FormatError.about(what, place=path, found=found, expected="one file a column", fix=fix)


def _check_files(path: str, names: Sequence[str], endings: Endings) -> None:
    """Raises `FormatError` if most files of a folder are no samples, but data of a format of their own."""
    counts = Counter(_ending_of(name) for name in names)
    if not counts:
        return

    ending, count = counts.most_common(1)[0]
    example = next(name for name in names if _ending_of(name) == ending)
    form = next((form for form, suffixes in endings.items() if ending in suffixes), None)
    if ending in ALONE:
        fix = (
            "open each by itself, and join them with torch.utils.data.ConcatDataset; or pack each with `headrace pack`"
        )
        title = f"{count:,} files of {ending}, each a dataset of its own, such as {example}"
    elif form is not None and BY_VALUE.search(example):
        title = f"{form} files in folders by value, such as {example}"
        fix = (
            "write them as one table: pyarrow.dataset.dataset(path, partitioning='hive').to_table(), which has the "
            "values of the folders as columns; or open a list of the files without these"
        )
    elif form is not None:
        parts = sorted({name.partition("/")[0] for name in names if "/" in name})
        title = f"{form} files in sub-folders, such as {example}"
        fix = f"open one of them: {', or '.join(join(path, part) for part in parts[:3])}; or a list of files"
    elif ".tfrecord" in example.rpartition("/")[2]:
        raise other_kinds.refusal_of_kind(path, other_kinds.TFRECORD)
    elif ending == ".json" and other_kinds.kind_of_file(join(path, example)) is other_kinds.COCO:
        raise other_kinds.refusal_of_kind(path, other_kinds.COCO)
    elif ending in other_kinds.BY_ENDING and ending not in (".json", ".gz"):
        raise other_kinds.refusal_of_kind(path, other_kinds.BY_ENDING[ending])
    else:
        return

    what = "this is no folder with one file a sample"
    fix = f"{fix}; to have the bytes of the files, format='folder'"
    raise FormatError.about(what, place=path, found=title, expected="files that are samples, such as images", fix=fix)


def _ending_of(name: str) -> str:
    return os.path.splitext(name)[1].lower()  # noqa: PTH122 - of a URL, too
