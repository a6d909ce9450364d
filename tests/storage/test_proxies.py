"""A proxy that does not answer is named: otherwise it looks as if the server were gone."""

from __future__ import annotations

import pytest

import headrace
from headrace.core.errors import StorageError
from headrace.storage.stores.proxies import shown_proxy
from tests.servers.processes import free_ports

VARIABLES = ("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "NO_PROXY")


@pytest.fixture(autouse=True)
def _no_proxies(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in VARIABLES:
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.lower(), raising=False)


@pytest.mark.parametrize("by", ["options", "HTTP_PROXY", "ALL_PROXY"])
def test_a_proxy_that_is_gone_is_named(monkeypatch: pytest.MonkeyPatch, by: str) -> None:
    (port,) = free_ports(1)
    options: dict[str, object] = {"skip_signature": True, "endpoint": "http://store.invalid", "max_retries": 0}
    proxy = f"http://user:GEHEIM@127.0.0.1:{port}"
    if by == "options":
        options["proxy_url"] = proxy
    else:
        monkeypatch.setenv(by, proxy)
    with pytest.raises(StorageError) as caught:
        headrace.open("s3://bucket/data.parquet", options=options)
    told = str(caught.value)
    assert f"through the proxy http://127.0.0.1:{port}: the server refused the connection" in told
    assert "NO_PROXY" in told
    assert "GEHEIM" not in told


def test_servers_that_are_reached_without_it_are_told_from_others(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HTTPS_PROXY", "http://proxy:8080")
    monkeypatch.setenv("NO_PROXY", "near.org")
    assert shown_proxy({}, "") == "http://proxy:8080"
    assert shown_proxy({}, "https://far.org") == "http://proxy:8080"
    assert shown_proxy({}, "https://near.org") == ""
    assert shown_proxy({}, "http://far.org") == ""
    assert shown_proxy({"proxy_url": "http://other:1"}, "http://far.org") == "http://other:1"
