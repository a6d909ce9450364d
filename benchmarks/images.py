"""JPEGs to random crops of 224 x 224, 2 workers: torch with three decoders, WebDataset, a bare loop, and headrace.

    python benchmarks/images.py --images 20000
    python benchmarks/images.py --images 2000 --rounds 3
    python benchmarks/images.py --normalize --images 2000
    python benchmarks/images.py --one-core
    python benchmarks/images.py --json FILE

All make uint8 [64, 3, 224, 224] from the same generated JPEGs of about 500 x 375, in shuffled order (WebDataset: in
order), in turns; workers are kept, and the first epoch of each is not counted. The bare loop is two processes that
decode, crop and resize into memory that they use again, without a loader. Crops are drawn alike. The pixels of the
same crops are compared with Pillow's.

`--normalize` has all of them make float32 of the batches, by `Normalize` or by torch's operations in the loop; the bare
loop does it in its processes, in memory that it uses again. `--one-core` takes the pipelines by themselves, on images
of two sizes.
"""

from __future__ import annotations

import argparse
import functools
import io
import multiprocessing
import statistics
import tarfile
import tempfile
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import simplejpeg
import torch
from PIL import Image

import headrace
import results
from headrace.transforms import EvalImages, Normalize, TrainImages
from headrace.transforms.drawing import draw_crop
from rates import all_in_turn

SIZE, BATCH, WORKERS = 224, 64, 2
SCALE, RATIO = (0.08, 1.0), (3 / 4, 4 / 3)
SCALED, OFFSET = Normalize()._constants(torch.device("cpu"))
CHECKED = "Every epoch's images were counted; crops of 64 images were compared with Pillow's."


def write_photos(root: Path, count: int, times: int = 1) -> list[str]:
    """Writes photographs of soft shapes and noise, about 500 x 375, 80 KB each, or `times` as long and high; returns
    their paths."""
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


class Photos(torch.utils.data.Dataset[torch.Tensor]):
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


def bare(paths: list[str], normalize: bool) -> Iterator[Callable[[], None]]:
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


def epoch_of(
    loader: Any, count: int, normalize: Callable[[torch.Tensor], torch.Tensor] | None = None
) -> Callable[[], None]:
    """Returns what runs an epoch of a loader and counts its images, normalized or not."""

    def epoch() -> None:
        seen = 0
        for batch in loader:
            images = batch[0] if isinstance(batch, (list, tuple)) else batch
            if images.dtype != torch.uint8 or images.shape[1:] != (3, SIZE, SIZE):
                raise SystemExit(f"a batch of {images.dtype} {list(images.shape)}")
            if normalize is not None:
                images = normalize(images)
            seen += len(images)
        if seen != count:
            raise SystemExit(f"{seen} images instead of {count}")

    return epoch


def contestants(root: Path, paths: list[str], normalize: bool) -> dict[str, Callable[[], None]]:
    """Returns what runs an epoch of each."""
    words: dict[str, Any] = {"batch_size": BATCH, "num_workers": WORKERS, "persistent_workers": True}
    tars = [str(root / f"photos-{part}.tar") for part in range(WORKERS)]
    for part, tar in enumerate(tars):
        with tarfile.open(tar, "w") as file:
            for path in paths[part::WORKERS]:
                file.add(path, Path(path).name)
    torch_loader = torch.utils.data.DataLoader
    ours = headrace.ImageFolder(root / "photos").map(TrainImages(SIZE), on=0)
    loaders = {
        "headrace": headrace.DataLoader(ours, shuffle=True, seed=0, **words),
        "torch, Pillow": torch_loader(Photos(paths, by_pillow), shuffle=True, **words),
        "torch, OpenCV": torch_loader(Photos(paths, by_opencv), shuffle=True, **words),
        "torch, simplejpeg": torch_loader(Photos(paths, by_simplejpeg), shuffle=True, **words),
    }
    if webdataset := results.peer("webdataset"):
        web = webdataset.WebDataset(tars, shardshuffle=False).map(tar_sample)
        loaders["WebDataset, simplejpeg"] = torch_loader(web, **words)
    if not normalize:
        return {name: epoch_of(loader, len(paths)) for name, loader in loaders.items()}
    del loaders["torch, Pillow"], loaders["torch, OpenCV"]
    runs = {name: epoch_of(loader, len(paths), in_three_passes) for name, loader in loaders.items()}
    runs["headrace, three passes"] = runs["headrace"]
    runs["headrace"] = epoch_of(loaders["headrace"], len(paths), Normalize())
    return runs


def one_core(root: Path, rounds: int) -> None:
    """Prints what pipelines make of images that are in memory already, on one core."""
    pipelines = {
        "Pillow": lambda data: planes(by_pillow(data, headrace.rng())),
        "TrainImages": TrainImages(SIZE),
        "jitter without hue": TrainImages(SIZE, jitter=(0.4, 0.4, 0.4)),
        "jitter": TrainImages(SIZE, jitter=(0.4, 0.4, 0.4, 0.1)),
        "EvalImages": EvalImages(SIZE),
    }
    for times, count in ((1, 300), (3, 60)):
        images = [Path(path).read_bytes() for path in write_photos(root / str(times), count, times)]
        loops = {name: functools.partial(for_each, make, images) for name, make in pipelines.items()}
        print(f"about {500 * times} x {375 * times}, {sum(map(len, images)) / count / 1000:,.0f} KB each")
        for name, measured in all_in_turn(loops, count, rounds).items():
            spread = f"{min(measured):,.0f} - {max(measured):,.0f}"
            print(f"  {name:<20} {statistics.median(measured):6,.0f} images/s ({spread})", flush=True)


def for_each(make: Callable[[bytes], Any], images: list[bytes]) -> None:
    """Makes a crop of each."""
    for data in images:
        make(data)


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
    return statistics.mean(means), max(means)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--images", type=int, default=20_000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--normalize", action="store_true", help="to float32, by mean and standard deviation")
    parser.add_argument("--one-core", action="store_true", help="only the pipelines, without loaders")
    results.option(parser)
    given = parser.parse_args()
    if given.one_core and given.json:
        parser.error("--json is for what loaders do; --one-core is without")
    cv2.setNumThreads(1)
    torch.set_num_threads(1)
    warnings.filterwarnings("ignore", ".*", UserWarning)
    with tempfile.TemporaryDirectory() as folder:
        if given.one_core:
            one_core(Path(folder), given.rounds)
        else:
            tables = [with_loaders(Path(folder), given.images, given.rounds, given.normalize)]
            results.write(given.json, tables, ["webdataset", "pillow", "simplejpeg", "opencv-python-headless"])


def with_loaders(root: Path, count: int, rounds: int, normalize: bool) -> results.Table:
    """Prints and returns what all loaders make of the same files, and how far pixels are from Pillow's."""
    paths = write_photos(root, count)
    runs = contestants(root, paths, normalize)
    alone = bare(paths, normalize)
    runs["bare loop, 2 processes"] = next(alone)
    rates = all_in_turn(runs, len(paths), rounds)
    next(alone, None)
    ours = statistics.median(rates["headrace"])
    for name, measured in rates.items():
        spread = f"{min(measured):,.0f} - {max(measured):,.0f}"
        median = statistics.median(measured)
        print(f"{name:<24} {median:8,.0f} images/s ({spread}), headrace {ours / median:.2f}x of it", flush=True)
    mean, worst = difference(paths)
    note = f"Mean difference from Pillow's pixels, of 255: {mean:.2f}, at most {worst:.2f} for an image."
    print(note)
    title = f"{count:,} JPEGs of about 500 x 375 to crops of {SIZE} x {SIZE}, {WORKERS} kept workers"
    row = results.Row("", rates)
    if normalize:
        return results.Table(title + ", to float32", "images/s", [row], CHECKED, base="torch, simplejpeg", notes=[note])
    return results.Table(title, "images/s", [row], CHECKED, base="torch, Pillow", notes=[note])


if __name__ == "__main__":
    main()
