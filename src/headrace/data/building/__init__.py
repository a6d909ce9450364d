"""Data made piece by piece, by several processes, so that a kill costs one piece at most."""
