"""Two packs to one target in a bucket, at once or one after the other, also from two machines."""

from __future__ import annotations

import importlib.metadata
import json
import tempfile
import threading
import uuid
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from headrace.core.errors import DatasetError, ObjectChangedError, StorageError
from headrace.data.convert.bucket.target import BucketTarget
from headrace.data.convert.pack import pack
from headrace.data.convert.plan import PackOptions
from headrace.data.convert.verify import verify
from tests.data.convert.buckets import NAMES, Bucket
from tests.data.convert.packing import COUNT
from tests.servers.faulty import Fault, FaultyServer
from tests.storage.conftest import no_credentials_of_the_user  # noqa: F401 - a fixture, for these tests, too

pytestmark = pytest.mark.usefixtures("small_pieces")


@pytest.mark.thorough
@pytest.mark.usefixtures("in_environment")
@pytest.mark.parametrize("machine", ["the same", "another"])
def test_a_second_pack_is_refused_and_the_first_one_completes(
    bucket: Bucket, machine: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = bucket.child("--workers", "1", stop=("piece", 3))
    try:
        first.wait_until_there()
        if machine == "another":
            (bucket.root / "elsewhere").mkdir()
            monkeypatch.setattr(tempfile, "tempdir", str(bucket.root / "elsewhere"))
        with pytest.raises(DatasetError, match="another pack is writing this target") as caught:
            bucket.pack(shuffle=4)
        assert "wait until it has ended" in str(caught.value)
        assert (machine == "another") == ("/.headrace-packing/plan" in str(caught.value))
        status, text = first.end()
    finally:
        first.close()

    assert (0, False) == (status, "Traceback" in text)
    assert bucket.here() == bucket.objects()


class Interrupted(Exception):
    pass


@pytest.fixture
def elsewhere(bucket: Bucket, monkeypatch: pytest.MonkeyPatch) -> Callable[[], None]:
    """Has what follows run as on another machine, which has other temporary files."""

    def go() -> None:
        folder = bucket.root / uuid.uuid4().hex
        folder.mkdir()
        monkeypatch.setattr(tempfile, "tempdir", str(folder))

    return go


def interrupted_after(bucket: Bucket, samples: int, **options: Any) -> None:
    """Packs, and stops once so many samples are done."""

    def interrupt(done: int, total: int) -> None:
        if done > samples:
            raise Interrupted

    with pytest.raises(Interrupted):
        pack(
            bucket.source,
            bucket.url(),
            PackOptions(**options),
            workers=1,
            report=interrupt,
            target_options=bucket.options,
        )


def test_the_same_command_on_another_machine_goes_on(bucket: Bucket, elsewhere: Callable[[], None]) -> None:
    interrupted_after(bucket, COUNT // 2)
    elsewhere()
    assert bucket.pack().kept >= 2
    assert bucket.here() == bucket.objects()


def test_another_plan_of_another_machine_is_refused_until_its_mark_is_deleted(
    bucket: Bucket, elsewhere: Callable[[], None]
) -> None:
    interrupted_after(bucket, COUNT // 2)
    elsewhere()
    before = bucket.objects()
    with pytest.raises(DatasetError, match="another pack is writing this target") as caught:
        bucket.pack(shards=3)
    mark = f"{bucket.url()}/.headrace-packing/plan"
    assert f"or delete {mark}" in str(caught.value)
    assert before == bucket.objects()

    bucket.store.delete(f"{bucket.folder}/data/.headrace-packing/plan")
    assert bucket.pack(shards=3).kept == 0
    assert bucket.here(shards=3) == bucket.objects()


@pytest.mark.parametrize("format", ["arrow", "hdf5"])
def test_two_runs_of_one_command_at_once_leave_sound_data(
    bucket: Bucket, elsewhere: Callable[[], None], format: str
) -> None:
    name = NAMES[format]
    options = PackOptions(format)

    def run_another(done: int, total: int) -> None:
        if done == total and not others:
            others.append(1)
            elsewhere()
            bucket.pack(format, name)

    others: list[int] = []
    if format == "arrow":
        with pytest.raises(DatasetError, match="another pack has taken this target over, or completed it"):
            pack(bucket.source, bucket.url(name), options, workers=1, report=run_another, target_options=bucket.options)
    else:
        pack(bucket.source, bucket.url(name), options, workers=1, report=run_another, target_options=bucket.options)

    assert bucket.here(format, name) == bucket.objects()
    assert verify(bucket.url(name), options=bucket.options).sound


@pytest.mark.parametrize("last", [False, True])
def test_a_pack_whose_target_was_taken_over_writes_no_more(bucket: Bucket, last: bool) -> None:
    """Whether it was at its work, or just before the manifest."""
    key = f"{bucket.folder}/data/.headrace-packing/plan"
    taken: list[dict[str, bytes]] = []

    def take_over(done: int, total: int) -> None:
        if done == total or (done and not last):
            plan = json.loads(bytes(bucket.store.read_whole(key)[0]))
            bucket.store.write(key, [json.dumps({**plan, "digest": "another"}).encode()])
            taken.append(bucket.objects())

    with pytest.raises(DatasetError, match="another pack has taken this target over"):
        pack(bucket.source, bucket.url(), PackOptions(), workers=1, report=take_over, target_options=bucket.options)
    assert "data/headrace.json" not in bucket.objects()
    assert taken == [bucket.objects()]


def test_of_two_plans_that_begin_at_once_one_is_refused(bucket: Bucket) -> None:
    together = threading.Barrier(4)

    def begin(number: int) -> str:
        target = BucketTarget(bucket.url(), bucket.options, "arrow", folder=True)
        together.wait()
        try:
            target.begin(f"digest-{number}", f"machine-{number}")
            target.confirm()
        except DatasetError as error:
            return str(error)
        return ""

    with ThreadPoolExecutor(4) as threads:
        refused = sorted(threads.map(begin, range(4)))
    assert [True, False, False, False] == [text == "" for text in refused]
    assert all("another pack is writing this target" in text for text in refused[1:])


def test_a_store_without_conditional_writes_goes_on_and_refuses_as_well(
    bucket: Bucket, elsewhere: Callable[[], None]
) -> None:
    url = f"memory://{bucket.folder}/data"
    pack(bucket.source, url, PackOptions(shards=7), workers=1)

    def interrupt(done: int, total: int) -> None:
        if done > total // 2:
            raise Interrupted

    with pytest.raises(Interrupted):
        pack(bucket.source, url, PackOptions(shards=5), workers=1, report=interrupt)
    assert pack(bucket.source, url, PackOptions(shards=5), workers=1).kept >= 2
    assert verify(url).sound

    with pytest.raises(Interrupted):
        pack(bucket.source, url, PackOptions(), workers=1, report=interrupt)
    elsewhere()
    with pytest.raises(DatasetError, match="another pack is writing this target"):
        pack(bucket.source, url, PackOptions(shards=3), workers=1)


def test_notes_of_an_earlier_plan_are_not_taken_for_those_of_this_one(bucket: Bucket) -> None:
    """A run that ended last may leave notes of objects that are there to this day."""
    area = f"{bucket.folder}/data/.headrace-packing"
    interrupted_after(bucket, COUNT // 2)
    notes = {name: data for name, data in bucket.objects().items() if name.endswith("/00000")}
    bucket.pack()
    for name, data in notes.items():
        bucket.store.write(f"{bucket.folder}/{name}", [data])
    assert bucket.pack(shuffle=5).kept == 0
    assert bucket.here(shuffle=5) == bucket.objects()
    assert not list(bucket.store.list(area))


def test_other_versions_of_libraries_make_another_plan(bucket: Bucket, monkeypatch: pytest.MonkeyPatch) -> None:
    interrupted_after(bucket, COUNT // 2)
    version = importlib.metadata.version
    monkeypatch.setattr(
        importlib.metadata, "version", lambda name: f"{version(name)}.1" if name == "pyarrow" else version(name)
    )
    assert bucket.pack().kept == 0


def test_a_store_writes_what_is_new_only_where_there_is_nothing(bucket: Bucket) -> None:
    key = f"{bucket.folder}/one"
    bucket.store.write(key, [b"first"], new=True)
    with pytest.raises(ObjectChangedError):
        bucket.store.write(key, [b"second"], new=True)
    assert b"first" == bytes(bucket.store.read_whole(key)[0])


def test_a_server_that_refuses_conditional_writes_is_written_to_without(faulty_server: FaultyServer) -> None:
    faulty_server.put("b", "other", b"")
    faulty_server.only = "/b/data/.headrace-packing/plan"
    # The plan is looked for, and then created.
    faulty_server.faults.extend([None, Fault("status", status=501, code="NotImplemented")])
    target = BucketTarget("s3://b/data", faulty_server.s3_options, "arrow", folder=True)
    with pytest.raises(StorageError, match="cannot delete an object"):
        # The manifest, behind the plan: this server deletes nothing.
        target.begin("digest", "machine")
    target.confirm()
    puts = [asked.headers.get("if-none-match") for asked in faulty_server.requests if asked.method == "PUT"]
    assert ["*", None] == puts
