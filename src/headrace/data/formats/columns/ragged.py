"""Arrays of samples that differ in length: one array of values, and where each sample begins and ends."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from headrace.core.errors import FormatError, UsageError

Array = npt.NDArray[Any]
Keys = npt.NDArray[np.int64]

LONG = 2048
"""Bytes of a sample from which on one copy per sample is quicker than one index for each element."""


class Ragged:
    """Samples of different lengths in one array: number i is `values[starts[i]:stops[i]]`.

    values: [total, *shape]; starts, stops: whole numbers [n]. Made from offsets [n + 1], number i is
    `values[offsets[i]:offsets[i + 1]]`: end to end, if not from 0 on. A batched step of a staged dataset gets them
    end to end and from 0 on, in memory of its own, which it may change.
    """

    __slots__ = ("_offsets", "place", "starts", "stops", "values")

    def __init__(
        self, values: Array, offsets: Array | None = None, starts: Any = None, stops: Any = None, place: object = None
    ) -> None:
        """place: where the samples are stored, for messages."""
        self.values = values
        self.place = place
        self._offsets = offsets
        if offsets is None:
            self.starts: Array = starts
        else:
            self.starts = offsets[:-1]

        if offsets is None:
            self.stops: Array = stops
        else:
            self.stops = offsets[1:]

    def __len__(self) -> int:
        return len(self.starts)

    def __getitem__(self, index: int) -> Array:
        """Sample number `index` (0 .. n-1), without a copy."""
        return self.values[int(self.starts[index]) : int(self.stops[index])]

    @property
    def offsets(self) -> Array:
        """Where samples begin, and the last one ends: whole numbers [n + 1]. Raises `UsageError` if there are gaps."""
        if self._offsets is None:
            if len(self) and not (self.starts[1:] == self.stops[:-1]).all():
                cure = "take starts and stops, or Ragged(*ragged.packed())"
                raise UsageError.about("these samples do not lie end to end", found="gaps between them", cure=cure)

            if len(self):
                self._offsets = np.append(self.starts, self.stops[-1:])
            else:
                self._offsets = np.zeros(1, np.int64)

        return self._offsets

    @property
    def lengths(self) -> Array:
        """How long each sample is: whole numbers [n]."""
        return self.stops - self.starts

    def with_values(self, values: Array) -> Ragged:
        """Returns other values at the same offsets: [total, *any shape], as many as there are. Raises `UsageError`."""
        if len(values) != len(self.values):
            found = f"{len(values):,}"
            expected = f"{len(self.values):,} values, one for each that is replaced"
            raise UsageError.about("these values do not fit the offsets", found=found, expected=expected)
        return Ragged(values, self._offsets, self.starts, self.stops, self.place)

    def rows(self, start: int, stop: int) -> Ragged:
        """Samples start .. stop-1, without a copy."""
        return Ragged(self.values, None, self.starts[start:stop], self.stops[start:stop], self.place)

    def pieces(self, keys: Keys) -> tuple[Keys, Keys]:
        """Returns starts and lengths of samples. Raises `FormatError` if they make no sense: data may be damaged."""
        # Offsets come from a file, and are checked where they are used: checking all of them would read them all, which
        # for a mapped file of a thousand million samples takes minutes.
        starts = self.starts[keys].astype(np.int64)
        lengths = self.stops[keys].astype(np.int64) - starts
        if len(keys) and (
            int(lengths.min()) < 0 or int(starts.min()) < 0 or int((starts + lengths).max()) > len(self.values)
        ):
            raise damaged_offsets(self.place)

        return starts, lengths

    def take(self, keys: Keys) -> Ragged:
        """Copies the samples of these keys, in their order, end to end."""
        starts, lengths = self.pieces(keys)
        offsets = offsets_of(lengths)
        values = np.empty((int(offsets[-1]), *self.values.shape[1:]), self.values.dtype)
        copy_pieces(self.values, starts, lengths, values, offsets)
        return Ragged(values, offsets)

    def packed(self) -> tuple[Array, Keys]:
        """Returns the samples end to end, and their offsets from 0 on; without a copy where they lie so already."""
        if len(self) == 0:
            return self.values[:0], np.zeros(1, np.int64)
        if not (self.starts[1:] == self.stops[:-1]).all():
            taken = self.take(np.arange(len(self)))
            return taken.values, np.append(taken.starts, taken.stops[-1:])

        first = int(self.starts[0])
        last = int(self.stops[-1])
        if not 0 <= first <= last <= len(self.values):
            self.pieces(np.arange(len(self)))

        offsets = np.empty(len(self) + 1, np.int64)
        offsets[:-1] = self.starts
        offsets[-1] = last
        return self.values[first:last], offsets - first

    @property
    def nbytes(self) -> int:
        """Bytes that the arrays take."""
        return self.values.nbytes + self.starts.nbytes + self.stops.nbytes

    def __reduce__(self) -> Any:
        return Ragged, (self.values, None, self.starts, self.stops, self.place)


class Loose(Ragged):
    """Samples that are arrays of their own so far; put end to end once somebody asks for `values`."""

    __slots__ = ("_joined", "arrays")

    def __init__(self, arrays: list[Array], lengths: Keys) -> None:
        """arrays: [lengths[i], *shape] each, of one type, at least one; not copied before `values` is asked for.

        From then on `arrays` is None: whoever got the values may change them.
        """
        super().__init__(arrays[0][:0], offsets_of(lengths))
        self.arrays: list[Array] | None = arrays

    @property
    def values(self) -> Array:
        """See `Ragged`."""
        if self.arrays is not None:
            self.values = np.concatenate(self.arrays)
            self.arrays = None
        return self._joined

    @values.setter
    def values(self, values: Array) -> None:
        self._joined = values


def damaged_offsets(place: object) -> FormatError:
    """Returns the error for samples that begin and end where no values are."""
    found = "offsets that descend, or lead outside of the values"
    cure = "restore the file, or pack the data again"
    what = "stored offsets are damaged"
    return FormatError.about(what, place=place, found=found, expected="ascending offsets", cure=cure)


def offsets_of(lengths: Keys) -> Keys:
    """Returns where samples of these lengths begin when they lie end to end, and where the last one ends [n + 1]."""
    offsets = np.zeros(len(lengths) + 1, np.int64)
    np.cumsum(lengths, out=offsets[1:])
    return offsets


Column = Array | Ragged


def copy_pieces(source: Array, starts: Keys, lengths: Keys, out: Array, at: Array) -> None:
    """Copies pieces `source[starts[i]:starts[i] + lengths[i]]` to `out[at[i]:...]`."""
    total = int(lengths.sum())
    if total == 0:
        return

    # Samples that follow each other are one piece.
    first = int(starts[0])
    if int(starts[-1]) + int(lengths[-1]) == first + total and (np.diff(starts) == lengths[:-1]).all():
        out[:total] = source[first : first + total]
        return

    # Many short samples: one index for each element and a single call of NumPy beat a call for each sample. The indices
    # take eight bytes an element, so that long samples are copied one by one. `pieces` has checked the bounds already,
    # and `clip` saves NumPy a buffer that it needs to raise an error.
    row = max(source.itemsize * int(np.prod(source.shape[1:])), 1)
    if total * row < LONG * len(lengths):
        steps = np.repeat(starts - np.asarray(at[: len(lengths)]), lengths)
        steps += np.arange(total)
        np.take(source, steps, 0, out=out[:total], mode="clip")
        return

    for start, length, to in zip(starts.tolist(), lengths.tolist(), at[: len(lengths)].tolist(), strict=True):
        out[to : to + length] = source[start : start + length]
