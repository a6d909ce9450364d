"""The columns of a batch of packs: what belongs to tokens is laid end to end and padded, all else goes along."""

from __future__ import annotations

import functools
from collections.abc import Collection, Iterator, Mapping, Sequence
from numbers import Number
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from headrace.core.errors import SampleError
from headrace.packing.columns import IGNORED, LABELS, TOKENS
from headrace.packing.document_pack import UNKNOWN
from headrace.packing.fit import Numbers
from headrace.samplers.packed_batch import PackedBatch

NO_DOCUMENT = -1
"""The document of padding."""

MOST = np.iinfo(np.int64).max
"""The largest token."""

Document = Mapping[str, Any]


class PackedRows:
    """Packs as rows of equal length.

    documents: one for each piece. per_token: the columns that have a value for each token. pad_id: pads the tokens.
    has_keys: whether the keys of `packs` are those of a dataset; otherwise they count the documents of the batch.
    """

    def __init__(
        self,
        documents: Sequence[Document],
        packs: PackedBatch,
        per_token: Collection[str],
        pad_id: int,
        *,
        may_be_shorter: bool = False,
        has_keys: bool = True,
    ) -> None:
        self.shape = packs.shape
        self._documents = documents
        self._keys = packs
        self._has_keys = has_keys
        self._per_token = {name for name in per_token if documents and name in documents[0]}
        self._pad_id = pad_id
        self._edges = packs.pieces.edges
        lengths = self._lengths(packs, may_be_shorter=may_be_shorter)
        # Other columns come once for each document: with its first part.
        self._firsts = np.flatnonzero(packs.pieces.starts == 0).tolist()
        self._starts = np.minimum(packs.pieces.starts, lengths)
        self._stops = np.minimum(packs.pieces.stops, lengths)
        self._sizes = self._stops - self._starts
        # Where the tokens of pieces, end to end, are in all rows end to end.
        before = np.append(0, np.cumsum(self._sizes))
        self._totals = np.diff(before[self._edges])
        self._rows_of_pieces = np.repeat(np.arange(self.shape[0]), np.diff(self._edges))
        first = before[self._edges[:-1]]
        self._begins = self._rows_of_pieces * self.shape[1] + before[:-1] - first[self._rows_of_pieces]

    def _lengths(self, packs: PackedBatch, *, may_be_shorter: bool) -> Numbers:
        """Returns the lengths of the documents. Raises `SampleError` if one is not what was said."""
        found = np.array([len(document[TOKENS]) for document in self._documents], np.int64)
        said = packs.pieces.lengths
        is_wrong = (found > said) if may_be_shorter else (found != said)
        wrong = np.flatnonzero(is_wrong & (said != UNKNOWN))
        if len(wrong):
            raise SampleError.about(
                "a document is not as long as it was said to be",
                place=self._named(wrong[0]),
                found=f"{found[wrong[0]]:,} tokens",
                expected=f"{said[wrong[0]]:,}, {'as in lengths=' if self._has_keys else 'as length= said'}",
                fix="measure the lengths again: of the tokens that the dataset gives, with all that is added to them; "
                "if a step draws how long a document is, give collate_packed may_be_shorter=True",
            )

        for name in self._per_token:
            for number, document in enumerate(self._documents):
                values = document[name]
                if not hasattr(values, "__len__") or len(values) != found[number]:
                    raise SampleError.about(
                        "a column has not one value for each token",
                        place=f"{name!r} of {self._named(number)}",
                        found=f"{len(values):,} values" if hasattr(values, "__len__") else f"{values!r}",
                        expected=f"{found[number]:,}, as many as {TOKENS!r}",
                        fix=f"cut {name!r} as the tokens are cut",
                    )
        return found

    def _named(self, number: int) -> str:
        """Returns words for the document of a piece."""
        if self._has_keys:
            return f"the document with key {self._keys[number]}"
        return f"document {number} of the batch"

    def tokens(self) -> torch.Tensor:
        """Returns the tokens, padded, int64 [packs, row]."""
        return torch.from_numpy(self._tokens)

    def labels(self) -> torch.Tensor:
        """Returns the label of each token, int64 [packs, row]. The first of a document is ignored: none predicts it."""
        if self._of_labels() == TOKENS:
            labels = self._tokens.copy()
            for row, total in enumerate(self._totals.tolist()):
                labels[row, total:] = IGNORED
        else:
            labels = self._laid(LABELS, IGNORED, np.int64)
        labels.reshape(-1)[self._begins[self._sizes > 0]] = IGNORED
        return torch.from_numpy(labels)

    def next_labels(self) -> torch.Tensor:
        """Returns the label of the token behind each token, int64 [packs, row]; the last of a document has none."""
        column = self._of_labels()
        flat = np.full(self.shape[0] * self.shape[1], IGNORED, np.int64)
        for number, start, stop, begin in self._pieces():
            values = self._part(number, column)[start + 1 : stop + 1]
            flat[begin : begin + len(values)] = values
        return torch.from_numpy(flat).view(self.shape)

    def positions(self) -> torch.Tensor:
        """Returns the place of each token in its document, or in padding, from 0 on; int64 [packs, row]."""
        bounds = self.bounds
        sizes = np.diff(bounds)
        return torch.from_numpy(np.arange(bounds[-1]) - np.repeat(bounds[:-1], sizes)).view(self.shape)

    def document_ids(self) -> torch.Tensor:
        """Returns the number of each token's document within its pack, -1 for padding; int64 [packs, row]."""
        flat = np.full(self.shape[0] * self.shape[1], NO_DOCUMENT, np.int64)
        firsts = self._edges[:-1][self._rows_of_pieces]
        numbers = np.arange(len(self._sizes)) - firsts
        for number, begin, size in zip(numbers.tolist(), self._begins.tolist(), self._sizes.tolist(), strict=True):
            flat[begin : begin + size] = number
        return torch.from_numpy(flat).view(self.shape)

    @functools.cached_property
    def bounds(self) -> Numbers:
        """Where documents and paddings begin in all rows end to end, and the last one ends; ascending."""
        rows, row = self.shape
        paddings = np.arange(rows) * row + self._totals
        return np.unique(np.concatenate((self._begins, paddings, [rows * row])))

    def others(self, *lead: int) -> dict[str, Any]:
        """Returns the other columns. lead: the shape of tokens in those with a value for each; else [packs, row]."""
        if not self._documents:
            return {}
        names = [name for name in self._documents[0] if name not in (TOKENS, LABELS)]
        return {name: self._other(name, lead or self.shape) for name in names}

    def _other(self, name: str, lead: tuple[int, ...]) -> Any:
        values = [document[name] for document in self._documents]
        try:
            if name in self._per_token:
                laid = torch.from_numpy(self._laid(name, 0, None))
                if all(_is_bfloat16(value) for value in values):
                    laid = laid.to(torch.bfloat16)
                return laid.view(*lead, *laid.shape[2:])
            return _joined(values, self._firsts)
        except (TypeError, ValueError, RuntimeError) as error:
            raise SampleError.about(
                "a column of the documents cannot be joined",
                place=f"column {name!r}",
                found=str(error),
                expected="arrays that differ in their first dimension only, or numbers",
                fix="give them one shape behind the first dimension, or put each into a list of its own",
            ) from error

    @functools.cached_property
    def _tokens(self) -> npt.NDArray[np.int64]:
        return self._laid(TOKENS, self._pad_id, np.int64)

    def _of_labels(self) -> str:
        if self._documents and LABELS in self._documents[0]:
            return LABELS
        return TOKENS

    def _laid(self, name: str, padding: int, dtype: npt.DTypeLike | None) -> npt.NDArray[Any]:
        """Returns a column that has a value for each token, padded, [packs, row, *shape of a value]."""
        parts = [self._part(number, name)[start:stop] for number, start, stop, _ in self._pieces()]
        if dtype is None:
            dtype = np.result_type(*parts) if parts else np.dtype(np.int64)
        of_a_value = parts[0].shape[1:] if parts else ()
        # NumPy would repeat what has too few dimensions.
        differing = [part.shape[1:] for part in parts if part.shape[1:] != of_a_value]
        if differing:
            raise ValueError(f"values of shapes {of_a_value} and {differing[0]}")
        flat = np.full((self.shape[0] * self.shape[1], *of_a_value), padding, dtype)
        for part, begin in zip(parts, self._begins.tolist(), strict=True):
            flat[begin : begin + len(part)] = part
        return flat.reshape(*self.shape, *of_a_value)

    def _part(self, number: int, name: str) -> npt.NDArray[Any]:
        """Returns a column of the document of a piece."""
        given = self._documents[number][name]
        # NumPy has no bfloat16.
        if _is_bfloat16(given):
            given = given.float()
        if name not in (TOKENS, LABELS):
            return np.asarray(given)

        try:
            values = np.asarray(given)
        except (TypeError, ValueError, RuntimeError) as error:
            raise self._no_tokens(number, name, str(error)) from error
        if not _are_tokens(values):
            raise self._no_tokens(number, name, f"{values.dtype} of shape {values.shape}")
        return values

    def _no_tokens(self, number: int, name: str, found: str) -> SampleError:
        return SampleError.about(
            f"{name!r} of a document are no tokens",
            place=self._named(number),
            found=found,
            expected="whole numbers, in one dimension",
            fix=f"tokenise the documents before they are packed, and give a flat list or array as {name!r}",
        )

    def _pieces(self) -> Iterator[tuple[int, int, int, int]]:
        """Yields the number of each piece, its first token, the one behind its last, and its place in the rows."""
        numbers = range(len(self._documents))
        return zip(numbers, self._starts.tolist(), self._stops.tolist(), self._begins.tolist(), strict=True)


def _are_tokens(values: npt.NDArray[Any]) -> bool:
    if not values.size:
        return True
    fits = values.dtype != np.uint64 or values.max() <= MOST
    return values.dtype.kind in "iub" and values.ndim == 1 and bool(fits)


def _is_bfloat16(values: object) -> bool:
    return isinstance(values, torch.Tensor) and values.dtype is torch.bfloat16


def longest(bounds: Numbers) -> int:
    """Returns the length of the longest document or padding. bounds: as `PackedRows.bounds` has them."""
    return int(np.diff(bounds).max(initial=0))


def _joined(values: list[Any], chosen: Sequence[int]) -> Any:
    """Returns some of the values as one: arrays end to end, numbers as a tensor, all else as a list.

    What comes of it is of one kind for all batches, also where none is chosen.
    """
    if all(isinstance(value, (torch.Tensor, np.ndarray)) and value.ndim for value in values):
        parts = [torch.as_tensor(value) for value in values]
        return torch.cat([parts[number] for number in chosen] or [parts[0][:0]])
    if all(isinstance(value, (Number, np.generic, torch.Tensor, np.ndarray)) for value in values):
        numbers = torch.stack([torch.as_tensor(value) for value in values])
        return numbers[list(chosen)]
    return [values[number] for number in chosen]
