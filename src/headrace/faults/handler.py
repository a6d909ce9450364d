"""What one replica does about bad samples: it judges, tries again, and keeps the record of the batch it is making."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import TypeVar

from headrace.core.errors import WorkerDiedError
from headrace.faults.bad_sample import Action, BadSample, Stage, path_of, text_of
from headrace.faults.classify import blame, is_never_skipped
from headrace.faults.policy import RETRY_AFTER, Policy

T = TypeVar("T")


class FaultHandler:
    """One replica's. `killers`: keys (their `repr`) of samples that killed workers, and what is known of it."""

    def __init__(
        self,
        policy: Policy,
        dataset: object,
        epoch: int,
        worker: int | None,
        killers: Mapping[str, str],
        base_seed: int,
    ) -> None:
        self.policy = policy
        if policy.seed is None:
            self.seed = base_seed
        else:
            self.seed = policy.seed

        self.epoch = epoch
        self.killers = killers
        self.losses: list[BadSample] = []
        self._dataset = dataset
        self._worker = worker

    def retried(self, key: object, load: Callable[[], T], first: Exception | None = None) -> T:
        """Returns what `load` returns, tried again after a while if what failed may be well a moment later.

        `first`: what the first try raised, if there was one. Raises the exception of the last try.
        """
        # Not loaded once more: it would kill this worker as well. By `repr`, since the keys came through a pipe as
        # text.
        if self.killers and repr(key) in self.killers:
            raise WorkerDiedError(self.killers[repr(key)])

        if first is None:
            try:
                return load()
            except Exception as error:  # noqa: BLE001 - judged below
                first = error

        if blame(first) != "moment":
            raise first

        for seconds in RETRY_AFTER:
            time.sleep(seconds)
            try:
                sample = load()
            except Exception as error:
                if blame(error) != "moment" or seconds == RETRY_AFTER[-1]:
                    raise
            else:
                self.losses.append(self._bad(key, "load", first).settled("retry"))
                return sample

        raise AssertionError("the last try returns or raises")

    def judge(self, key: object, stage: Stage, error: Exception) -> tuple[BadSample, Action]:
        """Returns the record of a bad sample, and what is to become of it. Raises `error` if it is not the sample's."""
        if is_never_skipped(error):
            raise error

        bad = self._bad(key, stage, error)
        action = self.policy.decide(bad)
        if action == "raise":
            self.losses.append(bad.settled("raise"))
            raise error

        return bad, action

    def _bad(self, key: object, stage: Stage, error: Exception) -> BadSample:
        return BadSample(
            key=key,
            path=path_of(self._dataset, key, error),
            stage=stage,
            error=text_of(error),
            epoch=self.epoch,
            worker=self._worker,
            rank=self.policy.rank,
            exception=error,
        )
