"""Stored and staged data: every format, map-style datasets and streams over them, conversion."""
