"""Scene: records that a client sends to a socket once; the training is killed and started again."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

import torch

from headrace.demo.party import Tell, run
from headrace.demo.scene import Scene, SceneResult

RECORDS, BATCH = 2_000, 50
STEPS = RECORDS // BATCH
SAVED_AT, KILLED_AT = 10, 16

PATIENCE = 30.0
"""Seconds for which the client waits for somebody who listens, and the training for the records."""


def decode(line: bytes) -> int:
    """Returns the number that a line holds."""
    return int(line)


def train(tell: Tell, url: str, folder: str, killed_at: int) -> None:
    """Trains on all records, from the checkpoint on if there is one; tells the records of each batch."""
    import headrace

    journal, checkpoint = Path(folder) / "journal", Path(folder) / "checkpoint.pt"
    lines = headrace.follow(url, decode=decode, listen=True, journal=journal, journal_bytes="100MB", span=500)
    step = 0
    state = None
    if checkpoint.exists():
        saved = torch.load(checkpoint)
        step, state = saved["step"], saved["loader"]

    loader: Any = headrace.DataLoader(
        lines, batch_size=BATCH, shuffle=True, num_workers=1, seed=0, batches_per_epoch=STEPS
    )
    if state is not None:
        loader.load_state_dict(state)

    for batch in loader:
        step += 1
        tell(batch.tolist())
        if killed_at and step == SAVED_AT:
            torch.save({"step": step, "loader": loader.state_dict()}, checkpoint)
        if step == killed_at:
            _wait_for(journal)
            os.kill(os.getpid(), signal.SIGKILL)


def _wait_for(journal: Path) -> None:
    """Waits until the client's records are on the disk: it sends them once."""
    ends = time.monotonic() + PATIENCE
    while sum(file.stat().st_size for file in journal.rglob("*") if file.is_file()) < len(_payload()):
        if time.monotonic() > ends:
            raise TimeoutError("the records do not come")
        time.sleep(0.05)


def _payload() -> bytes:
    return b"".join(b"%d\n" % number for number in range(RECORDS))


def _send(address: tuple[str, int]) -> None:
    """Sends all records, once, as soon as somebody listens."""
    ends = time.monotonic() + PATIENCE
    while time.monotonic() < ends:
        with contextlib.suppress(ConnectionRefusedError), socket.create_connection(address) as connection:
            connection.sendall(_payload())
            return
        time.sleep(0.05)


def show() -> SceneResult:
    """Sends, trains, kills, and goes on."""
    shown = SceneResult()
    with tempfile.TemporaryDirectory(prefix="headrace-demo-") as folder:
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            address = free.getsockname()
        client = threading.Thread(target=_send, args=(address,), daemon=True)
        client.start()
        url = f"tcp://{address[0]}:{address[1]}"
        killed = run(train, url, folder, KILLED_AT)
        again = run(train, url, folder, 0)
        client.join()

    kept = killed.told[:SAVED_AT] + again.told
    records = sorted(number for batch in kept for number in batch)
    once = records == list(range(RECORDS))
    shown.add(
        "headrace",
        f"killed by {killed.signal} after step {len(killed.told)}, continued after step {SAVED_AT}: "
        f"{len(set(records)):,} of {RECORDS:,} records, {len(records) - len(set(records))} twice",
        facts={"killed by": killed.signal, "each record once": once, "error": again.error},
    )
    return shown


SCENE = Scene("socket", f"{RECORDS:,} lines sent to a socket, once; kill -9 in the middle", show)
