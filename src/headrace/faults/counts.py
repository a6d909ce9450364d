"""What was lost so far, kept in the main process: counted, written down, and stopped where it is too much."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from headrace.core.errors import TooManyBadSamplesError
from headrace.faults import quarantine
from headrace.faults.bad_sample import BadSample
from headrace.faults.policy import OnError

LOGGER = logging.getLogger("headrace")

JUDGED_FROM = 1000
"""Samples that an epoch of unknown length is taken to have at least, when a share of them is judged before its end."""

SAID = 10
"""Bad samples of an epoch that are named in the log."""

KEPT = 10_000
"""Records that are kept in memory."""


@dataclass(frozen=True)
class Faults:
    """Counts of a loader's bad samples and replaced workers, and records of its last 10,000 bad samples.

    Attributes:
        bad: samples that were lost: `skipped + replaced`.
        skipped: that were left out.
        replaced: whose place another sample took.
        retried: samples that loaded at a later try.
        restarts: workers that died, or were killed because they hung, and were replaced.
        records: of the bad samples.

    Examples:
        >>> headrace.DataLoader([1, 2, 3]).faults
        Faults(bad=0, skipped=0, replaced=0, retried=0, restarts=0)
    """

    bad: int = 0
    skipped: int = 0
    replaced: int = 0
    retried: int = 0
    restarts: int = 0
    records: tuple[BadSample, ...] = field(default=(), repr=False)


class FaultCounter:
    """Counts what batches report when they are delivered, so that nothing counts that the user never saw."""

    def __init__(self, limits: OnError | None = None, path: Path | None = None) -> None:
        """limits: how many bad samples an epoch may have; None: any number. path: where they are written down."""
        self._limits = limits or OnError()
        self._path = path
        self._counts = Faults()
        self._records: list[BadSample] = []
        self._expected: int | None = None
        self._in_epoch = 0
        self.killers: dict[str, str] = {}
        """Samples that killed workers: the `repr` of their keys, and what is known of it."""

    def counts(self) -> tuple[int, int]:
        """Returns the bad samples and the replaced workers so far."""
        return self._counts.bad, self._counts.restarts

    def faults(self) -> Faults:
        """Returns the counts so far."""
        return replace(self._counts, records=tuple(self._records))

    def begin_epoch(self, samples: int | None) -> None:
        """Begins to count an epoch of so many samples; None: it is not known how many."""
        self._expected = samples
        self._in_epoch = 0

    def restarted(self) -> None:
        """Counts a worker that was replaced."""
        self._counts = replace(self._counts, restarts=self._counts.restarts + 1)

    def delivered(self, losses: Sequence[BadSample], samples: int) -> None:
        """Counts what a batch lost, the last one of `samples` of its epoch. Raises `TooManyBadSamplesError`."""
        by_action: dict[str, list[BadSample]] = {"raise": [], "skip": [], "replace": [], "retry": []}
        lost = []
        for bad in losses:
            by_action[bad.action].append(bad)
            if bad.action in ("skip", "replace"):
                lost.append(bad)

        # A sample that ends the epoch is not counted: its exception tells of it, and nothing was lost without a word.
        self._write(by_action["raise"])
        counts = self._counts
        self._counts = replace(
            counts,
            bad=counts.bad + len(lost),
            skipped=counts.skipped + len(by_action["skip"]),
            replaced=counts.replaced + len(by_action["replace"]),
            retried=counts.retried + len(by_action["retry"]),
        )
        self._records = [*self._records, *lost][-KEPT:]
        self._write(lost)
        self._say(lost)
        self._in_epoch += len(lost)
        if lost:
            self._judge(samples, max(samples, self._expected or JUDGED_FROM))

    def end_epoch(self, samples: int) -> None:
        """Judges an epoch of so many samples as a whole. Raises `TooManyBadSamplesError`."""
        if self._in_epoch > SAID:
            LOGGER.warning("headrace: %d of the %d samples of this epoch are bad.", self._in_epoch, samples)
        self._judge(samples, samples)

    def _write(self, lost: list[BadSample]) -> None:
        if self._path is None or not lost:
            return

        try:
            quarantine.append(self._path, lost)
        except OSError as error:
            # A full disk must not end a training run. From here on nothing is written, or each batch would say so
            # again.
            path = self._path
            self._path = None
            LOGGER.error(
                "headrace: the bad-samples log %s cannot be written any more (%s); loader.faults.records continues.",
                path, error.strerror,
            )  # fmt: skip

    def _say(self, lost: list[BadSample]) -> None:
        for number, bad in enumerate(lost, self._in_epoch + 1):
            if number > SAID:
                return
            if bad.path:
                place = f" ({bad.path})"
            else:
                place = ""

            if bad.action == "skip":
                done = "skipped"
            else:
                done = f"replaced by {bad.replacement!r}"

            if number == SAID:
                more = " Further ones of this epoch are not named here."
            else:
                more = ""

            first = bad.error.split("\n")[0]
            LOGGER.warning("headrace: bad sample %r%s: %s; %s.%s", bad.key, place, first, done, more)

    def _judge(self, samples: int, whole: int) -> None:
        """Compares the bad ones of `samples` with the limit, of which a share is meant of `whole`."""
        limits = self._limits
        if limits.max_count is not None:
            allowed = float(limits.max_count)
            named = f"max_count={limits.max_count}"
        elif limits.max_rate is not None:
            allowed = limits.max_rate * whole
            named = f"max_rate={limits.max_rate}"
        else:
            return

        if self._in_epoch <= allowed:
            return

        last = self._records[-1]
        raise TooManyBadSamplesError.about(
            "too many bad samples in this epoch",
            place=self._path,
            found=f"{self._in_epoch} of {samples}; the last: {last.key!r}: {last.error.splitlines()[0]}",
            expected=f"at most {named}",
            fix="see what is wrong with them (OnError(log=)), or raise the limit",
        )
