"""Under `headrace run` the replaced class passes for torch's, whatever a framework asks of it."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from tests import programs

WAYS = [[], ["--plain"]]
both_ways = pytest.mark.parametrize("way", WAYS, ids=["run", "plain"])


def under_run(
    folder: Path, script: str, *options: str, name: str = "train.py"
) -> tuple[list[str], dict[str, Any], str]:
    """Runs a script under `headrace run`. Returns the lines that it prints, the figures, and the report."""
    path = folder / "train.py"
    path.write_text(script)
    command = ["-m", "headrace", "run", "--json", folder / "figures.json", *options, path]
    environment = {**os.environ, "COLUMNS": "120", "NO_COLOR": "1"}
    result = programs.run(command, cwd=folder, env=environment)
    assert result.returncode == 0, result.stderr
    return result.stdout.splitlines(), json.loads((folder / "figures.json").read_text()), result.stderr


@both_ways
@pytest.mark.quick(way=[[]])
def test_the_signature_is_that_of_the_class_it_replaces(way: list[str], tmp_path: Path) -> None:
    script = """
import inspect
from torch.utils.data import DataLoader
loader = DataLoader(range(8), batch_size=4)
for asked in (DataLoader, DataLoader.__init__, loader.__init__):
    parameters = inspect.signature(asked).parameters
    kinds = {parameter.kind.name for parameter in parameters.values()}
    print("dataset" in parameters, "batch_size" in parameters, sorted(kinds))
"""
    lines, _, _ = under_run(tmp_path, script, *way)
    assert set(lines) == {"True True ['KEYWORD_ONLY', 'POSITIONAL_OR_KEYWORD']"}


@both_ways
@pytest.mark.quick(way=[[]])
def test_a_loader_that_is_built_anew_from_its_attributes_is_the_same(way: list[str], tmp_path: Path) -> None:
    script = """
import inspect
from torch.utils.data import DataLoader
loader = DataLoader(range(12), batch_size=4, drop_last=True)
names = [name for name in inspect.signature(type(loader).__init__).parameters if name in vars(loader)]
given = {name: getattr(loader, name) for name in names}
for settled in ("sampler", "batch_size", "drop_last"):
    given.pop(settled)
again = type(loader)(**given)
print([batch.tolist() for batch in again] == [batch.tolist() for batch in loader], len(again))
"""
    lines, _, _ = under_run(tmp_path, script, *way)
    assert lines == ["True 3"]


@both_ways
@pytest.mark.quick(way=[[]])
def test_headrace_s_own_loader_is_measured_too(way: list[str], tmp_path: Path) -> None:
    script = """
import pickle
import torch
import headrace
from headrace import DataLoader

def main():
    loader = DataLoader(torch.arange(40), batch_size=4, shuffle=True, seed=3, num_workers=2)
    print(sorted(torch.cat(list(loader)).tolist()) == list(range(40)))
    for batch in headrace.DataLoader(torch.arange(6), batch_size=2):
        pass
    for batch in torch.utils.data.DataLoader(torch.arange(6), batch_size=3):
        pass
    again = pickle.loads(pickle.dumps(loader))
    print(type(again) is type(loader), isinstance(loader, headrace.DataLoader), len(again))

main()
"""
    lines, figures, said = under_run(tmp_path, script, *way)
    assert lines == ["True", "True True 10"]
    assert [(loader["label"], loader["kind"], loader["batches"]) for loader in figures["loaders"]] == [
        ("train.py:8", "headrace", 10),
        ("train.py:10", "headrace", 3),
        ("train.py:12", "torch" if way else "headrace", 2),
    ]
    assert ("with headrace's and torch's loader," if way else "with headrace's loader,") in said


@both_ways
@pytest.mark.quick(way=[[]])
def test_subclasses_may_name_the_type_of_their_samples(way: list[str], tmp_path: Path) -> None:
    script = """
from typing import TypeVar
from torch.utils.data import DataLoader
T = TypeVar("T")
class Numbers(DataLoader[int]): pass
class Any_(DataLoader[T]): pass
print([batch.tolist() for batch in Numbers(range(3))], [batch.tolist() for batch in Any_[int](range(3))])
"""
    lines, figures, _ = under_run(tmp_path, script, *way)
    assert lines == ["[[0], [1], [2]] [[0], [1], [2]]"]
    assert [loader["batches"] for loader in figures["loaders"]] == [3, 3]


@both_ways
@pytest.mark.quick(way=[[]])
def test_a_subclass_that_never_calls_the_constructor_is_measured(way: list[str], tmp_path: Path) -> None:
    script = """
import torch
from torch.utils.data import DataLoader
class Copied(DataLoader):
    def __init__(self, other):
        own = ("_session", "_measured")
        self.__dict__.update({name: value for name, value in vars(other).items() if name not in own})
copied = Copied(DataLoader(range(6), batch_size=2))
print([batch.tolist() for batch in copied])
"""
    lines, figures, _ = under_run(tmp_path, script, *way)
    assert lines == ["[[0, 1], [2, 3], [4, 5]]"]
    assert [loader["batches"] for loader in figures["loaders"] if loader["epochs"]] == [3]


def test_a_framework_that_saves_the_state_of_each_loader_gets_an_empty_one_where_there_is_none(tmp_path: Path) -> None:
    script = """
import headrace
import torch.utils.data
class Streaming(torch.utils.data.IterableDataset):
    def __iter__(self): return iter(range(4))
    def state_dict(self, num_samples, from_beginning): raise AssertionError("called")
    def load_state_dict(self, obj): raise AssertionError("called")
loader = torch.utils.data.DataLoader(Streaming(), batch_size=2)
batches = iter(loader)
next(batches)
print(loader.state_dict())
loader.load_state_dict(loader.state_dict())
print([batch.tolist() for batch in loader])
own = headrace.DataLoader(Streaming(), batch_size=2)
print(isinstance(own, torch.utils.data.DataLoader), [batch.tolist() for batch in own])
try:
    own.state_dict()
except ValueError as error:
    print(type(error).__name__)
print(torch.utils.data.DataLoader(range(4)).state_dict()["length"])
"""
    lines, _, said = under_run(tmp_path, script)
    assert lines == ["{}", "[[0, 1], [2, 3]]", "True [[0, 1], [2, 3]]", "StateError", "4"]
    assert said.count("no state of the loader is saved, as with torch's") == 1


@pytest.mark.thorough
@pytest.mark.parametrize("workers", [0, 1])
def test_a_subclass_that_makes_torch_s_iterator_itself_is_measured(workers: int, tmp_path: Path) -> None:
    script = f"""
import torch.utils.data.dataloader as module
class Own(module.DataLoader):
    def _get_iterator(self):
        if self.num_workers == 0:
            return module._SingleProcessDataLoaderIter(self)
        return module._MultiProcessingDataLoaderIter(self)
loader = Own(range(3), num_workers={workers})
print([batch.tolist() for _ in range(2) for batch in loader])
"""
    lines, figures, said = under_run(tmp_path, script)
    assert lines == ["[[0], [1], [2], [0], [1], [2]]"]
    assert [(loader["kind"], loader["batches"]) for loader in figures["loaders"]] == [("torch", 6)]
    assert "with torch's loader," in said


@both_ways
@pytest.mark.quick(way=[[]])
def test_torchdata_s_stateful_loader_can_be_used(way: list[str], tmp_path: Path) -> None:
    script = """
from torchdata.stateful_dataloader import StatefulDataLoader
from torchdata.stateful_dataloader.stateful_dataloader import StatefulDataLoader as again
import torch
loader = StatefulDataLoader(range(8), batch_size=2, num_workers=1)
iterator = iter(loader)
next(iterator)
state = loader.state_dict()
del iterator
loader = StatefulDataLoader(range(8), batch_size=2, num_workers=1)
loader.load_state_dict(state)
print([batch.tolist() for batch in loader], again is StatefulDataLoader, isinstance(loader, StatefulDataLoader))
print("headrace.loader.dataloader" in {kind.__module__ for kind in StatefulDataLoader.__mro__})
"""
    lines, _, _ = under_run(tmp_path, script, *way)
    assert lines == ["[[2, 3], [4, 5], [6, 7]] True True", str(not way)]


@pytest.mark.thorough
@both_ways
@pytest.mark.parametrize("generator", ["None", "torch.Generator().manual_seed(3)"])
def test_a_shuffle_of_torchdata_s_loader_stays_in_its_order(way: list[str], generator: str, tmp_path: Path) -> None:
    script = f"""
import torch
from torchdata.stateful_dataloader import StatefulDataLoader
torch.manual_seed(4)
for workers in (0, 1):
    loader = StatefulDataLoader(range(9), batch_size=2, shuffle=True, num_workers=workers, generator={generator})
    print([batch.tolist() for batch in loader], [batch.tolist() for batch in loader])
"""
    lines, _, _ = under_run(tmp_path, script, *way)
    plainly = programs.run([tmp_path / "train.py"])
    assert plainly.returncode == 0
    assert lines == plainly.stdout.splitlines()


@pytest.mark.quick(start="fork")
@both_ways
@pytest.mark.quick(way=[[]])
@pytest.mark.parametrize("start", ["fork", "spawn"])
def test_loaders_travel_to_processes_that_the_script_starts(way: list[str], start: str, tmp_path: Path) -> None:
    script = f"""
import torch.multiprocessing as mp
from torch.utils.data import DataLoader

def work(rank, loader):
    print(rank, [batch.tolist() for batch in loader], flush=True)

if __name__ == "__main__":
    process = mp.get_context({start!r}).Process(target=work, args=(1, DataLoader(range(4), batch_size=2)))
    process.start()
    process.join()
    raise SystemExit(process.exitcode)
"""
    lines, figures, report = under_run(tmp_path, script, *way)
    assert lines == ["1 [[0, 1], [2, 3]]"]
    if start == "spawn":
        assert [loader["batches"] for child in figures["children"] for loader in child["loaders"]] == [2]
        assert "1 process that the script started used" in report


LAUNCHER = """
import os, subprocess, sys
if "RANK" in os.environ:
    from torch.utils.data import DataLoader
    loader = DataLoader(range(8), batch_size=4, num_workers=int(sys.argv[1]))
    kind = DataLoader.__mro__[1].__module__
    print("rank", os.environ["RANK"], kind, [batch.tolist() for batch in loader], flush=True)
else:
    for rank in range(2):
        subprocess.run([sys.executable, *sys.argv], env={**os.environ, "RANK": str(rank)}, check=True)
"""


@both_ways
@pytest.mark.thorough
def test_the_ranks_of_a_launcher_get_the_same_loader_and_report(way: list[str], tmp_path: Path) -> None:
    path = tmp_path / "launch.py"
    path.write_text(LAUNCHER)
    command = ["-m", "headrace", "run", "--json", "figures.json", *way, path, "1"]
    environment = {**os.environ, "COLUMNS": "120", "NO_COLOR": "1"}
    result = programs.run(command, cwd=tmp_path, env=environment)
    assert result.returncode == 0, result.stderr
    module, kind = ("torch.utils.data.dataloader", "torch") if way else ("headrace.loader.dataloader", "headrace")
    batches = "[[0, 1, 2, 3], [4, 5, 6, 7]]"
    assert result.stdout.splitlines() == [f"rank {rank} {module} {batches}" for rank in range(2)]
    figures = json.loads((tmp_path / "figures.json").read_text())
    assert [child["rank"] for child in figures["children"]] == [0, 1]
    assert [child["loaders"][0]["kind"] for child in figures["children"]] == [kind, kind]
    assert f"2 processes that the script started used {kind}'s loader too: rank 0, rank 1." in result.stderr
    assert "rank 1: launch.py:5" in result.stderr


@pytest.mark.thorough
def test_the_environment_of_the_script_s_parent_is_untouched_and_other_sitecustomize_modules_run(
    tmp_path: Path,
) -> None:
    own = tmp_path / "own"
    own.mkdir()
    (own / "sitecustomize.py").write_text("import builtins\nbuiltins.customised = True\n")
    script = """
import subprocess, sys
print(subprocess.run([sys.executable, "-c", "print(customised)"], capture_output=True, text=True).stdout.strip())
"""
    path = tmp_path / "train.py"
    path.write_text(script)
    environment = {**os.environ, "PYTHONPATH": str(own)}
    result = programs.run(["-m", "headrace", "run", path], env=environment, fresh=True)
    assert result.stdout == "True\n", result.stderr


FRAMEWORK = """
from torch.utils.data import DataLoader

def fit(loader):
    again = DataLoader(loader.dataset, batch_size=1)
    return [batch.tolist() for batch in again]

def make(dataset):
    return DataLoader(dataset, batch_size=2)
"""


@both_ways
@pytest.mark.quick(way=[[]])
def test_labels_name_the_user_s_line_also_where_a_framework_makes_the_loader(
    way: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The framework lies where installed packages lie: in a folder that is named so."""
    package = tmp_path / "dist-packages" / "framework.py"
    package.parent.mkdir()
    package.write_text(FRAMEWORK)
    monkeypatch.setenv("PYTHONPATH", str(package.parent))
    script = """
import framework
from torch.utils.data import DataLoader
first = DataLoader(range(2))
second = DataLoader([5, 6])
print(framework.fit(first), framework.fit(second))
for batch in framework.make([7, 8, 9]): pass
for batch in second: pass
"""
    lines, figures, _ = under_run(tmp_path, script, *way)
    assert lines == ["[[0], [1]] [[5], [6]]"]
    used = {loader["label"]: loader["batches"] for loader in figures["loaders"] if loader["epochs"]}
    assert used == {"train.py:4": 2, "train.py:5": 2, "train.py:7": 2, "train.py:5 (built anew)": 2}
