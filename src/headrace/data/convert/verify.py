"""Whether stored data are sound: every file by its checksum, every sample by reading and decoding it."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator, Mapping
from pathlib import Path

import numpy as np

from headrace.core.errors import FormatError, SampleError, wrong_argument
from headrace.core.process.shortage import check_shortage
from headrace.core.text.printable import printable
from headrace.data.convert.bad_images import one_line
from headrace.data.convert.verified import Report, Verified
from headrace.data.convert.verify_objects import compared_with_manifest
from headrace.data.formats.columns import Block, Ragged, bytes_of, value_of
from headrace.data.formats.manifest import checksum, files_of, read_manifest
from headrace.data.formats.protocol import Reader
from headrace.data.formats.registry import open_reader
from headrace.data.images import decode_image, holds_images
from headrace.storage.listing import lookup
from headrace.storage.locations import bound_path, is_url, local_path, parse
from headrace.storage.stores.store_options import options_for
from headrace.transforms.decoders import damage_in, is_sound_jpeg

__all__ = ["Verified", "verify"]


def verify(
    uri: str | os.PathLike[str],
    *,
    format: str | None = None,
    trust: bool = False,
    report: Report | None = None,
    options: Mapping[str, object] | None = None,
) -> Verified:
    """Checks all files and samples of stored data.

    Objects that a manifest lists are read once, and compared with their lengths and checksums: what is as it was
    written is not decoded again. Without a manifest, all samples are read.

    Args:
        uri: a path of this machine, or a URL.
        format: its name, where it cannot be told from the data.
        trust: also read what could run code when it is opened.
        report: called with (samples done, samples in all).
        options: of the store that a URL names; see docs/howto/credentials.md.

    Returns:
        What was found. Damage behind the beginning is listed in it, not raised.

    Raises:
        UsageError: wrong arguments.
        HeadraceError: what `headrace.open` raises of data that cannot be opened.

    Examples:
        >>> np.save("x.npy", np.arange(6))
        >>> headrace.verify("x.npy").sound
        True
    """
    if not isinstance(trust, bool):
        raise wrong_argument("trust", trust, "True or False", place="headrace.verify")
    place = local_path(uri)
    reading: Mapping[str, object] = {}
    if is_url(place):
        reading = options_for(place, options, "headrace.verify")
        place = parse(place).url
        with lookup(reading):
            compared = compared_with_manifest(place)
        if compared is not None:
            return compared

        found = Verified(place, format or "")
        reader = open_reader(local_path(uri), format=format, trust=trust, options=reading)
    else:
        place = bound_path(place)
        found = Verified(place, format or "")
        _check_files(place, found)
        try:
            reader = open_reader(place, format=format, trust=trust)
        except (FormatError, OSError) as error:
            if not found.files:
                raise
            check_shortage(error, place, "opening data")
            found.add(one_line(error))
            return found

        if Path(reader.place).exists():
            manifest = read_manifest(reader.place)
        else:
            manifest = None

        if manifest is not None and manifest.length != len(reader):
            found.add(f"{reader.place}: {len(reader):,} samples where the manifest says {manifest.length:,}")

    found.place = reader.place
    found.format = reader.format
    _check_samples(reader, found, report)
    return found


def _check_samples(reader: Reader, found: Verified, report: Report | None) -> None:
    seen: set[bytes] = set()
    for run in reader.blocks():
        for start, block in _readable(reader, run, found):
            _check_block(reader, start, block, found, seen)
            found.samples += len(block)

        if report is not None:
            report(run.stop, len(reader))


def _check_files(place: str, found: Verified) -> None:
    path = Path(place)
    if path.exists():
        manifest = read_manifest(place)
    else:
        manifest = None

    if manifest is None:
        return

    there = set(files_of(path))
    for name, expected in manifest.files.items():
        if path.is_dir():
            file = path / name
        else:
            file = path

        found.files += 1
        if name not in there:
            found.add(f"{_named(file)}: missing")
            continue

        try:
            actual = checksum(file)
        except OSError as error:
            check_shortage(error, file, "reading a file")
            found.add(f"{_named(file)}: {error.strerror}")
            continue

        found.checksums += 1
        if actual != expected:
            if actual[0] != expected[0]:
                what = "bytes"
            else:
                what = "checksum"

            sizes = f"{actual[0]:,} bytes, {expected[0]:,} expected"
            found.add(f"{_named(file)}: another {what} than when it was written ({sizes})")

    extra_files: list[str]
    if path.is_dir():
        extra_files = sorted(there - set(manifest.files))
    else:
        extra_files = []

    for name in extra_files:
        found.add(f"{_named(path / name)}: not in the manifest")


def _named(file: Path) -> str:
    """Returns a file's name in one line, whatever characters are in it."""
    return printable(str(file), kept="")


def _readable(reader: Reader, run: range, found: Verified) -> Iterator[tuple[int, Block]]:
    """Yields what can be read of a run; what cannot is halved until the samples are known that are damaged."""
    if len(run) == 0:
        return

    try:
        yield run.start, reader.fetch(np.arange(run.start, run.stop), reader.schema.names)
        return
    except (FormatError, SampleError, OSError) as error:
        check_shortage(error, reader.place, "reading samples")
        if len(run) == 1:
            found.add(f"sample {run.start}: {one_line(error)}")
            return

    middle = run.start + len(run) // 2
    yield from _readable(reader, range(run.start, middle), found)
    yield from _readable(reader, range(middle, run.stop), found)


def _check_block(reader: Reader, start: int, block: Block, found: Verified, seen: set[bytes]) -> None:
    digests = [hashlib.blake2b(digest_size=12) for _ in range(len(block))]
    for field in block.schema:
        column = block.columns[field.name]
        if field.dtype.kind == "f" and isinstance(column, np.ndarray):
            bad = int((~np.isfinite(column.reshape(len(block), -1))).any(axis=1).sum())
            if bad:
                found.not_finite[field.name] = found.not_finite.get(field.name, 0) + bad

        for index in range(len(block)):
            value = column[index]
            if field.dtype.kind == "f" and isinstance(column, Ragged) and not np.isfinite(value).all():
                found.not_finite[field.name] = found.not_finite.get(field.name, 0) + 1
            # The length goes in front: ("ab", "c") and ("a", "bc") are different samples of the same bytes.
            if isinstance(column, Ragged):
                length = len(value).to_bytes(8, "little")
            else:
                length = b""

            digests[index].update(length)
            digests[index].update(bytes_of(np.asarray(value)).data)
            if field.kind == "text":
                _check_text(start + index, field.name, value.tobytes(), found)
            elif holds_images(field):
                name = _name(block, index)
                _check_image(f"{start + index}{name}", reader.place, value_of(field, column, index), found)

    for digest in digests:
        before = len(seen)
        seen.add(digest.digest())
        found.duplicates += len(seen) == before


def _name(block: Block, index: int) -> str:
    """Returns what a sample is called in the data, for those who look for it."""
    for field in block.schema:
        if field.name in ("path", "__key__") and field.kind == "text":
            return f" ({value_of(field, block.columns[field.name], index)})"
    return ""


def _check_text(sample: int, name: str, data: bytes, found: Verified) -> None:
    try:
        data.decode("utf-8")
    except UnicodeDecodeError as error:
        found.add(f"sample {sample}: column {name!r} is no UTF-8: {error.reason} at byte {error.start}")


def _check_image(sample: str, place: str, data: bytes, found: Verified) -> None:
    found.images += 1
    if is_sound_jpeg(data):
        return

    try:
        decode_image(data, f"{place}, sample {sample}")
    except SampleError as error:
        found.add(f"sample {sample}: {one_line(error)}")
        return

    if (damage := damage_in(data)) is not None:
        found.add(f"sample {sample}: an image that decodes, but perhaps to wrong pixels: {damage}")
