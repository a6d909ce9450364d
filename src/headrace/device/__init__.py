"""Batch to accelerator: everything that touches a device is behind this package."""
