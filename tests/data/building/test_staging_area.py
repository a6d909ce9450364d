"""The folder in which pieces gather: what an interruption may leave there."""

from __future__ import annotations

from pathlib import Path

import pytest

from headrace.data.building.staging_area import StagingArea


def test_a_piece_counts_from_the_moment_its_note_is_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    room = StagingArea(tmp_path / "data", "digest", 1, ".arrow")
    assert room.prepare() == [0]
    rename = Path.replace

    def ends_in_front_of_the_note(path: Path, target: Path) -> Path:
        if target.parent == room.done:
            raise KeyboardInterrupt
        return rename(path, target)

    with monkeypatch.context() as patch:
        patch.setattr(Path, "replace", ends_in_front_of_the_note)
        with pytest.raises(KeyboardInterrupt):
            room.keep(0, lambda path: path.write_text("bytes") and None)
    assert list(room.done.iterdir()) == []
    assert room.prepare() == [0]
    room.keep(0, lambda path: path.write_text("bytes") and None)
    assert [one.name for one in room.done.iterdir()] == ["0"]
    assert room.prepare() == []


def test_two_processes_may_make_the_same_piece_at_a_time(tmp_path: Path) -> None:
    area = StagingArea(tmp_path / "data", "digest", 1, ".arrow")
    area.prepare()

    def write(path: Path) -> None:
        path.write_text("same bytes")

    def interrupted(path: Path) -> None:
        write(path)
        # The other one comes, and ends, in the middle of it.
        area.keep(0, write)

    area.keep(0, interrupted)
    assert [file.name for file in area.data.iterdir()] == [area.file(0).name]
    assert area.prepare() == []
