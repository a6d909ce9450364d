"""Keys, passwords and signatures are shown nowhere, also of URLs that were mistyped."""

from __future__ import annotations

import copy
import logging
import pickle
import pprint
import traceback
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

import headrace
from headrace.cli.app import app
from headrace.core.errors import HeadraceError, UsageError
from headrace.core.text.secrets import hide_secrets
from headrace.storage.stores.store_options import StoreOptions
from tests.servers.faulty import FaultyServer

SECRET = "GEHEIM"

MISTYPED = [
    "htp://host/x?sig=GEHEIM",
    "htp://me:GEHEIM@host/x",
    "http:me:GEHEIM@host/x",
    "http:host/x.npz?sig=GEHEIM",
    "http://me:GEHEIM/and-more@host/x",
    "http:///me:GEHEIM@host/x",
    "https:/me:GEHEIM@host/..",
    "https:/host/x?GEHEIM",
    "s3:/key:GEHEIM@bucket",
    "s3:key:GEHEIM@bucket",
    "s33://bucket/x?X-Amz-Signature=GEHEIM",
    "az:me:GEHEIM@container/x",
    "zip://a.zip::https://me:GEHEIM@host/x",
]


def all_texts(error: BaseException) -> str:
    """Returns all that a traceback, a `repr` or a log shows of an error, without the lines of this test."""
    texts = []
    chained: BaseException | None = error
    while chained is not None:
        texts += [str(chained), repr(chained), *traceback.format_exception_only(chained)]
        if chained.__suppress_context__:
            chained = chained.__cause__
        else:
            chained = chained.__cause__ or chained.__context__
    return " ".join(texts)


@pytest.mark.parametrize("url", MISTYPED)
def test_no_error_about_a_mistyped_url_shows_a_secret(url: str) -> None:
    for given in (url, [url], [url, url]):
        with pytest.raises(HeadraceError) as caught:
            headrace.open(given)
        assert SECRET not in all_texts(caught.value)

    with pytest.raises(HeadraceError) as caught:
        headrace.verify(url)
    assert SECRET not in all_texts(caught.value)
    # It takes paths only, and the system's own error about such a path quotes it.
    with pytest.raises(HeadraceError) as caught:
        headrace.ImageFolder(url)
    assert SECRET not in str(caught.value)


@pytest.mark.parametrize("url", MISTYPED)
def test_no_command_shows_a_secret(url: str) -> None:
    for words in (["inspect", url], ["verify", url], ["doctor", url]):
        done = CliRunner().invoke(app, words)
        assert done.exit_code != 0
        assert SECRET not in done.output
        if done.exception is not None:
            assert SECRET not in all_texts(done.exception)


def test_two_slashes_are_offered_where_they_are_missing() -> None:
    with pytest.raises(HeadraceError, match="two slashes after the colon: https://"):
        headrace.open("https:host/train.tar")


@pytest.mark.parametrize(
    "text",
    [
        "az://container@account/key",
        "s3://bucket/a@b",
        "http://host:8080/dir/a@b",
        "hf://datasets/someone/data@main/x.parquet",
        "https://docs.org/page#chapter",
        "did you mean s3://bucket/k? pathlib makes one slash of two",
        "sample 2: mail to me@host",
        "s3://bucket/what?",
    ],
)
def test_what_is_no_secret_stays(text: str) -> None:
    assert hide_secrets(text) == text


def test_a_log_message_shows_no_secret(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING, "headrace"):
        logging.getLogger("headrace").warning("%s is fetched", "https://me:GEHEIM@host/a?sig=GEHEIM")
    assert "https://host/a?sig=..." in caplog.text
    assert SECRET not in caplog.text


def keys_of(server: FaultyServer) -> dict[str, Any]:
    """Returns options with keys, with which a server is asked that does not look at them."""
    options = {**server.s3_options, "access_key_id": f"AKIA{SECRET}", "secret_access_key": SECRET}
    del options["skip_signature"]
    return options


def test_a_look_at_a_dataset_shows_no_option(faulty_server: FaultyServer) -> None:
    faulty_server.put("b", "x.npz", b"")
    np.savez(faulty_server.folder / "b" / "x.npz", x=np.arange(12))
    np.arange(50, dtype=np.uint16).tofile(faulty_server.folder / "b" / "tokens.bin")
    options = keys_of(faulty_server)
    data = headrace.open("s3://b/x.npz", options=options)
    tokens = headrace.open_tokens("s3://b/tokens.bin", dtype="uint16", window=4, options=options)
    signed = headrace.open(f"{faulty_server.url}/b/x.npz?sig={SECRET}")
    for dataset in (data, tokens, signed, data.stream(), data.map(len), copy.copy(data)):
        for shown in (repr(dataset), str(dataset), repr(vars(dataset)), pprint.pformat(vars(dataset))):
            assert SECRET not in shown

    loader = headrace.DataLoader(data, batch_size=4, seed=1, shuffle=True)
    next(iter(loader))
    assert SECRET.encode() not in pickle.dumps(loader.state_dict())


def test_a_dataset_that_is_sent_to_a_worker_has_its_options(faulty_server: FaultyServer) -> None:
    faulty_server.folder.joinpath("b").mkdir()
    np.save(faulty_server.folder / "b" / "x.npy", np.arange(4096 * 8).reshape(8, 4096))
    data = headrace.open("s3://b/x.npy", options=keys_of(faulty_server))
    sent = pickle.loads(pickle.dumps(data))
    assert sent[3]["data"].tolist() == data[3]["data"].tolist()
    assert sent.fingerprint() == data.fingerprint()


def test_a_signed_url_has_a_fingerprint(faulty_server: FaultyServer) -> None:
    faulty_server.folder.joinpath("b").mkdir()
    np.save(faulty_server.folder / "b" / "x.npy", np.arange(8))
    data = headrace.open(f"{faulty_server.url}/b/x.npy?sig={SECRET}")
    faulty_server.requests.clear()
    data.fingerprint()
    assert [request.query for request in faulty_server.requests] == [f"sig={SECRET}"]


def test_options_show_their_names_and_are_a_mapping() -> None:
    options = StoreOptions({"region": "r", "secret_access_key": SECRET})
    assert repr(options) == "<options of a store: region, secret_access_key>"
    assert options == {"region": "r", "secret_access_key": SECRET}
    assert dict(pickle.loads(pickle.dumps(options))) == dict(options)
    assert not hasattr(options, "__dict__")


WRONG: list[tuple[Any, list[str]]] = [
    ("GEHEIM", ["headrace.open(options=)", "a str", "a dict from names to values"]),
    (["region"], ["a list"]),
    ({5: "x"}, ["a name of type int"]),
    ({"region": 5}, ["region", "a value of type int", "text"]),
    ({"skip_signature": 1.5}, ["skip_signature", "float", "True or False"]),
    ({"read_timeout": [5]}, ["read_timeout", "list", "seconds"]),
    ({"default_headers": "GEHEIM"}, ["default_headers", "str", "headers"]),
    ({"max_retries": "many"}, ["max_retries", "'many'", "an integer"]),
    ({"secret_access_key": b"GEHEIM"}, ["secret_access_key", "bytes", "text"]),
    ({"nonsense": 1}, ["'nonsense'", "one of", "region"]),
    ({"secret_acess_key": "GEHEIM"}, ["did you mean 'secret_access_key'"]),
]


@pytest.mark.parametrize(("options", "words"), WRONG)
def test_options_of_a_wrong_form_are_refused_before_any_request(
    faulty_server: FaultyServer, options: Any, words: list[str]
) -> None:
    whole = options
    if isinstance(options, dict):
        whole = {"endpoint": faulty_server.url, **options}
    with pytest.raises(UsageError) as caught:
        headrace.open("s3://b/x.npz", options=whole)
    for word in ("place:", "found:", "expected:", *words):
        assert word in str(caught.value)
    assert SECRET not in all_texts(caught.value)
    assert faulty_server.requests == []


def test_options_of_a_wrong_form_are_refused_for_paths_and_packing(tmp_path: Path) -> None:
    wrong: Any = "GEHEIM"
    for call in (
        lambda: headrace.open(tmp_path / "x.npz", options=wrong),
        lambda: headrace.pack("s3://b/x", tmp_path / "y", source_options=wrong),
        lambda: headrace.pack(tmp_path / "x", "s3://b/x", target_options=wrong),
        lambda: headrace.verify("s3://b/x", options=wrong),
    ):
        with pytest.raises(UsageError, match="a dict from names to values") as caught:
            call()
        assert SECRET not in all_texts(caught.value)
