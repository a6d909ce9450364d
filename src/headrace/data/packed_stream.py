"""Documents of a stream packed to a budget: a window of them is read ahead, and its packs come one after the other."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from numbers import Integral
from typing import Any

from torch.utils.data import IterableDataset

from headrace.core.errors import StateError, UsageError, checked_word, wrong_argument
from headrace.core.protocols import says_yes, tell_epoch
from headrace.data.sample_tokens import tokens_of
from headrace.data.stream_pass import StreamPass
from headrace.data.stream_steps import FluentStream
from headrace.data.stream_window import PLACE, Packing, StreamWindow, TooLong
from headrace.packing.document_pack import DocumentPack
from headrace.packing.fit import Fit
from headrace.samplers.lengths import TOKENS, checked_budgets
from headrace.samplers.sampler import positive

WINDOW = 10_000


class PackedStream(FluentStream):
    """Documents of a stream, packed end to end, up to a budget.

    Each worker reads a window of documents of its part of the stream, plans its packs, and gives one after the other;
    `headrace.collate_packed` makes batches of them. With each pack, a share of the next window is read: only the first
    pack waits for a whole one. The last pack of a window is only as full as it happens to be.

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
        packing = Packing(self.budgets, self.fit, self.too_long, self.window, self.sizes)
        return PackedIterator(packing, StreamPass(self._stream))

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

    With each pack a part of the next window is read, so that no pack waits for a whole one, but the first.
    """

    def __init__(self, packing: Packing, source: StreamPass) -> None:
        self._packing = packing
        self._source = source
        self._window = StreamWindow(packing, source, 0)
        self._next: StreamWindow | None = None
        """The window behind it, as soon as its reading has begun."""
        self._ahead: DocumentPack | None = None
        """A pack whose exceptions `__next__` raises first."""
        self._untold: list[tuple[int, Exception]] = []
        self._begun: dict[str, Any] | None = None
        """The state of a window that is to be read again."""

    def __iter__(self) -> Iterator[DocumentPack]:
        return self

    def __next__(self) -> DocumentPack:
        if self._ahead is None:
            self._ahead = self.next_pack()
            self._untold = [*self._ahead.errors]
        if self._untold:
            raise self._untold.pop(0)[1]
        pack, self._ahead = self._ahead, None
        return pack

    def next_pack(self) -> DocumentPack:
        """Returns the next pack, with the exceptions of documents that were left out before it."""
        # Not sooner: only where a sample is asked for, its random numbers are those that were drawn before.
        if self._begun is not None:
            self._go_on(self._begun)
        if not self._window.digest:
            self._window.make_packs()
        while not self._window.packs_left:
            if self._window.is_last:
                raise StopIteration
            following = self._following()
            following.make_packs()
            self._window, self._next = following, None
        self._read_ahead()
        return self._window.next_pack()

    def _following(self) -> StreamWindow:
        if self._next is None:
            self._next = StreamWindow(self._packing, self._source, self._window.end)
        return self._next

    def _read_ahead(self) -> None:
        """Reads as many documents of the next window as its share for each pack that is left of this one."""
        if not self._window.is_last:
            following = self._following()
            following.read(-(-following.documents_left // self._window.packs_left))

    def place_of_last(self, part: str | int | None) -> str:
        """Returns where the document that was read last comes from. part: a column, if only one is meant."""
        return self._source.place_of_last(part)

    @property
    def documents(self) -> int:
        """How many documents were read for the packs that came, the bad ones too, and those of the window's others."""
        if self._window.given:
            return self._window.end
        return self._window.first

    # -- state ---------------------------------------------------------------------------------------------------------

    def state_dict(self) -> dict[str, Any]:
        """Returns where the window begins, and how many of its packs have come."""
        if self._begun is not None:
            return self._begun
        window = self._window
        given = window.given - (self._ahead is not None)
        place = {"stream": window.begins_at, "read": window.first, "packs": given, "digest": window.digest}
        return {**place, "plan": self._packing.plan}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Goes on behind the packs that were given: reads their window again."""
        self._check_plan(state_dict["plan"])
        self._source.load_state_dict(state_dict["stream"])
        self._window = StreamWindow(self._packing, self._source, state_dict["read"])
        self._window.begins_at = state_dict["stream"]
        self._next = self._ahead = self._begun = None
        if state_dict["digest"]:
            self._begun = state_dict

    def _check_plan(self, plan: dict[str, Any]) -> None:
        """Raises `StateError` if packs were planned in another way when the state was saved."""
        for name, mine in self._packing.plan.items():
            if plan.get(name) != mine:
                raise StateError.about(
                    "this state belongs to packs that were made in another way",
                    place=PLACE,
                    found=f"{name}={plan.get(name)!r} in the state, {name}={mine!r} here",
                    expected="the same arguments: with others, documents would come twice, and others never",
                    fix=f"pack with {name}={plan.get(name)!r} until the epoch has ended, or begin it anew",
                )

    def _go_on(self, begun: dict[str, Any]) -> None:
        """Reads a window again that was begun, and goes behind the packs that were given."""
        self._window.make_packs()
        if self._window.digest != begun["digest"]:
            raise StateError.about(
                "the stream gives other documents than it gave before",
                place=PLACE,
                found=f"documents of other lengths behind number {begun['read']}",
                expected="the documents of the window that was begun",
                fix="if steps draw random numbers, give the loader a seed=; if the data have changed, begin anew",
            )
        self._begun = None
        self._window.skip_packs(begun["packs"])
