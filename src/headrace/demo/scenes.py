"""The scenes of `headrace demo`, in their order."""

from __future__ import annotations

import importlib
import json
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.text import Text

from headrace.demo.scene import Scene, SceneResult
from headrace.telemetry.terminal import Terminal

SCENES = ("resume", "faults", "seed", "spawn", "stored", "photos", "findings")
"""Modules of this folder; each has a `SCENE`."""

NEXT = """Your script:
  headrace run train.py       what it waits for, and what to change first
  headrace compare train.py   with torch's loader and with headrace's, in turn
"""


def play(names: Sequence[str], json_file: Path | None = None) -> None:
    """Runs the scenes of these names, all of them for none, and prints what they showed.

    json_file: where facts and figures go, too.
    """
    console = Terminal()
    told: dict[str, Any] = {}
    began = time.perf_counter()
    for number, name in enumerate(names or SCENES, 1):
        scene: Scene = importlib.import_module(f"headrace.demo.{name}").SCENE
        started = time.perf_counter()
        with console.status(f"{number} {scene.title} ...", spinner="line"):
            shown = scene.show()
        seconds = time.perf_counter() - started
        _print(console, number, scene, shown, seconds)
        told[name] = {"facts": shown.facts, "figures": shown.figures, "seconds": seconds}

    if len(told) > 1:
        console.print(f"All of this took {time.perf_counter() - began:.0f} s.", highlight=False)
    console.print(NEXT, end="", highlight=False, markup=False)
    if json_file is not None:
        json_file.write_text(json.dumps(told, indent=2) + "\n")


def _print(console: Console, number: int, scene: Scene, shown: SceneResult, seconds: float) -> None:
    console.print(Text(f"{number} {scene.title}", "bold"), soft_wrap=True)
    width = max(len(line.party) for line in shown.lines)
    for line in shown.lines:
        style = ""
        if line.party.startswith("headrace"):
            style = "green"
        words = line.words.replace("\n", "\n" + " " * (width + 4))
        console.print(Text(f"  {line.party:<{width}}  {words}", style), soft_wrap=True)
    console.print(Text(f"  headrace demo {scene.name}: {seconds:.0f} s\n", "dim"))
