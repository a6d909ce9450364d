"""The rank of this process, as in the tests of epochs."""

from tests.epoch.conftest import on_rank

__all__ = ["on_rank"]
