"""Errors of S3 services, by their structured fields: the status and ``Code``."""

from __future__ import annotations

from email.utils import parsedate_to_datetime
from time import time

from midstream_core.object_store.client_library import ServiceError
from midstream_core.object_store.errors import (
    AccessDeniedError,
    BucketMissingError,
    BusyError,
    ConditionsUnsupportedError,
    ObjectExistsError,
    StoreError,
    one_line,
)

AGAIN = "run it again to continue"
CREDENTIALS = "aws sts get-caller-identity shows whose credentials are used; AWS_PROFILE, or profile: of the store"

# https://docs.aws.amazon.com/AmazonS3/latest/API/ErrorResponses.html
TRANSIENT_STATUS = (408, 429, 500, 502, 503, 504)
TRANSIENT_CODES = (
    "InternalError", "OperationAborted", "ConditionalRequestConflict", "RequestTimeout", "ServiceUnavailable",
    "SlowDown", "Throttling", "ThrottlingException", "TooManyRequests", "TooManyRequestsException", 
    "RequestLimitExceeded",
    "BandwidthLimitExceeded", "IncompleteBody", "BadDigest", "XAmzContentChecksumMismatch", "XAmzContentSHA256Mismatch",
    "ClientDisconnected",
)  # fmt: skip
EXPIRED = ("ExpiredToken", "ExpiredTokenException", "RequestExpired", "TokenRefreshRequired", "InvalidToken")
UNKNOWN_KEY = "InvalidAccessKeyId"  # it was replaced by another, and deleted
RENEWED = (*EXPIRED, UNKNOWN_KEY, "400")  # an answer to HEAD has no words
REJECTED = (UNKNOWN_KEY, "SignatureDoesNotMatch", "AuthorizationHeaderMalformed", *EXPIRED)
SKEWED = "RequestTimeTooSkewed"
UNSUPPORTED = ("NotImplemented", "XNotImplemented")


def fields(error: ServiceError) -> tuple[int, str, str]:
    """Return status, code and message of a ``ClientError``."""
    answer = error.response
    status = int(answer.get("ResponseMetadata", {}).get("HTTPStatusCode") or 0)
    described = answer.get("Error", {})
    return status, str(described.get("Code", "")), str(described.get("Message", ""))


def is_transient(error: ServiceError) -> bool:
    """Return whether the same request is sent again after this ``ClientError``."""
    status, code, _ = fields(error)
    return status in TRANSIENT_STATUS or code in TRANSIENT_CODES


def translated(error: ServiceError, url: str, bucket: str, *, conditional: bool = False) -> Exception:
    """Return the error of this package for a ``ClientError``.

    Args:
        error: Of botocore.
        url: URL of the bucket or object of the request; it begins most messages.
        bucket: Name of the bucket.
        conditional: Whether the request had a condition.
    """
    status, code, message = fields(error)
    line = one_line(f"{code}: {message}" if message else code or f"HTTP {status}")
    if is_transient(error):
        return BusyError(f"{url}: the service is busy: {line}", AGAIN)
    if code == "NoSuchBucket":
        return BucketMissingError(f"there is no bucket {bucket}", "correct the name, endpoint or region, or create it")
    if status == 412 or code == "PreconditionFailed":
        return ObjectExistsError(f"{url}: another object exists ({line})")
    if status == 404:
        return FileNotFoundError(url)
    if conditional and (code in UNSUPPORTED or status == 501):
        return ConditionsUnsupportedError(f"{url}: the service has no conditional writes: {line}")
    if code == SKEWED:
        return AccessDeniedError(f"{url}: {line}{_skew(error)}", "set this machine's clock: timedatectl set-ntp true")
    if code in REJECTED or status == 401:
        return AccessDeniedError(f"{url}: the credentials were rejected: {line}", CREDENTIALS)
    if status == 403:
        needed = f"s3:GetObject, s3:PutObject, s3:DeleteObject there, s3:ListBucket on {bucket}"
        return AccessDeniedError(f"{url}: {line}", f"the account needs {needed}")
    if status in (301, 307) or code in ("PermanentRedirect", "IllegalLocationConstraintException"):
        return StoreError(f"{url}: {line}", "name the bucket's region: region: of the store, or AWS_REGION")
    return StoreError(f"{url}: {line}")


def _skew(error: ServiceError) -> str:
    """Return this machine's clock skew by the answer's Date; empty without one."""
    date = error.response.get("ResponseMetadata", {}).get("HTTPHeaders", {}).get("date", "")
    try:
        ahead = time() - parsedate_to_datetime(date).timestamp()
    except (TypeError, ValueError):
        return ""
    return f" (this clock is {abs(ahead):.0f} s {'ahead' if ahead > 0 else 'behind'})"
