"""The libraries that formats need: see `core/extras.py`."""

from headrace.core.extras import extra

__all__ = ["extra"]
