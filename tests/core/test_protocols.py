"""What answers a protocol is told by how it can be called, not by its name alone."""

from __future__ import annotations

import functools
import gc
import weakref
from typing import Any

import pytest
import torch

from headrace.core.protocols import Stateful, answers, is_stateful, other_state_protocol, says_yes, tell_epoch


class Methods:
    attribute = "no method"

    def nothing(self) -> None: ...

    def one(self, first: int) -> None: ...

    def optional(self, first: int = 0, *, word: str = "") -> None: ...

    def anything(self, *arguments: Any, **words: Any) -> None: ...

    def needs_word(self, *, word: str) -> None: ...

    @classmethod
    def of_class(cls, first: int) -> None: ...

    @staticmethod
    def of_nobody(first: int) -> None: ...

    @torch.no_grad()
    def decorated(self, first: int) -> None: ...

    partial = functools.partialmethod(one, 1)
    built_in = {1: 2}.get


@pytest.mark.parametrize(
    ("name", "counts"),
    [
        ("attribute", []),
        ("missing", []),
        ("nothing", [0]),
        ("one", [1]),
        ("optional", [0, 1]),
        ("anything", [0, 1, 2]),
        ("needs_word", []),
        ("of_class", [1]),
        ("of_nobody", [1]),
        ("decorated", [1]),
        ("partial", [0]),
        ("built_in", [1, 2]),
    ],
)
def test_a_method_answers_if_it_can_be_called_so(name: str, counts: list[int]) -> None:
    assert [count for count in range(3) if answers(Methods(), name, count)] == counts
    # What is remembered of a function holds for all of its methods.
    assert [count for count in range(3) if answers(Methods(), name, count)] == counts


def test_words_count_too() -> None:
    assert answers(Methods(), "needs_word", 0, "word")
    assert answers(Methods(), "optional", 1, "word")
    assert not answers(Methods(), "one", 1, "word")


def test_only_true_says_yes() -> None:
    class Values:
        yes, text, number, no = True, "yes", 1, False

    assert [name for name in ("yes", "text", "number", "no", "missing") if says_yes(Values(), name)] == ["yes"]
    assert says_yes(Values(), "missing", otherwise=True)


class HasState:
    def state_dict(self) -> Any: ...

    def load_state_dict(self, state_dict: Any) -> None: ...


class LoadsWithMore(HasState):
    def load_state_dict(self, state_dict: Any, strict: bool) -> None: ...


class OnlySaves:
    def state_dict(self) -> Any: ...


class OwnStateOfModule(torch.nn.Module):
    """A module by accident: its state is the dataset's own."""

    def state_dict(self) -> Any: ...

    def load_state_dict(self, state_dict: Any) -> None: ...


class Passes(HasState):
    def state_dict(self, *arguments: Any, **words: Any) -> Any: ...


@pytest.mark.parametrize(
    ("thing", "stateful", "other"),
    [
        (HasState(), True, ""),
        (Passes(), True, ""),
        (OwnStateOfModule(), True, ""),
        (OnlySaves(), False, ""),
        (LoadsWithMore(), False, "load_state_dict(state_dict, strict)"),
        (torch.nn.Linear(1, 1), False, ""),
        (3, False, ""),
    ],
    ids=lambda value: type(value).__name__,
)
def test_a_state_is_told_from_weights_and_other_protocols(thing: Any, stateful: bool, other: str) -> None:
    assert is_stateful(thing) is stateful
    assert other_state_protocol(thing) == other
    if stateful:
        assert isinstance(thing, Stateful)


def test_an_epoch_is_told_to_those_who_take_a_number() -> None:
    told: list[int] = []

    class Hears:
        set_epoch = told.append

    class HearsMore:
        def set_epoch(self, epoch: int, stage: str) -> None:
            told.append(-1)

    for listener in (Hears(), HearsMore(), 3):
        tell_epoch(listener, 5)
    assert told == [5]


def test_what_is_remembered_keeps_no_class_alive() -> None:
    class Local:
        def method(self) -> None: ...

    assert answers(Local(), "method")
    kept = weakref.ref(Local)
    del Local
    gc.collect()
    assert kept() is None
