"""What a mixture remembers of its weights, and how a state tells it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import numpy as np

from headrace.core.changing_weights import Unit
from headrace.samplers.mixes import Mix, Mixes
from headrace.samplers.mixture_refusals import other_weights
from headrace.samplers.quota import ONE, Ints, Quota


class Record(NamedTuple):
    """Which weights hold where: what a state needs, beside a position."""

    mixes: Mixes
    window: int | None = None
    """Where the window begins whose weights were asked for last, counted over all epochs."""
    replaced: bool = False
    """Whether `set_weights` has ended the schedule."""

    def changed(self, quota: Quota, epoch: int, here: int) -> Record:
        """Returns a record in which other weights hold from a position on. epoch: the position at which it begins."""
        mixes = self.mixes.changed(quota, here)
        # Whoever plans by windows still needs what held in this one.
        if self.window is None:
            mixes = Mixes([mixes.last])
        else:
            mixes = mixes.kept(epoch, min(self.window, here))
        return Record(mixes, self.window, replaced=True)

    def asked(self, quota: Quota, here: int) -> Record:
        """Returns a record in which weights hold from a position on that were asked for there."""
        mixes = self.mixes.until(here)
        is_known = here >= mixes.row[0].since and np.array_equal(mixes.last.quota.shares, quota.shares)
        if is_known:
            return self._replace(mixes=mixes)
        return self._replace(mixes=mixes.changed(quota, here))

    def kept(self, epoch: int, window: int) -> Record:
        """Returns a record that begins with a window, but for the mix at the beginning of the epoch."""
        return self._replace(mixes=self.mixes.kept(epoch, window))

    def within(self, planned: Mixes, here: int) -> Record:
        """Returns a record that has the mixes of a schedule, too: those before its own, and those behind a position."""
        row = [mix for mix in planned.row if mix.since < self.mixes.row[0].since]
        mixes = Mixes([*row, *self.mixes.row])
        for mix in planned.row:
            if mix.since > here:
                mixes = mixes.changed(mix.quota, mix.since)
        return self._replace(mixes=mixes)

    def to_state(self, epoch: int, here: int) -> dict[str, Any]:
        """Returns what a state at a position tells: plain values. epoch: the position at which the epoch begins."""
        mixes = self.mixes.until(here)
        state: dict[str, Any] = {"since": mixes.last.since, **_counts(mixes.last)}
        if self.window is None:
            return state

        state["window"] = self.window
        earlier = mixes.kept(epoch, min(self.window, here)).row[:-1]
        if earlier:
            state["earlier"] = [{"since": mix.since, **_counts(mix)} for mix in earlier]
        return state

    def to_state_in_epoch(self, position: int, before: Ints) -> dict[str, Any]:
        """Returns what a state tells where all epochs begin alike: position is of the epoch, before: what came before
        the epoch of each source."""
        mix = self.mixes.holding(position)
        return {"since": mix.since, **_counts(mix._replace(counts=mix.counts + before))}

    @classmethod
    def of_state(cls, state: Mapping[str, Any], quota: Callable[[Ints], Quota]) -> Record:
        """Returns the record that a state tells of."""
        row = []
        for told in (*state.get("earlier", ()), state):
            shares = np.array(told["shares"], np.int64)
            row.append(Mix.of(quota(shares), told["since"], np.array(told["counts"], np.int64)))

        return cls(Mixes(row), state.get("window"), bool(state.get("replaced", False)))


def _counts(mix: Mix) -> dict[str, list[int]]:
    return {"shares": mix.quota.shares.tolist(), "counts": mix.counts.tolist()}


def damage_in(state: Mapping[str, Any], count: int) -> str:
    """Returns what is wrong with the state of a record of `count` sources; empty if nothing is."""
    earlier = state.get("earlier", [])
    window = state.get("window")
    until = state.get("until")
    are_numbers = all(number is None or isinstance(number, int) for number in (window, until))
    if not isinstance(earlier, list) or not are_numbers:
        return f"earlier={earlier!r}, window={window!r}, until={until!r}"

    for told in (*earlier, state):
        if not isinstance(told, Mapping):
            return f"earlier={earlier!r}"

        since = told.get("since")
        shares = told.get("shares")
        counts = told.get("counts")
        are_rows = all(isinstance(row, list) and len(row) == count for row in (shares, counts))
        is_sound = isinstance(since, int) and since >= 0 and are_rows
        if not is_sound or min(shares) < 0 or sum(shares) != ONE:  # type: ignore[arg-type]
            return f"since={since!r}, shares={shares!r}, counts={counts!r}"

    return ""


def check_rows(state: Mapping[str, Any], planned: Mixes, unit: Unit, *, is_planned: bool) -> None:
    """Raises `StateError` if a state was made with other weights than these, as far as it has come.

    A state of weights that were asked for tells of none. is_planned: whether a sampler plans ahead by the weights.
    """
    until = state.get("until")
    if until is None or state.get("rows") == planned.told_before(until)["rows"]:
        return
    given = "weights"
    if unit == "tokens":
        given = "weights and lengths"
    raise other_weights(until, given, is_planned=is_planned)
