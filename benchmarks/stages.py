"""Steps made once or at each access: swipe trajectories, torch and headrace, in one run.

    python benchmarks/stages.py                                   all sections, 1,000,000 trajectories
    python benchmarks/stages.py rates --trajectories 100000       some of: rates memory cuts
    python benchmarks/stages.py --json FILE

rates   medians of rounds in which all contestants take turns: everything stored, everything made at each access
memory  the processes of an epoch with 4 workers, in a process of their own each: how it grows
cuts    everything per access, either half stored, everything stored; 0 and 4 workers: build, open, epoch, memory

All read the same mapped trajectories, in the same random order, in batches of 320, one thread a process. What they
deliver is compared with the features it should be, value by value; noise may move coordinates by its strength. Data lie
in the page cache. Torch's samples are padded in NumPy, which is quicker than its own `pad_sequence`. "By hand" is a
dataset with `__getitems__` that makes whole batches by the same batched steps.
"""

from __future__ import annotations

import argparse
import functools
import json
import select
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
import warnings
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import torch

import headrace
import results
import trajectory_loaders as swipes
from rates import all_in_turn, exhaust, show_rates

ROOMY = 2000 * swipes.BATCH
"""Samples of the epoch that is talked of: 2,000 batches."""

CHECKED = "Every value of every batch was compared with what it should be."

RATES = {
    "everything stored": {
        "torch": "torch, all stored",
        "torch, pad_sequence": "torch, all stored, pad_sequence",
        "torch, whole batches by hand": "torch, all stored, by hand",
        "headrace": "headrace, all stored",
        "bare copy and pad": "bare copy and pad",
    },
    "everything at each access": {
        "torch": "torch, per access, one by one",
        "torch, pad_sequence": "torch, per access, one by one, pad_sequence",
        "torch, whole batches by hand": "torch, per access, by hand",
        "headrace": "headrace, per access, batched",
        "headrace, the functions that torch has": "headrace, per access, one by one",
        "bare loop, the batched steps": "bare loop, per access",
    },
}
"""Lines of the table, contenders, and what they are called when they take turns."""

# -- rates -------------------------------------------------------------------------------------------------------------


def rates(folder: Path, given: argparse.Namespace) -> list[results.Table]:
    """Prints and returns rates without workers, and how long opening the cache takes."""
    source, ready_path = swipes.prepare(folder, given.trajectories)
    ready, raw = swipes.mapped(ready_path), swipes.mapped(source)
    cache = str(folder / "rates-cache")
    begun = time.perf_counter()
    data = {
        "headrace, all stored": swipes.staged(source, "all stored", cache, noise=False),
        "headrace, per access, batched": swipes.staged(source, "all per access", None),
        "headrace, per access, one by one": swipes.staged(source, "all per access", None, batched=False),
        "torch, all stored": swipes.Flat(ready, ()),
        "torch, all stored, by hand": swipes.ByHand(ready, ()),
        "torch, per access, by hand": swipes.ByHand(raw, [*swipes.features.IN_BLOCKS, swipes.noise_by_hand()]),
        "torch, all stored, pad_sequence": swipes.Flat(ready, ()),
        "torch, per access, one by one": swipes.Flat(raw, swipes.one_by_one((0, 1, 2), noise=True)),
        "torch, per access, one by one, pad_sequence": swipes.Flat(raw, swipes.one_by_one((0, 1, 2), noise=True)),
    }
    data["headrace, all stored"][0]
    built = time.perf_counter() - begun
    count = given.trajectories
    loops: dict[str, Any] = {}
    for name, dataset in data.items():
        slow = "one by one" in name
        some = min(given.batches // (4 if slow else 1), count // swipes.BATCH) * swipes.BATCH
        keys = swipes.shuffled(count, some, len(loops))
        swipes.check(loader_of(name, dataset, keys), keys, ready, noisy="per access" in name)
        loops[name] = functools.partial(once, name, dataset, keys)
        if name == "torch, all stored":
            loops["bare copy and pad"] = functools.partial(bare, swipes.bare, ready, keys)
        if name == "headrace, per access, batched":
            loops["bare loop, per access"] = functools.partial(bare, swipes.bare_steps, raw, keys)
    got = all_in_turn(loops, 1.0, given.rounds)
    pairs = [
        ("headrace, all stored", "torch, all stored"),
        ("headrace, all stored", "torch, all stored, by hand"),
        ("headrace, all stored", "bare copy and pad"),
        ("headrace, per access, batched", "torch, per access, one by one"),
        ("headrace, per access, batched", "torch, per access, by hand"),
        ("headrace, per access, batched", "bare loop, per access"),
        ("headrace, per access, one by one", "torch, per access, one by one"),
        ("headrace, per access, one by one", "torch, per access, one by one, pad_sequence"),
    ]
    title = f"{count:,} trajectories, shuffled, batches of {swipes.BATCH}, 0 workers"
    show_rates(title, "samples/s", got, pairs)
    opened = statistics.median(opening(source, cache) for _ in range(9)) * 1e3
    note = f"building the cache: {built:.1f} s; opening it: {opened:.1f} ms"
    print(f"  {note}")
    rows = [results.Row(title, {to: got[name] for to, name in names.items()}) for title, names in RATES.items()]
    return [results.Table(title, "samples/s", rows, CHECKED, notes=[f"{note[0].upper()}{note[1:]}."])]


def loader_of(name: str, dataset: Any, keys: Any, workers: int = 0) -> Any:
    """Returns the loader that a contestant's name speaks of."""
    if name.startswith("headrace"):
        return headrace.DataLoader(dataset, swipes.BATCH, sampler=keys.tolist(), num_workers=workers)
    pad = swipes.collate.pad_tensors if "pad_sequence" in name else swipes.collate.pad_arrays
    if name.endswith("by hand"):
        pad = as_it_is
    return swipes.torch_loader(dataset, workers, pad, sampler=keys.tolist())


def as_it_is(batch: Any) -> Any:
    """Collates what is a batch already."""
    return batch


def once(name: str, dataset: Any, keys: Any) -> float:
    """Goes through an epoch of these keys. Returns how many they are."""
    exhaust(loader_of(name, dataset, keys))
    return float(len(keys))


def bare(loop: Callable[..., None], columns: swipes.Columns, keys: Any) -> float:
    """A bare loop over these keys."""
    loop(columns, keys)
    return float(len(keys))


def opening(source: str, cache: str) -> float:
    """Returns the seconds that it takes to open a cache that is there, and to get a sample of it."""
    begun = time.perf_counter()
    swipes.staged(source, "all stored", cache, noise=False)[0]
    return time.perf_counter() - begun


# -- one epoch in a process of its own ---------------------------------------------------------------------------------


def child(task: dict[str, Any]) -> None:
    """Builds, opens and goes through an epoch; says when memory should have settled, and the times."""
    torch.set_num_threads(1)
    warnings.filterwarnings("ignore", message="This DataLoader will create 4 worker processes")
    begun = time.perf_counter()
    if task["build"]:
        made = build(task)
        if len(made):
            made[0]
        print(json.dumps({"build_s": time.perf_counter() - begun}), flush=True)
        return
    dataset = contestant(task)
    dataset[0]
    opened = time.perf_counter()
    keys = swipes.shuffled(len(dataset), task["batches"] * swipes.BATCH, 0)
    settled = max(len(keys) // swipes.BATCH // 20, 1)
    if task["check"]:
        some = keys[: 20 * swipes.BATCH]
        ready = swipes.mapped(task["ready"])
        swipes.check(loader_of(task["name"], dataset, some), some, ready, noisy=task["noise"])
    epoch = time.perf_counter()
    for number, _ in enumerate(loader_of(task["name"], dataset, keys, task["workers"])):
        if number == settled:
            print(json.dumps({"settled": False}), flush=True)
    done = time.perf_counter()
    print(json.dumps({"open_s": opened - begun, "rate": len(keys) / (done - epoch)}), flush=True)


def build(task: dict[str, Any]) -> Any:
    """Makes what the contestant stores, and returns something to look into."""
    cache, cut = Path(task["cache"]), task["cut"]
    if task["name"].startswith("headrace"):
        return swipes.staged(task["source"], cut, str(cache), noise=task["noise"])
    if task["name"] == "torch, list of tuples":
        return swipes.write_list(task["ready"], cache) or ()
    if swipes.CUTS[cut][0]:
        swipes.build_flat(swipes.mapped(task["source"]), swipes.one_by_one(swipes.CUTS[cut][0]), cache)
    return ()


def contestant(task: dict[str, Any]) -> Any:
    """Opens what the contestant loads from."""
    name, cache, cut = task["name"], task["cache"], task["cut"]
    if name == "torch, list of tuples":
        return swipes.Listed(Path(cache))
    if name == "headrace, in memory":
        return swipes.staged(task["source"], cut, "memory", noise=task["noise"])
    if name.startswith("headrace"):
        return swipes.staged(task["source"], cut, cache, noise=task["noise"])
    if name == "torch, flat arrays":
        return swipes.Flat(swipes.mapped(task["ready"]), ())
    stored, access = swipes.CUTS[cut]
    columns = swipes.open_flat(Path(cache)) if stored else swipes.mapped(task["source"])
    return swipes.Flat(columns, swipes.one_by_one(access, noise=task["noise"]))


def watched(task: dict[str, Any]) -> dict[str, Any]:
    """Runs `child` in a new process, and watches the memory of all its processes: at the time when it should have
    settled, and the most from then on (in a build: at all), in MB. "kept" is without pages of mapped files.
    """
    command = [sys.executable, __file__, "--child", json.dumps(task)]
    seen: list[tuple[int, int]] = []
    result: dict[str, Any] = {}
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        while True:
            readable, _, _ = select.select([process.stdout], [], [], 0.25)
            line = process.stdout.readline() if readable else ""  # type: ignore[union-attr]
            if readable and not line:
                break
            result |= json.loads(line) if line else {}
            if "settled" in result and len(seen) and not result["settled"]:
                seen.clear()
                result["settled"] = True
            if "rate" not in result and "build_s" not in result:
                seen.append(swipes.footprint(process.pid))
    if process.returncode or not seen:
        raise SystemExit(f"{task['name']} failed")
    for place, name in ((0, ""), (1, "_kept")):
        start, peak = seen[0][place], max(one[place] for one in seen)
        result |= {f"start{name}_mb": start / 1e6, f"peak{name}_mb": peak / 1e6, f"growth{name}": peak / start - 1}
    return result


# -- memory ------------------------------------------------------------------------------------------------------------


def memory(folder: Path, given: argparse.Namespace) -> list[results.Table]:
    """Prints and returns how the memory of all processes grows within an epoch of 2,000 batches with 4 workers."""
    source, ready = swipes.prepare(folder, given.trajectories)
    batches = min(2000, given.trajectories // swipes.BATCH)
    found = {}
    print(f"\n{given.trajectories:,} trajectories, all stored, an epoch of {batches:,} batches, 4 workers")
    print(
        "  MB of all processes, shared pages once: after a 20th of the epoch, at most, growth; then without the pages"
    )
    print("  of mapped files, which the machine can take back at any time")
    for name in ("torch, list of tuples", "torch, flat arrays", "headrace, in memory", "headrace, mapped"):
        cache = folder / name.replace(", ", "-").replace(" ", "-")
        task = {"name": name, "cut": "all stored", "cache": str(cache), "source": source, "ready": ready}
        task |= {"workers": 4, "batches": batches, "noise": False, "check": True}
        if name in ("torch, list of tuples", "headrace, mapped"):
            found[f"{name}, building"] = watched(task | {"build": True})
        found[name] = got = watched(task | {"build": False})
        sizes = f"{got['start_mb']:>8,.0f} {got['peak_mb']:>8,.0f} {got['growth']:>+8.1%}"
        kept = f"{got['start_kept_mb']:>8,.0f} {got['peak_kept_mb']:>8,.0f} {got['growth_kept']:>+8.1%}"
        print(f"  {name:<24} {sizes}  | {kept}  | open {got['open_s']:.2f} s, {got['rate']:,.0f} samples/s", flush=True)
        shutil.rmtree(cache, ignore_errors=True) if cache.is_dir() else cache.unlink(missing_ok=True)
    words = f"{given.trajectories:,} trajectories stored, memory of an epoch of {batches:,} batches, 4 workers"
    contenders = {name.replace("headrace, mapped", "headrace"): name for name in found if "building" not in name}
    tables = []
    for kept, ending in (("", ""), ("_kept", ", without pages of mapped files")):
        rows = [
            results.Row(when, {to: [found[name][f"{key}{kept}_mb"]] for to, name in contenders.items()})
            for key, when in (("start", "after a 20th of the epoch"), ("peak", "at most from then on"))
        ]
        growth = ", ".join(f"{to} {found[name][f'growth{kept}']:+.1%}" for to, name in contenders.items())
        tables.append(
            results.Table(f"{words}{ending}", "MB", rows, "", "less", "torch, flat arrays", [f"Growth: {growth}."])
        )
    return tables


# -- cuts --------------------------------------------------------------------------------------------------------------


def cuts(folder: Path, given: argparse.Namespace) -> list[results.Table]:
    """Prints and returns the four cuts with 0 and 4 workers."""
    count = min(given.trajectories, given.cut_trajectories)
    source, ready = swipes.prepare(folder, count)
    found = []
    print(f"\nfour cuts of: normalise, derivatives, tokens, noise; {count:,} trajectories, batches of {swipes.BATCH}")
    heads = ("", "", "workers", "build s", "open ms", "samples/s", "2,000 batches", "peak MB", "growth")
    print(row(heads))
    for cut, (stored, _) in swipes.CUTS.items():
        for name in ("torch", "headrace"):
            cache = folder / f"{name}-{cut.replace(' ', '-')}"
            for workers in (0, 4):
                task = {"name": name, "cut": cut, "cache": str(cache), "source": source, "ready": ready}
                task |= {"workers": workers, "batches": min(given.batches, count // swipes.BATCH)}
                built = watched(task | {"noise": True, "build": True}) if stored and workers == 0 else {}
                got = watched(task | {"noise": True, "check": workers == 0, "build": False})
                found.append({"cut": cut, "name": name, "workers": workers, "building": built} | got)
                minutes, seconds = divmod(round(ROOMY / got["rate"]), 60)
                took = f"{built['build_s']:.1f}" if built else ""
                figures = f"{got['open_s'] * 1e3:.1f}", f"{got['rate']:,.0f}", f"{minutes}:{seconds:02}"
                sizes = f"{got['peak_kept_mb']:,.0f}", f"{got['growth_kept']:+.1%}"
                print(row((cut, name, str(workers), took, *figures, *sizes)), flush=True)
            shutil.rmtree(cache, ignore_errors=True)
    lines: dict[str, results.Row] = {}
    for one in found:
        title = f"{one['cut']}, {one['workers']} workers"
        lines.setdefault(title, results.Row(title, {})).figures[one["name"]] = [one["rate"]]
    title = f"four cuts of: normalise, derivatives, tokens, noise; {count:,} trajectories"
    return [results.Table(title, "samples/s", list(lines.values()), CHECKED)]


def row(cells: tuple[str, ...]) -> str:
    """Returns a line of the table of cuts."""
    widths = (20, 9, 8, 9, 9, 11, 14, 9, 9)
    pairs = list(zip(cells, widths, strict=True))
    return "  " + "".join([*(f"{cell:<{width}}" for cell, width in pairs[:2]), *(f"{c:>{w}}" for c, w in pairs[2:])])


SECTIONS = {"rates": rates, "memory": memory, "cuts": cuts}


def main(arguments: Iterable[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("sections", nargs="*", choices=[[], *SECTIONS], help="which; otherwise all")
    parser.add_argument("--trajectories", type=int, default=1_000_000)
    parser.add_argument("--cut-trajectories", type=int, default=100_000, help="of the section cuts, at most")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--batches", type=int, default=300, help="of each timed epoch; a quarter where steps are slow")
    results.option(parser)
    parser.add_argument("--child", type=json.loads, help=argparse.SUPPRESS)
    given = parser.parse_args(arguments)
    if given.child:
        child(given.child)
        return
    torch.set_num_threads(1)
    warnings.filterwarnings("ignore", message="The given NumPy array is not writable")
    tables = []
    with tempfile.TemporaryDirectory() as folder:
        begun = time.perf_counter()
        swipes.prepare(Path(folder), given.trajectories)
        print(f"{given.trajectories:,} trajectories made in {time.perf_counter() - begun:.0f} s")
        for name in given.sections or SECTIONS:
            tables += SECTIONS[name](Path(folder), given)
    results.write(given.json, tables)


if __name__ == "__main__":
    main()
