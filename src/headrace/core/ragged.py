"""Arrays of samples that differ in length: one array of values, and where each sample begins and ends."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import numpy.typing as npt

from headrace.core.errors import FormatError, UsageError
from headrace.core.text.log_once import warn_once

Array = npt.NDArray[Any]
Keys = npt.NDArray[np.int64]

ELEMENTS = 56
"""Elements of a sample, on average, from which on one copy per sample is quicker than one index for each element."""

LONG = 4096
"""Bytes of a sample from which on that is so, however few elements it has."""

BYTE = np.dtype(np.uint8)

DENSE = 2
"""Bytes for one of a string up to which all that lies between some strings is read along with them."""


SMALLEST = np.minimum.reduce
LARGEST = np.maximum.reduce
"""Called as they are: the methods of arrays take twice as long for some hundred numbers."""


class Ragged:
    """Samples of different lengths in one array: number i is `values[starts[i]:stops[i]]`.

    Made from offsets, number i is `values[offsets[i]:offsets[i + 1]]`: end to end, if not from 0 on. A batched step of
    a staged dataset gets them end to end and from 0 on, in memory of its own, which it may change.

    Args:
        values: [total, *shape].
        offsets: whole numbers [n + 1], in place of `starts` and `stops`.
        starts: whole numbers [n].
        stops: whole numbers [n].
        place: where the samples are stored, for messages.

    Examples:
        >>> ragged = headrace.types.Ragged(np.arange(5), np.array([0, 2, 5]))
        >>> ragged[1], ragged.lengths
        (array([2, 3, 4]), array([2, 3]))
    """

    __slots__ = ("_checked", "_offsets", "place", "starts", "stops", "values")

    def __init__(
        self, values: Array, offsets: Array | None = None, starts: Any = None, stops: Any = None, place: object = None
    ) -> None:
        self.values = values
        self.place = place
        self._offsets = offsets
        self._checked: tuple[int, Keys, Keys] | None = None
        """What `pieces` returned to `check`, and how many values there were."""
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
                fix = "take starts and stops, or Ragged(*ragged.packed())"
                raise UsageError.about("these samples do not lie end to end", found="gaps between them", fix=fix)

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
        """Returns other values at the same offsets.

        Args:
            values: [total, *any shape], as many as there are.

        Returns:
            New samples; these stay as they are.

        Raises:
            UsageError: another number of values.

        Examples:
            >>> ragged = headrace.types.Ragged(np.arange(5), np.array([0, 2, 5]))
            >>> ragged.with_values(2 * ragged.values)[1]
            array([4, 6, 8])
        """
        if len(values) != len(self.values):
            found = f"{len(values):,}"
            expected = f"{len(self.values):,} values, one for each that is replaced"
            raise UsageError.about("these values do not fit the offsets", found=found, expected=expected)
        replaced = Ragged(values, self._offsets, self.starts, self.stops, self.place)
        # Columns of one batch are known to lie at the same places by these very arrays.
        replaced.starts = self.starts
        replaced.stops = self.stops
        return replaced

    def rows(self, start: int, stop: int) -> Ragged:
        """Gives neighbouring samples, without a copy.

        Args:
            start: number of the first.
            stop: number behind the last.

        Returns:
            Samples that share these ones' values.

        Examples:
            >>> headrace.types.Ragged(np.arange(5), np.array([0, 2, 5])).rows(1, 2)[0]
            array([2, 3, 4])
        """
        return Ragged(self.values, None, self.starts[start:stop], self.stops[start:stop], self.place)

    def pieces(self, keys: Keys | None = None) -> tuple[Keys, Keys]:
        """Returns starts and lengths of samples: int64 [n] each, not to be written to. None: of all samples.

        Raises `FormatError` if they make no sense: data may be damaged.
        """
        # Offsets come from a file, and are checked where they are used: checking all of them would read them all, which
        # for a mapped file of a thousand million samples takes minutes.
        if keys is None:
            if self._checked is not None and self._checked[0] == len(self.values):
                return self._checked[1:]
            if self._offsets is not None:
                return self._pieces_end_to_end(self._offsets)
            starts = self.starts.astype(np.int64)
            stops = self.stops.astype(np.int64)
        else:
            starts = self.starts[keys].astype(np.int64, copy=False)
            stops = self.stops[keys].astype(np.int64, copy=False)

        lengths = stops - starts
        if len(starts) == 0:
            return starts, lengths

        # One pass for all three: where one of them is negative, so is the number that has the bits of all.
        if int(SMALLEST(starts | stops | lengths)) < 0 or int(LARGEST(stops)) > len(self.values):
            raise damaged_offsets(self.place)

        return starts, lengths

    def _pieces_end_to_end(self, offsets: Array) -> tuple[Keys, Keys]:
        """Returns what `pieces` does of all samples. Each stop is the next start, so that it need not be looked at."""
        offsets = offsets.astype(np.int64)
        starts = offsets[:-1]
        lengths = offsets[1:] - starts
        if len(starts) and (int(SMALLEST(starts | lengths)) < 0 or not 0 <= int(offsets[-1]) <= len(self.values)):
            raise damaged_offsets(self.place)

        return starts, lengths

    def check(self) -> None:
        """Checks all samples, and keeps what `pieces` says of them. Raises `FormatError` as that does.

        For samples whose offsets nobody changes until `pieces` is called, or `check` again.
        """
        self._checked = None
        self._checked = len(self.values), *self.pieces()

    def take(self, keys: Keys) -> Ragged:
        """Copies some samples, end to end.

        Args:
            keys: their numbers, in the order wanted.

        Returns:
            Samples with memory of their own.

        Examples:
            >>> headrace.types.Ragged(np.arange(5), np.array([0, 2, 5])).take(np.array([1, 0])).values
            array([2, 3, 4, 0, 1])
        """
        starts, lengths = self.pieces(keys)
        offsets = offsets_of(lengths)
        values = np.empty((int(offsets[-1]), *self.values.shape[1:]), self.values.dtype)
        copy_pieces(self.values, starts, lengths, values, offsets)
        return Ragged(values, offsets)

    def packed(self) -> tuple[Array, Keys]:
        """Gives the samples end to end, and their offsets from 0 on.

        Returns:
            Values [total, *shape] and int64 [n + 1]; without a copy where the samples lie so already.

        Examples:
            >>> headrace.types.Ragged(np.arange(5), starts=np.array([3]), stops=np.array([5])).packed()
            (array([3, 4]), array([0, 2]))
        """
        if len(self) == 0:
            return self.values[:0], np.zeros(1, np.int64)
        if self._offsets is None and not (self.starts[1:] == self.stops[:-1]).all():
            taken = self.take(np.arange(len(self)))
            return taken.values, np.append(taken.starts, taken.stops[-1:])

        first = int(self.starts[0])
        last = int(self.stops[-1])
        if not 0 <= first <= last <= len(self.values):
            self.pieces()

        if self._offsets is not None:
            offsets = self._offsets.astype(np.int64)
        else:
            offsets = np.empty(len(self) + 1, np.int64)
            offsets[:-1] = self.starts
            offsets[-1] = last

        offsets -= first
        return self.values[first:last], offsets

    @property
    def is_packed(self) -> bool:
        """Whether `packed` would return just these values and offsets, and these make sense."""
        offsets = self._offsets
        if offsets is None or offsets.dtype != np.int64 or int(offsets[0]) or int(offsets[-1]) != len(self.values):
            return False
        return len(offsets) == 1 or int(SMALLEST(offsets[1:] - offsets[:-1])) >= 0

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
        """The values of all samples, one behind the other."""
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
    fix = "restore the file, or pack the data again"
    what = "stored offsets are damaged"
    return FormatError.about(what, place=place, found=found, expected="ascending offsets", fix=fix)


def offsets_of(lengths: Keys) -> Keys:
    """Returns where samples of these lengths begin when they lie end to end, and where the last one ends [n + 1]."""
    offsets = np.zeros(len(lengths) + 1, np.int64)
    lengths.cumsum(out=offsets[1:])
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

    if by_element(total, len(lengths), row_bytes(source)):
        # The indices take eight bytes an element, so that long samples are copied one by one. `pieces` has checked the
        # bounds already, and `clip` saves NumPy a buffer that it needs to raise an error.
        steps = element_places(starts, lengths, total, np.asarray(at[: len(lengths)]))
        source.take(steps, 0, out[:total], "clip")
        return

    copy_each(source, starts, lengths, out, at[: len(lengths)])


def row_bytes(values: Array) -> int:
    """Returns how many bytes an element takes: `values[0]`."""
    return values.itemsize * math.prod(values.shape[1:])


def by_element(total: int, count: int, row: int) -> bool:
    """Tells whether one index for each of `total` elements is quicker than one copy for each of `count` samples.

    row: bytes of an element.
    """
    return total < ELEMENTS * count and total * row < LONG * count


def element_places(starts: Keys, lengths: Keys, total: int, before: Keys) -> Keys:
    """Returns where each element of samples lies, int64 [total]. before: the sum of the lengths in front of each."""
    places = (starts - before).repeat(lengths)
    places += np.arange(total)
    return places


def copy_each(source: Array, starts: Keys, lengths: Keys, out: Array, at: Array) -> None:
    """Copies pieces `source[starts[i]:starts[i] + lengths[i]]` to `out[at[i]:...]`, one after the other.

    source, out: [any, *shape] of the same shape; of two types, values are converted.
    """
    if source.dtype != out.dtype or not source.flags.c_contiguous or not out.flags.c_contiguous:
        for start, length, to in zip(starts.tolist(), lengths.tolist(), at.tolist(), strict=True):
            out[to : to + length] = source[start : start + length]
        return

    # Python slices a memoryview in half the time of an array.
    row = row_bytes(source)
    given = source.reshape(-1).view(BYTE).data
    written = out.reshape(-1).view(BYTE).data
    sizes = (lengths * row).tolist()
    for start, size, to in zip((starts * row).tolist(), sizes, (at * row).tolist(), strict=True):
        written[to : to + size] = given[start : start + size]


def texts_in(values: Array, starts: Keys, lengths: Keys, place: object = None) -> list[str]:
    """Returns the strings whose UTF-8 lies at `values[starts[i]:starts[i] + lengths[i]]`: uint8 [any].

    place: of text that is no UTF-8, for the log.
    """
    if not len(starts):
        return []

    # A comprehension and a slice for each string: it runs for each string of each batch.
    stops = starts + lengths
    first = int(starts.min())
    last = int(stops.max())
    if last - first <= DENSE * int(lengths.sum()):
        data = values[first:last].tobytes()
        if data.isascii():
            text = data.decode("ascii")
            begins = (starts - first).tolist()
            return [text[begin:end] for begin, end in zip(begins, (stops - first).tolist(), strict=True)]

    return [text_of(values[begin:end], place) for begin, end in zip(starts.tolist(), stops.tolist(), strict=True)]


def text_of(values: Array, place: object = None) -> str:
    """Returns the string whose UTF-8 these bytes are; what is none comes as surrogates, which the log tells.

    place: what is named there, once; or a function that returns it.
    """
    data = values.tobytes()
    try:
        return data.decode()
    except UnicodeDecodeError:
        if callable(place):
            place = place()
        told = (
            f"{place or 'a column'} holds text that is no UTF-8: {data[:60]!r}. What is none comes as surrogate "
            "escapes; text.encode('utf-8', 'surrogateescape') gives the bytes. Write the data in UTF-8."
        )
        warn_once(f"no UTF-8 in {place}", told)
    return data.decode("utf-8", "surrogateescape")
