"""`headrace demo --s3`: the photos in a bucket of this machine, and one script that trains from there and from disk."""

from __future__ import annotations

from pathlib import Path

from rich.console import Console

from headrace.cli.bucket_server import bucket_server, need_weed
from headrace.cli.demo import example, make_photos, print_table, train
from headrace.core.extras import extra
from headrace.core.files.temporary_folder import temporary_folder
from headrace.data.convert.pack import pack
from headrace.telemetry.progress import samples_bar
from headrace.telemetry.terminal import Terminal

BUCKET = "photos"
TITLE = "The same script, the same photos, headrace's loader both times"


def run_bucket_demo(folder: Path, *, photos: int, epochs: int, workers: int) -> int:
    """Makes the photos, packs them into a bucket, trains twice, prints the table; returns the exit status.

    Raises `MissingExtraError` before anything is made, if a library or the bucket's server is not installed.
    """
    need_weed()
    extra("obstore", "cloud")
    console = Terminal()
    make_photos(console, folder, photos)
    script = example("train_from_bucket.py")
    page = folder / "report-s3.html"
    rest = ["--epochs", str(epochs), "--workers", str(workers)]
    console.print("Starting SeaweedFS, an S3 server, on this machine ...")
    with (
        temporary_folder("headrace-demo-") as objects,
        bucket_server(objects, BUCKET) as endpoint,
    ):
        _fill(console, folder, endpoint)
        console.print(f"Training with {script.name}, once from this disk and once from the bucket.\n")
        local = train(console, "this disk", [str(script), str(folder), *rest])
        if local.status != 0:
            return local.status

        access = {"AWS_ENDPOINT_URL": endpoint, "AWS_ALLOW_HTTP": "true", "AWS_SKIP_SIGNATURE": "true"}
        remote = train(console, "the bucket", ["--report", str(page), str(script), f"s3://{BUCKET}", *rest], access)
        if remote.status != 0:
            return remote.status

    print_table(console, local, remote, TITLE)
    console.print(f"Where the time went in the second run: {page}", soft_wrap=True, highlight=False)
    return 0


def _fill(console: Console, folder: Path, endpoint: str) -> None:
    options = {"endpoint": endpoint, "skip_signature": True}
    for part in ("train", "val"):
        target = f"s3://{BUCKET}/{part}"
        with samples_bar(f"packing into {target}") as report:
            made = pack(folder / part, target, target_options=options, report=report)
        console.print(
            f"headrace pack {folder / part} {target}: {made.samples:,} photos, {made.files} files, "
            f"{made.bytes / 1e6:,.1f} MB",
            soft_wrap=True,
            highlight=False,
        )
