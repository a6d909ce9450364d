"""Ranks of a process group get the same weights, whenever each of them comes to a window."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch.distributed

from tests.samplers.makers import dealt

ROOT = Path(__file__).parents[2]


@pytest.mark.thorough
@pytest.mark.skipif(not torch.distributed.is_gloo_available(), reason="needs gloo")
def test_a_file_that_changes_between_two_ranks_leaves_them_in_step(tmp_path: Path) -> None:
    path = tmp_path / "weights.json"
    path.write_text("[1, 0]")
    ranks = [
        subprocess.Popen(
            [
                sys.executable,
                "-W",
                "error",
                "-m",
                "tests.samplers.weights_program",
                str(rank),
                tmp_path / "store",
                path,
            ],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            cwd=ROOT,
            env={**os.environ, "GLOO_SOCKET_IFNAME": "lo"},
        )
        for rank in range(2)
    ]
    said = [process.communicate(timeout=120) for process in ranks]
    assert [process.returncode for process in ranks] == [0, 0], said
    first, second = (json.loads(out.splitlines()[-1]) for out, _ in said)
    keys = dealt([first["keys"], second["keys"]])
    assert all(key < 500 for key in keys[:300])
    assert all(key >= 500 for key in keys[300:])
    assert first["state"] == second["state"]
