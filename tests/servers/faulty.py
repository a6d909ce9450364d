"""An HTTP server in front of a folder that fails as a test tells it to, and counts what it is asked for.

It serves `/bucket/key` with ranges, ETags and `If-Match`, and lists a bucket as S3 does, without signatures. Objects
can be written in one request; uploads in parts only fail.
"""

from __future__ import annotations

import contextlib
import hashlib
import socket
import ssl
import struct
import sys
import threading
import time
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit
from xml.sax.saxutils import escape

PIECE = 1 << 16


@dataclass(frozen=True)
class Fault:
    """What happens to one request."""

    kind: str
    """What the server does:

    - "status": refuses, as the next fields say
    - "reset": ends the connection without an answer
    - "cut": sends `after` bytes of the body, and ends the connection
    - "stall", "stall in body": sends nothing, or `after` bytes, and waits until the test is over
    - "slow": sends the body in four pieces with pauses
    - "short": sends a body that lacks its last byte, in an answer that is right in itself
    - "shifted": sends the range that begins one byte later
    - "whole": passes over Range
    - "unconditional": passes over If-Match
    - "changed": has another ETag
    """

    status: int = 503
    code: str = "SlowDown"
    headers: tuple[tuple[str, str], ...] = ()
    after: int = 1000
    """Bytes of the body that are sent before it is cut or stalls."""

    body: str = ""
    """Instead of the usual one of a status."""


@dataclass(frozen=True)
class Asked:
    """A request that came."""

    method: str
    path: str
    """Unquoted, without the query."""

    query: str
    range: str | None
    headers: dict[str, str]


class FaultyServer:
    """The server, and what it was asked for."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.faults: deque[Fault | None] = deque()
        """For the next requests, in order; None lets one pass."""

        self.always: Fault | None = None
        """For every request behind those of `faults`."""

        self.only: str = "/"
        """Requests for other paths have no faults. A prefix."""

        self.delay = 0.0
        """Seconds before each answer."""

        self.page = 1000
        """Objects on a page of a listing."""

        self.refuses_lists = False
        """Whether objects may be read, and not listed."""

        self.secret = ""
        """With which addresses are signed; "": all may read without a signature."""

        self.moved: dict[str, tuple[int, str]] = {}
        """For prefixes of paths, the status with which they redirect, and the beginning of the other address."""

        self.requests: list[Asked] = []
        self.bytes_sent = 0
        """Of bodies."""

        self.over = threading.Event()
        """Set at the end of the test: lets requests go that stall."""

        self.lock = threading.Lock()
        self.port = 0

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @property
    def s3_options(self) -> dict[str, object]:
        """Options with which `s3://bucket` is asked for here."""
        return {"endpoint": self.url, "skip_signature": True, "region": "us-east-1"}

    def put(self, bucket: str, key: str, data: bytes) -> None:
        path = self.folder / bucket / key
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)

    def signed(self, path: str, expires: float | None = None) -> str:
        """Returns the address of an object with a signature, as stores presign it."""
        when = int(time.time() + 3600 if expires is None else expires)
        return f"{self.url}{path}?Expires={when}&Signature={self.signature(path, str(when))}"

    def signature(self, path: str, expires: str) -> str:
        return hashlib.sha256(f"{self.secret} {path} {expires}".encode()).hexdigest()

    def refusal(self, path: str, query: dict[str, list[str]]) -> str | None:
        """Returns why a request is refused; None if it is not."""
        if not self.secret:
            return None
        expires = query.get("Expires", ["0"])[0]
        if query.get("Signature") != [self.signature(path, expires)]:
            return "SignatureDoesNotMatch"
        if int(expires) < time.time():
            return "AccessDenied"
        return None

    def asked(self, method: str = "GET") -> list[Asked]:
        return [request for request in self.requests if request.method == method]

    def next_fault(self, path: str) -> Fault | None:
        with self.lock:
            if not path.startswith(self.only):
                return None
            return self.faults.popleft() if self.faults else self.always

    def count(self, size: int) -> None:
        with self.lock:
            self.bytes_sent += size


def etag_of(data: bytes) -> str:
    return f'"{hashlib.md5(data).hexdigest()}"'


class Handler(BaseHTTPRequestHandler):
    """Answers one connection. Subclassed with `faulty` set."""

    protocol_version = "HTTP/1.1"
    faulty: FaultyServer

    def do_HEAD(self) -> None:
        self.answer(with_body=False)

    def do_GET(self) -> None:
        self.answer(with_body=True)

    def do_PUT(self) -> None:
        data = self.rfile.read(int(self.headers["Content-Length"]))
        path = unquote(urlsplit(self.path).path)
        self.faulty.requests.append(Asked(self.command, path, "", None, dict(self.headers)))
        fault = self.faulty.next_fault(path)
        if fault is not None and fault.kind == "reset":
            return self.reset()
        if fault is not None:
            return self.refuse(fault.status, fault.code, True, fault.headers, fault.body)

        bucket, _, key = path.lstrip("/").partition("/")
        self.faulty.put(bucket, key, data)
        self.send_response(200)
        self.send_header("ETag", etag_of(data))
        self.send_header("Content-Length", "0")
        self.end_headers()
        return None

    def do_POST(self) -> None:
        """The beginning of an upload in parts."""
        self.rfile.read(int(self.headers["Content-Length"]))
        path = unquote(urlsplit(self.path).path)
        self.faulty.requests.append(Asked(self.command, path, "", None, dict(self.headers)))
        fault = self.faulty.next_fault(path) or Fault("status", status=501, code="NotImplemented")
        self.refuse(fault.status, fault.code, True, fault.headers, fault.body)

    def answer(self, *, with_body: bool) -> None:
        parts = urlsplit(self.path)
        path = unquote(parts.path)
        asked = Asked(self.command, path, parts.query, self.headers.get("Range"), dict(self.headers))
        self.faulty.requests.append(asked)
        for prefix, (status, address) in self.faulty.moved.items():
            if path.startswith(prefix):
                # Unquoted, as many servers write it: with braces in it, clients do not follow.
                there = address + path.removeprefix(prefix)
                return self.refuse(status, "Moved", with_body, (("Location", there),))

        refusal = self.faulty.refusal(path, parse_qs(parts.query))
        if refusal is not None:
            return self.refuse(403, refusal, with_body)
        return self.answer_with_fault(path, parts.query, with_body=with_body)

    def answer_with_fault(self, path: str, query: str, *, with_body: bool) -> None:
        fault = self.faulty.next_fault(path)
        if self.faulty.delay:
            self.faulty.over.wait(self.faulty.delay)
        if fault is not None and fault.kind == "status":
            self.refuse(fault.status, fault.code, with_body, fault.headers, fault.body)
        elif fault is not None and fault.kind == "reset":
            self.reset()
        elif fault is not None and fault.kind == "stall":
            self.stall()
        elif "list-type=2" in query and self.faulty.refuses_lists:
            self.refuse(403, "AccessDenied", with_body)
        elif "list-type=2" in query:
            self.send_listing(path.strip("/"), parse_qs(query), fault)
        else:
            self.send_object(path, fault, with_body)

    def send_object(self, path: str, fault: Fault | None, with_body: bool) -> None:
        file = self.faulty.folder / path.lstrip("/")
        if not file.is_file():
            return self.refuse(404, "NoSuchKey", with_body)

        data = file.read_bytes()
        etag = etag_of(data)
        if fault is not None and fault.kind == "changed":
            etag = '"another"'
        conditional = fault is None or fault.kind != "unconditional"
        if conditional and self.headers.get("If-Match", etag) != etag:
            return self.refuse(412, "PreconditionFailed", with_body)

        wanted = self.headers.get("Range")
        start, stop = 0, len(data)
        if wanted is not None and (fault is None or fault.kind != "whole"):
            first, _, last = wanted.removeprefix("bytes=").partition("-")
            start, stop = int(first), min(int(last) + 1, len(data))
            if start >= len(data):
                return self.refuse(416, "InvalidRange", with_body)
            if fault is not None and fault.kind == "shifted":
                start, stop = start + 1, stop + 1
            self.send_response(206)
            self.send_header("Content-Range", f"bytes {start}-{stop - 1}/{len(data)}")
        else:
            self.send_response(200)

        self.send_header("ETag", etag)
        self.send_header("Last-Modified", self.date_time_string(file.stat().st_mtime))
        return self.send_body(data[start:stop], fault, with_body)

    def send_listing(self, bucket: str, query: dict[str, list[str]], fault: Fault | None) -> None:
        root = self.faulty.folder / bucket
        if not root.is_dir():
            return self.refuse(404, "NoSuchBucket", True)

        prefix = query.get("prefix", [""])[0]
        after = query.get("continuation-token", query.get("start-after", [""]))[0]
        keys = sorted(str(path.relative_to(root)) for path in root.rglob("*") if path.is_file())
        keys = [key for key in keys if key.startswith(prefix) and key > after]
        page = keys[: self.faulty.page]
        rows = []
        for key in page:
            data = (root / key).read_bytes()
            date = "2026-01-01T00:00:00.000Z"
            rows.append(
                f"<Contents><Key>{escape(key)}</Key><LastModified>{date}</LastModified>"
                f"<ETag>{escape(etag_of(data))}</ETag><Size>{len(data)}</Size></Contents>"
            )

        more = len(keys) > len(page)
        token = f"<NextContinuationToken>{escape(page[-1])}</NextContinuationToken>" if more else ""
        text = (
            f"<ListBucketResult><Name>{bucket}</Name><IsTruncated>{str(more).lower()}</IsTruncated>"
            f"{token}{''.join(rows)}</ListBucketResult>"
        )
        self.send_response(200)
        self.send_header("Content-Type", "application/xml")
        return self.send_body(text.encode(), fault, True)

    def send_body(self, body: bytes, fault: Fault | None, with_body: bool) -> None:
        kind = None if fault is None else fault.kind
        length = len(body)
        if kind == "short":
            # In itself a whole answer, of too few bytes.
            body = body[:-1]
            length = len(body)

        self.send_header("Content-Length", str(length))
        self.end_headers()
        if not with_body:
            return

        if fault is not None and kind in ("cut", "stall in body"):
            self.write(body[: fault.after])
            self.wfile.flush()
            if kind == "stall in body":
                self.faulty.over.wait(60)
            self.close_connection = True
            return

        if fault is not None and kind == "slow":
            # In four pieces, with pauses that together are longer than the patience of most clients here.
            quarter = len(body) // 4 + 1
            for first in range(0, len(body), quarter):
                self.faulty.over.wait(0.4)
                self.write(body[first : first + quarter])
            return

        self.write(body)

    def write(self, body: bytes) -> None:
        with contextlib.suppress(OSError):
            for first in range(0, len(body), PIECE):
                # Counted first: the client may look as soon as it has the bytes.
                self.faulty.count(len(body[first : first + PIECE]))
                self.wfile.write(body[first : first + PIECE])

    def refuse(
        self,
        status: int,
        code: str,
        with_body: bool,
        headers: tuple[tuple[str, str], ...] = (),
        body: str = "",
    ) -> None:
        text = body or f"<?xml version='1.0'?><Error><Code>{code}</Code><Message>no</Message></Error>"
        self.send_response(status)
        for name, value in headers:
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(text.encode())))
        self.end_headers()
        if with_body:
            self.write(text.encode())

    def reset(self) -> None:
        """Ends the connection with RST, as a machine does that has crashed or a proxy that has enough."""
        self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.close_connection = True
        self.connection.close()

    def stall(self) -> None:
        self.faulty.over.wait(60)
        self.close_connection = True

    def finish(self) -> None:
        # A client that has gone, or a connection that was reset above.
        with contextlib.suppress(OSError, ValueError):
            super().finish()

    def log_message(self, format: str, *args: Any) -> None:
        """Says nothing."""


class Server(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 128

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Clients go away when a body stalls: nothing to say."""


@contextlib.contextmanager
def secured(faulty: FaultyServer, certificate: Path, key: Path) -> Iterator[str]:
    """Serves the same by TLS, at the URL that is yielded, until the block ends."""
    server = Server(("127.0.0.1", 0), type("FaultyHandler", (Handler,), {"faulty": faulty}))
    server.block_on_close = False
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate, key)
    server.socket = context.wrap_socket(server.socket, server_side=True, do_handshake_on_connect=False)
    with serving(server):
        yield f"https://127.0.0.1:{server.server_address[1]}"


@contextlib.contextmanager
def serving(server: Server) -> Iterator[None]:
    """Answers requests in a thread until the block ends."""
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
    thread.start()
    try:
        yield
    finally:
        server.shutdown()
        server.server_close()
        thread.join(10)


def serve_until_killed(folder: Path, port: int) -> None:
    """Serves a folder, as a program of its own: `python -m tests.servers.faulty FOLDER PORT`."""
    faulty = FaultyServer(folder)
    Server(("127.0.0.1", port), type("FaultyHandler", (Handler,), {"faulty": faulty})).serve_forever()


@contextlib.contextmanager
def running(folder: Path) -> Iterator[FaultyServer]:
    """Serves a folder until the block ends."""
    faulty = FaultyServer(folder)
    server = Server(("127.0.0.1", 0), type("FaultyHandler", (Handler,), {"faulty": faulty}))
    server.block_on_close = False
    faulty.port = server.server_address[1]
    with serving(server):
        try:
            yield faulty
        finally:
            faulty.over.set()


if __name__ == "__main__":
    serve_until_killed(Path(sys.argv[1]), int(sys.argv[2]))
