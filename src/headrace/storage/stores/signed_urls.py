"""When the signature of a URL expires, as the stores that presign URLs write it into the query."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta
from urllib.parse import parse_qsl

DATE = re.compile(r"(?P<maker>x-[a-z]+)-date")
"""X-Amz-Date of S3, X-Goog-Date of Google; the seconds stand in X-Amz-Expires, X-Goog-Expires."""


def expiry_of(query: str) -> datetime | None:
    """Returns until when the signature in a query holds; None where that is not said."""
    values = {name.lower(): value for name, value in parse_qsl(query)}
    try:
        for name, value in values.items():
            match = DATE.fullmatch(name)
            if match is not None and f"{match['maker']}-expires" in values:
                begun = datetime.strptime(value, "%Y%m%dT%H%M%SZ").replace(tzinfo=UTC)
                return begun + timedelta(seconds=int(values[f"{match['maker']}-expires"]))

        if "expires" in values:
            # Seconds since 1970: S3 and Google as they signed before, and CloudFront.
            return datetime.fromtimestamp(int(values["expires"]), UTC)
        if "se" in values and "sig" in values:
            # Azure. A date without a time is none that tells the hour.
            end = datetime.fromisoformat(values["se"])
            return end if end.tzinfo is not None else None
    except (ValueError, OverflowError, OSError):
        return None
    return None
