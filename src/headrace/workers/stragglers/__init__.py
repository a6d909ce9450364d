"""What is done where a few samples or batches take much longer than the others; see `docs/design/0019`."""
