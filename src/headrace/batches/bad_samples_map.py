"""Fetches batches in which bad samples are skipped or replaced."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from itertools import chain
from operator import attrgetter
from typing import Any, NamedTuple

import numpy as np

from headrace.batches.fetch_map import MapFetcher
from headrace.batches.index import Careful, Positions, packs_of, split
from headrace.batches.notes import note_sample
from headrace.batches.odd_samples import collated, odd_ones_out
from headrace.core.errors import SampleError, explain
from headrace.core.missing_state import MissingState
from headrace.core.randomness.unseeded import Unseeded
from headrace.core.spans import SpanKey
from headrace.faults.bad_sample import BadSample, Stage
from headrace.faults.classify import is_never_skipped
from headrace.faults.handler import FaultHandler
from headrace.faults.replacements import of_its_span, word_of
from headrace.samplers.packed_batch import PackedBatch, with_others, without_documents

PLACE_OF = attrgetter("place")


class Entry(NamedTuple):
    """A sample of the batch that is being made: its place, key and position, and itself where it is loaded alone."""

    place: int
    key: Any
    position: int | None
    sample: Any


class GuardedFetcher:
    """Fetches from a dataset with `__getitem__`, and settles what becomes of bad samples.

    A batch that is loaded as a whole is first tried as such. If that fails, each of its samples is tried alone.
    """

    def __init__(self, plain: MapFetcher, batched: bool, handler: FaultHandler) -> None:
        self._plain = plain
        self._batched = batched
        self._handler = handler
        self._latest: list[Any] = []
        """The key of the last good sample, if there was one."""
        self._given: PackedBatch | None = None
        """The batch that is being made, if it is one of packs."""
        self._packs: PackedBatch | None = None
        """The same, if the collate function is told so."""

    def fetch(self, index: object) -> Any:
        self._handler.losses.clear()
        careful = False
        if type(index) is Careful:
            careful = True
            index = index.index

        self._given = packs_of(index)
        self._packs = self._given if self._plain.takes_packs else None
        keys, positions = split(index, batched=self._batched)
        entries: list[Entry] = []
        failure: Exception | None = None
        if not careful and not self._handler.killers:
            samples: list[Any] = []
            try:
                batch = self._plain.fetch(index, samples)
            except Exception as error:
                if is_never_skipped(error):
                    raise
                # Samples that came are kept. The next one raised this, unless collation did, or a call that loads all
                # samples at once, which does not say which one.
                if len(samples) < len(keys) and not self._plain.loads_together:
                    failure = error

                numbers: Sequence[int | None] = positions or [None] * len(keys)
                for place, sample in enumerate(samples):
                    entries.append(Entry(place, keys[place], numbers[place], sample))
            else:
                self._latest = list(keys[-1:])
                return batch

        with self._plain.seeding():
            self._complete(entries, keys, positions, failure)
            # A pack may be without documents.
            if not entries and self._packs is None:
                entries = self._one_at_least(keys)
            batch = self._collated(entries, keys)

        if entries:
            self._latest = [entries[-1].key]

        return batch

    def try_unseeded(self, unseeded: Unseeded) -> None:
        self._plain.try_unseeded(unseeded)

    @property
    def tries_unseeded(self) -> bool:
        return self._plain.tries_unseeded

    def state(self) -> Any:
        return self._plain.state()

    def give_up_state(self, missing: MissingState) -> None:
        self._plain.give_up_state(missing)

    def losses(self) -> Sequence[BadSample]:
        return tuple(self._handler.losses)

    def _complete(
        self, entries: list[Entry], keys: Sequence[Any], positions: Sequence[int] | None, failure: Exception | None
    ) -> None:
        """Loads what `entries` lack, one by one. `failure`: what the first of them raised, if it was tried already."""
        for place in range(len(entries), len(keys)):
            key = keys[place]
            if positions is None:
                position = None
            else:
                position = positions[place]

            try:
                entries.append(self._load(place, key, position, failure))
            except Exception as error:  # noqa: BLE001 - the handler raises it again unless the sample is at fault
                if failure is None:
                    note_sample(error, self._plain.dataset, key)
                entries.extend(self._settled(Entry(place, key, position, None), "load", error, keys))

            failure = None

    def _load(self, place: int, key: object, position: int | None, failure: Exception | None = None) -> Entry:
        sample = self._handler.retried(key, lambda: self._plain.load_one(place, key, position), failure)
        return Entry(place, key, position, sample)

    def _try_instead(self, entry: Entry, key: Any, keys: Sequence[Any], beside: Sequence[Entry]) -> Entry:
        """Loads another sample for the place of a bad one, and sees that it can be collated, also with `beside`."""
        if key in keys and not isinstance(key, int):
            place = keys.index(key)
        else:
            place = entry.place

        if isinstance(key, int):
            spare = key + 1
        else:
            spare = 0

        sample = self._handler.retried(key, lambda: self._plain.load_one(place, key, entry.position, spare=spare))
        found = Entry(entry.place, key, entry.position, sample)
        self._collate([*beside, found])
        return found

    def _settled(
        self, entry: Entry, stage: Stage, error: Exception, keys: Sequence[Any], beside: Sequence[Entry] = ()
    ) -> list[Entry]:
        """Returns what comes in the place of a bad sample: nothing, or another one. Raises if the policy does.

        beside: a sample that the other one must go with.
        """
        self._plain.mark_judging(entry.place)
        bad, action = self._handler.judge(entry.key, stage, error)
        if action == "skip":
            self._handler.losses.append(bad.settled("skip"))
            return []

        return [self._replaced(entry, bad, error, keys, beside)]

    def _replaced(
        self, entry: Entry, bad: BadSample, error: Exception, keys: Sequence[Any], beside: Sequence[Entry] = ()
    ) -> Entry:
        """Returns a good sample for the place of a bad one, and keeps the record. Raises `SampleError`."""
        policy = self._handler.policy
        tried = 0
        if entry.position is None:
            number = word_of(entry.key)
        else:
            number = entry.position

        # A sample may be bad twice: it cannot be loaded, and the one in its place cannot be collated. Another word for
        # the second time keeps the same replacements from being drawn again.
        if bad.stage == "collate":
            stage_word = 1
        else:
            stage_word = 0

        words = (self._handler.seed, self._handler.epoch, number, stage_word)
        others = [key for key in keys if key != entry.key]
        last_resort: Sequence[Any] = self._latest
        if policy.replacements.size and policy.replacements.edges is None:
            last_resort = []
        # Parts of a bad document come in several batches. One document takes the place of all of them.
        if self._packs is not None and self._packs.has_part(entry.place):
            others = []
            last_resort = []

        if isinstance(entry.key, SpanKey):
            candidates: Iterator[Any] = of_its_span(entry.key, *words, batch=others)
        else:
            candidates = policy.replacements.candidates(entry.key, *words, batch=others)

        for key in chain(candidates, last_resort):
            tried += 1
            try:
                found = self._try_instead(entry, key, keys, beside)
            except Exception as failure:
                if is_never_skipped(failure):
                    raise
                continue

            self._handler.losses.append(bad.settled("replace", key))
            return found

        if isinstance(entry.key, SpanKey):
            whence = "of its span"
        elif policy.replacements.edges is not None:
            whence = "of its source"
        elif policy.replacements.size:
            whence = "drawn at random"
        else:
            whence = "of its batch, since the sampler is not known"

        raise _found_none(bad, tried, whence) from error

    def _one_at_least(self, keys: Sequence[Any]) -> list[Entry]:
        """Returns a batch of one for a batch whose samples are all skipped, so that ranks stay in step."""
        if not len(keys):
            return []
        bad = self._handler.losses.pop()
        entry = Entry(len(keys) - 1, bad.key, None, None)
        return [self._replaced(entry, bad, SampleError(bad.error), keys)]

    # -- collation -----------------------------------------------------------------------------------------------------

    def _collated(self, entries: list[Entry], keys: Sequence[Any]) -> Any:
        left = entries

        def collate() -> Any:
            if self._packs is not None and not left:
                return self._without_documents(self._packs)
            return self._collate(left)

        def settle() -> bool:
            nonlocal left
            others = self._without_odd_ones(left, keys)
            if others is not None:
                left = others
            return others is not None

        return collated(collate, settle)

    def _without_odd_ones(self, entries: list[Entry], keys: Sequence[Any]) -> list[Entry] | None:
        """Returns the batch with those settled that do not go with the others; None if no sample is to blame."""

        def collate(places: list[int]) -> object:
            return self._collate([entries[place] for place in places])

        odd = odd_ones_out(len(entries), collate)
        if not odd:
            return None

        # What comes in the place of an odd one must go with one of the others.
        beside: list[Entry] = []
        for place, entry in enumerate(entries):
            if place not in odd:
                beside.append(entry)
                break

        changed: list[Entry] = []
        for place, entry in enumerate(entries):
            if place in odd:
                changed += self._settled(entry, "collate", odd[place], keys, beside)
            else:
                changed.append(entry)

        if changed or self._packs is not None:
            return changed
        return self._one_at_least(keys)

    def _without_documents(self, packs: PackedBatch) -> Any:
        """Returns a batch whose documents are all bad, with the columns of a good document if one can be had."""
        drawn: Iterator[Any] = iter(())
        if packs:
            policy = self._handler.policy
            drawn = policy.replacements.candidates(packs[0], self._handler.seed, self._handler.epoch, batch=[])
        for key in chain(self._latest, drawn):
            try:
                sample = self._handler.retried(key, partial(self._plain.load_one, 0, key, None, spare=key + 1))
                return self._plain.collate([sample], (), without_documents(packs, key))
            except Exception as failure:
                if is_never_skipped(failure):
                    raise

        return self._collate([])

    def _collate(self, entries: Sequence[Entry]) -> Any:
        keys: list[Any] = [entry.key for entry in entries]
        if self._given is not None:
            entries = sorted(entries, key=PLACE_OF)
            keys = with_others(self._given, [entry.place for entry in entries], [entry.key for entry in entries])
        known = [entry.position for entry in entries if entry.position is not None]
        positions: Positions = ()
        if len(known) == len(entries):
            positions = known

        if self._plain.makes_whole_batches:
            if all(isinstance(key, (int, np.integer)) for key in keys):
                return self._plain.load_whole(np.asarray(keys, np.int64), positions)
            return self._plain.load_whole(keys, positions)

        samples = [entry.sample for entry in entries]
        if self._batched:
            return self._plain.collate(samples, positions, keys)
        return self._plain.collate(samples[0], positions, keys[0])


def _found_none(bad: BadSample, tried: int, whence: str) -> SampleError:
    """Returns the error for a bad sample in whose place `tried` others failed, too. whence: where those came from."""
    place = f"key {bad.key!r}"
    if bad.path:
        place += f" ({bad.path})"

    found = bad.error.splitlines()[0]
    if tried:
        found += f"; {tried} others, {whence}, cannot be used either"
    else:
        found += f"; no other sample to take in its place ({whence})"

    message = explain(
        "found no good sample for the place of a bad one",
        place=place,
        found=found,
        expected="a good sample among those",
        fix="see whether the dataset itself is at fault: try one of its samples by hand; or exclude the bad ones",
    )
    return SampleError(message)
