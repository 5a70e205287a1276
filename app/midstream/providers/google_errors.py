"""Translate errors of Google's APIs into one line with a hint."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator

from midstream.providers.provider import ErrorKind, ProviderError
from midstream.providers.service_types import Message

_PERMISSION = re.compile(r"[Pp]ermission '?([a-z]+(?:\.[A-Za-z]+)+)'?(?: denied)?(?: on (?:resource )?'?([^\s']+)'?)?")
# Limits on calls, which pass; other limits concern the requested resources.
_RATE = re.compile(r"per (minute|second)|per-(minute|second)|rate limit|ratelimit|requests per|slow down")
ROLE = "roles/tpu.admin"


@contextlib.contextmanager
def explained(what: str, project: str = "", zone: str = "") -> Iterator[None]:
    """Turn Google's errors into ProviderError.

    ``what`` begins the message: "pod cannot be created".
    """
    from google.api_core import exceptions
    from google.auth import exceptions as auth

    try:
        yield
    except auth.DefaultCredentialsError as error:
        raise no_credentials(what) from error
    except auth.GoogleAuthError as error:
        raise ProviderError(
            f"{what}: the Google credentials are not accepted: {_line(error)}",
            "gcloud auth application-default login renews them",
            ErrorKind.CREDENTIALS,
        ) from error
    except exceptions.GoogleAPICallError as error:
        raise translate(what, error, project, zone) from error
    except exceptions.RetryError as error:
        raise ProviderError(
            f"{what}: the service does not answer: {_line(error)}", "try again", ErrorKind.UNAVAILABLE
        ) from error


def no_credentials(what: str) -> ProviderError:
    """Return the error of a machine without Google credentials."""
    return ProviderError(
        f"{what}: there are no Google credentials here",
        "gcloud auth application-default login; or GOOGLE_APPLICATION_CREDENTIALS names a service account's file",
        ErrorKind.CREDENTIALS,
    )


def translate(what: str, error: Message, project: str = "", zone: str = "") -> ProviderError:
    """Translate a GoogleAPICallError."""
    from google.api_core import exceptions as google

    message, where = _line(error), f"{project}/{zone}".strip("/")
    lower = message.lower()
    if isinstance(error, google.Unauthorized):
        return ProviderError(
            f"{what}: the credentials are not accepted: {message}",
            "gcloud auth application-default login renews them",
            ErrorKind.CREDENTIALS,
        )
    if "has not been used" in lower or "service_disabled" in lower or "is disabled" in lower:
        return ProviderError(
            f"{what}: the Cloud TPU API is not enabled in {project}",
            f"gcloud services enable tpu.googleapis.com --project={project}",
            ErrorKind.DISABLED,
        )
    if isinstance(error, google.Forbidden) and "not found or access is unauthorized" in lower:
        # What the service answers for a zone that does not exist: its own words, because both readings are possible.
        hint = f"is there such a zone? gcloud compute tpus locations list --project={project}"
        return ProviderError(f"{what}: {message}", hint, ErrorKind.NOT_FOUND)
    named = _PERMISSION.search(message)
    if isinstance(error, google.Forbidden) and named is None and "quota" not in lower:
        hint = f"{ROLE} on the project may be missing; docs/how-to/gcp-slices.md lists what each command needs"
        return ProviderError(f"{what}: {message}", hint, ErrorKind.PERMISSION)
    if isinstance(error, google.Forbidden) and named is not None:  # PERMISSION_DENIED
        permission = named[1]
        resource = named[2] or (f"projects/{project}" if project else "the project")
        return ProviderError(
            f"{what}: {permission} is missing on {resource.rstrip('.')}",
            f"{ROLE} on the project has it; docs/how-to/gcp-slices.md lists what each command needs",
            ErrorKind.PERMISSION,
        )
    if isinstance(error, (google.ResourceExhausted, google.TooManyRequests)) and _RATE.search(lower):
        return ProviderError(f"{what}: too many requests: {message}", "try again in a minute", ErrorKind.RATE)
    if "quota" in lower and isinstance(error, (google.ResourceExhausted, google.TooManyRequests, google.Forbidden)):
        return ProviderError(
            f"{what}: a quota of {where} is used up: {message}",
            "raise it (console: IAM & Admin, Quotas, tpu.googleapis.com), or another zone or type",
            ErrorKind.QUOTA,
        )
    if "capacity" in lower or "stockout" in lower or isinstance(error, google.ResourceExhausted):
        return ProviderError(
            f"{what}: {where} has no capacity now: {message}",
            "queued: true waits for one; or another zone, or another accelerator_type",
            ErrorKind.STOCKOUT,
        )
    if isinstance(error, google.NotFound):
        return ProviderError(f"{what}: {message}", f"is there such a project and zone? {where}", ErrorKind.NOT_FOUND)
    if isinstance(error, (google.AlreadyExists, google.Conflict)):
        kind = ErrorKind.BUSY if isinstance(error, google.Aborted) else ErrorKind.EXISTS
        return ProviderError(f"{what}: {message}", "midstream --status shows what is there", kind)
    if isinstance(error, google.BadRequest):  # INVALID_ARGUMENT, FAILED_PRECONDITION, OUT_OF_RANGE
        hint = "accelerator_type, topology, runtime_version and zone have to fit together: docs/reference/fleet-file.md"
        return ProviderError(f"{what}: {message}", hint, ErrorKind.INVALID)
    if isinstance(error, google.Cancelled):
        return ProviderError(f"{what}: it was cancelled: {message}", "", ErrorKind.CANCELLED)
    return ProviderError(f"{what}: {message}", "the service may be back in a while: try again", ErrorKind.UNAVAILABLE)


def _line(error: Exception) -> str:
    words = getattr(error, "message", None) or str(error)
    return " ".join(str(words).split())[:300] or type(error).__name__
