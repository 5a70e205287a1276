"""Errors of the Compute Engine API in one line with a hint."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator

from midstream.providers.google_errors import no_credentials
from midstream.providers.provider import ErrorKind, ProviderError
from midstream.providers.service_types import Message

ROLE = "roles/compute.instanceAdmin.v1"
_PERMISSION = re.compile(r"'([a-z]+(?:\.[A-Za-z]+)+)' permission(?: for '([^']+)')?")

# Codes of an operation's error. https://cloud.google.com/compute/docs/troubleshooting/troubleshooting-vm-creation
_CODES = {
    "ZONE_RESOURCE_POOL_EXHAUSTED": ErrorKind.STOCKOUT,
    "ZONE_RESOURCE_POOL_EXHAUSTED_WITH_DETAILS": ErrorKind.STOCKOUT,
    "RESOURCE_POOL_EXHAUSTED": ErrorKind.STOCKOUT,
    "STOCKOUT": ErrorKind.STOCKOUT,
    "QUOTA_EXCEEDED": ErrorKind.QUOTA,
    "RATE_LIMIT_EXCEEDED": ErrorKind.RATE,
    "PERMISSIONS_ERROR": ErrorKind.PERMISSION,
    "RESOURCE_NOT_FOUND": ErrorKind.NOT_FOUND,
    "RESOURCE_ALREADY_EXISTS": ErrorKind.EXISTS,
    "RESOURCE_NOT_READY": ErrorKind.BUSY,
    "RESOURCE_IN_USE_BY_ANOTHER_RESOURCE": ErrorKind.BUSY,
    "RESOURCE_OPERATION_RATE_EXCEEDED": ErrorKind.RATE,
    "INTERNAL_ERROR": ErrorKind.UNAVAILABLE,
    "BACKEND_ERROR": ErrorKind.UNAVAILABLE,
}
_HINTS = {
    ErrorKind.STOCKOUT: "flex_start: true waits for capacity; or another zone, or another machine_type",
    ErrorKind.QUOTA: "raise it (console: IAM & Admin, Quotas, compute.googleapis.com), or another zone",
    ErrorKind.RATE: "try again in a minute",
    ErrorKind.PERMISSION: f"{ROLE} on the project has it; docs/how-to/gcp-slices.md lists what each command needs",
    ErrorKind.CREDENTIALS: "gcloud auth application-default login renews them",
    ErrorKind.INVALID: "machine_type, topology, reservation and zone have to fit: docs/reference/fleet-file.md",
    ErrorKind.EXISTS: "midstream --status shows what is there",
    ErrorKind.UNAVAILABLE: "the service may be back in a while: try again",
}


@contextlib.contextmanager
def explained(what: str, project: str = "", zone: str = "") -> Iterator[None]:
    """Turn Google's errors into ProviderError.

    ``what`` begins the message: "pod cannot be created".
    """
    from google.api_core import exceptions
    from google.auth import exceptions as auth
    from requests.exceptions import RequestException

    try:
        yield
    except auth.DefaultCredentialsError as error:
        raise no_credentials(what) from error
    except auth.GoogleAuthError as error:
        passing = isinstance(error, auth.TransportError)
        kind = ErrorKind.UNAVAILABLE if passing else ErrorKind.CREDENTIALS
        raise ProviderError(f"{what}: Google credentials: {_line(error)}", _HINTS[kind], kind) from error
    except exceptions.GoogleAPICallError as error:
        raise translate(what, error, project, zone) from error
    except (exceptions.RetryError, RequestException) as error:
        why = type(error).__name__  # its text has addresses
        raise ProviderError(
            f"{what}: the service does not answer ({why})", _HINTS[ErrorKind.UNAVAILABLE], ErrorKind.UNAVAILABLE
        ) from error


def translate(what: str, error: Message, project: str, zone: str) -> ProviderError:
    """Translate a GoogleAPICallError by its status and its reasons."""
    message, where = _line(error), f"{project}/{zone}".strip("/")
    reasons = {
        str(problem.get("reason", "")) for problem in getattr(error, "errors", ()) or () if isinstance(problem, dict)
    }
    if "accessNotConfigured" in reasons:
        hint = f"gcloud services enable compute.googleapis.com --project={project}"
        return ProviderError(f"{what}: the Compute Engine API is not enabled in {project}", hint, ErrorKind.DISABLED)
    kind = _kind(int(error.code or 0), reasons)
    if kind == ErrorKind.PERMISSION and (named := _PERMISSION.search(message)):
        message = f"{named[1]} is missing on {named[2] or project}"
    if kind == ErrorKind.NOT_FOUND:
        return ProviderError(f"{what}: {message}", f"is there such a project and zone? {where}", kind)
    return ProviderError(f"{what}: {message}", _HINTS.get(kind, ""), kind)


def _kind(code: int, reasons: set[str]) -> ErrorKind:
    if reasons & {"quotaExceeded"}:
        return ErrorKind.QUOTA
    if code == 429 or reasons & {"rateLimitExceeded", "userRateLimitExceeded", "operationRateExceeded"}:
        return ErrorKind.RATE
    if reasons & {"resourceNotReady", "resourceInUseByAnotherResource"}:
        return ErrorKind.BUSY
    kinds = {
        401: ErrorKind.CREDENTIALS, 403: ErrorKind.PERMISSION, 404: ErrorKind.NOT_FOUND, 409: ErrorKind.EXISTS,
        412: ErrorKind.BUSY,
    }  # fmt: skip
    if code in kinds:
        return kinds[code]
    return ErrorKind.INVALID if 400 <= code < 500 and code != 408 else ErrorKind.UNAVAILABLE


def operation_error(operation: Message, project: str, zone: str) -> ProviderError | None:
    """Return the error that an operation ended with; None if it ended well."""
    problems = list(operation.error.errors) if "error" in operation else []
    if not problems and not operation.http_error_status_code:
        return None
    code = problems[0].code if problems else ""
    message = " ".join((problems[0].message if problems else operation.http_error_message).split())[:300]
    return coded_error(code, message, project, zone)


def coded_error(code: str, message: str, project: str, zone: str) -> ProviderError:
    """Translate the error code of an operation or of an instance.

    The instance is one that a group could not create.
    """
    kind = _CODES.get(code, ErrorKind.INVALID)
    begin = {
        ErrorKind.STOCKOUT: f"{project}/{zone} has no capacity now: ",
        ErrorKind.QUOTA: f"a quota of {project}/{zone} is used up: ",
    }.get(kind, "")
    return ProviderError(f"{begin}{message or code}", _HINTS.get(kind, ""), kind)


def _line(error: Exception) -> str:
    words = str(getattr(error, "message", None) or error)
    words = re.sub(
        r"^[A-Z]+ https?://\S+: ", "", words
    )  # Google's library puts the request's address before the message
    return " ".join(words.split())[:300] or type(error).__name__
