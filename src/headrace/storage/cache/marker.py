"""The file that all processes of a cache share, and that says of a folder that it is one. Its bytes are:

0    magic and version of the layout (16 bytes)
16   bytes in use (u64), of all objects, with their headers
24   limit that was given last (u64; 0: none)
32   mark of the present use (u32)
36   the machine's boot that uses the cache (16 bytes)
52   number of the recount that is going on (u64; 0: none)
60   how many recounts have corrected the bytes in use (u64)
"""

from __future__ import annotations

import functools
import struct
from pathlib import Path

MARKER = "headrace-cache"
MAGIC = b"headrace cache\x00\x02"
BEFORE = b"headrace cache\x00\x01"
"""Of the layout before, whose objects nobody reads any more: see `layout.py`."""
RECORD = struct.Struct("<16sQQI16sQQ")
USED = 16
LIMIT = 24
RECOUNT = 52

NUMBER = struct.Struct("<Q")
NUMBERS = struct.Struct("<QQ")

BOOT_ID = Path("/proc/sys/kernel/random/boot_id")


@functools.cache
def boot() -> bytes:
    """Returns 16 bytes that are the same for all processes of a machine until it is started again."""
    try:
        return bytes.fromhex(BOOT_ID.read_text().strip().replace("-", ""))[:16].ljust(16)
    except (OSError, ValueError):
        return bytes(16)
