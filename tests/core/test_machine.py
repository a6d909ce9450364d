"""How many cores and ranks there are is told by affinity, cgroups and launchers."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from headrace.core.process import machine
from headrace.core.process.machine import cores
from headrace.core.world import local_world_size


@pytest.fixture
def groups(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder that stands for the cgroups' own."""
    real = Path
    monkeypatch.setattr(machine, "Path", lambda path: tmp_path / real(path).relative_to("/sys/fs/cgroup"))
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: set(range(8)), raising=False)
    machine._quota.cache_clear()
    yield tmp_path
    machine._quota.cache_clear()


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("max 100000\n", 8), ("200000 100000\n", 2), ("150000 100000\n", 2), ("50000 100000\n", 1),
        ("9900000 100000\n", 8), ("100000 0\n", 8), ("nonsense\n", 8), ("", 8),
    ],
)  # fmt: skip
def test_a_control_group_limits_the_cores(groups: Path, text: str, expected: int) -> None:
    (groups / "cpu.max").write_text(text)
    assert cores() == expected


@pytest.mark.parametrize(("quota", "expected"), [("-1", 8), ("300000", 3), ("1000", 1)])
def test_a_control_group_of_the_first_version_limits_the_cores(groups: Path, quota: str, expected: int) -> None:
    (groups / "cpu").mkdir()
    (groups / "cpu" / "cpu.cfs_quota_us").write_text(quota + "\n")
    (groups / "cpu" / "cpu.cfs_period_us").write_text("100000\n")
    assert cores() == expected


def test_without_control_groups_there_are_those_of_the_affinity(groups: Path) -> None:
    assert cores() == 8


@pytest.mark.skipif(not hasattr(os, "sched_setaffinity"), reason="has no affinity")
def test_affinity_counts_from_one_moment_to_the_next() -> None:
    own = os.sched_getaffinity(0)
    try:
        os.sched_setaffinity(0, {min(own)})
        assert cores() == 1
    finally:
        os.sched_setaffinity(0, own)


@pytest.mark.parametrize(
    ("environment", "expected"),
    [
        ({}, 1),
        ({"LOCAL_WORLD_SIZE": "8"}, 8),
        ({"SLURM_NTASKS_PER_NODE": "4"}, 4),
        ({"OMPI_COMM_WORLD_LOCAL_SIZE": "2"}, 2),
        ({"LOCAL_WORLD_SIZE": "0"}, 1),
        ({"LOCAL_WORLD_SIZE": ""}, 1),
        ({"SLURM_NTASKS_PER_NODE": "4(x2)", "OMPI_COMM_WORLD_LOCAL_SIZE": "2"}, 2),
        ({"LOCAL_WORLD_SIZE": "8", "SLURM_NTASKS_PER_NODE": "1"}, 8),
    ],
)
def test_ranks_of_this_machine_are_told_by_the_launcher(
    environment: dict[str, str], expected: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("LOCAL_WORLD_SIZE", "SLURM_NTASKS_PER_NODE", "OMPI_COMM_WORLD_LOCAL_SIZE"):
        monkeypatch.delenv(name, raising=False)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    assert local_world_size() == expected
