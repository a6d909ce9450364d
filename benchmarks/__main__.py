"""Measures loaders beside each other.

python -m benchmarks NAME [--quick] [--json FILE]    measures and prints; NAME --help: its other options
python -m benchmarks page NAME ...                   also keeps the figures and writes docs/benchmarks/figures.md anew
"""

from __future__ import annotations

import argparse
import inspect
import json
import shlex
import sys
import time
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.catalog import BENCHMARKS
from benchmarks.harness import page
from benchmarks.harness.machine import machine, versions
from benchmarks.harness.sections import checks, paragraph


def measure(name: str, arguments: Sequence[str]) -> None:
    """Measures, prints the tables, and keeps the figures in a file if that is asked for."""
    benchmark = BENCHMARKS[name]
    function = benchmark.function
    quick = "--quick" in arguments
    words = [word for word in arguments if word != "--quick"]
    options = vars(parser_of(name, function).parse_args([*shlex.split(benchmark.quick), *words] if quick else words))
    kept = options.pop("json", None)

    warnings.simplefilter("ignore", UserWarning)  # more workers than cores: on purpose
    began = time.perf_counter()
    tables = function(**options)
    print("\n\n".join(["", *map(paragraph, tables), checks(tables)]))
    if kept is not None:
        result = {
            "name": name,
            "commands": [command_of(name, options)],
            "machine": machine(),
            "versions": versions(benchmark.peers.split()),
            "tables": [table.as_json() for table in tables],
            "quick": quick,
            "seconds": round(time.perf_counter() - began),
        }
        kept.write_text(json.dumps(result, indent=1) + "\n")


def parser_of(name: str, function: Any) -> argparse.ArgumentParser:
    """Returns the parser of a benchmark's options. Only those that are on the command line are in what it returns."""
    parser = argparse.ArgumentParser(
        prog=f"python -m benchmarks {name}",
        description=inspect.getdoc(function),
        epilog="--quick has small sizes, to try it: such figures say nothing.",
        formatter_class=argparse.RawDescriptionHelpFormatter,
        argument_default=argparse.SUPPRESS,
    )
    for option in inspect.signature(function).parameters.values():
        flag, default = f"--{option.name.replace('_', '-')}", option.default
        if isinstance(default, bool):
            parser.add_argument(flag, action="store_true")
        elif isinstance(default, tuple):
            choices = default if isinstance(default[0], str) else None
            words = " ".join(map(text_of, default))
            parser.add_argument(flag, nargs="+", type=type(default[0]), choices=choices, help=f"otherwise {words}")
        else:
            parser.add_argument(flag, type=type(default), help=f"otherwise {text_of(default)}")
    parser.add_argument("--json", type=Path, metavar="FILE", help="also write the figures there")
    return parser


def command_of(name: str, options: dict[str, Any]) -> str:
    """Returns the command line as it is typed in the repository."""
    words = ["python", "-m", "benchmarks", name]
    for option, value in options.items():
        words.append(f"--{option.replace('_', '-')}")
        words += map(text_of, value if isinstance(value, list) else [] if value is True else [value])
    return shlex.join(words)


def text_of(value: object) -> str:
    """Returns a value as it is typed."""
    return f"{value:g}" if isinstance(value, float) else str(value)


def main(arguments: Sequence[str]) -> int:
    """Runs what the command line asks for. Returns the status of the process."""
    name, rest = (arguments[0], arguments[1:]) if arguments else ("--help", [])
    if name in BENCHMARKS:
        measure(name, rest)
        return 0
    if name == "page":
        return page.main(rest)
    if name not in ("-h", "--help"):
        print(f"no benchmark {name}; there are {', '.join(BENCHMARKS)}", file=sys.stderr)
        return 2
    print(__doc__)
    for one, benchmark in BENCHMARKS.items():
        print(f"    {one:<20} {benchmark.line:<56} {page.expected(one, page.IN_PLACE)}")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
