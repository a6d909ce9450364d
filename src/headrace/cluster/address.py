"""Addresses of Ray clusters."""

from __future__ import annotations

from headrace.core.text.urls import is_port

WORDS = ("auto", "local")
"""Addresses that name no machine: a cluster that this machine belongs to, and a new one."""


def host_and_port(address: str) -> tuple[str, int] | None:
    """Returns the parts of "host:port" or "ray://host:port"; None: it is neither. The host may be "[::1]"."""
    scheme, _, rest = address.rpartition("://")
    host, colon, port = rest.rstrip("/").rpartition(":")
    if scheme not in ("", "ray") or not colon or not host or "/" in host or not is_port(port):
        return None
    return host.strip("[]"), int(port)
