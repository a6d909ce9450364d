"""`headrace cache`: what it takes."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

VARIABLE = "HEADRACE_CACHE_DIR"
WRONG_USAGE = 2

cache = typer.Typer(name="cache", rich_markup_mode=None)

Folder = Annotated[Path, typer.Argument(envvar=VARIABLE, help="The folder that cache_dir= names.", show_default=False)]


@cache.callback(invoke_without_command=True)
def headrace_cache(context: typer.Context) -> None:
    """Show, check or clear the cache of a machine.

    It is the parts of remote data that headrace keeps on its disk.
    """
    if context.invoked_subcommand is None:
        typer.echo(context.get_help())
        raise typer.Exit(WRONG_USAGE)


@cache.command(epilog=f"Example: headrace cache show /nvme/cache, or {VARIABLE}=/nvme/cache headrace cache show")
def show(
    folder: Folder,
    json_output: Annotated[bool, typer.Option("--json", help="Print the result as JSON.")] = False,
) -> None:
    """Show what the cache holds.

    Shows its content, how much of its limit is used, and by which jobs. Changes nothing.
    """
    from headrace.cli.cache import show_cache

    raise typer.Exit(show_cache(folder, json_output=json_output))


@cache.command(epilog="Example: headrace cache check /nvme/cache")
def check(
    folder: Folder,
    json_output: Annotated[bool, typer.Option("--json", help="Print the result as JSON.")] = False,
) -> None:
    """Verify every cached byte.

    Drops what differs from its checksum: it is fetched again when it is needed. Jobs may use the cache meanwhile.
    Exits with 1 if anything was wrong.
    """
    from headrace.cli.cache import check_cache

    raise typer.Exit(check_cache(folder, json_output=json_output))


@cache.command(epilog="Example: headrace cache clear /nvme/cache --yes")
def clear(
    folder: Folder,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
    force: Annotated[
        bool, typer.Option("--force", help="Delete also while jobs use it; they fetch what they need.")
    ] = False,
) -> None:
    """Delete what the cache holds.

    Files that headrace did not make stay, and so does the folder.
    """
    from headrace.cli.cache import clear_cache

    raise typer.Exit(clear_cache(folder, yes=yes, force=force))
