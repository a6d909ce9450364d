"""Programs that read sources that never end, each run twice: the second run goes on behind the first.

They are the examples, and the first block of docs/howto/sources.md.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import subprocess
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

import pytest
import torch

from tests import programs
from tests.servers.processes import free_ports

from .pages import ROOT, blocks_of

pytestmark = pytest.mark.thorough

SAMPLES = 200
BATCHES = 4

SENT = 260
"""Records that are written for each run: the checkpoint lies within a span."""


def points(count: int, fields: tuple[str, str] = ("x", "y")) -> list[str]:
    """Returns records, as JSON."""
    inputs, target = fields
    return [json.dumps({inputs: [number / count, 0.5], target: number / count}) for number in range(count)]


def run_twice(name: str, folder: Path, *arguments: str, before: Callable[[], None], **environment: str) -> Path:
    """Runs an example twice. before: is called in front of each run. Returns the checkpoint of the second one."""
    checkpoint = folder / "checkpoint.pt"
    command = [ROOT / "examples" / name, "--samples", SAMPLES, "--checkpoint", checkpoint, *arguments]
    said = []
    for _ in range(2):
        before()
        done = programs.run(command, cwd=folder, env={**os.environ, **environment})
        assert done.returncode == 0, done.stderr[-3000:]
        said.append(done.stdout)

    assert f"saved step {BATCHES}" in said[0]
    assert f"resumes after step {BATCHES}" in said[1]
    assert f"saved step {2 * BATCHES}" in said[1]
    return checkpoint


def following(checkpoint: Path) -> int:
    """Returns how many samples a checkpoint has behind it."""
    return int(torch.load(checkpoint)["loader"]["sampler"]["position"])


def nothing() -> None:
    pass


def test_kafka(shared_kafka, tmp_path):
    shared_kafka.make_topic("example-points", 2)
    for partition in range(2):
        shared_kafka.produce("example-points", [text.encode() for text in points(SAMPLES)], partition=partition)
    checkpoint = run_twice("live_kafka.py", tmp_path, "--url", shared_kafka.url("example-points"), before=nothing)
    assert following(checkpoint) == 2 * SAMPLES
    assert shared_kafka.committed("example-points") == {0: SAMPLES, 1: SAMPLES}


def test_rabbitmq(shared_rabbitmq, tmp_path):
    with shared_rabbitmq.channel() as channel:
        channel.queue_declare("example-rollouts", durable=True)

    def publish() -> None:
        with shared_rabbitmq.channel() as channel:
            channel.confirm_delivery()
            for text in points(SENT, ("state", "reward")):
                channel.basic_publish("", "example-rollouts", text.encode())

    url = f"{shared_rabbitmq.url}/example-rollouts"
    checkpoint = run_twice("live_rabbitmq.py", tmp_path, before=publish, RABBITMQ_URL=url)
    assert following(checkpoint) == 2 * SAMPLES


def test_redis(redis_server, tmp_path):
    def add() -> None:
        redis_server.cli(given="".join(f"XADD readings * data '{text}'\n" for text in points(SAMPLES)))

    checkpoint = run_twice("live_redis.py", tmp_path, before=add, REDIS_URL=f"{redis_server.url}/readings")
    assert following(checkpoint) == 2 * SAMPLES
    groups = redis_server.cli("XINFO", "GROUPS", "readings").split("\n")
    last = redis_server.cli("XREVRANGE", "readings", "+", "-", "COUNT", 1).split("\n")[0]
    assert groups[groups.index("last-delivered-id") + 1] == last


@contextlib.contextmanager
def sending(port: int, lines: Iterable[str]) -> Iterator[None]:
    """Sends lines as soon as somebody listens, by a program that is not ours."""
    script = f"until nc -z 127.0.0.1 {port}; do sleep 0.1; done; exec nc -N 127.0.0.1 {port}"
    process = subprocess.Popen(["sh", "-c", script], stdin=subprocess.PIPE, text=True)
    try:
        process.stdin.write("".join(f"{line}\n" for line in lines))
        process.stdin.close()
        yield
        assert process.wait(30) == 0
    finally:
        process.kill()
        process.wait()


def test_socket(tmp_path):
    if shutil.which("nc") is None:
        pytest.skip("nc is not installed (Debian: netcat-openbsd)")
    (port,) = free_ports(1)
    lines = [f"{number / SAMPLES},0.5,{number / SAMPLES}" for number in range(SENT)]
    with contextlib.ExitStack() as senders:

        def send() -> None:
            senders.enter_context(sending(port, lines))

        checkpoint = run_twice("live_socket.py", tmp_path, "--url", f"tcp://127.0.0.1:{port}", before=send)
    assert following(checkpoint) == 2 * SAMPLES


def test_sql(shared_postgres, tmp_path):
    shared_postgres.run(
        "create table points (id bigint generated always as identity primary key, x1 real not null, "
        "x2 real not null, y real not null, born xid8 not null default pg_current_xact_id())"
    )

    def insert() -> None:
        rows = f"select i / {SAMPLES}.0, 0.5, i / {SAMPLES}.0 from generate_series(1, {SAMPLES}) i"
        shared_postgres.run(f"insert into points (x1, x2, y) {rows}")

    checkpoint = run_twice("live_sql.py", tmp_path, before=insert, DATABASE_URL=shared_postgres.url)
    assert following(checkpoint) == 2 * SAMPLES


def test_the_first_block_of_the_page(shared_kafka, tmp_path):
    (block,) = [block for block in blocks_of(ROOT / "docs" / "howto" / "sources.md") if block.reason is not None]
    code = block.code.replace("localhost:9092/points", f"{shared_kafka.address}/page-points")
    (tmp_path / "page.py").write_text(code.replace("batches_per_epoch=100", "batches_per_epoch=2"))
    shared_kafka.make_topic("page-points", 2)
    for partition in range(2):
        shared_kafka.produce("page-points", [text.encode() for text in points(400)], partition=partition)

    trained = []
    for _ in range(2):
        done = programs.run(["page.py"], cwd=tmp_path)
        assert done.returncode == 0, done.stderr[-3000:]
        trained.append(following(tmp_path / "checkpoint.pt"))
    assert trained == [3 * 2 * 64, 2 * 3 * 2 * 64]
