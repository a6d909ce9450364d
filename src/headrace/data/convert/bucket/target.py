"""A target in a store: what is there already, what was uploaded, and the step that makes it complete.

TARGET/part-00000.arrow ...              the data, each object complete from the moment at which it is to be seen
TARGET/headrace.json                     the manifest, written last; that of a folder of files lies beside the target
TARGET/.headrace-packing/plan            there as long as the data are not complete: `headrace.open` refuses them
TARGET/.headrace-packing/done/00000 ...  of each piece that is complete: its files with their checksums and ETags
TARGET/.headrace-packing/run-...         of each run that packs at this moment, see `run_lock.py`

Beside a target that is one object, `TARGET.headrace-packing/` holds the same.
"""

from __future__ import annotations

import copy
import json
from collections.abc import Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from headrace.core.errors import DatasetError, FormatError, ObjectNotFoundError, StorageError
from headrace.data.convert.bucket.run_lock import RunLock
from headrace.data.convert.bucket.uploads import Uploaded
from headrace.data.formats.manifest import BESIDE, NAME, beside, read_manifest
from headrace.data.formats.unfinished import AREA, PLAN
from headrace.storage.listing import PATIENCE, lookup
from headrace.storage.locations import HTTP_SCHEMES, Location, parse
from headrace.storage.stores.objects import ObjectInfo, Store, StoreConfig, store_config
from headrace.storage.stores.opening import open_config, open_store
from headrace.storage.stores.store_options import options_for

AT_ONCE = 16
"""Requests under way at a time."""

Note = dict[str, Any]
"""Of a piece: "files", each name with its length, CRC-32 and ETag, and "bad", a line for each bad image."""

Files = Mapping[str, Uploaded]


class BucketTarget:
    """Where data are packed to in a store. Raises `StorageError` in every method."""

    def __init__(self, url: str, options: Mapping[str, object] | None, format: str, *, folder: bool) -> None:
        """folder: whether the data are several objects.

        Raises `UsageError` and `FormatError` for what can be no target; no request is made."""
        location = parse(url)
        self.key = location.key.strip("/")
        self.folder = folder
        self.url = Location(location.scheme, location.container, self.key).url
        if location.scheme in HTTP_SCHEMES:
            expected = "a bucket, such as s3://BUCKET/NAME, or a path on this machine"
            cure = "choose a bucket, or pack to this machine and copy the files to the server"
            what = "an http server cannot be written to"
            raise FormatError.about(what, place=self.url, found=location.scheme, expected=expected, cure=cure)
        if not self.key:
            expected = "a URL that ends in a name"
            raise FormatError.about("cannot write here", place=self.url, found="a whole bucket", expected=expected)

        self.options = options_for(url, options, "headrace.pack", "target_options")
        self.config: StoreConfig = store_config(location, self.options)
        self._store = open_config(self.config)
        # Whoever begins waits for an answer, and nothing is lost if there is none.
        self._quick = open_store(location, {"retry_timeout": PATIENCE, **self.options})
        self._manifest_key = beside(self.key)
        if folder:
            self.area = f"{self.key}/{AREA}"
            self._manifest_keys = [f"{self.key}/{NAME}", beside(self.key)]
            if format not in BESIDE:
                self._manifest_key = f"{self.key}/{NAME}"
        else:
            self.area = f"{self.key}.{AREA.lstrip('.')}"
            self._manifest_keys = [beside(self.key)]

        self._replaces: set[str] = set()

    @property
    def store(self) -> Store:
        """The store in this process."""
        return self._store

    def key_of(self, name: str) -> str:
        """Returns the key of a file of the data, given its name in the folder."""
        if self.folder:
            return f"{self.key}/{name}"
        return self.key

    def refuse_other_content(self) -> None:
        """Raises `FormatError` if there is something that headrace did not pack."""
        names, infos = self._quick.list_folder(self.key)
        objects = []
        for info in infos:
            # Some tools mark a folder by an object of no bytes, whose key ends in a slash.
            if not info.key.endswith("/") and info.key != self.key:
                objects.append(info.key)

        count = len(names) + len(objects)
        found = None
        if self.folder:
            if self._is_object(self.key):
                found = "a file"
            elif count and AREA not in names and not any(map(self._is_object, self._manifest_keys)):
                found = f"a folder with {count:,} files or folders, which headrace did not pack"
        elif count:
            found = "a folder"

        if found is not None:
            cure = "choose another target, or remove it yourself"
            raise FormatError.about("there is something already", place=self.url, found=found, cure=cure)

    def locked(self, machine: str) -> RunLock:
        """Returns what keeps other runs away; see `RunLock`. It is also the first thing that is written here."""
        return RunLock(self._quick, self.area, machine)

    def begin(self, digest: str) -> dict[int, Note]:
        """Marks the data as incomplete. Returns the notes of the pieces that an earlier run of the plan has left."""
        self._replaces = self._packed_before()
        plan = self._read_json(f"{self.area}/{PLAN}")
        notes = {}
        if plan is not None:
            notes = self._notes()
            self._replaces |= set(plan["replaces"])
            for note in notes.values():
                self._replaces |= set(note["files"])

        if plan is None or plan["digest"] != digest:
            self._delete(self._note_key(number) for number in notes)
            notes = {}
            text = json.dumps({"digest": digest, "replaces": sorted(self._replaces)})
            self._store.write(f"{self.area}/{PLAN}", [text.encode()])

        # Behind the mark: without a manifest, and with the mark, nobody takes the mixture for complete data.
        self._delete(self._manifest_keys)
        present = self._present()
        sound = {}
        for number, note in notes.items():
            if all(_is_same(present.get(name), found) for name, found in files_of_note(note).items()):
                sound[number] = note

        return sound

    def for_workers(self) -> BucketTarget:
        """Returns a copy that may be pickled: it has no clients, so that only names are asked of it."""
        named = copy.copy(self)
        del named._store
        del named._quick
        return named

    def still_there(self, files: Files) -> Files:
        """Returns those of some objects that are there as they were uploaded."""
        present = self._present()
        return {name: found for name, found in files.items() if _is_same(present.get(name), found)}

    def note(self, number: int, note: Note, store: Store) -> None:
        """Notes that a piece is complete."""
        store.write(self._note_key(number), [json.dumps(note).encode()])

    def commit(self, files: Files, manifest: str, lock: RunLock) -> None:
        """Makes the data complete. Raises `DatasetError` if others have changed them."""
        lock.check()
        present = self._present()
        for name, expected in files.items():
            if not _is_same(present.get(name), expected):
                cure = "see who else writes there, and run the same command again: it uploads what is missing"
                url = Location(self.config.scheme, self.config.container, self.key_of(name)).url
                raise DatasetError.about("an object is not what was uploaded", place=url, cure=cure)

        # What is left of data that were replaced. Objects that headrace did not write are not among them.
        old = []
        for name in sorted(self._replaces - set(files)):
            if name in present:
                old.append(self.key_of(name))

        self._delete(old)
        self._store.write(self._manifest_key, [manifest.encode()])
        self._delete(self._note_key(number) for number in self._notes())
        self._delete([f"{self.area}/{PLAN}"])

    def _packed_before(self) -> set[str]:
        """Returns the names of the files that the manifest there lists."""
        if not self.folder:
            return set()

        with lookup(self.options):
            manifest = read_manifest(self.url)

        if manifest is None:
            return set()
        return set(manifest.files)

    def _present(self) -> dict[str, ObjectInfo]:
        """Returns the objects of the data by their names."""
        if not self.folder:
            try:
                return {"": self._store.head(self.key)}
            except ObjectNotFoundError:
                return {}

        found = {}
        for page in self._store.list(self.key):
            for info in page:
                found[info.key[len(self.key) + 1 :]] = info

        return found

    def _notes(self) -> dict[int, Note]:
        """Returns the notes of all pieces, by number."""
        keys = [info.key for info in self._store.list_folder(f"{self.area}/done")[1]]
        with ThreadPoolExecutor(AT_ONCE) as threads:
            found = list(threads.map(self._read_json, keys))

        notes = {}
        for key, note in zip(keys, found, strict=True):
            number = key.rpartition("/")[2]
            if note is not None and number.isdigit():
                notes[int(number)] = note

        return notes

    def _note_key(self, number: int) -> str:
        return f"{self.area}/done/{number:05d}"

    def _is_object(self, key: str) -> bool:
        try:
            self._quick.head(key)
        except ObjectNotFoundError:
            return False
        return True

    def _read_json(self, key: str) -> Any:
        """Returns what an object holds; None if it is not there. Raises `StorageError` if it is not JSON."""
        try:
            data = bytes(self._store.read_whole(key)[0])
        except ObjectNotFoundError:
            return None

        try:
            return json.loads(data)
        except ValueError as error:
            url = Location(self.config.scheme, self.config.container, key).url
            cure = "delete this object, and pack again"
            what = "a note of an earlier pack is damaged"
            raise StorageError.about(what, place=url, found=str(error), cure=cure) from error

    def _delete(self, keys: Iterable[str]) -> None:
        with ThreadPoolExecutor(AT_ONCE) as threads:
            for _ in threads.map(self._delete_if_there, list(keys)):
                pass

    def _delete_if_there(self, key: str) -> None:
        try:
            self._store.delete(key)
        except ObjectNotFoundError:
            # Stores differ in whether they say so.
            return


def files_of_note(note: Note) -> dict[str, Uploaded]:
    """Returns the objects of a piece, by name."""
    return {name: Uploaded(*found) for name, found in note["files"].items()}


def _is_same(info: ObjectInfo | None, expected: Uploaded) -> bool:
    """Tells whether an object is the one that was uploaded."""
    if info is None or info.size != expected.size:
        return False
    return info.etag == expected.etag or info.etag is None or expected.etag is None
