"""The error of data that a library cannot read, whatever the library raises."""

from __future__ import annotations

import re

from headrace.core.errors import FormatError, HeadraceError, MachineError
from headrace.core.process.shortage import machine_error, shortage

RESTORE = "restore the file"


def fix_of(error: BaseException) -> str:
    """Returns what to do about a failure of NumPy."""
    if not re.search(r"\b(Object arrays|[Pp]ython objects)\b", str(error)):
        return "restore the file"

    return (
        "if you trust the author, np.load(..., allow_pickle=True) what it was made of, and save it as numbers, "
        "text or bytes"
    )


def unreadable(path: object, what: str, error: BaseException, fix: str = RESTORE) -> HeadraceError:
    """Returns the error for a file that its library refuses: `FormatError`, or `MachineError` if that is to blame."""
    if isinstance(error, MachineError):
        return error
    if (short_of := shortage(error)) is not None:
        return machine_error(path, f"reading this {what}", short_of, error)

    lines = str(error).strip().splitlines() or [type(error).__name__]
    if "not implemented" in lines[0].lower() and fix == RESTORE:
        fix = "write it again with types that the library reads, such as integers of 64 bits; the file may be sound"
    if len(lines[0]) < 300:
        found = lines[0]
    else:
        found = lines[0][:300] + " ..."

    return FormatError.about(f"cannot read this {what}", place=path, found=found, expected=f"a sound {what}", fix=fix)
