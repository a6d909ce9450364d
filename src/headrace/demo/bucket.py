"""Scene: the same photos from this disk and from a bucket, which SeaweedFS serves on this machine."""

from __future__ import annotations

import tempfile
import time
from pathlib import Path
from typing import Any

import torch

from headrace.core.extras import extra
from headrace.data.prepare.textures import make_textures
from headrace.demo.bucket_server import bucket_server, need_weed
from headrace.demo.party import Tell, run
from headrace.demo.scene import Scene, SceneResult
from headrace.telemetry.digest import extend_digest

COUNT, BATCH, SIZE = 500, 32, 176
EPOCHS = 2


def load(tell: Tell, place: str, options: dict[str, Any]) -> dict[str, Any]:
    """Returns the rate of the second epoch, the seconds to the first batch, and a checksum."""
    import headrace
    from headrace.transforms import TrainImages

    torch.set_num_threads(1)
    images = headrace.open(place, ["image", "label"], decode=False, options=options)
    loader: Any = headrace.DataLoader(
        images.map(TrainImages(SIZE), on="image"),
        batch_size=BATCH,
        shuffle=True,
        num_workers=2,
        persistent_workers=True,
        seed=0,
    )
    rate = first = 0.0
    digest = 0
    for _ in range(EPOCHS):
        began = time.perf_counter()
        count = 0
        for batch in loader:
            first = first or time.perf_counter() - began
            digest = extend_digest(digest, batch)
            count += len(batch["label"])
        rate = count / (time.perf_counter() - began)
    return {"rate": rate, "first": first, "digest": digest}


def show() -> SceneResult:
    """Packs the photos into both places, and loads them. Raises `MissingExtraError` without the server's program."""
    from headrace.data.convert.pack import pack

    need_weed()
    extra("obstore", "cloud")
    shown = SceneResult()
    with (
        tempfile.TemporaryDirectory(prefix="headrace-demo-") as folder,
        tempfile.TemporaryDirectory(prefix="headrace-demo-") as objects,
        bucket_server(Path(objects), "photos") as endpoint,
    ):
        root = Path(folder)
        options = {"endpoint": endpoint, "skip_signature": True}
        make_textures(root / "photos", COUNT)
        pack(root / "photos" / "train", root / "packed")
        pack(root / "photos" / "train", "s3://photos/train", target_options=options)
        for party, place, access in (
            ("headrace, this disk", str(root / "packed"), {}),
            ("headrace, s3://photos", "s3://photos/train", options),
        ):
            outcome = run(load, place, access)
            rate, first = outcome.value["rate"], outcome.value["first"]
            shown.add(
                party,
                f"{rate:7,.0f} images/s, first batch after {first * 1e3:4.0f} ms, "
                f"checksum {outcome.value['digest']:08x}",
                facts=outcome.value["digest"],
                figures={"samples_per_second": rate, "first_batch": first, "cpu_seconds": outcome.cpu_seconds},
            )
    return shown


SCENE = Scene("bucket", f"{COUNT} JPEGs in a bucket: decode, random crop, resize; 2 workers", show)
