"""A target in a store: what is there already, what was uploaded, and the step that makes it complete.

TARGET/part-00000.arrow ...              the data, each object complete from the moment at which it is to be seen
TARGET/headrace.json                     the manifest, written last; that of a folder of files lies beside the target
TARGET/.headrace-packing/plan            there as long as the data are not complete: `headrace.open` refuses them
TARGET/.headrace-packing/DIGEST/00000 .. of each piece of a plan that is complete: its files, their checksums and ETags

Beside a target that is one object, `TARGET.headrace-packing/` holds the same.

Stores have no locks. The plan and the manifest are written on the condition that there is none yet, so that of two runs
with different plans one is refused. Two runs of one plan may go on side by side: it fixes every byte. Each run looks
whether the plan is still its own before an upload becomes visible, and before it writes the manifest.
"""

from __future__ import annotations

import copy
import json
import secrets
from collections.abc import Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NoReturn

from headrace.core.errors import DatasetError, FormatError, ObjectChangedError, ObjectNotFoundError, StorageError
from headrace.data.convert.bucket.uploads import Uploaded
from headrace.data.formats.manifest import BESIDE, NAME, beside, read_manifest
from headrace.data.formats.unfinished import AREA, PLAN
from headrace.storage.listing import PATIENCE, lookup
from headrace.storage.locations import HTTP_SCHEMES, Location, parse
from headrace.storage.stores.failures import RefusedError
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
            fix = "choose a bucket, or pack to this machine and copy the files to the server"
            what = "an http server cannot be written to"
            raise FormatError.about(what, place=self.url, found=location.scheme, expected=expected, fix=fix)
        if not self.key:
            expected = "a URL that ends in a name"
            raise FormatError.about("cannot write here", place=self.url, found="a whole bucket", expected=expected)

        self.options = options_for(url, options, "headrace.pack", "target_options")
        self.config: StoreConfig = store_config(location, self.options)
        self.open()
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

        self._plan_key = f"{self.area}/{PLAN}"
        self._digest = ""
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
            fix = "choose another target, or remove it yourself"
            raise FormatError.about("there is something already", place=self.url, found=found, fix=fix)

    def check_writable(self) -> None:
        """Writes an object, and deletes it."""
        key = f"{self.area}/test-{secrets.token_hex(8)}"
        self._quick.write(key, [b"?"])
        self._quick.delete(key)

    def refuse_other_plan(self, digest: str, machine: str) -> Any:
        """Returns the plan of a run that has begun here and has not completed; None without one. See `begin`."""
        plan = self._read_json(self._plan_key)
        if plan is None or plan["digest"] == digest or plan.get("machine") == machine:
            return plan

        place = self._url_of(self._plan_key)
        found = "a plan of another source or with other options, or made by other versions of headrace or its libraries"
        fix = (
            "wait until it has ended, or choose another target; if it was interrupted, run the same command as then, "
            f"or delete {place}"
        )
        raise DatasetError.about("another pack is writing this target", place=place, found=found, fix=fix)

    def begin(self, digest: str, machine: str) -> dict[int, Note]:
        """Marks the data as incomplete. Returns the notes of the pieces that an earlier run of the plan has left.

        machine: a text that only runs know which hold this machine's lock file. A plan with it belongs to a run that
        has ended. Raises `DatasetError` for a plan that is neither this one nor of this machine.
        """
        self._digest = digest
        self._replaces = self._packed_before()
        plan = {"digest": digest, "machine": machine, "replaces": sorted(self._replaces)}
        found = self.refuse_other_plan(digest, machine)
        if found is None:
            self._create(self._plan_key, json.dumps(plan).encode())
            # Another run may have been faster.
            found = self.refuse_other_plan(digest, machine) or plan

        self._replaces |= set(found["replaces"])
        notes = {}
        for name, note in self._notes().items():
            self._replaces |= set(note["files"])
            if name.startswith(digest):
                notes[int(name.rpartition("/")[2])] = note

        if found["digest"] != digest:
            plan["replaces"] = sorted(self._replaces)
            self._store.write(self._plan_key, [json.dumps(plan).encode()])

        # Behind the mark: without a manifest, and with the mark, nobody takes the mixture for complete data. If another
        # machine has made the mark, the manifest may be its own, of data that it completes at this moment.
        if found["machine"] == machine:
            self._delete(self._manifest_keys)

        noted: dict[str, Uploaded] = {}
        for note in notes.values():
            noted |= files_of_note(note)

        sound = self.still_there(noted).keys()
        return {number: note for number, note in notes.items() if note["files"].keys() <= sound}

    def confirm(self) -> None:
        """Raises `DatasetError` if the data are complete by now, or another plan's."""
        plan = self._read_json(self._plan_key)
        if plan is None or plan["digest"] != self._digest:
            self._raise_taken_over("no plan of this run")

    def _raise_taken_over(self, found: str) -> NoReturn:
        what = "another pack has taken this target over, or completed it"
        fix = "look at what is there with `headrace verify`; if that is not what you want, remove it, and pack again"
        raise DatasetError.about(what, place=self.url, found=found, fix=fix)

    def for_workers(self) -> BucketTarget:
        """Returns a copy that may be pickled: it has no clients, before `open` is called."""
        named = copy.copy(self)
        del named._store
        del named._quick
        return named

    def open(self) -> None:
        """Opens the store in this process."""
        self._store = open_config(self.config)

    def still_there(self, files: Files) -> dict[str, Uploaded]:
        """Returns those of some objects that are there as they were uploaded."""
        present = self._present()
        return {name: found for name, found in files.items() if _is_same(present.get(name), found)}

    def note(self, number: int, note: Note) -> None:
        """Notes that a piece is complete."""
        self._store.write(f"{self.area}/{self._digest}/{number:05d}", [json.dumps(note).encode()])

    def commit(self, files: Files, manifest: str) -> None:
        """Makes the data complete. Raises `DatasetError` if others have changed them."""
        self.confirm()
        present = self._present()
        for name in files:
            if not _is_same(present.get(name), files[name]):
                fix = "see who else writes there, and run the same command again: it uploads what is missing"
                url = self._url_of(self.key_of(name))
                raise DatasetError.about("an object is not what was uploaded", place=url, fix=fix)

        # What is left of data that were replaced. Objects that headrace did not write are not among them.
        old = []
        for name in sorted(self._replaces - set(files)):
            if name in present:
                old.append(self.key_of(name))

        self._delete(old)
        text = manifest.encode()
        self._create(self._manifest_key, text)
        if self._read(self._manifest_key) != text:
            self._raise_taken_over(f"another manifest, {self._url_of(self._manifest_key)}")

        self._delete(key for key in self._area_keys() if key != self._plan_key)
        # Another run of the plan may have ended first.
        if self._is_object(self._plan_key):
            self.confirm()
            self._delete([self._plan_key])

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

    def _area_keys(self) -> Iterator[str]:
        for page in self._store.list(self.area):
            for info in page:
                yield info.key

    def _notes(self) -> dict[str, Note]:
        """Returns the notes of the pieces of all plans, by digest and number, with a slash between."""
        names = []
        for key in self._area_keys():
            name = key.removeprefix(f"{self.area}/")
            if name.rpartition("/")[2].isdigit():
                names.append(name)

        with ThreadPoolExecutor(AT_ONCE) as threads:
            found = list(threads.map(lambda name: self._read_json(f"{self.area}/{name}"), names))

        return {name: note for name, note in zip(names, found, strict=True) if note is not None}

    def _is_object(self, key: str) -> bool:
        try:
            self._quick.head(key)
        except ObjectNotFoundError:
            return False
        return True

    def _url_of(self, key: str) -> str:
        return Location(self.config.scheme, self.config.container, key).url

    def _create(self, key: str, data: bytes) -> None:
        """Writes an object if there is none."""
        try:
            self._store.write(key, [data], new=True)
        except ObjectChangedError:
            # Another run's, or written by an attempt whose answer was lost: the caller reads what is there.
            return
        except RefusedError:
            # This store has no conditional writes.
            self._store.write(key, [data])

    def _read(self, key: str) -> bytes | None:
        """Returns what an object holds; None if it is not there."""
        try:
            return bytes(self._store.read_whole(key)[0])
        except ObjectNotFoundError:
            return None

    def _read_json(self, key: str) -> Any:
        """Returns what an object holds; None if it is not there. Raises `StorageError` if it is not JSON."""
        data = self._read(key)
        if data is None:
            return None

        try:
            return json.loads(data)
        except ValueError as error:
            fix = "delete this object, and pack again"
            what = "a note of an earlier pack is damaged"
            raise StorageError.about(what, place=self._url_of(key), found=str(error), fix=fix) from error

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
