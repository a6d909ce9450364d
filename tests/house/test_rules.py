"""The rules of the house that no other tool holds: sizes, names, and what library code may not do."""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Callable, Iterator
from importlib import metadata
from pathlib import Path

import torch.utils.data
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

import headrace

ROOT = Path(__file__).parents[2]
SOURCES = sorted((ROOT / "src").rglob("*.py"))
PYTHON = sorted(path for folder in ("src", "tests", "benchmarks", "examples") for path in (ROOT / folder).rglob("*.py"))
ENVIRONMENTS = {".venv", ".venv-clients", ".venv-demo", ".venv-matrix"}
FORBIDDEN_NAMES = {"utils", "helpers", "common", "misc", "base"}
NOUNS = {
    "decoding", "fetching", "finding", "formatting", "framing", "grouping", "listing", "loading", "opening", "packing",
    "pinning", "planning", "recording", "reporting", "scaling", "setting", "sharding", "stacking", "testing", "wording",
    "building", "lightning",
}  # fmt: skip
MODULES = {"os", "sys", "mmap", "signal", "signals", "socket", "torch"}
OF_OTHERS = {
    "batch_size", "closed", "compose", "cursor", "data", "dataset", "detach", "features", "filename",
    "format_code_name", "fp", "func", "getbands", "group_by_length", "lib_version", "name", "names", "orig",
    "process", "processors", "raw_connection", "response", "rich_help_panel", "sampler", "send_signal",
    "set_random_state", "shape", "status", "status_code", "strerror", "train_sampling_strategy", "values",
}  # fmt: skip
"""Attributes of objects that Python, torch and other libraries define."""
OF_HEADRACE = {
    "SUFFIXES", "as_source", "backend", "imgs", "indices", "inner", "of_a_step", "packed", "ragged", "seed", "shard",
    "source",
}  # fmt: skip
"""Attributes that headrace gives to objects of its own, or says in `protocols.py` in words."""
ASKING = {"getattr", "hasattr", "answers", "says_yes"}
"""How an attribute is looked for by its name."""
CALLED_AS_METHODS = {"commit", "__call__"}
"""Listed in `protocols.py`, and found otherwise than by `getattr` with a literal."""
SKIPPED_IF_MISSING = {"torchvision"}
"""Tests that need one of these say that they are skipped where it is not installed."""
MAX_FILE_LINES = 400
MAX_FUNCTION_LINES = 57
MAX_IMPORTS = 15
MORE_IMPORTS = {
    "loader/dataloader.py": 27,
    "cli/run.py": 24,
    "workers/threads.py": 24,
    "workers/processes/worker_main.py": 23,
    "data/formats/arrow/parquet.py": 22,
    "data/staged/staged.py": 22,
    "loader/iterator.py": 23,
    "data/convert/pack.py": 21,
    "loader/executors.py": 19,
    "workers/replica.py": 21,
    "data/formats/arrow/ipc_ranges.py": 20,
    "workers/auto/trial.py": 20,
    "data/formats/registry.py": 19,
    "epoch/opening.py": 19,
    "cli/inspect.py": 18,
    "data/formats/arrow/ipc.py": 18,
    "data/stored.py": 18,
    "workers/inline.py": 18,
    "data/formats/huggingface.py": 17,
    "data/live/dataset.py": 17,
    "data/staged/planning.py": 17,
    "data/formats/idx.py": 16,
    "data/formats/tensordict_memmap.py": 16,
    "data/live/schemes.py": 16,
    "types.py": 19,
}


def relative(path: Path) -> str:
    return str(path.relative_to(ROOT))


def functions(path: Path) -> list[ast.FunctionDef | ast.AsyncFunctionDef]:
    tree = ast.parse(path.read_text())
    return [node for node in ast.walk(tree) if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef))]


def is_setter(node: ast.FunctionDef | ast.ClassDef) -> bool:
    return any(isinstance(decorator, ast.Attribute) and decorator.attr == "setter" for decorator in node.decorator_list)


def attributes_asked_for(path: Path) -> set[str]:
    """The public attributes that a file looks for on what is no module."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        match node:
            case ast.Call(func=ast.Name(id=asking), args=[thing, ast.Constant(value=str(name)), *_]) if (
                asking in ASKING
            ):
                if ast.unparse(thing) not in MODULES and not name.startswith("_"):
                    found.add(name)
    return found


def installed_with(package: str, extras: set[str], found: set[str] | None = None) -> set[str]:
    """Returns the names of all packages that pip installs with one."""
    found = set() if found is None else found
    for line in metadata.requires(package) or []:
        requirement = Requirement(line)
        marker = requirement.marker
        if marker is not None and not any(marker.evaluate({"extra": extra}) for extra in {"", *extras}):
            continue
        name = f"{canonicalize_name(requirement.name)}{sorted(requirement.extras)}"
        if name not in found:
            found.add(name)
            installed_with(requirement.name, requirement.extras, found)
    return found


def imported(path: Path) -> Iterator[str]:
    """The packages that a file imports, each by the first part of its name."""
    for node in ast.walk(ast.parse(path.read_text())):
        match node:
            case ast.Import(names=names):
                yield from (alias.name.partition(".")[0] for alias in names)
            case ast.ImportFrom(module=str(module), level=0):
                yield module.partition(".")[0]


def offenders(paths: list[Path], fails: Callable[[Path], object]) -> dict[str, object]:
    """The files that break a rule, with how."""
    found = {relative(path): fails(path) for path in paths}
    return {path: how for path, how in found.items() if how}


def test_files_hold_one_idea() -> None:
    """Blank lines between paragraphs do not count: nobody shall save on them."""

    def too_many_lines(path: Path) -> int:
        count = sum(1 for line in path.read_text().splitlines() if line.strip())
        return count if count > MAX_FILE_LINES else 0

    assert offenders(PYTHON, too_many_lines) == {}


def test_functions_fit_on_a_screen() -> None:
    """Docstrings do not count: nobody shall save on the description of an argument."""

    def too_long(path: Path) -> list[str]:
        lines = path.read_text().splitlines()

        def length(node: ast.FunctionDef | ast.AsyncFunctionDef) -> int:
            body = node.body
            if ast.get_docstring(node) is not None and len(body) > 1:
                body = body[1:]
            return sum(1 for line in lines[body[0].lineno - 1 : node.end_lineno] if line.strip())

        return [node.name for node in functions(path) if length(node) >= MAX_FUNCTION_LINES]

    assert offenders(SOURCES, too_long) == {}


def test_file_names_say_what_is_in_them() -> None:
    """A file is named by a thing; a word that ends in -ing must be a noun that the field uses."""

    def forbidden(path: Path) -> set[str]:
        names = {part.removesuffix(".py") for part in path.relative_to(ROOT / "src").parts}
        participles = {name for name in names if name.endswith("ing") and name.rpartition("_")[2] not in NOUNS}
        return names & FORBIDDEN_NAMES | participles

    assert offenders(SOURCES, forbidden) == {}


def test_every_module_says_what_it_is_for() -> None:
    assert offenders(SOURCES, lambda path: not ast.get_docstring(ast.parse(path.read_text()))) == {}


def documented_methods() -> set[str]:
    """The methods that some class of the package documents, by which others with the same name are known."""
    classes = (
        node for path in SOURCES for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.ClassDef)
    )
    methods = (node for one in classes for node in one.body if isinstance(node, ast.FunctionDef))
    return {node.name for node in methods if ast.get_docstring(node) is not None}


def test_public_functions_and_classes_have_docstrings() -> None:
    """What a protocol documents needs no word where a class or a module implements it."""
    known = documented_methods()

    def without(path: Path) -> list[str]:
        tree = ast.parse(path.read_text())
        kinds = (ast.FunctionDef, ast.ClassDef)
        classes = [node for node in tree.body if isinstance(node, ast.ClassDef) and node.name[0] != "_"]
        bodies = [tree.body, *(node.body for node in classes)]
        public = [node for body in bodies for node in body if isinstance(node, kinds) and node.name[0] != "_"]
        undocumented = [node for node in public if ast.get_docstring(node) is None and not is_setter(node)]
        return [node.name for node in undocumented if node.name not in known]

    assert offenders(SOURCES, without) == {}


def test_no_class_name_stands_in_two_modules() -> None:
    homes: dict[str, set[str]] = {}
    for path in SOURCES:
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ClassDef):
                homes.setdefault(node.name, set()).add(relative(path))
    assert {name: sorted(paths) for name, paths in homes.items() if len(paths) > 1} == {}


def modules_imported(path: Path) -> set[str]:
    """The modules of ours that a file imports, wherever in it and for whatever."""
    names: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("headrace."):
            folder = ROOT / "src" / str(node.module).replace(".", "/")
            for alias in node.names:
                is_module = (folder / f"{alias.name}.py").exists() or (folder / alias.name).is_dir()
                names.add(f"{node.module}.{alias.name}" if is_module else str(node.module))
    return names


def test_modules_import_few_others() -> None:
    """Those that put many parts together are listed, and may only get fewer imports."""
    counts = {path.relative_to(ROOT / "src/headrace").as_posix(): len(modules_imported(path)) for path in SOURCES}
    assert {path: count for path, count in counts.items() if count > MAX_IMPORTS} == MORE_IMPORTS


def test_library_code_asserts_nothing_and_leaves_no_work_undone() -> None:
    def asserts_or_notes(path: Path) -> list[str]:
        text = path.read_text()
        asserts = [f"line {node.lineno}" for node in ast.walk(ast.parse(text)) if isinstance(node, ast.Assert)]
        return asserts + re.findall(r"\b(TODO|FIXME|XXX)\b", text)

    assert offenders(SOURCES, asserts_or_notes) == {}


def test_every_attribute_that_is_looked_for_on_a_users_object_stands_in_one_file() -> None:
    asked = {name for path in SOURCES for name in attributes_asked_for(path)}
    listed = set()
    for node in ast.walk(ast.parse((ROOT / "src/headrace/core/protocols.py").read_text())):
        if isinstance(node, ast.ClassDef):
            listed |= {member.name for member in node.body if isinstance(member, ast.FunctionDef)}
            listed |= {member.target.id for member in node.body if isinstance(member, ast.AnnAssign)}

    assert asked - listed - OF_OTHERS - OF_HEADRACE == set()
    assert listed - asked - CALLED_AS_METHODS == set()


def test_the_tree_names_no_path_of_a_machine() -> None:
    pattern = re.compile(r"(?<![\w.])/(work|home|root|opt)/\w")
    texts = [
        path for path in ROOT.rglob("*") if path.suffix in {".py", ".md", ".toml"} and not ENVIRONMENTS & {*path.parts}
    ]
    named = [relative(path) for path in texts if path != Path(__file__) and pattern.search(path.read_text())]
    assert named == []


def test_what_the_tests_import_is_installed_for_development() -> None:
    """A package that somebody installed by hand would be missing on every other machine."""
    installed = {name.partition("[")[0] for name in installed_with("headrace", {"dev"})}
    distributions = metadata.packages_distributions()
    own = {"headrace", *(path.name for path in ROOT.iterdir() if path.is_dir())} | sys.stdlib_module_names

    def missing(path: Path) -> list[str]:
        return [
            name
            for name in sorted({*imported(path)} - own - SKIPPED_IF_MISSING)
            if not installed & {canonicalize_name(distribution) for distribution in distributions.get(name, [])}
        ]

    tests = [path for path in PYTHON if ROOT / "tests" in path.parents and ROOT / "tests/clients" not in path.parents]
    assert offenders(tests, missing) == {}


def test_type_checkers_find_each_public_name_once() -> None:
    stub = ast.parse((ROOT / "src/headrace/__init__.pyi").read_text())
    names = [alias.asname for node in stub.body if isinstance(node, ast.ImportFrom) for alias in node.names]
    assert len(names) == len(set(names))
    # A star would bring torch's `DataLoader`, too, and checkers differ in which of two they take.
    assert None not in names
    assert {*torch.utils.data.__all__, *headrace.__all__} <= {*names}


def test_the_public_words_are_few_and_known() -> None:
    words = {*headrace.__all__, "open"} - set(torch.utils.data.__all__)
    assert sorted(words) == [
        "Auto",
        "ImageFolder",
        "LoaderState",
        "OnError",
        "OpenMetricsWriter",
        "PackOptions",
        "PackedStream",
        "Ray",
        "Shard",
        "Staged",
        "TensorBoardWriter",
        "__version__",
        "collate_packed",
        "compact",
        "errors",
        "follow",
        "lengths_of",
        "load_quarantine",
        "merge_states",
        "mix",
        "open",
        "open_tokens",
        "open_writer",
        "pack",
        "rng",
        "samplers",
        "save_state",
        "shard",
        "step",
        "transforms",
        "types",
        "use",
        "verify",
        "write_trace",
    ]


def test_every_file_of_client_tests_is_known_to_what_chooses_among_them() -> None:
    known: list[str] = []
    for node in ast.parse((ROOT / ".ci" / "clients").read_text()).body:
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "FOLDERS":
            assert isinstance(node.value, ast.Dict)
            known += [ast.literal_eval(key) for key in node.value.keys if key is not None]
    assert sorted(known) == sorted(path.name for path in (ROOT / "tests" / "clients").glob("test_*.py"))
