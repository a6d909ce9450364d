"""Machines in networks of their own: network namespaces with a pair of virtual links to this one.

`tc netem` gives a link its delay and its rate. Only this machine is in these networks; they go with the test.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
from collections.abc import Iterator

import pytest

from tests.servers.hosts import Machine

FIRST = 20
"""The third number of the address of the first network: 198.18.0.0/15 is set aside for tests of networks."""


class Network:
    """One machine, reached over one link."""

    def __init__(self, number: int) -> None:
        self.namespace = f"hr-{os.getpid()}-{number}"
        self.link = f"hr{os.getpid() % 100_000}-{number}"
        self.here = f"198.18.{FIRST + number}.1"
        self.there = f"198.18.{FIRST + number}.2"

    @property
    def machine(self) -> Machine:
        """The machine at the other end."""
        return Machine(self.namespace, self.there, ("ip", "netns", "exec", self.namespace))

    def make(self) -> None:
        _ip("netns", "add", self.namespace)
        _ip("link", "add", self.link, "type", "veth", "peer", "name", "eth0", "netns", self.namespace)
        _ip("addr", "add", f"{self.here}/24", "dev", self.link)
        _ip("link", "set", self.link, "up")
        _ip("-n", self.namespace, "addr", "add", f"{self.there}/24", "dev", "eth0")
        _ip("-n", self.namespace, "link", "set", "eth0", "up")
        _ip("-n", self.namespace, "link", "set", "lo", "up")

    def remove(self) -> None:
        subprocess.run(["ip", "link", "del", self.link], check=False, capture_output=True)
        subprocess.run(["ip", "netns", "del", self.namespace], check=False, capture_output=True)

    def cut(self) -> None:
        """Takes the link away."""
        _ip("link", "set", self.link, "down")

    def mend(self) -> None:
        """Brings the link back."""
        _ip("link", "set", self.link, "up")

    def slow_down(self, delay_ms: float, megabits: int) -> bool:
        """Gives each direction a delay and a rate. False: the kernel cannot."""
        words = ["netem", "delay", f"{delay_ms}ms", "rate", f"{megabits}mbit", "limit", "100000"]
        try:
            _run("tc", "qdisc", "replace", "dev", self.link, "root", *words)
            _run("ip", "netns", "exec", self.namespace, "tc", "qdisc", "replace", "dev", "eth0", "root", *words)
        except subprocess.CalledProcessError:
            return False
        return True


@contextlib.contextmanager
def networks(count: int) -> Iterator[list[Network]]:
    """Makes networks. Skips the test where this user may not."""
    if shutil.which("ip") is None or shutil.which("tc") is None:
        pytest.skip("network namespaces need the programs ip and tc (Debian: iproute2)")

    made = [Network(number) for number in range(count)]
    try:
        try:
            for network in made:
                network.make()
        except subprocess.CalledProcessError as error:
            pytest.skip(f"this user may not make network namespaces: {error.stderr}")
        yield made
    finally:
        for network in made:
            network.remove()


def _ip(*words: str) -> None:
    _run("ip", *words)


def _run(*words: str) -> None:
    subprocess.run(words, check=True, capture_output=True, text=True)
