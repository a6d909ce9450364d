"""Files that others may read at any moment: they see the old content or the new one, never a part."""

from __future__ import annotations

import os
from pathlib import Path


def write_atomically(path: Path, content: bytes) -> None:
    """Writes a file beside its place and renames it. `OSError`: nothing has changed at `path`."""
    # The process is in the name, so that two processes that write the same file do not write into each other's draft.
    draft = path.with_name(f".{path.name}.{os.getpid()}.partial")
    try:
        draft.write_bytes(content)
        draft.replace(path)
    finally:
        # Nothing is left after the rename. After an error, or Ctrl-C, this is a part of a file.
        draft.unlink(missing_ok=True)
