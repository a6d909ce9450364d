"""`headrace verify`: sound data pass, and of damaged data exactly what is damaged is named."""

from __future__ import annotations

import json
from collections.abc import Iterator
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

import headrace.transforms
from headrace.cli.verify import run_verify
from headrace.core.errors import DatasetNotFoundError, HeadraceError
from headrace.data.convert import verified as module
from headrace.data.convert.pack import pack
from headrace.data.convert.plan import PackOptions
from headrace.data.convert.verify import Verified, verify
from headrace.data.formats.columns import Block, column_from
from headrace.data.formats.columns.schema import Field, Schema
from headrace.data.formats.manifest import manifest_path
from tests import programs
from tests.data.formats.columns import block
from tests.data.formats.samples import FORMATS, path_of, usual, write

pytestmark = pytest.mark.filterwarnings("ignore:.*columns of these types are left out:UserWarning")

IN_ONE_FILE = {"arrow", "parquet", "hdf5", "npz", "npy", "jsonl", "csv", "tsv", "webdataset"}


@pytest.fixture(params=FORMATS)
def format(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def data(format: str, tmp_path: Path) -> Path:
    """Sound data of a format."""
    return write(format, path_of(format, tmp_path), [usual(format)])


def files_of(path: Path) -> list[Path]:
    if path.is_file():
        return [path]
    return sorted(one for one in path.rglob("*") if one.is_file() and one.name != "headrace.json")


def flip(path: Path, at: int) -> None:
    content = bytearray(path.read_bytes())
    content[at] ^= 1
    path.write_bytes(content)


def checked(path: Path) -> Verified | HeadraceError:
    """Verifies; data that cannot even be opened give the error."""
    try:
        return verify(str(path))
    except HeadraceError as error:
        return error


def told(found: Verified | HeadraceError) -> str:
    return str(found) if isinstance(found, HeadraceError) else "\n".join(found.problems)


def numbers(found: Verified) -> list[int]:
    """The samples that are named."""
    named = (one.split(":")[0] for one in found.problems)
    return [int(one.removeprefix("sample ")) for one in named if one.startswith("sample ")]


# -- files -----------------------------------------------------------------------------------------------------------


@pytest.mark.quick(format=["arrow", "memmap", "webdataset", "hdf5", "pt"])
def test_sound_data_are_sound(data: Path, format: str) -> None:
    found = verify(str(data))
    assert found.problems == []
    assert found.sound
    assert (found.format, found.samples) == (format, 20)
    assert found.checksums == found.files == len(files_of(data)) > 0


@pytest.mark.quick(format=["arrow", "memmap", "webdataset", "hdf5", "pt"])
def test_data_without_a_manifest_are_read_all_the_same(data: Path, format: str) -> None:
    manifest_path(data).unlink()
    found = verify(str(data))
    assert found.problems == []
    assert (found.samples, found.checksums) == (20, 0)


@pytest.mark.quick(format=["arrow", "memmap", "webdataset", "hdf5", "pt"])
def test_the_file_with_a_flipped_byte_is_named(data: Path) -> None:
    files = files_of(data)
    for place, file in enumerate(files[:4]):
        before = file.read_bytes()
        flip(file, len(before) * (place + 1) // 6)
        text = told(checked(data))
        assert file.name in text
        assert [other.name for other in files if other != file and f"{other}: another" in text] == []
        file.write_bytes(before)
    assert verify(str(data)).sound


@pytest.mark.quick(format=["arrow", "memmap", "webdataset", "hdf5", "pt"])
def test_a_file_that_was_cut_off_is_named(data: Path) -> None:
    for file in files_of(data)[:3]:
        before = file.read_bytes()
        file.write_bytes(before[:-3])
        assert file.name in told(checked(data))
        file.write_bytes(before)


@pytest.mark.quick(format=["arrow", "memmap", "webdataset", "hdf5", "pt"])
def test_a_file_that_is_missing_is_named(data: Path, format: str) -> None:
    if format in IN_ONE_FILE:
        data.unlink()
        with pytest.raises(HeadraceError, match=data.name):
            verify(str(data), format=format)
        return
    for file in files_of(data)[:4]:
        before = file.read_bytes()
        file.unlink()
        found = checked(data)
        assert file.name in told(found) or f"{len(files_of(data))} files" in told(found) or "lock" in file.name
        file.write_bytes(before)


def test_a_shard_that_is_missing_is_named(tmp_path: Path) -> None:
    source = write("npz", tmp_path / "source.npz", [usual("npz")])
    for format in ("arrow", "parquet", "webdataset"):
        target = tmp_path / format
        pack(str(source), str(target), PackOptions(format, shards=3), workers=1)
        shard = sorted(target.glob("part-00001.*"))[0]
        shard.unlink()
        assert shard.name in told(checked(target))


@pytest.mark.quick(format=["arrow", "memmap", "webdataset", "hdf5", "pt"])
def test_a_file_that_does_not_belong_there_is_named(data: Path, format: str) -> None:
    if format in IN_ONE_FILE:
        pytest.skip("one file, beside which there may be others")
    (data / "extra.txt").write_text("not ours")
    found = verify(str(data))
    assert not found.sound
    assert [one for one in found.problems if "extra.txt" in one] == [f"{data / 'extra.txt'}: not in the manifest"]


def test_another_number_of_samples_than_the_manifest_says_is_told(tmp_path: Path) -> None:
    path = write("csv", tmp_path / "data.csv", [usual("csv")])
    manifest = manifest_path(path)
    manifest.write_text(manifest.read_text().replace('"length": 20', '"length": 21'))
    assert "21" in told(checked(path))


# -- samples ---------------------------------------------------------------------------------------------------------


def picture(shade: int) -> bytes:
    stream = BytesIO()
    Image.new("RGB", (9, 7), (shade, 0, 0)).save(stream, "PNG")
    return stream.getvalue()


@pytest.fixture(params=["arrow", "webdataset", "memmap", "lmdb", "folder"])
def album(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """Images, of which numbers 7 and 12 are damaged."""
    format = request.param
    images = [picture(number) for number in range(30)]
    images[7], images[12] = images[7][:40], b""
    name = "data" if format == "folder" else "png"
    schema = Schema((Field(name, "bytes"),))
    columns = {name: column_from(schema[name], images)}
    return write(format, path_of(format, tmp_path), [Block(schema, columns)])


def test_exactly_the_images_that_cannot_be_decoded_are_named(album: Path) -> None:
    found = verify(str(album))
    if found.format == "folder" and not found.images:
        pytest.skip("a folder of files that are not named as images")
    assert numbers(found) == [7, 12]
    assert len(found.problems) == 2
    assert (found.images, found.samples, found.sound) == (30, 30, False)
    assert "no bytes" in found.problems[1]


def test_a_jpeg_that_decoders_would_guess_is_named(tmp_path: Path) -> None:
    pytest.importorskip("simplejpeg")
    shades = np.random.default_rng(3).integers(0, 255, (90, 70, 3), dtype=np.uint8)
    stream = BytesIO()
    Image.fromarray(shades).save(stream, "JPEG")
    sound = stream.getvalue()
    images = [sound] * 5
    images[2] = sound[:4000] + bytes(500) + sound[4500:]
    schema = Schema((Field("jpg", "bytes"),))
    path = write("arrow", tmp_path / "photos.arrow", [Block(schema, {"jpg": column_from(schema["jpg"], images)})])
    assert headrace.transforms.decode(images[2]).shape == (90, 70, 3)
    found = verify(str(path))
    assert numbers(found) == [2]
    assert "perhaps to wrong pixels: Corrupt JPEG data" in found.problems[0]


def test_a_damaged_file_of_a_folder_is_named(tmp_path: Path) -> None:
    (tmp_path / "photos" / "cat").mkdir(parents=True)
    for number in range(3):
        (tmp_path / "photos" / "cat" / f"{number}.png").write_bytes(picture(number)[: 40 if number == 1 else None])
    found = verify(str(tmp_path / "photos"))
    assert found.problems[0].startswith("sample 1 (cat/1.png): cannot decode an image")


@pytest.mark.parametrize("format", ["arrow", "parquet", "memmap", "hdf5", "lmdb", "webdataset"])
def test_exactly_the_text_that_is_no_utf8_is_named(format: str, tmp_path: Path) -> None:
    words = [f"word {number}" for number in range(30)]
    words[3], words[29] = "a\udcff", "\udcc3"
    found = verify(str(write(format, path_of(format, tmp_path), [block(words=words)])))
    assert numbers(found) == [3, 29]
    assert "'words' is no UTF-8: invalid start byte at byte 1" in found.problems[0]


@pytest.mark.parametrize("format", ["pt", "folder"])
def test_exactly_the_samples_whose_files_are_damaged_are_named(format: str, tmp_path: Path) -> None:
    path = write(format, tmp_path / "data", [usual(format, 12)])
    damaged = files_of(path)[5]
    damaged.write_bytes(damaged.read_bytes()[:-20] if format == "pt" else b"other")
    found = verify(str(path))
    assert [one for one in found.problems if damaged.name not in one] == []
    assert numbers(found) == ([5] if format == "pt" else [])
    assert found.samples == (11 if format == "pt" else 12)


@pytest.mark.parametrize("format", ["arrow", "parquet", "memmap", "hdf5", "npz", "lmdb", "webdataset"])
def test_duplicates_and_values_that_are_not_finite_are_counted_and_no_fault(format: str, tmp_path: Path) -> None:
    values = np.arange(12, dtype=np.float32)
    values[[2, 9]] = np.nan
    wide = np.ones((12, 2, 2))
    wide[4, 1, 0] = np.inf
    wide[9] = np.nan
    ragged = [np.array([1.0, np.nan]) if number == 5 else np.full(number % 3, 2.0) for number in range(12)]
    sample = block(values=values, wide=wide, ragged=ragged, words=[f"w{number}" for number in range(12)])
    twice = sample.take(np.array([*range(12), 3, 3, 7]))
    found = verify(str(write(format, path_of(format, tmp_path), [twice])))
    assert found.problems == []
    assert found.duplicates == 3
    assert found.not_finite == {"values": 2, "wide": 2, "ragged": 1}


def test_samples_that_differ_in_one_column_or_in_where_it_ends_are_no_duplicates(tmp_path: Path) -> None:
    sample = block(one=["ab", "a", "ab", ""], other=["c", "bc", "d", "abc"], number=np.array([1, 1, 1, 1]))
    assert verify(str(write("arrow", tmp_path / "data.arrow", [sample]))).duplicates == 0


def test_data_without_samples_are_sound(tmp_path: Path) -> None:
    found = verify(str(write("npz", tmp_path / "data.npz", [usual("npz", 0)])))
    assert (found.sound, found.samples) == (True, 0)


def test_a_file_name_with_a_line_break_stays_in_its_line(tmp_path: Path) -> None:
    data = write("memmap", tmp_path / "data", [usual("memmap", 3)])
    (data / "a\nb.txt").write_text("")
    found = verify(str(data))
    assert found.problems == [f"{data}/a\\nb.txt: not in the manifest"]
    with pytest.raises(HeadraceError) as caught:
        verify(str(data / "a\nb.txt"), format="npy")
    assert "a\\nb.txt" in str(caught.value)


def test_a_long_list_of_problems_is_cut_and_counted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MOST", 4)
    found = verify(str(write("arrow", tmp_path / "data.arrow", [block(words=["\udcff"] * 9)])))
    assert (len(found.problems), found.more_problems, found.sound) == (4, 5, False)


def test_progress_is_told_up_to_the_end(tmp_path: Path) -> None:
    seen: list[tuple[int, int]] = []
    path = write("arrow", tmp_path / "data.arrow", [usual("arrow")])
    verify(str(path), report=lambda done, total: seen.append((done, total)))
    assert seen[-1] == (20, 20)
    assert seen == sorted(seen)


# -- the command -----------------------------------------------------------------------------------------------------


def command(*arguments: str | Path) -> tuple[int, str, str]:
    done = programs.run(["-W", "error", "-m", "headrace", "verify", *arguments])
    return done.returncode, done.stdout, done.stderr


@pytest.fixture
def arrow(tmp_path: Path) -> Path:
    source = write("npz", tmp_path / "source.npz", [usual("npz")])
    pack(str(source), str(tmp_path / "data"), PackOptions(shards=3), workers=1)
    return tmp_path / "data"


@pytest.mark.thorough
def test_the_command_ends_with_0_for_sound_data_and_says_so(arrow: Path) -> None:
    status, out, _ = command(arrow)
    assert status == 0
    assert "20 samples read" in out
    assert "3 of 3 files compared" in out
    assert "sound" in out


def test_the_command_ends_with_1_for_damaged_data_and_names_the_file(arrow: Path) -> None:
    shard = arrow / "part-00001.arrow"
    flip(shard, shard.stat().st_size // 2)
    status, out, error = command(arrow)
    assert status == 1
    assert shard.name in out + error
    assert "Traceback" not in error


@pytest.mark.thorough
@pytest.mark.parametrize("damage", ["missing", "cut", "nothing there"])
def test_the_command_ends_with_1_for_data_that_cannot_be_opened(arrow: Path, damage: str) -> None:
    shard = arrow / "part-00001.arrow"
    if damage == "cut":
        shard.write_bytes(shard.read_bytes()[:100])
    else:
        shard.unlink()
    place = arrow / "nothing" if damage == "nothing there" else arrow
    status, out, error = command(place)
    assert status == 1
    assert (shard.name if place == arrow else "nothing") in out + error
    assert "Traceback" not in error


@pytest.fixture
def printed(capsys: pytest.CaptureFixture[str]) -> Iterator[Any]:
    """Runs the command in this process. Returns its status and the JSON that it printed."""

    def run(path: Path) -> tuple[int, dict[str, Any]]:
        status = run_verify(str(path), format=None, trust=False, json_output=True)
        return status, json.loads(capsys.readouterr().out)

    return run


def test_json_holds_all_that_was_found(arrow: Path, printed: Any) -> None:
    status, plain = printed(arrow)
    assert status == 0
    expected = {"sound": True, "place": str(arrow), "format": "arrow", "samples": 20, "files": 3, "checksums": 3,
                "problems": [], "more_problems": 0, "duplicates": 0, "images": 0}  # fmt: skip
    assert {name: plain[name] for name in expected} == expected
    (arrow / "extra").write_text("")
    status, plain = printed(arrow)
    assert (status, plain["sound"]) == (1, False)
    assert plain["problems"] == [f"{arrow / 'extra'}: not in the manifest"]


def test_json_comes_for_data_that_cannot_be_opened_too(arrow: Path, printed: Any) -> None:
    shard = arrow / "part-00001.arrow"
    shard.write_bytes(shard.read_bytes()[:100])
    status, plain = printed(arrow)
    assert (status, plain["sound"]) == (1, False)
    assert shard.name in plain["problems"][0]


def test_data_that_are_not_there_are_an_error(tmp_path: Path) -> None:
    with pytest.raises(DatasetNotFoundError, match="nothing"):
        verify(str(tmp_path / "data"))
