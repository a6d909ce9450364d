"""The `headrace` command: what it takes. Commands import what they need when they run, so that help comes at once."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator
from enum import StrEnum
from typing import Annotated, Any

import typer

from headrace.cli.cache_commands import cache
from headrace.cli.data_commands import data
from headrace.cli.help import Command
from headrace.cli.options import JsonFile
from headrace.cli.script_commands import scripts
from headrace.core.errors import HeadraceError, UsageError
from headrace.version import __version__

app = typer.Typer(
    name="headrace",
    help="Feeds data to PyTorch training: faster, and it tells where the time goes.",
    pretty_exceptions_enable=False,
    rich_markup_mode=None,  # rich takes longer to load than all else that help needs
    add_completion=False,
)

app.add_typer(scripts)
app.add_typer(data)
app.add_typer(cache)

WRONG_CALL: type[Exception] = typer.BadParameter.__mro__[1]
"""What typer raises for a wrong call: click's UsageError, of which recent versions of typer have a copy."""

WRONG_USAGE = 2
"""The status of a command that was called wrongly; other errors end with 1."""


class SceneName(StrEnum):
    """The scenes of the demo."""

    resume = "resume"
    faults = "faults"
    seed = "seed"
    spawn = "spawn"
    stored = "stored"
    photos = "photos"
    findings = "findings"
    bucket = "bucket"
    socket = "socket"


def main() -> None:
    """Runs the command line.

    An error of headrace, and a wrong call, is printed without a traceback. The status is 2 if the command was called
    wrongly, and 1 after all other errors.
    """
    # Standalone, click would print wrong calls in words of its own, and end the process itself.
    try:
        with _calls_checked():
            status = app(prog_name="headrace", standalone_mode=False)
    except UsageError as error:
        _print_error(error)
        sys.exit(WRONG_USAGE)
    except HeadraceError as error:
        _print_error(error)
        sys.exit(1)
    except typer.Abort:
        typer.echo("Aborted.", err=True)
        sys.exit(1)

    sys.exit(status)


@contextlib.contextmanager
def _calls_checked() -> Iterator[None]:
    """Turns typer's errors about a wrong call into `UsageError`, so that all wrong calls read alike."""
    try:
        yield
    except WRONG_CALL as error:
        wrong: Any = error
        context = wrong.ctx
        if context is None:
            place = "headrace"
        else:
            place = context.command_path

        said = wrong.format_message().replace("Value error, ", "")  # pydantic's, in some versions of typer
        what = said[:1].lower() + said[1:].rstrip(".")
        raise UsageError.about(what, place=place, fix=f"`{place} --help` says what it takes") from error


def _print_error(error: HeadraceError) -> None:
    from headrace.telemetry.terminal import Terminal

    console = Terminal(stderr=True)
    console.print(f"headrace: {error}", style="red", markup=False, highlight=False, emoji=False, soft_wrap=True)


def _version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"headrace {__version__}")
        raise typer.Exit


@app.callback(invoke_without_command=True)
def headrace(
    context: typer.Context,
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    """Feeds data to PyTorch training: faster, and it tells where the time goes."""
    if context.invoked_subcommand is None:
        typer.echo(context.get_help())
        raise typer.Exit(WRONG_USAGE)


@app.command(cls=Command, epilog="Examples: headrace demo, headrace demo resume faults, headrace demo bucket")
def demo(
    scenes: Annotated[
        list[SceneName] | None,
        typer.Argument(help="Which scenes; by default all but bucket and socket.", show_default=False),
    ] = None,
    json_file: JsonFile = None,
) -> None:
    """Show what headrace does, in a minute.

    Each scene runs a few lines with torch's loader, with torchdata's where it is installed, and with headrace's, and
    checks what comes out. Needs Pillow: pip install 'headrace[demo]'. The bucket: 'headrace[demo,cloud,servers]'.
    """
    from headrace.demo.scenes import play

    play([scene.value for scene in scenes or ()], json_file)
