"""Documents packed to a budget: a batch sampler whose packs are a function of lengths, seed, epoch and window."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any, Literal, Unpack

import numpy as np
import numpy.typing as npt

from headrace.core.errors import UsageError, checked_word, wrong_argument
from headrace.core.protocols import says_yes
from headrace.core.randomness.counter_based import stream_key
from headrace.core.world import World
from headrace.packing.fit import FITS, Fit, Numbers, Packs
from headrace.packing.shapes import LONGEST, best_lengths, counts_of
from headrace.samplers.frameworks import is_read_by_torch
from headrace.samplers.lengths import Lengths, checked_budgets, columns_of, digest_of_lengths
from headrace.samplers.mixture import MixtureSampler
from headrace.samplers.packed_batch import PackedWindow
from headrace.samplers.packed_shares import warn_of_other_shares
from headrace.samplers.sampler import Dealing, Keys, PositionalSampler, State, digest_of, positive
from headrace.samplers.windowed import (
    BATCHES,
    PACKS,
    Batch,
    PlannedWindow,
    WindowedBatchSampler,
    group_of,
    shuffled,
    shuffled_in_groups,
)

TooLong = Literal["raise", "cut", "skip"]
Balance = Literal["tokens", "attention"] | Callable[[Any], npt.ArrayLike]

FEWEST_PACKS = 500
"""Of a window. Its last pack is half full on average: of so many, that is a thousandth of the tokens."""
FEWEST_BALANCED = 4096
"""Packs of a window where ranks are to get like ones: the more there are, the more alike neighbours are."""
FEWEST, MOST = 10_000, 1 << 17
"""Documents of a window, unless the user says how many. A resume plans one window: so many take a tenth of a second."""

DOCUMENTS_ASKED = 1000
"""Documents by whose costs a state tells one function of the user's from another."""


class PackedBatchSampler(WindowedBatchSampler):
    """Batches of packs: documents end to end, up to a budget.

    A window of the shuffled order is planned at a time. The plan is a function of the lengths, the seed, the epoch and
    the number of the window. So a state is two numbers, and any number of ranks and accumulation steps goes through the
    same batches in the same order: R ranks take R batches at a time.

    Args:
        lengths: the length of each document in tokens, whole numbers, shape (n,); it is not copied. With several
            budgets a mapping from the name of each to such an array.
        budget: how long a pack may be; or a mapping from names to numbers, `{"tokens": 8192, "patches": 4096}`, all of
            which hold at once. `tokens`, or else the first one, is that of the rows.
        packs: how many packs a batch has. In the last batch of a window, some may be without documents.
        fit: `"best"` keeps documents whole and pads least; `"first"` keeps them whole, and nearly in their order;
            `"split"` cuts them at the budget, and the next pack goes on with the rest. It takes one budget.
        too_long: a document longer than the budget is an error with `"raise"`, cut to its beginning with `"cut"`, and
            left out with `"skip"`; the attribute `too_long_count` says how many there are. `"split"` knows none.
        window: documents that are planned together; None: as many as give full packs and, with `balance`, like ones.
        balance: what the ranks get like amounts of in each step: `"tokens"`; `"attention"`, the sum of the squares of
            the lengths; or a function that takes the lengths of documents (an array; with several budgets a mapping)
            and returns the cost of each. None: any batches.
        order: in which order documents come: a sampler of single keys, for example a `MixtureSampler` of several
            sources, whose samples are packed together. Weights that are asked for are asked for each window. None:
            `shuffle` and `seed` decide.
        shapes: to how many lengths packs are padded at most: those that pad the packs of the first window least, and
            the budget. 1: all to the budget.
        shuffle: whether each epoch has another order; otherwise windows, and with `"first"` and `"split"` also packs,
            follow the order of the dataset.
        seed: of the order.
        dealing: `rank`, `world_size` and `uneven`, as in `DistributedSampler`, but `uneven` counts batches.

    Raises:
        UsageError: wrong arguments, or a document that is too long.

    Examples:
        >>> sampler = headrace.samplers.PackedBatchSampler([9, 2, 8, 3], budget=11, shuffle=False)
        >>> [batch.packs for batch in sampler]
        [[[(0, 0, 9), (1, 0, 2)]], [[(2, 0, 8), (3, 0, 3)]]]
    """

    batches_vary = True

    length_takes_long = True

    def __init__(  # noqa: PLR0913 - what is packed, how, and in which order
        self,
        lengths: Lengths | Mapping[str, Lengths],
        budget: int | Mapping[str, int],
        packs: int = 1,
        *,
        fit: Fit = "best",
        too_long: TooLong = "raise",
        window: int | None = None,
        balance: Balance | None = None,
        order: PositionalSampler | None = None,
        shapes: int = 1,
        shuffle: bool = True,
        seed: int = 0,
        **dealing: Unpack[Dealing],
    ) -> None:
        self.budgets = checked_budgets(budget)
        self._named = isinstance(budget, Mapping)
        self._columns = columns_of(lengths, self.budgets)
        self._most = np.array(list(self.budgets.values()), np.int64)
        self.packs = positive("packs", packs)
        self.fit = fit
        self.too_long = too_long
        self.balance = balance
        self._refuse_words()

        self.too_long_count = 0
        """How many documents are longer than the budget."""
        if fit != "split":
            self.too_long_count = self._count_too_long()
        if window is None:
            window = self._chosen_window()
        self._counted: tuple[int, int] | None = None
        self._order = order
        samples = self.samples_of_dataset
        if order is not None:
            samples = self._checked_order(order).total
        super().__init__(samples, window, shuffle=shuffle, seed=seed, **dealing)
        if isinstance(order, MixtureSampler):
            order.is_planned_for(self)
            if self.too_long_count:
                warn_of_other_shares(order.sources, order.source_edges, self._columns, too_long)
        self._digests = [digest_of_lengths(column.lengths) for column in self._columns]
        self._costs_digest = 0
        if callable(balance) and self.samples_of_dataset:
            self._costs_digest = self._digest_of_costs()
        self.rows = [int(self._most[0])]
        """The lengths to which packs are padded, in tokens, ascending."""
        if positive("shapes", shapes) > 1 and self._samples:
            self.rows = self._chosen_rows(shapes)

    def _checked_order(self, order: Any) -> PositionalSampler:
        if not isinstance(order, PositionalSampler):
            expected = "a sampler of single keys of headrace, such as MixtureSampler"
            raise wrong_argument("order", order, expected, found=f"a {type(order).__name__}")
        samples = getattr(order, "samples_of_dataset", order.total)
        if samples != self.samples_of_dataset:
            found = f"a sampler of {samples:,} samples, and {self.samples_of_dataset:,} lengths"
            raise wrong_argument("order", order, "a sampler of as many samples as there are lengths", found=found)
        return order

    @property
    def takes_all_alike(self) -> bool:
        """Whether it takes each document equally often: a bad one may be replaced by any other."""
        return self._order is None or says_yes(self._order, "takes_all_alike")

    @property
    def source_edges(self) -> Keys | None:
        """Where the sources of a mixture begin among the keys, int64 [sources + 1]; None: it is no mixture."""
        return getattr(self._order, "source_edges", None)

    @property
    def cuts(self) -> bool:
        """Whether packs have parts of documents."""
        return self.fit == "split" or (self.too_long == "cut" and self.too_long_count > 0)

    def __iter__(self) -> Iterator[Batch]:
        if self.cuts and is_read_by_torch():
            raise UsageError.about(
                "documents are cut, and torch's loader does not tell a collate function where",
                place="PackedBatchSampler",
                found="torch.utils.data.DataLoader, made by you or by a framework",
                expected="headrace.DataLoader, which tells headrace.collate_packed",
                fix="import DataLoader from headrace, or call headrace.use() before the framework makes its loader",
            )
        if self._order is not None and self._start is None:
            self._start = self._upcoming()
        yield from super().__iter__()

    @property
    def may_change(self) -> bool:
        """See `ElasticSampler.may_change`."""
        return self._order is not None and self._order.may_change

    def upcoming(self) -> State:
        return {"sampler": self.name, **self._identity(), "epoch": self.epoch, **self._upcoming()}

    def _upcoming(self) -> State:
        if self._order is None or self._start is not None:
            return super()._upcoming()
        self._order.set_epoch(self.epoch)
        # A state from before the first batch tells what the sampler brings along from the epochs before.
        return self._with_order(self._beginning())

    def adopt_world(self, world: World) -> None:
        super().adopt_world(world)
        if self._order is not None:
            self._order.adopt_world(world)

    def set_epoch(self, epoch: int) -> None:
        super().set_epoch(epoch)
        if self._order is not None:
            self._order.set_epoch(epoch)

    def _begin_window(self, epoch: int, number: int) -> None:
        if self._order is None:
            return
        if isinstance(self._order, MixtureSampler):
            self._order.begin_window(epoch, number * self.window)
        # So that its counts are those of the documents that are planned.
        self._order._go_to({"position": min((number + 1) * self.window, self._samples)})

    def _reached(self) -> State:
        return self._with_order(super()._reached())

    def _with_order(self, place: State) -> State:
        """Returns a place with the state of the sampler that orders the documents."""
        if self._order is None or "order" in place:
            return place
        return {**place, "order": self._order_before(self.epoch, place["window"], is_begun=place["batch"] > 0)}

    def _order_before(self, epoch: int, number: int, *, is_begun: bool) -> State | None:
        """Returns the state, at the beginning of a window, of the sampler that orders the documents; None: no sampler.

        is_begun: whether batches of the window have come. Then its documents stay the same up to its end.
        """
        if self._order is None:
            return None
        start = number * self.window
        planned = start
        if is_begun:
            planned = min(start + self.window, self._samples)
        return self._order.state_before(epoch, start, planned)

    def _keys_at(self, epoch: int, positions: Keys) -> Keys:
        if self._order is None:
            return super()._keys_at(epoch, positions)
        return self._order.keys_at(epoch, positions)

    def _place(self, window: PlannedWindow, batch: int) -> State:
        place = super()._place(window, batch)
        if isinstance(window, PackedWindow) and window.order is not None:
            place["order"] = window.order
        return place

    def load_state_dict(self, state_dict: State) -> None:
        super().load_state_dict(state_dict)
        order = state_dict.get("order")
        if self._order is not None and self._start is not None and order is not None:
            self._order.load_state_dict(order)
            self._start["order"] = order
            self._go_to(self._start)

    def check_state(self, state: Any) -> None:
        super().check_state(state)
        if self._order is not None and state.get("order") is not None:
            self._order.check_state(state["order"])

    @property
    def samples_of_dataset(self) -> int:
        """How many samples the dataset must have: the number of lengths."""
        return len(self._columns[0].lengths)

    def _refuse_words(self) -> None:
        checked_word("fit", self.fit, Fit)
        if self.fit == "split" and len(self.budgets) > 1:
            raise wrong_argument("fit", self.fit, "'best' or 'first', where there are several budgets")
        checked_word("too_long", self.too_long, TooLong)
        if self.too_long == "cut" and len(self.budgets) > 1:
            raise wrong_argument("too_long", self.too_long, "'raise' or 'skip', where there are several budgets")
        if not (self.balance in (None, "tokens", "attention") or callable(self.balance)):
            raise wrong_argument("balance", self.balance, "'tokens', 'attention', a function of the lengths, or None")

    def _count_too_long(self) -> int:
        """Returns how many documents are longer than a budget. Raises `UsageError` if there is one and may not be."""
        longer = [column for column in self._columns if column.too_long]
        if longer and self.too_long == "raise":
            column = longer[0]
            others = "fit='split', or too_long='cut' or 'skip'"
            if len(self.budgets) > 1:
                others = "too_long='skip'"
            raise UsageError.about(
                "a document is longer than a pack may be",
                place=f"the document with key {column.longest}, of {column.too_long:,} such documents",
                found=f"{column.lengths[column.longest]:,} {column.name}",
                expected=f"at most the budget of {column.most:,}",
                fix=f"raise the budget, or choose {others}",
            )
        if len(longer) < 2:
            return sum(column.too_long for column in longer)
        return int(np.count_nonzero(np.any([column.lengths > column.most for column in longer], axis=0)))

    def _chosen_window(self) -> int:
        """Returns a window of enough packs, which is still planned at once."""
        fewest = FEWEST_PACKS * self.packs
        if self.balance is not None:
            fewest = max(FEWEST_BALANCED, fewest)
        documents = min(fewest * column.most / max(column.mean, 1e-9) for column in self._columns)
        # What is planned ten times as slowly has no larger windows.
        most = MOST if self.fit != "first" and len(self.budgets) == 1 else FEWEST
        return int(min(max(documents, FEWEST), most))

    def _chosen_rows(self, shapes: int) -> list[int]:
        """Returns the lengths that pad the packs of the first window least. The budget is one: any pack fits it."""
        budget = int(self._most[0])
        if budget > LONGEST:
            found = f"a budget of {budget:,}"
            raise wrong_argument("shapes", shapes, f"1, where the budget is above {LONGEST:,}", found=found)
        # Of the dataset: an order may change from run to run, and the shapes must not.
        positions = np.arange(min(self.window, self.samples_of_dataset))
        window = self._plan(0, 0, super()._keys_at(0, positions), positions)
        counts = counts_of(window.packs.totals(), budget)
        # A row has at least one token, also of a pack without any.
        counts[0] = 0
        if len(counts) <= budget:
            counts = np.pad(counts, (0, budget + 1 - len(counts)))
            counts[budget] = 1
        return best_lengths(counts, shapes)

    def _plan(self, epoch: int, number: int, keys: Keys, positions: Keys) -> PackedWindow:
        sizes: Numbers = np.array([column.lengths[keys] for column in self._columns], np.int64).T.copy()
        whole = sizes[:, 0]
        if self.too_long_count and self.too_long == "cut":
            sizes = np.minimum(sizes, self._most)
        elif self.too_long_count:
            fitting = (sizes <= self._most).all(axis=1)
            keys, positions, sizes, whole = keys[fitting], positions[fitting], sizes[fitting], whole[fitting]

        packs: Packs = FITS[self.fit](sizes, self._most)
        stream = stream_key(self._stream(BATCHES, epoch), number)
        turns, edges = self._batched(packs, sizes, stream)
        order = self._order_before(epoch, number, is_begun=True)
        documents = keys, positions, whole
        return PackedWindow(number, documents, packs, turns, edges, (self.packs, self.rows), order)

    def _batched(self, packs: Packs, sizes: Numbers, stream: int) -> tuple[Numbers, Numbers]:
        """Returns the packs in the order in which they come, and where batches begin and the last one ends."""
        count = len(packs)
        batches = -(-count // self.packs)
        if self.balance is None:
            order = np.arange(count)
            if self.shuffle:
                order = shuffled(order, stream_key(stream, PACKS))
            return order, np.append(np.arange(0, count, self.packs), count)

        costs = self._costs(packs, sizes)
        by_cost = np.argsort(-costs, kind="stable")
        # Batches of like cost: each takes one pack of every layer, in turns from the top and from the bottom.
        rows: Numbers = np.full(batches * self.packs, -1)
        rows[:count] = by_cost
        rows = rows.reshape(self.packs, batches)
        rows[1::2] = rows[1::2, ::-1].copy()
        total = np.where(rows >= 0, costs[rows], 0).sum(axis=0)
        columns = np.argsort(-total, kind="stable")
        if self.shuffle:
            columns = columns[shuffled_in_groups(batches, group_of(batches), stream)]
        chosen = rows[:, columns].T
        edges = np.append(0, np.cumsum((chosen >= 0).sum(axis=1)))
        return chosen[chosen >= 0], edges

    def _costs(self, packs: Packs, sizes: Numbers) -> npt.NDArray[np.float64]:
        """Returns what each pack costs."""
        lengths = packs.stops - packs.starts
        if self.balance == "tokens":
            costs = lengths.astype(np.float64)
        elif self.balance == "attention":
            costs = lengths.astype(np.float64) ** 2
        else:
            columns = sizes[packs.documents]
            columns[:, 0] = lengths
            costs = self._asked_costs(columns)
        return np.add.reduceat(costs, packs.edges[:-1]) if len(packs) else costs[:0]

    def _asked_costs(self, sizes: Numbers) -> npt.NDArray[np.float64]:
        """Returns what each document costs by the user's function."""
        asked: Any = dict(zip(self.budgets, sizes.T, strict=True)) if self._named else sizes[:, 0]
        costs = np.asarray(self.balance(asked), np.float64)  # type: ignore[operator, misc]
        found = None
        if costs.shape != (len(sizes),):
            found = f"{costs.dtype} of shape {costs.shape} for {len(sizes):,} documents"
        elif (wrong := np.flatnonzero(~np.isfinite(costs))).size:
            lengths = ", ".join(f"{size:,} {name}" for size, name in zip(sizes[wrong[0]], self.budgets, strict=True))
            found = f"{costs[wrong[0]]} at index {wrong[0]}, for {lengths}"
        if found is not None:
            found = f"a function that returned {found}"
            raise wrong_argument("balance", self.balance, "one that gives a finite cost for each", found=found)
        return costs

    def _digest_of_costs(self) -> int:
        """Returns a number by which a state tells the user's function from others: by what some documents cost."""
        # All over the data, which may be sorted, and the longest: there functions differ most.
        spread = np.linspace(0, self.samples_of_dataset - 1, DOCUMENTS_ASKED).astype(np.int64)
        numbers = np.unique(np.append(spread, [column.longest for column in self._columns]))
        some = [np.asarray(column.lengths[numbers], np.int64) for column in self._columns]
        costs = self._asked_costs(np.minimum(np.array(some).T, self._most))
        # Another machine may round in another way.
        return digest_of(np.round(costs / np.abs(costs).max(initial=1e-300), 6) + 0.0)

    def _total(self, epoch: int) -> int:
        # Weights of sources may change: then it is how many there are as far as is known now.
        if self._counted is None or self._counted[0] != epoch or self._order is not None:
            self._counted = epoch, sum(len(self._window(epoch, number)) for number in range(self._windows))
        return self._counted[1]

    def order_key(self) -> State:
        if self._order is None:
            return super().order_key()
        return {**super().order_key(), "order": self._order.order_key()}

    def _identity(self) -> State:
        balance: Any = self.balance
        if callable(balance):
            balance = f"function {self._costs_digest}"
        plan = {"packs": self.packs, "fit": self.fit, "too_long": self.too_long, "balance": balance}
        sizes = {"budgets": dict(self.budgets), "rows": self.rows, "window_size": self.window, "digests": self._digests}
        if self._order is not None:
            plan["ordered_by"] = self._order.name
        return {"total": self._samples, "seed": self.seed, "shuffle": self.shuffle, **plan, **sizes}
