"""What an epoch is played with: the work of its batches, and the rules of the loader.

Pure: no clock, process or file.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from headrace.core.stragglers import AHEAD

Seconds = npt.NDArray[np.float64]


@dataclass(frozen=True)
class Work:
    """What the batches of an epoch take, one entry a batch, in seconds. Arrays are float64 [n]."""

    wait: Seconds
    """That making a batch waits for something that is not a core."""
    cpu: Seconds
    """Of a core that making a batch takes."""
    send: Seconds
    """Of a core that a worker takes to send it."""
    open: Seconds
    """That the main process takes to post, receive and unpack it."""
    pin: Seconds
    """That the main process takes to pin it, with workers or without."""
    loop: Seconds
    """That the training loop takes behind it."""
    in_workers: bool = True
    """Whether the batches were made by workers when this was measured."""
    loop_cores: float = 1.0
    """Cores that the training loop keeps busy."""
    latency: float = 0.0
    """From the end of sending to the arrival, if the main process waits for it."""
    start: float = 0.0
    """That starting one worker takes: an epoch begins when all of them are there. 0: they are there already."""
    single: Seconds | None = None
    """The share of making a batch that its slowest sample takes, 0 to 1; None: all samples are alike."""
    samples: int = 1
    """Of a batch."""
    slow_known: bool = False
    """Whether an epoch before has shown which samples are slow, so that they can be begun earlier."""

    def __len__(self) -> int:
        return len(self.cpu)

    def taken(self, places: npt.NDArray[np.int64]) -> Work:
        """Returns the work of these batches, in this order; starting takes the same share of it."""
        return replace(
            self,
            wait=self.wait[places],
            cpu=self.cpu[places],
            send=self.send[places],
            open=self.open[places],
            pin=self.pin[places],
            loop=self.loop[places],
            single=None if self.single is None else self.single[places],
            start=self.start * len(places) / max(len(self), 1),
        )

    def split(self, parts: int) -> Work:
        """Returns the same work in batches of a `parts`-th of the size; what a batch costs in any case stays."""

        def shares(whole: Seconds) -> Seconds:
            return np.repeat(whole / parts, parts)

        return replace(
            self,
            wait=shares(self.wait),
            cpu=shares(self.cpu),
            send=shares(self.send),
            open=shares(self.open),
            pin=shares(self.pin),
            loop=shares(self.loop),
            single=None if self.single is None else np.repeat(self.single, parts),
            samples=max(self.samples // parts, 1),
        )


@dataclass(frozen=True)
class Rules:
    """How a loader works. `workers` 0: the main process makes the batches."""

    workers: int
    prefetch: int = 2
    in_order: bool = True
    free: bool = False
    cores: int = 1
    ahead: int = AHEAD
    """Tasks that a worker holds where work goes to whichever is free."""
    spare: int = 0
    """Finished batches that may wait behind one that is late."""
    shares: bool = False
    """Whether several workers make a batch together, where that helps."""
