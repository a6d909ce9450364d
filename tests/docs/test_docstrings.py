"""Docstrings that tools can read: sections in Google's style, as Griffe parses them, and examples that run.

An example begins behind `import headrace, torch` and `import numpy as np`, in an empty folder.
"""

from __future__ import annotations

import dataclasses
import doctest
import inspect
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from griffe import DocstringSectionKind, Parser

import headrace

from .reference import OF_HEADRACE, PublicObject, public_objects

OBJECTS = public_objects()
WITH_EXAMPLES = [known for known in OBJECTS if not known.is_property]

FLAGS = doctest.ELLIPSIS | doctest.IGNORE_EXCEPTION_DETAIL

STEPS = {"Albumentations", "Kornia", "Torchvision"}
"""Classes of steps: callables, of which users need no name."""

NAMES_OF_OTHERS = {
    "AbstractContextManager", "Any", "Array", "Generator", "Iterator", "Keys", "None", "Path", "Pixels", "Self", "Size",
    "Snapshot", "State", "T", "Tensor",
}  # fmt: skip
"""Classes of others, and names of plain types."""

NOT_GIVEN = ("None", "NoReturn", "Never")
"""Annotations of functions that return nothing, and of words that are there only to be refused."""


def sections_of(known: PublicObject, **options: bool) -> dict[DocstringSectionKind, Any]:
    """Returns the sections that Griffe reads, by their kinds."""
    docstring = known.read.docstring
    if docstring is None:
        return {}
    return {section.kind: section.value for section in docstring.parse(Parser.google, **options)}


def names_in(known: PublicObject, kind: DocstringSectionKind) -> set[str]:
    return {entry.name.lstrip("*") for entry in sections_of(known).get(kind, ())}


def is_made_of_fields(kind: type) -> bool:
    """Tells whether the constructor of a class takes its fields: they are described as attributes."""
    return hasattr(kind, "_fields") or (dataclasses.is_dataclass(kind) and "__init__" in vars(kind))


def parameters_of(known: PublicObject) -> set[str]:
    """Returns what a function takes, or the constructor of a class."""
    function = inspect.unwrap(getattr(known.value, "__func__", known.value))
    if known.is_class and hasattr(function, "_fields"):
        return set(function._fields)
    if known.is_class:
        function = function.__init__
    if not inspect.isfunction(function) or getattr(known.value, "_is_protocol", False):
        return set()

    given = inspect.signature(function).parameters.values()
    return {one.name for one in given if one.annotation not in NOT_GIVEN} - {"self", "cls"}


def returns_something(known: PublicObject) -> bool:
    function = inspect.unwrap(getattr(known.value, "__func__", known.value))
    return inspect.isfunction(function) and function.__annotations__["return"] not in NOT_GIVEN


def test_griffe_reads_all_docstrings_without_a_warning(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("WARNING", "griffe")
    kinds = {known.name: set(sections_of(known)) for known in OBJECTS}
    assert caplog.messages == []
    assert [name for name, found in kinds.items() if DocstringSectionKind.text not in found] == []
    # Such as a section whose name is misspelled.
    assert [name for name, found in kinds.items() if DocstringSectionKind.admonition in found] == []


def test_each_parameter_is_described_and_no_other_name_is() -> None:
    wrong = {}
    for known in OBJECTS:
        kind = DocstringSectionKind.parameters
        if known.is_class and is_made_of_fields(known.value):
            kind = DocstringSectionKind.attributes
        names = names_in(known, kind)
        if names != parameters_of(known):
            wrong[known.name] = names ^ parameters_of(known)

    assert wrong == {}


def test_each_attribute_that_is_described_exists() -> None:
    wrong = {}
    for known in OBJECTS:
        attributes = names_in(known, DocstringSectionKind.attributes)
        missing = {name for name in attributes if name not in known.read.all_members}
        if missing:
            wrong[known.name] = missing

    assert wrong == {}


def test_what_is_returned_or_yielded_is_described() -> None:
    wrong = []
    for known in WITH_EXAMPLES:
        sections = sections_of(known)
        described = sections.keys() & {DocstringSectionKind.returns, DocstringSectionKind.yields}
        if bool(described) != returns_something(known):
            wrong.append(known.name)

    assert wrong == []


def test_what_is_returned_reads_the_same_with_and_without_names_of_values() -> None:
    """Griffe takes what stands in front of a colon for a name, or for a type: by a setting of each tool."""
    wrong = []
    for known in WITH_EXAMPLES:
        sections = sections_of(known)
        without_names = sections_of(known, returns_named_value=False)
        for kind in sections.keys() & {DocstringSectionKind.returns, DocstringSectionKind.yields}:
            (given,) = sections[kind]
            (plain,) = without_names[kind]
            if given.name or given.description != plain.description:
                wrong.append(known.name)

    assert wrong == []


def test_each_object_has_an_example() -> None:
    without = [known.name for known in WITH_EXAMPLES if DocstringSectionKind.examples not in sections_of(known)]
    assert without == []


@pytest.mark.quick
@pytest.mark.parametrize("known", WITH_EXAMPLES, ids=lambda known: known.name.removeprefix("headrace."))
@pytest.mark.timeout(20)
def test_an_example_runs(known: PublicObject, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("NO_ALBUMENTATIONS_UPDATE", "1")  # it would ask the network for its newest version
    names = {"headrace": headrace, "torch": torch, "np": np}
    test = doctest.DocTestParser().get_doctest(known.text, names, known.name, None, None)
    said: list[str] = []
    doctest.DocTestRunner(optionflags=FLAGS).run(test, out=said.append)
    assert "".join(said) == ""


def test_what_a_user_is_returned_has_a_public_name() -> None:
    public = {known.value.__name__ for known in OBJECTS if known.is_class}
    unknown = {}
    for known in WITH_EXAMPLES:
        if returns_something(known):
            function = inspect.unwrap(getattr(known.value, "__func__", known.value))
            words = set(re.findall(r"\b[A-Z]\w+", function.__annotations__["return"]))
            if words - public - NAMES_OF_OTHERS - STEPS:
                unknown[known.name] = words - public - NAMES_OF_OTHERS - STEPS

    assert unknown == {}


def test_what_a_reference_leaves_out_exists() -> None:
    """So that the list does not outlive a name, and hide another one later."""
    bases = [kind for known in OBJECTS if known.is_class for kind in known.value.__mro__]
    kinds = {kind.__name__: kind for kind in bases if kind.__module__.startswith("headrace.")}
    gone = {}
    for name, methods in OF_HEADRACE.items():
        missing = methods - set(vars(kinds[name])) if name in kinds else methods
        if missing:
            gone[name] = missing

    assert gone == {}
