"""Redis, which keeps what it is told on the disk, so that it can be killed and started again."""

from __future__ import annotations

import contextlib
import shutil
import signal
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from tests.servers.processes import end, free_ports, start


def find_redis() -> tuple[str, str] | None:
    """Returns the paths of server and client, or None where they are not installed."""
    server = shutil.which("redis-server")
    client = shutil.which("redis-cli")
    if server is None or client is None:
        return None
    return server, client


@dataclass
class Redis:
    """A server, and the client that comes with it."""

    port: int
    folder: Path
    server: str
    client: str
    password: str
    process: subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> str:
        """The URL of the server, without a stream."""
        return f"redis://:{self.password}@127.0.0.1:{self.port}"

    def cli(self, *arguments: object, given: str = "") -> str:
        """Runs a command of `redis-cli`, and returns what it prints; or the commands `given`, one a line."""
        command = [self.client, "-p", str(self.port), "-a", self.password, "--no-auth-warning", *map(str, arguments)]
        done = subprocess.run(command, input=given, capture_output=True, text=True, timeout=60, check=True)
        return done.stdout.strip()

    def sent(self) -> int:
        """Returns the bytes that the server has sent to all its clients."""
        lines = dict(line.split(":", 1) for line in self.cli("info", "stats").splitlines() if ":" in line)
        return int(lines["total_net_output_bytes"])

    def answers(self) -> bool:
        """Tells whether it serves."""
        with contextlib.suppress(subprocess.SubprocessError):
            return self.cli("ping") == "PONG"
        return False

    def start(self) -> None:
        """Starts it, with what it had."""
        options = {
            "port": self.port,
            "bind": "127.0.0.1",
            "dir": self.folder,
            "appendonly": "yes",
            "appendfsync": "always",
            "save": "",
            "requirepass": self.password,
        }
        command = [self.server]
        for name, value in options.items():
            command += [f"--{name}", str(value)]
        self.process = start(command, self.folder / "redis.log", self.answers)

    def send_signal(self, number: int) -> None:
        """Sends it a signal; waits for its end, if that kills it."""
        if self.process is not None:
            self.process.send_signal(number)
            if number == signal.SIGKILL:
                self.process.wait(10)

    def kill(self) -> None:
        """Ends it at once, as a crash does."""
        self.send_signal(signal.SIGKILL)

    def stop(self) -> None:
        """Ends it."""
        if self.process is not None:
            end(self.process)


@contextlib.contextmanager
def running(folder: Path, programs: tuple[str, str]) -> Iterator[Redis]:
    """Runs it until the block ends."""
    redis = Redis(free_ports(1)[0], folder, *programs, password="secret-of-redis")
    redis.start()
    try:
        yield redis
    finally:
        redis.stop()
