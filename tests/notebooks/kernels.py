"""Kernels of Jupyter, as a notebook has them."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from jupyter_client.manager import KernelManager

PATIENCE = 90
"""Seconds that a kernel may be silent."""


@dataclass
class Shown:
    """What a cell showed."""

    number: int = 0
    """As in `In [3]`."""
    printed: str = ""
    error: str = ""
    results: list[str] = field(default_factory=list)
    """HTML, or text where there is none."""

    def add(self, kind: str, content: dict[str, Any]) -> None:
        """Adds a message of the kernel."""
        if kind == "execute_input":
            self.number = content["execution_count"]
        elif kind == "stream":
            self.printed += content["text"]
        elif kind == "error":
            self.error = f"{content['ename']}: {content['evalue']}"
        elif kind in ("execute_result", "display_data"):
            self.results.append(content["data"].get("text/html") or content["data"]["text/plain"])


class Kernel:
    """A kernel that runs."""

    def __init__(self, manager: KernelManager) -> None:
        self._manager = manager
        self._client = manager.client()
        self._client.start_channels()
        self._client.wait_for_ready(timeout=PATIENCE)

    @property
    def pid(self) -> int:
        """The process."""
        return int(self._manager.provisioner.pid)

    def run(self, code: str, *, interrupt_at: str = "") -> Shown:
        """Runs a cell. interrupt_at: interrupts it, as a button of the notebook does, when it has printed this."""
        shown = Shown()
        message = self._client.execute(code)
        waiting = bool(interrupt_at)
        until = time.monotonic() + PATIENCE
        while time.monotonic() < until:
            told = self._client.get_iopub_msg(timeout=PATIENCE)
            if told["parent_header"].get("msg_id") != message:
                continue
            if told["msg_type"] == "status" and told["content"]["execution_state"] == "idle":
                return shown
            shown.add(told["msg_type"], told["content"])
            if waiting and interrupt_at in shown.printed:
                waiting = False
                self._manager.interrupt_kernel()
        raise TimeoutError(f"the cell did not end; it showed {shown}")

    def close(self) -> None:
        """Lets go of the kernel, which its manager ends."""
        self._client.stop_channels()


@contextlib.contextmanager
def kernel(folder: Path) -> Iterator[Kernel]:
    """Gives a kernel that works in a folder, and can be reached through files of it."""
    manager = KernelManager(kernel_name="python3", transport="ipc", ip=str(folder / "kernel"))
    manager.start_kernel(cwd=str(folder))
    try:
        started = Kernel(manager)
        yield started
        started.close()
    finally:
        manager.shutdown_kernel(now=True)
