"""Says what of a dataset or a sampler the loader leaves alone, because it answers another protocol."""

from __future__ import annotations

from collections.abc import Iterator

from headrace.core.missing_state import no_state
from headrace.core.protocols import answers, other_state_protocol
from headrace.core.text.log_once import warn_once
from headrace.epoch.spec import LoaderSpec


def say_what_is_left_alone(spec: LoaderSpec, *, announces: bool) -> None:
    """Says in the log `headrace` which methods are not called, each once.

    announces: whether `set_epoch` of datasets and samplers would be called.
    """
    for _, thing in _parts(spec):
        name = type(thing).__qualname__
        if signature := other_state_protocol(thing):
            what = f"{name}.{signature}"
            warn_once(what, f"{what} is not the protocol of this loader, so loader.state_dict() raises")
        if announces and callable(getattr(thing, "set_epoch", None)) and not answers(thing, "set_epoch", 1):
            what = f"{name}.set_epoch"
            warn_once(what, f"{what} takes other arguments than the number of an epoch: the loader does not call it")


def check_states(spec: LoaderSpec) -> None:
    """Raises `StateError` if the dataset or a sampler has a state that nobody here can ask for."""
    for what, thing in _parts(spec):
        if signature := other_state_protocol(thing):
            raise no_state(what, f"{type(thing).__qualname__}.{signature}")


def _parts(spec: LoaderSpec) -> Iterator[tuple[str, object]]:
    """Yields what may have a state, with what it is."""
    yield "dataset", spec.dataset
    if spec.is_map:
        yield "sampler", spec.index_sampler
        yield "sampler", getattr(spec.index_sampler, "sampler", None)
