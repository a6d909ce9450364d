"""Credentials, endpoints and limits: where they come from, and that no secret is ever shown."""

from __future__ import annotations

import logging
import pickle
import sys
import traceback
from datetime import timedelta
from pathlib import Path

import pytest

import headrace
from headrace.core.errors import HeadraceError, MissingExtraError, StorageError, UsageError
from headrace.storage.locations import Location, parse, url_options
from headrace.storage.stores.access import CLIENT_OPTIONS, STORE_OPTIONS, access_to
from headrace.storage.stores.cloud_requests import CLIENT_ONLY
from headrace.storage.stores.objects import store_config
from headrace.storage.stores.opening import open_store
from tests.servers.faulty import Fault, FaultyServer

BUCKET = Location("s3", "b", "")
SECRET = "GEHEIM-0123456789"


def write_profiles(
    monkeypatch: pytest.MonkeyPatch, folder: Path, credentials: str = "", configuration: str = ""
) -> None:
    (folder / "credentials").write_text(credentials)
    (folder / "config").write_text(configuration)
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(folder / "credentials"))
    monkeypatch.setenv("AWS_CONFIG_FILE", str(folder / "config"))


KEYS = "aws_access_key_id = AKIA{0}\naws_secret_access_key = GEHEIM{0}\n"


def test_the_default_profile_is_used_where_nothing_else_is_given(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    configuration = "[default]\nregion = eu-west-3\nendpoint_url = http://127.0.0.1:9\n[profile other]\nregion = x\n"
    write_profiles(monkeypatch, tmp_path, f"[default]\n{KEYS.format('DEFAULT')}", configuration)
    access = access_to(BUCKET, {})
    assert "AKIADEFAULT" == access.config["access_key_id"]
    assert "GEHEIMDEFAULT" == access.config["secret_access_key"]
    assert "eu-west-3" == access.config["region"]
    assert "http://127.0.0.1:9" == access.config["endpoint"]
    assert "the profile 'default' of the AWS configuration files" == access.source
    assert access.custom_endpoint


def test_profiles_in_the_home_folder(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    folder = tmp_path / "home" / ".aws"
    folder.mkdir(parents=True)
    (folder / "credentials").write_text(f"[default]\n{KEYS.format('HOME')}")
    assert "AKIAHOME" == access_to(BUCKET, {}).config["access_key_id"]


def test_what_wins(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    profiles = f"[default]\n{KEYS.format('DEFAULT')}[work]\n{KEYS.format('WORK')}aws_session_token = GEHEIMTOKEN\n"
    write_profiles(monkeypatch, tmp_path, profiles)
    monkeypatch.setenv("AWS_PROFILE", "work")
    work = access_to(BUCKET, {})
    assert ("AKIAWORK", "GEHEIMTOKEN") == (work.config["access_key_id"], work.config["session_token"])

    # Keys in the environment win over a profile there, as with the AWS command line.
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "AKIAENV")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "GEHEIMENV")
    environment = access_to(BUCKET, {})
    assert "access_key_id" not in environment.config
    assert "the environment (AWS_ACCESS_KEY_ID)" == environment.source

    # What the options say wins over everything.
    assert "AKIADEFAULT" == access_to(BUCKET, {"profile": "default"}).config["access_key_id"]
    options = access_to(BUCKET, {"access_key_id": "AKIAOPTION", "secret_access_key": "s"})
    assert ("AKIAOPTION", "options=") == (options.config["access_key_id"], options.source)


def test_a_key_without_its_other_half_is_told_with_what_to_set(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    write_profiles(monkeypatch, tmp_path, "")
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "AKIA")
    with pytest.raises(UsageError) as caught:
        headrace.open("s3://bucket/data.parquet", options={"retry_timeout": 1})
    assert "set AWS_SECRET_ACCESS_KEY beside AWS_ACCESS_KEY_ID" in str(caught.value)
    assert "options that were given: none" in str(caught.value)


@pytest.mark.parametrize(
    ("option", "variable"),
    [("secret_access_key", "AWS_ACCESS_KEY_ID"), ("access_key_id", "AWS_SECRET_ACCESS_KEY")],
)
def test_half_a_pair_of_keys_in_the_options_is_told_with_the_other_half(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, option: str, variable: str
) -> None:
    write_profiles(monkeypatch, tmp_path, "")
    monkeypatch.setenv(variable, "GEHEIM")
    assert access_to(BUCKET, {option: "GEHEIM"}).source == f"options= ({option}) and the environment ({variable})"


def test_anonymous_access_reads_no_profile(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    write_profiles(monkeypatch, tmp_path, f"[default]\n{KEYS.format('DEFAULT')}")
    assert "access_key_id" not in access_to(BUCKET, {"skip_signature": True}).config
    monkeypatch.setenv("AWS_SKIP_SIGNATURE", "true")
    access = access_to(BUCKET, {})
    assert "access_key_id" not in access.config
    assert "anonymous" in access.source


def test_a_profile_that_does_not_exist_is_an_error(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    write_profiles(monkeypatch, tmp_path, f"[default]\n{KEYS.format('DEFAULT')}")
    with pytest.raises(UsageError, match="no profile 'nobody'"):
        access_to(BUCKET, {"profile": "nobody"})
    monkeypatch.setenv("AWS_PROFILE", "nobody")
    with pytest.raises(UsageError, match="no profile 'nobody'"):
        access_to(BUCKET, {})


def test_a_profile_whose_keys_must_be_fetched_needs_boto3(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    write_profiles(
        monkeypatch, tmp_path, configuration="[profile sso]\nsso_start_url = https://x\nregion = eu-west-3\n"
    )
    monkeypatch.setitem(sys.modules, "boto3", None)
    with pytest.raises(MissingExtraError, match="pip install boto3"):
        access_to(BUCKET, {"profile": "sso"})


def test_a_damaged_profile_shows_none_of_its_lines(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    write_profiles(monkeypatch, tmp_path, f"[default]\n[default]\n{SECRET}\n")
    with pytest.raises(UsageError, match="cannot read AWS profiles") as caught:
        access_to(BUCKET, {})
    assert SECRET not in "".join(traceback.format_exception(caught.value))


def test_an_unknown_option_lists_the_known_ones() -> None:
    for location, known in (
        (BUCKET, "access_key_id"),
        (parse("https://host/"), "password"),
        (parse("gs://b"), "service"),
    ):
        with pytest.raises(UsageError, match="'acces_key'") as caught:
            open_store(location, {"acces_key": SECRET})
        assert known in str(caught.value)
        assert "read_timeout" in str(caught.value)
        assert SECRET not in str(caught.value)


def test_options_have_the_names_of_the_environment_too() -> None:
    access = access_to(BUCKET, {"AWS_ACCESS_KEY_ID": "a", "aws_secret_access_key": "b", "aws_region": "r"})
    assert ("a", "b", "r") == tuple(access.config[name] for name in ("access_key_id", "secret_access_key", "region"))


@pytest.mark.parametrize("scheme", ["s3", "gs", "az"])
def test_obstore_takes_every_option_that_is_listed(scheme: str) -> None:
    import obstore.store
    from obstore.exceptions import UnknownConfigurationKeyError

    classes = {"s3": obstore.store.S3Store, "gs": obstore.store.GCSStore, "az": obstore.store.AzureStore}
    refused = []
    for name in sorted((STORE_OPTIONS[scheme] | CLIENT_OPTIONS) - {"profile"} - CLIENT_ONLY):
        try:
            classes[scheme]("container", config={name: "1"})
        except UnknownConfigurationKeyError:
            refused.append(name)
        except (obstore.exceptions.BaseError, ValueError, OSError):
            # The value is none of its kind.
            continue

    assert [] == refused


@pytest.mark.parametrize(
    ("options", "word"),
    [
        ({"max_retries": -1}, "max_retries"),
        ({"max_retries": "3"}, "max_retries"),
        ({"retry_timeout": "soon"}, "retry_timeout"),
        ({"retry_timeout": float("nan")}, "retry_timeout"),
        ({"read_timeout": "soon"}, "timeout"),
    ],
)
def test_wrong_values_are_refused(options: dict[str, object], word: str) -> None:
    with pytest.raises(UsageError, match=word):
        open_store(BUCKET, options)


def test_headers_and_certificates_reach_the_client(faulty_server: FaultyServer) -> None:
    faulty_server.put("b", "k", b"data")
    options = {**faulty_server.s3_options, "default_headers": {"X-Of-Mine": "1"}, "read_timeout": 20}
    assert b"data" == bytes(open_store(BUCKET, options).read("k", 0, 4))
    assert "1" == faulty_server.requests[-1].headers["x-of-mine"]
    with pytest.raises(UsageError, match="root_certificate"):
        open_store(BUCKET, {"root_certificate": "none"})


def test_an_endpoint_without_tls_is_taken_as_it_is_given(monkeypatch: pytest.MonkeyPatch) -> None:
    assert "true" == access_to(BUCKET, {"endpoint": "http://h"}).config["allow_http"]
    assert "allow_http" not in access_to(BUCKET, {"endpoint": "https://h"}).config
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://h")
    assert "true" == access_to(BUCKET, {}).config["allow_http"]


def test_a_stall_ends_and_a_long_transfer_does_not() -> None:
    for location in (BUCKET, parse("gs://b"), parse("az://c"), parse("https://host/")):
        config = access_to(location, {}).config
        assert ("30s", "10s", "7days") == (config["read_timeout"], config["connect_timeout"], config["timeout"])
        assert "1500ms" == access_to(location, {"read_timeout": 1.5}).config["read_timeout"]


def test_user_and_password_of_a_url_reach_the_server(faulty_server: FaultyServer) -> None:
    faulty_server.put("b", "k", b"data")
    url = f"{faulty_server.url}/b/k?X-Signature={SECRET}".replace("//", f"//me:{SECRET}@")
    location = parse(url)
    store = open_store(location, url_options(url))
    assert b"data" == bytes(store.read_whole(location.key)[0])
    request = faulty_server.requests[-1]
    assert f"X-Signature={SECRET}" == request.query
    assert request.headers["authorization"].startswith("Basic ")


FAULTS = [
    Fault("status", status=403, code="AccessDenied"),
    Fault("status", status=404, code="NoSuchKey"),
    Fault("status", status=412, code="PreconditionFailed"),
    Fault("status", status=301, code="PermanentRedirect"),
    Fault("status", status=400, code="ExpiredToken"),
    Fault("status", status=418, code="Teapot"),
    Fault("status", status=503),
    Fault("reset"),
    Fault("cut"),
    Fault("whole"),
    Fault("shifted"),
]


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: f"{fault.kind} {fault.code}")
def test_no_error_and_no_log_shows_a_secret(
    faulty_server: FaultyServer, caplog: pytest.LogCaptureFixture, fault: Fault
) -> None:
    caplog.set_level(logging.DEBUG)
    faulty_server.put("b", "k", bytes(5000))
    faulty_server.always = fault
    url = f"{faulty_server.url}/b/k?X-Signature={SECRET}".replace("//", f"//me:{SECRET}@")
    options = {**url_options(url), "max_retries": 0}
    store = open_store(parse(url), options)
    shown = [repr(store), repr(store_config(parse(url), options))]
    for call in (
        lambda: store.read("b/k", 0, 4000),
        lambda: store.read("b/k", 0, 4000, '"e"'),
        lambda: store.read_whole("b/k"),
        lambda: store.head("b/k"),
        lambda: store.write("b/k", [b""]),
    ):
        try:
            call()
        except HeadraceError as error:
            shown += [str(error), repr(error), *traceback.format_exception(error)]
            shown += chain_of(error)

    assert len(shown) > 3
    assert SECRET not in " ".join(shown) + caplog.text


def chain_of(error: BaseException | None) -> list[str]:
    """The texts of an exception's causes and contexts, also of those that a traceback leaves out."""
    texts = []
    while error is not None:
        texts.append(str(error))
        error = error.__cause__ or error.__context__
    return texts


def test_wrong_options_show_no_value() -> None:
    for options in ({"request_payer": SECRET}, {"skip_signature": SECRET}, {"timeout": f"1 {SECRET}"}):
        with pytest.raises(UsageError, match=r"open a store|option of a store") as caught:
            open_store(BUCKET, options)
        assert SECRET not in " ".join(chain_of(caught.value))


@pytest.mark.parametrize("value", ["x", "", "30", -1, timedelta(-1), float("nan"), True, SECRET])
def test_times_that_are_none_are_refused_before_any_request(value: object) -> None:
    with pytest.raises(UsageError, match="wrong option of a store") as caught:
        open_store(BUCKET, {"read_timeout": value})
    for word in ("read_timeout", "found:", "seconds", "fix:"):
        assert word in str(caught.value)
    assert SECRET not in str(caught.value)


def test_a_user_in_the_url_of_a_bucket_is_told_where_keys_belong() -> None:
    with pytest.raises(UsageError, match="write no user into the URL"):
        headrace.open(f"s3://me:{SECRET}@bucket/x")


def test_a_store_is_not_pickled(faulty_server: FaultyServer) -> None:
    with pytest.raises(TypeError, match="store_config"):
        pickle.dumps(open_store(parse(faulty_server.url)))


def test_no_credentials_at_all_are_told_with_what_to_set() -> None:
    store = open_store(BUCKET, {"endpoint": "http://127.0.0.1:1", "max_retries": 0})
    with pytest.raises(StorageError) as caught:
        store.head("k")
    assert "AWS_PROFILE" in str(caught.value)
    assert "AWS_SKIP_SIGNATURE" in str(caught.value)
