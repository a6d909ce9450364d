"""Whatever shows of a recording for what share of its time the loop waited shows the same number."""

from __future__ import annotations

import io
from dataclasses import replace
from pathlib import Path

import pytest
from rich.console import Console

from headrace.observe.diagnosis.diagnose import diagnose
from headrace.observe.live import view
from headrace.observe.page.page import page
from headrace.observe.report import report
from headrace.observe.stats import stats_of
from headrace.observe.writers import OpenMetricsWriter, TensorBoardWriter
from headrace.telemetry.formatting import percent
from headrace.telemetry.recording import Recording
from tests.observe import made_up
from tests.observe.diagnosis.steady import MS, Loop, recording_of


class Scalars:
    """Takes what a `SummaryWriter` takes."""

    def __init__(self) -> None:
        self.values: dict[str, float] = {}

    def add_scalar(self, name: str, value: float, step: int) -> None:
        self.values[name] = value

    def flush(self) -> None:
        pass


def with_an_end_that_is_waited_for(seconds: float = 1.2) -> Recording:
    recording = recording_of(Loop(load=30 * MS, loop=10 * MS, start=0.5, batches=60))
    return replace(recording, totals={**recording.totals, "ending": seconds})


def printed(shown: object) -> str:
    file = io.StringIO()
    Console(file=file, width=120, force_jupyter=False).print(shown)
    return " ".join(file.getvalue().split())


@pytest.mark.parametrize(
    "recording",
    [with_an_end_that_is_waited_for(), made_up.with_workers(200), made_up.inline(), made_up.of_torch()],
    ids=["with an end", "workers", "inline", "torch"],
)
def test_all_outputs_of_a_recording_have_one_share_of_waiting(recording: Recording, tmp_path: Path) -> None:
    stats, diagnosis = stats_of(recording), diagnose(recording)
    share = stats.waited / stats.looped
    assert stats.wait_share == diagnosis.wait_share == stats.as_json()["wait_share"] == share
    assert f"The loop waited {share:.0%} of the time for data" in printed(report(recording, diagnosis))
    whole = page("train.py", 100.0, [recording], [diagnosis], {})
    assert f"<dt>of the time waiting</dt><dd>{percent(share)}</dd>" in whole
    assert f"The loop waited {share:.0%} of the time for data" in whole
    assert f"waited {share:.0%} so far" in printed(view([recording], float(recording.batches["delivered"][-1])))
    scalars = Scalars()
    TensorBoardWriter(scalars)(stats)
    assert scalars.values[f"headrace/{stats.label}/wait_share"] == share
    file = tmp_path / "metrics.prom"
    OpenMetricsWriter(file)(stats)
    (line,) = (line for line in file.read_text().splitlines() if line.startswith("headrace_wait_share_ratio{"))
    assert float(line.split()[-1]) == pytest.approx(share)


def test_waiting_for_the_end_of_an_epoch_counts_everywhere() -> None:
    """A diagnosis has it as the figures have."""
    without, waiting = with_an_end_that_is_waited_for(0.0), with_an_end_that_is_waited_for()
    assert stats_of(waiting).waited == pytest.approx(stats_of(without).waited + 1.2)
    assert diagnose(waiting).wait_share > diagnose(without).wait_share
