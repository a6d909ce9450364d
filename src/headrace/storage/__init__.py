"""Data that lie elsewhere: object stores, reading ahead, and the cache of a node."""
