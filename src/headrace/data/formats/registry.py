"""All formats, by name, and which of them some data are in."""

from __future__ import annotations

import contextlib
import difflib
import importlib
import os
import stat
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple, cast

import numpy.typing as npt

from headrace.core.errors import DatasetNotFoundError, FormatError, HeadraceError, UsageError
from headrace.core.files.regular_files import not_regular
from headrace.core.text.urls import refuse_url
from headrace.data.formats import flat
from headrace.data.formats.columns.schema import Schema
from headrace.data.formats.fetched_whole import NotByRanges, open_fetched
from headrace.data.formats.flat import EXAMPLE, number_type, open_flat
from headrace.data.formats.folder_form import format_of_folder
from headrace.data.formats.manifest import read_manifest
from headrace.data.formats.other_kinds import ANNDATA, kind_of_file, kind_with_versions, refusal_of_kind
from headrace.data.formats.protocol import Format, Names, Reader, SeveralFiles, Writer
from headrace.data.formats.shards import is_pattern, matches_of
from headrace.data.formats.unfinished import refuse_unfinished
from headrace.data.formats.unreadable import unreadable
from headrace.storage.files import exists, first_bytes, is_folder, parent_of, size_of
from headrace.storage.listing import lookup, not_found
from headrace.storage.locations import CLOUD_SCHEMES, bound_path, is_url, local_path, parse
from headrace.storage.stores.failures import ListingRefusedError
from headrace.storage.stores.registry import CacheSettings
from headrace.storage.stores.store_options import options_for


class RegisteredFormat(NamedTuple):
    """A format, as it is known without importing it."""

    module: str
    """A module of this package, or something in one: `module:NAME`."""

    ending: str = ""
    """Of the one file that a dataset may be; empty: it is always a folder."""

    by_ranges: bool = False
    """Whether its files are read piece by piece where they lie in a store; those of others are fetched whole."""

    mapped: bool = False
    """Whether its files on this machine are mapped into memory: who writes over them changes values in use."""

    in_folders: bool = False
    """Whether a folder is in it by the endings of most of its files; see `folder_form.py`."""

    written_by: tuple[str, ...] = ()
    """The libraries, besides NumPy, whose versions may change the bytes of its files."""


FORMATS = {
    "arrow": RegisteredFormat(
        "arrow.ipc", ".arrow", by_ranges=True, mapped=True, in_folders=True, written_by=("pyarrow",)
    ),
    "memmap": RegisteredFormat("memmap", by_ranges=True, mapped=True, in_folders=True),
    "parquet": RegisteredFormat("arrow.parquet", ".parquet", by_ranges=True, in_folders=True, written_by=("pyarrow",)),
    "webdataset": RegisteredFormat("tar.webdataset", ".tar", by_ranges=True, in_folders=True),
    "lmdb": RegisteredFormat("lmdb_store", written_by=("lmdb",)),
    "hdf5": RegisteredFormat("hdf5", ".h5", mapped=True, written_by=("h5py",)),
    "npz": RegisteredFormat("npz", ".npz", mapped=True),
    "npy": RegisteredFormat("npy", ".npy", by_ranges=True, mapped=True),
    "idx": RegisteredFormat("idx", by_ranges=True, mapped=True),
    "tensordict": RegisteredFormat("tensordict_memmap", by_ranges=True, mapped=True, written_by=("torch",)),
    "huggingface": RegisteredFormat("huggingface", by_ranges=True, mapped=True, written_by=("pyarrow",)),
    "pt": RegisteredFormat("pt_files", by_ranges=True, in_folders=True, written_by=("torch",)),
    "csv": RegisteredFormat("csv_files:CSV", ".csv", in_folders=True, written_by=("pyarrow",)),
    "tsv": RegisteredFormat("csv_files:TSV", ".tsv", in_folders=True, written_by=("pyarrow",)),
    "jsonl": RegisteredFormat("json_lines:JSON_LINES", ".jsonl", in_folders=True, written_by=("pyarrow",)),
    "folder": RegisteredFormat("folder", by_ranges=True),
}
"""In the order in which they are asked: a folder of files is what is left."""


ONE_FILE_A_SAMPLE = ("folder", "pt")
"""The formats of folders that have a file for each sample."""


LIBRARY_FAILURES = (ValueError, KeyError, IndexError, TypeError, AttributeError, RuntimeError, OverflowError, EOFError,
                    MemoryError, RecursionError, Warning)  # fmt: skip
"""What the libraries of formats have been seen to raise when they open data whose bytes were changed at random."""


def format_named(name: str) -> Format:
    """Returns a format by its name. Raises `UsageError`."""
    if name not in FORMATS:
        close = difflib.get_close_matches(name, FORMATS, 1)
        if close:
            fix = f"did you mean {close[0]!r}?"
        else:
            fix = None

        expected = ", ".join(FORMATS)
        raise UsageError.about("there is no such format", place="format", found=repr(name), expected=expected, fix=fix)

    module, _, attribute = FORMATS[name].module.partition(":")
    found = importlib.import_module(f"headrace.data.formats.{module}")
    if attribute:
        chosen = getattr(found, attribute)
    else:
        chosen = found

    return cast(Format, chosen)


def is_mapped(name: str) -> bool:
    """Tells whether files of a form on this machine are mapped into memory. name: of any form that is read."""
    return name == flat.NAME or (name in FORMATS and FORMATS[name].mapped)


def endings_of(name: str) -> tuple[str, ...]:
    """Returns how the names of the files of a format end, if they all do; empty for others. Raises `UsageError`."""
    return tuple(getattr(format_named(name), "SUFFIXES", ()))


def format_of(path: str) -> Format:
    """Returns the format of what lies at a path. Raises `DatasetNotFoundError` and `FormatError`, which say why."""
    manifest = read_manifest(path)
    if manifest is not None and manifest.format in FORMATS:
        return format_named(manifest.format)

    in_folder = is_folder(path)
    _refuse_kinds(path, in_folder)
    for name in FORMATS:
        candidate = format_named(name)
        if not (in_folder and (name == "folder" or FORMATS[name].in_folders)) and candidate.claims(path):
            return candidate

    if in_folder:
        return format_named(
            format_of_folder(path, {name: endings_of(name) for name, entry in FORMATS.items() if entry.in_folders})
        )
    if is_pattern(path):
        raise _refused_pattern(path)
    if is_url(path):
        raise _unknown_objects(path)

    given = Path(path)
    if not os.path.lexists(path):
        parent = given.parent
        siblings: list[str]
        if parent.is_dir():
            siblings = os.listdir(parent)  # noqa: PTH208 - names alone are wanted
        else:
            siblings = []

        near = difflib.get_close_matches(given.name, siblings, 1)
        if near:
            fix = f"did you mean {parent / near[0]}?"
        else:
            fix = "correct the path"
        raise DatasetNotFoundError.about("there are no such data", place=path, found="nothing", fix=fix)

    kind = kind_of_file(path)
    if kind is not None and given.is_file():
        raise refusal_of_kind(path, kind)
    raise _unknown(given)


def _refuse_kinds(path: str, in_folder: bool) -> None:
    """Raises `FormatError` for data that some format would claim, and read wrongly."""
    kind = None
    if path.lower().endswith(".h5ad") and not in_folder:
        kind = ANNDATA
    if path.endswith(".parquet") and is_pattern(path):
        # A store that lists nothing has no pattern but a range, whose files the user has named.
        with contextlib.suppress(ListingRefusedError):
            kind = kind_with_versions(parent_of(path))

    if kind is not None:
        raise refusal_of_kind(path, kind)


def _refused_pattern(pattern: str, chosen: Format | None = None) -> HeadraceError:
    """Returns the error for a pattern that cannot be opened. chosen: the format that the user has named."""
    things = "files"
    if is_url(pattern):
        things = "objects"

    found = matches_of(pattern)
    if not found:
        expected = f"a pattern of {things}; * and ? stand for no slash, and nothing stands for a folder"
        return DatasetNotFoundError.about(
            f"no {things} match", place=pattern, found="nothing", expected=expected, fix="correct the pattern"
        )

    if chosen is None:
        # What no format claims is a sample of its own, such as an image.
        chosen = format_named("folder")
        with contextlib.suppress(HeadraceError):
            chosen = format_of(found[0])

    if isinstance(chosen, SeveralFiles):
        expected = "a pattern that ends in the usual ending of a format, which tells the format"
        fix = f"name the format: open(..., format={chosen.NAME!r})"
    elif chosen.NAME in ONE_FILE_A_SAMPLE:
        expected = f"a folder, as the format {chosen.NAME!r} has a file for each sample"
        fix = f"open the folder {parent_of(found[0])}"
    else:
        several = [name for name in FORMATS if isinstance(format_named(name), SeveralFiles)]
        expected = (
            f"one file or folder, as the format {chosen.NAME!r} takes no patterns; these do: {', '.join(several)}"
        )
        fix = (
            "open each by itself, and join them with torch.utils.data.ConcatDataset; or pack each with `headrace pack`"
        )

    if len(found) == 1 or is_folder(found[0]):
        fix = f"open {found[0]}"

    if len(found) == 1:
        things = things.removesuffix("s")

    matching = f"{len(found):,} matching {things}, the first is {found[0]}"
    return UsageError.about("this pattern cannot be opened", place=pattern, found=matching, expected=expected, fix=fix)


def _unknown_objects(url: str) -> HeadraceError:
    """Returns the error for a URL at which no format was found."""
    if not exists(url):
        return not_found(url)

    kind = kind_of_file(url)
    if kind is not None:
        return refusal_of_kind(url, kind)

    head = first_bytes(url)
    if head:
        found = f"an object of {size_of(url):,} bytes that begins with {head!r}"
    else:
        found = "an empty object"

    fix = "name the format: open(..., format=...), or --format on the command line"
    expected = ", ".join(FORMATS)
    return FormatError.about("cannot tell the format of this", place=url, found=found, expected=expected, fix=fix)


def _unknown(path: Path) -> FormatError:
    try:
        mode = path.stat().st_mode
        if not stat.S_ISREG(mode):
            found = "neither a file nor a folder"
        else:
            with path.open("rb") as file:
                head = file.read(16)
            if head:
                found = f"a file of {path.stat().st_size:,} bytes that begins with {head!r}"
            else:
                found = "an empty file"
    except OSError as error:
        found = error.strerror or str(error)

    known = []
    for name in FORMATS:
        known.append(f"{name}: {format_named(name).TITLE}")

    expected = "; ".join(known)
    fix = "name the format: open(..., format=...), or --format on the command line"
    if path.suffix == ".bin":
        fix += f"; for a flat file of tokens say their type: {EXAMPLE}, headrace inspect {path.name} --dtype uint16"
    return FormatError.about("cannot tell the format of this", place=path, found=found, expected=expected, fix=fix)


def open_reader(
    path: str | os.PathLike[str],
    *,
    format: str | None = None,
    trust: bool = False,
    columns: Names | None = None,
    options: Mapping[str, object] | None = None,
    cache: CacheSettings | None = None,
) -> Reader:
    """Opens stored data. Raises `DatasetNotFoundError`, `FormatError`, `UsageError`, and `OSError` with the path.

    columns: those that are wanted, if not all; see `Format.open_reader`.
    options: how the store of a URL is opened. cache: where its blocks are kept on this node; None: nowhere.
    """
    place = local_path(path)
    if not place:
        raise UsageError.about(
            "there is no path",
            place="headrace.open",
            found="an empty text",
            expected="a path or a URL",
            fix="if it comes from a variable, see that it is set; '.' is the current folder",
        )
    if is_url(place):
        with lookup(options_for(place, options), cache):
            return _open(parse(place).url, format, trust, columns)

    _refuse_half_url(place)
    place = bound_path(place)
    check_name(place)
    check_kind(place)
    return _open(place, format, trust, columns)


def _refuse_half_url(given: str) -> None:
    """Raises `DatasetNotFoundError` for a path that is not there, and was meant as a URL."""
    scheme = given.partition(":")[0]
    if is_url(given.strip()):
        fix = "remove the space in front of the URL"
    elif scheme != given and scheme.lower() in CLOUD_SCHEMES:
        # `https:host/x`, which is read as a path.
        fix = f"for a URL, write two slashes after the colon: {scheme}://..."
    else:
        return

    if not os.path.lexists(given):
        raise DatasetNotFoundError.about("there are no such data", place=given, found="nothing", fix=fix)


def open_flat_reader(
    path: str | os.PathLike[str],
    dtype: npt.DTypeLike | None,
    options: Mapping[str, object] | None = None,
    cache: CacheSettings | None = None,
) -> Reader:
    """Opens a flat file of numbers; see `flat.py`. Raises what `open_reader` does. options, cache: as there."""
    number = number_type(dtype)
    place = local_path(path)
    if is_url(place):
        with lookup(options_for(place, options), cache):
            return open_flat(parse(place).url, number)
    return open_flat(bound_path(place), number)


def _open(place: str, format: str | None, trust: bool, columns: Names | None) -> Reader:
    if is_url(place) and not is_pattern(place):
        refuse_unfinished(place)

    if format is None:
        chosen = format_of(place)
    else:
        chosen = format_named(format)

    if format is not None and is_pattern(place) and not isinstance(chosen, SeveralFiles) and not chosen.claims(place):
        raise _refused_pattern(place, chosen)
    if format is not None and not exists(place) and not is_pattern(place) and not chosen.claims(place):
        if is_url(place):
            raise not_found(place)
        raise DatasetNotFoundError.about("there are no such data", place=place, found="nothing", fix="correct the path")

    try:
        if is_url(place):
            reader = _open_url(chosen, place, trust, columns)
        else:
            reader = chosen.open_reader(place, trust, columns)
    except LIBRARY_FAILURES as error:
        if isinstance(error, HeadraceError):
            raise
        raise unreadable(place, f"{chosen.TITLE} ({chosen.NAME})", error) from error

    return with_columns(reader)


def with_columns(reader: Reader) -> Reader:
    """Returns a reader. Raises `FormatError` for one without columns, which would be a dataset without samples."""
    if not reader.schema.names:
        expected = "at least one column: lines with fields, an archive with arrays"
        fix = "correct the path, or what writes the file"
        what = "the data have no columns"
        raise FormatError.about(what, place=reader.place, found="none", expected=expected, fix=fix)
    return reader


def _open_url(chosen: Format, url: str, trust: bool, columns: Names | None) -> Reader:
    if FORMATS[chosen.NAME].by_ranges:
        try:
            return chosen.open_reader(url, trust, columns)
        except NotByRanges:
            # Some files of the format cannot be read by ranges, such as those that are compressed as a whole.
            pass
    return open_fetched(chosen, url, trust, columns)


def check_name(place: str) -> None:
    """Raises `UsageError` for a path that libraries cannot be told, since they want UTF-8, and for one with a zero."""
    if "\0" in place:
        raise UsageError.about("this path cannot be used", place=repr(place), found="a zero byte in it")
    try:
        place.encode()
    except UnicodeEncodeError as error:
        found = "a name that is not valid UTF-8"
        fix = "rename it, or make a link with another name to it"
        if sys.getfilesystemencoding() != "utf-8":
            found = f"a name that the encoding of this locale ({sys.getfilesystemencoding()}) has no letters for"
            fix = "set PYTHONUTF8=1, or a locale of UTF-8 such as LC_ALL=C.UTF-8"
        raise UsageError.about("this path cannot be used", place=repr(place), found=found, fix=fix) from error


def check_kind(place: str) -> None:
    """Raises `FormatError` for a named pipe, a device or a socket: reading one may wait, or go on, for ever."""
    try:
        mode = os.stat(place).st_mode  # noqa: PTH116 - the same for text that is no path
    except (OSError, ValueError):
        # A pattern, a prefix, or nothing: whoever looks for the data says so.
        return

    if not stat.S_ISREG(mode) and not stat.S_ISDIR(mode):
        raise not_regular(place, mode, "a regular file, or a folder")


def open_writer(path: str | os.PathLike[str], schema: Schema, format: str) -> Writer:
    """Begins to write data. Call `append` with blocks of samples, then `seal`, or `abort`.

    Args:
        path: of this machine; a file or a folder, as the format has it.
        schema: of the columns.
        format: its name.

    Returns:
        A writer; nothing is visible at the path before `seal`.

    Raises:
        FormatError: the format cannot hold the data.
        UsageError: there is no such format.

    Examples:
        >>> from headrace.types import Block, Field, Schema
        >>> schema = Schema((Field("x", dtype=np.dtype("float32")),))
        >>> writer = headrace.open_writer("x.arrow", schema, "arrow")
        >>> writer.append(Block(schema, {"x": np.ones(2, np.float32)}))
        >>> writer.seal()
    """
    place = local_path(path)
    fix = "write to a path of this machine, and then `headrace pack PATH URL`, or headrace.pack(path, url)"
    refuse_url(place, "headrace.open_writer", fix)
    check_name(place)
    check_holds(format, schema, place)
    return format_named(format).open_writer(place, schema)


def check_holds(format: str, schema: Schema, place: object) -> None:
    """Raises `FormatError` if a format cannot hold a schema."""
    chosen = format_named(format)
    reasons = []
    for field in schema:
        if (why := chosen.refusal(field)) is not None:
            reasons.append(f"{field.name} ({field}): {why}")

    bad = []
    for name in schema.names:
        if not name or "\0" in name or not _is_text(name):
            bad.append(name)

    if bad:
        expected = "names of text, not empty"
        raise FormatError.about("a column name cannot be stored", place=place, found=bad, expected=expected)

    if not schema.fields:
        raise FormatError.about("there are no columns to write", place=place, found="none", expected="one or more")

    if reasons:
        raise FormatError.about(
            f"the format {format} cannot hold these data",
            place=place,
            found="; ".join(reasons),
            expected="fields that it can hold",
            fix="leave such columns out, or choose memmap or arrow, which hold them all",
        )

    # With several columns an .npy file is an array of records, whose names NumPy writes into the header as a literal of
    # Python and reads back; it does not get all characters back.
    if format == "npy" and len(schema) > 1 and not "".join(schema.names).isprintable():
        raise FormatError.about("a column name cannot be stored", place=place, found=", ".join(map(repr, schema.names)))


def _is_text(name: str) -> bool:
    try:
        name.encode()
    except UnicodeEncodeError:
        return False
    return True
