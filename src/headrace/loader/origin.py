"""What a state says of the loader itself, beside what was delivered."""

from __future__ import annotations

from typing import Any

from torch.utils.data import DataLoader as TorchDataLoader

from headrace.core.missing_state import MissingState, state_of
from headrace.core.protocols import is_stateful, says_yes
from headrace.epoch.draws import pattern_of_draws, random_state, resumable, state_of_changed
from headrace.epoch.generators import OrderStates
from headrace.epoch.record import Terms, blank
from headrace.epoch.snapshot import Snapshot
from headrace.epoch.spec import LoaderSpec


class LoaderOrigin:
    """What a record asks of its loader when a state is taken; a `RecordedLoader`."""

    def __init__(self, spec: LoaderSpec, *, has_workers: bool) -> None:
        """has_workers: whether workers have copies of the dataset."""
        self._spec = spec
        self._has_workers = has_workers

    def random_state(self) -> OrderStates | None:
        return random_state(self._spec)

    def dataset_state(self) -> Any:
        """Returns the state of the loader's own dataset.

        Copies in new workers are as the loader's own dataset is: a resumed run makes them in the same way. That one
        cannot be asked for its state, since it may have none before it is iterated.
        """
        dataset = self._spec.dataset
        if self._has_workers or not is_stateful(dataset):
            return None

        state = state_of(dataset)
        if type(state) is MissingState:  # before it is iterated it may have no state yet
            return None
        return state


def state_before_any_epoch(
    loader: TorchDataLoader[Any], terms: Terms, origin: LoaderOrigin, *, workers: bool, shards: bool
) -> Snapshot:
    """Returns the state of a loader that has begun no epoch.

    workers: whether copies of the dataset are. shards: whether the loader deals the data out over ranks.
    """
    sampler = loader._index_sampler
    elastic = says_yes(resumable(sampler), "elastic", otherwise=shards)
    draws = pattern_of_draws(loader.dataset, workers=workers, persistent=loader.persistent_workers)
    return blank(terms, origin, draws, elastic=elastic, sampler=state_of_changed(sampler))
