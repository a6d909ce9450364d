"""The rules of the house that no other tool holds: sizes, names, and what library code may not do."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

import headrace

ROOT = Path(__file__).parents[2]
SOURCES = sorted((ROOT / "src").rglob("*.py"))
PYTHON = sorted(path for folder in ("src", "tests", "benchmarks", "examples") for path in (ROOT / folder).rglob("*.py"))
FORBIDDEN_NAMES = {"utils", "helpers", "common", "misc", "base"}
MAX_FILE_LINES = 400
MAX_FUNCTION_LINES = 60


def relative(path: Path) -> str:
    return str(path.relative_to(ROOT))


def functions(path: Path) -> list[ast.FunctionDef | ast.AsyncFunctionDef]:
    tree = ast.parse(path.read_text())
    return [node for node in ast.walk(tree) if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef))]


def is_setter(node: ast.FunctionDef | ast.ClassDef) -> bool:
    return any(isinstance(decorator, ast.Attribute) and decorator.attr == "setter" for decorator in node.decorator_list)


@pytest.mark.parametrize("path", PYTHON, ids=relative)
def test_a_file_holds_one_idea(path: Path) -> None:
    assert len(path.read_text().splitlines()) <= MAX_FILE_LINES


@pytest.mark.parametrize("path", SOURCES, ids=relative)
def test_a_function_fits_on_a_screen(path: Path) -> None:
    too_long = [node.name for node in functions(path) if (node.end_lineno or 0) - node.lineno >= MAX_FUNCTION_LINES]
    assert too_long == []


@pytest.mark.parametrize("path", SOURCES, ids=relative)
def test_a_file_name_says_what_is_in_it(path: Path) -> None:
    names = {part.removesuffix(".py") for part in path.relative_to(ROOT / "src").parts}
    assert names & FORBIDDEN_NAMES == set()


@pytest.mark.parametrize("path", SOURCES, ids=relative)
def test_every_module_says_what_it_is_for(path: Path) -> None:
    assert ast.get_docstring(ast.parse(path.read_text()))


@pytest.mark.parametrize("path", SOURCES, ids=relative)
def test_public_functions_and_classes_have_docstrings(path: Path) -> None:
    tree = ast.parse(path.read_text())
    kinds = (ast.FunctionDef, ast.ClassDef)
    bodies = [
        tree.body,
        *(node.body for node in tree.body if isinstance(node, ast.ClassDef) and node.name[0] != "_"),
    ]
    public = [node for body in bodies for node in body if isinstance(node, kinds) and node.name[0] != "_"]
    undocumented = [node.name for node in public if ast.get_docstring(node) is None and not is_setter(node)]
    assert undocumented == []


@pytest.mark.parametrize("path", SOURCES, ids=relative)
def test_library_code_asserts_nothing_and_leaves_no_work_undone(path: Path) -> None:
    text = path.read_text()
    assert not any(isinstance(node, ast.Assert) for node in ast.walk(ast.parse(text)))
    assert re.findall(r"\b(TODO|FIXME|XXX)\b", text) == []


def test_the_tree_names_no_path_of_a_machine() -> None:
    pattern = re.compile(r"(?<![\w.])/(work|home|root|opt)/\w")
    texts = [path for path in ROOT.rglob("*") if path.suffix in {".py", ".md", ".toml"} and ".venv" not in path.parts]
    offenders = [relative(path) for path in texts if path != Path(__file__) and pattern.search(path.read_text())]
    assert offenders == []


def test_the_public_words_are_few_and_known() -> None:
    assert sorted(headrace.__all__) == [
        "DataLoader",
        "ImageFolder",
        "Ragged",
        "Staged",
        "__version__",
        "compact",
        "load_quarantine",
        "merge_states",
        "open",
        "rng",
        "samplers",
        "shard",
        "step",
        "transforms",
        "writers",
    ]
