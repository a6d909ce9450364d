"""Text to token ids, in the workers."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from headrace.core.errors import SampleError, wrong_argument
from headrace.core.ragged import Ragged, offsets_of
from headrace.transforms.entries import named_entry, with_results
from headrace.transforms.text_encoder import TextEncoder


class Tokenize:
    """A step that turns the text of a sample into token ids: a whole document, neither cut nor padded.

    A sample is a dict, or a text alone. Declared with `batched=True`, the step gives all texts of a batch to the
    tokenizer at once, and returns the same ids. In the main process, `tokenizers` then uses all cores; in a worker
    process, one.

    Each thread copies the tokenizer at its first use, and never changes the given one. Text that spells a special token
    is ordinary text for tiktoken; the other libraries make that token of it, unless they are set not to.

    Args:
        tokenizer: a `tokenizers.Tokenizer`, a `tiktoken.Encoding`, or a tokenizer of transformers.
        column: the entry of a sample that holds the text.
        to: the entry for the token ids, int [n].
        add_special_tokens: whether the tokenizer adds those that it adds by itself, such as one at the beginning;
            tiktoken adds none.
        append: a token id behind each text, such as that of the end of a text.
        dtype: int64, or int32, which halves the memory.
        keep: whether the text stays in the sample, too.

    Raises:
        UsageError: wrong arguments.

    Examples:
        >>> import tiktoken
        >>> encoding = tiktoken.Encoding(
        ...     "bytes", pat_str=".", mergeable_ranks={bytes([i]): i for i in range(256)}, special_tokens={}
        ... )
        >>> step = headrace.transforms.Tokenize(encoding, append=256)
        >>> step({"text": "abc", "year": 2026})
        {'year': 2026, 'input_ids': array([ 97,  98,  99, 256])}
    """

    def __init__(
        self,
        tokenizer: Any,
        column: str = "text",
        *,
        to: str = "input_ids",
        add_special_tokens: bool = True,
        append: int | None = None,
        dtype: npt.DTypeLike = np.int64,
        keep: bool = False,
    ) -> None:
        self.encoder = TextEncoder(tokenizer, "Tokenize")
        self.column = column
        self.to = to
        self.add_special_tokens = add_special_tokens
        self.dtype = checked_dtype(dtype, "Tokenize")
        if append is None:
            self.append = None
        else:
            self.append = checked_token("append", append, "Tokenize")
        self.keep = keep

    def __call__(self, sample: Any) -> Any:
        """Returns the sample with token ids in place of text. Of a list of texts, a column: `headrace.types.Ragged`.

        Raises `SampleError` for what is no text, and `UsageError` for a sample without the entry.
        """
        if not isinstance(sample, Mapping):
            return self._ids(sample)

        text = named_entry(sample, self.column, "Tokenize")
        return with_results(sample, {self.to: self._ids(text)}, dropped=None if self.keep else self.column)

    def fingerprint(self) -> str:
        """Returns a text that changes when results do: the tokenizer and the arguments."""
        arguments = [self.column, self.to, self.add_special_tokens, self.append, self.dtype.name, self.keep]
        return f"{json.dumps(arguments)} {self.encoder.fingerprint()}"

    def _ids(self, value: object) -> Any:
        # A batched step gets a list with one text per sample.
        if type(value) is not list:
            return self._rows([value])[0]

        rows = self._rows(value)
        lengths = np.fromiter(map(len, rows), np.int64, len(rows))
        return Ragged(np.concatenate([np.empty(0, self.dtype), *rows]), offsets_of(lengths))

    def _rows(self, texts: list[Any]) -> list[npt.NDArray[Any]]:
        for text in texts:
            if not isinstance(text, str):
                place = f"Tokenize(column={self.column!r})"
                raise SampleError.about("no text to tokenize", place=place, found=type(text).__name__, expected="str")

        rows = []
        for ids in self.encoder.encode(texts, self.add_special_tokens):
            if self.append is not None:
                ids.append(self.append)
            rows.append(np.array(ids, self.dtype))

        return rows

    def __repr__(self) -> str:
        return f"Tokenize({self.encoder}, column={self.column!r}, to={self.to!r}, append={self.append})"


def checked_dtype(dtype: npt.DTypeLike, place: str) -> np.dtype[Any]:
    """Returns the type of token ids. Raises `UsageError` unless it is int32 or int64."""
    try:
        checked = np.dtype(dtype)
    except TypeError:
        checked = np.dtype(np.void)

    if checked not in (np.int32, np.int64):
        raise wrong_argument("dtype", dtype, "int32 or int64", place=place)
    return checked


def checked_token(name: str, token: object, place: str) -> int:
    """Returns a token id. Raises `UsageError` unless it is a whole number from 0 on that int32 holds."""
    if isinstance(token, (bool, np.bool_)) or not isinstance(token, (int, np.integer)) or not 0 <= token < 1 << 31:
        raise wrong_argument(name, token, "a token id: a whole number from 0 on, below 2**31", place=place)
    return int(token)
