"""Which proxy requests go through, for errors: a wrong one looks like a server that is gone."""

from __future__ import annotations

import urllib.request
from collections.abc import Mapping
from urllib.parse import urlsplit

from headrace.core.text.urls import shown_url


def shown_proxy(config: Mapping[str, object], server: str) -> str:
    """Returns the proxy on the way to a server, without its password; "" without one.

    obstore's client takes `proxy_url`, or else what the environment says (`HTTPS_PROXY`, `HTTP_PROXY`, `ALL_PROXY` and
    `NO_PROXY`). config: what a store was given. server: a URL; "" for the usual endpoint of a bucket.
    """
    given = config.get("proxy_url")
    if given:
        return shown_url(str(given))

    parts = urlsplit(server or "https://")
    proxies = urllib.request.getproxies_environment()
    proxy = proxies.get(parts.scheme) or proxies.get("all")
    if not proxy or (parts.netloc and urllib.request.proxy_bypass(parts.netloc)):
        return ""
    return shown_url(proxy)
