"""A dataset with steps: some computed once, the others at each access, and a cut between them that can be moved."""

from __future__ import annotations

import copy
import os
from collections.abc import Sequence
from contextvars import ContextVar
from pathlib import Path
from typing import TYPE_CHECKING, Any

from torch.utils.data import Dataset, IterableDataset

from headrace.core.batch_memory import BatchMemory
from headrace.core.errors import UsageError, wrong_argument
from headrace.core.protocols import says_yes
from headrace.core.randomness.rng import begin_stream, global_states_kept
from headrace.core.text.urls import refuse_url
from headrace.data.building.pool import On, check_on
from headrace.data.fluent import Fluent
from headrace.data.formats.columns import Keys
from headrace.data.formats.registry import format_named
from headrace.data.gather import RAGGED, RaggedAs, in_range, whole_numbers
from headrace.data.staged import batches as whole_batches
from headrace.data.staged.build import looked_at, plan_work
from headrace.data.staged.cache import Cached, Folder, Stale, in_memory
from headrace.data.staged.fingerprint import Fingerprint, fingerprint_of
from headrace.data.staged.samples import Columns, Data, SampleRows, as_rows, named
from headrace.data.staged.sources import copied, source_of
from headrace.data.staged.step_runner import Pipeline
from headrace.data.staged.steps import Step, as_steps
from headrace.data.stored import StoredDataset
from headrace.storage.locations import local_path

if TYPE_CHECKING:
    from headrace.data.staged.planning import CutPlan

MEMORY = "memory"

unbuilt: ContextVar[bool] = ContextVar("unbuilt", default=False)
"""Whether caches are left alone for now: while a script is only looked at, to plan its cut."""

SHOWN = 600
"""Characters of what a dataset says of itself, at most."""

BAR_AFTER = 1.0
"""Seconds of building after which a progress bar is shown."""


class Staged(Fluent, Dataset[Any]):
    """A map-style dataset with two kinds of steps, and a cache between them.

    `initial_transform` is computed once, for all samples, in parallel; `get_item_transform` at each access. Samples are
    the same wherever the cache point is: their parts come back from a cache with the types that they had. Where it
    should be, `plan()` measures. Batches are made column by column where steps are `batched`: no Python runs for each
    sample.

    Steps before the cache point give the same result each time; one that draws random numbers is refused. Random
    numbers after the cache point come, under `DataLoader(seed=)`, from a stream of each sample and step: any backend,
    any number of workers, any cache point, the same numbers.

    A cache in a folder belongs to all processes that open it: one builds, the others wait, and then map it into their
    memory. It knows the data, the steps, the values that they use and the versions of libraries it was made with. The
    constructor opens or computes it; it shows a progress bar where that takes longer than a second.

    Args:
        dataset: any map-style dataset. What `headrace.open` returns is read column by column.
        initial_transform: a step, or several, in order: callables, or what `headrace.step` returns.
        get_item_transform: likewise.
        cache: None: nothing is kept, all steps are done at each access. `"memory"`: in this process, shared by forked
            workers. A path: a folder on the disk.
        format: of the data in the folder: any that can be written, `memmap` being the quickest.
        stale: what to do with a cache that other data or steps have made: `"error"`, or `"rebuild"`; it is kept until
            the new one is complete.
        freeze_random: compute random steps once all the same; each sample then has numbers of its own, always the same.
        ragged: how a batch holds arrays whose first dimension differs, as in `headrace.open`: `"pad"`, `"nested"` or
            `"list"`.
        on: `"ray"`: tasks of a Ray cluster compute the samples; all machines see the folder at the same path.

    Raises:
        UsageError: wrong arguments.
        SampleError: steps return what cannot be kept.
        StaleCacheError: the folder holds a cache of other data or steps.
        FormatError: the cache is damaged.
        DatasetError: the disk is full.
        Exception: whatever the steps raise, with the sample's number as a note.

    Examples:
        >>> data = headrace.Staged([1, 2, 3], str, len, cache="memory")
        >>> data[2]
        1
    """

    def __init__(  # noqa: PLR0913 - these are the words of one sentence
        self,
        dataset: Any,
        initial_transform: Any = None,
        get_item_transform: Any = None,
        cache: str | os.PathLike[str] | None = None,
        *,
        format: str = "memmap",
        stale: Stale = "error",
        freeze_random: bool = False,
        ragged: RaggedAs = "pad",
        on: On = "local",
    ) -> None:
        if isinstance(dataset, IterableDataset) or not hasattr(dataset, "__getitem__"):
            fix = "pack the stream first (headrace pack), or apply the transform in it"
            found = f"a {type(dataset).__name__}"
            raise UsageError.about(
                "steps need samples that have numbers", found=found, expected="a map-style dataset", fix=fix
            )

        self.dataset = dataset
        self.initial_transform = as_steps(initial_transform)
        self.get_item_transform = as_steps(get_item_transform)
        self.ragged: RaggedAs = ragged
        self._source = source_of(dataset)
        self._where: str | Path | None = None
        self._stored: StoredDataset | None = None
        self._cached: Cached | None = None
        self._pipeline: Pipeline | None = None
        _check(stale=stale, ragged=ragged)
        check_on(on, "Staged")
        if cache is not None and not unbuilt.get():
            self._keep(cache, format, stale, freeze_random, on)

    @classmethod
    def of(cls, dataset: Any) -> Staged:
        """Returns a dataset itself if it has steps already, otherwise without any."""
        if isinstance(dataset, Staged):
            return dataset
        ragged: Any = getattr(dataset, "ragged", "pad")
        if ragged not in RAGGED:
            ragged = "pad"
        return cls(dataset, ragged=ragged)

    def with_step(self, step: Step) -> Staged:
        """Returns the data with one more step at the end."""
        changed = copy.copy(self)
        changed._pipeline = None
        changed.get_item_transform = (*self.get_item_transform, step)
        return changed

    def with_cache(self, where: str | os.PathLike[str], **words: Any) -> Staged:
        """Returns the data with all steps so far computed once. words: those of `Staged`."""
        if self._cached is not None:
            return Staged(self, cache=where, **{"ragged": self.ragged, **words})
        return self.with_cut(len(self.steps), where, **words)

    def with_cut(self, cut: int, cache: str | os.PathLike[str] | None, **words: Any) -> Staged:
        """Returns the same steps, the first `cut` of them computed once. words: those of `Staged`."""
        if not 0 <= cut <= len(self.steps):
            raise wrong_argument("cut", cut, f"0 to {len(self.steps)}, the number of steps")

        return Staged(self.dataset, self.steps[:cut], self.steps[cut:], cache, **{"ragged": self.ragged, **words})

    # -- what it is ----------------------------------------------------------------------------------------------------

    @property
    def steps(self) -> tuple[Step, ...]:
        """All steps, in order."""
        return (*self.initial_transform, *self.get_item_transform)

    @property
    def cut(self) -> int:
        """How many steps are computed once."""
        if self._cached is not None:
            return len(self.initial_transform)
        return 0

    @property
    def cached(self) -> Cached | None:
        """What the cache holds; None without one."""
        return self._cached

    @property
    def stored(self) -> StoredDataset | None:
        """The cache as stored data, column by column; None without one, or if it is empty."""
        return self._stored

    @property
    def lies_elsewhere(self) -> bool:
        """Whether samples are read from an object store or a server, and not from a cache on this machine."""
        return self._where is None and says_yes(self.dataset, "lies_elsewhere")

    def byte_ranges(self, keys: Any) -> list[Any]:
        """Returns which byte ranges samples are. See `StoredDataset.byte_ranges`."""
        found: list[Any] = self.dataset.byte_ranges(keys)
        return found

    @property
    def lies_in_memory(self) -> bool:
        """Whether samples come from memory, or from files that are mapped into it."""
        if self._stored is not None:
            return self._stored.lies_in_memory
        return says_yes(self.dataset, "lies_in_memory")

    @property
    def place(self) -> str:
        """What messages call it."""
        return str(self._where or getattr(self.dataset, "place", type(self.dataset).__name__))

    @property
    def draws(self) -> bool:
        """Whether random numbers may be drawn at an access."""
        step_draws = any(step.random is not False for step in self._at_access())
        return step_draws or (self._cached is None and self._source.draws)

    @property
    def streams(self) -> int:
        """How many random streams each sample has."""
        return self._source.streams + len(self.steps)

    def as_source(self) -> Staged:
        """Returns what another pipeline gets samples from; see `sources.StepSource`."""
        return self

    def _at_access(self) -> tuple[Step, ...]:
        if self._cached is not None:
            return self.get_item_transform
        return self.steps

    def fingerprint(self) -> str:
        """Returns a text that changes when samples do, as far as can be told: of the data, the steps, the libraries."""
        return self._fingerprint(self.steps).digest

    def _fingerprint(self, steps: Sequence[Step]) -> Fingerprint:
        named: list[tuple[str, Any]] = [("dataset", self.dataset)]
        for number, step in enumerate(steps, 1):
            name = f"step {number} {step.name!r}"
            if step.version is None:
                named.append((name, step.function))
            else:
                named.append((f"{name}, version", step.version))

            for word, value in (("batched", step.batched), ("on", step.on)):
                if value:
                    named.append((f"{name}, {word}", value))

        return fingerprint_of(named)

    def __repr__(self) -> str:
        lines = [f"Staged: {len(self):,} samples", "  " + self._source_text().replace("\n", "\n  ")]
        for number, step in enumerate(self.steps):
            if number == self.cut and self._cached is not None:
                lines.append(f"  ---- kept in {self._where}")
            lines.append(f"  {number + 1} {step}")

        if self._cached is not None and self.cut == len(self.steps):
            lines.append(f"  ---- kept in {self._where}")
        return "\n".join(lines)

    def _source_text(self) -> str:
        text = repr(self.dataset)
        if len(text) <= SHOWN:
            return text
        return f"{type(self.dataset).__name__} of {len(self.dataset):,}"

    def plan(self, *, batch_size: int = 64, epochs: int = 10) -> CutPlan:
        """Measures the steps on a few batches, and predicts what each cache point would cost.

        Costs some batches' worth of all steps; nothing is kept.

        Args:
            batch_size: samples of a batch.
            epochs: over how many a build shall pay for itself.

        Returns:
            The plan, which prints as a table.

        Raises:
            UsageError: not both are whole numbers above 0.

        Examples:
            >>> plan = headrace.Staged([1, 2, 3], None, [str, len]).plan(batch_size=2)
            >>> [cut.cut for cut in plan.cuts]
            [0, 1, 2]
        """
        from headrace.data.staged.planning import plan

        for name, number in (("batch_size", batch_size), ("epochs", epochs)):
            if type(number) is not int or number < 1:
                raise wrong_argument(name, number, "a whole number above 0", place="plan")

        return plan(self, batch_size=batch_size, epochs=epochs)

    # -- the cache -----------------------------------------------------------------------------------------------------

    def _keep(self, where: Any, format: str, stale: Stale, freeze_random: bool, on: On) -> None:
        if not isinstance(where, (str, os.PathLike)) or not os.fspath(where):
            raise wrong_argument("cache", where, '"memory", a path, or None')

        if not hasattr(self.dataset, "__len__"):
            found = f"a {type(self.dataset).__name__} without a length"
            expected = "one that has a length"
            raise UsageError.about("only a dataset of known length can be kept", found=found, expected=expected)

        length = len(self.dataset)
        steps = self.initial_transform
        if where == MEMORY:
            self._where = MEMORY
        else:
            self._where = folder_named(where)

        from headrace.telemetry.progress import samples_bar  # with rich, which takes long to load

        format_named(format)

        def work() -> tuple[Any, float]:
            return plan_work(self._source, steps, length, freeze_random=freeze_random)

        if isinstance(self._where, Path):
            prints = self._fingerprint(steps)
            if freeze_random:
                prints.parts["freeze_random"] = "True"
            folder = Folder(self._where, format, prints, stale, on)
            cached = folder.opened()
            if cached is None:
                with samples_bar(f"computing {self._where}", after=BAR_AFTER) as report:
                    cached = folder.build(*work(), report)
        else:
            with samples_bar("computing samples into memory", after=BAR_AFTER) as report:
                cached = in_memory(*work(), report, on)

        self._cached = cached
        self._stored = self._opened(cached)
        # Maps the files now: another process may build the cache anew and remove them, which a mapping outlives.
        if self._stored is not None:
            _ = self._stored.lies_in_memory

    def _opened(self, cached: Cached) -> StoredDataset | None:
        if cached.reader is None:
            return None

        wanted = cached.schema
        stored = StoredDataset(cached.reader, cached.reader.schema.only(wanted.names), decode=False, ragged=self.ragged)
        differ = {}
        for field in wanted:
            if field.dtype != stored.schema[field.name].dtype:
                differ[field.name] = field.dtype

        if differ:
            return stored.astype(**differ)
        return stored

    # -- samples -------------------------------------------------------------------------------------------------------

    def __len__(self) -> int:
        if self._cached is None:
            return len(self.dataset)
        return self._cached.length

    def __getitem__(self, key: Any) -> Any:
        """Returns one sample, with all steps done. Raises what the dataset and the steps raise."""
        return as_rows(self.load([key]))[0]

    def __getitems__(self, keys: Sequence[Any]) -> list[Any]:
        """Returns several samples, made together."""
        return as_rows(self.load(keys))

    def load(self, keys: Sequence[Any] | Keys) -> Data:
        """Returns samples with all steps done, one by one or in columns, whichever they come in."""
        return self.pipeline().run(self.before_steps(keys), named(keys, self.dataset))

    def before_steps(self, keys: Sequence[Any] | Keys) -> Data:
        """Returns samples as they are before the steps of each access."""
        if self._cached is None:
            return self._source.load(keys)

        checked = in_range(whole_numbers(keys), len(self))
        if self._stored is not None:
            block = self._stored.block(checked)
        else:
            block = None

        if block is None:
            return SampleRows([])
        return Columns(self._cached.node, block, len(checked))

    def pipeline(self, *, batches: bool = False) -> Pipeline:
        """Returns the steps of each access; for whole batches, or for single samples.

        Looks at a few samples first, where it must know how samples are built that come one by one: those that batched
        steps get, and those that batches are made of. A loader does so before it starts workers, that these need not.
        """
        if self._pipeline is None:
            if self._cached is None:
                computed = 0
            else:
                computed = len(self.initial_transform)
            self._pipeline = Pipeline(self._at_access(), self._source.streams + computed)

        pipeline = self._pipeline
        if not pipeline.learned and len(self) and pipeline.must_learn(batches=batches):
            with global_states_kept():
                begin_stream(None)
                self._learn(pipeline, looked_at(len(self)).tolist())

        return pipeline

    def _learn(self, pipeline: Pipeline, keys: list[int]) -> None:
        """Has a pipeline look at some samples; those that cannot be had are left out, since nobody may ask for them."""
        # One sample that raises, or is unlike all others, must not keep the others from being learned of. Which one it
        # is, is found one by one.
        try:
            self._learn_of(pipeline, keys)
        except Exception:
            groups = self._alike(pipeline, keys)
            # What was learned of single samples on the way would be taken for what all look like.
            pipeline.forget()
            alike = max(groups, key=len, default=[])
            if groups and 2 * len(alike) <= sum(map(len, groups)):
                raise
            try:
                self._learn_of(pipeline, alike or keys)
            except Exception:
                # A step that raises for all samples raises at each access, too. It gets there what it got here.
                if alike:
                    raise

    def _learn_of(self, pipeline: Pipeline, keys: list[int]) -> None:
        pipeline.learn(copied(self.before_steps(keys)), named(keys, self.dataset))

    def _alike(self, pipeline: Pipeline, keys: list[int]) -> list[list[int]]:
        """Returns those of some samples that can be had, in groups of which each can be had together."""
        groups: list[list[int]] = []
        for key in keys:
            for group in groups:
                if self._is_sound(pipeline, [*group, key]):
                    group.append(key)
                    break
            else:
                if self._is_sound(pipeline, [key]):
                    groups.append([key])
        return groups

    def _is_sound(self, pipeline: Pipeline, keys: list[int]) -> bool:
        try:
            self._learn_of(pipeline, keys)
        except Exception:  # noqa: BLE001 - an access to that very sample will raise it
            return False
        return True

    def prepare(self) -> None:
        """Looks at what it must before batches are made; a loader calls it before it starts workers."""
        self.pipeline(batches=True)

    # -- batches -------------------------------------------------------------------------------------------------------

    def fetch_batch(self, keys: Sequence[Any] | Keys, out: BatchMemory) -> Any:
        """Returns the batch of these keys, made in `out` where it is held in columns; otherwise collated as by torch.

        Tuples and lists become lists, as in torch; arrays whose first dimension differs what `ragged` says; strings
        lists, and byte strings `Blobs`.
        """
        return whole_batches.fetch(self, keys, out)


def folder_named(where: Any) -> Path:
    """Returns the folder of a cache. Raises `UsageError` for a name that cannot be one."""
    try:
        named = local_path(where)
        refuse_url(named, "cache=", "name a folder on a disk of this node: its files are mapped into memory")
        path = Path(named).expanduser()
        if str(path).encode().find(0) >= 0:
            raise ValueError("a zero byte")
    except (RuntimeError, ValueError) as error:
        expected = "the path of a folder"
        raise UsageError.about(
            "this cannot be a folder", place="cache=", found=f"{where!r}: {error}", expected=expected
        ) from error

    return path


def _check(*, stale: object, ragged: object) -> None:
    for word, value, choices in (("stale", stale, ("error", "rebuild")), ("ragged", ragged, RAGGED)):
        if value not in choices:
            expected = " or ".join(map(repr, choices))
            raise wrong_argument(word, value, expected, place="Staged")
