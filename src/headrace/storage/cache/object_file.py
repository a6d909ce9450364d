"""Opens and makes the files of objects."""

from __future__ import annotations

import contextlib
import os

from headrace.storage.cache import layout
from headrace.storage.cache.node import Node
from headrace.storage.cache.open_files import OpenFile
from headrace.storage.cache.removal import begin_writing, end_writing, take_file


def open_object_file(node: Node, name: str, identity: bytes, shape: layout.Shape, flags: int) -> OpenFile:
    """Opens the file of an object. Raises `FileNotFoundError` if there is none, and other `OSError`.

    A damaged file is removed, so that it can be made anew. A file that is none of the cache's stays, and counts as
    absent.
    """
    file = node.files.adopt(OpenFile(node.open_object(name, flags), shape.blocks))
    head = os.pread(file.fd, layout.HEADER, 0)
    header = layout.parsed(head)
    if header is not None and header.identity == identity and header.shape == shape:
        return file

    file.close()
    if layout.is_ours(head):
        if node.writable:
            take_file(node, name, claimed=True)
    else:
        node.say_once(name, f"{node.folders.path}/objects/{name} is none of the cache's files: it is left alone")
    raise FileNotFoundError(name)


def make_object_file(node: Node, name: str, head: bytes, shape: layout.Shape) -> OpenFile | None:
    """Makes the file of an object without blocks. Returns None if there is a file of that name. Raises `OSError`.

    The file gets its name when its header is complete. A process that is killed before leaves a file that the next use
    removes.
    """
    unfinished = f"{name.removesuffix('.blocks')}.{os.urandom(8).hex()}.new"
    fd = node.folders.open(unfinished, os.O_RDWR | os.O_CREAT | os.O_EXCL, make=True)
    file = node.files.adopt(OpenFile(fd, shape.blocks))
    try:
        os.truncate(fd, shape.data_start + shape.size)
        os.pwrite(fd, head, 0)
        node.count.add(shape.header_room)
        try:
            node.folders.link(unfinished, name)
        except BaseException:
            node.count.release(shape.header_room)
            raise
        node.count.stored(shape.header_room)
    except FileExistsError:
        return None
    finally:
        with contextlib.suppress(OSError):
            node.folders.unlink(unfinished)
    return file


def replace_entry(
    node: Node, name: str, shape: layout.Shape, number: int, seen: tuple[int, int], entry: tuple[int, int]
) -> None:
    """Writes what the table says of a block that was compared with its CRC, unless others have written it meanwhile.

    seen: CRC and mark that the table had. A wrong block becomes absent; its bytes stay until it is written again, and
    change to nothing but the right ones: somebody may read them now. Raises `OSError`.
    """
    file = node.files.adopt(OpenFile(node.open_object(name, os.O_RDWR)))
    blocks = range(number, number + 1)
    if not begin_writing(node, file, blocks):
        return
    try:
        if file.entry(shape, number) == seen:
            file.write_entry(shape, number, *entry)
    finally:
        end_writing(file, blocks)
