"""What is called wrongly ends with status 2, and says so in the one shape of headrace's errors."""

from __future__ import annotations

from pathlib import Path

import pytest

from .conftest import Command

WRONG = {
    "unknown_option": (["--nosuch"], "no such option"),
    "unknown_command": (["nosuch"], "no such command 'nosuch'"),
    "no_script": (["run"], "missing argument 'script'"),
    "unknown_option_of_run": (["run", "--nosuch"], "no such option"),
    "unknown_option_of_run_before_a_script": (["run", "--nosuch", "train.py"], "no such option"),
    "unknown_option_of_doctor": (["doctor", "--nosuch"], "no such option"),
    "unknown_option_of_inspect": (["inspect", "data.csv", "--nosuch"], "no such option"),
    "too_few_workers": (["run", "--num-workers", "-1", "train.py"], "wrong option"),
    "no_seconds": (["run", "--seconds", "0", "train.py"], "invalid value for '--seconds'"),
    "unknown_start_method": (["run", "--start-method", "teleport", "train.py"], "invalid value for '--start-method'"),
    "unknown_choice": (["pack", "--on", "mars", "a", "b"], "invalid value for '--on': 'mars' is not one of"),
    "no_number": (["compare", "--rounds", "many", "train.py"], "invalid value for '--rounds'"),
    "an_option_of_other_targets": (["doctor", "--ideal", "photos"], "this has no meaning for data"),
    "no_numbers_of_workers": (["bench", "data.csv", "--workers", "some"], "cannot measure"),
    "no_such_script": (["run", "nosuch.py"], "no such script"),
}


@pytest.mark.parametrize("case", WRONG)
def test_a_wrong_call_ends_with_status_2_and_one_shape_of_message(case: str, command: Command) -> None:
    arguments, what = WRONG[case]
    status, out, err = command(*arguments)
    assert (status, out) == (2, "")
    first, second, *_ = err.splitlines()
    assert first.lower().startswith(f"headrace: {what}")
    assert second.startswith("  place:    ")


def test_a_message_about_an_option_names_the_help_that_lists_them(command: Command) -> None:
    _, _, err = command("inspect", "data.csv", "--nosuch")
    assert "  place:    headrace inspect\n" in err
    assert "  fix:      `headrace inspect --help` says what it takes\n" in err


def test_data_that_are_not_there_are_no_wrong_call(tmp_path: Path, command: Command) -> None:
    status, _, err = command("inspect", tmp_path / "nothing")
    assert status == 1
    assert err.startswith("headrace: there are no such data")


def test_the_command_alone_prints_its_help_and_ends_with_status_2(command: Command) -> None:
    status, out, err = command()
    assert (status, err) == (2, "")
    assert out.lstrip().startswith("Usage: ")
