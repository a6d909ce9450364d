"""What to do about a slow part of making a batch, which depends on how the dataset gives its samples."""

from __future__ import annotations

from headrace.telemetry.recording import Setting

FIXES = {
    "read": "Pack the files into one container (headrace pack), or keep a local copy; more workers also hide waiting.",
    "decode": "Decode once: pack at the size that training needs (headrace pack --resize), or cache after decoding "
    "(headrace.Staged(...).cache()). headrace doctor --plan measures after which transform a cache pays.",
    "transform": "Cache what is not random (headrace.Staged(...).cache()), work on whole batches (headrace.step with "
    "batched steps, __getitems__), or move it to the device.",
    "load": "Load whole batches at once (__getitems__), or compute what is not random once "
    "(headrace.Staged(...).cache()).",
    "collate": "Return arrays or tensors of one shape instead of nested Python objects, or whole batches "
    "(__getitems__), which need no collation.",
    "send": "Return tensors or arrays rather than Python objects; smaller dtypes (uint8 images, normalised on the "
    "device) make batches smaller.",
}

FIXES_FOR_BATCHES = {
    "load": "Read only the columns that training needs, or compute what is not random once "
    "(headrace.Staged(...).cache()).",
}
"""Where a dataset has the samples of a batch at once already."""

FIXES_FOR_STREAMS = {
    "load": "Read and compute many samples at once in __iter__, as arrays, and yield them one by one; or split the "
    "stream over workers (headrace.shard on its files).",
    "transform": "Compute on many samples at once in __iter__, as arrays; split the stream over workers "
    "(headrace.shard on its files); or move the transform to the device.",
    "collate": "Return arrays or tensors of one shape instead of nested Python objects, or yield whole batches "
    "(batch_size=None), which need no collation.",
}
"""Where a dataset is iterable: it has no keys by which to fetch batches or to cache."""

FIXES_FOR_OWN_COLLATION = {
    "collate": "Let default collation do it, which writes straight into the batch; pad with headrace.types.Ragged or "
    "in NumPy instead of a Python loop.",
}
"""Where the user gave a `collate_fn`."""

FIX_FOR_REMOTE_READS = (
    "Keep the data on this node (headrace.open(..., cache_dir=...)), or pack them into shards (headrace pack). They "
    "are read ahead already, so that more workers bring nothing."
)
"""Where data come over a network."""


def fix_for(part: str, setting: Setting) -> str:
    """Returns what to do about a slow part of making a batch."""
    fixes = dict(FIXES)
    if setting.is_stream:
        fixes.update(FIXES_FOR_STREAMS)
    elif setting.makes_batches or setting.loads_together:
        fixes.update(FIXES_FOR_BATCHES)

    # Last: whoever wrote the collation can change it, wherever the samples come from.
    if setting.own_collate:
        fixes.update(FIXES_FOR_OWN_COLLATION)
    return fixes[part]
