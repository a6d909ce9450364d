"""Which options a filesystem of fsspec knows.

Nearly all of them take any name, and pass over what they do not know. A few pass it on to a library, which raises
`TypeError` for what it does not know, also for the options that fsspec has for all filesystems.
"""

from __future__ import annotations

import difflib
import inspect
from collections.abc import Iterable, Mapping

from headrace.core.errors import UsageError
from headrace.storage.locations import Location

OF_ALL = frozenset(("asynchronous", "batch_size", "loop"))
"""Options that fsspec has for each filesystem, and that mean something here."""

OURS = frozenset(("max_retries", "retry_timeout"))

CHECKED = ("fsspec.implementations.", "huggingface_hub.")
"""Modules of filesystems whose constructors name all that they know, but those of `PASSED_ON`."""

PASSED_ON = ("http", "https", "smb", "dask", "generic")
"""Schemes whose filesystems pass on any name."""


def check_options(location: Location, system: type, given: Mapping[str, object]) -> None:
    """Raises `UsageError` for an option that a class of filesystems does not know, and where it needs one more."""
    known, needed = _parameters(system)
    if location.scheme in ("sftp", "ssh"):
        import paramiko

        known |= {"temppath", "host_key_policy", *_names_of(paramiko.SSHClient.connect)}
        # The host is that of the URL.
        known -= {"hostname", "sock"}

    if system.__module__.startswith(CHECKED) and location.scheme not in PASSED_ON:
        for name in given:
            if name not in known | OF_ALL | OURS:
                raise _unknown(location, name, known | OURS)

    missing = needed - given.keys()
    if missing:
        raise UsageError.about(
            "cannot open a store",
            place=f"options= for {location.url}",
            found=f"no {' and no '.join(sorted(missing))}",
            expected=f"{', '.join(sorted(needed))}; it also knows {', '.join(sorted(known - needed)) or 'no other'}",
            fix=f"add what is missing to options=: {{{min(missing)!r}: ...}}",
        )


def _unknown(location: Location, name: str, known: Iterable[str]) -> UsageError:
    near = difflib.get_close_matches(name, known, 3)
    fix = "correct the name, or leave it out"
    if near:
        fix = f"did you mean {' or '.join(map(repr, near))}?"
    return UsageError.about(
        "unknown option of a store",
        place=f"options= for {location.url}",
        found=repr(name),
        expected=f"one of {', '.join(sorted(known))}",
        fix=fix,
    )


def _parameters(system: type) -> tuple[set[str], set[str]]:
    """Returns the names of all options that a class's constructor has, and of those without a default."""
    known: set[str] = set()
    needed: set[str] = set()
    for base in system.__mro__:
        if base.__name__ in ("AbstractFileSystem", "object"):
            break
        if "__init__" in vars(base):
            parameters = inspect.signature(vars(base)["__init__"]).parameters.values()
            named = [one for one in parameters if one.kind in (one.POSITIONAL_OR_KEYWORD, one.KEYWORD_ONLY)]
            known |= {one.name for one in named}
            if base is system:
                needed = {one.name for one in named if one.default is one.empty}
    return known - {"self", "fs"}, needed - {"self", "fs"}


def _names_of(function: object) -> list[str]:
    return [name for name in inspect.signature(function).parameters if name != "self"]  # type: ignore[arg-type]
