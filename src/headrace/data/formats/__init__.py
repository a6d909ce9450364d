"""How samples lie in bytes: one file a format, each a reader and a writer behind `protocol.py`."""
