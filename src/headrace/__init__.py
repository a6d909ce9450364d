"""headrace: a drop-in superset of `torch.utils.data`."""

from headrace import samplers, transforms, writers
from headrace.core.part import shard
from headrace.core.printable import guard_log
from headrace.core.streams import rng
from headrace.dataset.compact import compact
from headrace.dataset.image_folder import ImageFolder
from headrace.dataset.staged.staged import Staged
from headrace.dataset.staged.steps import step
from headrace.dataset.stored import open
from headrace.faults.quarantine import load_quarantine
from headrace.formats.columns import Ragged
from headrace.loader import DataLoader
from headrace.state.snapshot import merge_states
from headrace.version import __version__

__all__ = [
    "DataLoader",
    "ImageFolder",
    "Ragged",
    "Staged",
    "__version__",
    "compact",
    "load_quarantine",
    "merge_states",
    "open",
    "rng",
    "samplers",
    "shard",
    "step",
    "transforms",
    "writers",
]

guard_log()
