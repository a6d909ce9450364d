"""What looks at an epoch from beside: the recorder, the comparison of ranks, warnings of traps and of lengths."""

from __future__ import annotations

from typing import Any

from torch.utils.data import DataLoader as TorchDataLoader

from headrace.epoch.draws import resumable
from headrace.epoch.epoch import Epoch
from headrace.epoch.lengths import samples_of, warn_if_short
from headrace.loader.left_alone import say_what_is_left_alone
from headrace.loader.rank_check import RankWatch, rank_watch
from headrace.loader.session import LoaderSession
from headrace.loader.setting import setting_of
from headrace.telemetry.dataset_traps import StreamComparison, hazards
from headrace.telemetry.recording import Trap
from headrace.workers.protocol import Executor


class EpochObserver:
    """Looks at one epoch, from its beginning on."""

    def __init__(self, session: LoaderSession, epoch: Epoch, promised: int | None) -> None:
        """promised: the length that torch was told of an iterable dataset; None: of none."""
        spec = epoch.spec
        self.recorder = session.recorder
        self.number = -1
        """Of the epoch, for the recorder."""

        self.streams: StreamComparison | None = None
        """Compares what workers deliver whose copies of an iterable dataset are streams of their own."""

        sampler = resumable(spec.index_sampler)
        self.ranks: RankWatch | None = rank_watch(session.options, epoch.terms, sampler, is_map=spec.is_map)
        self.counts_samples = not spec.is_map and promised is not None
        """Whether the number of batches is compared with a length that a stream has promised."""

        self._promised = promised or 0

    def begin(
        self, epoch: Epoch, executor: Executor, loader: TorchDataLoader[Any], began: float, *, fresh: bool
    ) -> None:
        """The epoch begins, for which the loop asked at `began`. fresh: whether its workers are new."""
        epoch.fault_counter.begin_epoch(samples_of(epoch.spec) if epoch.is_map else None)
        if self.ranks is not None:
            self.ranks.begin(epoch.planned)

        setting = setting_of(
            loader,
            backend=executor.backend,
            workers=executor.num_workers,
            prefetch_factor=epoch.spec.prefetch_factor,
            free=epoch.any_replica_will_do,
            tuned=executor.scales,
        )
        self.recorder.begin_epoch(began, setting, fresh=fresh)
        self.number = self.recorder.epoch
        if self.number == 0:
            for trap in hazards(epoch.spec.dataset, setting):
                self.recorder.trapped(trap)
            say_what_is_left_alone(epoch.spec, announces=epoch.terms.announce)
        if epoch.has_own_streams and executor.replicas:
            self.streams = StreamComparison(epoch.record.replicas)

    def compare_streams(self, dataset: object, worker: int, batch: object) -> None:
        """Says once if two workers' streams of `dataset` begin alike."""
        if self.streams is not None and self.streams.repeats(worker, batch):
            name = type(dataset).__name__
            text = f"The workers' streams of {name} begin with the same batch."
            self.recorder.trapped(Trap("stream-repeats", text))

    def end(self, epoch: Epoch, asked: float, *, workers: int) -> None:
        """The epoch came to its end, after the loop `asked` for a further batch. workers: copies of the dataset."""
        batches = int(epoch.progress.batches)
        if self.counts_samples:
            self._compare_with_length(epoch, batches, workers)

        epoch.fault_counter.end_epoch(epoch.seen)
        if self.ranks is not None:
            self.ranks.ends(batches)

        self.recorder.end_epoch(self.number, batches, asked)

    def _compare_with_length(self, epoch: Epoch, batches: int, workers: int) -> None:
        """Warns if an iterable dataset was shorter than the length that was asked for; torch warns if it is longer.

        Each of several workers may drop a batch that is not full.
        """
        spec = epoch.spec
        terms = epoch.terms
        if terms.deal:
            share = terms.global_batch
        else:
            share = int(terms.fingerprint["batch_size"] or 1)

        expected = -(-self._promised // share)
        dropped = 0
        if spec.drop_last:
            expected = self._promised // share
        if spec.drop_last and not terms.deal:
            dropped = workers

        warn_if_short(spec.dataset, expected - dropped, batches, self._promised)
