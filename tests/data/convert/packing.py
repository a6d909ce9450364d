"""Runs of `headrace pack` in processes that tests stop, interrupt and kill."""

from __future__ import annotations

import json
import shutil
import signal
from pathlib import Path
from typing import Any

import pytest

from headrace.data.convert.pack import Packed, pack
from headrace.data.convert.plan import PackOptions
from tests import programs
from tests.data.formats.samples import usual, write

COUNT, PIECE = 60, 1500
TARGETS = {"arrow": "data", "webdataset": "data", "memmap": "data", "hdf5": "data.h5"}
SHARDED = ("arrow", "webdataset")

CHILD = """
import json, resource, sys, tempfile
from pathlib import Path
from headrace.data.building import staging_area as room
from headrace.data.convert import pack
from headrace.data.convert import plan
from headrace.data.formats.atomic_target import AtomicTarget

def stop_before(function, at):
    calls = []
    def stopping(*arguments, **more):
        calls.append(1)
        if len(calls) == at:
            print("here", flush=True)
            sys.stdin.readline()
        return function(*arguments, **more)
    return stopping

if __name__ == "__main__":
    tempfile.tempdir = None  # an earlier test may have had another TMPDIR
    given = json.loads(sys.argv[1])
    plan.PIECE = plan.SHARD = given["piece"]
    where, at = given["stop"]
    if given["limit"]:
        resource.setrlimit(resource.RLIMIT_FSIZE, (given["limit"], given["limit"]))
    if where == "piece":
        report = stop_before(lambda done, total: None, at)
        pack._silent = report
        from headrace.cli import pack as command
        def packing(*arguments, **more):
            return pack.pack(*arguments, **{**more, "report": report})
        command.pack = packing
    elif where == "flush":
        room.sync_file = stop_before(room.sync_file, at)
    elif where == "begin":
        pack.PackJob.begin_file = stop_before(pack.PackJob.begin_file, at)
    elif where == "assemble":
        pack.PackJob.assemble = stop_before(pack.PackJob.assemble, at)
    elif where == "commit":
        AtomicTarget.commit = stop_before(AtomicTarget.commit, at)
    elif where == "exchange":
        Path.replace = stop_before(Path.replace, at)
    from headrace.cli.app import main
    sys.argv = ["headrace", "pack", *given["arguments"]]
    main()
"""
"""Runs the command; at one point it says that it is there, and waits for a line."""


class Case:
    """A source, targets in folders of their own, and what an undisturbed run makes."""

    def __init__(self, root: Path, format: str) -> None:
        self.root, self.format = root, format
        self.children: list[Child] = []
        self.source = write("npz", root / "source.npz", [usual("npz", COUNT, seed=1)])
        self.target = root / "out" / TARGETS[format]
        self.target.parent.mkdir()

    def run(self, workers: int = 1, target: Path | None = None, **options: Any) -> Packed:
        made = PackOptions(self.format, **options)
        return pack(str(self.source), str(target or self.target), made, workers=workers)

    def undisturbed(self, **options: Any) -> dict[str, bytes]:
        aside = self.root / "undisturbed"
        self.run(target=aside / self.target.name, **options)
        made = files_in(aside)
        shutil.rmtree(aside)
        return made

    def put_old_data(self) -> dict[str, bytes]:
        other = write("npz", self.root / "other.npz", [usual("npz", 5, seed=2)])
        pack(str(other), str(self.target), PackOptions(self.format), workers=1)
        return self.made()

    def made(self) -> dict[str, bytes]:
        """All files at the target, and nothing of what is made beside it."""
        return {name: data for name, data in files_in(self.target.parent).items() if not name.startswith(".")}

    def child(self, *more: str, stop: tuple[str, int] = ("", 0), workers: int = 1, limit: int = 0) -> Child:
        arguments = [str(self.source), str(self.target), "--format", self.format, "--workers", str(workers), *more]
        self.children.append(Child({"arguments": arguments, "stop": stop, "limit": limit, "piece": PIECE}, self.root))
        return self.children[-1]

    def close(self) -> None:
        """Ends what a test that failed has left."""
        for child in self.children:
            child.close()


class Child:
    """The command in a process group of its own."""

    def __init__(self, given: dict[str, Any], root: Path) -> None:
        script = root / "child.py"
        script.write_text(CHILD)
        self._program = programs.Program(["-W", "error", script, json.dumps(given)], new_session=True)

    def wait_until_there(self) -> None:
        line = self.read_line()
        if line != "here\n":
            pytest.fail(f"it ended before: {line}{self.end()}")

    def read_line(self) -> str:
        return self._program.read_line()

    def end(self, number: int | None = None) -> tuple[int, str]:
        """Sends a signal to all its processes, and waits until the last one of them has let go of the pipes."""
        if number is not None:
            self._program.send_signal(number, to_group=True)
        out, error = self._program.communicate("\n" if number is None else "")
        return self._program.wait(), out + error

    def close(self) -> None:
        """Ends what a test that failed has left."""
        self._program.send_signal(signal.SIGKILL, to_group=True)
        self._program.close()


def files_in(folder: Path) -> dict[str, bytes]:
    return {str(one.relative_to(folder)): one.read_bytes() for one in sorted(folder.rglob("*")) if one.is_file()}


def hidden(folder: Path) -> list[str]:
    return sorted(one.name for one in folder.iterdir() if one.name.startswith("."))
