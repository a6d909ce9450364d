"""Samples to batch."""
