"""WebDataset: tar shards, their index, and the samples in them."""
