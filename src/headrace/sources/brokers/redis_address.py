"""Streams of Redis: where one is, how its ids become positions, and its entries values.

A position is the id "milliseconds-sequence" as one number: milliseconds << 22 | sequence. So ids of times until 2039
fit, with 4,194,304 entries in a millisecond.

The value of a record: of an entry with one field, or with a field "data" or "value", the bytes of that field. Of other
entries, a JSON object of all fields, in their order; a value that is not UTF-8 is an object {"base64": "..."}.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from headrace.core.errors import StorageError
from headrace.core.extras import extra
from headrace.sources.brokers.address import BrokerAddress
from headrace.sources.journal.receiver import Away

SEQUENCE_BITS = 22
MOST_MILLISECONDS = 1 << (63 - SEQUENCE_BITS)
VALUE_FIELDS = (b"data", b"value")

CONNECTING = 5.0
"""Seconds that the server has for each answer, beside those for which it was asked to wait."""

Entry = tuple[bytes, Mapping[bytes, bytes]]


@dataclass(frozen=True)
class RedisAddress(BrokerAddress):
    """A stream: `redis://user:password@host:6379/stream?db=0`; `rediss` is the same over TLS."""

    FORM = "redis://host:6379/stream"
    PORTS = {"redis": 6379, "rediss": 6379}
    NAMED = "stream"
    SETTINGS = ("db",)

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.settings.get("db", "0").isdecimal():
            raise self.wrong_setting("a database that is no whole number")

    def client(self, wait: float) -> Any:
        """Returns a client that is not connected yet. wait: seconds that an answer may take beside the usual.

        Raises `MissingExtraError`.
        """
        redis = extra("redis", "redis")
        retrying = extra("redis.retry", "redis")
        backoff = extra("redis.backoff", "redis")
        return redis.Redis(
            host=self.host,
            port=self.port,
            username=self.user,
            password=self.password,
            db=int(self.settings.get("db", "0")),
            ssl=self.parts.scheme == "rediss",
            socket_connect_timeout=CONNECTING,
            socket_timeout=CONNECTING + wait,
            retry=retrying.Retry(backoff.NoBackoff(), 0),
            client_name="headrace",
            protocol=2,
        )

    def asked(self, question: Callable[[], Any]) -> Any:
        """Returns the answer to a question to the server. Raises `Away`; `StorageError` if it refuses for good."""
        exceptions = extra("redis.exceptions", "redis")
        passing = (exceptions.BusyLoadingError, exceptions.TryAgainError, exceptions.ClusterDownError)
        try:
            return question()
        except (exceptions.AuthenticationError, exceptions.NoPermissionError) as error:
            raise self._refusal(error, "check user and password") from None
        except (exceptions.ConnectionError, exceptions.TimeoutError, *passing) as error:
            raise Away(f"{type(error).__name__}: {error}") from error
        except exceptions.ResponseError as error:
            text = str(error)
            # Said while another server takes over, or reads its data from the disk.
            if text.startswith(("LOADING", "MASTERDOWN", "READONLY")):
                raise Away(text) from error
            raise self._refusal(error, "check the key, its type and the user's rights") from None
        except OSError as error:
            raise Away(str(error)) from error

    def _refusal(self, error: Exception, fix: str) -> StorageError:
        return StorageError.about("the server refuses", place=self.place, found=error, fix=fix)

    def position_of(self, entry: bytes) -> int:
        """Returns the position of an entry id. Raises `StorageError` if it does not fit."""
        milliseconds, _, sequence = entry.partition(b"-")
        high = int(milliseconds)
        low = int(sequence)
        if high >= MOST_MILLISECONDS or low >> SEQUENCE_BITS:
            expected = f"milliseconds below {MOST_MILLISECONDS:,}, and a sequence below {1 << SEQUENCE_BITS:,}"
            fix = "let Redis make the ids: XADD with *"
            found = f"the id {entry.decode()}"
            what = "an entry has an id that is no position"
            raise StorageError.about(what, place=self.place, found=found, expected=expected, fix=fix)
        return high << SEQUENCE_BITS | low


def id_at(position: int) -> str:
    """Returns the entry id of a position."""
    return f"{position >> SEQUENCE_BITS}-{position & (1 << SEQUENCE_BITS) - 1}"


def value_of(fields: Mapping[bytes, bytes]) -> bytes:
    """Returns the value of a record."""
    if len(fields) == 1:
        return next(iter(fields.values()))
    for name in VALUE_FIELDS:
        if name in fields:
            return fields[name]
    return json.dumps({_text(name): _json(value) for name, value in fields.items()}, ensure_ascii=False).encode()


def _text(name: bytes) -> str:
    return name.decode("utf-8", "backslashreplace")


def _json(value: bytes) -> object:
    try:
        return value.decode()
    except UnicodeDecodeError:
        return {"base64": base64.b64encode(value).decode()}
