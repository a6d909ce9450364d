"""A window of documents of a stream: read ahead, planned together, and given pack by pack."""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal
from zlib import crc32

import numpy as np

from headrace.core.errors import DatasetError, SampleError
from headrace.core.randomness.counter_based import stream_key
from headrace.core.randomness.rng import sample_streams
from headrace.core.text.log_once import warn_once
from headrace.data.stream_pass import StreamPass
from headrace.faults.classify import IN_A_ROW, is_never_skipped
from headrace.packing.document_pack import DocumentPack
from headrace.packing.fit import FITS, Fit, Numbers, Packs
from headrace.samplers.windowed import shuffled

PLACE = "headrace.PackedStream"

TooLong = Literal["raise", "cut"]

NONE: Numbers = np.zeros(0, np.int64)


@dataclass(frozen=True)
class Packing:
    """How documents of a stream are packed."""

    budgets: dict[str, int]
    fit: Fit
    too_long: TooLong
    window: int
    sizes: Callable[[Any], list[int]]
    """Returns the size of a document by each budget."""

    @property
    def plan(self) -> dict[str, Any]:
        """The arguments that decide which documents are in a pack."""
        budgets = dict(self.budgets)
        return {"budget": budgets, "fit": self.fit, "too_long": self.too_long, "window": self.window}


class StreamWindow:
    """The next documents of a stream, and their packs. Begins where the stream is.

    A document that cannot be read is left out, and the first pack tells its exception.

    Args:
        packing: how documents are packed.
        source: the stream.
        first: how many documents came before, the bad ones too.
    """

    def __init__(self, packing: Packing, source: StreamPass, first: int) -> None:
        self.first = first
        # A copy: a stream may hand out the very object that it goes on with.
        self.begins_at = copy.deepcopy(source.state_dict())
        self.digest = 0
        """Of the lengths; 0 as long as it is not planned."""
        self.is_last = False
        """Whether the stream has ended in it."""
        self.given = 0
        """How many packs have come."""
        self._packing = packing
        self._source = source
        self._documents: list[Any] = []
        self._numbers: list[int] = []
        """Of the documents in the stream."""
        self._sizes: list[list[int]] = []
        self._errors: list[tuple[int, Exception]] = []
        """Of the bad documents: the number of each, and its exception."""
        self._failure: Exception | None = None
        """What ended the reading. It is raised once the packs of the window before have come."""
        self._lengths = self._places = NONE
        self._packs = Packs(NONE, NONE, NONE, NONE)
        self._order: list[int | None] = []
        """The packs, in the order in which they come."""
        self._last_pieces = NONE
        """Of each document: the piece with which it is over."""

    @property
    def end(self) -> int:
        """How many documents have come up to here, the bad ones too."""
        return self.first + len(self._documents) + len(self._errors)

    @property
    def packs_left(self) -> int:
        """How many packs are still to come."""
        return len(self._order) - self.given

    @property
    def documents_left(self) -> int:
        """How many documents are still to be read, as far as is known."""
        if self.is_last or self._failure is not None:
            return 0
        return self.first + self._packing.window - self.end

    def read(self, count: int) -> None:
        """Reads so many more documents, at most."""
        until = self.end + count
        with sample_streams() as begin:
            while self.end < until and self.documents_left:
                begin(self.end)
                self._read_one()

    def make_packs(self) -> None:
        """Reads what is left, and puts the documents into packs."""
        self.read(self.documents_left)
        if self._failure is not None:
            failure, self._failure = self._failure, None
            raise failure

        packing = self._packing
        budgets = np.array(list(packing.budgets.values()), np.int64)
        sizes: Numbers = np.array(self._sizes, np.int64).reshape(len(self._sizes), len(budgets))
        self.digest = crc32(sizes.tobytes()) or 1
        self._lengths = sizes[:, 0]
        self._places = np.array(self._numbers, np.int64)
        if packing.too_long == "cut" and packing.fit != "split":
            sizes = np.minimum(sizes, budgets)
        packs = FITS[packing.fit](sizes, budgets)
        order = np.arange(len(packs))
        if packing.fit == "best":
            order = shuffled(order, stream_key(self.first))
        self._packs = packs
        self._order = [*order.tolist()]
        # What was left out must be told, also where nothing else came: by a pack without documents.
        if self._errors and not self._order:
            self._order = [None]
        self._last_pieces = np.zeros(len(sizes), np.int64)
        self._last_pieces[packs.documents] = np.arange(len(packs.documents))

    def next_pack(self) -> DocumentPack:
        """Returns the next pack."""
        errors = self._errors if self.given == 0 else []
        number = self._order[self.given]
        self.given += 1
        row = next(iter(self._packing.budgets.values()))
        if number is None:
            return DocumentPack([], NONE, NONE, NONE, NONE, row, errors)

        pieces = np.arange(self._packs.edges[number], self._packs.edges[number + 1])
        documents = self._packs.documents[pieces]
        pack = DocumentPack(
            [self._documents[document] for document in documents.tolist()],
            self._places[documents],
            self._packs.starts[pieces],
            self._packs.stops[pieces],
            self._lengths[documents],
            row,
            errors,
        )
        # The next window is read meanwhile: so no more than one window of documents is in memory.
        for document in documents[self._last_pieces[documents] == pieces].tolist():
            self._documents[document] = None
        return pack

    def skip_packs(self, count: int) -> None:
        """Goes behind packs that have come before."""
        for _ in range(count):
            self.next_pack()

    def _read_one(self) -> None:
        """Reads a document; one that is bad is left out, and its exception kept."""
        try:
            document = self._source.next()
            sizes = self._checked(document)
        except StopIteration:
            self.is_last = True
            return
        except Exception as error:  # noqa: BLE001 - one that ends the stream is raised by `make_packs`
            # A generator that has ended raises the same exception for ever.
            is_the_same = bool(self._errors) and error is self._errors[-1][1]
            if is_never_skipped(error) or is_the_same:
                self._failure = error
                return
            error.add_note(f"headrace: raised by document number {self.end} of this iterator, which was read ahead")
            self._errors.append((self.end, error))
            if self._source.is_stuck:
                self._failure = _stuck(self.end, error)
        else:
            self._numbers.append(self.end)
            self._documents.append(document)
            self._sizes.append(sizes)

    def _checked(self, document: Any) -> list[int]:
        """Returns the sizes of a document. Raises `SampleError` if one is too long."""
        sizes = self._packing.sizes(document)
        for (name, most), size in zip(self._packing.budgets.items(), sizes, strict=True):
            if size <= most or self._packing.fit == "split":
                continue
            place = self._source.place_of_last(None)
            if self._packing.too_long == "raise":
                raise SampleError.about(
                    "a document is longer than a pack may be",
                    place=place,
                    found=f"{size:,} {name}",
                    expected=f"at most the budget of {most:,}",
                    fix="raise the budget, or choose fit='split', or too_long='cut'; on_error='skip' leaves it out",
                )
            warn_once(
                f"{PLACE} {name} {most}",
                f"documents longer than the budget of {most:,} {name} are cut, as too_long='cut' asks; the first: "
                f"{place}, {size:,} {name}",
            )
        return sizes


def _stuck(documents: int, last: Exception) -> DatasetError:
    """Returns the error for a stream that gives bad documents only."""
    failure = DatasetError.about(
        "the stream gives no good documents any more",
        place=f"{PLACE}, behind document number {documents - IN_A_ROW - 1}",
        found=f"{IN_A_ROW} bad ones, one behind the other; the last: {type(last).__name__}: {last}",
        expected="a stream whose documents are good in the main",
        fix="see whether the dataset itself is at fault",
    )
    failure.__cause__ = last
    return failure
