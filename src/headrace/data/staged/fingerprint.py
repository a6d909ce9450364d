"""What results depend on, as text that can be compared: code, values that it uses, arguments, versions of libraries.

A function stands for its bytecode, its defaults, the values of its closure and the global values that it names, and so
on through the user's own functions and classes; what comes from an installed library stands for its name and version.
An object stands for its class and its state, as `pickle` would take it; nothing is pickled, and no data are executed.
An object with a method `fingerprint()` that returns text stands for that text.
"""

from __future__ import annotations

import copyreg
import enum
import functools
import hashlib
import importlib.metadata
import io
import json
import logging
import marshal
import pathlib
import platform
import sys
import threading
import types
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from headrace.core.errors import UsageError
from headrace.core.protocols import answers

PLAIN = frozenset({int, float, str, bytes, bool, type(None), complex})
NESTED = (tuple, list)
SHOWN = 60
INSTALLED = ("site-packages", "dist-packages")
BUILTIN = (types.BuiltinFunctionType, types.MethodWrapperType, types.WrapperDescriptorType,
           types.MethodDescriptorType, types.ClassMethodDescriptorType, np.ufunc)  # fmt: skip
LOCKS = (type(threading.Lock()), type(threading.RLock()), threading.local)


@dataclass(frozen=True)
class Fingerprint:
    """Named parts, each a short text or a checksum. `libraries` maps their names to versions."""

    parts: dict[str, str]
    libraries: dict[str, str]

    @property
    def digest(self) -> str:
        """Returns a text that differs if anything does."""
        text = json.dumps([self.parts, self.libraries], sort_keys=True)
        return hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=16).hexdigest()

    def changes_since(self, before: Fingerprint) -> list[str]:
        """Returns what is different, each in a few words."""
        said = []
        for old, new, what in ((before.parts, self.parts, ""), (before.libraries, self.libraries, "version of ")):
            for name in dict.fromkeys([*old, *new]):
                if name not in new:
                    said.append(f"{what}{name} is gone")
                elif name not in old:
                    said.append(f"{what}{name} is new")
                elif old[name] != new[name]:
                    said.append(f"{what}{name} was {old[name]}, is {new[name]}")

        return said


def fingerprint_of(named: Iterable[tuple[str, Any]]) -> Fingerprint:
    """Returns the fingerprint of named objects. Raises `UsageError` for one that cannot be compared."""
    parts: dict[str, str] = {}
    digester = _Digester()
    for name, thing in named:
        for inner, value in _opened(thing):
            try:
                parts[f"{name}{inner}"] = digester.shown(value)
            except Incomparable as error:
                raise UsageError.about(
                    "results of this cannot be kept, since it cannot be told when it changes",
                    place=f"{name}{inner}",
                    found=str(error),
                    expected="code and values that can be compared",
                    fix="declare the step with headrace.step(f, version='1'), and change the version when results "
                    "do; a dataset may have a method fingerprint() that returns text",
                ) from error

    digester.libraries["python"] = ".".join(platform.python_version_tuple()[:2])
    return Fingerprint(parts, dict(sorted(digester.libraries.items())))


class Incomparable(TypeError):
    """An object has neither state nor code that can be compared."""


def _opened(thing: object) -> list[tuple[str, Any]]:
    """Returns the parts of an object under which a user would look for a change, each with its name."""
    if isinstance(thing, types.MethodType):
        return [*_opened(thing.__func__), *_opened(thing.__self__)]

    if isinstance(thing, functools.partial):
        parts = _opened(thing.func)
        for place, value in enumerate(thing.args):
            parts.append((f", argument {place}", value))
        for name, value in sorted(thing.keywords.items()):
            parts.append((f", argument {name}", value))

        return parts

    if isinstance(thing, types.FunctionType) and not is_installed(thing.__module__):
        parts = [(", code", thing.__code__)]
        for name, value in values_used(thing):
            parts.append((f", value of {name}", value))

        return parts

    state = getattr(thing, "__dict__", None)
    kind = type(thing)
    if not isinstance(state, dict) or isinstance(thing, type) or _is_own(thing) or is_installed(kind.__module__):
        return [("", thing)]

    parts = [(", class", kind)]
    for name, value in state.items():
        parts.append((f", {name}", value))

    return parts


def _is_own(thing: object) -> bool:
    """Tells whether a class of the user's says itself what an object stands for."""
    return any({"fingerprint", "__getstate__"} & vars(kind).keys() for kind in type(thing).__mro__[:-1])


def values_used(function: types.FunctionType) -> list[tuple[str, Any]]:
    """Returns the names and values that a function gets from outside: defaults, closure, globals."""
    found: list[tuple[str, Any]] = []
    for place, value in enumerate(function.__defaults__ or ()):
        found.append((f"default {place}", value))
    for name, value in sorted((function.__kwdefaults__ or {}).items()):
        found.append((f"default {name}", value))

    # A function that calls itself, and was not assigned yet, has an empty cell.
    for name, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=True):
        if _is_filled(cell):
            found.append((name, cell.cell_contents))

    # The bytecode does not tell names of globals from names of attributes: both are looked up, and of a module of the
    # user's only those parts count whose names appear, too, so that another function there may change.
    named = dict.fromkeys(_names_in(function.__code__))
    for name in named:
        if name not in function.__globals__:
            continue
        value = function.__globals__[name]
        if isinstance(value, types.ModuleType) and not is_installed(value.__name__):
            for part in named:
                if part in vars(value):
                    found.append((f"{name}.{part}", getattr(value, part)))
        else:
            found.append((name, value))

    return found


def _is_filled(cell: types.CellType) -> bool:
    try:
        cell.cell_contents  # noqa: B018 - asking is what raises
    except ValueError:
        return False
    return True


def _names_in(code: types.CodeType) -> list[str]:
    # Functions and comprehensions within a function are constants of it.
    names = list(code.co_names)
    for const in code.co_consts:
        if isinstance(const, types.CodeType):
            names += _names_in(const)

    return names


@functools.cache
def is_installed(module: str | None) -> bool:
    """Tells whether a module is part of Python or of an installed library, which its version stands for."""
    top = (module or "").partition(".")[0]
    if top in sys.stdlib_module_names or top == "headrace":
        return True
    if top in ("", "__main__", "__mp_main__"):
        return False

    file = getattr(sys.modules.get(module or ""), "__file__", None) or getattr(sys.modules.get(top), "__file__", None)
    if file is None:
        return getattr(sys.modules.get(top), "__spec__", None) is not None
    return not set(INSTALLED).isdisjoint(pathlib.Path(file).parts)


@functools.cache
def version_of(top: str) -> str:
    """Returns the version of an installed library, by the name of its top module."""
    known = getattr(sys.modules.get(top), "__version__", None)
    if isinstance(known, str):
        return known

    try:
        return importlib.metadata.version(top)
    except importlib.metadata.PackageNotFoundError:
        return "unknown"


class _Digester:
    """Checksums of objects; the same one for the same values in every process."""

    def __init__(self) -> None:
        self.libraries: dict[str, str] = {}
        # By `id`, each with its object: kept alive, or another object could get the same address.
        self._done: dict[int, tuple[bytes, Any]] = {}
        self._open: set[int] = set()

    def shown(self, value: object) -> str:
        """Returns a value as text, if that is short, otherwise its checksum."""
        if type(value) in PLAIN and len(repr(value)) <= SHOWN:
            return repr(value)
        return f"{type(value).__name__} {self._digest(value).hex()[:16]}"

    def _digest(self, value: Any) -> bytes:
        kind = type(value)
        if kind in PLAIN:
            if kind is not bytes:
                content = repr(value).encode("utf-8", "surrogatepass")
            else:
                content = value

            return _hash(kind.__name__, content)
        if id(value) in self._done:
            return self._done[id(value)][0]
        # It contains itself, and is being looked at already.
        if id(value) in self._open:
            return _hash("again", kind.__qualname__.encode())

        self._open.add(id(value))
        try:
            digest = self._by_rule(value)
        finally:
            self._open.discard(id(value))

        self._done[id(value)] = digest, value
        return digest

    def _by_rule(self, value: object) -> bytes:
        for kinds, rule in RULES:
            if isinstance(value, kinds):
                return rule(self, value)

        return self._object(value)

    def several(self, what: str, values: Iterable[Any]) -> bytes:
        """Returns the checksum of values in their order."""
        # Lists of plain values may be as long as a dataset: marshal writes them in C. Its version 2 writes no
        # references to parts that come again, so that equal lists are equal bytes.
        listed = list(values)
        if all(map(_is_plain, listed)):
            return _hash(what, marshal.dumps(listed, 2))
        return _hash(what, *map(self._digest, listed))

    def unordered(self, value: Iterable[Any]) -> bytes:
        """Returns the checksum of values in any order."""
        return _hash("set", *sorted(map(self._digest, value)))

    def mapping(self, value: Mapping[Any, Any]) -> bytes:
        """Returns the checksum of a dict, in its order."""
        return _hash("dict", self.several("keys", value.keys()), self.several("values", value.values()))

    def installed(self, module: str | None, name: str) -> bytes:
        """Returns the checksum of something from an installed library, whose version is noted."""
        top = (module or "builtins").partition(".")[0]
        if top not in sys.stdlib_module_names and top != "builtins":
            self.libraries[top] = version_of(top)
        return _hash("library", f"{module}.{name}".encode())

    def code(self, code: types.CodeType) -> bytes:
        """Returns the checksum of what code does; not of where it stands."""
        counts = (code.co_argcount, code.co_posonlyargcount, code.co_kwonlyargcount, code.co_flags)
        names = (*code.co_names, "/", *code.co_varnames, "/", *code.co_freevars, "/", *code.co_cellvars)
        return _hash("code", code.co_code, self.several("counts", counts), self.several("names", names),
                     *map(self._digest, code.co_consts))  # fmt: skip

    def function(self, value: types.FunctionType) -> bytes:
        """Returns the checksum of a function and of what it uses."""
        if is_installed(value.__module__):
            return self.installed(value.__module__, value.__qualname__)
        names = []
        values = []
        for name, used in values_used(value):
            names.append(name)
            values.append(used)

        code = self.code(value.__code__)
        return _hash("function", code, self.several("names", names), self.several("values", values))

    def kind(self, value: type) -> bytes:
        """Returns the checksum of a class: its code, where it is the user's own, and that of the classes above it."""
        if is_installed(value.__module__):
            return self.installed(value.__module__, value.__qualname__)

        skipped = ("__dict__", "__weakref__", "__doc__", "__module__", "__firstlineno__", "__static_attributes__",
                   "__annotations__", "__annotate_func__", "__annotations_cache__", "_abc_impl")  # fmt: skip
        members = {}
        for name, member in vars(value).items():
            if name not in skipped and _is_member(member):
                members[name] = member

        return _hash("class", value.__qualname__.encode(), self.several("bases", value.__bases__),
                     self.mapping(members))  # fmt: skip

    def array(self, value: np.ndarray[Any, Any]) -> bytes:
        """Returns the checksum of an array's elements."""
        if value.dtype.hasobject:
            return self.several(f"objects {value.shape}", value.ravel().tolist())
        return _hash(f"array {value.dtype.str} {value.shape}", np.ascontiguousarray(value).reshape(-1).view(np.uint8))

    def tensor(self, value: torch.Tensor) -> bytes:
        """Returns the checksum of a tensor's elements."""
        if value.layout is not torch.strided or value.is_quantized:
            raise Incomparable(f"a tensor of layout {value.layout}")
        plain = value.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy()
        return _hash(f"tensor {value.dtype} {tuple(value.shape)}", plain)

    def _object(self, value: Any) -> bytes:
        if not isinstance(value, type) and answers(value, "fingerprint"):
            text = value.fingerprint()
            if not isinstance(text, str):
                raise Incomparable(f"fingerprint() of {type(value).__name__} returned {type(text).__name__}, not text")
            return _hash("fingerprint", text.encode("utf-8", "surrogatepass"))

        # As `pickle` takes it apart, without pickling: what makes it, its state, and the items of lists and dicts.
        try:
            registered = copyreg.dispatch_table.get(type(value))
            if registered is None:
                reduced = value.__reduce_ex__(4)
            else:
                reduced = registered(value)
        except (TypeError, NotImplementedError, RuntimeError) as error:
            raise Incomparable(f"an object of type {type(value).__name__}: {error}") from error

        if isinstance(reduced, str):
            return self.installed(type(value).__module__, reduced)

        further = []
        for part in reduced[3:5]:
            if part is not None:
                further.append(list(part))

        parts: list[Any] = [type(value), *reduced[1:3], *further]
        return self.several("object", [reduced[0], *parts])


def _is_plain(value: Any) -> bool:
    """Tells whether this is a plain value, or a tuple or list of nothing else."""
    return type(value) in PLAIN or (type(value) in NESTED and PLAIN.issuperset(map(type, value)))


def _is_member(member: object) -> bool:
    return not isinstance(member, (types.GetSetDescriptorType, types.MemberDescriptorType, types.GenericAlias))


def _hash(what: str, *parts: Any) -> bytes:
    digest = hashlib.blake2b(what.encode("utf-8", "surrogatepass"), digest_size=16)
    for part in parts:
        if isinstance(part, np.ndarray):
            size = part.nbytes
        else:
            size = len(part)

        digest.update(b"/%d/" % size)
        digest.update(part)
    return digest.digest()


def _named(value: object) -> tuple[str | None, str]:
    module = getattr(value, "__module__", None)
    return module, str(getattr(value, "__qualname__", None) or getattr(value, "__name__", type(value).__name__))


def _builtin(digester: _Digester, value: Any) -> bytes:
    owner = getattr(value, "__self__", None)
    if owner is not None and not isinstance(owner, (types.ModuleType, type)):
        return digester.several("method", [value.__name__, owner])
    return digester.installed(*_named(value))


RULES: tuple[tuple[Any, Callable[[_Digester, Any], bytes]], ...] = (
    (enum.Enum, lambda one, value: one.several("enum", [type(value).__qualname__, value.name])),
    (np.ndarray, _Digester.array),
    (torch.Tensor, _Digester.tensor),
    ((np.generic, np.dtype, torch.dtype, torch.device, torch.Size, slice, range, type(Ellipsis), type(NotImplemented)),
     lambda one, value: _hash("value", type(value).__name__.encode(), repr(value).encode())),
    (types.CodeType, _Digester.code),
    (types.FunctionType, _Digester.function),
    (types.MethodType, lambda one, value: one.several("method", [value.__func__, value.__self__])),
    (BUILTIN, _builtin),
    (type, _Digester.kind),
    (types.ModuleType, lambda one, value: one.installed(value.__name__, "")),
    (functools.partial, lambda one, value: one.several("partial", [value.func, value.args, value.keywords])),
    (functools._lru_cache_wrapper, lambda one, value: one.several("cached", [value.__wrapped__])),
    ((staticmethod, classmethod), lambda one, value: one.several("method", [value.__func__])),
    (property, lambda one, value: one.several("property", [value.fget, value.fset])),
    (pathlib.PurePath, lambda one, value: _hash("path", str(value).encode("utf-8", "surrogatepass"))),
    (logging.Logger, lambda one, value: _hash("logger")),
    (LOCKS, lambda one, value: _hash("lock")),
    (io.IOBase, lambda one, value: _hash("file", str(getattr(value, "name", "")).encode())),
    (torch.Generator, lambda one, value: one.tensor(value.get_state())),
    (dict, _Digester.mapping),
    ((set, frozenset), _Digester.unordered),
    (list, lambda one, value: one.several("list", value)),
    (tuple, lambda one, value: one.several(f"tuple {type(value).__name__}", value)),
)  # fmt: skip
"""How each type is taken, the first that fits; any other object stands for its class and state."""
