"""The script that a command runs: a file of this machine."""

from __future__ import annotations

from pathlib import Path

from headrace.core.errors import UsageError
from headrace.core.text.urls import refuse_url
from headrace.storage.locations import local_path


def script_file(script: str, command: str) -> str:
    """Returns the path of a script. Raises `UsageError`, in the name of the command, if it is elsewhere or missing."""
    path = local_path(script)
    refuse_url(path, command, "copy the script to this machine; it may open data by their URL")
    if not Path(path).is_file():
        raise UsageError.about(
            "no such script",
            place=path,
            expected="a Python file",
            fix="check the path; for a module, put -m before its name",
        )
    return path
