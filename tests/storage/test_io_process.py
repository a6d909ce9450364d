"""The I/O process: answers several processes, is started anew when it dies, and ends with its parent."""

from __future__ import annotations

import json
import multiprocessing
import os
import signal
import socket
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from headrace.core.errors import ObjectNotFoundError, StorageError
from headrace.storage.fetching import unix_sockets
from headrace.storage.fetching.endpoint import endpoint
from headrace.storage.fetching.io_client import PREFIX, SOCKET, IOClient, IOProcess
from headrace.storage.fetching.ranges import ByteRange, ObjectVersion, PlannedRead
from headrace.storage.fetching.read_plan import Plan
from headrace.storage.locations import parse
from headrace.storage.stores.objects import store_config
from headrace.storage.stores.registry import RegisteredStore, StoreSettings, known, register
from tests.servers.faulty import Fault, FaultyServer

DATA = os.urandom(100_000)


@pytest.fixture
def io_process() -> Iterator[IOProcess]:
    made = IOProcess()
    pid = made.pid
    yield made
    made.close()
    assert ended(pid)


def ended(pid: int) -> bool:
    """Waits until a child is gone, and is reaped by who has started it."""
    waiting = threading.Event()
    for _ in range(1000):
        try:
            os.kill(pid, 0)
        except ProcessLookupError:
            return True
        waiting.wait(0.01)
    return False


@pytest.fixture
def objects(faulty_server: FaultyServer) -> Iterator[list[ByteRange]]:
    """Ranges of three objects, and where they are read from."""
    options = {**faulty_server.s3_options, "max_retries": 3}
    store = register(StoreSettings(store_config(parse("s3://b"), options), None))
    wanted = []
    for number in range(3):
        faulty_server.put("b", f"k{number}", DATA[number:])
        version = ObjectVersion(store.name, f"k{number}", None, len(DATA) - number)
        wanted += [ByteRange(version, 0, 10), ByteRange(version, 10_000, 80_000)]

    yield wanted
    assert known(store.name) is store


def contents(wanted: list[ByteRange]) -> list[bytes]:
    found = []
    for one in wanted:
        number = int(one.object.key[1:])
        found.append(DATA[number + one.start : number + one.stop])

    return found


def test_ranges_come_as_they_are_stored(io_process: IOProcess, objects: list[ByteRange]) -> None:
    assert io_process.client.read(objects) == contents(objects)
    out = bytearray(sum(one.size for one in objects))
    io_process.client.read_into(objects, memoryview(out))
    assert out == b"".join(contents(objects))


TELLS = """
import json, sys
from headrace.storage.fetching.endpoint import endpoint
from headrace.storage.fetching.io_client import IOProcess
from headrace.storage.locations import parse
from headrace.storage.stores.objects import store_config
from headrace.storage.fetching.ranges import ByteRange, ObjectVersion
from headrace.storage.stores.registry import StoreSettings, cache_settings, register

folder, options, told_here = json.loads(sys.argv[1])
settings = cache_settings(folder, None, "s3://b")
store = register(StoreSettings(store_config(parse("s3://b"), options), settings))
wanted = []
for key in ("k0", "k1"):
    info = store.opened().head(key)
    wanted.append(ByteRange(ObjectVersion(store.name, key, info.etag, info.size), 0, info.size))
if told_here:
    endpoint().read(wanted[:1])
io_process = IOProcess()
for _ in range(2):
    assert len(io_process.client.read(wanted[1:])[0]) == wanted[1].size
io_process.close()
"""


@pytest.mark.parametrize("told_here", [True, False])
def test_trouble_with_a_cache_is_told_once(small_disk: Path, faulty_server: FaultyServer, told_here: bool) -> None:
    for key in ("k0", "k1"):
        faulty_server.put("b", key, bytes(4 << 20))
    given = json.dumps([str(small_disk / "cache"), faulty_server.s3_options, told_here])
    ran = subprocess.run([sys.executable, "-c", TELLS, given], capture_output=True, text=True, timeout=60, check=True)
    assert ran.stderr.count("failed in writing: No space left on device") == 1


def test_what_was_announced_is_not_fetched_twice(
    io_process: IOProcess, objects: list[ByteRange], faulty_server: FaultyServer
) -> None:
    io_process.client.announce(1, [PlannedRead(0, objects)])
    assert io_process.client.read(objects) == contents(objects)
    assert len(faulty_server.asked()) == len(objects) // 2
    io_process.client.passed(1, 0)
    io_process.client.abandon(1)
    assert io_process.client.count().requests == len(objects) // 2


def test_a_dropped_plan_leaves_nothing_in_the_io_process(
    io_process: IOProcess, objects: list[ByteRange], faulty_server: FaultyServer
) -> None:
    plan = Plan(io_process.client)
    plan.announce(0, objects)
    plan.tell()
    del plan
    other = Plan(io_process.client)
    other.announce(0, objects[:1])
    other.tell()
    assert io_process.client.read(objects[:1]) == contents(objects[:1])
    before = asked_for("k0", faulty_server)
    # The former plan would have had it kept for itself.
    assert io_process.client.read(objects[:1]) == contents(objects[:1])
    assert asked_for("k0", faulty_server) == before + 1


def asked_for(key: str, server: FaultyServer) -> int:
    """Returns how many requests there were for an object."""
    return sum(request.path.endswith(key) for request in server.asked())


def test_errors_come_to_whoever_asked(io_process: IOProcess, objects: list[ByteRange]) -> None:
    missing = ByteRange(objects[0].object._replace(key="nothing"), 0, 10)
    with pytest.raises(ObjectNotFoundError, match="nothing"):
        io_process.client.read([missing])
    assert io_process.client.read(objects[:1]) == contents(objects[:1])


def test_a_refusal_that_stays_is_an_error(
    io_process: IOProcess, objects: list[ByteRange], faulty_server: FaultyServer
) -> None:
    faulty_server.always = Fault("status", 503)
    with pytest.raises(StorageError, match="503"):
        io_process.client.read(objects[:1])
    assert io_process.client.count().busy > 0


def test_a_killed_one_is_started_anew(io_process: IOProcess, objects: list[ByteRange]) -> None:
    for _ in range(3):
        pid = io_process.pid
        os.kill(pid, signal.SIGKILL)
        assert io_process.client.read(objects) == contents(objects)
        assert io_process.pid != pid


def _read_in_a_child(address: str, wanted: list[ByteRange], store: RegisteredStore, answers: object) -> None:
    assert known(store.name) is store
    answers.put([bytes(part) for part in IOClient(address).read(wanted)])  # type: ignore[attr-defined]


@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_several_processes_read_through_one(io_process: IOProcess, objects: list[ByteRange], method: str) -> None:
    context = multiprocessing.get_context(method)
    answers = context.Queue()
    store = known(objects[0].object.store)
    assert store is not None
    io_process.client.read(objects)
    children = []
    for _ in range(2):
        child = context.Process(target=_read_in_a_child, args=(io_process.address, objects, store, answers))
        child.start()
        children.append(child)

    # Each child waits until its answer was taken.
    for _ in children:
        assert answers.get(timeout=60) == contents(objects)
    for child in children:
        child.join(60)
        assert child.exitcode == 0


def test_several_threads_read_through_one(io_process: IOProcess, objects: list[ByteRange]) -> None:
    wrong = []

    def read() -> None:
        for _ in range(20):
            if io_process.client.read(objects) != contents(objects):
                wrong.append(1)

    threads = [threading.Thread(target=read) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert wrong == []


def _read_here(wanted: list[ByteRange], answers: object) -> None:
    answers.put([bytes(part) for part in endpoint().read(wanted)])  # type: ignore[attr-defined]


def test_a_child_that_somebody_forked_reads_through_one_of_its_own(objects: list[ByteRange]) -> None:
    """The client of this process has threads, which the child does not have."""
    assert endpoint().read(objects) == contents(objects)
    context = multiprocessing.get_context("fork")
    answers = context.Queue()
    child = context.Process(target=_read_here, args=(objects, answers))
    child.start()
    assert answers.get(timeout=60) == contents(objects)
    child.join(60)
    assert child.exitcode == 0


PARENT = """
import sys, time
from headrace.storage.fetching.io_client import IOProcess
running = IOProcess()
print(running.pid, running.address, flush=True)
sys.stdin.read()
"""


@pytest.mark.thorough
@pytest.mark.parametrize("killed", [False, True])
def test_it_ends_with_its_parent(killed: bool) -> None:
    parent = subprocess.Popen([sys.executable, "-c", PARENT], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert parent.stdin is not None
    assert parent.stdout is not None
    pid, address = parent.stdout.readline().split()
    if killed:
        parent.kill()
    else:
        parent.stdin.close()
    parent.wait(60)
    parent.stdout.close()
    if killed:
        parent.stdin.close()
    assert ended(int(pid))
    assert not Path(address).parent.exists()


# -- how it ends -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("at_once", [False, True])
def test_ctrl_c_is_for_its_parent(io_process: IOProcess, objects: list[ByteRange], at_once: bool) -> None:
    if not at_once:
        assert io_process.client.read(objects[:1]) == contents(objects[:1])
    pid = io_process.pid
    os.kill(pid, signal.SIGINT)
    assert io_process.client.read(objects) == contents(objects)
    assert io_process.pid == pid


FORKING_PARENT = """
import os, sys, time
from headrace.storage.fetching.io_client import IOProcess
running = IOProcess()
child = os.fork()
if child == 0:
    while True:
        time.sleep(60)
print(running.pid, child, running.address, flush=True)
sys.stdin.readline()
running.close()
print("closed", flush=True)
sys.stdin.read()
"""


@pytest.mark.thorough
@pytest.mark.parametrize("killed", [False, True])
def test_it_ends_though_a_forked_child_lives(killed: bool) -> None:
    """The child has the parent's end of the pipe, and holds it open."""
    command = [sys.executable, "-c", FORKING_PARENT]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as parent:
        assert parent.stdin is not None
        assert parent.stdout is not None
        pid, child, address = parent.stdout.readline().split()
        try:
            if killed:
                parent.kill()
                parent.wait(60)
            else:
                parent.stdin.write("\n")
                parent.stdin.flush()
                assert parent.stdout.readline() == "closed\n"
            assert ended(int(pid))
            assert not Path(address).parent.exists()
        finally:
            os.kill(int(child), signal.SIGKILL)
            parent.kill()


def test_one_that_is_closed_while_it_is_started_anew_ends() -> None:
    others = set(threading.enumerate())
    made = IOProcess()
    (watching,) = set(threading.enumerate()) - others
    running = made._running
    start = running.start
    starting = threading.Event()
    go_on = threading.Event()

    def held_up() -> None:
        starting.set()
        assert go_on.wait(60)
        start()

    running.start = held_up  # type: ignore[method-assign]
    os.kill(made.pid, signal.SIGKILL)
    assert starting.wait(60)
    closing = threading.Thread(target=made.close)
    closing.start()
    # Long enough for one that does not wait to be through.
    closing.join(0.2)
    go_on.set()
    closing.join(60)
    assert not closing.is_alive()
    assert ended(made.pid)
    # An exception in it is an error of this test.
    watching.join(60)
    assert not watching.is_alive()


@pytest.mark.parametrize("name", ["short", "a" * 90 + "/" + "b" * 90])
def test_folders_of_killed_ones_are_removed(tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """However deep the folder for temporary files lies: the path of a Unix socket has 107 bytes at most."""
    folder = tmp_path / name
    folder.mkdir(parents=True)
    monkeypatch.setattr(tempfile, "tempdir", str(folder))
    abandoned = folder / f"{PREFIX}gone"
    abandoned.mkdir()
    with socket.socket(socket.AF_UNIX) as listener:
        unix_sockets.bind(listener, abandoned / SOCKET)
        listener.listen()
    mine = folder / f"{PREFIX}mine"
    mine.mkdir()
    (mine / "file").write_text("mine")
    first = IOProcess()
    second = IOProcess()
    left = {path.name for path in folder.iterdir()}
    assert left == {mine.name, Path(first.address).parent.name, Path(second.address).parent.name}
    second.close()
    assert first.client.count().requests == 0
    first.close()
    assert [mine] == list(folder.iterdir())


# -- plans -------------------------------------------------------------------------------------------------------------


def test_a_plan_may_be_told_of_by_several_threads(io_process: IOProcess, objects: list[ByteRange]) -> None:
    """Each of them has a connection of its own."""
    client = io_process.client
    plan = 7
    client.announce(plan, [PlannedRead(0, objects)])
    waiting = threading.Event()
    for _ in range(1000):
        if client.count().requests == 3:
            break
        waiting.wait(0.01)

    def forget() -> None:
        client.abandon(plan)
        client.passed(0, 0)
        client.count()  # whose answer comes behind it

    forgetting = threading.Thread(target=forget)
    forgetting.start()
    forgetting.join(60)
    # What was kept for the plan is gone: it is asked for again.
    assert client.read(objects) == contents(objects)
    assert client.count().requests == 6


def number_of_a_plan() -> int:
    return Plan(IOClient("nowhere"))._number


def test_plans_of_two_processes_have_different_numbers() -> None:
    with multiprocessing.get_context("fork").Pool(1) as pool:
        theirs = pool.apply(number_of_a_plan)
    assert theirs != number_of_a_plan()
