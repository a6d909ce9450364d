"""`headrace run`: the script runs as Python would run it, and the report is true."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from headrace import load_quarantine
from headrace.cli.run import lines_on
from tests import programs
from tests.observe import made_up

PLAIN_SCRIPT = """
import sys
import torch
from torch.utils.data import DataLoader
import torch.utils.data as data

class Squares(data.Dataset):
    def __len__(self): return 40
    def __getitem__(self, i): return torch.tensor(i * i)

if __name__ == "__main__":
    print("arguments", sys.argv[1:], "path", sys.path[0] == sys.argv[0].rpartition("/")[0])
    torch.manual_seed(3)
    loader = DataLoader(Squares(), batch_size=8, shuffle=True)
    other = data.DataLoader(Squares(), 10, False, num_workers=1)
    for epoch in range(2):
        print([batch.tolist() for batch in loader])
    print([batch.tolist() for batch in other])
    kind = type(loader).__mro__[1].__module__
    print(kind, loader.num_workers, loader.prefetch_factor, isinstance(loader, DataLoader))
"""


@pytest.fixture
def script(tmp_path: Path) -> Path:
    path = tmp_path / "train.py"
    path.write_text(PLAIN_SCRIPT)
    return path


def headrace(*arguments: object, cwd: Path | None = None, fresh: bool = False) -> programs.Ended:
    environment = {**os.environ, "COLUMNS": "100", "NO_COLOR": "1"}
    return programs.run(["-m", "headrace", *arguments], cwd=cwd, env=environment, fresh=fresh)


def measured(folder: Path, *arguments: object, fresh: bool = False) -> tuple[programs.Ended, dict[str, Any]]:
    report = folder / "report.json"
    result = headrace("run", "--json", report, *arguments, fresh=fresh)
    return result, json.loads(report.read_text())


def test_the_script_gets_its_arguments_and_headrace_s_loader(script: Path, tmp_path: Path) -> None:
    result, report = measured(tmp_path, script, "--epochs", "3", "--num-workers", "7", fresh=True)
    assert result.returncode == 0
    lines = result.stdout.splitlines()
    assert lines[0] == "arguments ['--epochs', '3', '--num-workers', '7'] path True"
    assert lines[-1] == "headrace.loader.dataloader 0 None True"
    first, second = report["loaders"]
    assert (first["label"], first["kind"], first["epochs"], first["batches"], first["samples"]) == (
        "train.py:14", "headrace", 2, 10, 80,
    )  # fmt: skip
    assert (second["label"], second["num_workers"], second["batches"], second["samples"]) == ("train.py:15", 1, 4, 40)
    assert 0 < report["waited"] < report["seconds"]


def test_both_loaders_deliver_the_same_batches(script: Path, tmp_path: Path) -> None:
    ours, _ = measured(tmp_path, script)
    theirs, report = measured(tmp_path, "--plain", script)
    plainly = programs.run([script])
    assert plainly.returncode == 0
    assert ours.stdout.splitlines()[1:-1] == theirs.stdout.splitlines()[1:-1] == plainly.stdout.splitlines()[1:-1]
    assert {loader["kind"] for loader in report["loaders"]} == {"torch"}


@pytest.mark.thorough
def test_files_are_written_also_where_nobody_reads_what_is_printed(script: Path, tmp_path: Path) -> None:
    """As behind `2>&1 | head`: here nobody reads at all."""
    script.write_text(PLAIN_SCRIPT.replace("    print", "    (lambda *_: None)"))
    ours, theirs = os.pipe()
    os.close(ours)
    files = [tmp_path / "report.json", tmp_path / "report.html"]
    command = [sys.executable, "-m", "headrace", "run", "--json", files[0], "--report", files[1], script]
    try:
        status = subprocess.run(command, stdout=theirs, stderr=theirs, timeout=60, check=False).returncode
    finally:
        os.close(theirs)
    assert status == 0
    assert json.loads(files[0].read_text())["loaders"]
    assert "train.py" in files[1].read_text()


def test_the_report_is_one_sentence_and_a_row_for_each_loader(script: Path) -> None:
    report = headrace("run", "--plain", script).stderr
    assert "headrace: with torch's loader, train.py ran" in report
    assert "for data." in report
    assert "train.py:14" in report
    assert "train.py:15" in report


def test_findings_that_the_report_leaves_out_are_named() -> None:
    diagnosis = made_up.diagnosis(made_up.with_workers())
    first, *others = diagnosis.findings
    explained, named = lines_on(diagnosis)
    assert explained.startswith(f"{diagnosis.label}: {first.sentence} {first.advice} (predicted: ")
    names = ", ".join(one.name for one in others if one.stage != "training")
    assert named == f"{diagnosis.label}: also found, and explained by headrace doctor: {names}."
    assert len(list(lines_on(replace(diagnosis, findings=(first,))))) == 1


@pytest.mark.thorough
def test_options_fill_in_what_the_script_does_not_say(script: Path) -> None:
    result = headrace("run", "--num-workers", 2, "--prefetch-factor", 3, "--persistent-workers", script)
    assert result.stdout.splitlines()[-1] == "headrace.loader.dataloader 2 3 True"
    assert "--num-workers was not used at train.py:15: the script sets it there." in result.stderr


@pytest.mark.thorough
def test_options_about_workers_leave_loaders_without_workers_alone(script: Path) -> None:
    result = headrace("run", "--prefetch-factor", 3, "--start-method", "fork", script)
    assert result.returncode == 0
    assert result.stdout.splitlines()[-1] == "headrace.loader.dataloader 0 None True"
    assert "--prefetch-factor was not used at train.py:14" in result.stderr


@pytest.mark.thorough
def test_workers_may_be_spawned(script: Path) -> None:
    result = headrace("run", "--num-workers", 1, "--start-method", "spawn", script)
    assert (result.returncode, result.stdout.splitlines()[-1]) == (0, "headrace.loader.dataloader 1 2 True")


@pytest.mark.quick(ending="sys.exit(7)")
@pytest.mark.parametrize(
    ("ending", "status", "text"),
    [
        ("raise ValueError('broken')", 1, "ValueError: broken"),
        ("sys.exit(7)", 7, ""),
        ("sys.exit('no luck')", 1, "no luck"),
        ("sys.exit()", 0, ""),
        ("raise KeyboardInterrupt", 130, "    raise KeyboardInterrupt\nKeyboardInterrupt\n"),
    ],
)
def test_the_script_s_own_end_is_the_command_s_and_the_report_comes_all_the_same(
    script: Path, ending: str, status: int, text: str
) -> None:
    script.write_text(PLAIN_SCRIPT + f"    {ending}\n")
    result = headrace("run", script)
    assert result.returncode == status
    assert text in result.stderr
    assert "train.py:14" in result.stderr
    assert "headrace/cli" not in result.stderr


@pytest.mark.thorough
def test_a_module_runs_as_with_python_m(script: Path) -> None:
    result = headrace("run", "-m", "train", "x", cwd=script.parent)
    assert result.returncode == 0
    assert result.stdout.splitlines()[-1] == "headrace.loader.dataloader 0 None True"


@pytest.mark.thorough
def test_a_stream_that_repeats_is_said_before_what_would_be_faster(script: Path) -> None:
    script.write_text("""
import time
import torch
from torch.utils.data import DataLoader, IterableDataset

class Everything(IterableDataset):
    def __iter__(self):
        for number in range(60):
            time.sleep(0.002)
            yield torch.tensor(number)

for batch in DataLoader(Everything(), batch_size=4, num_workers=2):
    pass
""")
    result = headrace("run", script)
    assert result.returncode == 0
    lines = [line for line in result.stderr.splitlines() if line.startswith("train.py:12: ")]
    assert lines[0].startswith("train.py:12: The workers' streams of Everything begin with the same batch.")
    assert len(lines) == 2


def test_a_script_without_a_loader_is_told_so(script: Path) -> None:
    script.write_text("print('nothing to load')\n")
    result = headrace("run", script)
    assert (result.returncode, result.stdout) == (0, "nothing to load\n")
    assert "did not iterate over any DataLoader" in result.stderr


def test_a_missing_script_is_named_with_the_fix(tmp_path: Path) -> None:
    result = headrace("run", tmp_path / "nowhere.py")
    assert result.returncode == 2
    assert "no such script" in result.stderr
    assert "nowhere.py" in result.stderr
    assert "Traceback" not in result.stderr


def test_figures_that_could_not_be_written_are_noticed_before_the_run(script: Path, tmp_path: Path) -> None:
    result = headrace("run", "--json", tmp_path / "nowhere" / "report.json", script)
    assert (result.returncode, result.stdout) == (2, "")
    assert "fix:      make the folder first" in result.stderr


def test_a_wrong_call_of_the_loader_gets_torch_s_error(script: Path) -> None:
    script.write_text("from torch.utils.data import DataLoader\nDataLoader(nonsense=1)\n")
    result = headrace("run", script)
    assert result.returncode == 1
    assert "nonsense" in result.stderr


def test_ctrl_c_ends_the_run_with_its_report_and_no_worker(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(
        PLAIN_SCRIPT.replace("num_workers=1", "num_workers=2")
        + "    iterator = iter(other)\n    print('pids', *[w.pid for w in iterator._workers], flush=True)\n"
        + "    while True: sum(range(1000))\n"
    )
    with programs.Program(["-m", "headrace", "run", script]) as process:
        pids = next(line.split()[1:] for line in iter(process.read_line, "") if line.startswith("pids"))
        process.send_signal(signal.SIGINT)
        _, errors = process.communicate(timeout=60)
    assert process.returncode == 130
    assert "train.py:15" in errors
    assert not any(Path("/proc", pid).exists() for pid in pids)


FAULTY = """
import os
from torch.utils.data import DataLoader, Dataset
from headrace.testing import Attempts
attempts = Attempts()
class Photos(Dataset):
    def __len__(self):
        return 40
    def __getitem__(self, key):
        if key == 5:
            raise ValueError("corrupt")
        if key == 9 and attempts.count(9) == 0:
            os._exit(1)
        return key
print(sum(len(batch) for batch in DataLoader(Photos(), batch_size=4, num_workers=2)))
"""


@pytest.mark.thorough
def test_a_script_survives_bad_samples_and_deaths_unmodified(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(FAULTY)
    quarantine = tmp_path / "bad.jsonl"
    run = headrace("run", "--on-error", "replace", "--quarantine", str(quarantine), str(script))
    assert run.stdout == "40\n"
    assert "train.py:15: 1 bad sample, 1 worker replaced" in run.stderr
    assert [record.key for record in load_quarantine(quarantine)] == [5]
    skipped = headrace("run", "--on-error", "skip", str(script))
    assert skipped.stdout == "39\n"
    assert headrace("run", str(script)).returncode == 1
    plain = headrace("run", "--plain", "--on-error", "skip", str(script))
    assert plain.returncode == 2
    assert "torch's own loader cannot do this" in plain.stderr


def test_help_teaches() -> None:
    text = headrace("run", "--help").stdout
    assert "Example: headrace run --num-workers 4 train.py --epochs 3" in text
    assert headrace("--version").stdout.startswith("headrace ")
