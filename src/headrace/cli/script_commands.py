"""Commands about a training script: what they take."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Annotated, Literal

import typer

from headrace.cli.help import Command
from headrace.cli.options import (
    CREDENTIALS,
    FAULTS,
    LOADER,
    OUTPUT,
    RUN,
    Arguments,
    Digest,
    Ideal,
    JsonFile,
    Live,
    Module,
    NumWorkers,
    PersistentWorkers,
    PinMemory,
    Plain,
    PrefetchFactor,
    Quarantine,
    ReportFile,
    SampleTimeout,
    Script,
    Seconds,
    Seed,
    StoreOption,
    TraceFile,
    check_doctor,
    check_is_no_option,
    number_or_auto,
    store_options,
)
from headrace.core.process.machine import cores

A_SCRIPT = "A script"
A_PLAN = "Transforms of a pipeline (--plan)"

scripts = typer.Typer()

SCRIPT = {"allow_interspersed_args": False, "ignore_unknown_options": True}
"""Settings of a command whose options end where the script begins: what follows belongs to the script."""


class OnErrorOption(StrEnum):
    """What becomes of bad samples."""

    SKIP = "skip"
    REPLACE = "replace"


class StartMethod(StrEnum):
    """Python's ways to start a process."""

    fork = "fork"
    spawn = "spawn"
    forkserver = "forkserver"


@scripts.command(
    cls=Command,
    context_settings=SCRIPT,
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
        StartMethod | None,
        typer.Option(help="How to start workers, where the script does not say.", rich_help_panel=LOADER),
    ] = None,
    on_error: Annotated[
        OnErrorOption | None,
        typer.Option(help="What to do with bad samples; default: they end the run.", rich_help_panel=FAULTS),
    ] = None,
    quarantine: Quarantine = None,
    sample_timeout: SampleTimeout = None,
    digest: Digest = False,
    seed: Seed = None,
    module: Module = False,
    seconds: Seconds = None,
    json_file: JsonFile = None,
    report: ReportFile = None,
    trace: TraceFile = None,
    live: Live = False,
) -> None:
    """Measure how long a script waits for data.

    Runs it, unmodified, with headrace's loader in the place of torch's, and says what to change.
    """
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
        seed=seed,
    )
    raise typer.Exit(status)


@scripts.command(
    cls=Command,
    context_settings=SCRIPT,
    epilog="Example: headrace compare train.py --epochs 1",
)
def compare(
    script: Script,
    arguments: Arguments = None,
    rounds: Annotated[
        int, typer.Option(min=1, help="How often the script runs with each loader.", rich_help_panel=RUN)
    ] = 3,
    module: Module = False,
    seconds: Seconds = None,
    json_file: JsonFile = None,
) -> None:
    """Run a script with both loaders and compare.

    Runs it with torch's loader and with headrace's in turn, with seeds set before it begins, so that both get the same
    batches. One table shows time, waiting, memory and CPU time; below it stands what to change next.
    """
    check_is_no_option(script, "headrace compare")
    from headrace.cli.compare import compare as run_compare

    status = run_compare(script, arguments or [], rounds=rounds, as_module=module, seconds=seconds, json_file=json_file)
    raise typer.Exit(status)


@scripts.command(
    cls=Command,
    context_settings=SCRIPT,
    epilog="Example: headrace doctor train.py --epochs 1, headrace doctor photos/, "
    f"headrace doctor s3://bucket/photos, headrace doctor --plan train.py:train_data --epochs 20 --run. {CREDENTIALS}",
)
def doctor(
    context: typer.Context,
    target: Annotated[str | None, typer.Argument(help="A training script, or data in any format; also a URL.")] = None,
    arguments: Annotated[list[str] | None, typer.Argument(help="Arguments of the script itself.")] = None,
    seconds: Annotated[
        float | None,
        typer.Option(
            min=0.1, help="How long a script runs (60), or data is loaded with each setting (3).", rich_help_panel=RUN
        ),
    ] = None,
    report: Annotated[
        Path | None, typer.Option(help="Also write an HTML report to this file.", rich_help_panel=A_SCRIPT)
    ] = None,
    plain: Annotated[bool, typer.Option("--plain", help="Keep torch's own loader.", rich_help_panel=A_SCRIPT)] = False,
    ideal: Annotated[
        bool,
        typer.Option(
            "--ideal", help="RUN IT AGAIN, with one batch that repeats, and compare.", rich_help_panel=A_SCRIPT
        ),
    ] = False,
    module: Annotated[
        bool,
        typer.Option("--module", "-m", help="TARGET is a module, as in python -m.", rich_help_panel=A_SCRIPT),
    ] = False,
    plan: Annotated[
        str | None,
        typer.Option(
            metavar="SCRIPT.py:NAME",
            help="Measure the transforms of a headrace.Staged (or what a function returns), and where to cache.",
            rich_help_panel=A_PLAN,
        ),
    ] = None,
    batch_size: Annotated[
        int, typer.Option(min=1, help="Samples per batch (data, --plan).", rich_help_panel=LOADER)
    ] = 64,
    epochs: Annotated[
        int, typer.Option(min=1, help="Epochs within which a cache must pay for itself.", rich_help_panel=A_PLAN)
    ] = 10,
    run: Annotated[
        bool, typer.Option("--run", help="Build every cache, and measure whole epochs.", rich_help_panel=A_PLAN)
    ] = False,
    workers: Annotated[
        str | None, typer.Option(help="Numbers of workers to measure with (data, --plan).", rich_help_panel=LOADER)
    ] = None,
    batches: Annotated[
        int | None, typer.Option(min=1, help="Batches of a measured epoch, at most.", rich_help_panel=A_PLAN)
    ] = None,
    option: StoreOption = None,
    json_output: Annotated[
        bool, typer.Option("--json", help="Print all figures as JSON (data, --plan).", rich_help_panel=OUTPUT)
    ] = False,
) -> None:
    """Find what makes loading slow.

    Looks at a training script, at some data, or at the transforms of a pipeline (--plan).
    """
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
