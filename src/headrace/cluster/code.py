"""A user's code on its way to another machine: which modules travel by value, and which versions must agree.

A program on another machine has the installed packages, but not the script and the modules beside it. Classes and
functions of those travel with the objects that need them.
"""

from __future__ import annotations

import contextlib
import importlib.metadata
import platform
import site
import sys
import sysconfig
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

from headrace.core.errors import ClusterError
from headrace.core.extras import extra
from headrace.version import __version__


@contextlib.contextmanager
def user_code_by_value() -> Iterator[None]:
    """Has `cloudpickle` pickle classes and functions of the user's own modules by value.

    Raises `MissingExtraError` without cloudpickle. Ray has a copy of its own, `ray.cloudpickle`: it is told, too, if it
    is imported.
    """
    picklers = [extra("cloudpickle", "ray")]
    if "ray.cloudpickle" in sys.modules:
        picklers.append(sys.modules["ray.cloudpickle"])

    added = []
    for module in users_modules():
        for pickler in picklers:
            if module.__name__ not in pickler.list_registry_pickle_by_value():
                pickler.register_pickle_by_value(module)
                added.append((pickler, module))

    try:
        yield
    finally:
        for pickler, module in added:
            pickler.unregister_pickle_by_value(module)


def users_modules() -> list[ModuleType]:
    """Returns the imported modules that lie in no folder of installed packages, nor in Python's or headrace's own."""
    installed = _folders_of_packages()
    found = []
    for name, module in list(sys.modules.items()):
        file = getattr(module, "__file__", None)
        if name in ("__main__", "__mp_main__") or not isinstance(file, str) or name != getattr(module, "__name__", ""):
            continue

        # Of a module that is pickled by value, its parent is asked for, too.
        path = Path(file)
        if not any(path.is_relative_to(folder) for folder in installed):
            found.append(module)

    return found


def _folders_of_packages() -> list[Path]:
    paths = sysconfig.get_paths()
    folders = [paths[name] for name in ("stdlib", "platstdlib", "purelib", "platlib")]
    folders += site.getsitepackages()
    folders.append(site.getusersitepackages())
    ours = Path(__file__).parents[1]
    return [ours, *(Path(folder) for folder in folders), *(Path(folder).resolve() for folder in folders)]


def versions() -> dict[str, str]:
    """Returns the versions that must agree between machines, since pickles pass between them."""
    return {
        "Python": ".".join(platform.python_version_tuple()[:2]),
        "headrace": __version__,
        "torch": _release_of("torch"),
        "numpy": _release_of("numpy").split(".")[0],
    }


def _release_of(package: str) -> str:
    """Returns a version without its build, such as "+cpu": machines without accelerator have another one."""
    return importlib.metadata.version(package).split("+")[0]


def check_versions(theirs: dict[str, str], host: str) -> None:
    """Raises `ClusterError` if another machine has versions that do not agree with the ones here."""
    ours = versions()
    differ = [name for name in ours if theirs.get(name) != ours[name]]
    if not differ:
        return

    raise ClusterError.about(
        "versions differ between machines",
        place=host,
        found=", ".join(f"{name} {theirs.get(name)}" for name in differ),
        expected=", ".join(f"{name} {ours[name]}" for name in differ) + ", as on the machine that trains",
        fix="install the same versions on all machines",
    )
