"""URLs of stored objects: what they mean, without what is secret in them.

    s3://bucket/key            gs://bucket/key            az://container/key
    https://host:port/key      file:///path               SCHEME://container/key for what fsspec knows

Keys of buckets are taken literally, so that `?`, `#` and `%` belong to them. In `http`, `https` and `file` URLs these
have their usual meaning: the key is unquoted. The query of an http URL is left out, as it often holds a signature;
`url_options` returns it.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import quote, unquote, urlsplit

from headrace.core.errors import MissingExtraError, UsageError
from headrace.core.text.secrets import hide_secrets
from headrace.core.text.urls import URL, is_url, shown_url

__all__ = ["Location", "bound_path", "is_url", "local_path", "parse", "url_options"]

SAME_SCHEMES = {"s3a": "s3", "s3n": "s3", "gcs": "gs", "azure": "az", "abfs": "az", "abfss": "az"}
"""Other names of a scheme, with the one that a `Location` has."""

BUCKET_SCHEMES = ("s3", "gs", "az")
HTTP_SCHEMES = ("http", "https")
CLOUD_SCHEMES = (*BUCKET_SCHEMES, *HTTP_SCHEMES)
"""What obstore reads; everything else is left to fsspec."""

LOCAL_SCHEMES = ("file", "local")

FSSPEC_ONLY_CHAINED = ("simplecache", "filecache", "blockcache", "cached", "zip", "tar", "reference", "dir")
"""fsspec's filesystems over another file, which need a URL in a URL."""


PACKAGES = {"smbclient": "smbprotocol"}
"""Packages whose modules have another name."""


@dataclass(frozen=True)
class Location:
    """Where an object is, or a folder of objects, or a whole bucket. Holds no secret."""

    scheme: str
    """In lower case; the usual one of several names, such as "s3" for "s3a"."""

    container: str
    """Bucket or container; `host` or `host:port` for http and https; "" for file."""

    key: str
    """Path in the container, without a leading slash; "" for the whole container. Not quoted."""

    @property
    def url(self) -> str:
        """The URL, which `parse` reads again. User names, passwords and query parameters are not in it."""
        key = self.key
        if self.scheme in (*HTTP_SCHEMES, "file"):
            # Braces, too: `part-{000..127}.tar` is a range of objects, which is expanded later.
            key = quote(key, safe="/!$&'()*+,;=:@~{}")

        return f"{self.scheme}://{self.container}/{key}"

    def __str__(self) -> str:
        return self.url

    def __repr__(self) -> str:
        """Shows the URL. The key of a bucket may have a question mark, and a signature behind it by mistake."""
        return f"Location({hide_secrets(self.url)!r})"


def parse(url: str) -> Location:
    """Returns the location that a URL means.

    Raises `UsageError` for what is no URL, an empty bucket or host, and an unknown scheme; `MissingExtraError` for a
    scheme whose package is not installed.
    """
    scheme, rest = _scheme_and_rest(url)
    if scheme in LOCAL_SCHEMES:
        return Location("file", "", _path_of_file_url(rest, shown_url(url)).removeprefix("/"))

    if scheme in HTTP_SCHEMES:
        return _parse_http(url, scheme)

    container, _, key = rest.partition("/")
    if scheme not in BUCKET_SCHEMES:
        _check_fsspec_knows(scheme, url)
        return Location(scheme, container.rpartition("@")[2], key)

    # az://container@account names no user; containers have no colon in their names, and users with a password do.
    user, _, host = container.rpartition("@")
    if scheme != "az" or ":" in user:
        container = host
    if any(letter.isspace() or not letter.isprintable() for letter in container):
        raise _wrong_url(url, "a space or line break in the name of the bucket", f"{scheme}://BUCKET/KEY", "remove it")

    if not container.partition("@")[0]:
        fix = f"write the name of the bucket after the slashes: {scheme}://BUCKET/{key.lstrip('/')}"
        raise _wrong_url(url, "no bucket", f"{scheme}://BUCKET/KEY", fix)

    return Location(scheme, container, key)


def url_options(url: str) -> dict[str, object]:
    """Returns what a URL holds besides its location, in the words of `open_store`'s options; some of it is secret.

    "query" is the part behind the question mark of an http URL, such as a signature. "username" and "password" are
    those in front of the host.
    """
    scheme, rest = _scheme_and_rest(url)
    if scheme in ("az", *LOCAL_SCHEMES):
        return {}

    options: dict[str, object] = {}
    user, at, _ = rest.partition("/")[0].rpartition("@")
    if scheme in HTTP_SCHEMES:
        _parse_http(url, scheme)  # which refuses a broken one
        parts = urlsplit(url)
        user, at, _ = parts.netloc.rpartition("@")
        if parts.query:
            options["query"] = parts.query

    if at:
        name, _, password = user.partition(":")
        options["username"] = unquote(name)
        if password:
            options["password"] = unquote(password)

    return options


def local_path(url: str | os.PathLike[str]) -> str:
    """Returns the path that a `file://` URL means; any other path as it is.

    Raises `UsageError` for a `file://` URL of another machine.
    """
    given = os.fsdecode(url)
    match = URL.match(given)
    if match is None or match["scheme"].lower() not in LOCAL_SCHEMES or not is_url(given):
        return given

    if match["slashes"] == "/":
        return "/" + unquote(match["rest"])
    return _path_of_file_url(match["rest"], given)


def lies_elsewhere(path: object) -> bool:
    """Tells whether a path is the URL of a store, and not of a file on this machine."""
    return is_url(path) and is_url(local_path(str(path)))


def bound_path(path: str | os.PathLike[str]) -> str:
    """Returns a path of this machine from the root, with `~` expanded: the same place after `os.chdir`.

    A path that can be reached from the working folder alone, as its parents may not be entered, stays as it is. Raises
    `UsageError` for an empty one, and for the home of a user who is not there.
    """
    given = os.fsdecode(path)
    if not given:
        expected = "a path; '.' is the current folder"
        raise UsageError.about("there is no path", place="an empty text", found="nothing", expected=expected)
    try:
        # `..` stays: behind a link it does not lead back.
        bound = str(Path(given).expanduser().absolute())
        if not os.path.lexists(bound) and os.path.lexists(given):
            return given
        return bound
    except RuntimeError as error:
        name = given.partition("/")[0]
        what = "this path has no home"
        fix = "write the path from the root, or ./~... for a name that begins so"
        found = f"{name}, but no such user is known"
        raise UsageError.about(what, place=given, found=found, expected="~ or ~USER", fix=fix) from error


def _scheme_and_rest(url: str) -> tuple[str, str]:
    """Returns the usual name of the scheme, and what stands behind the slashes."""
    match = URL.match(url)
    if match is None:
        fix = "write it like s3://bucket/key, or give a path without a scheme"
        raise _wrong_url(url, repr(url), "SCHEME://CONTAINER/KEY", fix)

    if match["slashes"] == "/":
        fix = f"did you mean {shown_url(url)}? pathlib.Path makes one slash of two: give URLs as text"
        scheme = match["scheme"]
        raise _wrong_url(url, f"{scheme}:/ with one slash, as it was given", f"{scheme}:// with two", fix)

    scheme = match["scheme"].lower()
    return SAME_SCHEMES.get(scheme, scheme), match["rest"]


def _path_of_file_url(rest: str, shown: str) -> str:
    """Returns the path of a file URL from what stands behind its two slashes."""
    host, _, path = rest.partition("/")
    host = host.rpartition("@")[2]
    if host not in ("", "localhost"):
        fix = "write three slashes, as in file:///data/train; files of other machines need a mount"
        raise _wrong_url(shown, f"the host {host!r}", "file:///PATH", fix)

    return "/" + unquote(path)


def _parse_http(url: str, scheme: str) -> Location:
    """Returns the location of an http or https URL."""
    try:
        parts = urlsplit(url)
        host = parts.hostname
        port = parts.port
    except ValueError as error:
        # The text of the error may quote what stands in front of the host.
        reason = type(error).__name__
        raise _wrong_url(url, f"no host and port ({reason})", f"{scheme}://HOST:PORT/PATH", "correct it") from None

    if not host:
        raise _wrong_url(url, "no host", f"{scheme}://HOST/PATH", "write the name of the server after the slashes")

    if "%2f" in parts.path.lower():
        fix = "use the store's own scheme (s3://, gs://), or an address without %2F"
        raise _wrong_url(url, "a quoted slash (%2F) in the path", "slashes between folders only", fix)

    if ":" in host:
        host = f"[{host}]"
    if port is not None:
        host = f"{host}:{port}"

    return Location(scheme, host, unquote(parts.path).removeprefix("/"))


def _check_fsspec_knows(scheme: str, url: str) -> None:
    """Raises an error for a scheme that fsspec does not know, or whose package is missing."""
    # fsspec takes 40 ms to import, and most URLs do not need it.
    import fsspec

    if scheme in FSSPEC_ONLY_CHAINED or "::" in url:
        fix = "give the URL of the file itself; headrace has a cache of its own (cache_dir=)"
        raise _wrong_url(url, "a URL inside of a URL", "SCHEME://CONTAINER/KEY", fix)

    try:
        fsspec.get_filesystem_class(scheme)
    except ImportError as error:
        module = getattr(error.__cause__, "name", None) or scheme
        missing = PACKAGES.get(module, module)
        what = f"URLs that begin with {scheme}:// need a package that is not installed"
        fix = f"pip install {missing}"
        raise MissingExtraError.about(what, place=shown_url(url), found=str(error), fix=fix) from error
    except ValueError:
        expected = (
            "s3, gs, az, http, https or file, or a scheme of fsspec (hf, sftp, hdfs, ftp, ...); or a database; brokers "
            "and sockets are for headrace.follow"
        )
        fix = (
            "correct the scheme; pip install 'headrace[cloud]' brings s3, gs, az, http and https, and a package with "
            "an fsspec filesystem brings its own, such as huggingface_hub for hf"
        )
        raise _wrong_url(url, f"the scheme {scheme!r}, which is not known", expected, fix) from None


def _wrong_url(url: str, found: str, expected: str, fix: str) -> UsageError:
    """Returns the error for a URL that cannot be used."""
    return UsageError.about("cannot use a URL", place=shown_url(url), found=found, expected=expected, fix=fix)
