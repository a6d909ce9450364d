"""Blocks of objects on the disk of a node, shared by its processes and jobs."""

from headrace.storage.cache.blocks import CachedObject
from headrace.storage.cache.claim import Claim
from headrace.storage.cache.disk_cache import DiskCache
from headrace.storage.cache.eviction import NEVER
from headrace.storage.cache.whole_files import Lease

__all__ = ["NEVER", "CachedObject", "Claim", "DiskCache", "Lease"]
