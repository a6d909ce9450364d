"""RabbitMQ, from Debian's package: a broker of its own, with its own `epmd`, in a folder of its own."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.servers.processes import end, free_ports, listens, start

SCRIPTS = Path("/usr/lib/rabbitmq/bin")
"""Where Debian puts the scripts that take their settings from the environment; those on the path change the user."""


def find_rabbitmq() -> str | None:
    """Returns the path of the server's script, or None where it is not installed."""
    if (SCRIPTS / "rabbitmq-server").exists() and shutil.which("epmd"):
        return str(SCRIPTS / "rabbitmq-server")
    return None


@dataclass
class RabbitMQ:
    """A broker. Tests share one, and use queues of their own."""

    folder: Path
    script: str
    port: int
    epmd_port: int
    node_port: int
    process: subprocess.Popen[bytes] | None = None
    epmd: subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> str:
        """The URL of the server, without a queue."""
        return f"amqp://guest:guest@127.0.0.1:{self.port}"

    @property
    def environment(self) -> dict[str, str]:
        """What its scripts read."""
        return {
            "HOME": str(self.folder),
            "PATH": os.environ["PATH"],
            "LANG": "C.UTF-8",
            "RABBITMQ_NODENAME": f"headrace{self.port}@localhost",
            "RABBITMQ_MNESIA_BASE": str(self.folder / "mnesia"),
            "RABBITMQ_LOG_BASE": str(self.folder / "log"),
            "RABBITMQ_SCHEMA_DIR": str(self.folder / "schema"),
            "RABBITMQ_GENERATED_CONFIG_DIR": str(self.folder / "config"),
            "RABBITMQ_CONFIG_FILE": str(self.folder / "rabbitmq"),
            "RABBITMQ_CONF_ENV_FILE": str(self.folder / "none"),
            "RABBITMQ_ENABLED_PLUGINS_FILE": str(self.folder / "plugins"),
            "RABBITMQ_NODE_IP_ADDRESS": "127.0.0.1",
            "RABBITMQ_NODE_PORT": str(self.port),
            "RABBITMQ_DIST_PORT": str(self.node_port),
            "ERL_EPMD_PORT": str(self.epmd_port),
            "ERL_EPMD_ADDRESS": "127.0.0.1",
            # The script becomes the broker, so that its process id is the broker's.
            "RUNNING_UNDER_SYSTEMD": "true",
        }

    def start(self) -> None:
        """Starts it, with what it had: some seconds."""
        if self.epmd is None:
            # The broker would start one itself, which stays when it ends.
            command = [shutil.which("epmd") or "epmd", "-port", str(self.epmd_port), "-address", "127.0.0.1"]
            self.epmd = start(command, self.folder / "epmd.log", lambda: listens(self.epmd_port))
        command = ["env", *(f"{name}={value}" for name, value in self.environment.items()), self.script]
        self.process = start(command, self.folder / "rabbitmq.log", self.answers)

    def answers(self) -> bool:
        """Tells whether it serves: a client gets a channel."""
        if not listens(self.port):
            return False
        try:
            with self.channel():
                return True
        except Exception:  # noqa: BLE001 - it is being started
            return False

    @contextlib.contextmanager
    def channel(self) -> Iterator[Any]:
        """Opens a channel of pika, which waits for the broker's answer to each message it publishes."""
        import pika

        with pika.BlockingConnection(pika.URLParameters(self.url + "/%2F?connection_attempts=1")) as connection:
            yield connection.channel()

    def send_signal(self, number: int) -> None:
        """Sends it a signal; waits for its end, if that kills it."""
        if self.process is not None:
            self.process.send_signal(number)
            if number == signal.SIGKILL:
                self.process.wait(10)

    def kill(self) -> None:
        """Ends it at once, as a crash does."""
        self.send_signal(signal.SIGKILL)

    def restart(self) -> None:
        """Kills and starts it."""
        self.kill()
        self.start()

    def ctl(self, *arguments: str) -> str:
        """Runs a command of `rabbitmqctl`, the broker's own tool, and returns what it prints: a second or two."""
        command = [str(SCRIPTS / "rabbitmqctl"), "--quiet", *arguments]
        done = subprocess.run(command, env=self.environment, capture_output=True, text=True, timeout=60, check=True)
        return done.stdout

    def save(self) -> None:
        """Has it write what it knows of its queues and streams. It does so seconds later by itself; killed before that,
        it has never heard of a new queue, and never brings the first stream of its life back."""
        self.ctl("eval", "ok = mnesia:sync_log(), [dets:sync(Table) || Table <- dets:all()].")

    def stop(self) -> None:
        """Ends it. What it had is in a temporary folder: it need not say goodbye."""
        for process in (self.process, self.epmd):
            if process is not None:
                end(process, grace=0.1)


@contextlib.contextmanager
def running(folder: Path, script: str) -> Iterator[RabbitMQ]:
    """Runs a broker until the block ends."""
    port, epmd_port, node_port = free_ports(3)
    (folder / "plugins").write_text("[].\n")
    broker = RabbitMQ(folder, script, port, epmd_port, node_port)
    try:
        broker.start()
        yield broker
    finally:
        broker.stop()
