"""The public names of headrace, each once: type checkers read them here, and `__init__.py` finds their modules here."""

from torch.utils.data import *  # noqa: F403
from torch.utils.data import _DatasetKind as _DatasetKind

from headrace import errors as errors
from headrace import samplers as samplers
from headrace import transforms as transforms
from headrace import types as types
from headrace.cluster.options import Ray as Ray
from headrace.core.randomness.rng import rng as rng
from headrace.core.sharding import shard as shard
from headrace.core.world import Shard as Shard
from headrace.data.compact import compact as compact
from headrace.data.convert.pack import pack as pack
from headrace.data.convert.plan import PackOptions as PackOptions
from headrace.data.convert.verify import verify as verify
from headrace.data.formats.registry import open_writer as open_writer
from headrace.data.image_folder import ImageFolder as ImageFolder
from headrace.data.live.follow import follow as follow
from headrace.data.opening import open as open
from headrace.data.opening import open_tokens as open_tokens
from headrace.data.staged.staged import Staged as Staged
from headrace.data.staged.steps import step as step
from headrace.faults.policy import OnError as OnError
from headrace.faults.quarantine import load_quarantine as load_quarantine
from headrace.loader.automatic import Auto as Auto
from headrace.loader.dataloader import DataLoader as DataLoader
from headrace.loader.loader_state import LoaderState as LoaderState
from headrace.loader.rank_files import merge_states as merge_states
from headrace.loader.rank_files import save_state as save_state
from headrace.observe.chrome_trace import write_trace as write_trace
from headrace.observe.writers import OpenMetricsWriter as OpenMetricsWriter
from headrace.observe.writers import TensorBoardWriter as TensorBoardWriter
from headrace.version import __version__ as __version__
