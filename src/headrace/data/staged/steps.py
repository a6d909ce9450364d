"""Steps: what is done with a sample, declared once, and run one by one or on whole columns."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

from headrace.core.errors import UsageError, wrong_argument


@dataclass(frozen=True)
class Step:
    """One step of a pipeline; made by `step`, and callable as the function that it was made of."""

    function: Callable[[Any], Any]
    name: str
    random: bool | None = None
    batched: bool = False
    on: str | int | None = None
    version: str | None = None

    def __call__(self, value: Any) -> Any:
        """Calls the function, on a whole sample."""
        return self.function(value)

    def apply(self, sample: Any) -> Any:
        """Returns the sample (or, for a batched step, the columns) with the step done, on its part of it."""
        if self.on is None:
            return self.function(sample)
        return replaced(sample, self.on, self.function(part_of(sample, self.on)))

    def __reduce__(self) -> Any:
        """Pickles a function that was decorated by its name, which stands for the step."""
        module = getattr(self.function, "__module__", None)
        name = getattr(self.function, "__qualname__", "")
        if module and _named(module, name) is self:
            return _named, (module, name)
        return Step, tuple(vars(self).values())

    def __str__(self) -> str:
        words = [self.name]
        if self.on is not None:
            words.append(f"on {self.on!r}")
        if self.batched:
            words.append("batched")
        if self.random:
            words.append("random")

        return ", ".join(words)


def _named(module: str, name: str) -> Any:
    """Returns what has a name in a module; None if nothing has."""
    found: Any = importlib.import_module(module)
    for part in name.split("."):
        found = getattr(found, part, None)
    return found


def step(
    function: Callable[[Any], Any] | None = None,
    *,
    random: bool | None = None,
    batched: bool = False,
    on: str | int | None = None,
    name: str | None = None,
    version: str | None = None,
) -> Any:
    """Declares a step of a staged dataset; also as a decorator: `@headrace.step(batched=True)`.

    Args:
        function: takes a sample and returns one. What it does to its argument stays its own business.
        random: whether it draws random numbers (from `headrace.rng()`, or the global generators). Such a step is not
            computed once, before the cache point, unless that is asked for. None: found out, when it is to be computed
            once. Under `DataLoader(seed=)` a step on samples has a stream for each of them; a batched one has one
            stream for each batch, so its numbers are others with another batch size.
        batched: it takes and returns many samples at once: the structure of one, with columns in place of values. Those
            are arrays [n, *shape] of what is of one size, `headrace.types.Ragged` of arrays whose first dimension
            differs, and lists of all else (tuples stand for lists in a sample). A sample must come out the same,
            whatever others are with it.
        on: the key of the one part of a dict, tuple or list that it takes and returns, instead of the whole sample.
        name: what messages call it.
        version: stands for its code and all values it uses, when a cache is checked: change it when results change. For
            functions whose code cannot be compared.

    Returns:
        The step; without `function`, a decorator.

    Raises:
        UsageError: wrong arguments.

    Examples:
        >>> @headrace.step(batched=True)
        ... def double(numbers):
        ...     return 2 * numbers
        >>> int(headrace.Staged([1, 2, 3], None, double)[2])
        6
    """
    if function is None:
        return lambda given: step(given, random=random, batched=batched, on=on, name=name, version=version)
    if isinstance(function, Step):
        raise UsageError.about(
            "this is a step already", place="headrace.step", found=str(function), fix="declare it once"
        )

    if not callable(function):
        raise _not_callable(function)

    if random is None:
        declared = getattr(function, "random", None)
        if isinstance(declared, bool):
            random = declared
        else:
            random = None

    _check("random", random, (bool, type(None)), "True, False or None")
    _check("batched", batched, (bool,), "True or False")
    _check("on", on, (str, int, type(None)), "a key of a sample")
    _check("name", name, (str, type(None)), "text")
    _check("version", version, (str, type(None)), "text")
    return Step(function, name or _name_of(function), random, batched, on, version)


def _check(word: str, value: object, types: tuple[type, ...], expected: str) -> None:
    if type(value) not in types:
        raise wrong_argument(word, value, expected, place="headrace.step")


def as_steps(given: Any) -> tuple[Step, ...]:
    """Returns steps from None, a callable, or several of them. Raises `UsageError` for anything else."""
    if given is None:
        return ()
    if callable(given):
        given = [given]
    elif not isinstance(given, Iterable) or isinstance(given, (str, bytes, dict)):
        raise _not_callable(given)

    steps = []
    for entry in given:
        steps.append(as_step(entry))

    return tuple(steps)


def _not_callable(given: object) -> UsageError:
    found = f"{given!r} of type {type(given).__name__}"
    expected = "something that can be called with a sample, or a list of such"
    return UsageError.about("this is no step", place="a transform", found=found, expected=expected)


def _name_of(function: Any) -> str:
    # `functools.partial`, also of another one.
    while hasattr(function, "func"):
        function = function.func
    return str(getattr(function, "__name__", None) or type(function).__name__)


def part_of(sample: Any, key: str | int) -> Any:
    """Returns one part of a sample. Raises `UsageError` if there is none."""
    try:
        return sample[key]
    except (KeyError, IndexError, TypeError) as error:
        raise _no_part(sample, key) from error


def replaced(sample: Any, key: str | int, value: object) -> Any:
    """Returns a sample with another value in one part; the given one stays as it was."""
    if isinstance(sample, dict):
        return {**sample, key: value}

    if type(sample) in (tuple, list) and isinstance(key, int):
        parts = list(sample)
        parts[key] = value
        if type(sample) is list:
            return parts
        return tuple(parts)

    raise _no_part(sample, key)


def _no_part(sample: Any, key: str | int) -> UsageError:
    found = type(sample).__name__
    if isinstance(sample, dict):
        found = f"a dict of {', '.join(map(repr, sample))}"
    elif type(sample) in (tuple, list):
        found = f"a {found} of {len(sample)}"

    return UsageError.about("a sample has no such part", place=f"on={key!r}", found=found)


def as_step(function: Callable[[Any], Any], **words: Any) -> Step:
    """Returns a step as it is, and of another function the step that `headrace.step` makes with these words."""
    if isinstance(function, Step):
        return function
    made: Step = step(function, **words)
    return made
