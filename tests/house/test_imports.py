"""What is loaded when: the package and the command line bring in what they use, and nothing else that is large."""

from __future__ import annotations

import builtins
import subprocess
import sys
from importlib.metadata import version

import pytest
import torch.utils.data

import headrace

pytestmark = pytest.mark.thorough  # `make contracts` runs these; each starts a Python of its own

OLD_TYPER = tuple(map(int, version("typer").split(".")[:2])) < (0, 29)
LARGE = "('torch', 'numpy', 'pyarrow', 'rich', 'pandas', 'typer')"


def loaded_by(program: str) -> set[str]:
    """Runs a program in a Python of its own; returns which of the large packages were imported at its end."""
    ending = f"\nimport sys; print(*[name for name in {LARGE} if name in sys.modules], file=sys.stderr)"
    done = subprocess.run(
        [sys.executable, "-c", program + ending], capture_output=True, text=True, timeout=100, check=True
    )
    return set(done.stderr.splitlines()[-1].split())


def loaded_by_command(*arguments: str) -> set[str]:
    """The same for a command. Older versions of typer import rich themselves, which is left out there."""
    loaded = loaded_by(
        "import contextlib, sys\n"
        "from headrace.cli.app import main\n"
        f"sys.argv = ['headrace', *{arguments!r}]\n"
        "with contextlib.suppress(SystemExit):\n"
        "    main()\n"
    )
    return loaded - {"rich"} if OLD_TYPER else loaded


def test_importing_the_package_loads_nothing_large() -> None:
    assert loaded_by("import headrace") == set()


def test_a_loader_loads_neither_pyarrow_nor_rich() -> None:
    program = "import headrace\nlist(headrace.DataLoader([1, 2, 3], batch_size=2))"
    assert loaded_by(program) == {"torch", "numpy"}


def test_no_public_name_loads_pyarrow_or_rich() -> None:
    program = "import headrace\nfor name in headrace.__all__:\n    getattr(headrace, name)"
    assert loaded_by(program) == {"torch", "numpy"}


@pytest.mark.parametrize("command", [(), ("run",), ("doctor",), ("pack",), ("inspect",)], ids=" ".join)
def test_help_loads_typer_alone(command: tuple[str, ...]) -> None:
    assert loaded_by_command(*command, "--help") == {"typer"}


def test_the_version_loads_typer_alone() -> None:
    assert loaded_by_command("--version") == {"typer"}


def test_every_public_name_is_there_by_attribute_by_import_and_in_dir() -> None:
    for name in headrace.__all__:
        imported: dict[str, object] = {}
        exec(f"from headrace import {name}", imported)
        assert imported[name] is getattr(headrace, name)
        assert name in dir(headrace)


def test_all_public_names_come_with_a_star_and_hide_no_builtin() -> None:
    imported: dict[str, object] = {}
    exec("from headrace import *", imported)
    assert set(headrace.__all__) <= set(imported)
    hidden = {name for name in set(imported) & set(dir(builtins)) if not name.startswith("__")}
    assert hidden == set()


def test_every_public_name_of_torch_is_here_too() -> None:
    public = set(torch.utils.data.__all__)
    assert public - set(headrace.__all__) == set()
    others = public - {"DataLoader"}
    assert [name for name in others if getattr(headrace, name) is not getattr(torch.utils.data, name)] == []


def test_what_is_shown_of_the_package_is_public() -> None:
    shown = {name for name in dir(headrace) if not name.startswith("__")}
    assert shown == {*headrace.__all__, "open"} - {"__version__"}


def test_a_name_that_does_not_exist_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="module 'headrace' has no attribute 'nosuch'"):
        headrace.nosuch  # noqa: B018
