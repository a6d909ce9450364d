"""A report ends with the command that follows from its first finding."""

from __future__ import annotations

from typing import Any

import pytest

from headrace.cli.next_command import next_command
from headrace.observe.diagnosis.finding import Diagnosis, Finding


def found(stage: str = "workers", **change: Any) -> Diagnosis:
    finding = Finding("some-name", stage, "What was seen.", "What to do.", 2.0, change)
    return Diagnosis("train.py:3", "A summary.", 0.5, stage, 2.0, 10.0, (finding,))


NOTHING = Diagnosis("train.py:3", "A summary.", 0.0, "training", 1.0, 10.0)


@pytest.mark.parametrize(
    ("diagnoses", "expected"),
    [
        ([found(num_workers=4)], "headrace run --num-workers 4 train.py --lr 1"),
        ([NOTHING, found(num_workers=4)], "headrace run --num-workers 4 train.py --lr 1"),
        (
            [found(num_workers=4, persistent_workers=True), found(num_workers=2)],
            "headrace run --num-workers 4 --persistent-workers train.py --lr 1",
        ),
        ([found("machine")], "headrace run train.py --lr 1"),
        ([found("batches", batch_size=16)], "headrace doctor --ideal train.py --lr 1"),
        ([found("decode")], "headrace doctor --ideal train.py --lr 1"),
        ([NOTHING], "headrace doctor --ideal train.py --lr 1"),
    ],
)
def test_the_command_tries_what_the_first_finding_says(diagnoses: list[Diagnosis], expected: str) -> None:
    assert next_command(diagnoses, "train.py", ["--lr", "1"], as_module=False) == expected


def test_words_for_the_shell_are_quoted_and_modules_stay_modules() -> None:
    given = next_command([found(num_workers=1)], "my train.py", ["a b"], as_module=False)
    assert given == "headrace run --num-workers 1 'my train.py' 'a b'"
    given = next_command([found(num_workers=1)], "lab.train", [], as_module=True)
    assert given == "headrace run --num-workers 1 -m lab.train"


def test_secrets_of_urls_are_not_repeated() -> None:
    arguments = ["http://me:word@host/x.tar?sig=abc", "--data=s3://me:word@bucket/x", "--lr=1"]
    given = next_command([], "train.py", arguments, as_module=False)
    assert given == "headrace doctor --ideal train.py http://host/x.tar --data=s3://bucket/x --lr=1"


def test_an_option_that_was_just_refused_is_not_named_again() -> None:
    given = next_command(
        [found(num_workers=1)], "train.py", [], as_module=False, refused={"num_workers": ["train.py:9"]}
    )
    assert given == "headrace doctor --ideal train.py"
    given = next_command([found(num_workers=1)], "train.py", [], as_module=False, refused=["pin_memory"])
    assert given == "headrace run --num-workers 1 train.py"
