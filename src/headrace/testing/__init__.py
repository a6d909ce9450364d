"""A kit for testing data pipelines: make them fail on purpose, and see what is left behind.

pytest is not needed; `headrace.testing.fixtures` has fixtures for those who use it.
"""

from headrace.testing.accelerator import SimulatedAccelerator
from headrace.testing.attempts import Attempts
from headrace.testing.belongings import descendants
from headrace.testing.calls import FaultyCall, FaultyPickle, flaky
from headrace.testing.datasets import Faulty, FaultyStream
from headrace.testing.faults import Exit, Fault, Hang, Kill, Raise, Segfault
from headrace.testing.killer import Killer
from headrace.testing.leaks import LeakError, no_leaks
from headrace.testing.memory_faults import Balloon, Leak, LimitMemory
from headrace.testing.stores import FlakyFileSystem, SlowFileSystem

__all__ = [
    "Attempts",
    "Balloon",
    "Exit",
    "Fault",
    "Faulty",
    "FaultyCall",
    "FaultyPickle",
    "FaultyStream",
    "FlakyFileSystem",
    "Hang",
    "Kill",
    "Killer",
    "Leak",
    "LeakError",
    "LimitMemory",
    "Raise",
    "Segfault",
    "SimulatedAccelerator",
    "SlowFileSystem",
    "descendants",
    "flaky",
    "no_leaks",
]
