"""Timings: who waits for whom."""
