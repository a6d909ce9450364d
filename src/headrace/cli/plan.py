"""`headrace doctor --plan`: where the cut of a pipeline should be, predicted or measured."""

from __future__ import annotations

import importlib
import importlib.util
import inspect
import json
import sys
from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path
from types import ModuleType
from typing import Any, Literal

from rich.box import SIMPLE_HEAD
from rich.filesize import decimal
from rich.table import Table

from headrace.core.errors import UsageError
from headrace.data.staged.planning import CutPlan
from headrace.data.staged.staged import Staged, unbuilt
from headrace.measure.bench.cuts import MeasuredCut, measure_cuts
from headrace.telemetry.formatting import seconds
from headrace.telemetry.progress import stages_bar
from headrace.telemetry.terminal import Terminal

EXPECTED = (
    "SCRIPT.py:NAME or MODULE:NAME, where NAME is a headrace.Staged, or a function without arguments that returns one"
)


def run_plan(
    target: str, *, batch_size: int, epochs: int, measured: bool, workers: Sequence[int], batches: int | None,
    json_output: bool,
) -> int:  # fmt: skip
    """Plans, prints to standard output, and returns the exit status. Raises `HeadraceError`."""
    staged = staged_at(target)
    plan = staged.plan(batch_size=batch_size, epochs=epochs)
    cuts: list[MeasuredCut] = []
    if measured:
        with stages_bar("measuring") as report:
            cuts = measure_cuts(staged, batch_size=batch_size, workers=workers, batches=batches, report=report)

    console = Terminal()
    if json_output:
        figures: dict[str, Any] = plan.to_json()
        if measured:
            figures = figures | {"measured": list(map(asdict, cuts))}

        console.out(json.dumps(figures, indent=2), highlight=False)
        return 0

    plan.show(console)
    if measured:
        console.print(_table(plan, cuts, workers))
    return 0


def staged_at(target: str) -> Staged:
    """Returns the dataset that a script or module defines, its cache left alone. Raises `UsageError`."""
    where, _, name = target.rpartition(":")
    if not where or not name:
        raise UsageError.about("this names no dataset", place="--plan", found=repr(target), expected=EXPECTED)

    # While the script runs, a `.cache()` in it must not build: that may take hours, and the plan says whether to.
    token = unbuilt.set(True)
    try:
        if where.endswith(".py"):
            module = _script(Path(where))
        else:
            module = _module(where)

        found = module
        for part in name.split("."):
            if not hasattr(found, part):
                raise _no_such_name(module, where, part)
            found = getattr(found, part)

        if callable(found) and not isinstance(found, Staged):
            found = _called(found, target)
    finally:
        unbuilt.reset(token)

    if not isinstance(found, Staged):
        raise UsageError.about("this is no staged dataset", place=target, found=type(found).__name__, expected=EXPECTED)

    return found


def _no_such_name(module: ModuleType, where: str, name: str) -> UsageError:
    """Returns the error for a name that a module does not have; it names the datasets that are there."""
    datasets = []
    for other, value in vars(module).items():
        if isinstance(value, Staged):
            datasets.append(other)

    fix = None
    if datasets:
        fix = f"there is {', '.join(datasets)}"
    return UsageError.about("this names no dataset", place=where, found=f"no {name!r}", expected=EXPECTED, fix=fix)


def _called(function: Callable[..., object], target: str) -> object:
    # Bound first: a TypeError of the call itself may come from the function's own body, and is the user's to see.
    try:
        inspect.signature(function).bind()
    except (TypeError, ValueError) as error:
        found_text = f"a function that wants more: {error}"
        raise UsageError.about(
            "this is no staged dataset", place=target, found=found_text, expected=EXPECTED
        ) from error

    return function()


def _module(name: str) -> Any:
    sys.path.insert(0, str(Path.cwd()))
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        raise UsageError.about("there is no such module", place=name, found=str(error), expected=EXPECTED) from error


def _script(path: Path) -> Any:
    """Runs a script as a module of its name, so that what stands behind `if __name__ == "__main__"` does not run."""
    if not path.is_file():
        raise UsageError.about("there is no such script", place=path, found="nothing", expected=EXPECTED)

    # As `python SCRIPT.py` does: modules beside the script can be imported.
    sys.path.insert(0, str(path.resolve().parent))
    specification = importlib.util.spec_from_file_location(path.stem, path)
    if specification is None or specification.loader is None:
        raise UsageError.about("this is no script", place=path, expected=EXPECTED)

    # Entered before it runs: dataclasses look their module up there, and worker processes that are spawned import it.
    module = importlib.util.module_from_spec(specification)
    sys.modules[path.stem] = module
    specification.loader.exec_module(module)
    return module


def _table(plan: CutPlan, cuts: list[MeasuredCut], workers: Sequence[int]) -> Table:
    table = Table(box=SIMPLE_HEAD, title="Measured", title_justify="left")
    heads = ["cache after", "build", "open", "on disk"]
    for number in workers:
        heads += [f"epoch, {number} workers", "peak memory"]

    for head in heads:
        side: Literal["left", "right"] = "right"
        if head == "cache after":
            side = "left"

        table.add_column(head, justify=side)

    for cut in cuts:
        if cut.cut:
            name = f"{cut.cut} {plan.steps[cut.cut].name}"
        else:
            name = "nothing kept"

        if cut.refused is not None:
            table.add_row(name, *["-"] * (len(heads) - 2), "not possible")
            continue

        if cut.cut:
            row = [seconds(cut.build), seconds(cut.load), decimal(cut.bytes)]
        else:
            row = ["-", "-", "-"]

        for epoch in cut.epochs:
            row += [seconds(epoch.scaled(plan.samples)), decimal(epoch.bytes)]
        table.add_row(name, *row)

    return table
