"""PostgreSQL, from the packages of the system: a server with a database `train`, and a user who needs a password."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.servers.processes import free_ports, start
from tests.servers.unprivileged import as_user, end_by, folder_of_user

PASSWORD = "swordfish-of-the-tests"

CONFIG = """
listen_addresses = '127.0.0.1'
unix_socket_directories = ''
fsync = off
full_page_writes = off
max_connections = 60
max_prepared_transactions = 10
"""


@dataclass
class Postgres:
    """A running server."""

    programs: Path
    folder: Path
    port: int
    process: subprocess.Popen[bytes] = field(repr=False)

    @property
    def url(self) -> str:
        """Of the database `train`, with user and password."""
        return f"postgresql://reader:{PASSWORD}@127.0.0.1:{self.port}/train"

    @property
    def alchemy_url(self) -> str:
        """The same for SQLAlchemy, over psycopg."""
        return self.url.replace("postgresql://", "postgresql+psycopg://")

    def connect(self) -> Any:
        """Returns a connection of psycopg that commits by itself."""
        import psycopg

        return psycopg.connect(self.url, autocommit=True)

    def run(self, *statements: str) -> None:
        """Runs statements, each committed."""
        with self.connect() as connection:
            for statement in statements:
                connection.execute(statement)

    def kill(self) -> None:
        """Ends the server at once, and all connections with it, as a crash does."""
        end_by(self.process, signal.SIGQUIT)

    def start(self) -> None:
        """Starts it again, on the same port, with the same data."""
        self.process = _started(self.programs, self.folder, self.port)


def find_postgres() -> Path | None:
    """Returns the folder of the newest installed server's programs, or None."""
    found = shutil.which("postgres")
    if found is not None:
        return Path(found).resolve().parent

    installed = sorted(Path("/usr/lib/postgresql").glob("*/bin/postgres"))
    if not installed:
        return None
    return installed[-1].parent


@contextlib.contextmanager
def running(programs: Path) -> Iterator[Postgres]:
    """Serves an empty database until the block ends."""
    with folder_of_user("postgres") as folder:
        port = free_ports(1)[0]
        word = folder / "password"
        word.write_text(PASSWORD)
        word.chmod(0o644)
        made = [str(programs / "initdb"), "-D", str(folder / "data"), "-U", "reader", "-A", "scram-sha-256"]
        made += [f"--pwfile={word}", "-E", "UTF8", "--no-locale", "--no-sync"]
        subprocess.run(as_user(made), check=True, stdout=subprocess.DEVNULL, cwd=folder)
        config = folder / "data" / "postgresql.conf"
        config.write_text(config.read_text() + CONFIG)

        server = Postgres(programs, folder, port, _started(programs, folder, port))
        try:
            _make_database(server)
            yield server
        finally:
            end_by(server.process, signal.SIGINT)


def _started(programs: Path, folder: Path, port: int) -> subprocess.Popen[bytes]:
    command = as_user([str(programs / "postgres"), "-D", str(folder / "data"), "-p", str(port)])
    ready = [str(programs / "pg_isready"), "-q", "-h", "127.0.0.1", "-p", str(port)]

    def answers() -> bool:
        return subprocess.run(ready, check=False, env={**os.environ, "PGCONNECT_TIMEOUT": "2"}).returncode == 0

    return start(command, folder / "log", answers)


def _make_database(server: Postgres) -> None:
    import psycopg

    with psycopg.connect(server.url.replace("/train", "/postgres"), autocommit=True) as connection:
        connection.execute("create database train")
