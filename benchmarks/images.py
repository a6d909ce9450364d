"""JPEGs to random crops of 224 x 224: by two workers of several loaders, and by pipelines on one core."""

from __future__ import annotations

import contextlib
import functools
import io
import multiprocessing
import statistics
import tarfile
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import simplejpeg
import torch
from PIL import Image
from torch.utils.data import DataLoader, Dataset

import headrace
from benchmarks.harness.machine import peer
from benchmarks.harness.table import OURS, Row, Table
from benchmarks.harness.turns import Loop, fail, rates_in_turn
from headrace.transforms import EvalImages, Normalize, TrainImages
from headrace.transforms.random_crops import draw_crop

SIZE, BATCH, WORKERS = 224, 64, 2
SCALE, RATIO = (0.08, 1.0), (3 / 4, 4 / 3)
SCALED, OFFSET = Normalize()._constants(torch.device("cpu"))
PILLOW = "torch, Pillow"


def write_photos(root: Path, count: int, times: int = 1) -> list[str]:
    """Writes photographs of soft shapes and noise, about 500 x 375, 80 KB each, or `times` as long and high.

    Returns their paths.
    """
    rng = np.random.default_rng(0)
    paths = []
    for number in range(count):
        width, height = (int(side) * times for side in rng.integers((460, 340), (540, 410)))
        small = rng.integers(0, 255, (12, 16, 3)).astype(np.uint8)
        pixels = cv2.resize(small, (width, height), interpolation=cv2.INTER_CUBIC).astype(np.int16)
        pixels += rng.normal(0, 10, (height, width, 1)).astype(np.int16)
        path = root / "photos" / str(number % 10) / f"{number:06}.jpg"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(pixels.clip(0, 255).astype(np.uint8)).save(path, quality=90)
        paths.append(str(path))
    return paths


def by_pillow(data: bytes, rng: np.random.Generator) -> Any:
    """Decodes and crops as most scripts do."""
    image = Image.open(io.BytesIO(data)).convert("RGB")
    box = draw_crop(rng, (image.height, image.width), SCALE, RATIO)
    edges = (box.left, box.top, box.left + box.width, box.top + box.height)
    view = np.asarray(image.resize((SIZE, SIZE), Image.Resampling.BILINEAR, edges))
    return view[:, ::-1] if rng.random() < 0.5 else view


def _by_opencv(pixels: Any, rng: np.random.Generator) -> Any:
    box = draw_crop(rng, pixels.shape[:2], SCALE, RATIO)
    part = pixels[box.top : box.top + box.height, box.left : box.left + box.width]
    view = cv2.resize(part, (SIZE, SIZE), interpolation=cv2.INTER_LINEAR)
    return view[:, ::-1] if rng.random() < 0.5 else view


def by_opencv(data: bytes, rng: np.random.Generator) -> Any:
    """The same with OpenCV: its resizing does not smooth, and is quicker for that."""
    return _by_opencv(cv2.cvtColor(cv2.imdecode(np.frombuffer(data, np.uint8), cv2.IMREAD_COLOR), 4), rng)


def by_simplejpeg(data: bytes, rng: np.random.Generator) -> Any:
    """Decoded by simplejpeg, resized by OpenCV."""
    return _by_opencv(simplejpeg.decode_jpeg(data, "RGB"), rng)


def planes(view: Any) -> torch.Tensor:
    """[height, width, 3] as [3, height, width]."""
    return torch.from_numpy(np.ascontiguousarray(view.transpose(2, 0, 1)))


class Photos(Dataset[torch.Tensor]):
    """Paths, and what makes a crop of the bytes."""

    def __init__(self, paths: list[str], make: Callable[[bytes, np.random.Generator], Any]) -> None:
        self.paths, self.make = paths, make

    def __len__(self) -> int:
        return len(self.paths)

    def __getitem__(self, index: int) -> torch.Tensor:
        return planes(self.make(Path(self.paths[index]).read_bytes(), np.random.default_rng(index)))


def tar_sample(sample: dict[str, Any]) -> torch.Tensor:
    """A crop of a member of a tar file."""
    return planes(by_simplejpeg(sample["jpg"], np.random.default_rng()))


def in_three_passes(images: torch.Tensor) -> torch.Tensor:
    """Normalizes as torch's users do: `Normalize` itself did so before."""
    return images.to(torch.float32).mul_(SCALED).add_(OFFSET)


def bare_part(paths: list[str], begin: Any, end: Any, normalize: bool) -> None:
    """Decodes, crops and resizes its share, again whenever it is told to."""
    torch.set_num_threads(1)
    make, out = TrainImages(SIZE), np.empty((BATCH, 3, SIZE, SIZE), np.uint8)
    floats, images = torch.empty((BATCH, 3, SIZE, SIZE)), torch.from_numpy(out)
    while begin.recv():
        for number, path in enumerate(paths):
            make.into(Path(path).read_bytes(), out[number % BATCH])
            if normalize:
                floats[number % BATCH].copy_(images[number % BATCH]).mul_(SCALED).add_(OFFSET)
        end.send(True)


@contextlib.contextmanager
def bare_processes(paths: list[str], normalize: bool) -> Iterator[Loop]:
    """Yields what runs an epoch of two processes without a loader."""
    context, parts = multiprocessing.get_context("fork"), []
    for worker in range(WORKERS):
        (its, ours), (done, told) = context.Pipe(False), context.Pipe(False)
        process = context.Process(target=bare_part, args=(paths[worker::WORKERS], its, told, normalize), daemon=True)
        process.start()
        parts.append((process, ours, done))

    def epoch() -> None:
        for _, ours, _ in parts:
            ours.send(True)
        for _, _, done in parts:
            done.recv()

    yield epoch
    for process, ours, _ in parts:
        ours.send(False)
        process.join()


def run_epoch(loader: Any, count: int, normalize: Callable[[torch.Tensor], torch.Tensor] | None = None) -> None:
    """Runs an epoch of a loader and counts its images, normalized or not."""
    seen = 0
    for batch in loader:
        images = batch[0] if isinstance(batch, (list, tuple)) else batch
        if images.dtype != torch.uint8 or images.shape[1:] != (3, SIZE, SIZE):
            fail(f"a batch of {images.dtype} {list(images.shape)}")
        if normalize is not None:
            images = normalize(images)
        seen += len(images)
    if seen != count:
        fail(f"{seen} images instead of {count}")


def loaders_of(root: Path, paths: list[str]) -> dict[str, Any]:
    """Returns the loaders that are compared."""
    words: dict[str, Any] = {"batch_size": BATCH, "num_workers": WORKERS, "persistent_workers": True}
    ours = headrace.ImageFolder(root / "photos").map(TrainImages(SIZE), on=0)
    loaders: dict[str, Any] = {
        OURS: headrace.DataLoader(ours, shuffle=True, seed=0, **words),
        PILLOW: DataLoader(Photos(paths, by_pillow), shuffle=True, **words),
        "torch, OpenCV": DataLoader(Photos(paths, by_opencv), shuffle=True, **words),
        "torch, simplejpeg": DataLoader(Photos(paths, by_simplejpeg), shuffle=True, **words),
    }
    if webdataset := peer("webdataset"):
        tars = [str(root / f"photos-{part}.tar") for part in range(WORKERS)]
        for part, tar in enumerate(tars):
            with tarfile.open(tar, "w") as file:
                for path in paths[part::WORKERS]:
                    file.add(path, Path(path).name)
        web = webdataset.WebDataset(tars, shardshuffle=False).map(tar_sample)
        loaders["WebDataset, simplejpeg"] = DataLoader(web, **words)
    return loaders


def images(images: int = 20_000, rounds: int = 3, normalize: bool = False) -> list[Table]:
    """JPEGs to random crops of 224 x 224, 2 workers: torch with three decoders, WebDataset, a baseline, and headrace.

    All make uint8 [64, 3, 224, 224] from the same generated JPEGs of about 500 x 375, in shuffled order (WebDataset: in
    order), in turns; workers are kept, and the first epoch of each is not counted. The baseline is two processes that
    decode, crop and resize into memory that they use again, without a loader. Crops are drawn alike. Every epoch's
    images are counted, and the pixels of the same crops compared with Pillow's.

    normalize: has all of them make float32 of the batches, by `Normalize` or by torch's operations in the loop; the
    baseline loop does it in its processes, in memory that it uses again.
    """
    cv2.setNumThreads(1)
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder:
        paths = write_photos(Path(folder), images)
        epoch = functools.partial(functools.partial, run_epoch)
        loaders = loaders_of(Path(folder), paths)
        loops: dict[str, Loop] = {name: epoch(loader, images) for name, loader in loaders.items()}
        if normalize:
            del loops[PILLOW], loops["torch, OpenCV"]
            loops = {name: epoch(loaders[name], images, in_three_passes) for name in loops}
            loops["headrace, three passes"] = loops[OURS]
            loops[OURS] = epoch(loaders[OURS], images, Normalize())
        with bare_processes(paths, normalize) as loop:
            loops["baseline loop, 2 processes"] = loop
            row = Row("", rates_in_turn(loops, images, rounds))
        mean, worst = difference(paths)
    title = f"{images:,} JPEGs of about 500 x 375 to crops of {SIZE} x {SIZE}, {WORKERS} persistent workers"
    checked = "Every epoch's images were counted; crops of 64 images were compared with Pillow's."
    note = f"Mean difference from Pillow's pixels, of 255: {mean:.2f}, at most {worst:.2f} for an image."
    if normalize:
        return [Table(f"{title}, to float32", "images/s", [row], checked, base="torch, simplejpeg", notes=[note])]
    return [Table(title, "images/s", [row], checked, base=PILLOW, notes=[note])]


def difference(paths: list[str]) -> tuple[float, float]:
    """Returns the mean difference from Pillow's pixels, over 64 large crops, and that of the worst of them."""
    make = TrainImages(SIZE, scale=(1, 1), ratio=(4 / 3, 4 / 3), flip=0)
    means = []
    for path in paths[:64]:
        image = Image.open(path)
        box = draw_crop(np.random.default_rng(0), (image.height, image.width), (1, 1), (4 / 3, 4 / 3))
        edges = (box.left, box.top, box.left + box.width, box.top + box.height)
        theirs = np.asarray(image.resize((SIZE, SIZE), Image.Resampling.BILINEAR, edges), np.int16)
        means.append(float(np.abs(make(path).transpose(1, 2, 0) - theirs).mean()))
    if max(means) > 1:
        fail("the pixels differ from Pillow's")
    return statistics.mean(means), max(means)


def one_core(images: int = 300, rounds: int = 7) -> list[Table]:
    """Pipelines by themselves, on one core, on images of two sizes that are in memory: of the larger, a fifth as many.

    Each crop's shape is checked.
    """
    cv2.setNumThreads(1)
    torch.set_num_threads(1)
    pipelines: dict[str, Callable[[bytes], Any]] = {
        "Pillow": lambda data: planes(by_pillow(data, headrace.rng())),
        OURS: TrainImages(SIZE),
        "headrace, jitter without hue": TrainImages(SIZE, jitter=(0.4, 0.4, 0.4)),
        "headrace, jitter": TrainImages(SIZE, jitter=(0.4, 0.4, 0.4, 0.1)),
        "headrace, EvalImages": EvalImages(SIZE),
    }
    rows = []
    for times, count in ((1, images), (3, images // 5)):
        with tempfile.TemporaryDirectory() as folder:
            photos = [Path(path).read_bytes() for path in write_photos(Path(folder), count, times)]
        loops = {name: functools.partial(make_all, make, photos) for name, make in pipelines.items()}
        size = sum(map(len, photos)) / count / 1000
        rows.append(Row(f"{500 * times} x {375 * times}, {size:,.0f} KB", rates_in_turn(loops, count, rounds)))
    return [Table("crops of one core", "images/s", rows, "Each crop's shape was checked.", base="Pillow")]


def make_all(make: Callable[[bytes], Any], photos: list[bytes]) -> None:
    """Makes a crop of each."""
    for data in photos:
        if make(data).shape != (3, SIZE, SIZE):
            fail("a crop has another shape")
