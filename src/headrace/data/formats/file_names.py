"""Names of files that hold arrays: any name of a column as one that each file system takes, and back."""

from __future__ import annotations

from headrace.core.files.disk_names import as_text, on_disk

FORBIDDEN = '/\\%:*?"<>|'
"""What names of files cannot hold on some system, and `%`, which we write them with."""


def file_name(name: str) -> str:
    """Returns the name of an array's file: the array's name, with what file names cannot hold written as %xx."""
    safe = ""
    for char in name:
        if char.isprintable() and char not in FORBIDDEN:
            safe += char
        else:
            safe += _quoted(char)

    # A leading dot would hide the file, and `..` would name another folder.
    if safe.startswith("."):
        safe = "%2E" + safe[1:]
    return on_disk(safe + ".npy")


def _quoted(char: str) -> str:
    """Returns a character as %xx for each of its bytes."""
    return "".join(f"%{byte:02X}" for byte in char.encode("utf-8", "surrogateescape"))


def array_name(file: str) -> str:
    """Returns the array's name, from `file_name`."""
    from urllib.parse import unquote

    return unquote(as_text(file).removesuffix(".npy"), errors="surrogateescape")
