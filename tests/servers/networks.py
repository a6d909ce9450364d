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
        return Machine(self.namespace, self.there, inside(self.namespace))

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


TWO_NODES = "10.111.0"
"""The first three numbers of the addresses of two nodes."""


@contextlib.contextmanager
def two_nodes() -> Iterator[tuple[str, str]]:
    """Makes two networks with one line between them, and returns their names: the ends of the line have the same.

    Their addresses end with 1 and 2. Skips the test where this user may not.
    """
    if shutil.which("ip") is None:
        pytest.skip("ip is not installed (Debian: iproute2)")

    first, second = (f"hr{os.getpid()}{letter}" for letter in "ab")
    try:
        try:
            _ip("netns", "add", first)
            _ip("netns", "add", second)
            _ip("link", "add", first, "netns", first, "type", "veth", "peer", "name", second, "netns", second)
        except subprocess.CalledProcessError as error:
            pytest.skip(f"network namespaces are not allowed here: {error.stderr.strip()}")

        for number, name in enumerate((first, second), 1):
            _ip("-n", name, "addr", "add", f"{TWO_NODES}.{number}/24", "dev", name)
            _ip("-n", name, "link", "set", name, "up")
            _ip("-n", name, "link", "set", "lo", "up")
        yield first, second
    finally:
        for name in (first, second):
            subprocess.run(["ip", "netns", "del", name], check=False, capture_output=True)
        left = subprocess.run(["ip", "netns", "list"], check=False, capture_output=True, text=True).stdout.split()
        assert not {first, second} & set(left)


def torchrun_of_node(number: int, port: int) -> list[str]:
    """Returns the options of torchrun on one of `two_nodes`: the first, number 0, has the rendezvous at this port."""
    return [
        "--nnodes=2",
        "--rdzv-backend=c10d",
        f"--rdzv-endpoint={TWO_NODES}.1:{port}",
        f"--rdzv-id={port}",
        # The address of a line does not tell torchrun which of the two machines it is on.
        f"--rdzv-conf=is_host={number == 0}",
        f"--local-addr={TWO_NODES}.{number + 1}",
    ]


def inside(name: str) -> tuple[str, ...]:
    """Returns what is put before a command that is to run in a network."""
    return "ip", "netns", "exec", name


def _ip(*words: str) -> None:
    _run("ip", *words)


def _run(*words: str) -> None:
    subprocess.run(words, check=True, capture_output=True, text=True)
