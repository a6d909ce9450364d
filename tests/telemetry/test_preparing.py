"""What is done once, in front of a first batch, is said, and enters neither means nor predictions."""

from __future__ import annotations

import logging
import time
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import headrace
from headrace.observe.diagnosis.diagnose import diagnose
from headrace.observe.stats import stats_of
from headrace.telemetry.preparation import prepared
from headrace.telemetry.recording import Recording
from tests.observe import made_up
from tests.observe.diagnosis.steady import MS, Loop, recording_of


def with_a_slow_first(seconds: float, workers: int, slow: int = 1) -> Recording:
    """200 batches of 20 ms, of which the first ones (one for a worker) take `seconds`."""
    load = np.full(200, 20 * MS)
    load[:slow] = seconds
    return recording_of(Loop(load=load, loop=15 * MS, workers=workers))


@pytest.mark.parametrize(("workers", "slow"), [(0, 1), (1, 1), (2, 2)])
def test_a_preparation_is_said_and_left_out_of_means_and_predictions(workers: int, slow: int) -> None:
    plain, late = with_a_slow_first(20 * MS, workers), with_a_slow_first(18.0, workers, slow)
    (found,) = (one for one in diagnose(late).findings if one.name == "slow-first-batch")
    assert "took" in found.sentence and "18.0 s, the others 20.0 ms: something is prepared once" in found.sentence
    assert found.gain is None
    means = [stats_of(one).stages["load"].mean for one in (plain, late)]
    assert means[0] == pytest.approx(means[1])
    assert stats_of(late).stages["load"].max == pytest.approx(20 * MS)
    assert stats_of(late).prepared == pytest.approx(18.0)
    before = {one.name: one.gain for one in diagnose(plain).findings}
    after = {one.name: one.gain for one in diagnose(late).findings if one.name != "slow-first-batch"}
    assert after.keys() == before.keys()
    for name, gain in before.items():
        assert after[name] == (None if gain is None else pytest.approx(gain, rel=0.1))


def test_first_batches_that_take_as_long_as_others_are_like_any() -> None:
    for recording in (with_a_slow_first(60 * MS, 2), made_up.with_workers(), made_up.inline(), made_up.nothing_known()):
        assert not prepared(recording.batches).at.any()
        assert stats_of(recording).prepared == 0.0


def test_a_later_slow_batch_is_no_preparation() -> None:
    load = np.full(200, 20 * MS)
    load[50] = 18.0
    assert not prepared(recording_of(Loop(load=load, loop=15 * MS, workers=2)).batches).at.any()


class Lazy:
    """Prepares something at the first access."""

    def __init__(self) -> None:
        self.ready = False

    def __len__(self) -> int:
        return 64

    def __getitem__(self, key: int) -> Any:
        if not self.ready:
            time.sleep(0.6)
            self.ready = True
        return np.full(10, key)


@pytest.mark.parametrize("workers", [0, 2])
def test_a_data_set_that_prepares_itself_at_the_first_access_is_found(workers: int) -> None:
    loader = headrace.DataLoader(Lazy(), 4, num_workers=workers)
    for _ in loader:
        pass
    assert "slow-first-batch" in [one.name for one in loader.diagnose().findings]
    assert loader.stats.prepared >= 0.6
    assert loader.stats.stages["load"].max < 0.6


def test_a_column_that_is_decoded_whole_is_logged(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = tmp_path / "numbers.parquet"
    pq.write_table(pa.table({"x": np.arange(400_000)}), path, row_group_size=100_000)
    with caplog.at_level(logging.INFO, logger="headrace"):
        samples = headrace.open(path)
        for batch in headrace.DataLoader(samples, 100_000):
            assert len(batch["x"]) == 100_000
    said = [record.getMessage() for record in caplog.records]
    assert any("column 'x' of" in text and "is decoded whole (3 MB)" in text for text in said)
    assert any("was decoded in" in text for text in said)
