"""Commands about data: what they take."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from headrace.cli.help import Command
from headrace.cli.options import (
    CREDENTIALS,
    DATA,
    LOADER,
    OUTPUT,
    RUN,
    Columns,
    Decode,
    Format,
    JsonOutput,
    KeyColumn,
    PackedOn,
    Query,
    StoreOption,
    TableName,
    TargetOption,
    Trust,
    Until,
    store_options,
)

TARGET = "Target"

data = typer.Typer()


@data.command(
    cls=Command,
    epilog="Examples: headrace pack photos/ photos-arrow --resize 256 --workers 4, "
    "headrace pack photos/ s3://bucket/photos, headrace pack postgresql://user@host/db out/ --table samples --key id. "
    f"{CREDENTIALS} Passwords of databases: PGPASSWORD or ~/.pgpass (docs/howto/sql.md).",
)
def pack(
    source: Annotated[
        str, typer.Argument(help="A file, a folder, a pattern such as 'train-{000..011}.tar', or a URL.")
    ],
    target: Annotated[str, typer.Argument(help="The file or folder to make, or its URL in a bucket.")],
    format: Annotated[
        str,
        typer.Option(
            "--format", "-f", help="Format of TARGET; auto: by its ending, else arrow.", rich_help_panel=TARGET
        ),
    ] = "auto",
    columns: Columns = None,
    resize: Annotated[
        int | None, typer.Option(help="Shrink images to this shorter side, in pixels.", rich_help_panel=TARGET)
    ] = None,
    quality: Annotated[
        int, typer.Option(help="Quality of the JPEGs that --resize makes, 1 to 95.", rich_help_panel=TARGET)
    ] = 90,
    shards: Annotated[
        int | None, typer.Option(help="Number of files; default: about 512 MB each.", rich_help_panel=TARGET)
    ] = None,
    workers: Annotated[int, typer.Option(min=0, help="Processes; 0: one per core.", rich_help_panel=RUN)] = 0,
    on: PackedOn = "local",
    shuffle: Annotated[
        int | None, typer.Option(help="Store the samples in random order, with this seed.", rich_help_panel=TARGET)
    ] = None,
    allow_bad: Annotated[
        bool, typer.Option("--allow-bad", help="Exit with 0 in spite of bad images.", rich_help_panel=RUN)
    ] = False,
    trust: Trust = False,
    query: Query = None,
    table: TableName = None,
    key: KeyColumn = None,
    until: Until = None,
    decode: Decode = "json",
    option: StoreOption = None,
    target_option: TargetOption = None,
    json_output: JsonOutput = False,
) -> None:
    """Convert a dataset to another format.

    It works in parallel. Interrupted, it continues when it is run again.
    """
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


@data.command(
    cls=Command,
    epilog="Examples: headrace verify photos-arrow && python train.py, "
    f"headrace verify s3://bucket/photos. {CREDENTIALS}",
)
def verify(
    uri: Annotated[str, typer.Argument(help="A file, a folder, a pattern of files, or a URL.")],
    format: Format = None,
    trust: Trust = False,
    option: StoreOption = None,
    json_output: JsonOutput = False,
) -> None:
    """Read every sample and report damage.

    Decodes every sample, compares checksums and counts duplicates. Exits with 1 if anything is damaged. At a URL, data
    with a manifest is compared with its checksums and not decoded.
    """
    from headrace.cli.verify import run_verify

    options = store_options(option)
    raise typer.Exit(run_verify(uri, format=format, trust=trust, json_output=json_output, options=options))


@data.command(cls=Command, epilog="Examples: headrace prepare fashion-mnist data, headrace prepare textures data")
def prepare(
    name: Annotated[str, typer.Argument(help="fashion-mnist (downloaded, 31 MB), npz-demo or textures (made here).")],
    folder: Annotated[Path, typer.Argument(help="The folder to put it in.")],
    mirror: Annotated[str | None, typer.Option(help="Download from this address instead.", rich_help_panel=RUN)] = None,
    json_output: JsonOutput = False,
) -> None:
    """Get a small dataset to try things with."""
    from headrace.cli.prepare import run_prepare

    raise typer.Exit(run_prepare(name, folder, mirror, json_output))


@data.command(
    cls=Command,
    epilog="Examples: headrace inspect photos/ --sheet photos.png, headrace inspect s3://bucket/photos, "
    f"headrace inspect sqlite:///runs.db --table samples --key id. {CREDENTIALS}",
)
def inspect(
    uri: Annotated[
        str,
        typer.Argument(
            help="A file, a folder, a pattern such as 'train-{000..011}.tar', or a URL, also of a database."
        ),
    ],
    columns: Columns = None,
    samples: Annotated[
        int, typer.Option(min=0, help="How many of the first samples to show.", rich_help_panel=OUTPUT)
    ] = 5,
    sheet: Annotated[
        Path | None, typer.Option(help="Write a picture of up to 64 of its images.", rich_help_panel=OUTPUT)
    ] = None,
    format: Format = None,
    trust: Trust = False,
    dtype: Annotated[
        str | None, typer.Option(help="Type of a flat file of numbers, such as uint16.", rich_help_panel=DATA)
    ] = None,
    query: Query = None,
    table: TableName = None,
    key: KeyColumn = None,
    option: StoreOption = None,
    json_output: JsonOutput = False,
) -> None:
    """Show what a dataset contains.

    Shows its format, columns, counts, sizes and first samples; of a log, such as kafka://, its partitions.
    """
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


@data.command(
    cls=Command,
    epilog=f"Examples: headrace bench data.csv --workers 0,2, headrace bench s3://bucket/photos. {CREDENTIALS}",
)
def bench(
    uri: Annotated[str, typer.Argument(help="Your own data, in any format; also a URL.")],
    columns: Columns = None,
    batch_size: Annotated[int, typer.Option(min=1, help="Samples per batch.", rich_help_panel=LOADER)] = 64,
    workers: Annotated[str, typer.Option(help="Numbers of workers to try.", rich_help_panel=LOADER)] = "0,2",
    samples: Annotated[
        int | None, typer.Option(min=1, help="Samples to use; default: about 200 MB.", rich_help_panel=RUN)
    ] = None,
    seconds: Annotated[float, typer.Option(min=0.01, help="Seconds per measurement.", rich_help_panel=RUN)] = 2.0,
    formats: Annotated[
        str | None, typer.Option(help="Formats to try, separated by commas; default: all.", rich_help_panel=RUN)
    ] = None,
    keep: Annotated[
        Path | None, typer.Option(help="Keep the converted data in this folder.", rich_help_panel=OUTPUT)
    ] = None,
    format: Format = None,
    trust: Trust = False,
    option: StoreOption = None,
    json_output: JsonOutput = False,
) -> None:
    """Measure your data in every format.

    Measures it with torch's loader and with headrace's, and names the fastest format.
    """
    from headrace.cli.bench import options_from, run_bench

    if columns:
        chosen = columns.split(",")
    else:
        chosen = None

    more = {"batch_size": batch_size, "samples": samples, "seconds": seconds, "format": format, "trust": trust}
    options = options_from(uri, workers, formats, chosen, keep, store=store_options(option), **more)
    raise typer.Exit(run_bench(options, json_output=json_output))
