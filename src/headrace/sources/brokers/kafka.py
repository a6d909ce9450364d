"""Kafka topics as logs, through librdkafka.

Partitions are assigned, never subscribed to: a group would move them while training runs. Offsets go into the loader's
state. The broker is told of them by `commit` only, for its own tools.
"""

from __future__ import annotations

import itertools
import logging
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from headrace.core.errors import RecordsLostError, StorageError, UsageError, wrong_argument
from headrace.core.extras import extra
from headrace.core.outage import Outage
from headrace.core.text.urls import check_server, shown_url
from headrace.sources.log import Positions, Records, Start
from headrace.sources.outage import no_answer

PLACE = "headrace.follow"

AT_ONCE = 1000
"""Messages that one call returns."""

TOGETHER = 0.02
"""Seconds for which messages that follow each other are waited for, so that they come in one call."""

QUEUED_KB = 32 << 10
"""KiB that librdkafka keeps of all partitions together."""

LARGEST = 100_000_000
"""Bytes of the largest message, as brokers may be set up to take them."""

ANSWER = 10.0
"""Seconds within which a broker must answer what it is asked."""

FIRST_ANSWER = (1.0, 3.0, 6.0)
"""The same for the first question, in parts: between them librdkafka tells whether the broker refuses."""

ID_ANSWER = 1.0
"""Seconds for the id of a topic, which brokers before Kafka 2.8 do not know."""

FIX = "see whether the address is right and the broker runs; options= takes settings of librdkafka"

OF_REGISTRY = "schema.registry."
"""Begins the names of options that are not of the broker."""

OF_OURS = {"enable.auto.commit", "enable.partition.eof", "auto.offset.reset", "bootstrap.servers"}
"""Settings on which the order depends."""


@dataclass(frozen=True)
class KafkaSource:
    """A topic. See `LogSource`."""

    brokers: str
    """Hosts and ports with commas between them."""
    topic: str
    options: Mapping[str, object] = field(default_factory=dict, repr=False)
    """Settings of librdkafka, which may hold passwords."""

    @staticmethod
    def of(url: str, options: Mapping[str, object] | None) -> KafkaSource:
        """Returns the source of `kafka://host:9092,host2:9092/topic`. Raises `UsageError`."""
        brokers, _, topic = url.partition("://")[2].partition("/")
        shown = shown_url(url)
        if "@" in brokers:
            fix = 'options={"sasl.username": ..., "sasl.password": os.environ[...], "security.protocol": "SASL_SSL"}'
            what = "user and password do not belong into the URL of a Kafka broker"
            raise UsageError.about(what, place=PLACE, found=shown, expected="options=", fix=fix)
        if not brokers or not topic or "/" in topic or "?" in topic:
            expected = "kafka://host:9092/topic, with commas between several hosts"
            fix = "write host, port and topic, and settings into options="
            what = "no topic of a broker"
            raise UsageError.about(what, place=PLACE, found=shown, expected=expected, fix=fix)
        check_server(url, PLACE, "kafka://host:9092/topic")

        return KafkaSource(brokers, topic, _checked_options(options or {}))

    @property
    def place(self) -> str:
        return f"kafka://{self.brokers}/{self.topic}"

    def open(self) -> KafkaLog:
        return KafkaLog(self)


def _checked_options(options: Mapping[str, object]) -> dict[str, object]:
    """Returns the settings of the broker. Raises `UsageError`; what they mean, librdkafka says."""
    given = {}
    for name, value in options.items():
        if not isinstance(name, str):
            raise wrong_argument("options", name, "names of settings, as text", place=PLACE, found=repr(name))
        if name in OF_OURS:
            expected = "other settings of librdkafka: headrace sets this one itself"
            raise wrong_argument("options", name, expected, place=PLACE, found=repr(name))
        if not name.startswith(OF_REGISTRY):
            given[name] = value

    # Without a group, the client library ends its process.
    group = given.get("group.id", "headrace")
    if not isinstance(group, (str, int)) or not str(group).strip():
        raise wrong_argument("options", group, "a name as group.id, or none for 'headrace'", place=PLACE)
    return given


class KafkaLog:
    """See `Log`."""

    def __init__(self, source: KafkaSource) -> None:
        self._source = source
        self._kafka = extra("confluent_kafka", "kafka")
        self._refused: Any = None
        self._at_end: set[int] = set()
        self._following: Positions = {}
        self._outage: Outage | None = None
        self._answered = time.monotonic()
        try:
            self._consumer = self._kafka.Consumer(self._settings(), logger=_quiet())
        except self._kafka.KafkaException as error:
            raise self._error("cannot use these settings of librdkafka", error) from None

        try:
            asked = self._ask_for_id()
            metadata = self._metadata()
            self._partitions = sorted(metadata.topics[source.topic].partitions)
            self.identity = {"kind": "Kafka topic", "topic": source.topic, "topic_id": _answer(asked)}
        except BaseException:
            self._consumer.close()
            raise

    def _settings(self) -> dict[str, Any]:
        return {
            "group.id": "headrace",
            "queued.max.messages.kbytes": QUEUED_KB,
            "fetch.message.max.bytes": 1 << 20,
            "receive.message.max.bytes": LARGEST + (1 << 20),
            "fetch.wait.max.ms": 100,
            # A full queue is looked at again after a second otherwise, in which it has run empty.
            "fetch.queue.backoff.ms": 5,
            "reconnect.backoff.max.ms": 2000,
            **self._source.options,
            "bootstrap.servers": self._source.brokers,
            "enable.auto.commit": False,
            "enable.partition.eof": True,
            # Records that are gone are told, never passed over.
            "auto.offset.reset": "error",
            "error_cb": self._note_error,
        }

    def partitions(self) -> Sequence[int]:
        try:
            topics = self._consumer.list_topics(self._source.topic, timeout=ANSWER).topics
        except self._kafka.KafkaException:
            # What it had is waited for. A broker that stands still keeps its connections: librdkafka tells nothing.
            self._is_away()
            return self._partitions

        self._is_back()
        found = topics[self._source.topic]
        if found.error is None:
            self._partitions = sorted(found.partitions)
        return self._partitions

    def resolve(self, start: Start) -> Positions:
        """See `Log`. Seconds since 1970: the first message of that time or later."""
        if isinstance(start, Mapping):
            return dict.fromkeys(self._partitions, 0) | self._checked(start)
        if start == "earliest":
            return {number: self._ends_of(number)[0] for number in self._partitions}
        if start == "latest":
            return self.ends()
        if isinstance(start, (str, bool)):
            raise wrong_argument("start", start, "'earliest', 'latest', a time or offsets by partition", place=PLACE)

        asked = []
        for number in self._partitions:
            asked.append(self._kafka.TopicPartition(self._source.topic, number, int(start * 1000)))

        found = {}
        ends = self.ends()
        for answer in self._asked(lambda: self._consumer.offsets_for_times(asked, timeout=ANSWER)):
            found[answer.partition] = answer.offset
            if answer.offset < 0:  # nothing is as late
                found[answer.partition] = ends[answer.partition]

        return found

    def ends(self) -> Positions:
        return {number: self._ends_of(number)[1] for number in self._partitions}

    def seek(self, positions: Positions) -> None:
        self._at_end.clear()
        self._following = dict(positions)
        kafka = self._kafka
        assigned = [kafka.TopicPartition(self._source.topic, number, at) for number, at in sorted(positions.items())]
        self._consumer.assign(assigned)

    def poll(self, timeout: float, limit: int) -> list[Records]:
        """See `Log`. What is in a `limit` is counted by calls, of up to 1,000 messages each."""
        found: dict[int, Records] = {}
        deadline = time.monotonic() + timeout
        nbytes = 0
        while nbytes < limit:
            left = max(deadline - time.monotonic(), 0)
            # librdkafka waits until it has all that it is asked for, or the time has passed: a short wait is what keeps
            # the first message from waiting for the thousandth.
            messages = self._consumer.consume(AT_ONCE, min(left, TOGETHER))
            if not messages and left > TOGETHER and not found:
                first = self._consumer.poll(left - TOGETHER)
                if first is not None:
                    messages = [first]

            nbytes += self._take(messages, found)
            if self._refused is not None:
                raise self._error("the broker refuses this", self._refused)
            if len(messages) < AT_ONCE and (found or time.monotonic() >= deadline):
                break

        for number, records in found.items():
            self._following[number] = records.following
        if found:
            self._is_back()
        return list(found.values())

    def _take(self, messages: list[Any], found: dict[int, Records]) -> int:
        """Files messages, and what the broker says in the place of some. Returns their bytes."""
        # Each runs once for a message, a million times in a few seconds: `map` is what Python does quickest.
        kind = self._kafka.Message
        errors = list(map(kind.error, messages))
        said = []
        if any(errors):
            said = [message for message, error in zip(messages, errors, strict=True) if error is not None]
            messages = [message for message, error in zip(messages, errors, strict=True) if error is None]

        # A tombstone of a compacted topic has no value.
        values = list(map(kind.value, messages))
        if None in values:
            values = [value or b"" for value in values]

        offsets = list(map(kind.offset, messages))
        numbers = list(map(kind.partition, messages))
        for start, stop in _runs(numbers):
            number = numbers[start]
            records = found.get(number)
            if records is None:
                records = found[number] = Records(number, [], [], 0)

            self._at_end.discard(number)
            records.positions += offsets[start:stop]  # type: ignore[operator]
            records.values += values[start:stop]  # type: ignore[operator]
            records.following = offsets[stop - 1] + 1

        for message in said:
            self._take_error(message.error(), message, found)
        return sum(map(len, values))

    def _take_error(self, error: Any, message: Any, found: dict[int, Records]) -> None:
        code = self._kafka.KafkaError
        number = message.partition()
        if error.code() == code._PARTITION_EOF:
            records = found.setdefault(number, Records(number, [], [], self._following.get(number, 0)))
            # Otherwise messages have come behind the end that it speaks of. Behind the last message there may be marks
            # of transactions, or messages that are compacted away.
            if message.offset() >= records.following:
                records.following = message.offset()
                self._at_end.add(number)
        elif error.code() in (code._AUTO_OFFSET_RESET, code.OFFSET_OUT_OF_RANGE):
            raise self._lost(number)
        elif error.code() in (code.UNKNOWN_TOPIC_OR_PART, code._UNKNOWN_PARTITION, code._UNKNOWN_TOPIC):
            raise self._error("there is no such topic or partition any more", error)
        elif error.code() in (code.TOPIC_AUTHORIZATION_FAILED, code.GROUP_AUTHORIZATION_FAILED):
            raise self._error("the broker does not let you read this topic", error)
        elif not error.retriable() and error.code() not in (code._TRANSPORT, code._ALL_BROKERS_DOWN, code._TIMED_OUT):
            raise self._error("the broker gives an error", error)

    def at_end(self) -> set[int]:
        return self._at_end

    def commit(self, positions: Positions) -> None:
        """See `Log`: commits offsets of the group "headrace", or that of the options."""
        offsets = []
        for number, position in sorted(positions.items()):
            offsets.append(self._kafka.TopicPartition(self._source.topic, number, position))

        self._asked(lambda: self._consumer.commit(offsets=offsets, asynchronous=False))

    def close(self) -> None:
        self._consumer.close()

    # -- what brokers are asked ----------------------------------------------------------------------------------------

    def _metadata(self) -> Any:
        """Returns the metadata of the topic, which is there."""
        deadline = time.monotonic() + ANSWER / 2
        while True:
            metadata = self._first_answer()
            error = metadata.topics[self._source.topic].error
            if error is None:
                return metadata
            # A topic that was just made is not everywhere yet.
            if time.monotonic() >= deadline or not error.retriable():
                raise self._error("there is no such topic", error, "create it, or correct its name")
            time.sleep(0.2)

    def _first_answer(self) -> Any:
        # Whoever waits for the broker says so.
        self._outage = None
        metadata = None
        for timeout in FIRST_ANSWER[:-1]:
            try:
                metadata = self._consumer.list_topics(self._source.topic, timeout=timeout)
                break
            except self._kafka.KafkaException:
                self._consumer.poll(0)
            if self._refused is not None:
                raise self._error("the broker refuses this", self._refused)

        if metadata is None:
            metadata = self._asked(lambda: self._consumer.list_topics(self._source.topic, timeout=FIRST_ANSWER[-1]))
        self._outage = Outage(self._source.place)
        return metadata

    def _ask_for_id(self) -> Any:
        """Asks for the id of the topic: one that was deleted and made anew has another one."""
        admin = extra("confluent_kafka.admin", "kafka")
        settings = {name: value for name, value in self._source.options.items() if not name.startswith("group.")}
        client = admin.AdminClient({**settings, "bootstrap.servers": self._source.brokers}, logger=_quiet())
        topics = self._kafka.TopicCollection([self._source.topic])
        return client, client.describe_topics(topics, request_timeout=ANSWER)[self._source.topic]

    def _ends_of(self, number: int) -> tuple[int, int]:
        """Returns the first and the following position of a partition."""
        partition = self._kafka.TopicPartition(self._source.topic, number)
        low, high = self._asked(lambda: self._consumer.get_watermark_offsets(partition, timeout=ANSWER, cached=False))
        return low, high

    def _asked(self, ask: Any) -> Any:
        try:
            return ask()
        except self._kafka.KafkaException as error:
            if self._refused is not None:
                raise self._error("the broker refuses this", self._refused) from None
            raise self._silence(error.args[0]) from None

    def _checked(self, start: Mapping[int, int]) -> Positions:
        for number, position in start.items():
            if number not in self._partitions or not isinstance(position, int) or position < 0:
                expected = f"offsets of the partitions {self._partitions[0]} to {self._partitions[-1]}"
                raise wrong_argument("start", dict(start), expected, place=PLACE)
        return dict(start)

    # -- what goes wrong -----------------------------------------------------------------------------------------------

    def _note_error(self, error: Any) -> None:
        """Is told by librdkafka, within its calls, what concerns the whole client."""
        code = self._kafka.KafkaError
        if error.code() in (code._AUTHENTICATION, code.SASL_AUTHENTICATION_FAILED, code._SSL) or error.fatal():
            self._refused = error
        elif error.code() == code._ALL_BROKERS_DOWN:
            self._is_away()

    def _is_away(self) -> None:
        if self._outage is not None:
            self._outage.failed("no broker answers", self._answered, "until one does")

    def _is_back(self) -> None:
        self._answered = time.monotonic()
        if self._outage is not None:
            self._outage.answered()

    def _lost(self, number: int) -> RecordsLostError:
        wanted = self._following.get(number, 0)
        low, high = self._ends_of(number)
        if wanted < low:
            found = f"its first message has offset {low}: {low - wanted:,} were deleted before they were read"
        else:
            found = f"offsets {low} to {high}: was the topic deleted and created again?"

        error = RecordsLostError.about(
            "the broker no longer has the messages from which to continue",
            place=f"{self._source.place}, partition {number}",
            found=found,
            expected=f"offset {wanted}",
            fix="have the topic keep its messages longer (retention.ms, retention.bytes), or pass them over: "
            'headrace.follow(..., on_gap="skip")',
        )
        error.partition = number
        error.earliest = low
        return error

    def _silence(self, error: Any) -> StorageError:
        code = self._kafka.KafkaError
        what = "the broker does not answer"
        if error.code() not in (code._TRANSPORT, code._ALL_BROKERS_DOWN, code._TIMED_OUT, code._RESOLVE):
            return self._error(what, error)
        return no_answer(what, self._source.place, f"{error.name()}: {error.str()}", FIX)

    def _error(self, what: str, error: Any, fix: str | None = None) -> StorageError:
        if isinstance(error, self._kafka.KafkaException):
            error = error.args[0]
        found = f"{error.name()}: {error.str()}"
        return StorageError.about(what, place=self._source.place, found=found, fix=fix or FIX)


def _runs(numbers: list[int]) -> Iterator[tuple[int, int]]:
    """Yields where runs of equal numbers begin and end: librdkafka gives the messages of a partition in long ones."""
    if not numbers:
        return

    array = np.array(numbers)
    edges = [0, *(np.flatnonzero(array[1:] != array[:-1]) + 1).tolist(), len(numbers)]
    yield from itertools.pairwise(edges)


def _quiet() -> logging.Logger:
    """Returns the logger for librdkafka's own messages, which otherwise go to stderr: nobody is shown them."""
    quiet = logging.getLogger("headrace.librdkafka")
    quiet.propagate = False
    if not quiet.handlers:
        quiet.addHandler(logging.NullHandler())
    return quiet


def _answer(asked: Any) -> str:
    """Returns the id of a topic; empty if the broker does not say."""
    _, future = asked
    try:
        return str(future.result(ID_ANSWER).topic_id)
    except Exception:  # noqa: BLE001 - brokers refuse what they do not know in many ways
        return ""
