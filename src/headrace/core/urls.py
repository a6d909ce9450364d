"""URLs where a path may stand: how they are told from paths, and the refusal of those who take paths only."""

from __future__ import annotations

import os
import re

from headrace.core.errors import UsageError, explain
from headrace.core.hidden import hide_secrets, without_user, without_values

URL = re.compile(r"(?P<scheme>[A-Za-z][A-Za-z0-9+.-]+):(?P<slashes>//?)(?P<rest>.*)", re.DOTALL)


def is_url(path: object) -> bool:
    """Tells whether a path is a URL.

    `pathlib` makes one slash of two. What it leaves, such as "s3:/bucket", is a URL too, unless there is a folder
    "s3:".
    """
    if not isinstance(path, (str, os.PathLike)):
        return False

    given = os.fsdecode(path)
    match = URL.match(given)
    if match is None:
        return False

    if match["slashes"] == "//":
        return True
    return not os.path.lexists(given.partition("/")[0])


def shown_url(url: str) -> str:
    """Returns a URL as an error may show it: with two slashes, without user and password, without values of a query.

    Of other texts, what looks like a URL is shown in this way.
    """
    match = URL.match(url)
    if match is None:
        return hide_secrets(url)

    scheme = match["scheme"]
    rest = without_user(scheme, match["rest"])
    if scheme.lower() in ("http", "https"):
        rest = rest.partition("?")[0].partition("#")[0]
    else:
        rest = without_values(scheme, rest)

    return f"{scheme}://{rest}"


def refuse_url(path: object, place: str, cure: str) -> None:
    """Raises `UsageError` for a path that is a URL. place: the function or command that was given it.

    cure: what to do instead, as the error says it.
    """
    if not isinstance(path, (str, os.PathLike)) or not is_url(path):
        return

    shown = shown_url(os.fsdecode(path))
    what = "this takes no URL"
    raise UsageError(explain(what, place=place, found=shown, expected="a path on this machine", cure=cure))
