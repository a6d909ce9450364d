"""Datasets over sources that never end."""
