"""Data in a store that are not complete: somebody packs there, or a pack was interrupted."""

from __future__ import annotations

from headrace.core.errors import FormatError
from headrace.storage.files import is_file, is_folder, join

AREA = ".headrace-packing"
"""The folder in which `headrace pack` keeps its notes, beside the objects of the data."""

PLAN = "plan"
"""The note that is there until the data are complete."""


def refuse_unfinished(url: str) -> None:
    """Raises `FormatError` for a folder of objects whose packing has not ended."""
    if not is_folder(url):
        return

    mark = join(url, f"{AREA}/{PLAN}")
    if is_file(mark):
        what = "these data are not complete"
        found = "a pack that has not ended yet, or was interrupted"
        fix = "wait until it has ended, or run the same `headrace pack` again: it resumes where it stopped"
        raise FormatError.about(what, place=url, found=found, expected=f"no {mark}", fix=fix)
