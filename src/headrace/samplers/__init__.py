"""Samplers that start at once, resume anywhere, and split their samples over any number of ranks.

Their order depends only on seed, epoch and position. So a state of a few numbers is enough to resume, also with another
world size, and all ranks agree without communication. Give one to `DataLoader` as `sampler=` (those that make
batches: as `batch_sampler=`). Call `loader.set_epoch` or give the loader a `seed=` to get another order in each epoch.

- `DistributedSampler`: all samples once, shuffled or in order.
- `BlockShuffleSampler`: the same, for storage that is read in blocks.
- `WeightedSampler`, `ClassBalancedSampler`: rare samples, or rare classes, more often.
- `LengthBucketBatchSampler`, `MaxTokensBatchSampler`: batches of samples of similar length, with little padding.
- `PackedBatchSampler`: documents packed end to end, up to a budget of tokens.
- `MixtureSampler`: several datasets by weights of samples or tokens, which may change during training.
"""

from headrace.samplers.balanced import ClassBalancedSampler
from headrace.samplers.blocks import BlockShuffleSampler
from headrace.samplers.bucketed import LengthBucketBatchSampler, MaxTokensBatchSampler
from headrace.samplers.distributed import DistributedSampler
from headrace.samplers.mixture import MixtureSampler
from headrace.samplers.packed import PackedBatchSampler
from headrace.samplers.packed_batch import PackedBatch
from headrace.samplers.sampler import ElasticSampler, PositionalSampler
from headrace.samplers.sources import SourceCount
from headrace.samplers.weighted import WeightedSampler
from headrace.samplers.windowed import Batch

__all__ = [
    "Batch",
    "BlockShuffleSampler",
    "ClassBalancedSampler",
    "DistributedSampler",
    "ElasticSampler",
    "LengthBucketBatchSampler",
    "MaxTokensBatchSampler",
    "MixtureSampler",
    "PackedBatch",
    "PackedBatchSampler",
    "PositionalSampler",
    "SourceCount",
    "WeightedSampler",
]
