"""In a real kernel of Jupyter: an interrupted cell leaves no worker, and its classes work or say why not."""

from __future__ import annotations

import os
import select
from collections.abc import Iterator

import pytest

from tests.notebooks.kernels import Kernel, kernel

pytestmark = pytest.mark.timeout(180)

NUMBERS = """
import os

import torch


class Numbers(torch.utils.data.Dataset):
    def __len__(self):
        return 100_000

    def __getitem__(self, index):
        return index, os.getpid()
"""
"""Each sample says in which process it was loaded."""


@pytest.fixture(scope="module")
def notebook(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Kernel]:
    """A kernel beside a module that has the same dataset as the notebook itself."""
    # Files of sockets have short names.
    folder = tmp_path_factory.mktemp("nb")
    (folder / "numbers_in_a_file.py").write_text(NUMBERS)
    with kernel(folder) as started:
        assert started.run(f"import headrace, numbers_in_a_file\n{NUMBERS}").error == ""
        yield started


def end_of(pids: set[int], seconds: float) -> set[int]:
    """Waits until processes have ended. Returns those that have not."""
    left = set()
    for pid in pids:
        try:
            process = os.pidfd_open(pid)
        except ProcessLookupError:
            continue
        # A process that has ended is readable also while its parent has not asked for its status.
        if not select.select([process], [], [], seconds)[0]:
            left.add(pid)
        os.close(process)
    return left


@pytest.mark.parametrize("persistent", [False, True])
@pytest.mark.parametrize(("method", "dataset"), [("fork", "Numbers"), ("spawn", "numbers_in_a_file.Numbers")])
def test_an_interrupted_cell_leaves_no_worker_and_the_loader_goes_on(
    notebook: Kernel, method: str, dataset: str, persistent: bool
) -> None:
    looped = notebook.run(
        f"""
loader = headrace.DataLoader(
    {dataset}(), 4, num_workers=2, multiprocessing_context={method!r}, persistent_workers={persistent}, seed=0
)
loaded_in = set()
for number, (batch, pids) in enumerate(loader):
    loaded_in |= {{*pids.tolist()}}
    if number == 3:
        state = loader.state_dict()
        print(*loaded_in)
        print("looping")  # without flush=True: the interrupt would come while the kernel waits for its own output
""",
        interrupt_at="looping",
    )
    workers = {int(pid) for pid in looped.printed.partition("\n")[0].split()}
    assert looped.error.startswith("KeyboardInterrupt"), looped
    assert workers and notebook.pid not in workers, looped
    assert end_of(workers, seconds=30) == set()

    gone_on = notebook.run("loader.load_state_dict(state)\nprint(next(iter(loader))[0].tolist())")
    assert (gone_on.printed, gone_on.error) == ("[16, 17, 18, 19]\n", "")


@pytest.mark.thorough
def test_a_class_of_the_notebook_under_spawn_gets_the_fix(notebook: Kernel) -> None:
    shown = notebook.run(
        "next(iter(headrace.DataLoader(Numbers(), 4, num_workers=1, multiprocessing_context='spawn')))"
    )
    assert shown.error.startswith("UsageError: workers cannot get a class or function of this program")
    assert "place:    __main__.Numbers" in shown.error
    assert "found:    a definition in a notebook" in shown.error
    assert "fix:      put it into a module file" in shown.error


def test_a_report_names_the_cell_and_is_shown_as_html(notebook: Kernel) -> None:
    shown = notebook.run("""# The loader is made in the second line.
of_a_cell = headrace.DataLoader(range(8), 4)
for batch in of_a_cell:
    pass
of_a_cell.report()
""")
    (html,) = shown.results
    assert f"<h2>In[{shown.number}]:2</h2>" in html
