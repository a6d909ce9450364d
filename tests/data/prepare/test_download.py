"""Downloads: whole and right in the end, or not there at all, whatever the server does."""

from __future__ import annotations

import fcntl
import socket
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from headrace.core.errors import HeadraceError, UsageError
from headrace.data.prepare.download import DownloadError, Patience, download, download_any
from tests.data.prepare.server import Mirror, md5, serving, sha256

DATA = np.random.default_rng(1).bytes(300_000)
OTHER = np.random.default_rng(2).bytes(300_000)


@pytest.fixture(autouse=True)
def no_proxy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("no_proxy", "*")


@pytest.fixture
def mirror() -> Iterator[Mirror]:
    with serving() as served:
        served.files["data.bin"] = DATA
        yield served


@pytest.fixture
def target(tmp_path: Path) -> Path:
    return tmp_path / "new" / "data.bin"


@pytest.fixture
def waits() -> list[float]:
    return []


@pytest.fixture
def patience(waits: list[float]) -> Patience:
    """Notes the waits, and takes none."""
    return Patience(wait=waits.append)


def part_of(target: Path) -> Path:
    return target.with_name(f".{target.name}.part")


def leave_part(target: Path, data: bytes) -> None:
    target.parent.mkdir()
    part_of(target).write_bytes(data)


def assert_only(target: Path, data: bytes = DATA) -> None:
    assert target.read_bytes() == data
    assert list(target.parent.iterdir()) == [target]


def test_a_file_arrives_whole_in_a_new_folder(mirror: Mirror, target: Path) -> None:
    assert download(mirror.address("data.bin"), target, checksum=sha256(DATA)) == target
    assert_only(target)
    assert mirror.asked("data.bin") == [None]


def test_progress_is_told_from_the_first_byte_to_the_last(mirror: Mirror, target: Path) -> None:
    told: list[tuple[int, int | None]] = []
    download(
        mirror.address("data.bin"), target, checksum=md5(DATA), report=lambda done, total: told.append((done, total))
    )
    assert told[0] == (0, len(DATA))
    assert told[-1] == (len(DATA), len(DATA))
    assert told == sorted(told)
    assert len(told) > 3


def test_a_file_that_is_there_is_not_asked_for(mirror: Mirror, target: Path) -> None:
    target.parent.mkdir()
    target.write_bytes(DATA)
    told: list[tuple[int, int | None]] = []
    download(
        mirror.address("data.bin"), target, checksum=md5(DATA).upper().replace("MD5", "md5"),
        report=lambda done, total: told.append((done, total)),
    )  # fmt: skip
    assert mirror.requests == []
    assert told == [(len(DATA), len(DATA))]


def test_a_file_with_another_checksum_is_replaced(mirror: Mirror, target: Path) -> None:
    target.parent.mkdir()
    target.write_bytes(OTHER)
    download(mirror.address("data.bin"), target, checksum=md5(DATA))
    assert_only(target)


def test_the_old_file_stays_if_the_new_one_cannot_be_had(mirror: Mirror, target: Path) -> None:
    target.parent.mkdir()
    target.write_bytes(OTHER)
    mirror.files.clear()
    with pytest.raises(DownloadError):
        download(mirror.address("data.bin"), target, checksum=md5(DATA))
    assert_only(target, OTHER)


def test_a_cut_connection_goes_on_where_it_broke(
    mirror: Mirror, target: Path, patience: Patience, waits: list[float]
) -> None:
    mirror.cuts = [100_000, 50_000]
    download(mirror.address("data.bin"), target, checksum=sha256(DATA), patience=patience)
    assert_only(target)
    assert mirror.asked("data.bin") == [None, "bytes=100000-", "bytes=150000-"]
    assert len(waits) == 2


def test_a_cut_chunked_answer_goes_on_where_it_broke(mirror: Mirror, target: Path, patience: Patience) -> None:
    mirror.chunked = True
    mirror.cuts = [131_072]  # what a reader takes at a time, twice
    download(mirror.address("data.bin"), target, checksum=sha256(DATA), patience=patience)
    assert_only(target)
    assert mirror.asked("data.bin") == [None, "bytes=131072-"]


def test_the_next_call_goes_on_where_the_last_one_gave_up(mirror: Mirror, target: Path, patience: Patience) -> None:
    mirror.cuts = [100_000, 0, 0, 0, 0, 0]
    with pytest.raises(DownloadError, match="ended at 100,000 of 300,000 bytes; tried 6 times"):
        download(mirror.address("data.bin"), target, checksum=md5(DATA), patience=patience)
    assert list(target.parent.iterdir()) == [part_of(target)]
    mirror.requests.clear()
    download(mirror.address("data.bin"), target, checksum=md5(DATA), patience=patience)
    assert_only(target)
    assert mirror.asked("data.bin") == ["bytes=100000-"]


def test_ctrl_c_leaves_what_came_so_far_to_the_next_call(mirror: Mirror, target: Path) -> None:
    def interrupt(done: int, total: int | None) -> None:
        if done >= 100_000:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        download(mirror.address("data.bin"), target, checksum=md5(DATA), report=interrupt)
    kept = part_of(target).stat().st_size
    assert 100_000 <= kept < len(DATA)
    assert list(target.parent.iterdir()) == [part_of(target)]
    mirror.requests.clear()
    download(mirror.address("data.bin"), target, checksum=md5(DATA))
    assert_only(target)
    assert mirror.asked("data.bin") == [f"bytes={kept}-"]


def test_a_server_that_ignores_ranges_sends_everything_anew(mirror: Mirror, target: Path, patience: Patience) -> None:
    mirror.ranges = False
    mirror.cuts = [100_000]
    told: list[int] = []
    download(
        mirror.address("data.bin"), target, checksum=sha256(DATA), patience=patience,
        report=lambda done, total: told.append(done),
    )  # fmt: skip
    assert_only(target)
    assert told.count(0) == 2
    assert mirror.asked("data.bin") == [None, "bytes=100000-"]


def test_another_range_than_the_one_asked_for_is_not_appended(mirror: Mirror, target: Path, patience: Patience) -> None:
    leave_part(target, DATA[:1000])
    mirror.content_range = "bytes 0-299999/300000"
    download(mirror.address("data.bin"), target, checksum=md5(DATA), patience=patience)
    assert_only(target)
    assert mirror.asked("data.bin") == ["bytes=1000-", None]


def test_an_unknown_length_of_the_whole_is_no_obstacle(mirror: Mirror, target: Path) -> None:
    leave_part(target, DATA[:1000])
    mirror.content_range = "bytes 1000-299999/*"
    told: list[int | None] = []
    download(mirror.address("data.bin"), target, checksum=md5(DATA), report=lambda done, total: told.append(total))
    assert_only(target)
    assert set(told) == {None}


@pytest.mark.parametrize("left", [OTHER[:1000], OTHER, DATA + b"more"], ids=["short", "as long", "longer"])
def test_what_an_earlier_call_left_of_other_data_is_thrown_away(
    mirror: Mirror, target: Path, patience: Patience, left: bytes
) -> None:
    leave_part(target, left)
    download(mirror.address("data.bin"), target, checksum=md5(DATA), patience=patience)
    assert_only(target)
    assert mirror.asked("data.bin") == [f"bytes={len(left)}-", None]


def test_a_part_that_is_complete_only_gets_its_name(mirror: Mirror, target: Path) -> None:
    leave_part(target, DATA)
    download(mirror.address("data.bin"), target, checksum=md5(DATA))
    assert_only(target)
    assert mirror.requests == []


def test_wrong_bytes_are_refused_at_once_and_not_kept(
    mirror: Mirror, target: Path, patience: Patience, waits: list[float]
) -> None:
    mirror.files["data.bin"] = OTHER
    with pytest.raises(DownloadError) as raised:
        download(mirror.address("data.bin"), target, checksum=md5(DATA), patience=patience)
    assert md5(OTHER) in str(raised.value)
    assert md5(DATA) in str(raised.value)
    assert list(target.parent.iterdir()) == []
    assert len(mirror.requests) == 1
    assert waits == []


def test_a_missing_file_is_asked_for_once(mirror: Mirror, target: Path, patience: Patience) -> None:
    with pytest.raises(DownloadError, match="status 404 Not Found") as raised:
        download(mirror.address("no.bin"), target, checksum=md5(DATA), patience=patience)
    assert mirror.address("no.bin") in str(raised.value)
    assert isinstance(raised.value, (HeadraceError, OSError))
    assert len(mirror.requests) == 1
    assert list(target.parent.iterdir()) == []


@pytest.mark.parametrize("status", [500, 503, 408, 429])
def test_a_server_in_trouble_is_asked_again(
    mirror: Mirror, target: Path, patience: Patience, waits: list[float], status: int
) -> None:
    mirror.statuses = [status, status]
    download(mirror.address("data.bin"), target, checksum=md5(DATA), patience=patience)
    assert_only(target)
    assert waits == [0.5, 1.0]


def test_trouble_in_the_middle_keeps_what_came_before_it(mirror: Mirror, target: Path, patience: Patience) -> None:
    leave_part(target, DATA[:1000])
    mirror.statuses = [500]
    download(mirror.address("data.bin"), target, checksum=md5(DATA), patience=patience)
    assert_only(target)
    assert mirror.asked("data.bin") == ["bytes=1000-", "bytes=1000-"]


def test_tries_end_and_waits_grow_to_a_limit(
    mirror: Mirror, target: Path, patience: Patience, waits: list[float]
) -> None:
    mirror.statuses = [500] * 100
    with pytest.raises(DownloadError, match="tried 6 times"):
        download(mirror.address("data.bin"), target, checksum=md5(DATA), patience=patience)
    assert waits == [0.5, 1.0, 2.0, 4.0, 8.0]
    assert len(mirror.requests) == 6


def test_a_server_that_says_nothing_is_given_up(mirror: Mirror, target: Path, waits: list[float]) -> None:
    mirror.silent = True
    patience = Patience(retries=1, timeout=0.05, wait=waits.append)
    with pytest.raises(DownloadError, match="timed out"):
        download(mirror.address("data.bin"), target, checksum=md5(DATA), patience=patience)
    assert len(waits) == 1


def test_a_port_where_nobody_listens_is_tried_again(target: Path, patience: Patience, waits: list[float]) -> None:
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))  # not listening: connections are refused
        url = f"http://127.0.0.1:{bound.getsockname()[1]}/data.bin"
        with pytest.raises(DownloadError, match="ConnectionRefusedError"):
            download(url, target, checksum=md5(DATA), patience=patience)
    assert len(waits) == 5


def test_the_next_mirror_is_asked_when_one_fails(mirror: Mirror, target: Path, patience: Patience) -> None:
    urls = [mirror.address("no.bin"), mirror.address("data.bin")]
    download_any(urls, target, checksum=md5(DATA), patience=patience)
    assert_only(target)
    assert [path for path, _ in mirror.requests] == ["/no.bin", "/data.bin"]


def test_the_next_mirror_goes_on_with_what_the_last_one_sent(mirror: Mirror, target: Path) -> None:
    mirror.files["again.bin"] = DATA
    mirror.cuts = [70_000]
    urls = [mirror.address("data.bin"), mirror.address("again.bin")]
    download_any(urls, target, checksum=md5(DATA), patience=Patience(retries=0))
    assert_only(target)
    assert mirror.asked("again.bin") == ["bytes=70000-"]


def test_the_message_says_what_each_mirror_did(mirror: Mirror, target: Path, patience: Patience) -> None:
    mirror.files["data.bin"] = OTHER
    urls = [mirror.address("no.bin"), mirror.address("data.bin")]
    with pytest.raises(DownloadError) as raised:
        download_any(urls, target, checksum=md5(DATA), patience=patience)
    lines = str(raised.value).splitlines()
    assert lines[:2] == ["cannot download a file", f"  place:    {target}"]
    assert lines[2] == f"  found:    {urls[0]}: status 404 Not Found"
    assert lines[3] == f"            {urls[1]}: 300,000 bytes with the checksum {md5(OTHER)}"
    assert lines[4] == f"  expected: a file with the checksum {md5(DATA)}"
    assert lines[5].startswith("  fix:      ")


def test_an_empty_file_arrives_too(mirror: Mirror, target: Path) -> None:
    mirror.files["empty"] = b""
    download(mirror.address("empty"), target, checksum=md5(b""))
    assert_only(target, b"")


def test_two_processes_do_not_write_the_same_part(mirror: Mirror, target: Path) -> None:
    leave_part(target, DATA[:1000])
    with part_of(target).open("r+b") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        with pytest.raises(DownloadError, match="another process writes it now"):
            download(mirror.address("data.bin"), target, checksum=md5(DATA))
    assert part_of(target).read_bytes() == DATA[:1000]
    assert mirror.requests == []
    download(mirror.address("data.bin"), target, checksum=md5(DATA))
    assert_only(target)


def test_a_file_system_without_locks_is_written_all_the_same(
    mirror: Mirror, target: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> None:
        raise OSError(95, "Operation not supported")

    monkeypatch.setattr(fcntl, "flock", refuse)
    download(mirror.address("data.bin"), target, checksum=md5(DATA))
    assert_only(target)


def test_a_folder_in_the_place_of_the_file_is_left_alone(mirror: Mirror, target: Path) -> None:
    target.mkdir(parents=True)
    with pytest.raises(DownloadError, match="found:    a folder"):
        download(mirror.address("data.bin"), target, checksum=md5(DATA))
    assert list(target.parent.iterdir()) == [target]
    assert mirror.requests == []


def test_a_place_that_cannot_be_written_is_named(mirror: Mirror, tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(DownloadError, match="cannot store a download") as raised:
        download(mirror.address("data.bin"), tmp_path / "file" / "data.bin", checksum=md5(DATA))
    assert str(tmp_path / "file") in str(raised.value)
    assert mirror.requests == []


@pytest.mark.parametrize("checksum", ["", "sha1:0000", "md5:123", "md5:" + "g" * 32, sha256(b"")[7:]])
def test_a_checksum_that_can_never_be_right_is_refused(mirror: Mirror, target: Path, checksum: str) -> None:
    with pytest.raises(UsageError, match="checksum="):
        download(mirror.address("data.bin"), target, checksum=checksum)
    assert mirror.requests == []


@pytest.mark.parametrize(
    "urls", [[], ["data.bin"], ["file:///data.bin"], ["http://one.invalid/", "ftp://two.invalid/"]]
)
def test_only_addresses_of_the_web_are_taken(target: Path, urls: list[str]) -> None:
    with pytest.raises(UsageError, match="expected: an address that begins with https:// or http://"):
        download_any(urls, target, checksum=md5(DATA))
    assert not target.parent.exists()
