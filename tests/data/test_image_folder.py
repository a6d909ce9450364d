"""Image folders are read as torchvision reads them, and say clearly what is wrong with them."""

from __future__ import annotations

import os
import pickle
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image, ImageOps
from torch.utils.data import DataLoader

import headrace
from headrace import ImageFolder
from headrace.core.errors import DatasetError, DatasetNotFoundError, SampleError
from headrace.data.image_folder import IMAGE_EXTENSIONS, load_rgb
from headrace.transforms import EvalImages
from tests.data.pictures import ORANGE, save


@pytest.fixture
def pets(tmp_path: Path) -> Path:
    """Two cats and three dogs, each image in a colour of its own."""
    for number, name in enumerate(("cat/1.png", "cat/2.png", "dog/1.png", "dog/2.png", "dog/3.png")):
        save(tmp_path / name, (10 * number, 100, 200))
    return tmp_path


def names_below(root: Path, samples: Sequence[tuple[str, int]]) -> list[str]:
    return [str(Path(path).relative_to(root)) for path, _ in samples]


def to_tensor(image: Image.Image) -> torch.Tensor:
    return torch.from_numpy(np.array(image))


def negate(class_index: int) -> int:
    return -class_index


# ---- what an image folder is


def test_classes_are_the_sub_folders_in_order_of_their_names(pets: Path) -> None:
    save(pets / "Ant/1.png")
    save(pets / "not in a class.png")
    folder = ImageFolder(pets)
    assert folder.classes == ["Ant", "cat", "dog"]
    assert folder.class_to_idx == {"Ant": 0, "cat": 1, "dog": 2}
    assert len(folder) == 6


def test_samples_pair_each_path_with_its_class(pets: Path) -> None:
    folder = ImageFolder(str(pets))
    assert str(pets) == folder.root
    assert [class_index for _, class_index in folder.samples] == [0, 0, 1, 1, 1]
    assert names_below(pets, folder.samples) == ["cat/1.png", "cat/2.png", "dog/1.png", "dog/2.png", "dog/3.png"]
    assert folder.samples is folder.imgs
    assert (str(pets / "dog/3.png"), 1) == folder.samples[-1]
    assert [folder.samples[1], folder.samples[2]] == folder.samples[1:3]
    assert (str(pets / "cat/2.png"), 0) in folder.samples


def test_targets_are_an_integer_array_that_cannot_be_changed(pets: Path) -> None:
    targets = ImageFolder(pets).targets
    assert np.int64 == targets.dtype
    assert targets.tolist() == [0, 0, 1, 1, 1]
    with pytest.raises(ValueError, match="read-only"):
        targets[0] = 1


def test_items_are_rgb_images_and_class_indices(pets: Path) -> None:
    folder = ImageFolder(pets)
    image, class_index = folder[3]
    assert (
        image.mode,
        image.size,
        image.getpixel((0, 0)),
        class_index,
    ) == ("RGB", (16, 12), (30, 100, 200), 1)
    assert int is type(class_index)
    assert folder[-1][0].getpixel((0, 0)) == (40, 100, 200)
    assert sum(1 for _ in folder) == 5
    with pytest.raises(IndexError):
        folder[5]


def test_transforms_apply_to_the_image_and_to_the_class(pets: Path) -> None:
    folder = ImageFolder(pets, to_tensor, negate)
    image, target = folder[2]
    assert (tuple(image.shape), target) == ((12, 16, 3), -1)


def test_a_loader_of_ones_own_gets_the_path(pets: Path) -> None:
    folder = ImageFolder(pets, loader=os.path.basename)
    assert folder[1] == ("2.png", 0)
    assert load_rgb is ImageFolder(pets).loader


def test_options_beyond_the_loader_are_given_by_name(pets: Path) -> None:
    with pytest.raises(TypeError, match="positional"):
        ImageFolder(pets, None, None, None, str.islower)  # type: ignore[misc]


def test_samples_and_targets_may_be_replaced_by_lists(pets: Path) -> None:
    folder = ImageFolder(pets)
    folder.samples = [pair for pair in folder.samples if pair[0].endswith("2.png")]
    assert (len(folder), folder.targets.tolist()) == (2, [0, 1])
    assert folder[1][0].getpixel((0, 0)) == (30, 100, 200)
    folder.targets = np.array([7, 8])
    assert folder.targets.tolist() == [7, 8]


def test_only_files_with_an_image_extension_count_in_any_case(pets: Path) -> None:
    for name in ("UPPER.PNG", ".hidden.jpg", "notes.txt", "png", "x.jpg.part"):
        (pets / "cat" / name).touch()
    folder = ImageFolder(pets)
    assert names_below(pets, folder.samples[:4]) == ["cat/.hidden.jpg", "cat/1.png", "cat/2.png", "cat/UPPER.PNG"]
    assert len(folder) == 7
    own = ImageFolder(pets, extensions=".TXT", allow_empty=True)
    assert names_below(pets, own.samples) == ["cat/notes.txt"]


def test_the_order_is_that_of_a_sorted_walk(tmp_path: Path) -> None:
    for folder in ("c", "c/x", "c/x-y", "c/x/z", "c/x.z", "c/x/a", "C", "c d", "b/deep/er"):
        for name in ("2.jpg", "10.jpg", "B.jpg", "a.jpg"):
            (tmp_path / folder).mkdir(parents=True, exist_ok=True)
            (tmp_path / folder / name).touch()
    expected = []
    for class_name in sorted(entry.name for entry in os.scandir(tmp_path)):
        for parent, _, files in sorted(os.walk(tmp_path / class_name, followlinks=True)):
            expected += [os.path.join(parent, name) for name in sorted(files)]  # noqa: PTH118
    assert expected == [path for path, _ in ImageFolder(tmp_path).samples]


def test_the_folder_says_what_it_holds(pets: Path) -> None:
    for number in range(9):
        save(pets / f"x{number}/1.png")
    expected = (
        "ImageFolder with 14 images in 11 classes\n"
        f"  root:             {pets}\n"
        "  classes:          cat, dog, x0, x1, x2, x3, x4, x5, ...\n"
        f"  transform:        {to_tensor!r}\n"
        f"  target_transform: {negate!r}"
    )
    assert expected == repr(ImageFolder(pets, to_tensor, negate))
    assert "transform" not in repr(ImageFolder(pets))
    assert repr(ImageFolder(pets).samples) == "LabelledPaths(14 pairs (path, class index) in 11 classes)"


# ---- links and strange names


def test_links_to_files_and_folders_are_followed(pets: Path, tmp_path_factory: pytest.TempPathFactory) -> None:
    elsewhere = tmp_path_factory.mktemp("elsewhere")
    save(elsewhere / "far/1.png")
    (pets / "cat/more").symlink_to(elsewhere)
    (pets / "cat/3.png").symlink_to(pets / "dog/3.png")
    (pets / "fox").symlink_to(elsewhere / "far")
    folder = ImageFolder(pets)
    assert folder.classes == ["cat", "dog", "fox"]
    cats = ["cat/1.png", "cat/2.png", "cat/3.png", "cat/more/far/1.png"]
    assert cats == names_below(pets, folder.samples[:4])
    assert names_below(pets, folder.samples)[-1] == "fox/1.png"


@pytest.mark.parametrize("target", [".", "cat", "dog", "cat/deep"])
def test_a_link_back_to_a_folder_above_it_is_not_followed(pets: Path, target: str) -> None:
    (pets / "cat/deep").mkdir()
    (pets / "dog/deep").mkdir()
    before = names_below(pets, ImageFolder(pets).samples)
    (pets / "cat/deep/loop").symlink_to(pets / target)
    seen = names_below(pets, ImageFolder(pets).samples)
    through_link = [f"cat/deep/loop/{number}.png" for number in (1, 2, 3)] if target == "dog" else []
    assert sorted(before + through_link) == sorted(seen)


def test_two_folders_that_link_to_each_other_end_the_walk(pets: Path) -> None:
    (pets / "cat/dogs").symlink_to(pets / "dog")
    (pets / "dog/cats").symlink_to(pets / "cat")
    seen = names_below(pets, ImageFolder(pets).samples)
    cats, dogs = ["1.png", "2.png"], ["1.png", "2.png", "3.png"]
    expected = [f"cat/{name}" for name in cats] + [f"cat/dogs/{name}" for name in dogs]
    expected += [f"dog/{name}" for name in dogs] + [f"dog/cats/{name}" for name in cats]
    assert expected == seen


def test_a_link_to_itself_is_no_class_and_a_dangling_one_fails_when_read(pets: Path) -> None:
    (pets / "self").symlink_to(pets / "self")
    (pets / "cat/3.png").symlink_to(pets / "gone.png")
    folder = ImageFolder(pets)
    assert folder.classes == ["cat", "dog"]
    with pytest.raises(FileNotFoundError, match=r"cat/3\.png"):
        folder[2]


@pytest.mark.skipif(sys.platform != "linux", reason="the file system wants UTF-8")
def test_names_that_are_not_utf8_are_read_and_can_be_printed(tmp_path: Path) -> None:
    class_folder = tmp_path / os.fsdecode(b"caf\xe9")
    save(class_folder / os.fsdecode(b"\xff1.png"))
    (class_folder / os.fsdecode(b"\xff2.png")).touch()
    folder = pickle.loads(pickle.dumps(ImageFolder(tmp_path)))
    assert folder[0][0].getpixel((0, 0)) == ORANGE
    with pytest.raises(SampleError) as caught:
        folder[1]
    assert r"caf\xe9/\xff2.png" in str(caught.value).encode().decode()
    assert r"caf\xe9" in repr(folder).encode().decode()


# ---- folders that are no dataset


def refusal(root: Path | str, **options: Any) -> DatasetError:
    with pytest.raises(DatasetError) as caught:
        ImageFolder(root, **options)
    return caught.value


def test_a_missing_root_is_also_a_file_not_found_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    error = refusal(tmp_path / "nowhere")
    assert isinstance(error, FileNotFoundError)
    assert f"place:    {tmp_path / 'nowhere'}" in str(error)
    monkeypatch.chdir(tmp_path)
    assert f"place:    {tmp_path / 'photos'}" in str(refusal("photos"))
    monkeypatch.setenv("HOME", str(tmp_path))
    assert f"place:    {tmp_path / 'pets'}" in str(refusal("~/pets"))
    again = pickle.loads(pickle.dumps(error))
    assert (DatasetNotFoundError, str(error)) == (type(again), str(again))


def test_a_root_that_is_a_file_is_refused(pets: Path) -> None:
    error = refusal(pets / "cat/1.png")
    assert not isinstance(error, FileNotFoundError)
    assert "Not a directory" in str(error)


def test_a_root_without_class_folders_is_refused(pets: Path) -> None:
    error = refusal(pets / "cat", allow_empty=True)
    assert isinstance(error, DatasetNotFoundError)
    assert "found no class folders" in str(error)
    assert "pass the folder that holds the class folders" in str(error)


def test_classes_without_images_are_refused_by_name_unless_allowed(pets: Path) -> None:
    (pets / "bee").mkdir()
    (pets / "eel/deep").mkdir(parents=True)
    error = refusal(pets)
    assert isinstance(error, FileNotFoundError)
    assert "2 of 4 class folders hold no images" in str(error)
    assert "no images in bee, eel\n" in str(error)
    assert ", ".join(IMAGE_EXTENSIONS) in str(error)
    folder = ImageFolder(pets, allow_empty=True)
    assert folder.classes == ["bee", "cat", "dog", "eel"]
    assert [1, 1, 2, 2, 2] == folder.targets.tolist() == [class_index for _, class_index in folder.samples]


def test_of_many_empty_classes_ten_are_named(tmp_path: Path) -> None:
    for number in range(11):
        (tmp_path / f"c{number:02d}").mkdir()
    assert "c08, c09 and 1 more" in str(refusal(tmp_path))


@pytest.mark.parametrize("part", ["", "cat", "cat/deep"])
def test_a_folder_that_may_not_be_listed_is_an_error_and_not_empty(
    pets: Path, monkeypatch: pytest.MonkeyPatch, part: str
) -> None:
    (pets / "cat/deep").mkdir()
    forbidden = pets / part
    scandir = os.scandir

    def guarded(path: str) -> Any:
        if Path(path) == forbidden:
            raise PermissionError(13, "Permission denied", path)
        return scandir(path)

    monkeypatch.setattr(os, "scandir", guarded)
    error = refusal(pets)
    assert not isinstance(error, FileNotFoundError)
    assert f"place:    {forbidden}\n  found:    Permission denied" in str(error)
    assert "chmod u+rx" in str(error)


# ---- workers


def test_a_pickle_of_many_paths_is_small(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for number in range(2000):
        (tmp_path / "cat").mkdir(exist_ok=True)
        (tmp_path / f"cat/{number:06d}.jpg").touch()
    folder = ImageFolder(tmp_path)
    assert len(folder.targets) == 2000
    data = pickle.dumps(folder)
    assert len(data) < 2000 * (len("000000.jpg") + 2 + 1) + 1000
    again = pickle.loads(data)
    assert list(folder.samples) == list(again.samples)
    assert repr(folder) == repr(again)


@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded")
@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_workers_of_torch_read_an_image_folder(pets: Path, method: str) -> None:
    loader = DataLoader(
        ImageFolder(pets, transform=to_tensor), batch_size=2, num_workers=2, multiprocessing_context=method
    )
    batches = list(loader)
    assert [tuple(images.shape) for images, _ in batches] == [(2, 12, 16, 3), (2, 12, 16, 3), (1, 12, 16, 3)]
    assert [int(image[0, 0, 0]) for images, _ in batches for image in images] == [0, 10, 20, 30, 40]
    assert [int(target) for _, targets in batches for target in targets] == [0, 0, 1, 1, 1]


@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded")
def test_a_damaged_file_is_the_same_error_out_of_a_worker(pets: Path) -> None:
    (pets / "dog/1.png").write_bytes(b"")
    loader = DataLoader(ImageFolder(pets, to_tensor), num_workers=1, multiprocessing_context="fork")
    batches = iter(loader)
    assert [int(next(batches)[1]) for _ in range(2)] == [0, 0]
    with pytest.raises(SampleError, match=r"dog/1\.png"):
        next(batches)
    assert [int(class_index) for _, class_index in batches] == [1, 1]


class Numbered(ImageFolder):
    """A folder whose samples are drawn."""

    def __getitem__(self, index: int) -> tuple[Any, Any]:
        return headrace.rng().integers(1 << 40), index


def test_only_what_the_user_adds_to_a_folder_is_given_random_numbers(pets: Path) -> None:
    assert not ImageFolder(pets).draws
    assert ImageFolder(pets, transform=np.asarray).draws
    assert ImageFolder(pets, loader=str).draws
    numbers = [
        torch.cat([batch[0] for batch in headrace.DataLoader(Numbered(pets).map(tuple), seed=3, batch_size=size)])
        for size in (1, 5)
    ]
    assert torch.equal(*numbers)
    assert len(numbers[0].unique()) == 5


class Turned(ImageFolder):
    """A folder whose samples are changed on the way."""

    def __getitem__(self, index: int) -> tuple[Any, Any]:
        image, label = super().__getitem__(index)
        return image.rotate(90, expand=True), label


def test_a_subclass_that_changes_samples_gets_images_before_a_step_that_decodes(tmp_path: Path) -> None:
    pixels = np.random.default_rng(0).integers(0, 255, (20, 30, 3), dtype=np.uint8)
    (tmp_path / "cat").mkdir()
    Image.fromarray(pixels).save(tmp_path / "cat/1.png")
    view, label = Turned(tmp_path).map(EvalImages(20, resize=20), on=0)[0]
    assert label == 0
    assert np.array_equal(view, EvalImages(20, resize=20)(np.rot90(pixels)))


def test_an_image_keeps_what_its_file_says_of_it(tmp_path: Path) -> None:
    exif = Image.Exif()
    exif[0x0112] = 6  # turned by a quarter
    (tmp_path / "cat").mkdir()
    Image.new("RGB", (30, 20)).save(tmp_path / "cat/1.jpg", exif=exif)
    assert ImageFolder(tmp_path)[0][0].size == (30, 20)
    assert ImageFolder(tmp_path, ImageOps.exif_transpose)[0][0].size == (20, 30)
