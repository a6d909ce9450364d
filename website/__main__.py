"""python -m website [--into FOLDER]: builds the docs site of this version. Warnings are errors."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from website import build


def main() -> int:
    """Builds what the command line asks for. Returns the status of the process."""
    parser = argparse.ArgumentParser(prog="python -m website", description=__doc__)
    parser.add_argument("--into", type=Path, default=build.ROOT / "site", metavar="FOLDER", help="default: site")
    given = parser.parse_args()
    failed = build.build(given.into)
    if failed:
        print(failed, file=sys.stderr)
        return 1
    print(f"{given.into / 'index.html'}: python -m http.server --directory {given.into} shows it")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
