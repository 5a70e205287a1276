"""Google's refusals, in one line each: what was refused, by whom, and what mends it."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator
from typing import Any

from midstream.hosts.providers import interface
from midstream.hosts.providers.interface import ProviderError

_PERMISSION = re.compile(r"[Pp]ermission '?([a-z]+(?:\.[A-Za-z]+)+)'?(?: denied)?(?: on (?:resource )?'?([^\s']+)'?)?")
ROLE = "roles/tpu.admin"


@contextlib.contextmanager
def explained(what: str, project: str = "", zone: str = "") -> Iterator[None]:
    """Google's errors inside become ProviderError. ``what`` was asked for: "pod cannot be created"."""
    from google.api_core import exceptions
    from google.auth import exceptions as auth

    try:
        yield
    except auth.DefaultCredentialsError as error:
        raise ProviderError(
            f"{what}: there are no Google credentials here",
            "gcloud auth application-default login; or GOOGLE_APPLICATION_CREDENTIALS names a service account's file",
            interface.CREDENTIALS,
        ) from error
    except auth.GoogleAuthError as error:
        raise ProviderError(
            f"{what}: the Google credentials are not accepted: {_line(error)}",
            "gcloud auth application-default login renews them",
            interface.CREDENTIALS,
        ) from error
    except exceptions.GoogleAPICallError as error:
        raise translate(what, error, project, zone) from error
    except exceptions.RetryError as error:
        raise ProviderError(
            f"{what}: the service does not answer: {_line(error)}", "try again", interface.UNAVAILABLE
        ) from error


def translate(what: str, error: Any, project: str = "", zone: str = "") -> ProviderError:
    """A GoogleAPICallError in words."""
    from google.api_core import exceptions as google

    said, where = _line(error), f"{project}/{zone}".strip("/")
    lower = said.lower()
    if isinstance(error, google.Unauthenticated):
        return ProviderError(
            f"{what}: the credentials are not accepted: {said}",
            "gcloud auth application-default login renews them",
            interface.CREDENTIALS,
        )
    if "has not been used" in lower or "service_disabled" in lower or "is disabled" in lower:
        return ProviderError(
            f"{what}: the Cloud TPU API is not enabled in {project}",
            f"gcloud services enable tpu.googleapis.com --project={project}",
            interface.DISABLED,
        )
    if isinstance(error, google.Forbidden):  # PERMISSION_DENIED
        named = _PERMISSION.search(said)
        permission = named[1] if named else "a permission"
        resource = (named[2] if named else None) or (f"projects/{project}" if project else "the project")
        return ProviderError(
            f"{what}: {permission} is missing on {resource.rstrip('.')}",
            f"{ROLE} on the project has it; docs/gcp.md lists what each command needs",
            interface.PERMISSION,
        )
    if "quota" in lower and isinstance(error, (google.ResourceExhausted, google.TooManyRequests, google.Forbidden)):
        return ProviderError(
            f"{what}: a quota of {where} is used up: {said}",
            "raise it (console: IAM & Admin, Quotas, tpu.googleapis.com), or another zone or type",
            interface.QUOTA,
        )
    if "capacity" in lower or "stockout" in lower or isinstance(error, google.ResourceExhausted):
        return ProviderError(
            f"{what}: {where} has none to give now: {said}",
            "queued: true waits for one; or another zone, or another accelerator_type",
            interface.STOCKOUT,
        )
    if isinstance(error, google.NotFound):
        return ProviderError(f"{what}: {said}", f"is there such a project and zone? {where}", interface.ABSENT)
    if isinstance(error, (google.AlreadyExists, google.Conflict)):
        kind = interface.BUSY if isinstance(error, google.Aborted) else interface.EXISTS
        return ProviderError(f"{what}: {said}", "midstream --status shows what is there", kind)
    if isinstance(error, google.BadRequest):  # INVALID_ARGUMENT, FAILED_PRECONDITION, OUT_OF_RANGE
        hint = "accelerator_type, topology, runtime_version and zone have to go together: docs/gcp.md"
        return ProviderError(f"{what}: {said}", hint, interface.INVALID)
    if isinstance(error, google.Cancelled):
        return ProviderError(f"{what}: it was cancelled: {said}", "", interface.CANCELLED)
    return ProviderError(f"{what}: {said}", "the service may be back in a while: try again", interface.UNAVAILABLE)


def _line(error: Exception) -> str:
    words = getattr(error, "message", None) or str(error)
    return " ".join(str(words).split())[:300] or type(error).__name__
