"""A stream that is read within another one: its passes, one after the other, and where it is in them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from headrace.core.hugging_face_streams import going_on_from, is_hugging_face_stream
from headrace.core.protocols import answers, is_stateful
from headrace.faults.classify import IN_A_ROW, went_through_a_generator


class StreamPass:
    """An iterable dataset that is read from its beginning to its end, and may be read again.

    Its state is that of its iterator, or its own. Where neither has one, it is read again up to where it was.
    """

    def __init__(self, stream: Any, name: str | int | None = None) -> None:
        self.name = name
        self.samples = 0
        """How many it has given, in all passes."""
        self.passes = 0
        """How often it came to its end."""
        self._stream = stream
        self._iterator: Iterator[Any] = iter(stream)
        self._read = 0
        self._to_skip = 0
        self._has_begun = False
        """Whether its iterator was made to go on anywhere, or asked for a sample."""
        self._failure: Exception | None = None
        self._bad_in_a_row = 0

    def begin_again(self) -> None:
        """Goes back to the beginning, behind the end of a pass."""
        self._iterator = iter(self._stream)
        self._read = 0

    @property
    def is_at_beginning(self) -> bool:
        """Whether nothing was read in this pass."""
        return self._read == 0

    @property
    def is_stuck(self) -> bool:
        """Whether so many samples failed, one behind the other, that the stream is taken to be stuck."""
        return self._bad_in_a_row >= IN_A_ROW

    def next(self) -> Any:
        """Returns the next sample of this pass. Raises `StopIteration` at its end."""
        self._has_begun = True
        while self._to_skip:
            self._to_skip -= 1
            try:
                next(self._iterator)
            except StopIteration:
                break
            except Exception:  # noqa: BLE001 - it was a bad one before, too
                continue

        self._to_skip = 0
        try:
            sample = next(self._iterator)
        except StopIteration:
            # A generator ends when it raises. That is no end of its samples.
            if self._failure is not None and went_through_a_generator(self._failure):
                raise self._failure from None
            self.passes += 1
            raise
        except Exception as error:
            if self.name is not None:
                error.add_note(f"headrace: raised by source {self.name!r} of the mixture")
            self._failure = error
            self._bad_in_a_row += 1
            self._read += 1
            raise

        self._failure = None
        self._bad_in_a_row = 0
        self._read += 1
        self.samples += 1
        return sample

    def place_of_last(self, part: str | int | None) -> str:
        """Returns where the last sample comes from. part: a column, if only one is meant."""
        if answers(self._iterator, "place_of_last", 1):
            place: str = self._iterator.place_of_last(part)  # type: ignore[attr-defined]  # `answers` has looked
            return place
        place = f"sample {self.samples - 1}"
        if self.name is not None:
            place += f" of source {self.name!r}"
        return place

    def state_dict(self) -> dict[str, Any]:
        """Returns where it is."""
        state: dict[str, Any] = {"samples": self.samples, "passes": self.passes, "read": self._read}
        if is_stateful(self._iterator):
            state["iterator"] = self._iterator.state_dict()
        if self._iterator is not self._stream and is_stateful(self._stream):
            state["dataset"] = self._stream.state_dict()
        return state

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Goes on behind what was given."""
        self.samples = state["samples"]
        self.passes = state["passes"]
        self._read = state["read"]
        is_restored = False
        if "dataset" in state and is_stateful(self._stream):
            is_restored = True
            stream: Any = self._stream
            if is_hugging_face_stream(stream):
                stream = going_on_from(stream, state["dataset"])
            else:
                stream.load_state_dict(state["dataset"])
            self._iterator = iter(stream)
        if "iterator" in state and is_stateful(self._iterator):
            is_restored = True
            self._iterator.load_state_dict(state["iterator"])
        if not is_restored:
            if self._has_begun:
                self._iterator = iter(self._stream)
            self._to_skip = self._read
        self._has_begun = True
        self._failure = None
