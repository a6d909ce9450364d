"""What is said while a store does not answer."""

from __future__ import annotations

import time

import pytest

from headrace.core import outage as outages
from headrace.core.outage import Outage


@pytest.fixture
def outage(monkeypatch: pytest.MonkeyPatch) -> Outage:
    monkeypatch.setattr(outages, "AFTER", 1.0)
    return Outage("s3://b/")


def words(caplog: pytest.LogCaptureFixture) -> list[str]:
    return ["away" if "has not answered" in record.getMessage() else "back" for record in caplog.records]


def test_a_failure_that_was_on_its_way_when_another_request_was_answered_is_no_second_outage(
    outage: Outage, caplog: pytest.LogCaptureFixture
) -> None:
    asked = time.monotonic()
    outage.failed("status 500", time.monotonic() - 2.0, "for 180 s", asked)
    outage.answered()
    outage.failed("status 500", time.monotonic() - 2.0, "for 180 s", asked)
    outage.answered()
    assert words(caplog) == ["away", "back"]


def test_an_outage_behind_an_outage_is_told(outage: Outage, caplog: pytest.LogCaptureFixture) -> None:
    for _ in range(2):
        outage.failed("status 500", time.monotonic() - 2.0, "for 180 s", time.monotonic())
        outage.failed("status 500", time.monotonic() - 3.0, "for 180 s", time.monotonic())
        outage.answered()
    assert words(caplog) == ["away", "back", "away", "back"]


def test_what_was_given_up_does_not_answer_again(outage: Outage, caplog: pytest.LogCaptureFixture) -> None:
    outage.failed("status 500", time.monotonic() - 2.0, "for 180 s", time.monotonic())
    outage.given_up()
    outage.answered()
    assert words(caplog) == ["away"]


def test_what_has_failed_for_a_short_time_is_not_told(outage: Outage, caplog: pytest.LogCaptureFixture) -> None:
    outage.failed("status 500", time.monotonic() - 0.5, "for 180 s", time.monotonic())
    outage.answered()
    assert words(caplog) == []
