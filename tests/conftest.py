"""What holds for all tests."""

import gc
import multiprocessing
import signal
import traceback
from collections.abc import Generator, Iterator

import pytest

from tests.belongings import Children
from tests.selection import QUICK_EXAMPLES, is_of_part, is_quick, mark_thorough, parse_part

pytest_plugins = ["tests.servers.fixtures"]

WITH_CLIENTS = ("tests/sources/", "test_sql", "cli/test_logs", "test_live_examples")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--part", metavar="K/N", help="of the thorough tests, run only this part, such as 2/3")


def pytest_configure(config: pytest.Config) -> None:
    """Refuses a part that makes no sense. Lets Hypothesis take its time for an example: a test has a limit anyway."""
    if config.option.part is not None:
        parse_part(config.option.part)
    if config.pluginmanager.hasplugin("hypothesispytest"):
        from hypothesis import settings

        settings.register_profile("thorough", deadline=None)
        settings.register_profile("quick", deadline=None, max_examples=QUICK_EXAMPLES)
        settings.load_profile("quick" if is_quick(config) else "thorough")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Marks the cases that `make test` leaves out, leaves out those of other parts, and puts some behind the others.

    Those with clients of brokers come late, and those that need Ray last: a cluster that waits takes a part of the
    cores.
    """
    mark_thorough(items)
    if config.option.part is not None:
        part, parts = parse_part(config.option.part)
        items[:] = [item for item in items if is_of_part(item, part, parts)]
    items.sort(key=lambda item: (has_clients(item), needs_ray(item)))


def has_clients(item: pytest.Item) -> bool:
    """Tells whether a test uses clients of brokers and databases: their threads open and close connections for a while
    after it, which tests that count descriptors would see."""
    return any(name in item.nodeid for name in WITH_CLIENTS)


def needs_ray(item: pytest.Item) -> bool:
    """Tells whether a test needs the Ray cluster that all tests of a process share."""
    return "ray_cluster" in getattr(item, "fixturenames", ())


def pytest_collection_finish() -> None:
    """Leaves what was imported out of later collections: tests that look for leaks collect again and again."""
    gc.collect()
    gc.freeze()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Lets go of what a failed test had in its variables: the traceback, which pytest keeps, would keep loaders alive.

    The report has been written by now. A debugger still wants the variables.
    """
    report = yield
    error = call.excinfo and call.excinfo.value
    while error is not None and not item.config.option.usepdb:
        traceback.clear_frames(error.__traceback__)
        # Before Python 3.13 a frame that was shown also has a dictionary of its variables: to ask for it renews it.
        for frame, _ in traceback.walk_tb(error.__traceback__):
            frame.f_locals.keys()
        error = error.__cause__ or error.__context__
    return report


@pytest.fixture(autouse=True)
def little_to_collect() -> Iterator[None]:
    """Collects garbage after each test, and keeps the rest out of later collections.

    Torch and pytest leave a million objects. To look through them takes a quarter of a second, which many a test would
    do several times.
    """
    yield
    gc.collect()
    gc.freeze()


@pytest.fixture
def children() -> Children:
    """Tells which child processes were started since the test began and still run."""
    before = set(multiprocessing.active_children())
    return lambda: [child for child in multiprocessing.active_children() if child not in before]


@pytest.fixture
def looked_at_each_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """Has the tuner of `num_workers="auto"` look at each batch, rather than a few times a second."""
    monkeypatch.setattr("headrace.workers.auto.scaling.LOOK", 0.0)
    monkeypatch.setattr("headrace.workers.auto.scaling.LOOK_SETTLED", 0.0)


@pytest.fixture(scope="session", autouse=True)
def ctrl_c_is_heard() -> Iterator[None]:
    """Shells start background jobs with SIGINT ignored, and programs that tests start would inherit that."""
    before = signal.getsignal(signal.SIGINT)
    if before == signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)
