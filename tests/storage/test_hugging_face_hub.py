"""`hf://`: what is told where the Hub is away, has no such repository, or does not let the user in."""

from __future__ import annotations

import os
import subprocess
import sys
from typing import Any

import pytest

import headrace
from headrace.core.errors import HeadraceError
from tests.servers.faulty import Fault, FaultyServer

pytest.importorskip("huggingface_hub")

URL = "hf://datasets/owner/name/x.parquet"

GIVEN: dict[str, Any] = {
    "one": URL,
    "folder": "hf://datasets/owner/name",
    "pattern": "hf://datasets/owner/name/*.parquet",
    "list": [URL, "hf://datasets/owner/name/y.parquet"],
    "range": "hf://datasets/owner/name/x-{0..3}.parquet",
}

ANSWERS = [
    (404, "RepoNotFound", "no such repository, or a private one"),
    (401, "RepoNotFound", "no such repository, or a private one"),
    (401, "", "no permission"),
    (403, "GatedRepo", "a repository whose owner must let you in"),
    (404, "RevisionNotFound", "no such revision of the repository"),
    (403, "", "no permission"),
]


def refused(given: Any, options: dict[str, object]) -> str:
    """Returns the text of the error of opening."""
    with pytest.raises(HeadraceError) as caught:
        headrace.open(given, options=options)
    text = str(caught.value)
    for word in ("place:", "found:", "expected:", "fix:"):
        assert word in text
    assert caught.value.__cause__ is None
    return text


@pytest.mark.parametrize("given", GIVEN.values(), ids=GIVEN)
@pytest.mark.parametrize(("status", "code", "found"), ANSWERS)
def test_a_refusal_of_the_hub_says_why(
    faulty_server: FaultyServer, given: Any, status: int, code: str, found: str
) -> None:
    headers = (("X-Error-Code", code), ("X-Error-Message", "GEHEIM"))
    faulty_server.always = Fault("status", status, code, headers=headers if code else ())
    text = refused(given, {"endpoint": faulty_server.url, "token": "hf_GEHEIM"})
    assert found in text
    assert "GEHEIM" not in text


@pytest.mark.parametrize("given", GIVEN.values(), ids=GIVEN)
def test_a_hub_that_cannot_be_reached_is_told_so(given: Any) -> None:
    text = refused(given, {"endpoint": "http://127.0.0.1:1"})
    assert "the server cannot be reached" in text
    assert "network" in text


@pytest.mark.thorough
def test_without_leave_to_ask_the_variable_is_named() -> None:
    program = f"""
import headrace
try:
    headrace.open({URL!r})
except headrace.errors.HeadraceError as error:
    print(error)
"""
    environment = {**os.environ, "HF_HUB_OFFLINE": "1"}
    done = subprocess.run(
        [sys.executable, "-c", program], env=environment, capture_output=True, text=True, timeout=120, check=True
    )
    assert "HF_HUB_OFFLINE is set" in done.stdout
    assert "unset HF_HUB_OFFLINE" in done.stdout
    assert "Traceback" not in done.stderr
