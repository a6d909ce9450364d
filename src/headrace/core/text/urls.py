"""URLs where a path may stand: how they are told from paths, and the refusal of those who take paths only.

Also what can be seen of the URL of a server before anybody connects.
"""

from __future__ import annotations

import os
import re
from urllib.parse import urlsplit

from headrace.core.errors import UsageError
from headrace.core.text.secrets import hide_secrets, without_user, without_values

URL = re.compile(r"(?P<scheme>[A-Za-z][A-Za-z0-9+.-]+):(?P<slashes>//?)(?P<rest>.*)", re.DOTALL)

HOST_AND_PORT = re.compile(r"(?P<host>\[[^\[\]]*\]|[^:\[\]]*)(?P<colon>:)?(?P<port>(?<=:).*)?", re.DOTALL)

MOST_PORTS = 65535


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


def check_server(url: str, place: str, expected: str, *, needs_host: bool = True) -> None:
    """Raises `UsageError` for a URL of a server in which a host is missing, or a port that is given is none.

    place: the function that was given it. expected: what its URLs look like. Several hosts have commas between them.
    """
    try:
        servers = urlsplit(url).netloc.rpartition("@")[2]
    except ValueError:
        servers = "["  # of an address of IPv6 that is not complete

    wrong = ""
    for server in servers.split(","):
        match = HOST_AND_PORT.fullmatch(server)
        if match is None:
            wrong = "this URL has no host that can be read"
        elif needs_host and not match["host"]:
            wrong = "this URL has no host"
        elif match["colon"] and not is_port(match["port"]):
            wrong = "this URL has a wrong port"

    if wrong:
        fix = f"correct host and port, a number from 1 to {MOST_PORTS}"
        if "@" in url:
            fix += "; a password with other signs than letters and digits is to be quoted: %2F is a slash"
        raise UsageError.about(wrong, place=place, found=shown_url(url), expected=expected, fix=fix)


def is_port(text: str) -> bool:
    """Tells whether a text is the number of a port."""
    return text.isascii() and text.isdigit() and len(text) <= len(str(MOST_PORTS)) and 0 < int(text) <= MOST_PORTS


def refuse_url(path: object, place: str, fix: str) -> None:
    """Raises `UsageError` for a path that is a URL. place: the function or command that was given it.

    fix: what to do instead, as the error says it.
    """
    if not isinstance(path, (str, os.PathLike)) or not is_url(path):
        return

    shown = shown_url(os.fsdecode(path))
    what = "this takes no URL"
    raise UsageError.about(what, place=place, found=shown, expected="a path on this machine", fix=fix)
