"""nginx, which serves a folder as `/bucket/key`: for speed, and as an http server that others run too."""

from __future__ import annotations

import contextlib
import datetime
import os
import shutil
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import quote
from xml.sax.saxutils import escape

from headrace.demo.bucket_server import status_of
from tests.servers.processes import free_ports, program

CONFIG = """
daemon off;
master_process off;  # one process, which can be stopped, killed and bound to the tests
pid {run}/nginx.pid;
error_log {run}/error.log;
events {{ worker_connections 512; }}
http {{
    access_log {run}/access.log;
    default_type application/octet-stream;
    sendfile on;
    tcp_nopush off;  # with it, ranges take 40 ms
    keepalive_requests 1000000;
    client_body_temp_path {run}/body;
    proxy_temp_path {run}/proxy;
    fastcgi_temp_path {run}/fastcgi;
    uwsgi_temp_path {run}/uwsgi;
    scgi_temp_path {run}/scgi;
    server {{
        listen 127.0.0.1:{port};
        root {root};
        location = /headrace-ready {{ return 204; }}
        location / {{
            if (-d $request_filename) {{ return 404; }}
        }}
        location ~ ^/([a-z]+)/?$ {{
            alias {run}/lists/$1/$arg_prefix.xml;
            default_type application/xml;
        }}
    }}
}}
"""


@dataclass
class Nginx:
    """A running server."""

    url: str
    root: Path
    """What it serves: a folder for each bucket."""

    run: Path
    process: subprocess.Popen[bytes] = field(repr=False)

    @property
    def s3_options(self) -> dict[str, object]:
        """Options with which `s3://bucket` is read from here; `make_list` makes listings."""
        return {"endpoint": self.url, "skip_signature": True, "region": "us-east-1"}

    def put(self, bucket: str, key: str, data: bytes) -> None:
        path = self.root / bucket / key
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)

    def make_list(self, bucket: str, folder: str) -> None:
        """Makes what S3's ListObjectsV2 answers for `s3://bucket/folder/`: the objects that are there now.

        Source of the form: Amazon S3's API reference, ListObjectsV2.
        """
        entries = []
        for path in sorted((self.root / bucket / folder).rglob("*")):
            if not path.is_file():
                continue
            status = path.stat()
            key = path.relative_to(self.root / bucket)
            changed = datetime.datetime.fromtimestamp(status.st_mtime, datetime.UTC)
            # nginx's ETag: when the file changed, and its size, in hexadecimal.
            etag = f"{int(status.st_mtime):x}-{status.st_size:x}"
            entries.append(
                f"<Contents><Key>{escape(str(key))}</Key><LastModified>{changed:%Y-%m-%dT%H:%M:%S.000Z}</LastModified>"
                f"<ETag>&quot;{etag}&quot;</ETag><Size>{status.st_size}</Size></Contents>"
            )

        head = f"<Name>{bucket}</Name><Prefix>{escape(folder)}/</Prefix><KeyCount>{len(entries)}</KeyCount>"
        text = f"<ListBucketResult>{head}<IsTruncated>false</IsTruncated>{''.join(entries)}</ListBucketResult>"
        path = self.run / "lists" / bucket / (quote(f"{folder}/", safe="") + ".xml")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)


def find_nginx() -> str | None:
    """Returns the path of the program, or None where it is not installed."""
    return shutil.which("nginx", path=os.pathsep.join([os.environ.get("PATH", ""), "/usr/sbin"]))


def command_of(folder: Path, nginx: str, port: int, root: Path) -> list[str]:
    """Returns the command that serves `root` on a port, with the files that it needs in `folder`, which are made."""
    run = folder / "run"
    run.mkdir()
    config = folder / "nginx.conf"
    config.write_text(CONFIG.format(run=run, root=root, port=port))
    return [nginx, "-c", str(config)]


def ready(url: str) -> bool:
    """Tells whether it answers."""
    return status_of(f"{url}/headrace-ready") == 204


@contextlib.contextmanager
def running(folder: Path, nginx: str) -> Iterator[Nginx]:
    """Serves `folder/served` until the block ends."""
    root = folder / "served"
    root.mkdir()
    port = free_ports(1)[0]
    url = f"http://127.0.0.1:{port}"
    command = command_of(folder, nginx, port, root)
    with program(command, folder / "nginx.log", lambda: ready(url)) as process:
        yield Nginx(url, root, folder / "run", process)
