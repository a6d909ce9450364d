"""Files that a user has listed, opened as one dataset: they must all be there, and of one format."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Any

from headrace.core.errors import DatasetNotFoundError, FormatError, HeadraceError, UsageError
from headrace.core.text.urls import shown_url
from headrace.data.formats.fetched_whole import NotByRanges, open_fetched_files
from headrace.data.formats.protocol import Format, Names, Reader, SeveralFiles
from headrace.data.formats.registry import (
    FORMATS,
    LIBRARY_FAILURES,
    check_kind,
    check_name,
    format_named,
    format_of,
    with_columns,
)
from headrace.data.formats.shards import FileList
from headrace.data.formats.unreadable import unreadable
from headrace.storage.files import is_file
from headrace.storage.listing import current, lookup
from headrace.storage.locations import bound_path, is_url, local_path, parse, url_options
from headrace.storage.stores.registry import CacheSettings
from headrace.storage.stores.store_options import options_for

PLACE = "headrace.open"


def open_listed(
    given: Sequence[Any],
    *,
    format: str | None = None,
    trust: bool = False,
    columns: Names | None = None,
    options: Mapping[str, object] | None = None,
    cache: CacheSettings | None = None,
) -> tuple[FileList, Reader]:
    """Opens listed files, in their order, as one dataset. Returns them and its reader.

    given: paths, or URLs of one store. format, trust, columns, options and cache: see `registry.open_reader`. Raises
    `DatasetNotFoundError` if a file is missing, `FormatError` if one is of another format or damaged, `UsageError` for
    what is no list of files, and `OSError`.
    """
    places = _places(given)
    if not is_url(places[0]):
        for place in places:
            check_name(place)
            check_kind(place)
        return _open(FileList(tuple(places)), format, trust, columns)

    with lookup(options_for(places, options), cache):
        urls = FileList(tuple(parse(place).url for place in places))
        current().look_for(urls.files)
        return _open(urls, format, trust, columns)


def _places(given: Sequence[Any]) -> list[str]:
    """Returns paths or URLs as texts. Raises `UsageError` unless they are all the one, or all of one store."""
    expected = "a list of paths, or of URLs of one store"
    if not given:
        raise UsageError.about(
            "cannot open this", place=PLACE, found="an empty list", expected=expected, fix="list at least one file"
        )

    places = []
    for number, path in enumerate(given):
        if not isinstance(path, (str, os.PathLike)):
            found = f"{path!r} of type {type(path).__name__} at position {number}"
            raise UsageError.about(
                "cannot open this", place=PLACE, found=found, expected=expected, fix="list paths or URLs as text"
            )
        places.append(local_path(path))

    first = places[0]
    store = _store_of(first)
    user = url_options(first) if is_url(first) else {}
    user.pop("query", None)
    queries: dict[str, object] = {}
    for place in places:
        if _store_of(place) != store:
            found = f"{shown_url(place)} beside {shown_url(first)}"
            fix = "open those of each store by themselves, and join them with torch.utils.data.ConcatDataset"
            raise UsageError.about("files of different stores", place=PLACE, found=found, expected=expected, fix=fix)
        if store is None:
            continue
        held = url_options(place)
        query = held.pop("query", None)
        if held != user:
            found = f"{shown_url(place)} has another user than {shown_url(first)}"
            fix = "give all of them the same user, or none and what is needed by options="
            raise UsageError.about("files of different stores", place=PLACE, found=found, expected=expected, fix=fix)
        if queries.setdefault(parse(place).key, query) != query:
            found = f"{shown_url(place)} with two queries"
            expected = "one query for each address: it is taken for a signature, and not for a part of the name"
            fix = "list the object once; objects that only the query tells apart: open each by itself"
            raise UsageError.about("cannot open this", place=PLACE, found=found, expected=expected, fix=fix)

    if is_url(first):
        return places
    return list(map(bound_path, places))


def _store_of(place: str) -> tuple[str, str] | None:
    """Returns scheme and container of a URL; None for a path."""
    if not is_url(place):
        return None
    location = parse(place)
    return location.scheme, location.container


def _open(listed: FileList, format: str | None, trust: bool, columns: Names | None) -> tuple[FileList, Reader]:
    missing = []
    for file in listed.files:
        if not is_file(file):
            missing.append(file)

    if missing:
        found = f"{len(listed.files) - len(missing)} of {len(listed.files)}; not there: {', '.join(missing[:5])}"
        expected = "all of them, each a file"
        raise DatasetNotFoundError.about(
            "files are missing",
            place=listed.place,
            found=found,
            expected=expected,
            fix="correct their names, or leave them out",
        )

    chosen = _format_of(listed, format)
    if not isinstance(chosen, SeveralFiles):
        several = [name for name in FORMATS if isinstance(format_named(name), SeveralFiles)]
        raise UsageError.about(
            "this format is not read from a list of files",
            place=listed.place,
            found=chosen.NAME,
            expected=", ".join(several),
            fix="open each by itself, and join them with torch.utils.data.ConcatDataset",
        )

    try:
        return listed, with_columns(_reader(chosen, listed, trust, columns, by_ranges=FORMATS[chosen.NAME].by_ranges))
    except LIBRARY_FAILURES as error:
        if isinstance(error, HeadraceError):
            raise
        raise unreadable(listed.place, f"{chosen.TITLE} ({chosen.NAME})", error) from error


def _reader(chosen: SeveralFiles, listed: FileList, trust: bool, columns: Names | None, *, by_ranges: bool) -> Reader:
    if is_url(listed.files[0]) and not by_ranges:
        return open_fetched_files(chosen, listed.files, listed.place, trust, columns)

    try:
        return chosen.open_files(listed.files, listed.place, trust, columns)
    except NotByRanges:
        return open_fetched_files(chosen, listed.files, listed.place, trust, columns)


def _format_of(listed: FileList, format: str | None) -> Format:
    """Returns the format of files. Raises `FormatError` for the first that is of another one than those before it."""
    if format is not None:
        return format_named(format)

    chosen = format_of(listed.files[0])
    for file in listed.files[1:]:
        # The usual case costs a look at the first bytes, and not one by each format.
        if chosen.claims(file):
            continue

        other = format_of(file)
        if other.NAME != chosen.NAME:
            found = f"{other.NAME} where {listed.files[0]} is {chosen.NAME}"
            expected = "files of one format"
            fix = "leave it out; or name the format, if all are of one: open(..., format=...)"
            raise FormatError.about("listed files differ", place=file, found=found, expected=expected, fix=fix)

    return chosen
