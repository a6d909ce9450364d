"""What holds for every kind of source: each record once, the same batches after a resume, records that come later."""

from __future__ import annotations

import itertools
import json
import threading

import pytest

import headrace
from headrace.core.errors import StateError
from tests.sources.every_source import SOURCES, redis
from tests.sources.loading import flat, ids_of, loader_of, read

COUNT = 200

_NUMBERS = itertools.count()


@pytest.fixture(params=list(SOURCES))
def source(request):
    with SOURCES[request.param](request, f"t{next(_NUMBERS)}") as source:
        yield source


def open_source(source, **live):
    return headrace.follow(source.uri, **{"span": 60, "until": COUNT, **source.opened, **live})


def start_writing(source, numbers):
    """Writes in a thread, as a socket takes only what somebody receives."""
    writer = threading.Thread(target=source.write, args=(numbers,))
    writer.start()
    return writer


@pytest.mark.quick(source=["kafka", "redis", "tcp", "sqlite"], workers=2)
@pytest.mark.parametrize("workers", [0, 2])
def test_each_record_comes_once(source, workers):
    batches = iter(loader_of(open_source(source), num_workers=workers))
    # A worker that is forked while a thread starts a program would keep that thread waiting for it.
    writer = start_writing(source, range(COUNT))
    found = read(batches)
    writer.join()
    assert sorted(flat(found)) == list(range(COUNT))


@pytest.mark.quick(source=["kafka", "tcp"])
def test_a_resume_goes_on_with_the_next_batch(source):
    writer = start_writing(source, range(COUNT))
    loader = loader_of(open_source(source))
    before = read(loader, 5)
    state = json.loads(json.dumps(loader.state_dict()))
    del loader
    other = loader_of(open_source(source), num_workers=2)
    other.load_state_dict(state)
    after = read(other)
    writer.join()
    assert sorted(flat(before + after)) == list(range(COUNT))

    again = loader_of(open_source(source))
    again.load_state_dict(state)
    assert read(again) == after


@pytest.mark.thorough
def test_a_resume_behind_a_commit_at_the_end_of_a_span(source):
    """What was committed may be gone: it must not be read again."""
    writer = start_writing(source, range(COUNT))
    loader = loader_of(open_source(source, span=64), batch_size=32)
    before = read(loader, 4)
    loader.commit(loader.state_dict())
    state = loader.state_dict()
    del loader
    other = loader_of(open_source(source, span=64), batch_size=32)
    other.load_state_dict(state)
    after = read(other)
    writer.join()
    assert sorted(flat(before + after)) == list(range(COUNT))


@pytest.mark.thorough
def test_a_state_of_another_kind_of_source_is_refused(request, source):
    """Its positions would mean other records, and to commit it would free what nobody has read."""
    with redis(request, "another") as other:
        other.write(range(COUNT))
        reading = loader_of(open_source(other))
        read(reading, 5)
        state = reading.state_dict()

    loader = loader_of(open_source(source))
    with pytest.raises(StateError, match=r"another (log|dataset)"):
        loader.commit(state)
    with pytest.raises(StateError, match=r"another (log|dataset)"):
        loader.load_state_dict(state)
        read(loader)


@pytest.mark.quick(source=["kafka", "tcp"])
def test_records_that_come_later(source):
    data = open_source(source, span=32, linger=0.5, until=64)
    batches = iter(loader_of(data, num_workers=1))
    writer = start_writing(source, range(32))
    first = [ids_of(next(batches)) for _ in range(2)]
    writer.join()
    writer = start_writing(source, range(32, 64))
    later = [ids_of(next(batches)) for _ in range(2)]
    writer.join()
    assert sorted(flat(first)) == list(range(32))
    assert sorted(flat(later)) == list(range(32, 64))


@pytest.mark.thorough
def test_the_first_batch_does_not_wait_for_the_span_to_fill(source):
    """With `linger=` as long as this, it would never come."""
    writer = start_writing(source, range(COUNT))
    data = open_source(source, span=50_000, linger=1e9, until=100_000)
    first = next(iter(loader_of(data, batch_size=50)))
    writer.join()
    assert len(set(ids_of(first))) == 50


@pytest.mark.quick(source=["kafka", "tcp"])
def test_nothing_shown_has_a_password(source):
    data = open_source(source)
    shown = f"{data!r}{loader_of(data)!r}{data.place}"
    for secret in ("secret-of-redis", "guest:guest", "reader:"):
        assert secret not in shown
