"""Commands on data in a bucket say what they say of the same data on this machine, and no secrets."""

from __future__ import annotations

import json
import uuid
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from headrace.data.convert.pack import pack
from headrace.data.convert.plan import PackOptions
from tests.cli.conftest import Command
from tests.servers.nginx import Nginx
from tests.servers.seaweed import ACCESS_KEY, SECRET_KEY, Seaweed
from tests.storage.conftest import no_credentials_of_the_user

__all__ = ["no_credentials_of_the_user"]

COUNT = 40


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("COLUMNS", "240")
    source = tmp_path / "source.npz"
    np.savez(source, x=np.arange(3 * COUNT, dtype=np.float32).reshape(COUNT, 3), label=np.arange(COUNT) % 7)
    pack(source, tmp_path / "here", PackOptions("parquet", shards=2), workers=1)
    return tmp_path / "here"


@pytest.fixture
def there(here: Path, shared_seaweed: Seaweed) -> Iterator[str]:
    url = f"s3://open/{uuid.uuid4().hex}/data"
    pack(here.with_name("source.npz"), url, PackOptions("parquet", shards=2), workers=1,
         target_options=shared_seaweed.options)  # fmt: skip
    yield url


def options(server: Seaweed) -> list[str]:
    """The store's options as a command takes them."""
    words = []
    for name, value in server.options.items():
        words += ["--option", f"{name}={value}"]
    return words


@pytest.mark.thorough
def test_inspect_says_the_same_but_for_the_place(
    here: Path, there: str, command: Command, shared_seaweed: Seaweed
) -> None:
    local = command("inspect", here)
    remote = command("inspect", there, *options(shared_seaweed))
    assert (0, local[1].replace(str(here), there), "") == remote
    as_json = command("inspect", there, "--json", *options(shared_seaweed))[1]
    assert json.loads(command("inspect", here, "--json")[1]) | {"place": there} == json.loads(as_json)


@pytest.mark.parametrize("name", ["verify", "inspect", "doctor", "bench", "pack"])
def test_no_command_says_a_secret(
    name: str, here: Path, there: str, command: Command, shared_seaweed: Seaweed, tmp_path: Path
) -> None:
    more = {
        "doctor": ["--seconds", "0.1", "--workers", "0"],
        "bench": ["--seconds", "0.01", "--workers", "0", "--formats", "memmap"],
    }
    words = [*more.get(name, []), *options(shared_seaweed)]
    if name == "pack":
        status, out, error = command(name, there, tmp_path / "back", "--workers", 1, *words)
    else:
        status, out, error = command(name, *words, there)
    assert status == 0, error
    assert there in out or name == "pack"
    wrong = command(name, *more.get(name, []), "--option", f"endpoint={shared_seaweed.url}", "--option",
                    "access_key_id=AKIANOBODY", "--option", "secret_access_key=a-wrong-secret", there,
                    *([tmp_path / "other"] if name == "pack" else []))  # fmt: skip
    assert (1, True) == (wrong[0], "no permission" in wrong[2])
    for text in (out, error, *wrong[1:]):
        assert not any(secret in text for secret in (ACCESS_KEY, SECRET_KEY, "a-wrong-secret"))


def test_a_signature_in_a_url_is_not_said(here: Path, command: Command, nginx_server: Nginx) -> None:
    nginx_server.put("b", "x.parquet", (here / "part-00000.parquet").read_bytes())
    for name in ("inspect", "verify"):
        status, out, error = command(name, f"{nginx_server.url}/b/x.parquet?X-Signature=hidden")
        assert (0, "") == (status, error)
        assert f"{nginx_server.url}/b/x.parquet" in out
        assert "hidden" not in out


@pytest.mark.parametrize("text", ["a-wrong-secret", "=a-wrong-secret"])
def test_an_option_without_a_name_is_refused_and_not_said(text: str, command: Command) -> None:
    status, out, error = command("verify", "s3://b/x", "--option", text)
    assert (2, True) == (status, "KEY=VALUE" in error)
    assert "a-wrong-secret" not in out + error


@pytest.mark.parametrize("name", ["pack", "verify", "inspect", "bench", "doctor"])
def test_help_shows_a_url_and_where_credentials_come_from(name: str, command: Command) -> None:
    status, out, _ = command(name, "--help")
    assert status == 0
    assert f"headrace {name} " in out
    text = " ".join(out.split())
    assert "s3://bucket/photos" in text
    assert "AWS_*" in text
