"""Options of a store, which hold secrets: a mapping that shows its names and no value."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from headrace.core.errors import wrong_argument
from headrace.storage.locations import HTTP_SCHEMES, is_url, lies_elsewhere, parse, url_options


class StoreOptions(Mapping[str, object]):
    """Options of a store, of which only the names are shown.

    May be pickled, for the workers of a loader; the pickle holds the secrets, so save it nowhere.
    """

    # Without a `__dict__`, `vars` of it is an error, and what prints the attributes of objects shows nothing.
    __slots__ = ("_values",)

    def __init__(self, values: Mapping[str, object]) -> None:
        self._values = dict(values)

    def __getitem__(self, name: str) -> object:
        return self._values[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._values)

    def __len__(self) -> int:
        return len(self._values)

    def __repr__(self) -> str:
        """Shows names."""
        return f"<options of a store: {', '.join(map(str, self._values)) or 'none'}>"

    def __reduce__(self) -> Any:
        """Pickles all of it."""
        return StoreOptions, (self._values,)


def options_for(source: object, options: object, place: str = "headrace.open", name: str = "options") -> StoreOptions:
    """Returns the options with which data are opened: what their URL holds, and those that were given, which win.

    source: a path, a URL, or a list of these. place, name: of the function and its argument, for the error. Raises
    `UsageError` for options that are no mapping from names, and for those of data that lie in no store.
    """
    expected = "a dict from names to values, such as {'region': 'eu-west-3'}; docs/howto/credentials.md lists them"
    if not isinstance(options, Mapping | None):
        # What was given may be a key or a password.
        found = f"a {type(options).__name__}"
        raise wrong_argument(name, options, expected, place=place, found=found)

    given = dict(options or {})
    for key in given:
        if not isinstance(key, str):
            raise wrong_argument(name, options, expected, place=place, found=f"a name of type {type(key).__name__}")

    first = source[0] if isinstance(source, (list, tuple)) and source else source
    if given and not isinstance(options, StoreOptions) and not lies_elsewhere(first):
        found = f"{', '.join(given)}, for data that are in no store"
        fix = f"leave {name}= out, or give the URL of a store"
        raise wrong_argument(name, options, "options of a store, with its URL", place=place, found=found, fix=fix)

    if isinstance(source, (list, tuple)):
        given = {**_options_of_list(source), **given}
    elif lies_elsewhere(source):
        given = {**url_options(str(source)), **given}
    return StoreOptions(given)


def _options_of_list(urls: Sequence[object]) -> dict[str, object]:
    """Returns what the URLs of a list hold besides their locations. Where queries differ, "query" has them by key."""
    if not urls or not is_url(urls[0]):
        return {}

    options = url_options(str(urls[0]))
    if parse(str(urls[0])).scheme not in HTTP_SCHEMES:
        return options

    queries = {}
    for url in urls:
        if is_url(url):
            held = url_options(str(url)).get("query")
            if held is not None:
                queries[parse(str(url)).key] = held

    if set(queries.values()) - {options.get("query")} or (queries and len(queries) < len(urls)):
        options["query"] = queries
    return options
