"""Batches on an accelerator: which one there is, and how they get there."""
