"""What tells that forks of a process would not be what processes of their own are."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from tests import programs

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")

SCRIPT = """
import os
from headrace.workers.processes.fork_safety import reason_not_to_fork
{code}
class Nothing:
    pass
held = Nothing()
{attributes}
print(reason_not_to_fork((), (), globals().pop("held")))
"""

THREADS = {
    "a thread pool": (
        "from concurrent.futures import ThreadPoolExecutor\npool = ThreadPoolExecutor(1)\npool.submit(abs, 1)",
        "threads run after its modules were imported and the dataset was unpickled: ThreadPoolExecutor-0_0",
    ),
    "an event loop": (
        "import asyncio, threading\nloop = asyncio.new_event_loop()\n"
        "threading.Thread(target=loop.run_forever, name='loop', daemon=True).start()",
        "threads run after its modules were imported and the dataset was unpickled: loop",
    ),
    "threads of a library": (
        "import pyarrow as pa\npa.table({'a': range(100_000)}).group_by('a').aggregate([])",
        "threads run after its modules were imported and the dataset was unpickled: ",
    ),
}

CUDA = {
    # As torch notes it, also where there is none.
    "CUDA": ("import torch\ntorch.cuda._initialized = True", "CUDA was initialized"),
}

FORKS = {
    "a hook that raises": (
        "def refuse(): raise RuntimeError('not me')\nos.register_at_fork(before=refuse)",
        "a library asks not to be forked: RuntimeError('not me')",
    ),
    "a hook that warns": (
        "import warnings\nos.register_at_fork(before=lambda: warnings.warn('do not fork me'))",
        "a library asks not to be forked: do not fork me",
    ),
    "a hook in the child that raises": (
        "def refuse(): raise RuntimeError('not me')\nos.register_at_fork(after_in_child=refuse)",
        "a fork on trial failed",
    ),
    "a hook in the child that hangs": (
        "import signal\nos.register_at_fork(after_in_child=signal.pause)",
        "a fork on trial failed",
    ),
    "forks that are forbidden": (
        "import sys\ndef audit(event, arguments):\n    if event == 'os.fork': raise PermissionError('no forks here')\n"
        "sys.addaudithook(audit)",
        "a fork on trial failed: PermissionError('no forks here')",
    ),
}

SHARED = {
    "a program that runs": (
        "import subprocess\nserver = subprocess.Popen(['cat'], stdin=subprocess.PIPE)",
        "it has started a process of its own: cat",
    ),
    "a file that is read": ("file = open(os.__file__, 'rb')", "it has a file open, whose place forks would share: /"),
    "a file that is shared by writing": (
        "import mmap, tempfile\nfile = tempfile.TemporaryFile(dir='.')\nfile.truncate(100)\n"
        "mapped = mmap.mmap(file.fileno(), 100)",
        "it has a file open, whose place forks would share: /",
    ),
    "a connection": (
        "import socket\nconnection = socket.socket()",
        "it has something open that forks would share: socket:",
    ),
    "an epoll object": ("import select\npoll = select.epoll()", "it has something open that forks would share: anon"),
}

VALUES = {
    "the number of the process": ("PID = os.getpid()", "__main__.PID is or holds the number of the process"),
    "the number of the process in a dictionary": (
        "OWNER = {'pid': [os.getpid()]}",
        "__main__.OWNER is or holds the number of the process",
    ),
    "a NumPy generator": (
        "import numpy as np\nRNG = np.random.default_rng()",
        "__main__.RNG is or holds a random generator whose seed is not the program's",
    ),
    "a generator of torch": (
        "import torch\nRNG = [torch.Generator()]\nRNG[0].seed()",
        "__main__.RNG is or holds a random generator whose seed is not the program's",
    ),
    "a generator of a class": (
        "import random\nclass Data: rng = random.Random()",
        "Data.rng is or holds a random generator whose seed is not the program's",
    ),
}

HARMLESS = {
    "nothing": "",
    "NumPy's threads": "import numpy as np\nnp.ones((300, 300)) @ np.ones((300, 300))",
    "a thread that has ended": (
        "import threading\nthread = threading.Thread(target=abs, args=(1,))\nthread.start()\nthread.join()"
    ),
    "a program that has ended": "import subprocess\nsubprocess.run(['true'])",
    "a file that is closed": "with open(os.__file__) as file: file.read()",
    "a log": "import logging\nlogging.basicConfig(filename='train.log')",
    "a file that is mapped": "import numpy as np\narray = np.memmap(os.__file__, mode='r')",
    "shared memory": (
        "from multiprocessing.shared_memory import SharedMemory\n"
        "block = SharedMemory(create=True, size=9)\nblock.unlink()"
    ),
    "a pipe": "ends = os.pipe()",
    "a generator with a seed": "import numpy as np\nRNG = np.random.default_rng(3)",
    "generators of torch with a seed, and without": (
        "import torch\nRNG = torch.Generator().manual_seed(3), torch.Generator(), torch.default_generator"
    ),
    "generators that are seeded in workers": (
        "import random, numpy as np\nRNG = random._inst\nOTHER = np.random.mtrand._rand"
    ),
    "a number that nobody has asked for": "from pathlib import Path\nNUMBER = int(Path('/proc/self').readlink().name)",
}


def reason(code: str, folder: Path, attributes: str = "", *, fresh: bool = False) -> str:
    """Returns what is printed by a program with this code. fresh: it is no copy of a process with imported modules."""
    script = folder / "script.py"
    script.write_text(SCRIPT.format(code=code, attributes=attributes))
    ended = programs.run([script], cwd=folder, fresh=fresh)
    assert ended.stderr == ""
    return ended.stdout.strip()


REASONS = {**THREADS, **CUDA, **FORKS, **SHARED, **VALUES}


@pytest.mark.parametrize(("code", "expected"), REASONS.values(), ids=REASONS)
def test_what_speaks_against_forks_is_named(code: str, expected: str, tmp_path: Path) -> None:
    assert reason(code, tmp_path).startswith(expected)


@pytest.mark.parametrize("code", HARMLESS.values(), ids=HARMLESS)
def test_what_forks_do_well_is_no_reason(code: str, tmp_path: Path) -> None:
    assert reason(code, tmp_path) == ""


@pytest.mark.thorough
def test_an_allocator_s_thread_is_no_reason(tmp_path: Path) -> None:
    names = "names = [(thread / 'comm').read_text() for thread in Path('/proc/self/task').iterdir()]"
    code = f"from pathlib import Path\nimport pyarrow\n{names}\nassert 'jemalloc_bg_thd\\n' in names"
    assert reason(code, tmp_path, fresh=True) == ""


@pytest.mark.thorough
def test_attributes_of_the_dataset_count_too(tmp_path: Path) -> None:
    told = reason("import numpy as np", tmp_path, "held.pid = os.getpid()\nheld.rng = np.random.default_rng()")
    assert told == "Nothing.pid is or holds the number of the process"
    told = reason("import numpy as np", tmp_path, "held.pids = {'own': [os.getpid()]}")
    assert told == "Nothing.pids['own'][0] is or holds the number of the process"
