"""Runs a script as one that begins with `headrace.use()`. Processes that it starts itself run the script alone."""

from __future__ import annotations

import runpy
import sys

import headrace

if __name__ == "__main__":
    headrace.use()
    del sys.argv[0]
    runpy.run_path(sys.argv[0], run_name="__main__")
