"""Secrets in URLs, hidden from all that is shown: the user in front of the host, and values behind a question mark.

What a user has mistyped counts as a URL, too: `https:/me:word@host/x`, `http:me:word@host`, `htp://host/x?sig=word`.
"""

from __future__ import annotations

import re

IN_TEXT = re.compile(r"(?<![A-Za-z0-9+.-])(?P<scheme>[A-Za-z][A-Za-z0-9+.-]+):(?P<slashes>/{0,3})(?P<rest>[^\s/]\S*)")

CONTAINER_BEFORE_AT = ("az", "azure", "abfs", "abfss")
"""Schemes whose URLs may read `az://container@account/key`: what stands in front of the @ is no user."""

KEY_MAY_HAVE_QUERY = ("s3", "s3a", "s3n", "gs", "gcs", *CONTAINER_BEFORE_AT)
"""Schemes of buckets, whose keys may have a question mark in them: only what looks like `?name=value` is hidden."""

VALUE = re.compile(r"=[^&\s'\"]*")

FIRST_PART = re.compile(r"[^/?#]*")


def hide_secrets(text: str) -> str:
    """Returns a text with the secrets of all URLs in it hidden: users and passwords left out, `?sig=...` for values."""
    # Nearly no text has either, and the look at each word takes longer.
    if ":" not in text or ("@" not in text and "?" not in text):
        return text
    return IN_TEXT.sub(_shown, text)


def _shown(match: re.Match[str]) -> str:
    scheme = match["scheme"]
    rest = without_values(scheme, without_user(scheme, match["rest"]))
    return f"{scheme}:{match['slashes']}{rest}"


def without_user(scheme: str, rest: str) -> str:
    """Returns what stands behind the slashes of a URL without user and password."""
    first = FIRST_PART.match(rest)
    container = first[0] if first is not None else ""
    # A password may have a slash in it that should have been quoted: it begins like a port, and is none.
    _, colon, port = container.rpartition(":")
    if "@" not in container and colon and not port.isdigit() and "@" in rest:
        return rest.rpartition("@")[2]

    user, _, host = container.rpartition("@")
    if scheme.lower() in CONTAINER_BEFORE_AT and ":" not in user:
        return rest
    return host + rest[len(container) :]


def without_values(scheme: str, rest: str) -> str:
    """Returns what stands behind the slashes of a URL with the values of its query hidden."""
    path, mark, query = rest.partition("?")
    if not query:
        return rest
    if "=" in query:
        return path + mark + VALUE.sub("=...", query)
    # Of an address, a query without names may be a token. Texts go on behind a question mark, too: "in s3://b/k?)".
    if scheme.lower() in KEY_MAY_HAVE_QUERY or not query[0].isalnum():
        return rest
    return f"{path}{mark}..."
