"""Documents of a stream packed to a budget: a window of them is read ahead, and its packs come one after the other."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Iterator, Mapping
from numbers import Integral
from typing import Any, Literal
from zlib import crc32

import numpy as np
from torch.utils.data import IterableDataset

from headrace.core.errors import SampleError, StateError, UsageError, checked_word, wrong_argument
from headrace.core.protocols import says_yes, tell_epoch
from headrace.core.randomness.counter_based import stream_key
from headrace.core.randomness.rng import sample_streams
from headrace.core.text.log_once import warn_once
from headrace.data.sample_tokens import tokens_of
from headrace.data.stream_pass import StreamPass
from headrace.data.stream_steps import FluentStream
from headrace.faults.classify import is_never_skipped
from headrace.packing.document_pack import DocumentPack
from headrace.packing.fit import FITS, Fit, Numbers, Packs
from headrace.samplers.lengths import TOKENS, checked_budgets
from headrace.samplers.sampler import positive
from headrace.samplers.windowed import shuffled

PLACE = "headrace.PackedStream"

TooLong = Literal["raise", "cut"]

WINDOW = 10_000

NO_PACK = -1


class PackedStream(FluentStream):
    """Documents of a stream, packed end to end, up to a budget.

    Each worker reads a window of documents of its part of the stream, plans its packs, and gives one after the other;
    `headrace.collate_packed` makes batches of them. The last pack of a window is only as full as it happens to be.

    A state holds the state of the stream at the beginning of the window, and how many packs came. A resume reads the
    window again and goes on with the next pack. A stream without a state is read again from its beginning. Random
    steps of the stream draw the same numbers again with `DataLoader(seed=)`; without it they draw others, and if the
    window then has documents of other lengths, that is an error.

    Args:
        stream: an iterable dataset of documents: mappings with `input_ids`, or tokens.
        budget: how long a pack may be, in tokens; or a mapping from names to numbers, as for `PackedBatchSampler`.
        fit: as for `PackedBatchSampler`.
        too_long: a document longer than the budget is an error with `"raise"`, so that `on_error="skip"` leaves it out
            and counts it; with `"cut"` its beginning is taken, and a warning says so
            once in each worker. `"split"` knows none.
        window: documents that are read ahead and planned together, in each worker.
        length: takes a document and returns its tokens, or a mapping of a number for each budget. By default the length
            of its `input_ids`, or its own.

    Raises:
        UsageError: wrong arguments.

    Examples:
        >>> documents = headrace.mix([[[1, 2, 3], [4]], [[5, 6], [7, 8]]], weights=[1, 1])
        >>> stream = headrace.PackedStream(documents, budget=5)
        >>> loader = headrace.DataLoader(stream, batch_size=2, collate_fn=headrace.collate_packed)
        >>> next(iter(loader))["input_ids"].shape
        torch.Size([2, 5])
    """

    def __init__(
        self,
        stream: Any,
        budget: int | Mapping[str, int],
        *,
        fit: Fit = "best",
        too_long: TooLong = "raise",
        window: int = WINDOW,
        length: Callable[[Any], Any] | None = None,
    ) -> None:
        has_numbers = hasattr(stream, "__getitem__") and not isinstance(stream, IterableDataset)
        if has_numbers or not isinstance(stream, Iterable):
            expected = "an iterable dataset; for one with numbered samples, PackedBatchSampler"
            raise wrong_argument("stream", stream, expected, place=PLACE, found=f"a {type(stream).__name__}")
        self.budgets = checked_budgets(budget)
        self._named = isinstance(budget, Mapping)
        checked_word("fit", fit, Fit, place=PLACE)
        checked_word("too_long", too_long, TooLong, place=PLACE)
        if len(self.budgets) > 1 and (fit == "split" or too_long == "cut"):
            raise wrong_argument("budget", budget, "one number, where documents are cut", place=PLACE)
        if length is not None and not callable(length):
            raise wrong_argument("length", length, "a function that takes a document", place=PLACE)
        if self._named and length is None:
            raise wrong_argument("length", length, "a function, where budgets have names", place=PLACE)

        self.fit = fit
        self.too_long = too_long
        self.window = positive("window", window)
        self._stream = stream
        self._length = length

    def __iter__(self) -> PackedIterator:
        return PackedIterator(self, StreamPass(self._stream))

    def set_epoch(self, epoch: int) -> None:
        """Tells the stream the number of the epoch."""
        tell_epoch(self._stream, epoch)

    @property
    def lies_elsewhere(self) -> bool:
        """Whether samples are read from an object store or a server."""
        return says_yes(self._stream, "lies_elsewhere")

    def sizes(self, document: Any) -> list[int]:
        """Returns the size of a document by each budget. Raises `UsageError` if it has none."""
        told: Any = None
        if not self._named:
            told = {TOKENS: tokens_of(document, self._length, PLACE)}
        elif self._length is not None:
            told = self._length(document)
        if not isinstance(told, Mapping) or set(told) != set(self.budgets):
            raise _no_sizes(repr(told), f"a mapping with {', '.join(map(repr, self.budgets))}")
        for name in self.budgets:
            if not isinstance(told[name], Integral) or told[name] < 0:
                raise _no_sizes(f"{told[name]!r} {name}", "whole numbers from 0 up")
        return [int(told[name]) for name in self.budgets]

    def __repr__(self) -> str:
        return f"packs of {self._stream!r}"


def _no_sizes(found: str, expected: str) -> UsageError:
    what, fix = "cannot tell how long a document is", "return one number for each budget"
    return UsageError.about(what, place=f"{PLACE}(length=)", found=found, expected=expected, fix=fix)


class PackedIterator:
    """One pass over a stream: window after window, and its packs.

    A document that cannot be read is left out, and the first pack of its window tells its exception.
    """

    def __init__(self, stream: PackedStream, source: StreamPass) -> None:
        self._stream = stream
        self._source = source
        self._is_over = False
        self._read = 0
        """Documents that came before this window, the bad ones too."""
        self._ahead: DocumentPack | None = None
        """A pack whose exceptions `__next__` raises first."""
        self._untold: list[Exception] = []
        self._begun: dict[str, Any] | None = None
        """The state of a window that is to be read again."""
        self._begin_window()

    def _begin_window(self) -> None:
        # A copy: a stream may hand out the very object that it goes on with.
        self._at_beginning = copy.deepcopy(self._source.state_dict())
        self._documents: list[Any] = []
        self._sizes: list[list[int]] = []
        self._errors: list[Exception] = []
        self._digest = 0
        self._lengths: Numbers = np.zeros(0, np.int64)
        self._packs: Packs | None = None
        """None: the window is not planned yet."""
        self._turns: Numbers = np.zeros(0, np.int64)
        self._given = 0

    def __iter__(self) -> Iterator[DocumentPack]:
        return self

    def __next__(self) -> DocumentPack:
        if self._ahead is None:
            self._ahead = self.next_pack()
            self._untold = [*self._ahead.errors]
        if self._untold:
            raise self._untold.pop(0)
        pack, self._ahead = self._ahead, None
        return pack

    def next_pack(self) -> DocumentPack:
        """Returns the next pack, with the exceptions of documents that were left out before it."""
        # Not sooner: only where a sample is asked for, its random numbers are those that were drawn before.
        if self._begun is not None:
            self._go_on(self._begun)
        while self._packs is None or self._given == len(self._turns):
            if self._packs is not None:
                if self._is_over:
                    raise StopIteration
                self._begin_window()
            self._plan()
        pack = self._pack(int(self._turns[self._given]))
        self._given += 1
        return pack

    def _plan(self) -> None:
        """Reads the window, and puts its documents into packs."""
        with sample_streams() as begin:
            while len(self._documents) < self._stream.window and not self._is_over:
                begin(self._read)
                self._read_one()

        sizes: Numbers = np.array(self._sizes, np.int64).reshape(len(self._sizes), len(self._stream.budgets))
        budgets = np.array(list(self._stream.budgets.values()), np.int64)
        self._digest = crc32(sizes.tobytes()) or 1
        self._lengths = sizes[:, 0]
        if self._stream.too_long == "cut" and self._stream.fit != "split":
            sizes = np.minimum(sizes, budgets)
        self._packs = FITS[self._stream.fit](sizes, budgets)
        self._turns = np.arange(len(self._packs))
        if self._stream.fit == "best":
            self._turns = shuffled(self._turns, stream_key(self._read))
        # What was left out must be told, also where nothing else came: by a pack without documents.
        if self._errors and not len(self._turns):
            self._turns = np.array([NO_PACK])

    def _read_one(self) -> None:
        """Reads a document into the window; one that is bad is left out, and its exception kept."""
        number = self._read
        try:
            document = self._source.next()
            sizes = self._checked(document)
        except StopIteration:
            self._is_over = True
            return
        except Exception as error:
            # A generator that has ended raises the same exception for ever.
            if is_never_skipped(error) or (self._errors and error is self._errors[-1]):
                raise
            error.add_note(f"headrace: raised by document number {number} of this iterator, which was read ahead")
            self._errors.append(error)
        else:
            self._documents.append(document)
            self._sizes.append(sizes)
        self._read += 1

    def _checked(self, document: Any) -> list[int]:
        """Returns the sizes of a document. Raises `SampleError` if one is too long."""
        sizes = self._stream.sizes(document)
        for (name, most), size in zip(self._stream.budgets.items(), sizes, strict=True):
            if size <= most or self._stream.fit == "split":
                continue
            place = self._source.place_of_last(None)
            if self._stream.too_long == "raise":
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

    def _pack(self, number: int) -> DocumentPack:
        packs = self._packs
        errors = self._errors if self._given == 0 else []
        row = next(iter(self._stream.budgets.values()))
        none = np.zeros(0, np.int64)
        if packs is None or number == NO_PACK:
            return DocumentPack([], none, none, none, row, errors)
        pieces = slice(packs.edges[number], packs.edges[number + 1])
        documents = packs.documents[pieces]
        return DocumentPack(
            [self._documents[document] for document in documents.tolist()],
            packs.starts[pieces],
            packs.stops[pieces],
            self._lengths[documents],
            row,
            errors,
        )

    def place_of_last(self, part: str | int | None) -> str:
        """Returns where the document that was read last comes from. part: a column, if only one is meant."""
        return self._source.place_of_last(part)

    # -- state ---------------------------------------------------------------------------------------------------------

    def state_dict(self) -> dict[str, Any]:
        """Returns where the window begins, and how many of its packs have come."""
        if self._begun is not None:
            return self._begun
        given = self._given - (self._ahead is not None)
        read = self._read - len(self._documents) - len(self._errors)
        return {"stream": self._at_beginning, "read": read, "packs": given, "digest": self._digest}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Goes on behind the packs that were given: reads their window again."""
        self._source.load_state_dict(state_dict["stream"])
        self._is_over = False
        self._read = state_dict["read"]
        self._ahead = self._begun = None
        self._begin_window()
        self._at_beginning = state_dict["stream"]
        if state_dict["digest"]:
            self._begun = state_dict

    def _go_on(self, begun: dict[str, Any]) -> None:
        """Reads a window again that was begun, and goes behind the packs that were given."""
        self._plan()
        if self._digest != begun["digest"]:
            raise StateError.about(
                "the stream gives other documents than it gave before",
                place=PLACE,
                found=f"documents of other lengths behind number {begun['read']}",
                expected="the documents of the window that was begun",
                fix="if steps draw random numbers, give the loader a seed=; if the data have changed, begin anew",
            )
        self._begun = None
        self._given = begun["packs"]
