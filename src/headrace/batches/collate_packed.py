"""Packs of documents as models take them: tokens end to end, and where one document ends and the next begins."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Literal

import numpy as np
import torch

from headrace.batches.packed_rows import MOST, PackedRows, longest
from headrace.core.errors import SampleError, checked_word, wrong_argument
from headrace.core.signatures import signature_of
from headrace.packing.columns import LABELS, TOKENS
from headrace.packing.document_pack import DocumentPack
from headrace.samplers.packed_batch import PackedBatch, batch_of, one_pack

Names = Literal["headrace", "huggingface", "huggingface-flash", "flash", "torchtitan"]

MADE = frozenset(
    {
        "position_ids", "document_ids", "cu_seqlens", "max_seqlen", "use_cache", "input", "positions", "cu_seq_lens_q",
        "cu_seq_lens_k", "max_length_q", "max_length_k", "cu_seqlens_q", "cu_seqlens_k", "max_seqlen_q", "max_seqlen_k",
    }
)  # fmt: skip
"""Columns that a batch has of its own."""

MASK = "attention_mask"

PER_TOKEN = frozenset({LABELS, "loss_mask", "assistant_masks", "completion_mask", "token_type_ids"})
"""Columns with a value for each token, by the names that are in use."""


def collate_packed(
    samples: Sequence[Any],
    *,
    names: Names = "headrace",
    per_token: Sequence[str] = (),
    pad_id: int = 0,
    may_be_shorter: bool = False,
    packs: PackedBatch | None = None,
) -> Any:
    """Makes a batch of packs: give it to `DataLoader` as `collate_fn`, beside a `PackedBatchSampler`.

    Each pack is a row: its documents end to end, then padding. Padding is a document of its own, without labels.
    `labels` are the tokens, unless the samples have `labels`; labels never cross the border of a document.

    What comes, by `names`:

    - `"headrace"`: `input_ids`, `labels`, `position_ids`, `document_ids`, each [packs, row]; `cu_seqlens`;
      `max_seqlen`.
    - `"huggingface"`: `input_ids`, `labels`, `position_ids`, each [1, packs x row], as `DataCollatorWithFlattening` of
      transformers has them; and `use_cache=False`, without which most models do not look for borders of documents.
    - `"huggingface-flash"`: also its `cu_seq_lens_q`, `cu_seq_lens_k`, `max_length_q` and `max_length_k`.
    - `"flash"`: `input_ids`, `labels`, `position_ids`, each [packs x row], and `cu_seqlens_q`, `cu_seqlens_k`,
      `max_seqlen_q`, `max_seqlen_k`, as `flash_attn_varlen_func` of Flash Attention takes them.
    - `"torchtitan"`: `({"input": ..., "positions": ...}, labels)`, each [packs, row].

    Labels belong to the token at the same place, and models shift them; so the first token of a document has none
    (-100). torchtitan does not shift: there they belong to the token before, and the last token has none; of a document
    that is cut, the last one has the first token of the rest.

    `document_ids` counts the documents of a pack from 0, and is -1 for padding. `cu_seqlens` says where documents
    begin in all rows end to end, and where the last one ends, int32 [documents + 1]; `max_seqlen` is the length of the
    longest. Both count padding as documents.

    Other columns go along: arrays are joined along their first dimension, numbers become a tensor [documents], all
    else a list. Of a document that is cut, they come with its first part. All documents have the same columns. An
    `attention_mask` of ones, as tokenizers give it, is left out: with it, models do not look for borders.

    Args:
        samples: documents: mappings with `input_ids`, whole numbers [tokens], or only these. Or packs of a
            `PackedStream`.
        names: who takes the batch.
        per_token: further columns with a value for each token; they are cut and padded (with 0) as tokens are.
        pad_id: the token that pads.
        may_be_shorter: whether documents may be shorter than their lengths say; the packs are then less full. For steps
            that draw how long a document is, such as `FillInTheMiddle`: give the longest that it may be as its length.
        packs: the keys of the batch; the loader passes them. None, as with torch's loader: all documents are one pack,
            without padding.

    Returns:
        What `names` says above; new tensors.

    Raises:
        SampleError: a document is longer or shorter than its length said, has another number of labels, or other
            columns than the others.
        UsageError: wrong arguments.

    Examples:
        >>> batch = headrace.collate_packed([[5, 6, 7], [8, 9]])
        >>> batch["labels"]
        tensor([[-100,    6,    7, -100,    9]])
        >>> batch["position_ids"]
        tensor([[0, 1, 2, 0, 1]])
    """
    checked_word("names", names, Names)
    has_keys = packs is not None
    if isinstance(samples, DocumentPack):  # with batch_size=None
        samples = [samples]
    if packs is None and samples and all(isinstance(sample, DocumentPack) for sample in samples):
        packs = batch_of(samples)
        samples = [document for sample in samples for document in sample.documents]
    documents = [_columns_of(sample) for sample in samples]
    _check_columns(documents)
    if packs is None:
        packs = one_pack([len(document[TOKENS]) for document in documents])
    _check_words(per_token, pad_id, documents)
    columns = PER_TOKEN.union(per_token)
    rows = PackedRows(documents, packs, columns, pad_id, may_be_shorter=may_be_shorter, has_keys=has_keys)
    return NAMED[names](rows)


def _check_words(per_token: Any, pad_id: Any, documents: Sequence[Mapping[str, Any]]) -> None:
    if isinstance(per_token, str) or not isinstance(per_token, Iterable):
        raise wrong_argument("per_token", per_token, "a list of names")
    if not isinstance(pad_id, (int, np.integer)) or isinstance(pad_id, bool) or not 0 <= pad_id <= MOST:
        raise wrong_argument("pad_id", pad_id, "the number of a token, 0 or above")
    unknown = [name for name in per_token if documents and name not in documents[0]]
    if unknown:
        found = f"{unknown[0]!r}, and documents with {', '.join(map(repr, documents[0]))}"
        raise wrong_argument("per_token", per_token, "names of columns", found=found)


def takes_packs(collate: Callable[..., Any]) -> bool:
    """Tells whether a collate function wants to know the packs of a batch; see `CollatesPacks`."""
    signature = signature_of(collate)
    return signature is not None and "packs" in signature.parameters


def _columns_of(sample: Any) -> Mapping[str, Any]:
    if not isinstance(sample, Mapping):
        sample = {TOKENS: sample}
    found = ""
    if TOKENS not in sample:
        found = f"a sample with {', '.join(map(repr, sample))}"
    elif not hasattr(sample[TOKENS], "__len__"):
        found = f"{type(sample[TOKENS]).__name__} {sample[TOKENS]!r}"
    if found:
        raise SampleError.about(
            "a document has no tokens",
            place="headrace.collate_packed",
            found=found,
            expected=f"{TOKENS!r}, whole numbers in one dimension",
            fix=f"call the column of tokens {TOKENS!r}, for example with .map()",
        )
    if MASK not in sample:
        return sample  # type: ignore[no-any-return]

    mask = np.asarray(sample[MASK])
    if mask.shape != (len(sample[TOKENS]),):
        raise SampleError.about(
            "a document's mask does not fit its tokens",
            place="headrace.collate_packed",
            found=f"{MASK!r} of shape {mask.shape}",
            expected=f"one value for each of the {len(sample[TOKENS]):,} tokens",
            fix=f"cut {MASK!r} as the tokens are cut, or leave it out",
        )
    if not mask.all():
        raise SampleError.about(
            "a document is padded",
            place="headrace.collate_packed",
            found=f"zeros in its {MASK!r}",
            expected="the tokens of the document alone",
            fix="tokenise without padding, and measure the lengths again",
        )
    return {name: value for name, value in sample.items() if name != MASK}


def _check_columns(documents: Sequence[Mapping[str, Any]]) -> None:
    """Raises `SampleError` unless all documents have the same columns, none of which collation makes itself."""
    for number, document in enumerate(documents):
        made = [name for name in document if name in MADE]
        if made:
            raise SampleError.about(
                "a document has a column that collation makes",
                place=f"document {number} of the batch",
                found=f"a column {made[0]!r}",
                expected=f"{TOKENS!r}, perhaps {LABELS!r}, and columns of your own",
                fix=f"leave {made[0]!r} out, or call it by another name",
            )
        differing = sorted(document.keys() ^ documents[0].keys())
        if differing:
            raise SampleError.about(
                "the documents of a batch have different columns",
                place=f"documents 0 and {number} of the batch",
                found=f"{differing[0]!r} in one of them only",
                expected="the same columns in all documents",
                fix="give documents that have none of it an empty array, such as np.zeros((0, width))",
            )


def _headrace(rows: PackedRows) -> dict[str, Any]:
    bounds = rows.bounds
    return {
        TOKENS: rows.tokens(),
        LABELS: rows.labels(),
        "position_ids": rows.positions(),
        "document_ids": rows.document_ids(),
        "cu_seqlens": torch.from_numpy(bounds.astype(np.int32)),
        "max_seqlen": longest(bounds),
        **rows.others(),
    }


def _huggingface(rows: PackedRows) -> dict[str, Any]:
    # One row, whatever the number of packs: with Flash Attention, models look for the borders of documents in that of a
    # single row only.
    columns = {TOKENS: rows.tokens(), LABELS: rows.labels(), "position_ids": rows.positions()}
    flat = {name: column.view(1, -1) for name, column in columns.items()}
    # A model that keeps a cache takes positions that begin anew for those of one document, and says nothing.
    return {**flat, "use_cache": False, **rows.others(1, -1)}


def _huggingface_flash(rows: PackedRows) -> dict[str, Any]:
    bounds = rows.bounds
    ends = torch.from_numpy(bounds.astype(np.int32))
    most = longest(bounds)
    lengths = {"cu_seq_lens_q": ends, "cu_seq_lens_k": ends, "max_length_q": most, "max_length_k": most}
    return {**_huggingface(rows), **lengths}


def _flash(rows: PackedRows) -> dict[str, Any]:
    bounds = rows.bounds
    ends = torch.from_numpy(bounds.astype(np.int32))
    most = longest(bounds)
    columns = {TOKENS: rows.tokens(), LABELS: rows.labels(), "position_ids": rows.positions()}
    lengths = {"cu_seqlens_q": ends, "cu_seqlens_k": ends, "max_seqlen_q": most, "max_seqlen_k": most}
    return {**{name: column.view(-1) for name, column in columns.items()}, **lengths, **rows.others(-1)}


def _torchtitan(rows: PackedRows) -> tuple[dict[str, Any], torch.Tensor]:
    return {"input": rows.tokens(), "positions": rows.positions(), **rows.others()}, rows.next_labels()


NAMED = {
    "headrace": _headrace,
    "huggingface": _huggingface,
    "huggingface-flash": _huggingface_flash,
    "flash": _flash,
    "torchtitan": _torchtitan,
}
"""What makes the batch, by `names`."""
