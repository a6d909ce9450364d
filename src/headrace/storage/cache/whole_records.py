"""Names of whole files, and the records that lie beside them."""

from __future__ import annotations

import json
import os
import re
from dataclasses import asdict, dataclass

from headrace.storage.cache import layout
from headrace.storage.cache.folders import WHOLE

MAGIC = "headrace whole file 1"
MOST_BYTES = 1 << 16
DATA_NAME = re.compile(rf"{WHOLE}/[0-9a-f]{{31}}(?!\.record$|\.[0-9a-f]{{16}}\.new$)(\.[A-Za-z0-9]{{1,12}}){{0,2}}")
RECORD_NAME = re.compile(rf"{WHOLE}/[0-9a-f]{{31}}\.record")

_SUFFIXES = re.compile(r"(?:\.[A-Za-z][A-Za-z0-9]{0,11}){1,2}$")


@dataclass(frozen=True)
class WholeRecord:
    """What is known of a whole file that is complete."""

    url: str
    etag: str
    size: int
    crc: int
    magic: str = MAGIC


def data_name(url: str, etag: str, size: int) -> str:
    """Returns the name of a whole file, with the suffix of the object."""
    shape = layout.Shape(size, 0, 1, 0)
    suffix = _SUFFIXES.search(layout.public_url(url).rpartition("/")[2])
    name = f"{WHOLE}/{layout.identity_of(url, etag, shape).hex()[:31]}"
    if suffix is None or suffix[0].endswith((".record", ".new")):
        return name
    return name + suffix[0]


def record_name_of(name: str) -> str:
    """Returns the name of the record that lies beside a whole file."""
    return name.partition(".")[0] + ".record"


def write_record(fd: int, record: WholeRecord) -> None:
    """Writes a record into its file, which is empty. Raises `OSError`."""
    os.pwrite(fd, json.dumps(asdict(record)).encode(), 0)


def read_record(fd: int) -> WholeRecord | None:
    """Returns the record in a file; None if there is none yet, or the file is none of the cache's."""
    try:
        found = json.loads(os.pread(fd, MOST_BYTES, 0))
        record = WholeRecord(**found)
    except (ValueError, TypeError):
        return None

    types = [type(value) for value in asdict(record).values()]
    if record.magic != MAGIC or types != [str, str, int, int, str]:
        return None
    return record
