"""One command measures a table, keeps its figures, and writes its section and its picture anew."""

from __future__ import annotations

import json
import subprocess
import xml.etree.ElementTree
from pathlib import Path

import pytest
from benchmarks.harness import page, sections

from benchmarks import catalog
from tests import programs

PAGE = page.IN_PLACE.page
QUICKEST = ("faults", "table")


def run(*arguments: str) -> programs.Ended:
    return programs.run(["-m", "benchmarks", *arguments], cwd=page.ROOT)


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, subprocess.CompletedProcess[str]]:
    """The folder that two tables were measured into, and what was said."""
    folder = tmp_path_factory.mktemp("tables") / "bench"
    before = PAGE.read_bytes()
    done = run("page", *QUICKEST, "--quick", "--into", str(folder))
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
    assert "Every batch was checked: " in done.stderr  # what the benchmark prints


@pytest.mark.thorough
def test_figures_of_every_round_are_kept(made: Made) -> None:
    folder, _ = made
    found = json.loads((folder / "results" / "faults.json").read_text())
    assert found["commands"] == ["python -m benchmarks faults --batches 2 --rounds 2"]
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
        assert "python -m benchmarks" in inside and "| ---: |" in inside
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
    done = run("page", *QUICKEST, "order", "--render-only", "--into", str(folder))
    assert done.returncode == 0
    assert [file.read_bytes() for file in files] == before
    assert done.stderr.startswith("order: no figures in ")


@pytest.mark.thorough
def test_a_benchmark_that_fails_leaves_its_section_as_it_was(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    places = page.beside(tmp_path)
    assert not page.make("order", places, ["--sizes", "many"])
    assert "order: FAILED with status 2" in capfd.readouterr().err
    assert places.page.read_bytes() == PAGE.read_bytes()
    assert not places.results.exists()


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("page",), "say which sections, or --all"),
        (("page", "order", "--all"), "say which sections, or --all"),
        (("page", "nothing"), "has no section nothing; there are transport, "),
        (("page", "recording"), "has no section recording; there are transport, "),
        (("page", "order", "--quick"), "--quick goes with --into FOLDER"),
        (("nothing",), "no benchmark nothing; there are transport, "),
        (("journal", "--parts", "nothing"), "invalid choice: 'nothing'"),
        (("order", "--sizes", "many"), "argument --sizes: invalid float value: 'many'"),
    ],
)
def test_a_wrong_command_line_runs_nothing(arguments: tuple[str, ...], words: str) -> None:
    done = run(*arguments)
    assert done.returncode == 2 and words in done.stderr


def test_the_list_has_every_benchmark() -> None:
    lines = [line.split() for line in run("--help").stdout.splitlines() if line.startswith("    ")]
    assert [line[0] for line in lines if line[0] != "python"] == list(catalog.BENCHMARKS)


def test_every_section_of_the_page_has_its_benchmark() -> None:
    assert sorted(sections.names_in(PAGE.read_text())) == sorted(page.IN_PLACE.names())
    for name in page.IN_PLACE.names():
        assert sections.replaced(PAGE.read_text(), name, "new")


OF_OTHER_PAGES = ("device",)
"""Results that have no section: those of the page about GPUs."""


def test_the_page_says_what_the_figures_say() -> None:
    text = PAGE.read_text()
    paths = {path.stem: path for path in sorted(page.IN_PLACE.results.glob("*.json"))}
    for name in OF_OTHER_PAGES:
        del paths[name]
    for path in paths.values():
        result, picture = json.loads(path.read_text()), page.IN_PLACE.picture(path.stem)
        link = page.IN_PLACE.link(path.stem) if picture.exists() else None
        assert sections.replaced(text, path.stem, sections.section(result, link)) == text
        assert not result["quick"]
