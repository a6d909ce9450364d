"""Batches across processes: memory, slots, leases, codec, and the pipe that carries the rest."""
