"""`headrace pack`: what it makes, and that an interruption costs a piece at most and never mixes or loses data."""

from __future__ import annotations

import json
import shutil
import signal
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from headrace.core.errors import DatasetError, DatasetNotFoundError, FormatError, HeadraceError, UsageError
from headrace.data.convert.pack import pack
from headrace.data.convert.plan import PackOptions
from tests import programs
from tests.data.convert.packing import COUNT, SHARDED, TARGETS, Case, files_in, hidden
from tests.data.formats.columns import rows
from tests.data.formats.samples import assert_same, read, usual, write

pytestmark = pytest.mark.usefixtures("small_pieces")

STRESS = pytest.mark.stress
MAINLY_ARROW = pytest.mark.parametrize(
    "case", ["arrow", *(pytest.param(one, marks=STRESS) for one in TARGETS if one != "arrow")], indirect=True
)


@pytest.fixture(params=[one if one in ("arrow", "hdf5") else pytest.param(one, marks=STRESS) for one in TARGETS])
def case(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Case]:
    made = Case(tmp_path, request.param)
    yield made
    made.close()


@pytest.fixture
def arrow(tmp_path: Path) -> Iterator[Case]:
    made = Case(tmp_path, "arrow")
    yield made
    made.close()


@pytest.mark.thorough
def test_a_script_without_a_main_guard_is_told_what_it_needs(arrow: Case, tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    arguments = f"{str(arrow.source)!r}, {str(arrow.target)!r}, headrace.PackOptions(shards=3), workers=2"
    script.write_text(f"import headrace\nheadrace.pack({arguments})\n")
    done = programs.run([script], cwd=tmp_path, fresh=True)
    assert done.returncode == 1
    assert 'needs `if __name__ == "__main__":`' in done.stderr
    assert not arrow.target.exists()


# -- interrupted -----------------------------------------------------------------------------------------------------


@pytest.mark.thorough
@pytest.mark.parametrize("workers", [1, 2])
def test_packing_makes_the_same_bytes_with_any_number_of_workers(case: Case, workers: int) -> None:
    made = case.run(workers)
    assert made.pieces > 4
    assert_same(read(case.target), usual("npz", COUNT, seed=1) if case.format != "webdataset" else read(case.target))
    assert case.made() == case.undisturbed()
    assert hidden(case.target.parent) == []


STOPS = {
    "begin": ("begin", 1, 1),
    "middle of a piece": ("flush", 3, 1),
    "one piece": ("piece", 2, 1),
    "some pieces": ("piece", 4, 2),
    "all pieces": ("assemble", 1, 2),
    "commit": ("commit", 1, 1),
    "exchange": ("exchange", 1, 1),
}


OFTEN = ("middle of a piece", "some pieces", "commit")
"""Moments that are tried each time; the others in longer runs."""


@pytest.mark.thorough
@MAINLY_ARROW
@pytest.mark.parametrize(
    "moment", [one if one in OFTEN else pytest.param(one, marks=pytest.mark.stress) for one in STOPS]
)
def test_a_pack_that_is_killed_goes_on_and_makes_the_same_bytes(case: Case, moment: str) -> None:
    where, at, workers = STOPS[moment]
    old = case.put_old_data()
    child = case.child(stop=(where, at), workers=workers)
    child.wait_until_there()
    done = case.target.with_name(f".{case.target.name}.packing") / "done"
    noted = len(list(done.iterdir())) if done.is_dir() else 0
    assert child.end(signal.SIGKILL)[0] == -signal.SIGKILL
    if moment not in ("commit", "exchange"):
        assert case.made() == old
    made = case.run(3 - workers)
    assert made.kept >= (noted if moment not in ("commit", "exchange") or case.format not in SHARDED else 0)
    assert made.kept >= {"one piece": 1, "some pieces": 3, "all pieces": made.pieces}.get(moment, 0)
    assert case.made() == case.undisturbed()
    assert hidden(case.target.parent) == []


@pytest.mark.thorough
@MAINLY_ARROW
@pytest.mark.parametrize("workers", [1, 2])
def test_ctrl_c_leaves_the_old_data_and_no_process_and_it_goes_on(case: Case, workers: int) -> None:
    old = case.put_old_data()
    child = case.child(stop=("piece", 3), workers=workers)
    child.wait_until_there()
    status, text = child.end(signal.SIGINT)
    assert status not in (0, -signal.SIGINT)
    assert "Traceback" not in text
    assert case.made() == old
    assert case.run().kept >= 2
    assert case.made() == case.undisturbed()
    assert hidden(case.target.parent) == []


@pytest.mark.thorough
@pytest.mark.parametrize("change", ["source", "columns", "shuffle", "quality", "pattern"])
def test_packing_of_changed_data_or_options_starts_anew(arrow: Case, change: str) -> None:
    if change == "pattern":
        write("npy", arrow.root / "s-0.npy", [usual("npy", 40, seed=1)])
        shards = [write("arrow", arrow.root / f"s-{n}.arrow", [usual("arrow", 30, seed=n)]) for n in range(2)]
        arrow.source = arrow.root / "s-*.arrow"
    child = arrow.child(stop=("piece", 3))
    child.wait_until_there()
    child.end(signal.SIGKILL)
    options: dict[str, Any] = {"columns": {"columns": ("value", "label")}, "shuffle": {"shuffle": 3},
                               "quality": {"quality": 80}}.get(change, {})  # fmt: skip
    if change == "source":
        write("npz", arrow.source, [usual("npz", COUNT, seed=9)])
    elif change == "pattern":
        write("arrow", shards[0], [usual("arrow", 30, seed=9)])
    assert arrow.run(**options).kept == 0
    assert arrow.made() == arrow.undisturbed(**options)


@pytest.mark.thorough
def test_a_piece_that_was_damaged_in_between_is_made_again(arrow: Case) -> None:
    child = arrow.child(stop=("piece", 4))
    child.wait_until_there()
    child.end(signal.SIGKILL)
    piece = arrow.target.parent / ".data.packing" / "data" / "part-00001.arrow"
    data = bytearray(piece.read_bytes())
    data[len(data) // 2] ^= 1
    piece.write_bytes(data)
    assert arrow.run().kept == 2
    assert arrow.made() == arrow.undisturbed()


# -- a full disk -----------------------------------------------------------------------------------------------------


def assert_helps(text: str, case: Case) -> None:
    assert "Traceback" not in text
    assert all(word in text for word in ("headrace: ", "place:", "found:", "fix:"))
    assert str(case.target.parent) in text


@pytest.mark.thorough
@MAINLY_ARROW
@pytest.mark.parametrize(
    ("limit", "workers"),
    [(600, 1), (3500, 2), *(pytest.param(*one, marks=STRESS) for one in ((600, 2), (3500, 1)))],
)
def test_files_that_may_not_grow_leave_the_old_data_and_it_goes_on(case: Case, limit: int, workers: int) -> None:
    old = case.put_old_data()
    status, text = case.child(limit=limit, workers=workers).end()
    if status == 0 and limit > 600:
        pytest.skip("all files are smaller than the limit")
    assert status == 1
    assert_helps(text, case)
    assert case.made() == old
    case.run()
    assert case.made() == case.undisturbed()
    assert hidden(case.target.parent) == []


@pytest.fixture
def small_disk(case: Case) -> Iterator[Path]:
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=256k", "none", case.target.parent], capture_output=True
    )
    if mounted.returncode:
        pytest.skip(f"no small disk can be mounted: {mounted.stderr.decode().strip()}")
    yield case.target.parent
    subprocess.run(["umount", "--lazy", case.target.parent], check=True)


@pytest.mark.thorough
@MAINLY_ARROW
def test_a_full_disk_leaves_the_old_data_and_it_goes_on(case: Case, small_disk: Path) -> None:
    old = case.put_old_data()
    filler = small_disk / ".filler"
    free = shutil.disk_usage(small_disk).free
    filler.write_bytes(bytes(free - 24_000))
    status, text = case.child().end()
    assert status == 1
    assert_helps(text, case)
    assert case.made() == old
    filler.unlink()
    expected = case.undisturbed()
    if case.format == "webdataset":  # too large for this disk as a whole
        return
    case.run()
    assert case.made() == expected
    assert hidden(small_disk) == []


# -- two at once -----------------------------------------------------------------------------------------------------


@pytest.mark.thorough
@MAINLY_ARROW
@pytest.mark.parametrize("other", [{}, {"shuffle": 4}], ids=["same", "other options"])
@pytest.mark.parametrize(
    "where", ["piece", *(pytest.param(one, marks=STRESS) for one in ("assemble", "begin", "flush"))]
)
def test_two_packs_at_once_do_not_mix(case: Case, where: str, other: dict[str, int]) -> None:
    allowed = [case.undisturbed(), case.undisturbed(**other)]
    first = case.child(stop=(where, 1 if where == "assemble" else 3))
    first.wait_until_there()
    try:
        case.run(**other)
        assert case.made() == allowed[1]
    except HeadraceError as error:
        assert "fix:" in str(error)
    status, text = first.end()
    assert "Traceback" not in text
    assert status == 0 or "headrace: " in text
    assert case.made() in allowed
    case.run(**other)
    assert case.made() == allowed[1]
    assert hidden(case.target.parent) == []


@pytest.mark.thorough
@MAINLY_ARROW
@pytest.mark.parametrize("order", [(0, 1), (1, 0)], ids=["first ends first", "second ends first"])
def test_two_packs_that_take_turns_do_not_mix(case: Case, order: tuple[int, int]) -> None:
    allowed = [case.undisturbed(), case.undisturbed(shuffle=4)]
    first = case.child(stop=("begin", 3))
    first.wait_until_there()
    second = case.child("--shuffle", "4", stop=("begin", 3))
    second.read_line()  # it is there, too, or was refused
    ends = [(first, second)[place].end() for place in order]
    assert all("Traceback" not in text and (status == 0 or "headrace: " in text) for status, text in ends)
    assert case.made() in [{}, *allowed]
    case.run()
    assert case.made() == allowed[0]


# -- options ---------------------------------------------------------------------------------------------------------


@pytest.mark.thorough
def test_a_seed_gives_a_permutation_the_same_each_time(case: Case) -> None:
    def order(seed: int | None) -> list[float]:
        case.run(2, shuffle=seed)
        return [float(value) for value in rows(read(case.target), "value")]

    plain, one, again, other = order(None), order(3), order(3), order(4)
    assert one == again
    assert len({*map(tuple, (plain, one, other))}) == 3
    assert sorted(one) == sorted(other) == sorted(plain)


def test_only_the_columns_that_are_asked_for_come_in_their_order(case: Case) -> None:
    case.run(columns=("words", "value"))
    names = [name for name in read(case.target).schema.names if name != "__key__"]
    assert names == ["words", "value"]
    expected = usual("npz", COUNT, seed=1)
    for name in names:
        assert rows(read(case.target), name) == rows(expected, name)


@pytest.mark.parametrize("shards", [1, 3, 7, COUNT])
def test_there_are_as_many_shards_as_wanted(arrow: Case, shards: int) -> None:
    made = arrow.run(shards=shards)
    parts = sorted(arrow.target.glob("*.arrow"))
    assert len(parts) == min(shards, COUNT) == made.pieces
    assert made.files == len(parts) + 1
    assert made.bytes == sum(map(len, arrow.made().values()))
    lengths = [len(read(part)) for part in parts]
    assert sum(lengths) == COUNT
    assert max(lengths) - min(lengths) <= 1


@pytest.mark.thorough
def test_progress_is_told_up_to_the_end(arrow: Case) -> None:
    told: list[tuple[int, int]] = []
    pack(str(arrow.source), str(arrow.target), PackOptions(), report=lambda done, total: told.append((done, total)))
    assert told[0] == (0, COUNT)
    assert told[-1] == (COUNT, COUNT)
    assert told == sorted(told)


# -- what cannot be done ---------------------------------------------------------------------------------------------


Refused = tuple[type[HeadraceError], Callable[[Path], Any], dict[str, Any], str]
REFUSED: dict[str, Refused] = {
    "itself": (UsageError, lambda root: root / "source.npz", {"format": "npz"}, "overlap"),
    "around the source": (UsageError, lambda root: root, {}, "overlap"),
    "below the source": (UsageError, lambda root: root / "source.npz" / "data", {}, "overlap"),
    "nameless": (HeadraceError, lambda root: "", {}, "place:"),
    "foreign files": (FormatError, lambda root: root / "foreign", {}, "did not pack"),
    "a file in the way": (FormatError, lambda root: root / "foreign" / "mine.txt", {"format": "arrow"}, "already"),
    "a folder in the way": (FormatError, lambda root: root / "foreign", {"format": "hdf5"}, "already"),
    "below a file": (DatasetError, lambda root: root / "foreign" / "mine.txt" / "data", {}, "fix:"),
    "where nobody may write": (DatasetError, lambda root: "/proc/data", {}, "/proc"),
    "symbolic links in a circle": (HeadraceError, lambda root: root / "circle", {}, "circle"),
    "a name too long": (DatasetError, lambda root: root / ("x" * 250), {}, "too long"),
    "unknown format": (UsageError, lambda root: root / "data", {"format": "arow"}, "did you mean 'arrow'"),
    "a format that cannot": (FormatError, lambda root: root / "data", {"format": "csv"}, "cannot hold"),
    "unknown column": (UsageError, lambda root: root / "data", {"columns": ("valu",)}, "'valu'"),
    "a column twice": (UsageError, lambda root: root / "data", {"columns": ("value", "value")}, "once"),
    "no images": (UsageError, lambda root: root / "data", {"resize": 16}, "images"),
    "resize": (UsageError, lambda root: root / "data", {"resize": 0}, "above 0"),
    "quality": (UsageError, lambda root: root / "data", {"quality": 96}, "1 to 95"),
    "no shards": (UsageError, lambda root: root / "data", {"shards": 0}, "a number from 1 to"),
    "more shards than samples": (UsageError, lambda root: root / "data", {"shards": 500}, "a number from 1 to"),
    "shards of one file": (UsageError, lambda root: root / "data.h5", {"format": "hdf5", "shards": 2}, "shards"),
    "negative seed": (UsageError, lambda root: root / "data", {"shuffle": -1}, "shuffle"),
    "large seed": (UsageError, lambda root: root / "data", {"shuffle": 1 << 70}, "shuffle"),
    "format of another type": (UsageError, lambda root: root / "data", {"format": None}, "PackOptions(format=)"),
    "columns of another type": (UsageError, lambda root: root / "data", {"columns": 3}, "PackOptions(columns=)"),
    "size of another type": (UsageError, lambda root: root / "data", {"resize": "x"}, "PackOptions(resize=)"),
    "quality of another type": (UsageError, lambda root: root / "data", {"quality": True}, "PackOptions(quality=)"),
    "target of another type": (UsageError, lambda root: None, {}, "headrace.pack(target=)"),
}  # fmt: skip


@pytest.mark.parametrize("why", REFUSED)
def test_what_cannot_be_done_is_said(arrow: Case, why: str, monkeypatch: pytest.MonkeyPatch) -> None:
    kind, place, options, text = REFUSED[why]
    (arrow.root / "foreign").mkdir()
    (arrow.root / "foreign" / "mine.txt").write_text("mine")
    (arrow.root / "circle").symlink_to("circle")
    (arrow.root / "elsewhere").mkdir()
    monkeypatch.chdir(arrow.root / "elsewhere")
    before = files_in(arrow.root)
    with pytest.raises(kind) as caught:
        target = place(arrow.root)
        pack(arrow.source, target, PackOptions(**options), workers=1)
    assert text in str(caught.value)
    assert files_in(arrow.root) == before
    assert hidden(arrow.root) == []


def test_a_target_among_the_files_of_a_pattern_is_refused(arrow: Case) -> None:
    shards = [write("arrow", arrow.root / f"s-{number}.arrow", [usual("arrow", 9)]) for number in range(2)]
    before = files_in(arrow.root)
    for pattern in ("s-*.arrow", "s-{0..1}.arrow"):
        with pytest.raises(UsageError, match="overlap"):
            pack(str(arrow.root / pattern), str(shards[0]), PackOptions())
    assert files_in(arrow.root) == before


def test_a_source_that_is_not_there_is_named(arrow: Case) -> None:
    with pytest.raises(DatasetNotFoundError, match=r"source\.npz\?"):
        pack(str(arrow.root / "sourc.npz"), str(arrow.target), PackOptions())


def test_a_source_without_samples_gives_a_target_without_samples(case: Case) -> None:
    write("npz", case.source, [usual("npz", 0)])
    assert case.run().samples == 0
    assert len(read(case.target)) == 0


def test_folders_that_are_missing_are_made(case: Case) -> None:
    target = case.root / "new" / "folders" / case.target.name
    case.run(target=target)
    assert len(read(target)) == COUNT


def test_data_that_were_packed_before_are_replaced(case: Case) -> None:
    case.put_old_data()
    case.run()
    assert case.made() == case.undisturbed()


@pytest.mark.thorough
def test_the_command_prints_json(arrow: Case) -> None:
    status, text = arrow.child("--json", "--shards", "3", "--columns", "value,label").end()
    printed = json.loads(text[text.index("{") :])
    assert status == 0
    expected = {"target": str(arrow.target), "format": "arrow", "samples": COUNT, "files": 4, "pieces": 3, "kept": 0}
    assert {name: printed[name] for name in expected} == expected
    assert printed["bytes"] == sum(map(len, arrow.made().values()))
    assert read(arrow.target).schema.names == ("value", "label")
