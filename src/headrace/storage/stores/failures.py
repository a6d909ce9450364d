"""What a failed request means: from obstore's exceptions to failures that pass and to headrace's errors.

obstore tells status, code and kind only in the text of its exceptions, so this reads them from there. That text also
quotes the URL, which may hold a signature, so it appears in no error of headrace, nor as the cause of one.
"""

from __future__ import annotations

import re
import time
from dataclasses import dataclass
from datetime import UTC, datetime

from headrace.core.errors import HeadraceError, ObjectChangedError, ObjectNotFoundError, StorageError
from headrace.storage.locations import HTTP_SCHEMES
from headrace.storage.stores.access import SIGNATURE
from headrace.storage.stores.retries import CONNECTION, SERVER, SHORT, THROTTLED, TIMEOUT, GaveUp, PassingFailure

STATUS = re.compile(r"status code: (\d{3})")
STATUS_IN_DEBUG = re.compile(r"\bstatus: (\d{3})")
CODE = re.compile(r"<Code>\s*([A-Za-z0-9.]{1,80})\s*</Code>")
REGION = re.compile(
    r"<Region>\s*([a-z0-9-]{3,30})\s*</Region>|expecting '([a-z0-9-]{3,30})'|"
    r"<Endpoint>[^<]*s3[.-]((?:[a-z]+-)+\d)\.amazonaws"
)
KIND = re.compile(r"\bkind: (Connect|Timeout|TimedOut|Request|Interrupted|Decode|Body|Unknown)\b")

LISTING = "cannot list objects"
WRITING = "cannot write an object"
"""What requests do; see `RequestName.doing`."""

THROTTLING_STATUSES = {429, 503}
PASSING_STATUSES = {408, 500, 502, 504, 509, 599}
THROTTLING_CODES = {"SlowDown", "Throttling", "ThrottlingException", "RequestLimitExceeded", "ServerBusy"}
PASSING_CODES = {"InternalError", "RequestTimeout", "OperationTimedOut", "RequestTimeTooSkewed.Retry"}
EXPIRED_CODES = {"ExpiredToken", "ExpiredTokenException", "TokenRefreshRequired", "InvalidToken"}
KEY_CODES = {"SignatureDoesNotMatch", "InvalidAccessKeyId", "AuthenticationFailed"}
"""The keys themselves are wrong, whatever they are used for."""

REGION_CODES = {"PermanentRedirect", "AuthorizationHeaderMalformed", "IllegalLocationConstraintException"}
BUCKET_CODES = {"NoSuchBucket", "InvalidBucketName", "ContainerNotFound"}

RETRIES = re.compile(r"after (\d+) retries")
"""In obstore's text, where it made a request again."""

METADATA_SERVERS = (
    "169.254.169.254", "169.254.170.2", "/latest/api/token", "/latest/meta-data", "metadata.google.internal",
    "/computeMetadata/", "/metadata/identity",
)  # fmt: skip
"""Where credentials of a machine are asked for. Their failure means that there are none."""


REFUSING_STATUSES = {400, 401, 403, 404, 410}
"""With which stores refuse a signature that has expired."""

LASTING_WORDS = (
    "error following redirect",
    "certificate",
    "BadScheme",
    "builder error",
    "InvalidContentType",
    "InvalidCertificate",
)

PASSING_WORDS = (
    (("dns error",), CONNECTION, "the name of the server could not be resolved"),
    (("TimedOut", "operation timed out", "kind: Timeout"), TIMEOUT, "nothing came in time"),
    (("ConnectionRefused",), CONNECTION, "the server refused the connection"),
    (
        ("ConnectionReset", "Incomplete", "UnexpectedEof", "connection closed", "BrokenPipe"),
        CONNECTION,
        "the connection ended before the answer was complete",
    ),
    (("UnexpectedRange",), SHORT, "other bytes came than those that were asked for"),
)
"""Words of obstore's texts, which failure they mean, and how an error says it."""


@dataclass(frozen=True)
class RequestName:
    """A request as errors name it."""

    doing: str
    """In words, such as "cannot read an object"."""

    url: str
    """Of the object or folder, without secrets."""

    container: str
    scheme: str
    source: str
    """Where the credentials come from, in words."""

    endpoint: str
    """Where requests go; "" for the usual endpoint."""

    proxy: str = ""
    """What they go through, without its password; "" for none."""

    expiry: datetime | None = None
    """Until when the signature of the URL holds, where it says so."""

    @property
    def place(self) -> str:
        """The URL, and the endpoint where that is not the usual one."""
        if self.endpoint:
            return f"{self.url} at {self.endpoint}"
        return self.url


@dataclass(frozen=True)
class ErrorText:
    """What the text of an exception says."""

    status: int | None
    code: str | None
    region: str | None
    kind: str | None
    text: str

    @classmethod
    def of(cls, error: BaseException) -> ErrorText:
        """Reads an exception of obstore."""
        text = str(error)
        status = STATUS.search(text) or STATUS_IN_DEBUG.search(text)
        code = CODE.search(text)
        kind = KIND.search(text)
        region = REGION.search(text)
        return cls(
            status=int(status[1]) if status else None,
            code=code[1] if code else None,
            region=next((group for group in region.groups() if group), None) if region else None,
            kind=kind[1] if kind else None,
            text=text,
        )

    def says(self, *words: str) -> bool:
        """Tells whether one of these stands in the text."""
        return any(word in self.text for word in words)

    @property
    def shown(self) -> str:
        """Status and code, for an error."""
        words = []
        if self.status is not None:
            words.append(f"status {self.status}")
        if self.code is not None:
            words.append(self.code)
        return ", ".join(words) or "no status"


def passing_failure(error: Exception) -> PassingFailure | None:
    """Returns the failure that an exception means, if it may pass; None for one that stays."""
    answer = ErrorText.of(error)
    if answer.code in EXPIRED_CODES:
        return None

    if answer.status is not None:
        if answer.status in THROTTLING_STATUSES or answer.code in THROTTLING_CODES:
            return PassingFailure(THROTTLED, answer.shown)
        if answer.status in PASSING_STATUSES or answer.code in PASSING_CODES:
            return PassingFailure(SERVER, answer.shown)
        return None

    if answer.says(*LASTING_WORDS, *METADATA_SERVERS):
        return None

    for words, kind, what in PASSING_WORDS:
        if answer.says(*words):
            return PassingFailure(kind, what)

    if answer.kind is not None:
        return PassingFailure(CONNECTION, "the connection failed")
    return None


def limit_reached(error: Exception, began: float) -> GaveUp | None:
    """Returns what to raise where obstore has repeated a request up to the limit, and None for other errors.

    began: when, by `time.monotonic()`.
    """
    failure = passing_failure(error)
    retries = RETRIES.search(str(error))
    if failure is None or retries is None:
        return None
    return GaveUp(failure, int(retries[1]) + 1, time.monotonic() - began)


def error_after_retries(request: RequestName, gave_up: GaveUp) -> StorageError:
    """Returns the error for a request that failed until the limit."""
    failure = gave_up.failure
    times = "once"
    if gave_up.attempts > 1:
        times = f"{gave_up.attempts} times in {gave_up.seconds:.0f} s"

    fixes = {
        THROTTLED: "make fewer requests at once, or ask the owner of the store for a higher rate",
        SERVER: "try again later, or look at the state of the server",
        CONNECTION: "check endpoint, name and port, and that the server runs and can be reached from this machine",
        SHORT: "check what is between this machine and the store, such as a proxy",
        TIMEOUT: "check the network, or raise read_timeout and connect_timeout in options=",
    }
    found = failure.what
    fix = fixes[failure.kind]
    if request.proxy and failure.kind in (CONNECTION, TIMEOUT):
        found = f"through the proxy {request.proxy}: {found}"
        fix = (
            f"{fix}; check the proxy, which HTTPS_PROXY, HTTP_PROXY, ALL_PROXY and NO_PROXY in the environment or "
            "proxy_url in options= set"
        )

    return StorageError.about(
        request.doing,
        place=request.place,
        found=f"{found} ({failure.kind}); tried {times}",
        expected="a complete answer",
        fix=f"{fix}; max_retries and retry_timeout in options= set the limits",
    )


def lasting_error(request: RequestName, error: Exception) -> HeadraceError:
    """Returns the error for an exception that a retry does not help against."""
    answer = ErrorText.of(error)
    name = type(error).__name__
    if answer.says(*METADATA_SERVERS):
        return _no_credentials(request)

    is_redirect = answer.status == 301 or answer.says("redirect without LOCATION")
    if answer.code in REGION_CODES or (is_redirect and request.scheme not in HTTP_SCHEMES):
        return _wrong_region(request, answer)
    if request.expiry is not None and answer.status in REFUSING_STATUSES and request.expiry <= datetime.now(UTC):
        return RefusedError.about(
            request.doing,
            place=request.place,
            found=f"{answer.shown}: the signature of the URL has expired, at {request.expiry:%Y-%m-%d %H:%M:%S} UTC",
            expected="a signature that is still valid",
            fix="sign it again, and open the new URL: states and caches of the object fit it, too",
        )
    if answer.code in EXPIRED_CODES:
        return RefusedError.about(
            request.doing,
            place=request.place,
            found=f"{answer.shown}: the credentials have expired; they come from {request.source}",
            expected="credentials that are still valid",
            fix="log in again, or get new keys, and begin again",
        )

    if answer.code in BUCKET_CODES:
        return ObjectNotFoundError.about(
            request.doing,
            place=request.place,
            found=f"there is no bucket {request.container!r} ({answer.shown})",
            expected="a bucket that exists",
            fix="correct the name of the bucket, or the endpoint",
        )

    if answer.status == 412 or name in ("PreconditionError", "AlreadyExistsError"):
        return changed_error(request, "the store has another version by now")
    if name == "UnauthenticatedError" or answer.status in (401, 403):
        return _no_permission(request, answer)
    if isinstance(error, FileNotFoundError) or answer.status in (404, 410):
        return ObjectNotFoundError.about(
            request.doing,
            place=request.place,
            found=f"no such object ({answer.shown})",
            expected="an object of that key",
            fix="correct the key; upper and lower case matter",
        )

    return _other_error(request, answer, name)


def changed_error(request: RequestName, how: str) -> ObjectChangedError:
    """Returns the error for an object that is not the wanted version."""
    return ObjectChangedError.about(
        "an object changed while it was being read",
        place=request.place,
        found=how,
        expected="the version that the listing named",
        fix="open the data again to read the new version, and write data that are in use under new keys",
    )


def _other_error(request: RequestName, answer: ErrorText, name: str) -> StorageError:
    """Returns the error for what has no class of its own."""
    found = f"{answer.shown} ({name})"
    expected = "an answer with status 200 or 206"
    fix = "check endpoint, key and options="
    if answer.status == 416:
        found = "the object ends in front of the wanted bytes (status 416)"
        expected = "an object that is at least as long as its listing says"
        fix = "open the data again: the object may have been replaced by a shorter one"
    elif answer.says("certificate", "InvalidCertificate"):
        found = "the certificate of the server is not trusted"
        expected = "a certificate that this machine trusts, for the name of the server"
        fix = "give the certificate of its authority as root_certificate in options= (PEM)"
    elif answer.says("BadScheme", "builder error"):
        found = "an address that begins with http://, which is not encrypted"
        expected = "https://, or leave to go without"
        fix = "set AWS_ALLOW_HTTP=true, or allow_http in options="
    elif answer.says("InvalidContentType"):
        found = "the server does not speak TLS at this port"
        expected = "an https server"
        fix = "write http:// in the endpoint, or correct the port"
    elif answer.says("MissingContentLength", "Content-Length"):
        found = "an answer without the size of the object (Content-Length)"
        expected = "a server that says how large its files are"
        fix = "use another server, or copy the data to one that says the size"
    elif answer.says("parse path", "parsing Path", "empty path segment", "illegal character sequence"):
        found = "a key with an empty folder (//), a folder . or .., or a control character"
        expected = "a key that obstore can ask for"
        fix = "copy the object to another key"
    elif answer.says("RangeNotSupported", "NotPartial"):
        found = "the server sent the whole object, and not the range of bytes that was asked for"
        expected = "a server that answers range requests with status 206"
        fix = "use another server, or copy the data to one that serves ranges"
    elif answer.says("error following redirect"):
        found = "more than 10 redirects, one after the other, or one to an address that cannot be asked"
        expected = "a redirect that leads to the object"
        fix = "give the address to which the server redirects in the end"
    elif answer.says("redirect without LOCATION") or (answer.status is not None and 300 <= answer.status < 400):
        found = f"a redirect ({answer.shown}) without an address that can be asked"
        expected = "a redirect that leads to the object"
        fix = "give the address to which the server redirects"

    # Some servers answer in such a way for what is not there, with one that is about the request as a whole.
    is_redirect = answer.says("redirect without LOCATION", "error following redirect")
    if is_redirect or (answer.status is not None and answer.status not in (412, 416)):
        return RefusedError.about(request.doing, place=request.place, found=found, expected=expected, fix=fix)
    return StorageError.about(request.doing, place=request.place, found=found, expected=expected, fix=fix)


def _no_permission(request: RequestName, answer: ErrorText) -> StorageError:
    """Returns the error for credentials that do not suffice."""
    if request.doing == LISTING and answer.code not in KEY_CODES:
        return _no_listing(request, answer)

    fix = "give credentials that may do this, or correct the key pair"
    if request.source == SIGNATURE:
        fix = "sign it again, for this object and the method GET: a signature holds for one object, and for a time"
    elif request.source.startswith("none") and request.doing == WRITING:
        fix = "give credentials that may write there, as docs/howto/credentials.md tells"
    elif request.source.startswith("none"):
        fix = "give credentials, as docs/howto/credentials.md tells: the object is not public"

    return RefusedError.about(
        request.doing,
        place=request.place,
        found=f"no permission ({answer.shown}); the credentials come from: {request.source}",
        expected="credentials with the right to do this",
        fix=fix,
    )


class RefusedError(StorageError):
    """The server does not give the object. Many answer so for objects that are not there."""


class ListingRefusedError(StorageError):
    """The credentials do not suffice to list objects. They may suffice to read them."""


def _no_listing(request: RequestName, answer: ErrorText) -> StorageError:
    """Returns the error for a listing that is refused. Many may read objects that they may not list."""
    return ListingRefusedError.about(
        request.doing,
        place=request.place,
        found=f"no permission ({answer.shown}) to list; the credentials come from: {request.source}",
        expected="credentials with the right to list, or data that need no listing",
        fix="if the objects may be read, give the URL of one, a list of URLs, a range such as part-{000..127}.tar, or "
        "a folder that `headrace pack` has made; else give credentials that may list",
    )


def _no_credentials(request: RequestName) -> StorageError:
    """Returns the error for a store that was asked with no credentials at all."""
    fixes = {
        "s3": "set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY or AWS_PROFILE, or for public data "
        "AWS_SKIP_SIGNATURE=true",
        "gs": "set GOOGLE_APPLICATION_CREDENTIALS or run `gcloud auth application-default login`, or for public data "
        "GOOGLE_SKIP_SIGNATURE=true",
        "az": "set AZURE_STORAGE_ACCOUNT_KEY or AZURE_STORAGE_SAS_TOKEN, or for public data AZURE_SKIP_SIGNATURE=true",
    }
    return StorageError.about(
        request.doing,
        place=request.place,
        found="no credentials in options= or the environment, and this machine has no role that gives some",
        expected="credentials, or skip_signature for public data",
        fix=fixes.get(request.scheme, "give credentials in options="),
    )


def _wrong_region(request: RequestName, answer: ErrorText) -> StorageError:
    """Returns the error for a bucket that lies in another region."""
    fix = "set AWS_REGION, or region in options=, to the region of the bucket"
    expected = "requests to the region of the bucket; the server does not say which"
    if answer.region is not None:
        expected = f"requests to the region {answer.region}"
        fix = f"set AWS_REGION={answer.region}, or options={{'region': {answer.region!r}}}"

    return StorageError.about(
        request.doing,
        place=request.place,
        found=f"the bucket is in another region ({answer.shown})",
        expected=expected,
        fix=fix,
    )
