"""Figures of a benchmark keep their single values, and become the same text and the same picture each time."""

from __future__ import annotations

import xml.etree.ElementTree
from pathlib import Path
from typing import Any

import pytest
from benchmarks.__main__ import command_of
from benchmarks.harness import pictures, sections
from benchmarks.harness.machine import machine, versions
from benchmarks.harness.table import Row, Table


def table(**more: Any) -> Table:
    rows = [
        Row("2 workers", {"headrace": [20.0, 30.0, 90.0], "torch": [10.0, 20.0, 30.0], "other": [5.0, 5.0, 5.0]}),
        Row("10 workers", {"headrace": [1234.5, 1234.5, 1234.5]}, {"torch": "does not fit"}),
    ]
    return Table("samples of nothing", "GB/s", rows, "Every batch was compared.", **more)


def result(*tables: Table) -> dict[str, Any]:
    return {
        "name": "nothing",
        "commands": ["python -m benchmarks nothing"],
        "machine": {"cpu": "A CPU", "cores": 2, "memory": 24e9, "system": "Linux 6.1"},
        "versions": {"Python": "3.11.7", "torch": "2.13.0", "numpy": "2.4"},
        "tables": [one.as_json() for one in tables],
        "quick": False,
        "seconds": 60,
    }


# -- data --------------------------------------------------------------------------------------------------------------


def test_ratios_are_those_of_the_rounds() -> None:
    made = table()
    assert made.ratios(made.rows[0], "headrace", "torch") == [2.0, 1.5, 3.0]
    assert made.ratios(made.rows[1], "headrace", "torch") == []


def test_ratios_of_times_and_sizes_are_above_one_where_headrace_needs_less() -> None:
    row = Row("", {"headrace": [1.0, 2.0], "torch": [4.0, 4.0]})
    assert Table("", "s", [row], "", better="less").ratios(row, "headrace", "torch") == [4.0, 2.0]


def test_of_different_numbers_of_rounds_the_medians_are_compared() -> None:
    row = Row("", {"headrace": [10.0, 20.0, 60.0], "torch": [5.0]})
    assert Table("", "GB/s", [row], "").ratios(row, "headrace", "torch") == [4.0]


def test_the_base_comes_first_and_headrace_beside_it() -> None:
    assert table().columns == ["torch", "headrace", "other"]
    assert table(base="other").columns == ["other", "headrace", "torch"]


def test_a_table_comes_back_from_json_with_its_values() -> None:
    made = table(better="less", notes=["Opening took 3 ms."])
    found = made.as_json()
    figures = found["rows"][0]["figures"]["headrace"]
    assert figures == {"mean": 140 / 3, "std": pytest.approx(37.859389), "median": 30.0, "values": [20.0, 30.0, 90.0]}
    assert Table.from_json(found) == made


def test_figures_are_kept_with_the_command_the_machine_and_the_versions() -> None:
    options = {"rounds": 3, "only": "a b", "sizes": [1e5, 2.5], "normalize": True}
    words = "--rounds 3 --only 'a b' --sizes 100000 2.5 --normalize"
    assert command_of("nothing", options) == f"python -m benchmarks nothing {words}"
    assert {"Python", "torch", "numpy", "headrace"} == set(versions(["numpy", "no-such-package"]))
    assert machine()["cores"] >= 1 and machine()["cpu"]


# -- text --------------------------------------------------------------------------------------------------------------


def test_few_contenders_stand_side_by_side() -> None:
    assert sections.markdown(table()).splitlines() == [
        "|  | torch | headrace | other | headrace to torch | headrace to other |",
        "| --- | ---: | ---: | ---: | ---: | ---: |",
        "| 2 workers | 20.0 (10.0) | 46.7 (37.9) | 5.00 (0.00) | 2.00x | 6.00x |",
        "| 10 workers | does not fit | 1,234 (0) |  |  |  |",
    ]


def test_headrace_set_up_otherwise_is_compared_with_the_base() -> None:
    row = Row("npz", {"torch": [10.0], "headrace": [20.0], "headrace, 2 workers": [5.0]})
    assert sections.markdown(Table("", "samples/s", [row], "")).splitlines() == [
        "|  | torch | headrace | headrace, 2 workers | headrace to torch | headrace, 2 workers to torch |",
        "| --- | ---: | ---: | ---: | ---: | ---: |",
        "| npz | 10.0 | 20.0 | 5.00 | 2.00x | 0.50x |",
    ]


def test_many_contenders_stand_below_each_other() -> None:
    figures = {"torch": [10.0], "headrace": [20.0], "headrace, one by one": [5.0], "baseline loop": [40.0]}
    made = Table("nothing", "GB/s", [Row("stored", figures), Row("made", {"torch": [1.0]})], "")
    assert sections.markdown(made).splitlines() == [
        "|  |  | GB/s | headrace to it | to torch |",
        "| --- | --- | ---: | ---: | ---: |",
        "| stored | torch | 10.0 | 2.00x |  |",
        "|  | headrace | 20.0 |  |  |",
        "|  | headrace, one by one | 5.00 |  | 0.50x |",
        "|  | baseline loop | 40.0 | 0.50x |  |",
        "| made | torch | 1.00 |  |  |",
    ]


def test_a_ratio_stands_once_where_headrace_has_one_setting() -> None:
    figures = {"torch": [10.0], "headrace": [20.0], "other": [5.0], "baseline loop": [40.0]}
    assert sections.markdown(Table("nothing", "GB/s", [Row("", figures)], "")).splitlines() == [
        "|  | GB/s | headrace to it |",
        "| --- | ---: | ---: |",
        "| torch | 10.0 | 2.00x |",
        "| headrace | 20.0 |  |",
        "| other | 5.00 | 4.00x |",
        "| baseline loop | 40.0 | 0.50x |",
    ]


def test_nothing_is_compared_with_itself() -> None:
    resumed = Table("resume", "s", [Row("near", {"headrace": [1.0]})], "", better="less", base="headrace")
    assert sections.markdown(resumed).splitlines() == ["|  | headrace |", "| --- | ---: |", "| near | 1.00 |"]
    choice = {"no workers": [4.0], "1 worker": [3.0], "2 workers": [2.0]}
    chosen = Table("choice", "s", [Row("data", choice, {"chosen": "no workers"})], "", base="no workers")
    assert sections.markdown(chosen).splitlines() == [
        "|  | no workers | 1 worker | 2 workers | chosen |",
        "| --- | ---: | ---: | ---: | ---: |",
        "| data | 4.00 | 3.00 | 2.00 | no workers |",
    ]


def test_a_section_says_how_it_was_measured_and_what_was_checked() -> None:
    text = sections.section(result(table(notes=["Opening took 3 ms."]), table()), "images/bench-nothing.svg")
    assert text.startswith(
        "```\npython -m benchmarks nothing\n```\n\nA CPU, 2 cores, 24 GB, Linux 6.1; Python 3.11.7, "
    )
    assert "**samples of nothing**, GB/s, more is better, mean (standard deviation) of 3 runs:" in text
    assert text.count("- Opening took 3 ms.") == 1
    assert text.count("Every batch was compared.") == 1
    assert text.endswith("(images/bench-nothing.svg)")
    assert "say nothing" in sections.section(result(table()) | {"quick": True}, None)


def test_only_what_stands_between_the_markers_is_replaced() -> None:
    page = "# A\n<!-- begin a -->\nold\n<!-- end a -->\nprose\n<!-- begin ab -->\nkept\n<!-- end ab -->\nend\n"
    expected = "# A\n<!-- begin a -->\n\nnew\n\n<!-- end a -->\nprose\n<!-- begin ab -->\nkept\n<!-- end ab -->\nend\n"
    assert sections.replaced(page, "a", "new\n") == expected
    assert sections.replaced(expected, "a", "new") == expected
    assert sections.names_in(page) == ["a", "ab"]


@pytest.mark.parametrize(
    "page",
    [
        "no markers\n",
        "<!-- begin a -->\n",
        "<!-- end a -->\n<!-- begin a -->\n",
        2 * "<!-- begin a -->\n<!-- end a -->\n",
    ],
)
def test_a_page_without_both_markers_is_left_alone(page: str) -> None:
    with pytest.raises(SystemExit, match="<!-- begin a -->"):
        sections.replaced(page, "a", "new")


@pytest.mark.parametrize(
    ("ratio", "text"), [(0.0042, "0.004x"), (0.42, "0.42x"), (5.274, "5.27x"), (30.84, "30.8x"), (1234, "1,234x")]
)
def test_ratios_have_about_three_digits(ratio: float, text: str) -> None:
    assert sections.times(ratio) == text


# -- pictures ----------------------------------------------------------------------------------------------------------


def test_there_is_a_bar_for_every_contender_with_a_base_and_whiskers_over_the_rounds() -> None:
    assert pictures.bars_of(table()) == [
        pictures.Bar("2 workers", 2.0, 1.5, 3.0, True),
        pictures.Bar("2 workers: other", 0.25, 1 / 6, 0.5, False),
    ]


@pytest.mark.thorough
def test_a_picture_is_an_svg_with_its_words_and_the_same_each_time(tmp_path: Path) -> None:
    paths = [tmp_path / name / "bench.svg" for name in "ab"]
    assert all(pictures.draw(result(table(), table(base="other")), path) for path in paths)
    first, second = (path.read_bytes() for path in paths)
    assert first == second
    words = " ".join(xml.etree.ElementTree.fromstring(first).itertext())
    assert "samples of nothing" in words and "2 workers: other" in words and "2.00x" in words
    assert "times the GB/s of torch; right is better" in words
    assert b"<dc:date>" not in first


def test_without_a_base_nothing_is_drawn(tmp_path: Path) -> None:
    assert not pictures.draw(result(table(base="nobody")), tmp_path / "bench.svg")
    assert list(tmp_path.iterdir()) == []
