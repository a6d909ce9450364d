"""Python programs that tests start. They begin in a copy of one process, which has imported torch and headrace already.

A Python of its own takes seconds to import torch, and that is most of what a short program costs. `run` and `Program`
are used as `subprocess.run` and `subprocess.Popen` are. A program runs as `__main__`, with its own arguments, folder,
environment and standard streams, and ends as Python ends. What differs: the modules are imported already, and Python
has read its own variables (`PYTHONHASHSEED` and the like) already. Tests of these start a Python of their own.
"""

from __future__ import annotations

import atexit
import builtins
import contextlib
import faulthandler
import functools
import gc
import importlib
import io
import json
import multiprocessing
import os
import runpy
import selectors
import signal
import socket
import subprocess
import sys
import tempfile
import time
import warnings
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy

from headrace.core.process.memory import process_tree
from headrace.testing.belongings import command_of, status_of

ROOT = Path(__file__).parents[1]
ENVIRONMENT = dict(os.environ)
"""What all programs are copies of has this one, rather than that of the test that comes first."""
LARGEST_REQUEST = 1 << 20

TELL_STACKS = signal.SIGRTMIN + 9
"""The signal at which programs write down their stacks."""

WRITING = 2.0
"""Seconds that they have for that."""

PRELOADED = (
    "numpy",
    "pyarrow",
    "torch.utils.data",
    "headrace.cli.app",
    "headrace.data.convert.pack",
    "headrace.data.convert.verify",
    "headrace.measure.loader_replacement",
    "headrace.testing",
)
"""Modules that all programs find imported."""

Ended = subprocess.CompletedProcess[str]


def run(
    arguments: Sequence[object],
    *,
    cwd: Path | None = None,
    env: Mapping[str, str] | None = None,
    timeout: float = 100,
    fresh: bool = False,
) -> Ended:
    """Runs a program to its end; `arguments` are those of `python`: options, then a script, `-m module` or `-c code`.

    `fresh` starts a Python of its own. Raises `subprocess.TimeoutExpired` after `timeout` seconds, and kills the
    program.
    """
    if fresh:
        command = [sys.executable, *map(str, arguments)]
        return subprocess.run(command, cwd=cwd, env=env, capture_output=True, text=True, timeout=timeout, check=False)
    with Program(arguments, cwd=cwd, env=env) as program:
        out, error = program.communicate(timeout=timeout)
    return Ended(list(arguments), program.wait(), out, error)


class Program:
    """A program that runs, with pipes to its standard streams. At the end of a `with` block it is killed."""

    def __init__(
        self,
        arguments: Sequence[object],
        *,
        cwd: Path | None = None,
        env: Mapping[str, str] | None = None,
        new_session: bool = False,
    ) -> None:
        request = {
            "arguments": [str(argument) for argument in arguments],
            "cwd": str(cwd or Path.cwd()),
            "env": dict(os.environ if env is None else env),
            "new_session": new_session,
        }
        stdin_of_program, stdin = os.pipe()
        stdout, stdout_of_program = os.pipe()
        stderr, stderr_of_program = os.pipe()
        status, status_of_program = os.pipe()
        self._stdin = io.FileIO(stdin, "w")
        self._stdout = io.FileIO(stdout)
        self._stderr = io.FileIO(stderr)
        self._status = io.FileIO(status)
        given = [stdin_of_program, stdout_of_program, stderr_of_program, status_of_program]
        socket.send_fds(_server(), [json.dumps(request).encode()], given)
        for number in given:
            os.close(number)
        self.returncode: int | None = None
        self.pid = int(self._status.readline())

    def __enter__(self) -> Program:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def close(self) -> None:
        """Kills the program if it still runs, and closes the pipes."""
        self.kill()
        self.wait()
        for stream in (self._stdin, self._stdout, self._stderr, self._status):
            stream.close()

    def read_line(self) -> str:
        """Returns the next line of the standard output, with its line break; an empty text at the end."""
        return self._stdout.readline().decode()

    def write(self, text: str) -> None:
        """Writes to the standard input, unless the program has closed it."""
        with contextlib.suppress(BrokenPipeError):
            self._stdin.write(text.encode())

    def wait(self) -> int:
        """Waits for the end of the program, and returns its exit status, which is negative for a signal."""
        if self.returncode is None:
            self.returncode = int(self._status.readline())
        return self.returncode

    def send_signal(self, number: int, *, to_group: bool = False) -> None:
        """Sends a signal to the program, or to its process group as well, unless all of these have ended."""
        with contextlib.suppress(ProcessLookupError):
            if to_group:
                os.killpg(self.pid, number)
            elif self.returncode is None:
                os.kill(self.pid, number)

    def kill(self) -> None:
        """Kills the program."""
        self.send_signal(signal.SIGKILL)

    def communicate(self, input: str = "", timeout: float = 100) -> tuple[str, str]:
        """Writes `input`, reads both streams to their ends, waits for the program, and returns what it wrote.

        A stream ends when the last process has closed it that has inherited it. After `timeout` seconds, kills the
        program, and raises `subprocess.TimeoutExpired` with the Python stacks of the program and its children.
        """
        self.write(input)
        self._stdin.close()
        deadline = time.monotonic() + timeout
        late: list[str] = []
        said = {self._stdout: b"", self._stderr: b""}
        with selectors.DefaultSelector() as selector:
            for stream in said:
                selector.register(stream, selectors.EVENT_READ)
            while selector.get_map():
                ready = selector.select(max(deadline - time.monotonic(), 0))
                if not ready and late:
                    break
                if not ready:
                    late = self._ask_for_stacks()
                    deadline = time.monotonic() + WRITING
                for stream in (key.fileobj for key, _ in ready):
                    assert isinstance(stream, io.FileIO)
                    data = stream.read(1 << 16)
                    said[stream] += data
                    if not data:
                        selector.unregister(stream)
        if late:
            self.kill()
            stacks = said[self._stderr].decode(errors="replace")
            raise subprocess.TimeoutExpired("\n".join([f"program {self.pid}", *late, stacks]), timeout, *said.values())
        self.wait()
        return said[self._stdout].decode(), said[self._stderr].decode()

    def _ask_for_stacks(self) -> list[str]:
        """Has the program and its children write their stacks to the standard error; returns a line for each of them.

        One that has become another program by `exec` ends.
        """
        lines = []
        for pid in process_tree(self.pid):
            status = status_of(pid)
            if status is None:
                continue
            lines.append(f"process {pid}, state {status[0]}: {command_of(pid)}")
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, TELL_STACKS)
                # One after the other: they write to the same stream, line by line, and nothing tells when one is done.
                time.sleep(0.2)
        return lines or ["no process of it is left, but somebody has its streams open"]


# -- the server ------------------------------------------------------------------------------------------------------


@functools.cache
def _server() -> socket.socket:
    """Starts the process that all programs are copies of; it ends with this process."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    code = f"from tests.programs import serve; serve({theirs.fileno()})()"
    with theirs:
        process = subprocess.Popen(
            [sys.executable, "-c", code],
            cwd=ROOT,
            env=ENVIRONMENT,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            pass_fds=[theirs.fileno()],
        )

    def end() -> None:
        ours.close()
        process.wait()

    atexit.register(end)
    return ours


def serve(number: int) -> Callable[[], None]:
    """Forks a process for each request that comes over the socket; returns, in that process only, what it is to do.

    The program is not the child of this process, but of one in between, which tells the number and the status.
    """
    for module in PRELOADED:
        importlib.import_module(module)
    faulthandler.register(TELL_STACKS)
    gc.freeze()  # a copy need not collect what all share
    requests = socket.socket(fileno=number)
    while True:
        data, files, _, _ = socket.recv_fds(requests, LARGEST_REQUEST, 4)
        if not data:
            os._exit(0)
        between = os.fork()
        if between == 0:
            break
        for file in files:
            os.close(file)
        _reap()
    requests.close()
    stdin, stdout, stderr, status = files
    pid = os.fork()
    if pid:
        for file in (stdin, stdout, stderr):
            os.close(file)  # otherwise these streams would end with this process
        os.write(status, f"{pid}\n".encode())
        _, ended = os.waitpid(pid, 0)
        os.write(status, f"{os.waitstatus_to_exitcode(ended)}\n".encode())
        os._exit(0)
    os.close(status)
    for file, standard in ((stdin, 0), (stdout, 1), (stderr, 2)):
        os.dup2(file, standard)
        os.close(file)
    return _prepared(json.loads(data))


def _reap() -> None:
    """Lets go of processes in between that have ended."""
    with contextlib.suppress(ChildProcessError):
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass


def _prepared(request: dict[str, Any]) -> Callable[[], None]:
    """Makes this process a Python that has just been started with the arguments; returns what runs the program."""
    if request["new_session"]:
        os.setsid()
    os.environ.clear()
    os.environ.update(request["env"])
    os.chdir(request["cwd"])
    sys.path[1:1] = [entry for entry in request["env"].get("PYTHONPATH", "").split(os.pathsep) if entry]
    # Where temporary files lie was asked, and kept, in the environment of this process.
    tempfile.tempdir = None
    multiprocessing.current_process()._config.pop("tempdir", None)  # type: ignore[attr-defined]
    numpy.random.seed()  # the copies would draw the same numbers otherwise
    arguments = list(request["arguments"])
    while arguments[0] in ("-u", "-W"):
        if arguments.pop(0) == "-u":
            sys.stdout.reconfigure(write_through=True)  # type: ignore[union-attr]
        else:
            sys.warnoptions.append(arguments[0])
            warnings.simplefilter(arguments.pop(0))  # type: ignore[arg-type]
    if arguments[0] == "-m":
        sys.argv = arguments[1:]
        sys.path[0] = request["cwd"]
        return functools.partial(runpy._run_module_as_main, arguments[1])  # type: ignore[attr-defined]
    if arguments[0] == "-c":
        sys.argv = ["-c", *arguments[2:]]
        return functools.partial(_execute, arguments[1], "<string>", {})
    sys.argv = arguments
    sys.path[0] = str(Path(arguments[0]).resolve().parent)
    source = Path(arguments[0]).read_text("utf-8")
    return functools.partial(_execute, source, arguments[0], {"__file__": arguments[0]})


def _execute(source: str, name: str, more: dict[str, str]) -> None:
    """Runs a program in the module `__main__`, which is emptied before."""
    main = sys.modules["__main__"].__dict__
    main.clear()
    main.update({"__name__": "__main__", "__builtins__": builtins, "__spec__": None, "__doc__": None, **more})
    exec(compile(source, name, "exec"), main)
