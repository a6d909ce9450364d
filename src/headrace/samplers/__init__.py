"""Samplers that start at once, go on anywhere, and deal their samples to any number of ranks.

Their order is a function of (seed, epoch, position), so a state of a few numbers is enough to resume, also with another
world size, and all ranks agree without a word. Give one to `DataLoader` as `sampler=` (the two that make batches: as
`batch_sampler=`); call `loader.set_epoch` or give the loader a `seed=` to have each epoch in another order.

- `DistributedSampler`: all samples once, shuffled or in order.
- `BlockShuffleSampler`: the same where storage is read in blocks.
- `WeightedSampler`, `ClassBalancedSampler`: rare samples, or rare classes, more often.
- `LengthBucketBatchSampler`, `MaxTokensBatchSampler`: samples of similar length together, so that little is padded.
- `MixtureSampler`: several datasets by weights that may change on the way.
"""

from headrace.samplers.balanced import ClassBalancedSampler
from headrace.samplers.blocks import BlockShuffleSampler
from headrace.samplers.bucketed import Batch, LengthBucketBatchSampler, MaxTokensBatchSampler
from headrace.samplers.distributed import DistributedSampler
from headrace.samplers.mixture import MixtureSampler
from headrace.samplers.sampler import ElasticSampler, PositionalSampler
from headrace.samplers.weighted import WeightedSampler

__all__ = [
    "Batch",
    "BlockShuffleSampler",
    "ClassBalancedSampler",
    "DistributedSampler",
    "ElasticSampler",
    "LengthBucketBatchSampler",
    "MaxTokensBatchSampler",
    "MixtureSampler",
    "PositionalSampler",
    "WeightedSampler",
]
