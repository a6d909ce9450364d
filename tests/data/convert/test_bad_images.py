"""What `headrace pack` says of bad images, of targets that no form fits, and of places that cannot be written."""

from __future__ import annotations

import io
import json
from pathlib import Path

import pytest
from PIL import Image

from headrace.core.errors import DatasetError, UsageError
from headrace.data.convert.pack import PackJob, format_for, pack
from headrace.data.convert.plan import PackOptions
from headrace.data.formats.registry import open_reader
from tests import programs


def photos(folder: Path, bad: int) -> Path:
    """Five photos, the last of which are no images."""
    folder.mkdir()
    stream = io.BytesIO()
    Image.new("RGB", (8, 8)).save(stream, "JPEG")
    for number in range(5):
        is_bad = number >= 5 - bad
        (folder / f"{number}.jpg").write_bytes(b"no image" if is_bad else stream.getvalue())
    return folder


def run(*arguments: object) -> programs.Ended:
    return programs.run(["-m", "headrace", "pack", "--workers", 1, *arguments])


@pytest.mark.thorough
def test_bad_images_are_counted_and_end_with_status_1(tmp_path: Path) -> None:
    source = photos(tmp_path / "photos", bad=2)
    done = run(source, tmp_path / "packed")
    assert done.returncode == 1
    assert "2 of 5 samples are bad" in done.stdout
    assert "sample 3: cannot decode an image" in done.stdout
    done = run(source, tmp_path / "packed", "--allow-bad", "--json")
    assert done.returncode == 0
    assert json.loads(done.stdout)["bad"] == 2


@pytest.mark.parametrize("form", ["arrow", "memmap", "webdataset"])
def test_bad_images_are_packed_as_they_are(form: str, tmp_path: Path) -> None:
    made = pack(str(photos(tmp_path / "photos", bad=1)), str(tmp_path / "packed"), PackOptions(form), workers=1)
    assert made.bad == 1
    assert len(made.bad_samples) == 1
    assert len(open_reader(str(tmp_path / "packed"))) == 5


def test_bad_images_of_an_earlier_run_are_counted_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = str(photos(tmp_path / "photos", bad=2))

    def interrupted(self: PackJob) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(PackJob, "assemble", interrupted)
        with pytest.raises(KeyboardInterrupt):
            pack(source, str(tmp_path / "packed"), PackOptions(), workers=1)
    made = pack(source, str(tmp_path / "packed"), PackOptions(), workers=1)
    assert made.kept == made.pieces
    assert made.bad == 2


@pytest.mark.thorough
def test_sound_images_end_with_status_0(tmp_path: Path) -> None:
    done = run(photos(tmp_path / "photos", bad=0), tmp_path / "packed")
    assert done.returncode == 0
    assert "bad" not in done.stdout


@pytest.mark.parametrize("target", ["data.xyz", "data.jpg", "data.tar.gz", "data.zip"])
def test_an_ending_of_no_form_is_an_error(target: str) -> None:
    with pytest.raises(UsageError, match="--format"):
        format_for(target)


@pytest.mark.parametrize(("target", "form"), [
    ("data", "arrow"), ("data-1.5", "arrow"), (".data", "arrow"), ("data.arrow", "arrow"), ("DATA.TAR", "webdataset"),
])  # fmt: skip
def test_the_ending_names_the_form(target: str, form: str) -> None:
    assert format_for(target) == form


@pytest.mark.parametrize("shards", [0, 6, 99_999_999])
def test_more_shards_than_samples_are_refused(shards: int, tmp_path: Path) -> None:
    source = photos(tmp_path / "photos", bad=0)
    with pytest.raises(UsageError, match="--shards"):
        pack(str(source), str(tmp_path / "packed"), PackOptions(shards=shards), workers=1)
    assert [path.name for path in tmp_path.iterdir()] == ["photos"]


def test_a_place_that_cannot_be_written_was_not_interrupted(tmp_path: Path) -> None:
    source = photos(tmp_path / "photos", bad=0)
    for target in ("/proc/packed", "/dev/null/packed"):
        with pytest.raises(DatasetError) as caught:
            pack(str(source), target, PackOptions(), workers=1)
        assert "interrupted" not in str(caught.value)
        assert "choose another target" in str(caught.value)
