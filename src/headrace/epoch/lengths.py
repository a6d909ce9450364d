"""How long an epoch is to be, and a warning where it was not."""

from __future__ import annotations

from headrace.core.errors import warn
from headrace.core.lengths import known_length, length_at_once
from headrace.epoch.spec import LoaderSpec


def batches_of(spec: LoaderSpec) -> int | None:
    """Returns how many batches an epoch of a map-style dataset has; None if nobody says, or only after a while."""
    return length_at_once(spec.index_sampler)


def samples_of(spec: LoaderSpec) -> int | None:
    """Returns how many samples an epoch of a map-style dataset has; None if nobody says."""
    for counted in (spec.sampler, spec.dataset):
        if counted is None:
            length = None
        else:
            length = known_length(counted)

        if length is not None:
            return length

    return None


def warn_if_short(dataset: object, promised: int, batches: int, length: int) -> None:
    """Warns if an epoch of an iterable dataset had fewer batches than its length promised."""
    if batches >= promised:
        return

    warn(
        f"len() of {type(dataset).__name__} is {length}, which makes {promised} batches, but the epoch had "
        f"{batches}. Progress bars, schedulers and other ranks may rely on the length: correct __len__."
    )
