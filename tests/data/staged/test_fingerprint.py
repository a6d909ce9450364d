"""What changes a fingerprint, and what does not."""

from __future__ import annotations

import functools
import re
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from headrace.core.errors import UsageError
from headrace.data.staged.fingerprint import fingerprint_of


def digest(thing: Any) -> str:
    return fingerprint_of([("it", thing)]).digest


def made(code: str, name: str = "f") -> Any:
    """Returns what code defines, as if it stood in a script."""
    space: dict[str, Any] = {"__name__": "__main__", "np": np}
    exec(compile(code, "script.py", "exec", dont_inherit=True), space)
    return space[name]


ADD = "def f(x):\n    return x + 1\n"

DIFFERENT = [
    (ADD, "def f(x):\n    return x + 2\n"),
    (ADD, "def f(x):\n    return x - 1\n"),
    ("K = 1\ndef f(x): return x + K\n", "K = 2\ndef f(x): return x + K\n"),
    ("def g(x): return x\ndef f(x): return g(x)\n", "def g(x): return -x\ndef f(x): return g(x)\n"),
    ("def g(x): return x\nG = [g]\ndef f(x): return G[0](x)\n", "def g(x): return -x\nG = [g]\ndef f(x): return G[0](x)\n"),
    ("def f(x, y=1): return x + y\n", "def f(x, y=2): return x + y\n"),
    ("def f(x, *, y=1): return x + y\n", "def f(x, *, y=2): return x + y\n"),
    ("def m(k):\n  def f(x): return x + k\n  return f\nf = m(1)\n", "def m(k):\n  def f(x): return x + k\n  return f\nf = m(2)\n"),
    ("f = lambda x: [y for y in x]\n", "f = lambda x: [-y for y in x]\n"),
    ("def f(x): return np.sin(x)\n", "def f(x): return np.cos(x)\n"),
    ("A = np.zeros(9)\ndef f(x): return x + A\n", "A = np.ones(9)\ndef f(x): return x + A\n"),
    ("class C:\n  def __init__(self): self.k = 1\n  def __call__(self, x): return x + self.k\nf = C()\n",
     "class C:\n  def __init__(self): self.k = 2\n  def __call__(self, x): return x + self.k\nf = C()\n"),
    ("class C:\n  def __call__(self, x): return x + 1\nf = C()\n", "class C:\n  def __call__(self, x): return x + 2\nf = C()\n"),
    ("class B:\n  k = 1\nclass C(B):\n  def __call__(self, x): return x + self.k\nf = C().__call__\n",
     "class B:\n  k = 2\nclass C(B):\n  def __call__(self, x): return x + self.k\nf = C().__call__\n"),
    ("import re\nP = re.compile('a')\ndef f(x): return P.sub('', x)\n", "import re\nP = re.compile('b')\ndef f(x): return P.sub('', x)\n"),
]  # fmt: skip

EQUAL = [
    (ADD, "\n\n# a comment\ndef f(x):\n\n    return x + 1  # the same\n"),
    ("K = 1\nL = 2\ndef f(x): return x + K\n", "K = 1\nL = 3\ndef f(x): return x + K\n"),
    ("S = {'a', 'b', 'c'}\ndef f(x): return x in S\n", "S = {'c', 'b', 'a'}\ndef f(x): return x in S\n"),
]


@pytest.mark.parametrize(("one", "other"), DIFFERENT)
def test_a_change_of_results_changes_the_fingerprint(one: str, other: str) -> None:
    assert digest(made(one)) != digest(made(other))


@pytest.mark.parametrize(("one", "other"), [*EQUAL, *((one, one) for one, _ in DIFFERENT)])
def test_what_changes_no_result_changes_no_fingerprint(one: str, other: str) -> None:
    assert digest(made(one)) == digest(made(other))


VALUES = [
    1, 1.0, True, "1", b"1", None, (1,), [1], {1: 2}, {2: 1}, {1}, np.int8(1), np.int16(1), np.zeros(2), np.zeros((2, 1)),
    np.zeros(2, np.float32), torch.zeros(2), torch.zeros(2, dtype=torch.bfloat16), Path("1"), np.dtype("i4"), torch.int32,
    functools.partial(max, 1), functools.partial(max, 2), functools.partial(max, key=1), range(3), slice(3), np.sin, np.cos,
    torch.nn.ReLU(), torch.nn.ReLU(inplace=True), re.compile("a"), np.random.default_rng(0), np.random.default_rng(1),
    np.array(["a", None], object), np.array(["b", None], object), "x".join, "y".join,
]  # fmt: skip


def test_values_of_different_kinds_have_fingerprints_of_their_own() -> None:
    assert len({digest([value]) for value in VALUES}) == len(VALUES)
    assert [digest(value) for value in VALUES] == [digest(value) for value in VALUES]


def test_equal_parts_count_the_same_whether_they_are_one_object_or_two() -> None:
    shared = np.arange(3)
    assert digest([shared, shared]) == digest([np.arange(3), np.arange(3)])


def test_what_contains_itself_has_a_fingerprint() -> None:
    loop: list[Any] = [1]
    loop.append(loop)
    other: list[Any] = [2]
    other.append(other)
    assert digest(loop) != digest(other)


def test_locks_and_logs_do_not_count() -> None:
    assert digest([threading.Lock(), 1]) == digest([threading.Lock(), 1])


@pytest.mark.thorough
def test_a_fingerprint_is_the_same_in_every_process(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    lines = [one for one, _ in DIFFERENT if "class C" in one or "def g" in one]
    script.write_text(
        "import numpy as np\nfrom headrace.data.staged.fingerprint import fingerprint_of\n"
        f"for code in {lines!r}:\n    space = {{'__name__': '__main__', 'np': np}}\n"
        "    exec(compile(code, 'x.py', 'exec'), space)\n    print(fingerprint_of([('it', space['f'])]).digest)\n"
    )
    told = {
        subprocess.run(
            [sys.executable, script], env={"PYTHONHASHSEED": seed}, capture_output=True, text=True, check=True
        ).stdout
        for seed in ("1", "2")
    }
    assert len(told) == 1
    assert told.pop().split() == [digest(made(code)) for code in lines]


def test_changes_are_named() -> None:
    class Scale:
        def __init__(self, factor: int) -> None:
            self.factor = factor

        def __call__(self, value: Any) -> Any:
            return value * self.factor

    before = fingerprint_of([("step 1 'scale'", Scale(2)), ("step 2", functools.partial(max, key=3))])
    after = fingerprint_of([("step 1 'scale'", Scale(3)), ("step 2", functools.partial(max, key=4))])
    assert after.changes_since(before) == ["step 1 'scale', factor was 2, is 3", "step 2, argument key was 3, is 4"]
    assert after.changes_since(after) == []


def test_versions_of_libraries_count() -> None:
    fingerprint = fingerprint_of([("it", made("def f(x): return np.sin(x)\n"))])
    assert fingerprint.libraries["numpy"] == np.__version__


def test_an_object_may_speak_for_itself() -> None:
    class Own:
        def __init__(self, text: Any) -> None:
            self.text, self.noise = text, object()

        def fingerprint(self) -> Any:
            return self.text

    assert digest(Own("a")) == digest(Own("a")) != digest(Own("b"))
    with pytest.raises(UsageError, match="returned int, not text"):
        digest(Own(3))


def test_what_cannot_be_compared_is_an_error_that_says_what_to_do() -> None:
    generator = (number for number in range(3))

    def uses(value: Any) -> Any:
        return value, generator

    with pytest.raises(UsageError, match=r"value of generator(.|\n)*version='1'"):
        fingerprint_of([("step 1 'uses'", uses)])
