"""One command measures a table, keeps its figures, and writes its section and its picture anew."""

from __future__ import annotations

import json
import subprocess
import xml.etree.ElementTree
from pathlib import Path

import pytest

import sections
import tables
from tests import programs

PAGE = tables.IN_PLACE.page
QUICKEST = ("faults", "table")


def run(*arguments: str) -> programs.Ended:
    return programs.run([tables.SCRIPTS / "tables.py", *arguments])


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, subprocess.CompletedProcess[str]]:
    """The folder that two tables were measured into, and what was said."""
    folder = tmp_path_factory.mktemp("tables") / "bench"
    before = PAGE.read_bytes()
    done = run(*QUICKEST, "--quick", "--into", str(folder))
    assert done.returncode == 0, done.stderr
    assert PAGE.read_bytes() == before
    return folder, done


Made = tuple[Path, subprocess.CompletedProcess[str]]


@pytest.mark.thorough
def test_progress_goes_to_stderr(made: Made) -> None:
    _, done = made
    assert done.stdout == ""
    for name in QUICKEST:
        assert f"\n{name}: done in " in done.stderr
    assert done.stderr.startswith("faults: seconds, from ")
    assert "every batch of every epoch was checked" in done.stderr  # the script's own words


@pytest.mark.thorough
def test_figures_of_every_round_are_kept(made: Made) -> None:
    folder, _ = made
    found = json.loads((folder / "results" / "faults.json").read_text())
    assert found["commands"] == ["python benchmarks/faults.py --batches 2 --rounds 2"]
    assert found["quick"] is True and found["versions"]["torch"]
    rows = found["tables"][0]["rows"]
    assert [row["title"] for row in rows][-2:] == ["2 threads", "no workers"]
    assert all(len(figure["values"]) == 2 for row in rows for figure in row["figures"].values())
    stored = json.loads((folder / "results" / "table.json").read_text())["tables"][0]
    assert stored["columns"][:2] == ["torch, a matrix in memory", "headrace"]
    assert stored["checked"] and any("MB read" in note for note in stored["notes"])


@pytest.mark.thorough
def test_sections_are_written_anew_and_the_rest_of_the_page_stays(made: Made) -> None:
    folder, _ = made
    text, expected = (folder / "benchmarks.md").read_text(), PAGE.read_text()
    for name in QUICKEST:
        inside = text.split(f"<!-- begin {name} -->\n")[1].split(f"<!-- end {name} -->\n")[0]
        assert "python benchmarks/" in inside and "| ---: |" in inside
        assert f"![How headrace and others compare, drawn](images/bench-{name}.svg)" in inside
        expected = sections.replaced(expected, name, inside)
    assert text == expected


@pytest.mark.thorough
def test_pictures_are_drawn(made: Made) -> None:
    folder, _ = made
    for name in QUICKEST:
        picture = xml.etree.ElementTree.parse(folder / "images" / f"bench-{name}.svg").getroot()
        assert picture.tag == "{http://www.w3.org/2000/svg}svg"
    assert "2 threads" in " ".join(picture_words(folder, "faults"))


def picture_words(folder: Path, name: str) -> list[str]:
    return list(xml.etree.ElementTree.parse(folder / "images" / f"bench-{name}.svg").getroot().itertext())


@pytest.mark.thorough
def test_text_and_pictures_can_be_made_again_from_the_figures(made: Made) -> None:
    folder, _ = made
    files = [folder / "benchmarks.md", *(folder / "images" / f"bench-{name}.svg" for name in QUICKEST)]
    before = [file.read_bytes() for file in files]
    files[0].write_text(PAGE.read_text())
    for file in files[1:]:
        file.unlink()
    done = run(*QUICKEST, "order", "--render-only", "--into", str(folder))
    assert done.returncode == 0
    assert [file.read_bytes() for file in files] == before
    assert done.stderr.startswith("order: no figures in ")


@pytest.mark.thorough
def test_a_script_that_fails_leaves_its_table_as_it_was(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    places = tables.beside(tmp_path)
    monkeypatch.setitem(tables.PLANS, "order", tables.Plan(("order.py --sizes many",), (), 1))
    assert not tables.make("order", places, quick=False)
    assert "order: FAILED with status 2" in capfd.readouterr().err
    assert places.page.read_bytes() == PAGE.read_bytes()
    assert not places.results.exists()


def test_a_script_that_is_not_there_is_left_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(tables.PLANS, "order", tables.Plan(("nothing.py",), (), 1))
    assert tables.make("order", tables.beside(tmp_path), quick=False)
    assert capfd.readouterr().err == "order: left out, benchmarks/nothing.py is not there\n"


def test_tables_of_one_title_become_one() -> None:
    from results import Row, Table

    parts = [Table("memory", "GB", [Row(name, {"torch": [1.0]})], "", notes=["n"]) for name in "ab"]
    found = [
        {"command": name, "machine": {}, "versions": {name: "1"}, "tables": [part.as_json()]}
        for name, part in zip("xy", parts, strict=True)
    ]
    both = tables.joined("start", found)
    assert both["commands"] == ["x", "y"] and both["versions"] == {"x": "1", "y": "1"}
    assert [row["title"] for row in both["tables"][0]["rows"]] == ["a", "b"]
    assert len(both["tables"]) == 1 and both["tables"][0]["notes"] == ["n"]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ((), "say which tables, or --all"),
        (("order", "--all"), "say which tables, or --all"),
        (("nothing",), "no table nothing; there are transport, "),
        (("order", "--quick"), "--quick goes with --into FOLDER"),
    ],
)
def test_a_wrong_command_line_runs_nothing(arguments: tuple[str, ...], words: str) -> None:
    done = run(*arguments)
    assert done.returncode == 2 and words in done.stderr


def test_the_list_has_every_table() -> None:
    lines = run("--list").stdout.splitlines()
    assert [line.split()[0] for line in lines] == list(tables.PLANS)


def test_every_table_has_its_place_on_the_page() -> None:
    assert sorted(sections.names_in(PAGE.read_text())) == sorted(tables.PLANS)
    for name in tables.PLANS:
        assert sections.replaced(PAGE.read_text(), name, "new")


def test_the_page_says_what_the_figures_say() -> None:
    text = PAGE.read_text()
    for path in sorted(tables.IN_PLACE.results.glob("*.json")):
        result, picture = json.loads(path.read_text()), tables.IN_PLACE.picture(path.stem)
        link = f"images/{picture.name}" if picture.exists() else None
        assert sections.replaced(text, path.stem, sections.section(result, link)) == text
        assert not result["quick"]
