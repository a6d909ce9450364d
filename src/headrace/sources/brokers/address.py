"""Addresses of brokers: `scheme://user:password@host:port/name?setting=...`. Pure text; nothing connects."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar
from urllib.parse import SplitResult, parse_qsl, unquote, urlsplit

from headrace.core.errors import UsageError, wrong_argument
from headrace.core.text.urls import check_server, shown_url

PLACE = "headrace.follow"


@dataclass(frozen=True)
class BrokerAddress:
    """Where something of a broker is. The path is its name, with slashes or without, quoted as in URLs.

    A subclass says what its URLs look like. Raises `UsageError` for others.
    """

    FORM: ClassVar[str]
    """An example of such a URL."""

    PORTS: ClassVar[dict[str, int]]
    """The schemes, and the port of each where none is given."""

    NAMED: ClassVar[str]
    """What the path names: "queue", "stream"."""

    SETTINGS: ClassVar[tuple[str, ...]]
    """What may stand behind the question mark."""

    url: str = field(repr=False)
    default_name: str = ""
    """The name, if the URL has no path."""

    def __post_init__(self) -> None:
        check_server(self.url, PLACE, self.FORM)
        scheme = self.parts.scheme
        if scheme not in self.PORTS:
            forms = " or ".join(f'"{known}://host/{self.NAMED}"' for known in self.PORTS)
            raise wrong_argument("url", f"{scheme}://...", forms)
        if not self.name:
            fix = f"write the {self.NAMED} after the host"
            what = f"this URL has no {self.NAMED}"
            raise UsageError.about(what, place=PLACE, found=shown_url(self.url), expected=self.FORM, fix=fix)

        unknown = self.settings.keys() - set(self.SETTINGS)
        if unknown:
            raise self.wrong_setting(", ".join(sorted(unknown)))

    def wrong_setting(self, found: str) -> UsageError:
        """Returns the error for what is after the question mark; the caller raises it."""
        what = "this URL has a wrong setting"
        fix = "correct what is after the question mark, or leave it out"
        expected = " and ".join(f"?{name}=" for name in self.SETTINGS)
        return UsageError.about(what, place=f"{PLACE}({self.place})", found=found, expected=expected, fix=fix)

    @property
    def parts(self) -> SplitResult:
        """The parts of the URL."""
        return urlsplit(self.url)

    @property
    def name(self) -> str:
        """The name of the queue or the stream."""
        return unquote(self.parts.path.removeprefix("/")) or self.default_name

    @property
    def host(self) -> str:
        """The name or the number of the server."""
        return self.parts.hostname or ""

    @property
    def port(self) -> int:
        """The port of the server."""
        return self.parts.port or self.PORTS[self.parts.scheme]

    @property
    def user(self) -> str | None:
        """The user; None: the URL has none."""
        return unquote(self.parts.username) if self.parts.username else None

    @property
    def password(self) -> str | None:
        """The password; None: the URL has none."""
        return unquote(self.parts.password) if self.parts.password else None

    @property
    def settings(self) -> dict[str, str]:
        """What stands behind the question mark."""
        return dict(parse_qsl(self.parts.query, keep_blank_values=True))

    @property
    def server(self) -> str:
        """The server, without user and password."""
        host = self.host
        if ":" in host:
            host = f"[{host}]"
        return f"{self.parts.scheme}://{host}:{self.port}"

    @property
    def place(self) -> str:
        """What a user would call it: without user, password and query."""
        return f"{self.server}/{self.name}"
