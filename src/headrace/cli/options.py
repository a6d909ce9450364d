"""Options of several commands, with their help, and which of `headrace doctor` go together."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import typer

from headrace.core.errors import UsageError

DATA = "Data"
LOADER = "Loader"
FAULTS = "Faults"
OUTPUT = "Output"
RUN = "Run"
"""Groups of options in help texts."""

Script = Annotated[str, typer.Argument(help="The training script (with --module: a module's name).")]
Arguments = Annotated[list[str] | None, typer.Argument(help="Arguments of the script itself, options included.")]
Module = Annotated[
    bool, typer.Option("--module", "-m", help="SCRIPT is a module, as in python -m.", rich_help_panel=RUN)
]
Seconds = Annotated[
    float | None,
    typer.Option(min=0.1, help="End the script after so long, at the next batch it asks for.", rich_help_panel=RUN),
]
Seed = Annotated[
    int | None, typer.Option(help="Seed random, NumPy and torch before the script begins.", rich_help_panel=RUN)
]
Plain = Annotated[
    bool, typer.Option("--plain", help="Keep torch's own loader and only measure it.", rich_help_panel=LOADER)
]
Ideal = Annotated[
    bool,
    typer.Option(
        "--ideal",
        help="Repeat the first batch of each epoch: the script's speed with a loader that costs nothing.",
        rich_help_panel=LOADER,
    ),
]
NumWorkers = Annotated[
    str | None,
    typer.Option(metavar="N|auto", help="Worker processes, where the script does not say.", rich_help_panel=LOADER),
]
PrefetchFactor = Annotated[
    str | None,
    typer.Option(
        metavar="N|auto", help="Batches prefetched per worker, where the script does not say.", rich_help_panel=LOADER
    ),
]
PersistentWorkers = Annotated[
    bool,
    typer.Option(
        "--persistent-workers", help="Keep workers between epochs, where the script does not say.",
        rich_help_panel=LOADER,
    ),
]  # fmt: skip
PinMemory = Annotated[
    bool,
    typer.Option(
        "--pin-memory", help="Pinned batches for a GPU, where the script does not say.", rich_help_panel=LOADER
    ),
]
Quarantine = Annotated[
    Path | None,
    typer.Option(help="Write each bad sample to this file, as a line of JSON.", rich_help_panel=FAULTS),
]
SampleTimeout = Annotated[
    float | None,
    typer.Option(min=0.001, help="Seconds after which a sample that hangs counts as bad.", rich_help_panel=FAULTS),
]
Digest = Annotated[
    bool,
    typer.Option(
        "--digest", help="Print a checksum of each loader's batches, to compare runs.", rich_help_panel=OUTPUT
    ),
]
JsonFile = Annotated[
    Path | None, typer.Option("--json", help="Also write all figures to this file.", rich_help_panel=OUTPUT)
]
JsonOutput = Annotated[bool, typer.Option("--json", help="Print the result as JSON.", rich_help_panel=OUTPUT)]
ReportFile = Annotated[
    Path | None,
    typer.Option("--report", help="Write an HTML report: findings, a timeline, memory.", rich_help_panel=OUTPUT),
]
TraceFile = Annotated[
    Path | None,
    typer.Option(
        "--trace", help="Write a trace (.json, .json.gz) for Perfetto and TensorBoard.", rich_help_panel=OUTPUT
    ),
]
Live = Annotated[
    bool,
    typer.Option(
        "--live", help="Show throughput, waiting and workers in the terminal while it runs.", rich_help_panel=OUTPUT
    ),
]

Columns = Annotated[str | None, typer.Option(help="Only these columns, separated by commas.", rich_help_panel=DATA)]
Format = Annotated[
    str | None,
    typer.Option("--format", "-f", help="Data format, where it cannot be detected.", rich_help_panel=DATA),
]
Trust = Annotated[
    bool,
    typer.Option("--trust", help="Read pickles and other data that can run code.", rich_help_panel=DATA),
]
StoreOption = Annotated[
    list[str] | None,
    typer.Option(
        "--option",
        metavar="KEY=VALUE",
        help="Option of the URL's store, such as endpoint=http://host:9000; may be repeated.",
        rich_help_panel=DATA,
    ),
]
TargetOption = Annotated[
    list[str] | None,
    typer.Option(
        "--target-option",
        metavar="KEY=VALUE",
        help="Option of TARGET's store, if it differs from that of SOURCE.",
        rich_help_panel=DATA,
    ),
]
DATABASE = "Database"
Query = Annotated[
    str | None,
    typer.Option(help="A SELECT, such as 'select id, x, y from samples where y >= 0'.", rich_help_panel=DATABASE),
]
TableName = Annotated[str | None, typer.Option("--table", help="A table, for all of it.", rich_help_panel=DATABASE)]
KeyColumn = Annotated[
    str | None,
    typer.Option("--key", help="The column that is unique and never null; gives the order.", rich_help_panel=DATABASE),
]
LOG = "Live source (kafka://, ...)"
Until = Annotated[
    str | None, typer.Option(help="Where to stop: 'now', a number of samples, or a time.", rich_help_panel=LOG)
]
Decode = Annotated[
    str,
    typer.Option(help="What records are: json, msgpack, avro, text, bytes, ...", rich_help_panel=LOG),
]
PackedOn = Annotated[
    Literal["local", "ray"],
    typer.Option(
        "--on",
        help="local: processes of this machine; ray: tasks of a Ray cluster whose machines share the folders: that "
        "of RAY_ADDRESS, or the one that this machine belongs to (ray start), or a new one here.",
        rich_help_panel=RUN,
    ),
]
CREDENTIALS = (
    "Credentials of URLs come from the environment (AWS_*, GOOGLE_*, AZURE_*); docs/howto/credentials.md lists them."
)
"""Stands below the help of commands that take URLs."""


def store_options(given: list[str] | None) -> dict[str, object]:
    """Returns the options of a store from what stands on the command line. Raises `UsageError`, which shows no value.

    Limits become numbers; everything else stays text, since a key of digits is no number.
    """
    if not given:
        return {}

    from headrace.storage.stores.access import DURATIONS, LIMIT_OPTIONS

    options: dict[str, object] = {}
    for text in given:
        name, equals, value = text.partition("=")
        name = name.strip()
        if not equals or not name:
            # The text may be a secret that somebody has typed without its name.
            found = "a text without a name and ="
            raise UsageError.about("wrong option", place="--option", found=found, expected="KEY=VALUE")

        options[name] = value
        if name in LIMIT_OPTIONS | DURATIONS:
            options[name] = _number(name, value)

    return options


def _number(name: str, text: str) -> int | float:
    try:
        if name == "max_retries":
            return int(text)
        return float(text)
    except ValueError:
        raise UsageError.about("wrong option", place=f"--option {name}", found=text, expected="a number") from None


def number_or_auto(given: str | None, option: str, least: int) -> int | Literal["auto"] | None:
    """Returns what an option says: a number, "auto", or None if it is not given. Raises `UsageError`."""
    if given is None or given == "auto":
        return given  # type: ignore[return-value]  # narrowed by the comparison
    if given.isdigit() and int(given) >= least:
        return int(given)

    raise UsageError.about(
        "wrong option", place=option, found=given, expected=f"a whole number from {least} on, or auto"
    )


def check_is_no_option(target: str | None, command: str) -> None:
    """Raises `UsageError` if what should be a script or data is an unknown option.

    Such options are not refused by typer: what follows the script belongs to the script.
    """
    if target is None or not target.startswith("-"):
        return
    what = f"no such option: {target}"
    fix = f"`{command} --help` says what it takes; options of the script go after the script"
    raise UsageError.about(what, place=command, fix=fix)


OF_DOCTOR = {
    "script": {"target", "arguments", "seconds", "report", "plain", "ideal", "module"},
    "data": {"target", "seconds", "batch_size", "workers", "option", "json_output"},
    "plan": {"plan", "batch_size", "epochs", "run", "workers", "batches", "json_output"},
}
"""What says something for each thing that `headrace doctor` looks at."""

NAMED = {"script": "a script", "data": "data", "plan": "the steps of a pipeline"}
"""The same things in words."""


def check_doctor(context: typer.Context, kind: Literal["script", "data", "plan"]) -> None:
    """Raises `UsageError` if something was given on the command line that has no meaning for this kind of target."""
    # Arguments that were left out are None or an empty list, and come "from the command line" all the same.
    wrong = []
    for name, value in context.params.items():
        source = context.get_parameter_source(name)
        was_given = source is not None and source.name == "COMMANDLINE" and value not in (None, [])
        if was_given and name not in OF_DOCTOR[kind]:
            wrong.append(name)

    if not wrong:
        return

    if kind == "data" and "arguments" in wrong:
        fix = "options go before the target: headrace doctor --seconds 5 photos/"
    elif kind == "plan":
        fix = "--plan SCRIPT.py:NAME takes no target; `headrace doctor --help` says which options are for it"
    else:
        fix = f"leave it out; `headrace doctor --help` says which options are for {kind}"

    # Options by the name that the user typed; the two that have no name by what stands there.
    typed: dict[str | None, str] = {}
    for parameter in context.command.params:
        typed[parameter.name] = parameter.opts[0]

    typed["target"] = str(context.params["target"])
    typed["arguments"] = " ".join(context.params["arguments"] or [])
    found = ", ".join(map(typed.__getitem__, wrong))
    place = f"headrace doctor {context.params.get('target') or '--plan'}"
    raise UsageError.about(f"this has no meaning for {NAMED[kind]}", place=place, found=found, fix=fix)
