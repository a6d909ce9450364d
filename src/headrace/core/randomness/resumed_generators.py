"""What becomes of the global generators while a dataset is resumed in the process of the user.

A resume loads the dataset's state, makes its iterator, and may read samples again. Each of these may draw from the
global generators or set them. The uninterrupted run did that earlier, or never. So a resume puts the generators where
the uninterrupted run had them at this place; otherwise all that is drawn later would be shifted.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from headrace.core.randomness.rng import GlobalStates, global_states, set_global_states


class ResumedGenerators:
    """Surrounds the steps of a resume. With neither argument it leaves everything as it comes, as workers need it."""

    def __init__(self, behind_order: GlobalStates | None = None, *, had_iterator: bool = False) -> None:
        """behind_order: where the global generators were when the order of the epoch was drawn.

        had_iterator: whether the state was taken when the iterator of the epoch was made already.
        """
        self._behind_order = behind_order
        self._had_iterator = had_iterator
        self._behind_making: GlobalStates | None = None

    @contextlib.contextmanager
    def loading(self) -> Iterator[None]:
        """Surrounds `load_state_dict` of a dataset.

        A state of the middle of an epoch may hold the generators: what it sets is where the next sample draws. One of
        the beginning was taken before the order was drawn: the first sample draws behind that.
        """
        if self._had_iterator or self._behind_order is None:
            yield
            return

        before = global_states()
        yield
        if not before.holds_now():
            set_global_states(self._behind_order)

    @contextlib.contextmanager
    def making_iterator(self) -> Iterator[None]:
        """Surrounds `iter(dataset)`.

        If the interrupted run had its iterator, it had drawn what the making draws: the new one draws the same again,
        and the user's generators are left alone.
        """
        if not self._had_iterator:
            yield
            return

        users = global_states()
        if self._behind_order is not None:
            set_global_states(self._behind_order)

        try:
            yield
            self._behind_making = global_states()
        finally:
            set_global_states(users)

    @contextlib.contextmanager
    def replaying(self) -> Iterator[None]:
        """Surrounds the reading of samples that were delivered before: they draw what they drew then."""
        if self._behind_making is None:
            yield
            return

        users = global_states()
        set_global_states(self._behind_making)
        try:
            yield
        finally:
            set_global_states(users)
