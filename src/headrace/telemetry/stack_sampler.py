"""Where loading spends its time: a thread in each worker process looks now and then where the worker is.

It looks about 20 times a second at first, and 5 times later, at random times, so that nothing periodic deceives it. A
look takes some 20 us. What a worker does is told by the lines of the functions that it is in, and by the system call
that it waits in.
"""

from __future__ import annotations

import contextlib
import linecache
import os
import platform
import random
import re
import signal
import sys
import threading
from collections import Counter
from pathlib import Path
from types import CodeType, FrameType

from headrace.core.callers import name_of_file
from headrace.core.process.activity import LOAD, STAGE, Activity

EVERY, LATER = 0.05, 0.2
"""Seconds between two looks, on average: for the first `SOON` looks, and from then on."""

SOON = 100

DEEP = 40
"""Calls that are looked at, at most."""

WAITING = {
    "x86_64": {0, 7, 17, 19, 23, 35, 45, 47, 230, 232, 257, 270, 271, 281, 295, 332, 426},
    "aarch64": {22, 56, 63, 65, 67, 69, 72, 73, 101, 115, 207, 212, 291, 426},
}.get(platform.machine(), set())
"""System calls of Linux in which one waits for something else than a lock: read, readv, pread64, preadv, poll, ppoll,
select, pselect6, epoll_wait, epoll_pwait, nanosleep, clock_nanosleep, recvfrom, recvmsg, openat, statx,
io_uring_enter."""

READ = re.compile(
    r"\b(read|readinto|read_bytes|read_text|pread|recv|urlopen|open_file|get_object|download|fetch_file|sleep)\w*\s*\("
)
DECODE = re.compile(
    r"\b(\w*decode\w*|imread|imdecode|frombytes|convert|loads|load_jpeg|read_csv|read_table|decompress|load_image)\s*\("
    r"|Image\.open\(|\.load\(\)|np\.load\(|torch\.load\(|torchaudio\.load|read_image|parse\w*\("
)
TRANSFORM = re.compile(
    r"\b\w*(transform|augment|aug|crop|resize|flip|rotate|normali[sz]e|jitter|blur|noise|tokeni[sz]e|pad)\w*\s*\(", re.I
)
FILES = {
    "decode": re.compile(r"/(PIL/(ImageFile|\w*ImagePlugin)|simplejpeg/|torchvision/io/|av/|soundfile|gzip)"),
    "transform": re.compile(r"/(torchvision/transforms|albumentations|kornia|headrace/transforms/images|PIL/Image)"),
    "read": re.compile(r"/(pathlib|fsspec|urllib|http/|socket|ssl|requests|urllib3|botocore|s3fs|gcsfs)"),
}

PILLOW = re.compile(r"/PIL/Image\.py$")
OPENING = {"open", "Image.load", "Image.convert", "Image.frombytes", "Image.tobytes"}
"""Functions of Pillow that decode, or copy pixels out."""

HERE = str(Path(__file__).parents[1])
FETCH = os.path.join(HERE, "batches")  # noqa: PTH118 - compared with the names of code objects
THREADING = threading.__file__


class StackSampler:
    """Looks at the thread that makes it, while its activity says that samples are loaded."""

    def __init__(self, activity: Activity) -> None:
        self._seen: Counter[tuple[str, str]] = Counter()
        self._looker = _Looker(activity, threading.get_ident(), self._seen)
        thread = threading.Thread(target=self._looker.run, name="headrace-stack-sampler", daemon=True)
        thread.start()

    def take(self) -> list[tuple[str, str, int]]:
        """Returns what was seen since the last call: kind, place, times. Empty if less than a few looks were taken."""
        if self._seen.total() < 4:
            return []

        # The thread goes on counting meanwhile. Subtracting what was copied loses none of its counts; `clear` would.
        seen = dict(self._seen)
        self._seen.subtract(seen)
        return [(kind, where, count) for (kind, where), count in seen.items() if count]


class _Looker:
    def __init__(self, activity: Activity, target: int, seen: Counter[tuple[str, str]]) -> None:
        self._activity = activity
        self._target = target
        self._seen = seen
        self._ended = threading.Event()
        self._known: dict[tuple[CodeType, int], str | None] = {}
        self._calls: int | None = None
        with contextlib.suppress(OSError):
            self._calls = os.open(f"/proc/self/task/{threading.get_native_id()}/syscall", os.O_RDONLY | os.O_CLOEXEC)

    def run(self) -> None:
        """The life of the thread."""
        # Signals are for the worker itself: one that the kernel gives to this thread would not wake the worker from a
        # system call.
        if hasattr(signal, "pthread_sigmask"):
            signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())

        chance = random.Random(os.getpid())
        looks = 0
        pause = EVERY
        while not self._ended.wait(chance.uniform(0.5, 1.5) * pause):
            if self._activity[STAGE] != LOAD:
                continue

            looks += 1
            if looks >= SOON:
                pause = LATER

            # The stage is read again behind the look: the worker may have gone on to collate in between.
            waits = self._waits()
            frame = sys._current_frames().get(self._target)
            if frame is not None and self._activity[STAGE] == LOAD:
                seen = self._place(frame, waits=waits)
                # A frame keeps all its variables alive: during the pause that would be the samples of a batch.
                del frame
                if seen is not None:
                    self._seen[seen] += 1

    def _waits(self) -> bool:
        """Returns whether the worker waits for something from outside."""
        if self._calls is None:
            return False

        try:
            word = os.pread(self._calls, 32, 0).split(maxsplit=1)
        except OSError:
            self._calls = None
            return False

        return bool(word) and word[0].isdigit() and int(word[0]) in WAITING

    def _place(self, frame: FrameType, *, waits: bool) -> tuple[str, str] | None:
        """Returns the kind of what is done, and where; None outside of the dataset's code."""
        kind = None
        where = ""
        user = ""
        current: FrameType | None = frame
        for _ in range(DEEP):
            if current is None:
                return None
            code = current.f_code
            if code.co_filename.startswith(FETCH):
                if waits:
                    kind = "read"
                else:
                    kind = kind or "other"
                return kind, user or where

            # `f_lineno` is None where an instruction belongs to no line.
            line = current.f_lineno or code.co_firstlineno
            where = where or _words(code, line)
            if not user and not _is_library(code.co_filename):
                user = _words(code, line)
            if kind is None:
                kind = self._kind(code, line)
            current = current.f_back

        return None

    def _kind(self, code: CodeType, line: int) -> str | None:
        key = code, line
        if key not in self._known:
            self._known[key] = kind_of(code.co_filename, code.co_qualname, linecache.getline(code.co_filename, line))
        return self._known[key]


def kind_of(file: str, function: str, line: str) -> str | None:
    """Returns what a line of a function does, told by its words: "read", "decode", "transform"; None: unknown."""
    called = f"{function}("
    if PILLOW.search(file):
        if function in OPENING:
            return "decode"
        return "transform"

    if TRANSFORM.search(called):
        return "transform"

    for pattern, kind in ((DECODE, "decode"), (READ, "read")):
        if pattern.search(called):
            return kind

    for kind, files in FILES.items():
        if files.search(file):
            return kind

    for pattern, kind in ((TRANSFORM, "transform"), (DECODE, "decode"), (READ, "read")):
        if pattern.search(line):
            return kind

    return None


def _is_library(file: str) -> bool:
    return "site-packages" in file or "/lib/python" in file or file.startswith((HERE, "<"))


def _words(code: CodeType, line: int) -> str:
    return f"{code.co_qualname} ({name_of_file(code.co_filename)}:{line})"
