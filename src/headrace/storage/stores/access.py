"""Credentials, endpoints and limits: from `options=` and the environment to what obstore takes.

obstore reads the environment (`AWS_*`, `GOOGLE_*`, `AZURE_*`), the roles of instances and containers, and the file that
`gcloud` writes. It does not read the profiles of `~/.aws`: `aws_profiles.py` does.
"""

from __future__ import annotations

import base64
import difflib
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any
from urllib.parse import urlsplit

from headrace.core.errors import UsageError
from headrace.core.text.urls import shown_url
from headrace.storage.locations import HTTP_SCHEMES, Location
from headrace.storage.stores.aws_profiles import profile_credentials, wanted_profile
from headrace.storage.stores.retries import RetryLimits

CLIENT_OPTIONS = {
    "allow_http", "allow_invalid_certificates", "connect_timeout", "default_headers", "http1_only", "http2_only",
    "pool_idle_timeout", "pool_max_idle_per_host", "proxy_ca_certificate", "proxy_excludes", "proxy_url",
    "randomize_addresses", "read_timeout", "root_certificate", "timeout", "user_agent",
}  # fmt: skip
"""Options of the connection, for every scheme."""

LIMIT_OPTIONS = {"max_retries", "retry_timeout"}
"""Options of our own, for every scheme."""

STORE_OPTIONS = {
    "s3": {
        "access_key_id", "checksum_algorithm", "conditional_put", "container_authorization_token_file",
        "container_credentials_full_uri", "container_credentials_relative_uri", "default_region",
        "disable_bulk_delete", "disable_tagging", "endpoint", "endpoint_url", "imdsv1_fallback", "metadata_endpoint",
        "profile", "region", "request_payer", "role_arn", "role_session_name", "s3_express", "secret_access_key",
        "server_side_encryption", "session_token", "skip_signature", "sse_bucket_key_enabled",
        "sse_customer_key_base64", "sse_kms_key_id", "token", "unsigned_payload",
        "virtual_hosted_style_request", "web_identity_token_file",
    },
    "gs": {
        "application_credentials", "service_account", "service_account_key", "service_account_path", "skip_signature",
    },
    "az": {
        "access_key", "account_key", "account_name", "authority_host", "bearer_token", "client_id", "client_secret",
        "disable_tagging", "endpoint", "federated_token_file", "msi_endpoint", "msi_resource_id", "object_id",
        "sas_key", "sas_token", "skip_signature", "tenant_id", "token", "use_azure_cli", "use_emulator",
        "use_fabric_endpoint",
    },
    "http": {"query", "username", "password"},
}  # fmt: skip
"""Options of each kind of store, in obstore's words. "profile", "query", "username" and "password" are ours."""

PREFIXES = {"s3": "aws_", "gs": "google_", "az": "azure_storage_"}
"""May stand in front of a store's options, as in the names of environment variables."""

DURATIONS = {"connect_timeout", "pool_idle_timeout", "read_timeout", "timeout"}
"""Options in seconds, as `datetime.timedelta`, or in obstore's words, such as "1min 30s"."""

DURATION_WORDS = re.compile(r"\s*(\d+\s*[A-Za-z]+\s*)+")

CERTIFICATES = {"root_certificate", "proxy_ca_certificate"}

FLAGS = {
    "allow_http", "allow_invalid_certificates", "disable_bulk_delete", "disable_tagging", "http1_only", "http2_only",
    "imdsv1_fallback", "randomize_addresses", "request_payer", "s3_express", "skip_signature",
    "sse_bucket_key_enabled", "unsigned_payload", "use_azure_cli", "use_emulator", "use_fabric_endpoint",
    "virtual_hosted_style_request",
}  # fmt: skip
"""Options that are on or off."""

DEFAULT_CLIENT = {
    "timeout": "7days",  # of a whole request: a large object over a slow line may take long
    "read_timeout": "30s",  # to the first byte, and from each byte to the next
    "connect_timeout": "10s",
}

ENDPOINT_VARIABLES = {
    "s3": ("AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL", "AWS_ENDPOINT"),
    "gs": (),
    "az": ("AZURE_STORAGE_ENDPOINT", "AZURE_ENDPOINT"),
}

ALLOW_HTTP_VARIABLES = {"s3": "AWS_ALLOW_HTTP", "gs": "GOOGLE_ALLOW_HTTP", "az": "AZURE_ALLOW_HTTP"}

KEY_VARIABLES = {
    "s3": ("AWS_ACCESS_KEY_ID", "AWS_WEB_IDENTITY_TOKEN_FILE", "AWS_CONTAINER_CREDENTIALS_RELATIVE_URI",
           "AWS_CONTAINER_CREDENTIALS_FULL_URI"),
    "gs": ("GOOGLE_SERVICE_ACCOUNT", "GOOGLE_SERVICE_ACCOUNT_PATH", "GOOGLE_SERVICE_ACCOUNT_KEY",
           "GOOGLE_APPLICATION_CREDENTIALS"),
    "az": ("AZURE_STORAGE_ACCOUNT_KEY", "AZURE_STORAGE_ACCESS_KEY", "AZURE_STORAGE_MASTER_KEY",
           "AZURE_STORAGE_SAS_KEY", "AZURE_STORAGE_SAS_TOKEN", "AZURE_STORAGE_TOKEN", "AZURE_CLIENT_SECRET",
           "AZURE_STORAGE_CLIENT_SECRET", "AZURE_FEDERATED_TOKEN_FILE"),
}  # fmt: skip
"""Variables whose presence says where credentials come from, per scheme."""

KEY_OPTIONS = {
    "access_key_id", "account_key", "access_key", "application_credentials", "bearer_token", "client_secret",
    "federated_token_file", "password", "query", "sas_key", "sas_token", "service_account", "service_account_key",
    "service_account_path", "token", "username", "web_identity_token_file",
}  # fmt: skip

HALVES = {"s3": {"access_key_id": "AWS_ACCESS_KEY_ID", "secret_access_key": "AWS_SECRET_ACCESS_KEY"}}
"""Options that make a pair of keys, and the variables that each may come from instead."""

SKIP_VARIABLES = {"s3": "AWS_SKIP_SIGNATURE", "gs": "GOOGLE_SKIP_SIGNATURE", "az": "AZURE_SKIP_SIGNATURE"}

SIGNATURE = "the query of the URL"
"""Where credentials come from, for an address with a signature."""

TRUE = {"1", "true", "yes", "on", "y", "t"}


@dataclass(frozen=True)
class Access:
    """How a store is reached. Only `source` may be shown."""

    config: dict[str, Any] = field(repr=False)
    """What obstore's class for the scheme takes as `config`, or the options of its client for http."""

    provider: Any = field(repr=False)
    """None, or an object that renews credentials."""

    url: str = field(repr=False)
    """Of an http server, with the query of each request; "" for buckets."""

    queries: Mapping[str, str] = field(repr=False)
    """Of an http server: the queries of those objects that have one of their own, by key."""

    source: str
    """Where the credentials come from, in words."""

    custom_endpoint: bool
    """Whether the store is another one than that of the scheme's owner."""

    limits: RetryLimits

    def query_of(self, key: str) -> str:
        """Returns the query with which an object of an http server is asked for, "" for none. It may be secret."""
        return self.queries.get(key, urlsplit(self.url).query)


def access_to(location: Location, options: Mapping[str, object]) -> Access:
    """Returns how to reach a location's store. Reads the environment and `~/.aws`. Raises `UsageError`."""
    given = checked_options(location, options)
    limits = limits_of(given)
    if location.scheme in HTTP_SCHEMES:
        return _http_access(location, given, limits)

    config = {name: _text(name, value) for name, value in given.items()}
    profile = config.pop("profile", None)
    provider = None
    source = credentials_source(location.scheme, given)
    if location.scheme == "s3":
        wanted = wanted_profile(profile, has_other_credentials=not source.startswith("the role"))
        if wanted is not None:
            found = profile_credentials(wanted, explicit=profile is not None)
            config = {**found.config, **config}
            provider = found.provider
            if found.config or provider is not None:
                source = f"the profile {wanted!r} of the AWS configuration files"

    endpoint = _endpoint(location.scheme, config)
    if endpoint and not endpoint.startswith(("http://", "https://")):
        # obstore would panic at the first request, with an exception that is none.
        raise UsageError.about(
            "wrong endpoint of a store",
            place=location.url,
            found=f"no http:// or https:// at its beginning: {shown_url(endpoint)}",
            expected="http://HOST:PORT or https://HOST",
            fix="write http:// in front of it, in options= or the environment",
        )

    variable = ALLOW_HTTP_VARIABLES[location.scheme]
    if os.environ.get(variable):
        config.setdefault("allow_http", os.environ[variable])
    for name, value in DEFAULT_CLIENT.items():
        config.setdefault(name, value)
    if endpoint.startswith("http://"):
        # Whoever writes such an address knows that it is not encrypted; keys are never sent, only signatures.
        config.setdefault("allow_http", "true")

    return Access(config, provider, "", {}, source, bool(endpoint), limits)


def checked_options(location: Location, options: Mapping[str, object]) -> dict[str, object]:
    """Returns options under the names that `STORE_OPTIONS` has. Raises `UsageError` for an unknown one."""
    scheme = location.scheme.removesuffix("s") if location.scheme in HTTP_SCHEMES else location.scheme
    own = STORE_OPTIONS[scheme]
    prefix = PREFIXES.get(scheme, "")
    checked: dict[str, object] = {}
    for name, value in options.items():
        usual = str(name).lower()
        if usual not in own and usual not in CLIENT_OPTIONS and usual not in LIMIT_OPTIONS:
            usual = usual.removeprefix(prefix).removeprefix("azure_")

        if usual not in own and usual not in CLIENT_OPTIONS and usual not in LIMIT_OPTIONS:
            known = [*sorted(own), *sorted(CLIENT_OPTIONS | LIMIT_OPTIONS)]
            near = difflib.get_close_matches(usual, known, 3)
            fix = "correct the name, or leave it out"
            if usual in ("username", "password"):
                # Those in front of an @ in the URL are meant.
                fix = "write no user into the URL: give keys as options=, or in the environment"
            elif near:
                fix = f"did you mean {' or '.join(map(repr, near))}?"
            raise UsageError.about(
                "unknown option of a store",
                place=f"options= for {location.url}",
                found=repr(name),
                expected=f"one of {', '.join(known)}",
                fix=fix,
            )

        if value is not None:
            _check_type(usual, value, location)
            checked[usual] = value

    return checked


def _check_type(name: str, value: object, location: Location) -> None:
    """Raises `UsageError` for an option whose value is of a wrong type. The error does not show the value."""
    if name in LIMIT_OPTIONS:
        return  # which `limits_of` compares with their bounds

    types: tuple[type, ...] = (str, os.PathLike)
    expected = "text"
    if name in FLAGS:
        types, expected = (bool, str), "True or False"
    elif name in DURATIONS:
        types, expected = (int, float, timedelta, str), "seconds, or a datetime.timedelta"
    elif name in CERTIFICATES:
        types, expected = (str, bytes), "the text of a certificate (PEM)"
    elif name == "query":
        types, expected = (str, Mapping), "text, as it stands after the question mark"
    elif name == "default_headers":
        types, expected = (Mapping,), "a dict from names of headers to values"
    elif name == "pool_max_idle_per_host":
        types, expected = (int, str), "a whole number"

    found = None
    if not isinstance(value, types) or (isinstance(value, bool) and name not in FLAGS):
        found = f"a value of type {type(value).__name__}"
    elif name in DURATIONS and not _is_duration(value):
        found = "a value that is no time"
        expected = "seconds, 0 or more, or a text such as '1min 30s'"

    if found is not None:
        raise UsageError.about(
            "wrong option of a store",
            place=f"options= for {location.url}: {name}",
            found=found,
            expected=expected,
            fix=f"write options={{{name!r}: ...}} with {expected}",
        )


def _is_duration(value: object) -> bool:
    if isinstance(value, str):
        return DURATION_WORDS.fullmatch(value) is not None
    if isinstance(value, timedelta):
        value = value.total_seconds()
    return isinstance(value, (int, float)) and value >= 0


def credentials_source(scheme: str, given: Mapping[str, object]) -> str:
    """Returns in words where credentials come from, without naming their values."""
    skip = given.get("skip_signature")
    if skip is None and scheme in SKIP_VARIABLES:
        skip = os.environ.get(SKIP_VARIABLES[scheme])
    if skip is not None and _text("skip_signature", skip).lower() in TRUE:
        return "none (anonymous, skip_signature)"

    halves = [name for name in HALVES.get(scheme, {}) if name in given]
    for name, variable in HALVES.get(scheme, {}).items():
        if len(halves) == 1 and name not in given and os.environ.get(variable):
            return f"options= ({halves[0]}) and the environment ({variable})"

    keys = KEY_OPTIONS & given.keys()
    if keys == {"query"}:
        return SIGNATURE
    if keys:
        return "options="

    for variable in KEY_VARIABLES.get(scheme, ()):
        if os.environ.get(variable):
            return f"the environment ({variable})"

    if scheme in HTTP_SCHEMES:
        return "none"
    return "the role of this machine, as none are in options= or the environment"


def _http_access(location: Location, given: dict[str, object], limits: RetryLimits) -> Access:
    """Returns how to reach an http server."""
    url = f"{location.scheme}://{location.container}/"
    query = given.pop("query", None)
    queries: dict[str, str] = {}
    if isinstance(query, Mapping):
        queries = dict(query)
    elif query:
        url += f"?{query}"

    source = credentials_source("http", {**given, "query": query} if query else given)
    username = given.pop("username", None)
    password = given.pop("password", "")
    if username is not None:
        # As a header, and not in the URL: the client's errors and logs quote the URL.
        token = base64.b64encode(f"{username}:{password}".encode()).decode()
        headers = dict(given.get("default_headers") or {})  # type: ignore[call-overload]  # a mapping, as the docs say
        headers.setdefault("Authorization", f"Basic {token}")
        given["default_headers"] = headers

    config = {**DEFAULT_CLIENT, **{name: _text(name, value) for name, value in given.items()}}
    config["allow_http"] = location.scheme == "http"
    return Access(config, None, url, queries, source, True, limits)


def limits_of(given: dict[str, object]) -> RetryLimits:
    """Takes the limits out of the options."""
    limits = RetryLimits()
    retries = given.pop("max_retries", limits.retries)
    seconds = given.pop("retry_timeout", limits.seconds)
    if isinstance(seconds, timedelta):
        seconds = seconds.total_seconds()

    if isinstance(retries, bool) or not isinstance(retries, int) or retries < 0:
        raise _wrong_limit("max_retries", retries, "an integer of at least 0")
    if isinstance(seconds, bool) or not isinstance(seconds, (int, float)) or not seconds >= 0:
        raise _wrong_limit("retry_timeout", seconds, "seconds, or a datetime.timedelta")

    return RetryLimits(retries=retries, seconds=float(seconds))


def _wrong_limit(name: str, value: object, expected: str) -> UsageError:
    """Returns the error for a limit that is no number."""
    return UsageError.about(
        "wrong option of a store", place=f"options=: {name}", found=repr(value), expected=expected, fix="correct it"
    )


def _endpoint(scheme: str, config: Mapping[str, Any]) -> str:
    """Returns the endpoint that options or the environment name, or ""."""
    for name in ("endpoint", "endpoint_url"):
        if config.get(name):
            return str(config[name])

    for variable in ENDPOINT_VARIABLES[scheme]:
        if os.environ.get(variable):
            return os.environ[variable]

    return ""


def _text(name: str, value: object) -> Any:
    """Returns an option as obstore takes it: times as "1500ms", the rest as text; headers and certificates as given."""
    match value:
        case bool():
            return str(value).lower()
        case timedelta():
            return f"{round(value.total_seconds() * 1000)}ms"
        case int() | float() if name in DURATIONS:
            return f"{round(value * 1000)}ms"
        case bytes() | Mapping():
            return value

    return str(value)


def shown_endpoint(access: Access, scheme: str) -> str:
    """Returns where requests go, for an error: "" for the usual endpoint of a scheme."""
    endpoint = _endpoint(scheme, access.config) if scheme in ENDPOINT_VARIABLES else ""
    if not endpoint:
        return ""

    parts = urlsplit(endpoint)
    return shown_url(f"{parts.scheme}://{parts.netloc}")
