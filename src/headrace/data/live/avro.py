"""Avro records: whole files, or in the form that writes the number of a schema in front, which a registry knows.

Source of the form: Confluent's wire format (a zero, the schema's number in four bytes, big-endian, then the record) and
its REST interface, `GET /schemas/ids/{id}`.
"""

from __future__ import annotations

import base64
import io
import json
import struct
import urllib.error
import urllib.request
from collections.abc import Mapping
from typing import Any

from headrace.core.errors import StorageError, UsageError
from headrace.core.extras import extra
from headrace.core.text.urls import shown_url

HEAD = struct.Struct(">bI")

FILE = b"Obj\x01"

REGISTRY = "schema.registry.url"

LOGIN = "schema.registry.basic.auth.user.info"

ANSWER = 30.0
"""Seconds within which a registry must answer."""

OPTIONS = (REGISTRY, LOGIN)
"""Options that are meant for the registry, by the names that Kafka's tools give them."""


class AvroDecoder:
    """Makes dicts of Avro records."""

    def __init__(self, options: Mapping[str, object]) -> None:
        """options: may name a registry. Raises `MissingExtraError`."""
        self._fastavro = extra("fastavro", "messages")
        self._url = str(options.get(REGISTRY, "")).rstrip("/")
        self._login = str(options.get(LOGIN, ""))
        self._schemas: dict[int, Any] = {}

    def __call__(self, value: Any) -> Any:
        data = bytes(value)
        if data.startswith(FILE):
            records = list(self._fastavro.reader(io.BytesIO(data)))
            if len(records) != 1:
                raise ValueError(f"{len(records)} records in an Avro file, instead of one")
            return records[0]

        magic, number = HEAD.unpack_from(data)
        if magic != 0:
            raise ValueError(f"no Avro record: it begins with {data[:5]!r}, instead of a zero and a schema's number")
        body = io.BytesIO(data[HEAD.size :])
        return self._fastavro.schemaless_reader(body, self._schema(number), None)

    def _schema(self, number: int) -> Any:
        if number not in self._schemas:
            self._schemas[number] = self._fastavro.parse_schema(json.loads(self._asked(number)["schema"]))
        return self._schemas[number]

    def _asked(self, number: int) -> Any:
        """Returns what the registry knows of a schema. Raises `StorageError`."""
        if not self._url:
            fix = f'options={{"{REGISTRY}": "http://host:8081"}}'
            what = "Avro records name schemas of a registry"
            raise UsageError.about(what, place="headrace.follow(decode='avro')", found=f"schema {number}", fix=fix)

        request = urllib.request.Request(f"{self._url}/schemas/ids/{number}")
        if self._login:
            token = base64.b64encode(self._login.encode()).decode()
            request.add_header("Authorization", f"Basic {token}")
        try:
            with urllib.request.urlopen(request, timeout=ANSWER) as answer:
                return json.load(answer)
        except (urllib.error.URLError, OSError, ValueError) as error:
            place = shown_url(self._url)
            what = f"the schema registry does not give schema {number}"
            raise StorageError.about(what, place=place, found=error, fix=f"see {REGISTRY!r} in options=") from error
