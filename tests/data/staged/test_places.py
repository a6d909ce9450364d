"""Where a cache may lie, and what is said where it may not."""

from __future__ import annotations

import multiprocessing
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from headrace import Staged
from headrace.core.errors import DatasetError, HeadraceError
from headrace.core.files.atomic_file import write_atomically
from headrace.data.staged.cache import NOTE
from tests.data.staged.building import Counting, is_whole

SOURCE = [{"x": np.arange(4.0) + number, "text": "a" * number} for number in range(6)]


@pytest.fixture
def cache(tmp_path: Path) -> Path:
    """A complete cache of `SOURCE`."""
    Staged(SOURCE, cache=tmp_path / "c")
    return tmp_path / "c"


def loop(path: Path) -> Path:
    path.symlink_to(path.name)
    return path


WRONG: dict[str, Callable[[Path], Any]] = {
    "below a file": lambda root: root / "file" / "c",
    "no such place": lambda root: "/proc/c",
    "a name too long": lambda root: root / ("x" * 300),
    "a loop of links": lambda root: loop(root / "loop"),
    "no text": lambda root: root / "\udc80",
    "a zero": lambda root: f"{root}/a\0b",
    "nobody's home": lambda root: "~nobody-of-this-name/c",
    "a file": lambda root: root / "file",
    "a number": lambda root: 3,
    "true": lambda root: True,
    "nothing": lambda root: "",
    "bytes": lambda root: b"c",
}


@pytest.mark.parametrize("wrong", WRONG)
def test_a_place_that_cannot_be_used_is_an_error(tmp_path: Path, wrong: str) -> None:
    (tmp_path / "file").write_text("mine")
    with pytest.raises(HeadraceError, match=r"place:(.|\n)*(fix|expected):") as caught:
        Staged(SOURCE, cache=WRONG[wrong](tmp_path))
    assert "damaged" not in str(caught.value)
    assert {one.name for one in tmp_path.iterdir()} <= {"file", "loop"}
    assert (tmp_path / "file").read_text() == "mine"


def test_links_and_relative_paths_lead_to_one_cache(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    link = cache.with_name("link")
    link.symlink_to("c")
    counting = Counting()
    Staged(SOURCE, counting, cache=link, stale="rebuild")
    counting.calls = 0
    monkeypatch.chdir(cache.parent)
    for place in ("c", "./c", "link", Path("link/../c"), cache):
        made = Staged(SOURCE, counting, cache=place)
        monkeypatch.chdir("/")
        assert is_whole(made, SOURCE)
        monkeypatch.chdir(cache.parent)
    assert counting.calls == 0


def without_power(work: Callable[[], str], channel: Any) -> None:
    if os.geteuid() == 0:
        os.seteuid(65534)
    channel.put(work())


def unprivileged(work: Callable[[], str]) -> str:
    """Returns what a process says that may not do everything; the working directory is where it may go."""
    context = multiprocessing.get_context("fork")
    answers = context.SimpleQueue()
    process = context.Process(target=without_power, args=(work, answers))
    process.start()
    process.join(60)
    assert process.exitcode == 0
    return str(answers.get())


@pytest.mark.parametrize("mode", [0o555, 0o000, 0o500])
def test_without_permission_a_cache_opens_if_it_can_be_read(
    cache: Path, monkeypatch: pytest.MonkeyPatch, mode: int
) -> None:
    cache.parent.chmod(0o755)
    monkeypatch.chdir(cache.parent)

    def tried() -> str:
        try:
            return str(is_whole(Staged(SOURCE, cache="c"), SOURCE))
        except HeadraceError as error:
            return f"{type(error).__name__} {error}"

    cache.chmod(mode)
    try:
        told = unprivileged(tried)
    finally:
        cache.chmod(0o755)
    if mode == 0o555:
        assert told == "True"
    else:
        assert told.startswith(DatasetError.__name__)
        assert "Permission denied" in told
        assert "fix:" in told


def test_a_note_that_another_process_writes_at_this_moment_is_no_file_of_the_user_s(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    drafts: list[Path] = []

    def keep(draft: Path, target: Path) -> None:
        drafts.append(draft)
        (tmp_path / draft.name).write_bytes(draft.read_bytes())

    (tmp_path / "other").mkdir()
    with monkeypatch.context() as patch:
        patch.setattr(Path, "replace", keep)
        write_atomically(tmp_path / "other" / NOTE, b"{}")
    assert len(drafts) == 1
    (tmp_path / "other").rmdir()
    assert is_whole(Staged(SOURCE, cache=tmp_path), SOURCE)


def test_a_folder_that_may_not_be_written_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tmp_path.chmod(0o755)
    monkeypatch.chdir(tmp_path)
    (tmp_path / "c").mkdir(mode=0o555)

    def tried() -> str:
        with pytest.raises(DatasetError, match=r"could not be built(.|\n)*Permission denied(.|\n)*fix:"):
            Staged(SOURCE, cache="c")
        return "refused"

    assert unprivileged(tried) == "refused"
