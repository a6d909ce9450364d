"""Help texts: the options of a command in groups."""

from __future__ import annotations

from typing import Any

from typer.core import TyperCommand

OTHERS = "Options"
"""The group of options that name none."""


class Command(TyperCommand):
    """A command whose help lists its options by their groups: an option's `rich_help_panel` names its group."""

    def format_options(self, ctx: Any, formatter: Any) -> None:
        """Writes the arguments, and each group of options under its name, in the order of the signature."""
        groups: dict[str, list[tuple[str, str]]] = {}
        for parameter in self.get_params(ctx):
            record = parameter.get_help_record(ctx)
            if record is not None:
                groups.setdefault(_group_of(parameter), []).append(record)

        # Last, what every command has: --help.
        others = groups.pop(OTHERS, [])
        if others:
            groups[OTHERS] = others
        for name, records in groups.items():
            with formatter.section(name):
                formatter.write_dl(records)


def _group_of(parameter: Any) -> str:
    if parameter.param_type_name == "argument":
        return "Arguments"
    return getattr(parameter, "rich_help_panel", None) or OTHERS
