"""Stores that obstore reads: S3 and what speaks its protocol, Google Cloud Storage, Azure Blob Storage, http servers.

Requests for bytes and listings are made without obstore's own retries, since `retries.py` also covers bodies that are
cut short, and tells the caller of each. Uploads in parts use obstore's retries: it repeats single parts.
"""

from __future__ import annotations

import dataclasses
import errno
import os
import re
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from datetime import timedelta
from typing import Any, TypeVar

import obstore
from obstore.exceptions import BaseError

from headrace.core.errors import HeadraceError, StorageError, UsageError
from headrace.core.outage import Outage
from headrace.core.process import this_process
from headrace.core.process.shortage import machine_error
from headrace.storage.locations import HTTP_SCHEMES, Location
from headrace.storage.stores.access import LIMIT_OPTIONS, Access, access_to, shown_endpoint
from headrace.storage.stores.cloud_requests import (
    FEW,
    PAGE,
    PART_BYTES,
    PagedListing,
    Upload,
    client_of,
    key_of,
    object_info,
    retry_config,
)
from headrace.storage.stores.failures import (
    LISTING,
    WRITING,
    RequestName,
    changed_error,
    error_after_retries,
    lasting_error,
    limit_reached,
    passing_failure,
)
from headrace.storage.stores.objects import Folder, Infos, ObjectInfo, Page, Retried
from headrace.storage.stores.proxies import shown_proxy
from headrace.storage.stores.retries import SHORT, GaveUp, PassingFailure, retried
from headrace.storage.stores.signed_urls import expiry_of

Result = TypeVar("Result")

PARTS_AT_ONCE = 4

MOST_CLIENTS = 256
"""Clients that are kept for objects with a query of their own: each has its connections, and takes 4 ms to make."""

QUOTED = re.compile(r"(?<=\")[^\"]+(?=\")|(?<=[Uu]rl: )\S+")

NO_RETRIES = {"max_retries": 0, "retry_timeout": timedelta(0)}

ERRORS = (BaseError, OSError, ValueError)
"""What obstore raises."""

MISSING = {
    "SecretAccessKey": "AWS_SECRET_ACCESS_KEY beside AWS_ACCESS_KEY_ID, or neither of them",
    "AccessKeyId": "AWS_ACCESS_KEY_ID beside AWS_SECRET_ACCESS_KEY, or neither of them",
    "Account must be specified": "AZURE_STORAGE_ACCOUNT_NAME",
}
"""Words of obstore's texts about what is missing, and what is to be set."""

_READING = "cannot read an object"


class _FirstUse:
    """The process in which obstore was first used here, and so started its threads."""

    process: this_process.Process | None = None


class CloudStore:
    """A `Store` over obstore."""

    def __init__(self, location: Location, options: Mapping[str, object]) -> None:
        """Opens the store; no request is made. Raises `UsageError` for wrong options."""
        self.location = location
        self.on_retry: Retried | None = None
        self._access = access_to(location, options)
        self._endpoint = shown_endpoint(self._access, location.scheme)
        self._proxy = shown_proxy(self._access.config, self._endpoint or self._access.url)
        self._outage = Outage(self._request("", "").place)
        self._refuse_after_fork()
        self._client = self._new_client(self._access, options, NO_RETRIES)
        self._writer = self._new_client(self._access, options, retry_config(self._access.limits))
        self._own_clients: dict[str, Any] = {}

    def __repr__(self) -> str:
        """Shows the container only."""
        return f"CloudStore({self.location.url!r})"

    def __reduce__(self) -> Any:
        """Refuses to be pickled: what another process needs is a `StoreConfig`."""
        raise TypeError("a store is not pickled; pickle store_config(location, options) and open that")

    def list(self, prefix: str) -> Iterator[Page]:
        self._refuse_http("be listed", "give its files as a list of URLs, or as a range: part-{000..127}.tar", prefix)
        if self._sends_in_order:
            return self._pages(prefix)
        return self._sorted_pages(prefix)

    def list_folder(self, prefix: str) -> Folder:
        self._refuse_http("be listed", "give its files as a list of URLs, or as a range: part-{000..127}.tar", prefix)
        folder = prefix.strip("/") or None
        found = self._ask(LISTING, prefix, lambda: obstore.list_with_delimiter(self._client, folder))
        names = sorted(path.rstrip("/").rpartition("/")[2] for path in found["common_prefixes"])
        infos = [object_info(meta) for meta in found["objects"]]
        infos.sort(key=key_of)
        return names, infos

    def beginning(self, letters: str) -> Infos:
        folder = letters.rpartition("/")[0]
        if self.location.scheme == "az" or self.location.container.endswith("--x-s3"):
            # They do not begin a listing at a key.
            return [info for info in self.list_folder(folder)[1] if info.key.startswith(letters)]

        self._refuse_http("be listed", "name its files", letters)
        found: Infos = []
        listing = PagedListing(self._client, folder, after=letters, size=FEW)
        while True:
            metas = self._ask(LISTING, folder, listing.next_page) or []
            infos = [object_info(meta) for meta in metas]
            matching = [info for info in infos if info.key.startswith(letters)]
            found += [info for info in matching if "/" not in info.key[len(letters) :]]
            # Keys come in order, so that there are no more behind the first other one.
            if not infos or len(matching) < len(infos):
                return sorted(found, key=key_of)

    def head(self, key: str) -> ObjectInfo:
        def once() -> ObjectInfo:
            try:
                return object_info(obstore.head(self._client_for(key), key))
            except ERRORS as error:
                if passing_failure(error) is not None:
                    raise

            # The answer to HEAD has no body, which would say why. That to a GET has.
            return object_info(obstore.get(self._client_for(key), key).meta)

        return self._ask(_READING, key, once)

    def read(self, key: str, start: int, stop: int, etag: str | None = None) -> memoryview:
        if not 0 <= start <= stop:
            place = self._request(_READING, key).place
            raise UsageError.about(
                "wrong range", place=place, found=f"{start} to {stop}", expected="0 <= start <= stop"
            )

        if start == stop:
            return memoryview(b"")

        # The first attempt has no frame of its own for limits and errors: with 100 KB from near, that would cost 5 %.
        try:
            if etag is None:
                view = memoryview(obstore.get_range(self._client_for(key), key, start=start, end=stop))
                if len(view) == stop - start:
                    return view
                raise self._wrong_length(key, len(view), stop)
            return self._range_of_version(key, start, stop, etag)
        except (*ERRORS, PassingFailure) as error:
            failed = error

        return self._ask(_READING, key, lambda: self._range(key, start, stop, etag), failed)

    def read_whole(self, key: str) -> tuple[memoryview, ObjectInfo]:
        return self._ask(_READING, key, lambda: self._whole(key))

    def write(self, key: str, parts: Iterable[Any], *, new: bool = False) -> ObjectInfo:
        self._refuse_http("be written to", "write to a folder or a bucket", key)
        upload = Upload(parts)
        first = upload.first_bytes()
        mode: Any = "create" if new else "overwrite"
        try:
            if upload.ended:
                self._ask(WRITING, key, lambda: obstore.put(self._client, key, first, mode=mode, use_multipart=False))
            else:
                self._put_parts(key, upload.from_first(first), upload)
        finally:
            upload.close()

        info = self.head(key)
        if info.size != upload.size:
            found = f"{info.size:,} bytes are there, {upload.size:,} were sent"
            place = self._request(WRITING, key).place
            raise StorageError.about(WRITING, place=place, found=found, fix="see whether somebody else writes there")

        return info

    def delete(self, key: str) -> None:
        self._refuse_http("delete", "delete it where it is stored", key)
        self._ask("cannot delete an object", key, lambda: obstore.delete(self._client, key))

    def _range(self, key: str, start: int, stop: int, etag: str | None) -> memoryview:
        """Reads a range once."""
        if etag is not None:
            return self._range_of_version(key, start, stop, etag)

        view = memoryview(obstore.get_range(self._client_for(key), key, start=start, end=stop))
        if len(view) != stop - start:
            raise self._wrong_length(key, len(view), stop)
        return view

    def _range_of_version(self, key: str, start: int, stop: int, etag: str) -> memoryview:
        """Reads a range of a version once."""
        options: Any = {"range": (start, stop)}
        if not etag.startswith("W/"):
            # Weak names match nothing in an If-Match.
            options["if_match"] = etag

        result = obstore.get(self._client_for(key), key, options=options)
        meta = result.meta
        found = meta["e_tag"]
        if found != etag and (found is None or found.strip('"') != etag.strip('"')):
            # Servers that pass over If-Match send what they have.
            raise changed_error(self._request(_READING, key), f"the ETag {found}, and not {etag}")

        view = memoryview(result.bytes())
        if len(view) != stop - start:
            raise self._wrong_length(key, len(view), stop, meta["size"])
        return view

    def _whole(self, key: str) -> tuple[memoryview, ObjectInfo]:
        """Reads an object once."""
        result = obstore.get(self._client_for(key), key)
        info = object_info(result.meta)
        view = memoryview(result.bytes())
        if len(view) != info.size:
            raise PassingFailure(SHORT, f"{len(view):,} bytes came of {info.size:,}")

        return view, ObjectInfo(key, info.size, info.etag, info.modified)

    def _wrong_length(self, key: str, length: int, stop: int, size: int | None = None) -> Exception:
        """Returns what to raise for a range of which not all bytes came.

        size: of the whole object; the store is asked where it is not known.
        """
        if size is None:
            size = obstore.head(self._client_for(key), key)["size"]

        if size < stop:
            request = self._request(_READING, key)
            return changed_error(request, f"the object has {size:,} bytes, and bytes up to {stop:,} are wanted")

        return PassingFailure(SHORT, f"{length:,} bytes came of a longer range")

    def _pages(self, prefix: str) -> Iterator[Page]:
        """Yields the pages of a store that sends them in order, as they come."""
        listing = PagedListing(self._client, prefix)
        last = ""
        while True:
            metas = self._ask(LISTING, prefix, listing.next_page)
            if metas is None:
                return

            page = [object_info(meta) for meta in metas]
            for info in page:
                if info.key < last:
                    place = self._request(LISTING, prefix).place
                    found = f"{info.key!r} behind {last!r}"
                    raise StorageError.about(
                        LISTING,
                        place=place,
                        found=found,
                        expected="keys in ascending order",
                        fix="name the store by options={'endpoint': ...}: then its listings are sorted here",
                    )
                last = info.key

            yield page

    def _sorted_pages(self, prefix: str) -> Iterator[Page]:
        """Yields the pages of a store of another order: all are fetched before the first one is yielded."""

        def fetch_all() -> Infos:
            """A listing in unknown order cannot go on in its middle, so obstore repeats single requests of it."""
            infos: Infos = []
            began = time.monotonic()
            try:
                for metas in obstore.list(self._writer, prefix.strip("/") or None, chunk_size=PAGE):
                    infos.extend(object_info(meta) for meta in metas)
            except ERRORS as error:
                failed = limit_reached(error, began)
                if failed is None:
                    raise
            else:
                return infos

            # To begin anew would multiply obstore's retries with ours.
            raise failed

        infos = self._ask(LISTING, prefix, fetch_all)
        infos.sort(key=key_of)
        for first in range(0, len(infos), PAGE):
            yield infos[first : first + PAGE]

    @property
    def _sends_in_order(self) -> bool:
        """Whether the store promises listings in the order of keys.

        Azure's accounts with folders and S3's directory buckets do not, nor do many other servers.
        """
        if self._access.custom_endpoint:
            return False
        if self.location.scheme == "s3":
            return not self.location.container.endswith("--x-s3")
        return self.location.scheme == "gs"

    def _put_parts(self, key: str, content: Iterator[memoryview], upload: Upload) -> None:
        """Uploads in parts, once; obstore repeats those that fail for a while."""
        failed: Exception | None = None
        began = time.monotonic()
        try:
            obstore.put(
                self._writer,
                key,
                content,
                use_multipart=True,
                chunk_size=PART_BYTES,
                max_concurrency=PARTS_AT_ONCE,
            )
        except HeadraceError:
            raise
        except ERRORS as error:
            failed = limit_reached(error, began) or error

        # What `parts` raised goes to the caller as it is.
        if upload.failure is not None:
            raise upload.failure
        if failed is not None:
            raise self._error(WRITING, key, failed)

    def _ask(self, doing: str, key: str, call: Callable[[], Result], first_failure: Exception | None = None) -> Result:
        """Calls until it succeeds or a limit is reached, and raises headrace's errors.

        first_failure: of an attempt that was made already, which counts as the first one.

        These are raised outside of `except`, as obstore's exceptions quote URLs with signatures, and would otherwise be
        their context.
        """

        before = [] if first_failure is None else [first_failure]

        def once() -> Result:
            try:
                if before:
                    raise before.pop()
                return call()
            except HeadraceError:
                raise
            except ERRORS as error:
                failure = passing_failure(error)
                if failure is None:
                    raise

            raise failure

        failed: GaveUp | Exception
        try:
            return retried(once, self._access.limits, self.on_retry, outage=self._outage)
        except HeadraceError:
            raise
        except GaveUp as error:
            failed = error
        except ERRORS as error:
            failed = error

        raise self._error(doing, key, failed)

    def _error(self, doing: str, key: str, failed: Exception) -> HeadraceError:
        """Returns headrace's error for what a request raised."""
        request = self._request(doing, key)
        if isinstance(failed, GaveUp):
            return error_after_retries(request, failed)

        failure = passing_failure(failed)
        if failure is not None:
            return error_after_retries(request, GaveUp(failure, 1, 0.0))
        return lasting_error(request, failed)

    def _request(self, doing: str, key: str) -> RequestName:
        """Returns a request as errors name it."""
        place = dataclasses.replace(self.location, key=key)
        expiry = expiry_of(self._access.query_of(key))
        return RequestName(
            doing, place.url, place.container, place.scheme, self._access.source, self._endpoint, self._proxy, expiry
        )

    def _refuse_http(self, what: str, fix: str, key: str) -> None:
        """Raises an error where only buckets can do something."""
        if self.location.scheme in HTTP_SCHEMES:
            place = self._request("", key).place
            found = f"an address of {self.location.scheme}, whose protocol has no way to do this"
            raise StorageError.about(
                f"an http server cannot {what}", place=place, found=found, expected="a bucket", fix=fix
            )

    def _client_for(self, key: str) -> Any:
        """Returns the client with which an object is read: one of its own if its address has a query of its own."""
        query = self._access.queries.get(key)
        if query is None:
            return self._client

        client = self._own_clients.get(key)
        if client is None:
            if len(self._own_clients) >= MOST_CLIENTS:
                self._own_clients.clear()
            access = dataclasses.replace(self._access, url=f"{self._access.url}?{query}")
            client = self._own_clients[key] = self._new_client(access, {}, NO_RETRIES)
        return client

    def _new_client(self, access: Access, given: Mapping[str, object], retries: Mapping[str, Any]) -> Any:
        """Returns a client of obstore. Raises `UsageError` for what it does not take."""
        failed: Exception
        try:
            return client_of(self.location, access, retries)
        except ERRORS as error:
            failed = error

        # obstore's text begins with "builder error", and names the cause further below.
        if "Too many open files" in str(failed):
            short = OSError(errno.EMFILE, os.strerror(errno.EMFILE))
            raise machine_error(self.location.url, "opening a store", "open files for this process", short)

        # The first line of obstore's text may quote a value, which may be a secret.
        found = QUOTED.sub("...", str(failed).strip().partition("\n")[0])
        names = ", ".join(sorted(given.keys() - LIMIT_OPTIONS)) or "none"
        fix = "correct options=, or the variables of the environment"
        for word, missing in MISSING.items():
            if word in found:
                fix = f"set {missing}, in options= or the environment"
        raise UsageError.about(
            "cannot open a store",
            place=self.location.url,
            found=found,
            expected=f"values that obstore takes; options that were given: {names}",
            fix=fix,
        )

    def _refuse_after_fork(self) -> None:
        """Raises `StorageError` where obstore would wait for ever.

        obstore starts threads at its first request. A forked child has none of them, but the library believes that they
        run, and every request in the child waits for them.
        """
        if _FirstUse.process is None:
            _FirstUse.process = this_process.current

        if _FirstUse.process is not this_process.current:
            raise StorageError.about(
                "this process cannot use object stores",
                place=self.location.url,
                found="it was forked from a process that had used one",
                expected="a process that was started by spawn or forkserver",
                fix="start it with multiprocessing_context='forkserver' or 'spawn', or open the data in its parent",
            )
