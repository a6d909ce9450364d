"""What headrace looks for on the objects that you give it: each attribute, who asks for it, and when.

Every one is optional. An object without an attribute is used as torch uses it. Whole objects seldom have all of a class
here: the classes below group the attributes by what they are found on, and each is looked for by itself.

Other libraries use the same names with other meanings. So a method is called only if it can be called as it is
described here (`answers`), and a value counts only if it is of the type that stands here (`says_yes`). Anything else is
left alone.
"""

from __future__ import annotations

import inspect
from typing import Any, Protocol, TypeGuard, runtime_checkable

import numpy as np
import numpy.typing as npt
import torch

from headrace.core.batch_memory import BatchMemory
from headrace.core.hugging_face_streams import is_hugging_face_stream, missing_in_state, set_stream_epoch
from headrace.core.signatures import signature_of


@runtime_checkable
class Stateful(Protocol):
    """A dataset, an iterator over one, or a sampler, whose state can be saved; the protocol of torchdata.

    `DataLoader.state_dict` asks samplers in the main process. Workers ask their copy of the dataset, or its iterator,
    behind each batch. `DataLoader.load_state_dict` gives the states back when the next epoch begins.
    """

    def state_dict(self) -> Any:
        """Returns the state."""

    def load_state_dict(self, state_dict: Any) -> None:
        """Restores what `state_dict` returned."""


class Movable(Protocol):
    """A part of a batch that moves itself to a device, such as a graph of PyTorch Geometric or a packed sequence."""

    def to(self, device: torch.device) -> Any:
        """Returns it on a device. With `DataLoader(device=)`, called with `non_blocking=True` where it knows the word.

        It is called when the batch is handed over, on the stream that the loop computes on. Tensors, mappings, lists,
        tuples and dataclasses are not asked: the loader moves what they hold.
        """


class HearsEpochs(Protocol):
    """A dataset, sampler or batch sampler that wants to know the number of the epoch."""

    def set_epoch(self, epoch: int) -> None:
        """Is told the number of the epoch that is about to begin.

        Called by `DataLoader.set_epoch`, and by a loader for which that was called, or that has a `seed=`, whenever an
        epoch begins: for samplers in the main process, for datasets in each worker.
        """


class MakesBatches(Protocol):
    """A map-style dataset that makes a whole batch without a Python loop over its samples.

    The loader looks at it when an epoch begins, and only with the default collate function. It passes `out` by name.
    """

    draws: bool
    """Whether `fetch_batch` draws random numbers: only then are they seeded before each call."""

    lies_in_memory: bool
    """Whether fetching is reading memory: the first epoch with workers then warns if these only slow it down."""

    place: str
    """Where the data lie, for that warning and for errors."""

    def prepare(self) -> None:
        """Called by the loader in the main process before each epoch; makes what workers are about to share."""

    def fetch_batch(self, keys: npt.NDArray[np.int64], out: BatchMemory) -> Any:
        """Returns the collated batch of these keys. Called in place of `__getitem__` and collation.

        keys: int64 [batch]. out: where the batch's tensors may be made, so that they need no copy.
        """


class CollatesPacks(Protocol):
    """A collate function that wants to know which tokens of which documents are in a batch of packs."""

    def __call__(self, samples: Any, *, packs: Any) -> Any:
        """Makes a batch. Called with `packs` only for the batches of a `PackedBatchSampler`.

        packs: the `headrace.samplers.PackedBatch` of these samples. Where bad samples were left out or replaced, it
        tells of those that are here.
        """


class ReadsRanges(Protocol):
    """A dataset whose samples are byte ranges of objects in a store. Asked when an epoch begins.

    Subsets and wrappers are looked through by their attribute `dataset`.
    """

    lies_elsewhere: bool
    """Whether it reads from an object store or a server: worker processes then read through one I/O process."""

    def byte_ranges(self, keys: npt.NDArray[np.int64]) -> list[Any]:
        """Returns which byte ranges samples are: a list of `headrace.storage.fetching.ranges.ByteRange`.

        Called with keys that come later, so that they are read ahead. keys: int64 [n].
        """


class NeverEnds(Protocol):
    """A map-style dataset over a log, which has no length. Asked when the loader is made, and when an epoch begins."""

    endless: bool
    """Whether the data have no end: an epoch goes on where the one before has stopped."""

    def live_sampler(self, **order: Any) -> Any:
        """Returns the sampler of the loader. order: `name`, `shuffle`, `seed`, `rank`, `world_size`, `uneven`, and
        `alone`: whether each rank has an order of its own."""

    def commit(self, state: Any) -> None:
        """Tells the source what a state has behind it. Called by `DataLoader.commit`."""


class YieldsBatches(Protocol):
    """An iterator over an iterable dataset that makes a whole batch of its next samples. `out` is passed by name."""

    def next_batch(self, count: int, out: BatchMemory) -> tuple[Any, int]:
        """Returns the collated batch of the next samples, and how many these are: fewer than `count` at the end.

        Called by workers for each batch, with the default collate function. Raises `StopIteration` if nothing is left.
        """


class NamesLastSample(Protocol):
    """An iterator over a stream that tells where its samples come from. Asked when a step failed on a sample."""

    def place_of_last(self, part: str | int | None) -> str:
        """Returns where the last sample that `next` gave comes from. part: a column, if only one is meant."""


class YieldsPacks(Protocol):
    """An iterator over an iterable dataset whose samples are packs of documents that were read ahead.

    Its `documents` are how many were read for the packs that came, the bad ones too.
    """

    def next_pack(self) -> Any:
        """Returns the next pack; its `errors` are of documents that it goes without. Called in place of `__next__`."""


class NamesSamples(Protocol):
    """A map-style dataset that tells from which file a sample comes. Asked when a sample was bad.

    It has one of these. Subsets and wrappers are looked through by their attributes `dataset`, `source` and `indices`.
    """

    def path_of_sample(self, key: Any) -> str | None:
        """Returns the path or URL of a sample, as a user would call it; None if it is not known."""

    samples: list[tuple[str, Any]]
    """The path and the class of each sample, as torchvision's `ImageFolder` has them; also found as `imgs`."""


class StepFunction(Protocol):
    """A function given to `.map()`, or as the transform of an `ImageFolder`. Asked when the step is declared."""

    random: bool
    """Whether it draws random numbers: its results are then never cached."""

    seeds_itself: bool
    """Whether it seeds the generators that it holds, from `headrace.rng()`: then nobody else does."""

    takes_encoded: bool
    """Whether it decodes images itself: then it gets the bytes of the file, or the path."""

    shape: tuple[int, ...]
    """The shape of each result, if it writes results with `into`."""

    dtype: torch.dtype
    """The element type of each result, if it writes results with `into`."""

    def into(self, value: Any, out: torch.Tensor) -> None:
        """Writes the result for one sample into `out`; called for the last step of a batch, in place of a call."""


class HasFingerprint(Protocol):
    """A dataset, or an object that a step uses, which says itself when its data have changed."""

    def fingerprint(self) -> str:
        """Returns a text that changes whenever what is computed from the object would. Asked before a cache is used."""


class GivesWeights(Protocol):
    """What may be given as the weights of a mixture. Asked in each window of samples."""

    def weights_at(self, position: int) -> Any:
        """Returns a weight for each source, from a position on."""


class DealsSamples(Protocol):
    """A sampler; headrace's own have these attributes. A batch sampler's `sampler` is asked too."""

    generator: torch.Generator | None
    """Its own source of random numbers, as torch's samplers have it; part of the loader's state."""

    takes_all_alike: bool
    """Whether it takes each sample of the dataset equally often: a bad one may then be replaced by any other."""

    source_edges: Any
    """Of a mixture: where its sources begin among the keys, and the last one ends, int64 [sources + 1].

    A bad sample is replaced by another one of its source. None: it is no mixture.
    """

    length_takes_long: bool
    """Whether `len()` makes the order of the whole epoch: the loader then does not ask for it."""

    samples_of_dataset: int
    """How many samples the dataset must have; compared when the loader is made."""

    elastic: bool
    """Whether its state can be taken up by another number of ranks. Asked when a state is taken."""

    world: Any
    """The `World` (rank, ranks) over which it deals out its positions. Asked when an epoch begins."""

    uneven: str
    """What becomes of samples that the ranks cannot share evenly: "pad", "drop" or "keep".

    Asked when an epoch begins.
    """

    excluded: Any
    """The numbers of samples that it leaves out. Asked when the loader is made."""

    positions: Any
    """On an index that it yields: the positions of its samples in the epoch, from which their seeds follow."""

    def check_state(self, state: Any) -> None:
        """Raises `StateError` for a state that the sampler cannot take up. Called before anything is restored."""


ORDER_OF_LOG = ("name", "shuffle", "seed", "rank", "world_size", "uneven", "alone")
"""What `NeverEnds.live_sampler` is given."""


def answers(thing: object, name: str, count: int = 0, *words: str) -> bool:
    """Tells whether an object has a method of this name that takes `count` arguments, and others named `words`."""
    method = getattr(thing, name, None)
    if not callable(method):
        return False

    signature = signature_of(method)
    return signature is None or signature.accepts(count, words)


def says_yes(thing: object, name: str, otherwise: bool = False) -> bool:
    """Tells whether an attribute is `True`. otherwise: the answer for an object that does not have it."""
    return getattr(thing, name, otherwise) is True


def is_stateful(thing: object) -> TypeGuard[Stateful]:
    """Tells whether an object has a state that can be taken and restored; see `Stateful`."""
    if not hasattr(thing, "state_dict"):  # as nearly always
        return False
    if _holds_weights(thing) or missing_in_state(thing):
        return False
    return answers(thing, "state_dict") and answers(thing, "load_state_dict", 1)


def other_state_protocol(thing: object) -> str:
    """Returns how `state_dict` and `load_state_dict` of an object are called, if not as `Stateful`; else nothing.

    What they save may matter, and nobody here can ask for it. Weights do not say where in its data an object is.
    """
    if not callable(getattr(thing, "state_dict", None)) or not callable(getattr(thing, "load_state_dict", None)):
        return ""
    if is_stateful(thing) or _holds_weights(thing) or missing_in_state(thing):
        return ""

    name = "state_dict"
    if answers(thing, name):
        name = "load_state_dict"
    signature = signature_of(getattr(thing, name))
    if signature is None:
        return name
    return f"{name}({', '.join(signature.parameters)})"


def _holds_weights(thing: Any) -> bool:
    """Tells whether a `state_dict` is that of torch's modules (and TensorDicts): all tensors that an object holds."""
    signature = signature_of(thing.state_dict)
    if signature is None:
        return isinstance(thing, torch.nn.Module)
    if "keep_vars" in signature.parameters:
        return True
    return isinstance(thing, torch.nn.Module) and answers(thing, "state_dict", 0, "prefix", "keep_vars")


def may_have_states(dataset: object, *, is_map: bool) -> bool:
    """Tells whether a dataset has a state, or if iterators over it may have one. Generators have none."""
    if is_map or is_stateful(dataset):
        return is_stateful(dataset)
    return not inspect.isgeneratorfunction(getattr(type(dataset), "__iter__", None))


def is_live(dataset: object) -> bool:
    """Tells whether a dataset is a log; see `NeverEnds`."""
    return answers(dataset, "live_sampler", 0, *ORDER_OF_LOG)


def tell_epoch(listener: object, epoch: int) -> None:
    """Calls the `set_epoch` of an object that has one; see `HearsEpochs`."""
    if is_hugging_face_stream(listener):
        set_stream_epoch(listener, epoch)
    elif answers(listener, "set_epoch", 1):
        listener.set_epoch(epoch)  # type: ignore[attr-defined]  # `answers` has looked


def takes_encoded(function: object) -> bool:
    """Tells whether a step decodes images itself; see `StepFunction`."""
    return says_yes(function, "takes_encoded")
