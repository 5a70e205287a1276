"""Errors of requests to buckets. A missing object is a FileNotFoundError."""

from __future__ import annotations

import re

# Parameters of URLs that permit their reader to write or read: libraries put URLs into their messages.
_SECRETS = re.compile(
    r"\b(upload_id|[\w-]*signature|[\w-]*security-token|access_token|sig)=[^&\s'\"<>)]+", re.IGNORECASE
)
MESSAGE_LIMIT = 300  # characters of the service's own message


class StoreError(Exception):
    """A request to a bucket failed: one line, and a hint."""

    def __init__(self, message: str, hint: str = "") -> None:
        super().__init__(message)
        self.message, self.hint = message, hint

    def with_hint(self) -> str:
        """Return the message and the hint as one line."""
        return f"{self.message} (hint: {self.hint})" if self.hint else self.message


class ObjectExistsError(StoreError):
    """Failed condition of a write or read: the object exists or has another version."""


class BucketMissingError(StoreError):
    """There is no such bucket."""


class AccessDeniedError(StoreError):
    """The service rejected the credentials or the account lacks a permission."""


class BusyError(StoreError):
    """Transient failures (408, 429, 5xx, lost connections) that outlast all retries."""


class DamagedObjectError(StoreError):
    """Error of an object whose bytes had another hash than recorded at each read."""


class ConditionsUnsupportedError(StoreError):
    """The service rejects conditional writes."""


def one_line(text: object) -> str:
    """Return the words of a service as one printable, limited line without secrets."""
    line = _SECRETS.sub(r"\1=...", " ".join(str(text).split()))[:MESSAGE_LIMIT]
    return "".join(sign if sign.isprintable() else repr(sign)[1:-1] for sign in line)
