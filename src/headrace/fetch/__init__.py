"""Keys to samples, and samples to a batch."""
