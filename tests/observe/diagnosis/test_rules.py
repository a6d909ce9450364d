"""Each rule finds what it is for, with the gain that follows from the figures, and finds nothing where nothing is."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from headrace.observe.diagnosis.case import Case
from headrace.observe.diagnosis.diagnose import diagnose
from headrace.observe.diagnosis.finding import Diagnosis, Finding
from headrace.telemetry.recording import MEMORY, EpochTimes, LoadingPlace, Recording
from tests.observe import made_up
from tests.observe.diagnosis.steady import MS, Loop, recording_of

TWO_CORES = {"cores": 2}


def seen(kind: str) -> dict[str, Any]:
    return {"places": (LoadingPlace(kind, f"{kind}_it (data.py:12)", 1.0),)}


def memory_of(*workers: float, main: float = 1e9) -> dict[str, Any]:
    """A recording's memory at one second after the other: so many bytes of all workers together."""
    return {"memory": np.array([(float(at), int(main), int(one)) for at, one in enumerate(workers)], MEMORY)}


def uneven(slow: float, workers: int, loop: float) -> Loop:
    """Of 200 batches, eight take `slow` seconds to load and the others 10 ms."""
    load = np.full(200, 10 * MS)
    load[7::25] = slow
    return Loop(load=load, loop=loop, workers=workers)


FEW = Loop(load=30 * MS, loop=10 * MS, workers=1, batches=400)
INLINE = replace(FEW, workers=0)
WAITING = replace(FEW, load_cpu=1 * MS)
KEEPS_UP = Loop(load=10 * MS, loop=20 * MS, workers=2)
STARTS = Loop(load=10 * MS, loop=50 * MS, workers=2, start=1.0, epochs=4, batches=10)
CHEAP = Loop(load=4 * MS, open=20 * MS, loop=2 * MS, workers=2)
CROWDED = Loop(
    load=80 * MS, load_cpu=20 * MS, queued=60 * MS, loop=0.1 * MS, workers=8, setting=TWO_CORES, nbytes=10**8
)
UNEVEN = uneven(100 * MS, 4, 4 * MS)
HUGE = Loop(load=1, loop=0.5, workers=2, batches=4, epochs=4, setting={"batch_size": 64})
SLOW = Loop(load=30 * MS, loop=10 * MS, workers=2, setting=TWO_CORES)
COLLATING = Loop(load=5 * MS, collate=40 * MS, loop=10 * MS, workers=2, setting=TWO_CORES)
SENDING = replace(COLLATING, collate=0.0, send=40 * MS)
UNPACKING = Loop(load=5 * MS, open=10 * MS, loop=10 * MS, workers=2, setting=TWO_CORES)
PINNING = replace(UNPACKING, open=0.0, pin=10 * MS)
FULL = replace(KEEPS_UP, workers=4, setting={"memory": 10**10}, recording=memory_of(8e9))
GROWING = replace(KEEPS_UP, recording=memory_of(*np.linspace(1e9, 2e9, 16)))

EVERY = {
    name: value for name, value in globals().items() if isinstance(value, Loop)
}  # fmt: skip


def findings(loop: Loop) -> dict[str, Finding]:
    return {one.name: one for one in diagnose(recording_of(loop)).findings}


@pytest.mark.parametrize(
    ("loop", "name", "stage", "gain", "change"),
    [
        # 400 batches at 30 ms and a step; with 3 workers at 10 ms, behind the first that takes 30
        (FEW, "too-few-workers", "workers", (400 * 30 + 10) / (30 + 400 * 10), {"num_workers": 3}),
        (WAITING, "too-few-workers", "workers", (400 * 30 + 10) / (30 + 400 * 10), {"num_workers": 3}),
        # 40 ms a batch one after the other
        (INLINE, "too-few-workers", "workers", 400 * 40 / (30 + 400 * 10), {"num_workers": 3}),
        # the ideal: 200 steps of 20 ms, behind 10 ms for the first batch
        (KEEPS_UP, "training-limits", "training", None, {}),
        # four epochs of 1 s, 10 ms and 10 steps of 50 ms; the start of the first one stays
        (STARTS, "slow-start", "start", 4 * 1.51 / (4 * 0.51 + 1), {"persistent_workers": True}),
        # unpacking takes longer than making, and falls away
        (CHEAP, "workers-cost-more", "transport", (20 + 2) / (4 + 2), {"num_workers": 0}),
        # 200 batches of 20 ms on two cores by however many
        (CROWDED, "too-many-workers", "workers", 1.0, {"num_workers": 2}),
        # an epoch of 4 batches: 1 s + 2 * 0.5 s + 1 s; 16 of a quarter: their own first one, and training all the time
        (HUGE, "huge-batches", "batches", 3.0 / 2.25, {"batch_size": 16}),
        # two workers at 15 ms a batch and training at 10
        (replace(SLOW, recording=seen("decode")), "slow-decode", "decode", 1.5, {}),
        (replace(SLOW, recording=seen("transform")), "slow-transform", "transform", 1.5, {}),
        (replace(SLOW, recording=seen("other")), "slow-load", "load", 1.5, {}),
        (SLOW, "slow-load", "load", 1.5, {}),
        (replace(SLOW, load_cpu=5 * MS), "slow-read", "read", 1.5, {}),
        # 45 ms of a batch on two cores beside training, which takes one for 10 ms: 55 / 2 ms a batch
        (COLLATING, "slow-collate", "collate", 27.5 / 10, {}),
        (SENDING, "slow-send", "send", 27.5 / 10, {}),
        (UNPACKING, "slow-delivery", "delivery", 20 / 10, {}),
        (PINNING, "slow-delivery", "delivery", 20 / 10, {}),
        (FULL, "workers-fill-memory", "memory", None, {"num_workers": 2}),
        (GROWING, "memory-grows", "memory", None, {}),
    ],
)
def test_a_rule_finds_what_it_is_for(
    loop: Loop, name: str, stage: str, gain: float | None, change: dict[str, Any]
) -> None:
    found = findings(loop)[name]
    assert (found.stage, found.change) == (stage, change)
    if name in ("slow-decode", "slow-transform", "slow-load", "slow-read"):
        gain = 1.5 if loop.load_cpu is not None else (30 + 10) / 2 / 10  # with core seconds, training shares the cores
    assert found.gain == (None if gain is None else pytest.approx(gain, rel=0.04))


@pytest.mark.parametrize(
    ("loop", "name"),
    [
        (KEEPS_UP, "too-few-workers"),
        (FEW, "training-limits"),
        (replace(FEW, setting={"cores": 1}), "too-few-workers"),  # there is no core for a second one
        (replace(STARTS, start=0.05), "slow-start"),
        (replace(STARTS, fresh=False), "slow-start"),
        (replace(STARTS, epochs=1, batches=40), "slow-start"),
        (SLOW, "workers-cost-more"),
        (replace(CROWDED, setting={"cores": 64}), "too-many-workers"),
        (replace(CROWDED, workers=2, load=20 * MS, queued=0.0), "too-many-workers"),
        (PINNING, "workers-cost-more"),  # pinning would be left in the main process
        (UNEVEN.__class__(load=10 * MS, loop=4 * MS, workers=4), "stragglers"),
        (replace(UNEVEN, workers=1), "stragglers"),
        (uneven(100 * MS, 4, 60 * MS), "stragglers"),
        (replace(HUGE, setting={"batch_size": 4}), "huge-batches"),
        (replace(HUGE, batches=40), "huge-batches"),
        (replace(SLOW, load=3 * MS), "slow-load"),
        (COLLATING, "slow-send"),
        (SENDING, "slow-collate"),
        (replace(UNPACKING, open=0.1 * MS), "slow-delivery"),
        (replace(FULL, recording=memory_of(6e9)), "workers-fill-memory"),
        (replace(FULL, workers=1), "workers-fill-memory"),
        (replace(GROWING, recording=memory_of(*np.linspace(1e9, 1.1e9, 16))), "memory-grows"),
        (replace(GROWING, recording=memory_of(*np.linspace(1e6, 2e6, 16))), "memory-grows"),
        (replace(GROWING, recording=memory_of(1e9, 2e9, 3e9)), "memory-grows"),  # too few looks
    ],
)
def test_a_rule_finds_nothing_where_nothing_is(loop: Loop, name: str) -> None:
    assert name not in findings(loop)


def test_a_loader_that_keeps_up_has_nothing_else_to_find() -> None:
    assert list(findings(KEEPS_UP)) == ["training-limits"]


def test_batches_that_others_wait_behind_are_made_up_for_by_more_of_them_ahead() -> None:
    found = findings(UNEVEN)["stragglers"]
    assert found.stage == "stragglers"
    assert "8 of 200" in found.sentence
    assert found.change == {"prefetch_factor": 8}
    (even,) = (float(word) for word in re.findall(r"would be (\S+) times", found.sentence))
    assert 1.05 < (found.gain or 0) <= even + 0.005
    # at 4 ms of training and 13.6 ms of four workers for a batch, training limits what can be had
    assert even == pytest.approx(diagnose(recording_of(UNEVEN)).ideal_gain, rel=0.03)


@pytest.mark.parametrize(
    ("setting", "keys"),
    [({}, {"prefetch_factor"}), ({"memory": 1000}, {"in_order"})],
)
def test_what_is_advised_against_stragglers_fits_the_loader(setting: dict[str, Any], keys: set[str]) -> None:
    assert set(findings(replace(UNEVEN, setting=setting))["stragglers"].change) == keys


COULD_SHARE = {"could_share": True, "spare_memory": 10**8, "batch_size": 16, "length": 200}


def single_slow(share: float = 0.9, loop: float = 1 * MS, **setting: Any) -> Loop:
    """Of 200 batches of 16 ms, ten take 600 ms, spread by chance; `share` of that is one sample's.

    One of the ten is the first of its worker, and taken for a preparation.
    """
    load = np.full(200, 16 * MS)
    load[np.random.default_rng(0).choice(200, 10, replace=False)] = 600 * MS
    slowest = np.where(load > 16 * MS, load * share, 1 * MS)
    return Loop(load=load, load_cpu=0.0, slowest=slowest, loop=loop, workers=8, setting=COULD_SHARE | setting)


def test_where_single_samples_are_slow_idle_workers_would_help_with_a_seed() -> None:
    found = findings(single_slow())["stragglers"]
    assert "9 of 200 take up to 600 ms, most of it for a single sample (up to 540 ms)" in found.sentence
    assert found.change == {"seed": 0}
    assert "workers that have nothing to do help" in found.advice
    low, high = found.interval or (0.0, 0.0)
    assert 1.05 < low < (found.gain or 0) < high


def test_the_more_of_late_batches_is_one_sample_the_less_a_seed_gains() -> None:
    gains = [findings(single_slow(share))["stragglers"].gain or 0 for share in (0.1, 0.5, 0.99)]
    assert gains == sorted(gains, reverse=True)
    assert gains[0] > 1.1 * gains[-1]


def test_where_samples_were_not_timed_the_gain_is_that_of_single_slow_ones_at_least() -> None:
    known = findings(single_slow(0.98))["stragglers"]
    unknown = findings(replace(single_slow(), slowest=np.nan))["stragglers"]
    assert "single sample" not in unknown.sentence
    assert unknown.gain == pytest.approx(known.gain, rel=0.02)
    assert unknown.interval is not None
    alike = findings(single_slow(0.1))["stragglers"].gain or 0
    assert unknown.interval[1] >= 0.98 * alike


def test_late_batches_whose_samples_are_alike_are_not_said_to_have_a_slow_one() -> None:
    assert "single sample" not in findings(single_slow(0.1))["stragglers"].sentence


def test_what_is_gained_at_the_end_of_an_epoch_counts_the_less_the_longer_it_is() -> None:
    load = np.full(200, 16 * MS)
    load[[196, 199]] = 600 * MS
    gains = []
    for length in (200, 1000):
        loop = replace(single_slow(length=length), load=load, slowest=1 * MS)
        case = Case(recording_of(loop))
        gains.append(case.gain_of_epochs(replace(case.rules, free=True, shares=True)))
    assert gains[0] > 1.3
    assert 1.0 < gains[1] < 0.9 * gains[0]


@pytest.mark.parametrize(
    "loop",
    [
        Loop(load=16 * MS, load_cpu=0.0, slowest=1 * MS, loop=1 * MS, workers=8, setting=COULD_SHARE),
        single_slow(loop=60 * MS),
        replace(single_slow(), workers=1),
    ],
    ids=["even samples", "slow training", "one worker"],
)
def test_no_seed_is_advised_where_late_batches_hold_nothing_up(loop: Loop) -> None:
    assert "stragglers" not in findings(loop)


def test_no_seed_is_advised_where_there_is_one() -> None:
    shared = findings(single_slow(shares=True, free=True)).get("stragglers")
    assert shared is None or "seed" not in shared.change


def test_a_seed_is_not_advised_for_batches_that_are_too_quick_to_be_shared() -> None:
    whole = single_slow()
    quick = replace(whole, load=whole.load / 20, slowest=whole.slowest / 20, loop=whole.loop / 20)
    found = findings(quick).get("stragglers")
    assert found is None or "seed" not in found.change
    assert "seed" in findings(replace(quick, load=whole.load / 10))["stragglers"].change


def test_what_more_workers_gain_is_played_as_batches_are_made() -> None:
    """Where idle workers help, twice as many take about half as long; alone, one with two late batches holds up all."""
    gains = []
    for loop in (single_slow(0.1), single_slow(0.1, shares=True, free=True)):
        case = Case(recording_of(loop))
        gains.append(case.gain(rules=case.rules_with(16)))
    assert gains[0] < gains[1] - 0.1
    assert 1.6 < gains[1] <= 2.0


def test_pinning_and_unpacking_are_told_apart() -> None:
    assert "to pin each batch" in findings(PINNING)["slow-delivery"].sentence
    assert "to unpack each batch" in findings(UNPACKING)["slow-delivery"].sentence


def test_where_loading_spends_its_time_is_named() -> None:
    assert "decode_it (data.py:12)" in findings(replace(SLOW, recording=seen("decode")))["slow-decode"].sentence


def test_why_more_workers_help_is_told() -> None:
    assert "mostly wait" in findings(WAITING)["too-few-workers"].advice
    assert "there are cores" in findings(FEW)["too-few-workers"].advice


def test_memory_that_would_be_saved_is_told_in_bytes() -> None:
    assert "1.80 GB less memory" in findings(CROWDED)["too-many-workers"].sentence  # 6 workers with 3 of 100 MB each


# -- the diagnosis -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("loop", "limit"),
    [
        (FEW, "workers"), (WAITING, "workers"), (INLINE, "workers"), (KEEPS_UP, "training"), (STARTS, "start"),
        (CHEAP, "delivery"), (CROWDED, "load"), (UNEVEN, "stragglers"), (HUGE, "batches"), (SLOW, "load"),
        (replace(SLOW, recording=seen("decode")), "decode"), (COLLATING, "collate"), (SENDING, "send"),
        (UNPACKING, "delivery"), (PINNING, "delivery"),
    ],
)  # fmt: skip
def test_the_limiting_stage_comes_first(loop: Loop, limit: str) -> None:
    diagnosis = diagnose(recording_of(loop))
    assert diagnosis.limit == limit
    assert diagnosis.findings[0].stage == limit


def test_shares_and_rates_are_those_of_the_loop() -> None:
    diagnosis = diagnose(recording_of(FEW))  # 400 batches of 16: the first is waited for for 30 ms, others for 20
    looped = 30 + 399 * 20 + 399 * 10
    assert diagnosis.wait_share == pytest.approx((30 + 399 * 20) / looped)
    assert diagnosis.samples_per_second == pytest.approx(400 * 16 / (looped * MS))
    assert diagnosis.ideal_gain == pytest.approx(looped / (399 * 10))
    assert diagnosis.summary.startswith("The loop waited 67% of the time for data; ")
    assert "What helps most (too-few-workers): 3.0x (2.9x to 3.0x)." in diagnosis.summary


def test_nothing_is_said_of_nothing() -> None:
    diagnosis = diagnose(made_up.empty())
    assert (diagnosis.summary, diagnosis.findings) == ("No batch was delivered.", ())
    assert (diagnosis.wait_share, diagnosis.ideal_gain, diagnosis.samples_per_second) == (0.0, 1.0, 0.0)


def test_of_torchs_own_loader_the_waiting_is_known() -> None:
    recording = made_up.of_torch(200)
    diagnosis = diagnose(recording)
    rows = recording.batches
    opening = float(rows["asked"][0]) - recording.epochs[0].began
    waited = float((rows["delivered"] - rows["asked"]).sum()) + opening
    looped = float(rows["delivered"][-1]) - recording.epochs[0].began
    assert diagnosis.wait_share == pytest.approx(waited / looped)
    assert diagnosis.ideal_gain == pytest.approx(looped / (looped - waited))
    assert diagnosis.summary.startswith(f"The loop waited {waited / looped:.0%} of the time for data; ")
    assert diagnosis.findings == ()


def test_one_batch_is_too_little_for_findings() -> None:
    diagnosis = diagnose(made_up.one_batch())
    assert diagnosis.findings == ()
    assert diagnosis.wait_share == 1.0


def recordings() -> Iterator[tuple[str, Recording]]:
    """All that there is, and some that is odd."""
    yield from ((name, recording_of(loop)) for name, loop in EVERY.items())
    for made in (made_up.empty, made_up.one_batch, made_up.nothing_known, made_up.of_torch, made_up.after_a_gap):
        yield made.__name__, made()
    yield "inline", made_up.inline()
    yield "workers", made_up.with_workers()
    for count in (2, 3, 5):
        yield f"{count} batches", made_up.with_workers(count, 2, epochs=1)
    yield "no batch size", recording_of(replace(HUGE, setting={"batch_size": None, "cores": 0, "memory": 0}))
    nowhere = (LoadingPlace("decode", "", 1.0),)
    yield "nowhere", recording_of(replace(SLOW, recording={"places": nowhere}))
    yield "no time at all", recording_of(Loop(workers=2, batches=50))
    began = replace(made_up.with_workers(), epochs=(EpochTimes(0, 0.0),), totals={})
    yield "without totals", began


EMPTY_PLACES = (
    r"\bnan\b",
    r"\binf\b",
    r"\bNone\b",
    r"[{}]",
    r" \(\)",
    r"  ",
    r" [.,;:](\s|$)",
    r"-\d",
    r"\bin\.$",
    r"^\s*$",
)


@pytest.mark.parametrize(("name", "recording"), [pytest.param(*one, id=one[0]) for one in recordings()])
def test_texts_have_no_gaps(name: str, recording: Recording) -> None:
    diagnosis: Diagnosis = diagnose(recording)
    texts = [diagnosis.summary, *(text for one in diagnosis.findings for text in (one.sentence, one.advice))]
    assert [(text, pattern) for text in texts for pattern in EMPTY_PLACES if re.search(pattern, text)] == []
    assert np.isfinite([diagnosis.wait_share, diagnosis.ideal_gain, diagnosis.samples_per_second]).all()
    assert 0 <= diagnosis.wait_share <= 1
    gains = [one.gain for one in diagnosis.findings if one.gain is not None]
    assert np.isfinite(gains).all()
    assert all(text.endswith(".") for text in texts)


def test_sentences_agree_with_their_subjects() -> None:
    assert findings(INLINE)["too-few-workers"].sentence.startswith(
        "The main process itself makes a batch every 30.0 ms"
    )
    assert findings(FEW)["too-few-workers"].sentence.startswith("One worker makes a batch every 30.0 ms")
    two = findings(replace(FEW, workers=2, load=60 * MS))["too-few-workers"].sentence
    assert two.startswith("2 workers make a batch every 30.0 ms")


@pytest.mark.parametrize(("name", "loop"), EVERY.items(), ids=list(EVERY))
def test_no_change_gains_more_than_a_loader_that_costs_nothing(name: str, loop: Loop) -> None:
    diagnosis = diagnose(recording_of(loop))
    assert diagnosis.ideal_gain >= 1 / (1 - diagnosis.wait_share) - 1e-9
    assert all(one.gain <= diagnosis.ideal_gain for one in diagnosis.findings if one.gain is not None)


@pytest.mark.thorough
def test_nothing_is_advised_on_workers_whose_number_is_found_by_measuring() -> None:
    for loop in (FEW, CHEAP, CROWDED):
        assert {"too-few-workers", "workers-cost-more", "too-many-workers"} & findings(loop).keys()
        tuned = replace(loop, setting={**loop.setting, "tuned": True})
        assert not {"too-few-workers", "workers-cost-more", "too-many-workers"} & findings(tuned).keys()


def test_the_advice_suits_who_collates_and_who_loads() -> None:
    own = replace(COLLATING, setting={**COLLATING.setting, "own_collate": True})
    assert "Let default collation do it" in findings(own)["slow-collate"].advice
    assert "Let default collation do it" not in findings(COLLATING)["slow-collate"].advice
    together = replace(SLOW, setting={**SLOW.setting, "loads_together": True})
    assert "__getitems__" in findings(SLOW)["slow-load"].advice
    assert "__getitems__" not in findings(together)["slow-load"].advice


@pytest.mark.thorough
def test_a_stream_is_not_told_to_fetch_by_key_nor_to_repeat_itself_in_more_workers() -> None:
    stream = replace(SLOW, workers=1, setting={**SLOW.setting, "is_stream": True})
    assert "too-few-workers" in findings(stream)
    assert "__iter__" in findings(stream)["slow-load"].advice
    for name in ("__getitems__", "Staged"):
        assert name not in findings(stream)["slow-load"].advice
    whole = replace(stream, setting={**stream.setting, "splits": False})
    assert "too-few-workers" not in findings(whole)


def test_training_limits_a_loop_from_which_an_ideal_loader_would_gain_little() -> None:
    """It waits for a little more than a twentieth of its time, for handing over."""
    diagnosis = diagnose(recording_of(Loop(load=5 * MS, open=1.4 * MS, loop=20 * MS, workers=2)))
    assert 0.05 < diagnosis.wait_share < 0.09
    assert diagnosis.limit == "training"
    assert diagnosis.findings[0].name == "training-limits"


def test_cores_are_promised_only_where_there_are_some() -> None:
    assert (
        "there are cores"
        not in findings(replace(FEW, load_cpu=18 * MS, setting={"cores": 1}))["too-few-workers"].advice
    )


def test_workers_where_there_were_none_are_to_be_kept() -> None:
    assert findings(replace(INLINE, epochs=2))["too-few-workers"].change["persistent_workers"] is True
    assert "persistent_workers" not in findings(INLINE)["too-few-workers"].change


def test_how_long_an_epoch_is_meant_to_be_counts() -> None:
    """In its middle it has had few batches."""
    assert "huge-batches" not in findings(replace(HUGE, setting={**HUGE.setting, "length": 1000}))
