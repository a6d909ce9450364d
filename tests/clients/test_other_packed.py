"""What other tools have written is verified and packed as it is opened: rightly, or with a word about what is wrong."""

from __future__ import annotations

import dataclasses
import itertools
import shutil
import sys
from pathlib import Path

import pytest

import headrace
from headrace.cli.app import main
from headrace.core.errors import HeadraceError
from headrace.data.formats.registry import FORMATS
from tests.clients.other_tools import every_tool
from tests.clients.other_tools.comparison import Outcome, heard, judged, judged_refusal, names_it
from tests.clients.other_tools.tools import TOOLS, Tool
from tests.servers.faulty import FaultyServer

pytestmark = [
    pytest.mark.clients,
    pytest.mark.timeout(120),
    # Of the tools themselves.
    pytest.mark.filterwarnings("ignore"),
]

BY_RANGES = {name for name, entry in FORMATS.items() if entry.by_ranges} - {"folder"}
"""Forms that are read from a store in another way than from a disk. Images are decoded in one way."""

WITHOUT_AN_END = ("csv", "jsonl", "folder-text files", "folder-files by hand")
"""Forms and tools whose files may be cut anywhere, and are still such."""


def fault_of_verify(outcome: Outcome) -> str:
    """Returns what is wrong with what `verify` says of a file; "" if nothing is."""
    written = outcome.written
    if "columns" in written.options:
        # Verify looks at all columns.
        return ""
    try:
        found = headrace.verify(written.path, format=written.options.get("format"))
    except HeadraceError as error:
        if outcome.result == "refused":
            return ""
        return f"{written.kind}: verify refuses what is read: {error}\n"
    except Exception as error:  # noqa: BLE001 - whatever else comes out is the fault that is looked for
        return f"{written.kind}: verify raised {type(error).__name__}: {error}\n"

    # Text that is no UTF-8 is read, with surrogates as Python reads names of files, and verify tells.
    if outcome.result != "refused" and not all("no UTF-8" in problem for problem in found.problems):
        return f"{written.kind}: verify finds {found.problems[:2]} in what is read\n"
    if outcome.result == "refused" and found.sound:
        return f"{written.kind}: verify calls sound what is refused: {outcome.reason}\n"
    return ""


def fault_of_pack(outcome: Outcome, target: Path) -> str:
    """Returns what is wrong with what comes of packing a file; "" if nothing is."""
    written = outcome.written
    columns = written.options.get("columns")
    options = headrace.PackOptions("arrow", columns=None if columns is None else tuple(columns))
    with heard() as messages:
        try:
            headrace.pack(written.path, target, options, workers=1)
        except HeadraceError as error:
            if target.exists():
                return f"{written.kind}: a pack that failed left its target\n"
            if outcome.result == "refused":
                return ""
            # What Arrow opens, and does not hold: an error about it must say what.
            refusal = judged_refusal(written, error)
            return "" if refusal.result == "refused" else f"{written.kind}: pack: {refusal.reason}\n"
        except Exception as error:  # noqa: BLE001 - whatever else comes out is the fault that is looked for
            return f"{written.kind}: pack raised {type(error).__name__}: {error}\n"

    if outcome.result == "refused":
        # A damaged image is packed as it is, and refused by whoever opens the copy.
        again = judged(dataclasses.replace(written, path=target, options={}))
        return "" if again.result == "refused" else f"{written.kind}: packed without a word what is refused\n"
    if outcome.result == "told":
        told = any(names_it(written, message) for message in messages)
        return "" if told else f"{written.kind}: pack says nothing of what opening tells: {outcome.reason}\n"

    decode = {"decode": written.options["decode"]} if "decode" in written.options else {}
    copy = judged(dataclasses.replace(written, path=target, options=decode))
    return "" if copy.result == "equal" else f"{written.kind}: the packed copy: {copy.reason}\n"


@pytest.mark.parametrize("tool", TOOLS, ids=str)
def test_each_file_is_verified_and_packed_as_it_is_opened(tool: Tool, tmp_path: Path) -> None:
    every_tool.skip_if_missing(tool)
    source = tmp_path / "source"
    source.mkdir()
    faults = ""
    count = 0
    for count, written in enumerate(tool.write(source), 1):
        outcome = judged(written)
        # What is opened wrongly fails another test.
        if outcome.result != "fault":
            target = tmp_path / "packed" / f"{count}.arrow"
            faults += fault_of_verify(outcome) + fault_of_pack(outcome, target)
    assert count
    assert faults == ""


@pytest.mark.parametrize("tool", TOOLS, ids=str)
def test_the_commands_say_what_is_refused_without_a_traceback(
    tool: Tool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    every_tool.skip_if_missing(tool)
    source = tmp_path / "source"
    source.mkdir()
    refused = next((one for one in map(judged, tool.write(source)) if one.result == "refused"), None)
    if refused is None:
        pytest.skip("headrace reads all of its files")

    path = str(refused.written.path)
    for arguments in (["verify", path], ["pack", path, str(tmp_path / "packed.arrow"), "--workers", "1"]):
        monkeypatch.setattr(sys, "argv", ["headrace", *arguments])
        with pytest.raises(SystemExit) as ended:
            main()
        said = capsys.readouterr()
        assert ended.value.code == 1
        assert names_it(refused.written, said.err + said.out)
        assert "Traceback" not in said.err


@pytest.mark.parametrize("tool", [tool for tool in TOOLS if tool.form in BY_RANGES], ids=str)
def test_each_file_is_the_same_in_a_bucket(tool: Tool, faulty_server: FaultyServer) -> None:
    every_tool.skip_if_missing(tool)
    bucket = faulty_server.folder / "bucket"
    bucket.mkdir()
    faults = ""
    # A part of them: each costs some tenths of a second.
    for written in itertools.islice(tool.write(bucket), 0, None, 9):
        here = judged(written)
        url = f"s3://bucket/{written.path.relative_to(bucket)}"
        options = {**written.options, "options": faulty_server.s3_options}
        there = judged(dataclasses.replace(written, url=url, options=options))
        # What is opened wrongly on this machine fails another test.
        if here.result != "fault" and there.result not in (here.result, "refused"):
            faults += f"{there}, where the path is {here.result}\n"
    assert faults == ""


def cut(path: Path) -> Path:
    """Cuts the largest file of a dataset to about two fifths, and returns that file."""
    file = path
    if path.is_dir():
        file = max((one for one in path.rglob("*") if one.is_file()), key=lambda one: one.stat().st_size)
    data = file.read_bytes()
    # Not between two blocks: a tar archive may end there.
    file.write_bytes(data[: (len(data) * 2 // 5) | 1])
    return file


@pytest.mark.parametrize("tool", [tool for tool in TOOLS if not {tool.form, str(tool)} & {*WITHOUT_AN_END}], ids=str)
def test_a_file_that_was_cut_is_found_by_verify_and_not_packed_in_silence(tool: Tool, tmp_path: Path) -> None:
    every_tool.skip_if_missing(tool)
    source = tmp_path / "source"
    source.mkdir()
    sound = next((one for one in tool.write(source) if one.values and judged(one).result == "equal"), None)
    if sound is None:
        pytest.skip("headrace reads none of its files")
    path = tmp_path / f"cut{sound.path.suffix}"
    if sound.path.is_dir():
        shutil.copytree(sound.path, path)
    else:
        shutil.copy(sound.path, path)

    file = cut(path)
    try:
        found = "\n".join(headrace.verify(path).problems)
    except HeadraceError as error:
        found = str(error)
    assert file.name in found or str(path) in found

    try:
        packed = headrace.pack(path, tmp_path / "packed.arrow", headrace.PackOptions("arrow"), workers=1)
    except HeadraceError as error:
        assert "place:" in str(error)
    else:
        assert packed.bad
