"""URLs where a path is wanted: they are not read yet, and `pathlib` would make nonsense of them (`s3:/bucket`)."""

from __future__ import annotations

import os
import re

from headrace.core.errors import UsageError, explain

URL = re.compile(r"[A-Za-z][A-Za-z0-9+.-]+:(//?)")


def refuse_url(path: object, place: str) -> None:
    """Raises `UsageError` for a path that is a URL. place: the function or command that was given it.

    `pathlib` makes one slash of two, so that is a URL too, unless there is such a folder.
    """
    if not isinstance(path, (str, os.PathLike)):
        return

    given = os.fsdecode(path)
    match = URL.match(given)
    if match is None or (match[1] == "/" and os.path.lexists(given.partition("/")[0])):
        return

    cure = "copy the data to a disk of this machine, or mount the store there, and give that path"
    if given.startswith("file:"):
        cure = "leave out the file:// and give the path alone"

    if match[1] == "//":
        shown = given
    else:
        shown = given.replace(":/", "://", 1)

    what = "URLs are not read yet"
    raise UsageError(explain(what, place=place, found=shown, expected="a path on this machine", cure=cure))
