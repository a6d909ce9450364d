"""What figures were measured on, and with which versions."""

from __future__ import annotations

import importlib
import importlib.metadata
import os
import platform
from collections.abc import Sequence
from pathlib import Path
from typing import Any


def machine() -> dict[str, Any]:
    """Returns the processor, its cores, the bytes of memory and the system."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    release = ".".join(platform.release().split("-")[0].split(".")[:2])
    return {"cpu": _processor(), "cores": cores, "memory": memory(), "system": f"{platform.system()} {release}"}


def memory() -> int:
    """Returns the bytes of memory that this machine has."""
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        lines = []  # not Linux
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor() or platform.machine()


def versions(peers: Sequence[str] = ()) -> dict[str, str]:
    """Returns the versions of what was compared; a package that is not installed is left out."""
    found = {"Python": platform.python_version()}
    for name in ("torch", "numpy", "headrace", *peers):
        try:
            found[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    return found


def peer(module: str) -> Any:
    """Returns a package to compare with, or None if it is not installed."""
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as error:
        if error.name != module:
            raise
        return None
