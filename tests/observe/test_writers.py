"""What the writers write is read back by the libraries whose formats these are."""

from __future__ import annotations

import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest
from prometheus_client.openmetrics.parser import text_string_to_metric_families
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from torch.utils.tensorboard import SummaryWriter

from headrace.core.errors import MissingExtraError, UsageError
from headrace.observe.stats import LoaderStats, StageStats, WorkerStats
from headrace.observe.writers import OpenMetricsWriter, TensorBoardWriter
from headrace.telemetry.live_reads import LiveReads
from headrace.telemetry.recording import MAIN


def stats(label: str = "train.py:31", batches: int = 100, **more: Any) -> LoaderStats:
    return LoaderStats(
        label,
        epochs=2,
        batches=batches,
        samples=6400,
        bytes=1 << 20,
        looped=40.0,
        waited=10.0,
        stages={"load": StageStats(8.0, 0.08, 0.07, 0.125, 0.5), "pin": StageStats()},
        workers=(WorkerStats(MAIN, 10, 0.25, 0.1), WorkerStats(3, 90, 0.75, 0.5)),
        bad_samples=4,
        restarts=1,
        **more,
    )


# -- TensorBoard -------------------------------------------------------------------------------------------------------


def scalars(folder: Path) -> dict[str, list[tuple[int, float]]]:
    read = EventAccumulator(str(folder)).Reload()
    return {tag: [(event.step, event.value) for event in read.Scalars(tag)] for tag in read.Tags()["scalars"]}


def test_scalars_are_read_back_with_the_batches_for_steps(tmp_path: Path) -> None:
    writer = TensorBoardWriter(tmp_path / "logs")
    assert not (tmp_path / "logs").exists()
    writer(stats())
    writer(stats(batches=150, memory_main=5000, memory_workers=7000, first_batch=1.5))
    found = scalars(tmp_path / "logs")  # before it is closed: each call reaches the disk
    writer.close()
    name = "headrace/train.py:31"
    assert found[f"{name}/wait_share"] == [(100, 0.25), (150, 0.25)]
    assert found[f"{name}/samples_per_second"] == [(100, 160.0), (150, 160.0)]
    assert found[f"{name}/load_seconds/p95"] == [(100, 0.125), (150, 0.125)]
    assert found[f"{name}/busy/3"] == [(100, 0.75), (150, 0.75)]
    assert found[f"{name}/busy/main"] == [(100, 0.25), (150, 0.25)]
    assert found[f"{name}/first_batch_seconds"] == [(150, 1.5)]
    assert found[f"{name}/memory_bytes/workers"] == [(150, 7000.0)]
    assert found[f"{name}/restarts"] == [(100, 1.0), (150, 1.0)]
    assert not [tag for tag in found if "pin" in tag]


def test_a_summary_writer_of_the_user_stays_open(tmp_path: Path) -> None:
    with SummaryWriter(str(tmp_path)) as theirs:
        writer = TensorBoardWriter(theirs, prefix="data/")
        writer(stats())
        writer.close()
        theirs.add_scalar("loss", 0.5, 100)
    found = scalars(tmp_path)
    assert len(list(tmp_path.iterdir())) == 1  # once closed, it would have begun another file
    assert found["loss"] == [(100, 0.5)]
    assert found["data/train.py:31/wait_share"] == [(100, 0.25)]


def test_two_loaders_are_told_apart(tmp_path: Path) -> None:
    writer = TensorBoardWriter(str(tmp_path), prefix="")
    writer(stats("train"))
    writer(stats("validation", 7))
    writer.close()
    found = scalars(tmp_path)
    assert (found["train/epochs"], found["validation/epochs"]) == ([(100, 2.0)], [(7, 2.0)])


# -- OpenMetrics -------------------------------------------------------------------------------------------------------


def families(path: Path) -> dict[str, Any]:
    return {one.name: one for one in text_string_to_metric_families(path.read_text())}


def samples(path: Path) -> dict[tuple[Any, ...], float]:
    found = [sample for family in families(path).values() for sample in family.samples]
    return {(sample.name, *sorted(sample.labels.items())): sample.value for sample in found}


def test_metrics_are_read_back_with_labels(tmp_path: Path) -> None:
    path = tmp_path / "headrace.prom"
    OpenMetricsWriter(path)(stats(memory_main=5000, memory_workers=0, first_batch=1.5))
    found, loader, rank = samples(path), ("loader", "train.py:31"), ("rank", "0")
    assert found["headrace_batches_total", loader, rank] == 100
    assert found["headrace_bytes_total", loader, rank] == 1 << 20
    assert found["headrace_waited_seconds_total", loader, rank] == 10.0
    assert found["headrace_looped_seconds_total", loader, rank] == 40.0
    assert found["headrace_bad_samples_total", loader, rank] == 4
    assert found["headrace_wait_share_ratio", loader, rank] == 0.25
    assert found["headrace_first_batch_seconds", loader, rank] == 1.5
    assert found["headrace_memory_main_bytes", loader, rank] == 5000
    assert found["headrace_memory_workers_bytes", loader, rank] == 0
    assert found["headrace_stage_seconds_total", loader, rank, ("stage", "load")] == 8.0
    assert found["headrace_stage_p95_seconds", loader, rank, ("stage", "load")] == 0.125
    assert found["headrace_worker_busy_ratio", loader, rank, ("worker", "3")] == 0.75
    assert found["headrace_worker_batch_seconds", loader, rank, ("worker", "main")] == 0.1
    assert not [key for key in found if ("stage", "pin") in key]


def test_series_of_ranks_differ(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    series = []
    for rank in ("0", "1"):
        monkeypatch.setenv("RANK", rank)
        monkeypatch.setenv("WORLD_SIZE", "2")
        OpenMetricsWriter(tmp_path / f"{rank}.prom")(stats())
        series.append(set(samples(tmp_path / f"{rank}.prom")))
    assert not series[0] & series[1]
    assert {key[0] for key in series[0]} == {key[0] for key in series[1]}


def test_families_have_help_type_and_unit(tmp_path: Path) -> None:
    path = tmp_path / "headrace.prom"
    OpenMetricsWriter(path)(stats())
    found = families(path)
    assert all(family.documentation for family in found.values())
    assert {family.type for family in found.values()} == {"counter", "gauge"}
    units = {name: family.unit for name, family in found.items() if family.unit}
    assert set(units.values()) == {"seconds", "bytes", "ratio", "records"}
    assert all(name.endswith(f"_{unit}") for name, unit in units.items())
    counters = {name for name, family in found.items() if family.type == "counter"}
    assert {"headrace_batches", "headrace_bytes", "headrace_stage_seconds", "headrace_restarts"} <= counters
    assert "# UNIT headrace_waited_seconds seconds\n" in path.read_text()


def test_what_is_not_known_is_not_written(tmp_path: Path) -> None:
    path = tmp_path / "headrace.prom"
    OpenMetricsWriter(path)(LoaderStats())
    names = {key[0] for key in samples(path)}
    assert "headrace_batches_total" in names
    assert not names & {"headrace_first_batch_seconds", "headrace_memory_main_bytes", "headrace_worker_busy_ratio"}


def test_a_file_holds_the_latest_of_each_loader(tmp_path: Path) -> None:
    path, strange = tmp_path / "headrace.prom", 'a "b"\\\nc'
    writer = OpenMetricsWriter(str(path))
    for one in (stats("train", 1), stats(strange, 2), stats("train", 3)):
        writer(one)
    found = samples(path)
    assert found["headrace_batches_total", ("loader", "train"), ("rank", "0")] == 3
    assert found["headrace_batches_total", ("loader", strange), ("rank", "0")] == 2
    assert [one.name for one in tmp_path.iterdir()] == ["headrace.prom"]


@pytest.mark.thorough
def test_a_reader_never_sees_half_a_file(tmp_path: Path) -> None:
    path, done, seen = tmp_path / "headrace.prom", threading.Event(), []
    writer = OpenMetricsWriter(path)
    writer(stats())

    def read() -> None:
        while not (seen and done.is_set()):
            seen.append(path.read_text())

    reader = threading.Thread(target=read)
    reader.start()
    for batches in range(300):
        writer(stats(batches=batches))
    done.set()
    reader.join()
    assert all(text.endswith("# EOF\n") for text in seen)


def test_a_write_that_fails_leaves_the_old_file_and_nothing_else(tmp_path: Path) -> None:
    path = tmp_path / "headrace.prom"
    writer = OpenMetricsWriter(path)
    path.mkdir()
    with pytest.raises(OSError, match=r"headrace\.prom"):
        writer(stats())
    assert [one.name for one in tmp_path.iterdir()] == ["headrace.prom"]


def test_a_folder_that_is_not_there_is_told_before_training(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="no such folder"):
        OpenMetricsWriter(tmp_path / "metrics" / "headrace.prom")


# -- without the libraries ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("module", "make", "fix"),
    [
        ("tensorboard", TensorBoardWriter, r"pip install 'headrace\[tensorboard\]'"),
        ("prometheus_client", OpenMetricsWriter, r"pip install 'headrace\[metrics\]'"),
    ],
)
def test_a_missing_library_is_named_with_the_extra(
    module: str, make: Any, fix: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(MissingExtraError, match=fix):
        make(tmp_path / "there")


@pytest.mark.thorough
def test_the_module_of_writers_needs_neither_tensorboard_nor_prometheus() -> None:
    program = "import sys, headrace.observe.writers; print({'tensorboard', 'prometheus_client'} & set(sys.modules))"
    assert subprocess.check_output([sys.executable, "-c", program], text=True) == "set()\n"


def test_a_source_tells_how_far_it_is_ahead(tmp_path: Path) -> None:
    live = LiveReads("kafka://broker/clicks", lag=1200, read_rate=50.0)
    OpenMetricsWriter(tmp_path / "metrics.prom")(stats(live=live))
    families = {one.name: one for one in text_string_to_metric_families((tmp_path / "metrics.prom").read_text())}
    (lag,) = families["headrace_source_lag_records"].samples
    assert (lag.labels, lag.value) == ({"rank": "0", "loader": "train.py:31", "source": "kafka://broker/clicks"}, 1200)
    assert families["headrace_source_read_rate"].samples[0].value == 50
