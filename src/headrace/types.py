"""What users are given and rarely make: datasets, columns and samples, figures of a loader, and reports."""

import importlib
from typing import TYPE_CHECKING, Any

from headrace.data.blobs import Blobs as Blobs
from headrace.data.convert.packed import Packed as Packed
from headrace.data.convert.verified import Verified as Verified
from headrace.data.formats.columns import Block as Block
from headrace.data.formats.columns import Field as Field
from headrace.data.formats.columns import Ragged as Ragged
from headrace.data.formats.columns import Schema as Schema
from headrace.data.formats.protocol import Writer as Writer
from headrace.data.gather import Padded as Padded
from headrace.data.mixed_stream import MixedStream as MixedStream
from headrace.data.stored import StoredDataset as StoredDataset
from headrace.data.stream import StoredStream as StoredStream
from headrace.data.stream_steps import SteppedStream as SteppedStream
from headrace.data.tokens import TokenWindows as TokenWindows
from headrace.faults.bad_sample import BadSample as BadSample
from headrace.faults.counts import Faults as Faults
from headrace.loader.reporting import Report as Report
from headrace.observe.diagnosis.finding import Diagnosis as Diagnosis
from headrace.observe.diagnosis.finding import Finding as Finding
from headrace.observe.stats import LoaderStats as LoaderStats
from headrace.telemetry.recording import Recording as Recording
from headrace.telemetry.recording import Setting as Setting

if TYPE_CHECKING:
    from headrace.data.live.dataset import LogDataset as LogDataset
    from headrace.data.staged.planning import CutPlan as CutPlan

_LOADED_LATER = {"LogDataset": "headrace.data.live.dataset", "CutPlan": "headrace.data.staged.planning"}
"""Their modules bring Arrow or rich, for which nobody has to wait who asks for other names."""


def __getattr__(name: str) -> Any:
    """Loads a class when it is first used; after that it is a plain attribute of this module."""
    if name not in _LOADED_LATER:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")

    value = getattr(importlib.import_module(_LOADED_LATER[name]), name)
    globals()[name] = value
    return value
