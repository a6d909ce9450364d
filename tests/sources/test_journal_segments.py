"""The journal's format: what is packed is found again, and what is damaged is never taken for a record."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.sources.journal.recovery import whole_until
from headrace.sources.journal.segments import (
    FIRST_OF_GROUP,
    HEAD,
    RECORD,
    Damaged,
    OtherVersion,
    check_head,
    first_number,
    group_begins_behind,
    head_of,
    header_at,
    ids_in,
    packed,
    packed_ids,
    payloads_in,
    segment_name,
)

MESSAGES = st.lists(st.tuples(st.binary(max_size=40), st.binary(max_size=8)), max_size=12)
NUMBERS = st.integers(0, 2**63 - 1)
EVERYTHING = 1 << 40


def segment(messages: list[tuple[bytes, bytes]], first: int = 0, flags: int = 0) -> bytes:
    parts = [head_of(first)]
    for number, (payload, message_id) in enumerate(messages, first):
        parts += packed(number, payload, message_id, flags)
    return b"".join(parts)


@given(MESSAGES, st.integers(0, 2**62))
def test_records_come_back_as_they_were_packed(messages: list[tuple[bytes, bytes]], first: int) -> None:
    data = segment(messages, first)
    check_head(data, first)
    values, end = payloads_in(memoryview(data), HEAD.size, first, first + len(messages), EVERYTHING)
    assert values == [payload for payload, _ in messages]
    assert end == len(data)
    assert whole_until(data, first)[:2] == (len(data), first + len(messages))


@given(MESSAGES, st.data())
def test_of_a_file_that_was_cut_all_whole_records_are_found_and_no_other(
    messages: list[tuple[bytes, bytes]], data: st.DataObject
) -> None:
    whole = segment(messages)
    cut = data.draw(st.integers(HEAD.size, len(whole)))
    ends = [len(segment(messages[:count])) for count in range(len(messages) + 1)]
    complete = sum(1 for end in ends if end <= cut) - 1
    assert whole_until(whole[:cut], 0)[:2] == (ends[complete], complete)
    values, end = payloads_in(memoryview(whole[:cut]), HEAD.size, 0, len(messages), EVERYTHING)
    assert (len(values), end) == (complete, ends[complete])


@given(MESSAGES.filter(len), st.data())
def test_a_changed_byte_is_found_wherever_it_lies(messages: list[tuple[bytes, bytes]], data: st.DataObject) -> None:
    whole = bytearray(segment(messages))
    place = data.draw(st.integers(HEAD.size, len(whole) - 1))
    whole[place] ^= data.draw(st.integers(1, 255))
    offset, number, _ = whole_until(bytes(whole), 0)
    before = len(segment(messages[:number]))
    assert offset == before <= place
    assert place < len(segment(messages[: number + 1]))


@given(MESSAGES.filter(len), st.integers(0, 100))
def test_about_limit_bytes_come_and_one_record_at_least(messages: list[tuple[bytes, bytes]], limit: int) -> None:
    data = segment(messages)
    values, _ = payloads_in(memoryview(data), HEAD.size, 0, len(messages), limit)
    assert values
    assert len(values) == 1 or sum(len(value) + RECORD.size for value in values) <= limit


@given(MESSAGES.filter(len), MESSAGES.filter(len))
def test_a_later_group_tells_damage_from_a_torn_tail(
    before: list[tuple[bytes, bytes]], after: list[tuple[bytes, bytes]]
) -> None:
    data = bytearray(segment(before))
    first_of_group, *others = after
    parts = packed(len(before), *first_of_group, FIRST_OF_GROUP)
    for number, message in enumerate(others, len(before) + 1):
        parts += packed(number, *message)
    data[HEAD.size] ^= 1
    assert not group_begins_behind(bytes(data), HEAD.size, 0)
    assert group_begins_behind(bytes(data) + b"".join(parts), HEAD.size, 0)
    assert not group_begins_behind(bytes(data) + b"".join(parts)[: RECORD.size - 1], HEAD.size, 0)


@given(NUMBERS)
def test_names_of_segments_hold_their_number_and_sort_by_it(number: int) -> None:
    assert first_number(segment_name(number)) == number
    assert (segment_name(number) < segment_name(2**62)) == (number < 2**62)


@pytest.mark.parametrize("name", ["lock", "0.journal", "x" * 20 + ".journal", "0" * 20, "0" * 21 + ".journal"])
def test_other_files_are_no_segments(name: str) -> None:
    assert first_number(name) is None


@given(st.lists(st.binary(min_size=1, max_size=70)))
def test_message_ids_come_back(ids: list[bytes]) -> None:
    data = packed_ids(ids)
    assert ids_in(data) == ids
    if ids:
        with pytest.raises(Damaged):
            ids_in(data[:-1])


def test_the_head_of_another_segment_or_version_is_refused() -> None:
    with pytest.raises(Damaged, match="begins with record 4"):
        check_head(head_of(4), 5)
    with pytest.raises(Damaged, match="no head"):
        check_head(bytes(HEAD.size), 0)
    later = bytearray(head_of(0))
    later[7] += 1
    with pytest.raises(OtherVersion, match="version 2"):
        check_head(bytes(later), 0)


def test_the_header_of_another_record_is_refused() -> None:
    data = b"".join(packed(3, b"three"))
    with pytest.raises(Damaged, match="record 3 in the place of record 4"):
        header_at(data, 0, 4)
