"""Downloads over HTTP that survive what networks do: cut connections, slow or wrong servers, Ctrl-C, a second process.

A file grows as `.NAME.part` beside its target and takes the target's name only when its checksum is right; a download
that ended early goes on where it stopped, at the next try, from the next mirror or in the next run.
"""

from __future__ import annotations

import contextlib
import hashlib
import http.client
import os
import re
import ssl
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from headrace.core.errors import HeadraceError, UsageError, wrong_argument
from headrace.core.files.atomic_file import sync_folder
from headrace.core.files.file_lock import is_named, lock_if_possible
from headrace.version import __version__

CHUNK = 1 << 16
LENGTHS = {"md5": 32, "sha256": 64}
"""Hexadecimal digits of a checksum."""
BUSY_STATUSES = (408, 429)
"""Refusals that pass, besides all from 500."""
RANGE_NOT_THERE = 416
LONGEST_WAIT = 8.0

Report = Callable[[int, int | None], None]
"""Is told the bytes that are there, and all there will be, as far as that is known."""


class DownloadError(HeadraceError, OSError):
    """A file cannot be downloaded: fix the connection, name another mirror, or make room for it."""


@dataclass(frozen=True)
class Patience:
    """How often to try each mirror again, how long to wait for an answer, and how to wait between two tries."""

    retries: int = 5
    timeout: float = 30.0
    wait: Callable[[float], None] = time.sleep


class _Failure(Exception):
    """One try failed. `again`: another one may succeed. `anew`: what came so far is of no use."""

    def __init__(self, reason: str, *, again: bool = False, anew: bool = False) -> None:
        super().__init__(reason)
        self.again = again
        self.anew = anew


def silent(done: int, total: int | None) -> None:
    """Tells nobody."""


def download(
    url: str, target: Path, *, checksum: str, report: Report = silent, patience: Patience | None = None
) -> Path:
    """Downloads a file, unless it is there already. See `download_any`."""
    return download_any([url], target, checksum=checksum, report=report, patience=patience)


def download_any(
    urls: Sequence[str], target: Path, *, checksum: str, report: Report = silent, patience: Patience | None = None
) -> Path:
    """Downloads a file from the first of several mirrors that has it, unless it is there already. Returns `target`.

    checksum: "sha256:" or "md5:" and the hexadecimal digits. A target with another checksum is replaced.

    report: called in this thread. It may raise: what came so far is kept for the next call, as after any error.

    Raises `DownloadError` if no mirror has the file or it cannot be written, `UsageError` if an argument is wrong.
    """
    _check_arguments(urls, checksum)
    part = target.with_name(f".{target.name}.part")
    try:
        if target.is_file() and _checksum(target, checksum) == checksum.lower():
            size = target.stat().st_size
            report(size, size)
            return target

        target.parent.mkdir(parents=True, exist_ok=True)
        with _opened(part, target) as file:
            _complete(file, part, urls, checksum, report, patience or Patience())
            # The bytes first, then the name: after a power cut a file of the target's name is whole.
            os.fsync(file.fileno())
            part.replace(target)
        sync_folder(target.parent)
    except OSError as error:
        if isinstance(error, HeadraceError):
            raise
        fix = "make room, or choose a folder that can be written to; what came so far is kept"
        raise DownloadError.about(
            "cannot store a download", place=error.filename or target, found=error.strerror or error, fix=fix
        ) from error

    return target


def _check_arguments(urls: Sequence[str], checksum: str) -> None:
    kind, _, digits = checksum.partition(":")
    if LENGTHS.get(kind) != len(digits) or re.fullmatch("[0-9a-fA-F]+", digits) is None:
        raise wrong_argument("checksum", checksum, "sha256: and 64, or md5: and 32 hexadecimal digits")

    wrong = []
    for url in urls:
        if not url.startswith(("http://", "https://")):
            wrong.append(url)

    if wrong or not urls:
        found = ", ".join(map(repr, wrong)) or "nothing"
        expected = "an address that begins with https:// or http://"
        raise UsageError.about("cannot download from here", found=found, expected=expected)


def _checksum(path: Path, like: str) -> str:
    """Returns the checksum of a file, of the kind of another one."""
    kind = like.partition(":")[0]
    digest = hashlib.new(kind, usedforsecurity=False)
    with path.open("rb") as file:
        while chunk := file.read(CHUNK):
            digest.update(chunk)

    return f"{kind}:{digest.hexdigest()}"


@contextlib.contextmanager
def _opened(part: Path, target: Path) -> Iterator[IO[bytes]]:
    """Opens the file that grows, locked against other processes. An empty one is removed at the end."""
    if target.is_dir():
        expected = "a file, or nothing"
        fix = "remove it, or choose another folder"
        raise DownloadError.about("cannot store a download", place=target, found="a folder", expected=expected, fix=fix)

    with part.open("a+b") as file:
        if not _is_ours(file, part):
            fix = "wait until it has ended, then run this again"
            raise DownloadError.about(
                "cannot store a download", place=part, found="another process writes it now", fix=fix
            )

        try:
            yield file
        finally:
            file.flush()
            if os.fstat(file.fileno()).st_size == 0:
                part.unlink(missing_ok=True)


def _is_ours(file: IO[bytes], path: Path) -> bool:
    """Locks the file; without locks two processes would disturb each other, which the checksum finds."""
    return lock_if_possible(file) and is_named(file, path)


def _complete(
    file: IO[bytes], part: Path, urls: Sequence[str], checksum: str, report: Report, patience: Patience
) -> None:
    """Fills the file from the first mirror that can, and checks it."""
    # An earlier run ended after the last byte and before the new name.
    if _checksum(part, checksum) == checksum.lower():
        return

    failures = []
    for url in urls:
        try:
            _from_mirror(url, file, checksum, report, patience)
            return
        except _Failure as failure:
            failures.append(f"{url}: {failure}")

    raise DownloadError.about(
        "cannot download a file",
        place=part.with_name(part.name.removeprefix(".").removesuffix(".part")),
        found=f"\n{'':12}".join(failures),
        expected=f"a file with the checksum {checksum}",
        fix="check the connection and run this again, it resumes where it stopped; or name another mirror",
    )


def _from_mirror(url: str, file: IO[bytes], checksum: str, report: Report, patience: Patience) -> None:
    tries = 0
    while True:
        try:
            _try(url, file, checksum, report, patience.timeout)
            return
        except _Failure as failure:
            tries += 1
            if failure.anew:
                file.truncate(0)
            if not failure.again:
                raise
            if tries > patience.retries:
                if tries > 1:
                    tried = f"; tried {tries} times"
                else:
                    tried = ""
                raise _Failure(f"{failure}{tried}") from failure

        patience.wait(min(0.5 * 2 ** (tries - 1), LONGEST_WAIT))


def _try(url: str, file: IO[bytes], checksum: str, report: Report, timeout: float) -> None:
    """Asks once for what is missing."""
    have = file.seek(0, os.SEEK_END)
    with _answer(url, have, timeout) as response:
        start, total = _span(response, have)
        # The server does not know ranges, and sends all of it again.
        if start < have:
            file.truncate(0)
        done = start
        report(done, total)
        while chunk := _read(response):
            file.write(chunk)
            done += len(chunk)
            report(done, total)

    file.flush()
    if total is not None and done != total:
        raise _Failure(f"the answer ended at {done:,} of {total:,} bytes", again=True)

    found = _checksum(Path(file.name), checksum)
    if found != checksum.lower():
        # What an earlier try left may be the wrong part of it; a whole answer that is wrong will stay so.
        raise _Failure(f"{done:,} bytes with the checksum {found}", again=start > 0 or total is None, anew=True)


def _answer(url: str, have: int, timeout: float) -> Any:
    wanted: dict[str, str]
    if have:
        wanted = {"Range": f"bytes={have}-"}
    else:
        wanted = {}

    headers = {"User-Agent": f"headrace/{__version__}"} | wanted
    try:
        return urllib.request.urlopen(urllib.request.Request(url, headers=headers), timeout=timeout)
    except urllib.error.HTTPError as error:
        error.close()
        not_there = have > 0 and error.code == RANGE_NOT_THERE
        again = not_there or error.code >= 500 or error.code in BUSY_STATUSES
        raise _Failure(f"status {error.code} {error.reason}", again=again, anew=not_there) from error
    except (OSError, http.client.HTTPException, ValueError) as error:
        raise _broken(error) from error


def _broken(error: Exception) -> _Failure:
    """What to do about a connection that cannot be made, or that breaks."""
    if isinstance(error, urllib.error.URLError):
        reason = error.reason
    else:
        reason = error

    final = (ssl.SSLCertVerificationError, http.client.InvalidURL, UnicodeError)
    return _Failure(f"{type(reason).__name__}: {reason}", again=not isinstance(reason, final))


def _read(response: Any) -> bytes:
    try:
        chunk: bytes = response.read(CHUNK)
    except (OSError, http.client.HTTPException) as error:
        raise _broken(error) from error
    return chunk


def _span(response: Any, have: int) -> tuple[int, int | None]:
    """Returns the position of the answer's first byte, and the length of the whole file, if that is said."""
    if response.status != http.HTTPStatus.PARTIAL_CONTENT:
        length = response.headers.get("Content-Length", "")
        if length.isdecimal():
            return 0, int(length)
        return 0, None

    given = response.headers.get("Content-Range", "")
    match = re.fullmatch(r"bytes (\d+)-\d+/(\d+|\*)", given.strip())
    if match is None or int(match[1]) != have:
        raise _Failure(f"asked for the bytes from {have:,}, got {given!r}", again=True, anew=True)
    if match[2] == "*":
        return have, None
    return have, int(match[2])
