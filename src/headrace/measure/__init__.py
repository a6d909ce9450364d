"""Runs a training script with its loaders replaced, in this process and in those that it starts, and measures them."""
