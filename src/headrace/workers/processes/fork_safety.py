"""What tells that forks of a process would not be what processes of their own are.

Workers that torch starts by spawn or forkserver are processes of their own: each runs the program's modules and
unpickles the dataset by itself. A fork of a process that has done so is the same, except for what a fork leaves behind
(threads), what it shares (open files, child processes), and values that differ from process to process. Those are
looked for in what the program's own modules and the dataset hold, not in installed libraries.
"""

from __future__ import annotations

import contextlib
import os
import random
import signal
import stat
import sys
import threading
import types
import warnings
from collections.abc import Collection, Iterator
from multiprocessing import resource_tracker
from pathlib import Path

import numpy as np
import torch

from headrace.core.process.memory import process_tree
from headrace.core.randomness.own_generators import KINDS, PLAIN, values_in
from headrace.workers.processes.handle import pidfds_exist, readable

PATIENCE = 5.0
"""Seconds that a fork on trial may take to end."""

FORKED_WELL = {"jemalloc_bg_thd"}
"""Names of threads that their library looks after in a fork: those of jemalloc, which comes with pyarrow."""

NAMED = 8
"""Threads that are named, at most."""

EXITING = 0x4
"""The flag of a thread that is past all code of its own: Linux's `PF_EXITING`."""

SEEDS = 1 << 64
"""Seeds below it are taken to be the program's; NumPy draws others, of 128 bits."""

DRAWN, UNSEEDED = 1 << 40, 67280421310721
"""Seeds of torch's generators from which on they are taken to be drawn, and the one of a generator that is new."""

FileId = tuple[int, int]
"""Device and inode."""


def reason_not_to_fork(files: Collection[FileId], children: Collection[int], held: object = None) -> str:
    """Returns what speaks against forks of this process; empty: nothing does.

    files: what is open on purpose. children: processes that were forked on purpose. held: what forks are to work with.
    """
    return (
        reason_not_to_fork_once() or _child_processes(children) or _open_files(files) or _values_of_this_process(held)
    )


def reason_not_to_fork_once() -> str:
    """Returns what speaks against a fork with which nothing is shared but what this process leaves alone.

    Nothing is looked for on other systems than Linux.
    """
    if not pidfds_exist():
        return ""
    if torch.cuda.is_initialized():
        return "CUDA was initialized"
    return _failing_fork() or running_threads()


def file_id(descriptor: int) -> FileId:
    """Returns what a descriptor refers to."""
    status = os.fstat(descriptor)
    return status.st_dev, status.st_ino


# -- forks -----------------------------------------------------------------------------------------------------------


def _failing_fork() -> str:
    """Forks once, on trial. A hook of a library cannot refuse a fork, but it can raise or warn.

    Libraries that end their threads before a fork, as OpenBLAS does, have done so afterwards.
    """
    raised: list[str] = []
    before = sys.unraisablehook
    sys.unraisablehook = lambda unraisable: raised.append(repr(unraisable.exc_value))
    try:
        with warnings.catch_warnings(record=True) as warned:
            warnings.simplefilter("always")
            # Python's own word on threads: they are counted below.
            warnings.filterwarnings("ignore", ".*multi-threaded", DeprecationWarning)
            pid = os.fork()
            if pid == 0:
                os._exit(min(len(raised) + len(warned), 1))
            ended = _ends(pid)
    except Exception as error:  # noqa: BLE001 - an audit hook may raise anything
        return f"a fork on trial failed: {error!r}"
    finally:
        sys.unraisablehook = before

    complaints = raised + [str(warning.message) for warning in warned]
    if complaints:
        return f"a library asks not to be forked: {complaints[0]}"
    if not ended:
        return "a fork on trial failed"
    return ""


def _ends(pid: int) -> bool:
    """Waits for a child; tells whether it has ended in time and without an error."""
    pidfd = os.pidfd_open(pid)
    try:
        if not readable(pidfd, PATIENCE):
            os.kill(pid, signal.SIGKILL)
    finally:
        os.close(pidfd)
    return os.waitpid(pid, 0)[1] == 0


def running_threads() -> str:
    """Returns which threads there are beside the main one and would be missing in a fork; empty: none."""
    python = {thread.native_id: thread.name for thread in threading.enumerate()}
    names = []
    for thread in Path("/proc/self/task").iterdir():
        number = int(thread.name)
        with contextlib.suppress(OSError):  # it has ended
            before, _, rest = (thread / "stat").read_text().rpartition(")")
            name = before.partition("(")[2]
            is_exiting = int(rest.split()[6]) & EXITING
            if number != os.getpid() and not is_exiting and name not in FORKED_WELL:
                names.append(python.get(number, name))

    if not names:
        return ""
    named = ", ".join(sorted(set(names))[:NAMED])
    return f"threads run after its modules were imported and the dataset was unpickled: {named}"


# -- what a fork shares ----------------------------------------------------------------------------------------------


def _child_processes(ours: Collection[int]) -> str:
    tracker = resource_tracker._resource_tracker._pid  # type: ignore[attr-defined]
    others = set(process_tree(os.getpid())[1:]).difference(ours, [tracker])
    for pid in sorted(others):
        with contextlib.suppress(OSError):
            state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[:2]
            if state[0] != "Z" and int(state[1]) == os.getpid():
                return f"it has started a process of its own: {Path(f'/proc/{pid}/comm').read_text().strip()}"
    return ""


def _open_files(known: Collection[FileId]) -> str:
    """Returns what is open that forks would take from each other: places in files, what comes over sockets."""
    import fcntl

    mapped: dict[str, bool] | None = None
    for entry in Path("/proc/self/fd").iterdir():
        descriptor = int(entry.name)
        if descriptor <= 2:
            continue
        with contextlib.suppress(OSError):  # it was that of the listing
            mode = os.fstat(descriptor).st_mode
            if file_id(descriptor) in known:
                continue
            name = str(entry.readlink())
            if stat.S_ISREG(mode):
                if mapped is None:
                    mapped = _mapped_files()
                appends = fcntl.fcntl(descriptor, fcntl.F_GETFL) & os.O_APPEND
                if not appends and not mapped.get(name, False):
                    return f"it has a file open, whose place forks would share: {name}"
            elif stat.S_ISSOCK(mode) or stat.S_IFMT(mode) == 0:
                return f"it has something open that forks would share: {name}"
    return ""


def _mapped_files() -> dict[str, bool]:
    """Returns the files that are mapped, and whether each is only read so, or shared in memory on purpose."""
    found: dict[str, bool] = {}
    for line in Path("/proc/self/maps").read_text().splitlines():
        _, rights, _, _, _, *name = line.split(maxsplit=5)
        if name:
            is_memory = name[0].startswith(("/memfd:", "/dev/shm/"))
            found[name[0]] = found.get(name[0], True) and (is_memory or rights[1] == "-" or rights[3] == "p")
    return found


# -- values ----------------------------------------------------------------------------------------------------------


def _values_of_this_process(held: object) -> str:
    values = []
    for name, value in _values_of_modules():
        values.append((name, value))
        if not isinstance(value, PLAIN):
            values += [(name, inside) for _, inside in values_in((int, *KINDS), value)]

    for name, value in values:
        if _has_drawn_seed(value):
            return f"{name} is or holds a random generator whose seed is not the program's"

    pid = os.getpid()
    for name, value in (*values, *values_in((int,), held)):
        if type(value) is int and value == pid and _asks_for_pid():
            return f"{name} is or holds the number of the process"
    return ""


def _values_of_modules() -> Iterator[tuple[str, object]]:
    """Yields what the program's own modules hold, and the classes in them, by name."""
    for module in _own_modules():
        for name, value in list(vars(module).items()):
            yield f"{module.__name__}.{name}", value
            if isinstance(value, type) and value.__module__ == module.__name__:
                for inner, attribute in list(vars(value).items()):
                    yield f"{value.__qualname__}.{inner}", attribute


def _own_modules() -> Iterator[types.ModuleType]:
    """Yields the modules that are neither Python's nor those of installed packages."""
    python = str(Path(os.__file__).parent)
    for name, module in list(sys.modules.items()):
        if isinstance(module, types.ModuleType) and name.partition(".")[0] != "headrace":
            file = str(vars(module).get("__file__") or python)
            if not ("site-packages" in file or "dist-packages" in file or file.startswith(python)):
                yield module


def _asks_for_pid() -> bool:
    """Tells whether one of the program's own modules speaks of `getpid`: then a number is no chance hit."""
    for module in _own_modules():
        with contextlib.suppress(OSError):
            if b"getpid" in Path(vars(module)["__file__"]).read_bytes():
                return True
    return False


def _has_drawn_seed(value: object) -> bool:
    if isinstance(value, np.random.Generator):
        seeds = value.bit_generator.seed_seq
        return isinstance(seeds, np.random.SeedSequence) and isinstance(seeds.entropy, int) and seeds.entropy >= SEEDS

    if isinstance(value, torch.Generator):
        # Those that torch draws have up to 53 bits, and one that nobody has seeded this number.
        return value is not torch.default_generator and DRAWN <= value.initial_seed() != UNSEEDED

    # Their states do not say where the seed is from. The generators of the modules themselves are seeded in a worker.
    is_global = value is np.random.mtrand._rand or value is random._inst
    return isinstance(value, (np.random.RandomState, random.Random)) and not (
        is_global or isinstance(value, random.SystemRandom)
    )
