"""Measures how batches reach a CUDA device: page-locked slots and `DataLoader(device="cuda")`, beside torch and timm.

python -m benchmarks.device [--out FILE]      measures on this machine's GPU: 8 minutes at most
python -m benchmarks.device --simulate        tries the script without a GPU: its figures say nothing

It needs torch and numpy alone. Each figure is printed as it comes, as JSON and as a line to read, and FILE is written
anew. Each experiment has a process of its own, so that none breaks the next one, and its own time: what has failed, or
does not fit any more, is told by its name.
"""

from __future__ import annotations

import argparse
import contextlib
import faulthandler
import gc
import json
import multiprocessing
import os
import signal
import sys
import time
import traceback
import warnings
import weakref
from collections.abc import Callable, Iterator, Sequence
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from pathlib import Path
from types import FrameType
from typing import Any, NamedTuple

if not __package__:
    # As a plain file. The modules of this folder have names that others have as well.
    sys.path[0] = str(Path(__file__).resolve().parents[1])

import torch

from benchmarks import device_copies, device_kernels, device_loops
from benchmarks.harness.figures import Budget, Figures, Record
from benchmarks.harness.gpu import Gpu, card, opened

ROOT = Path(__file__).resolve().parents[1]
"""Left out of the names of files in what is written down."""

SECONDS = 460
"""In which all must be over."""

STARTING = 20.0
"""Seconds beyond its own that an experiment's process may take, for CUDA's start and an end that hangs."""

TELL_STACKS = signal.SIGUSR1
"""At which a process that hangs writes its stacks to stderr."""

FORK = multiprocessing.get_context("fork")  # in seconds less than another start, for each experiment


class Experiment(NamedTuple):
    """One row of the plan: its number, its name, its seconds, and what measures it."""

    number: int
    name: str
    seconds: float
    measure: Callable[[Gpu, Figures, Budget], None]


EXPERIMENTS = [
    Experiment(0, "machine", 8, device_copies.machine),
    Experiment(1, "bandwidth", 35, device_copies.bandwidth),
    Experiment(2, "page-locking", 25, device_copies.registration),
    Experiment(3, "hazards", 25, device_copies.hazards),
    Experiment(4, "many tensors", 35, device_copies.many_tensors),
    Experiment(5, "loops", 100, device_loops.loops),
    Experiment(6, "launch-bound loop", 40, device_loops.launch_bound),
    Experiment(7, "device memory", 20, device_loops.device_memory),
    Experiment(8, "random steps", 45, device_loops.random_steps),
    Experiment(9, "graphs", 20, device_kernels.graphs),
    Experiment(10, "where to normalise", 25, device_kernels.normalising),
    Experiment(11, "decoding", 35, device_kernels.decoding),
]


class TimeIsUp(Exception):
    """An experiment has taken longer than it may."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Measures what the command line asks for. Returns the status of the process."""
    parser = argparse.ArgumentParser(
        "python -m benchmarks.device", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--out", type=Path, metavar="FILE", help="also write the figures there")
    parser.add_argument("--simulate", action="store_true", help="tiny sizes, on a simulated accelerator")
    parser.add_argument("--only", type=int, nargs="+", metavar="N", help="the numbers of experiments; otherwise all")
    parser.add_argument("--seconds", type=float, default=SECONDS, help=f"in which all must be over ({SECONDS})")
    options = parser.parse_args(arguments)
    if options.simulate and options.out is not None:
        parser.error("figures of a simulated accelerator say nothing: --out does not go with --simulate")
    ends = time.monotonic() + options.seconds

    known = card()
    print(json.dumps(known), flush=True)
    if not options.simulate and not _in_a_process(_has_cuda):
        print("torch sees no CUDA device; --simulate tries the script without one", file=sys.stderr)
        return 2

    record = Record(options.out, known)
    chosen = [one for one in EXPERIMENTS if options.only is None or one.number in options.only]
    try:
        with _interrupted_by_sigterm():
            for experiment in chosen:
                _run(experiment, record, ends, simulate=options.simulate)
    except KeyboardInterrupt:
        print("interrupted: the figures so far are kept", file=sys.stderr)
        return 130
    record.finish()
    return 1 if record.failures else 0


def _run(experiment: Experiment, record: Record, ends: float, *, simulate: bool) -> None:
    """Runs one experiment in its process, and keeps what it tells until it ends or its time is over."""
    entry: dict[str, Any] = {"experiment": experiment.number, "name": experiment.name, "simulated": simulate}
    left = ends - time.monotonic()
    if left < experiment.seconds:
        record.take({**entry, "skipped": f"it takes {experiment.seconds:g} s, and {max(left, 0):.0f} s are left"})
        return

    print(f"{experiment.number:>3}  {experiment.name}: {experiment.seconds:g} s at most", flush=True)
    ours, theirs = FORK.Pipe(duplex=False)
    process = FORK.Process(target=_experiment, args=(theirs, experiment, simulate))
    began = time.monotonic()
    until = min(began + experiment.seconds + STARTING, ends)
    process.start()
    theirs.close()
    told = 0
    try:
        for found in _told(ours, process, until):
            record.take(found)
            told += 1
        if process.is_alive():
            record.take({**entry, "failed": "its process did not end in time, and was killed"})
            os.kill(process.pid or 0, TELL_STACKS)
            process.join(1)
        elif process.exitcode != 0:
            record.take({**entry, "failed": f"its process ended with status {process.exitcode}"})
        elif not told:
            record.take({**entry, "failed": "it told nothing"})
    finally:
        if process.is_alive():
            process.kill()
        process.join()
    print(f"{experiment.number:>3}  {experiment.name}: took {time.monotonic() - began:.1f} s", flush=True)


def _told(connection: Connection, process: BaseProcess, until: float) -> Iterator[dict[str, Any]]:
    """Yields what an experiment tells, until its process has ended or it is too late."""
    while time.monotonic() < until:
        # Where the process was killed, its workers may keep the other end of the connection open for a while.
        is_alive = process.is_alive()
        if connection.poll(0.2):
            try:
                yield connection.recv()
            except (EOFError, OSError):  # the end, or half of what it told when it was killed
                process.join(max(until - time.monotonic(), 0))
                return
        elif not is_alive:
            return


def _experiment(connection: Connection, experiment: Experiment, simulate: bool) -> None:
    """Measures, in a process of its own."""
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    signal.signal(signal.SIGALRM, _raise_time_is_up)
    warnings.filterwarnings("ignore", "This DataLoader will create")
    faulthandler.register(TELL_STACKS)
    figures = Figures(connection, experiment.number, simulated=simulate)
    try:
        with opened(simulate=simulate) as gpu:
            signal.setitimer(signal.ITIMER_REAL, experiment.seconds + STARTING / 4, 1)
            experiment.measure(gpu, figures, Budget(experiment.seconds))
            signal.setitimer(signal.ITIMER_REAL, 0)
            gc.collect()  # loaders go, and their workers, while the device is there
            gpu.synchronize()
    except Exception:  # noqa: BLE001 - whatever it is, it is told, and the next experiment begins
        signal.setitimer(signal.ITIMER_REAL, 0)
        figures.fail(experiment.name, traceback.format_exc().replace(f"{ROOT}/", ""))
    except KeyboardInterrupt:
        pass


def _raise_time_is_up(_: int, frame: FrameType | None) -> None:
    # What is raised in a finalizer is lost, and so would be what that cleans up: the next signal comes in a second.
    while frame is not None:
        if frame.f_code.co_name == "__del__" or frame.f_code.co_filename == weakref.__file__:
            return
        frame = frame.f_back
    raise TimeIsUp("its time is over")


def _has_cuda() -> bool:
    return torch.cuda.is_available()


def _in_a_process(question: Callable[[], bool]) -> bool:
    """Returns what a function returns in a process of its own: one that asks CUDA must not fork any more."""
    ours, theirs = FORK.Pipe(duplex=False)
    process = FORK.Process(target=lambda: theirs.send(question()))
    process.start()
    theirs.close()
    try:
        return bool(ours.recv())
    except EOFError:
        return False
    finally:
        process.join()


@contextlib.contextmanager
def _interrupted_by_sigterm() -> Iterator[None]:
    """Has SIGTERM interrupt the process as Ctrl-C does."""
    ours = os.getpid()

    def interrupt(*_: object) -> None:
        if os.getpid() == ours:
            raise KeyboardInterrupt

    before = signal.signal(signal.SIGTERM, interrupt)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


if __name__ == "__main__":
    sys.exit(main())
