"""Random numbers: streams of samples, and the global generators of Python, NumPy and torch."""
