"""A real server on this machine that has the faults of others."""

from __future__ import annotations

import contextlib
import hashlib
import re
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any


def md5(data: bytes) -> str:
    return f"md5:{hashlib.md5(data).hexdigest()}"


def sha256(data: bytes) -> str:
    return f"sha256:{hashlib.sha256(data).hexdigest()}"


class Mirror:
    """What a server has, how it fails, and what it was asked for."""

    def __init__(self) -> None:
        self.files: dict[str, bytes] = {}
        self.statuses: list[int] = []
        """Statuses of the next answers, instead of files."""
        self.cuts: list[int] = []
        """Lengths in bytes at which the next answers end, with the connection."""
        self.ranges = True
        self.chunked = False
        self.content_range: str | None = None
        """Instead of the true one."""
        self.silent = False
        """Answers nothing until the test is over."""
        self.over = threading.Event()
        self.requests: list[tuple[str, str | None]] = []
        """Path and wanted range, in order."""
        self.url = ""

    def address(self, name: str) -> str:
        return f"{self.url}/{name}"

    def asked(self, name: str) -> list[str | None]:
        return [wanted for path, wanted in self.requests if path == f"/{name}"]


class Handler(BaseHTTPRequestHandler):
    mirror: Mirror

    def do_GET(self) -> None:
        mirror, wanted = self.mirror, self.headers.get("Range")
        mirror.requests.append((self.path, wanted))
        if mirror.silent:
            mirror.over.wait()
            return
        if mirror.statuses:
            self.refuse(mirror.statuses.pop(0))
        elif (data := mirror.files.get(self.path.removeprefix("/"))) is None:
            self.refuse(404)
        elif wanted and mirror.ranges and (match := re.fullmatch(r"bytes=(\d+)-", wanted)):
            self.answer_part(data, int(match[1]))
        else:
            self.answer(data)

    def answer_part(self, data: bytes, start: int) -> None:
        if start >= len(data):
            self.refuse(416)
            return
        self.send_response(206)
        self.send_header("Content-Range", self.mirror.content_range or f"bytes {start}-{len(data) - 1}/{len(data)}")
        self.send_body(data[start:])

    def answer(self, data: bytes) -> None:
        self.send_response(200)
        self.send_body(data)

    def send_body(self, data: bytes) -> None:
        length = len(data)
        if self.mirror.cuts:
            data = data[: self.mirror.cuts.pop(0)]
        if self.mirror.chunked:
            self.send_header("Transfer-Encoding", "chunked")
            end = b"0\r\n\r\n" if len(data) == length else b""
            data = b"%x\r\n%b\r\n%b" % (len(data), data, end)
        else:
            self.send_header("Content-Length", str(length))
        self.end_headers()
        # Who asked may have gone away, after Ctrl-C.
        with contextlib.suppress(ConnectionError):
            self.wfile.write(data)

    def refuse(self, status: int) -> None:
        self.send_response(status)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def log_message(self, format: str, *values: Any) -> None:
        return


@contextlib.contextmanager
def serving() -> Iterator[Mirror]:
    """Serves files from a port of its own, in a thread, until the block ends."""
    mirror = Mirror()
    handler = type("HandlerOfOne", (Handler,), {"mirror": mirror, "protocol_version": "HTTP/1.1"})
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        server.daemon_threads = False  # so that leaving the block waits for every answer
        mirror.url = f"http://127.0.0.1:{server.server_address[1]}"
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        try:
            yield mirror
        finally:
            mirror.over.set()
            server.shutdown()
            thread.join()
