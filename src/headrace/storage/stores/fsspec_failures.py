"""What the filesystems of fsspec raise, in headrace's errors.

Each raises the errors of the library under it. Some of these quote addresses with keys in them, so that their text is
in no error of headrace. Their libraries may be missing, so that classes are known by their names.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from headrace.core.errors import ObjectNotFoundError, StorageError
from headrace.storage.stores.failures import RefusedError


@dataclass(frozen=True)
class KnownErrors:
    """What some classes of errors mean."""

    names: frozenset[str]
    found: str
    expected: str
    fix: str


def _known(names: str, found: str, expected: str, fix: str) -> KnownErrors:
    return KnownErrors(frozenset(names.split()), found, expected, fix)


ABOUT_A_PLACE = (
    _known(
        "GatedRepoError",
        "a repository whose owner must let you in",
        "a token of somebody who may read it",
        "accept its terms on its page, and give your token: HF_TOKEN in the environment, `hf auth login`, or "
        "options={'token': ...}",
    ),
    _known(
        "RepositoryNotFoundError BucketNotFoundError",
        "no such repository, or a private one",
        "a repository that is there, and that you may read",
        "correct the name: hf://datasets/OWNER/NAME/FILE for data. If it is private, give a token: HF_TOKEN in the "
        "environment, `hf auth login`, or options={'token': ...}",
    ),
    _known(
        "RevisionNotFoundError",
        "no such revision of the repository",
        "a branch, a tag or a commit",
        "correct what is after the @",
    ),
    _known(
        "OfflineModeIsEnabled",
        "HF_HUB_OFFLINE is set in the environment: nothing may be asked for",
        "leave to ask the server",
        "unset HF_HUB_OFFLINE; or download the data before, and open the folder on this machine",
    ),
)
"""Some of these come as the cause of a FileNotFoundError: not the object is missing, but all around it."""

OTHERS = (
    _known(
        "AuthenticationException AuthenticationError PasswordRequiredException LogonFailure",
        "the server does not let this user in",
        "a user, and a password or a key that it knows",
        "correct username and password in options=, or give a key: for sftp, options={'key_filename': ...}",
    ),
    _known(
        "BadHostKeyException",
        "the server has another key than the one that this machine knows of it",
        "the server that was asked before",
        "see whether it is the right server; if it is, correct ~/.ssh/known_hosts",
    ),
    _known(
        "ConnectError ConnectTimeout ConnectionError NoValidConnectionsError ClientConnectorError gaierror "
        "ConnectTimeoutError NewConnectionError TimeoutError ReadTimeout PoolTimeout NetworkError ProxyError "
        "RemoteProtocolError ClientConnectionError",
        "the server cannot be reached",
        "a server that answers",
        "check host, port and network, and the proxy in the environment if there is one",
    ),
)

REFUSING_STATUSES = (401, 403)


def error_of(doing: str, place: str, scheme: str, error: BaseException) -> StorageError:
    """Returns the error for what a filesystem of fsspec has raised; the caller raises it, without this cause."""
    known = _meaning(error)
    if known is not None:
        return RefusedError.about(doing, place=place, found=known.found, expected=known.expected, fix=known.fix)

    if isinstance(error, FileNotFoundError) or "EntryNotFoundError" in set(_names(error)):
        return ObjectNotFoundError.about(
            doing, place=place, found="no such object", expected="an object of that key", fix="correct the key"
        )
    if isinstance(error, PermissionError) or _status(error) in REFUSING_STATUSES:
        return RefusedError.about(
            doing,
            place=place,
            found=f"no permission ({_shown(error)})",
            expected="credentials with the right to do this",
            fix="give credentials that may do this, in options= or the environment",
        )

    found = f"fsspec's filesystem for {scheme}:// raised {_shown(error)}"
    fix = "check the credentials in options= or the environment, and that the server can be reached"
    return StorageError.about(doing, place=place, found=found, expected="an answer", fix=fix)


def is_about_more(error: FileNotFoundError) -> bool:
    """Tells whether more is missing than an object: a whole repository, or the right to read it."""
    return any(known.names & set(_names(error)) for known in ABOUT_A_PLACE)


def _meaning(error: BaseException) -> KnownErrors | None:
    names = set(_names(error))
    for known in ABOUT_A_PLACE:
        if known.names & names:
            return known

    # An answer of a server is no failure to reach it, whatever class a library has for it.
    if _status(error) is not None:
        return None
    for known in OTHERS:
        if known.names & names:
            return known
    return None


def _names(error: BaseException) -> Iterator[str]:
    """Yields the names of the classes of an error and of what has caused it."""
    at: BaseException | None = error
    while at is not None:
        for base in type(at).__mro__:
            yield base.__name__
        at = at.__cause__


def _status(error: BaseException) -> int | None:
    """Returns the status of the answer of HTTP that an error is about; None if it is about none."""
    status = getattr(getattr(error, "response", None), "status_code", None) or getattr(error, "status", None)
    if isinstance(status, int):
        return status
    return None


def _shown(error: BaseException) -> str:
    status = _status(error)
    if status is None:
        return type(error).__name__
    return f"{type(error).__name__}, status {status}"
