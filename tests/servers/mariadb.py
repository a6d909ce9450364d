"""MariaDB, from the packages of the system: a server with a database `train`, and a user who needs a password."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import socket
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.servers.processes import free_ports, start
from tests.servers.unprivileged import as_user, end_by, folder_of_user

PASSWORD = "swordfish-of-the-tests"


@dataclass
class MariaDB:
    """A running server."""

    port: int
    folder: Path
    command: list[str] = field(repr=False)
    process: subprocess.Popen[bytes] | None = field(default=None, repr=False)

    @property
    def url(self) -> str:
        """Of the database `train`, with user and password."""
        return f"mariadb://reader:{PASSWORD}@127.0.0.1:{self.port}/train"

    def connect(self) -> Any:
        """Returns a connection of PyMySQL that commits by itself."""
        import pymysql

        return pymysql.connect(
            host="127.0.0.1", port=self.port, user="reader", password=PASSWORD, database="train", autocommit=True
        )

    def run(self, *statements: str) -> None:
        """Runs statements, each committed."""
        with contextlib.closing(self.connect()) as connection, connection.cursor() as cursor:
            for statement in statements:
                cursor.execute(statement)

    def start(self) -> None:
        """Starts it, with what it had."""
        self.process = start(as_user(self.command), self.folder / "log", lambda: _answers(self.port))

    def kill(self) -> None:
        """Ends it at once, as a crash does."""
        if self.process is not None:
            end_by(self.process, signal.SIGKILL)


def find_mariadb() -> str | None:
    """Returns the path of the server, or None where it is not installed."""
    path = os.pathsep.join([os.environ.get("PATH", ""), "/usr/sbin"])
    if shutil.which("mariadb-install-db", path=path) is None:
        return None
    return shutil.which("mariadbd", path=path)


@contextlib.contextmanager
def running(server: str) -> Iterator[MariaDB]:
    """Serves an empty database until the block ends."""
    with folder_of_user("mariadb") as folder:
        port = free_ports(1)[0]
        data = folder / "data"
        # A folder for temporary tables, too, so that two that run at once do not meet there.
        places = [f"--datadir={data}", f"--tmpdir={folder}"]
        made = ["mariadb-install-db", "--no-defaults", *places, "--auth-root-authentication-method=normal"]
        done = subprocess.run(as_user(made), capture_output=True, text=True, cwd=folder)
        if done.returncode:
            raise RuntimeError(f"mariadb-install-db: {done.stdout[-2000:]}{done.stderr[-2000:]}")
        first = folder / "first.sql"
        first.write_text(
            "create database if not exists train character set utf8mb4;\n"
            f"create user if not exists reader@'127.0.0.1' identified by '{PASSWORD}';\n"
            "grant all on train.* to reader@'127.0.0.1';\n"
        )
        first.chmod(0o644)
        command = [server, "--no-defaults", *places, "--bind-address=127.0.0.1", f"--port={port}"]
        command += [f"--socket={folder / 'socket'}", f"--pid-file={folder / 'pid'}", f"--init-file={first}"]
        command += ["--innodb-flush-log-at-trx-commit=2", "--innodb-buffer-pool-size=32M", "--skip-log-bin"]
        running = MariaDB(port, folder, command)
        running.start()
        try:
            yield running
        finally:
            if running.process is not None:
                end_by(running.process, signal.SIGTERM)


def _answers(port: int) -> bool:
    """Tells whether the server lets the user in, which it does once it has made it."""
    import pymysql

    with contextlib.suppress(OSError, pymysql.MySQLError), socket.create_connection(("127.0.0.1", port), 2):
        pymysql.connect(host="127.0.0.1", port=port, user="reader", password=PASSWORD, database="train").close()
        return True
    return False
