"""Errors of google-cloud-storage, by their status and the request's resource."""

from __future__ import annotations

import contextlib
import json
import re
from collections.abc import Generator

from midstream_core.json_types import JsonValue, object_or_empty, optional_list
from midstream_core.object_store.client_library import ServiceError, library
from midstream_core.object_store.errors import (
    AccessDeniedError,
    BucketMissingError,
    BusyError,
    DamagedObjectError,
    ObjectExistsError,
    StoreError,
    one_line,
)
from midstream_core.object_store.urls import split_url

LOGIN = "gcloud auth application-default login"
AGAIN = "run it again to continue"


@contextlib.contextmanager
def translate_errors(url: str, *, of_bucket: bool = False) -> Generator[None, None, None]:
    """Raise errors of google-cloud-storage as the errors of this package.

    Args:
        url: URL of the bucket or object of the request; it begins every message.
        of_bucket: Whether the request names no object that has to exist (a listing, an upload), so that 404 is about
            the bucket. The words of an answer decide nothing: they have the names of buckets and objects.

    Raises:
        FileNotFoundError: The object does not exist, or its bucket.
        BucketMissingError: The bucket does not exist.
        ObjectExistsError: A precondition failed.
        AccessDeniedError: The account may not do this.
        BusyError: The service failed for longer than requests are repeated.
        DamagedObjectError: The bytes do not have the checksum that the service reports.
        StoreError: Any other failure.
    """
    from google.api_core import exceptions
    from google.auth.exceptions import DefaultCredentialsError, GoogleAuthError
    from requests.exceptions import RequestException

    storage_exceptions = library("google.cloud.storage.exceptions")

    url = "".join(sign if sign.isprintable() else repr(sign)[1:-1] for sign in url)
    try:
        yield
    except exceptions.PreconditionFailed as error:
        raise ObjectExistsError(f"{url}: another object exists ({one_line(_words(error))})") from None
    except exceptions.NotFound:
        if of_bucket:
            raise no_bucket(url) from None
        raise FileNotFoundError(url) from None
    except DefaultCredentialsError as error:
        raise AccessDeniedError(f"no credentials for gs://: {one_line(error)}", LOGIN) from None
    except (GoogleAuthError, exceptions.Unauthorized) as error:
        raise AccessDeniedError(f"{url}: the credentials were rejected: {one_line(error)}", LOGIN) from None
    except (exceptions.Forbidden, exceptions.BadRequest) as error:
        raise _rejected(url, error) from None
    except exceptions.RetryError as error:
        raise BusyError(f"{url}: the service is busy: {one_line(_words(error.cause or error))}", AGAIN) from None
    except storage_exceptions.DataCorruption as error:
        raise DamagedObjectError(f"{url}: {one_line(error)}", AGAIN) from None
    except (exceptions.GoogleAPIError, RequestException, storage_exceptions.InvalidResponse, ConnectionError) as error:
        raise StoreError(f"{url}: {one_line(_words(error))}", AGAIN) from None


def is_transient(error: ServiceError) -> bool:
    """Return whether a request is sent again after this error.

    Transient are 408, 429, 5xx and lost connections, also of the server that renews the credentials: a token expires in
    the middle of a long copy, and google-auth stops after a few seconds without an answer.
    """
    from google.auth import exceptions
    from google.auth.transport import DEFAULT_RETRYABLE_STATUS_CODES

    if library("google.cloud.storage.retry").DEFAULT_RETRY._predicate(error):  # noqa: SLF001
        return True
    if not isinstance(error, exceptions.GoogleAuthError):
        return False
    if getattr(error, "retryable", False):
        return True
    if isinstance(error, exceptions.RefreshError) and error.args and isinstance(error.args[0], Exception):
        error = error.args[0]  # that of the machine's metadata server
    if not isinstance(error, exceptions.TransportError):
        return False
    answer = error.args[1] if len(error.args) > 1 else None  # a refusal, such as 404 of a machine without an account
    return answer is None or getattr(answer, "status", 0) in DEFAULT_RETRYABLE_STATUS_CODES


def no_bucket(url: str) -> BucketMissingError:
    """Return the error for a bucket that does not exist."""
    return BucketMissingError(
        f"there is no bucket {_bucket(url)}",
        "correct the name, or create it; gcloud storage buckets list --soft-deleted shows deleted buckets",
    )


def _bucket(url: str) -> str:
    return split_url(url)[1]


def _answer(error: ServiceError) -> dict[str, JsonValue]:
    """Return the field ``error`` of the service's answer, or nothing.

    A download's error has the field in its text.
    """
    response = getattr(error, "response", None)
    text = str(getattr(error, "message", error))
    with contextlib.suppress(AttributeError, RuntimeError):  # a body that was streamed is not there any more
        text = response.text or text  # pyright: ignore[reportOptionalMemberAccess]
    start = text.find("{")
    try:
        value: JsonValue = json.JSONDecoder().raw_decode(text[start:])[0] if start >= 0 else {}
    except ValueError:
        return {}
    return object_or_empty(object_or_empty(value).get("error"))


def _words(error: ServiceError) -> str:
    """Return the service's own message."""
    return str(_answer(error).get("message") or getattr(error, "message", error))


def _reason(error: ServiceError) -> str:
    """Return the first field ``reason`` in an answer's errors or newer ``details``."""
    answer = _answer(error)
    entries: list[JsonValue] = [*(getattr(error, "errors", None) or ()), *(getattr(error, "details", None) or ())]
    entries += [*optional_list(answer.get("errors")), *optional_list(answer.get("details"))]
    for entry in map(object_or_empty, entries):
        if entry.get("reason"):
            return str(entry["reason"])
    return ""


# ``reason`` -> what is wrong. https://cloud.google.com/storage/docs/json_api/v1/status-codes
PROJECT = ("projectNotFound", "invalidProject", "accessNotConfigured", "SERVICE_DISABLED", "USER_PROJECT_DENIED")
PAYING = ("userProjectMissing", "requesterPays", "USER_PROJECT_MISSING")
BILLING = ("userProjectAccountProblem", "accountDisabled", "billingNotEnabled", "BILLING_DISABLED")


def _rejected(url: str, error: ServiceError) -> StoreError:
    """Return the error of an answer 400 or 403: a missing permission or project."""
    bucket, line, reason = _bucket(url), one_line(_words(error)), _reason(error)
    pays = StoreError(f"bucket {bucket}: the requester pays, and no project is named", "name user_project")
    billing = AccessDeniedError(
        f"bucket {bucket}: {line}", "the account needs serviceusage.services.use in the project that pays"
    )
    project = StoreError(f"bucket {bucket}: the project is wrong: {line}", "gcloud projects list shows them")
    for reasons, pattern in ((PAYING, pays), (BILLING, billing), (PROJECT, project)):
        if reason in reasons:
            return pattern
    # Without a reason the service's sentence chooses the hint. Names of buckets and objects may be in it.
    permission = re.search(r"\b(?:lacks|have|permission) '?(storage\.\w+(?:\.\w+)+)", line)
    if permission:
        role = "roles/storage.legacyBucketReader" if "buckets" in permission[1] else "roles/storage.objectUser"
        return AccessDeniedError(
            f"bucket {bucket}: this account lacks {permission[1]}",
            f"gcloud storage buckets add-iam-policy-binding gs://{bucket} --member=... --role={role}",
        )
    said = line.lower()
    if said.startswith("bucket is a requester pays bucket"):
        return pays
    if "serviceusage.services.use" in said:
        return billing
    if re.match(r"(?:user )?project\b.*\b(?:unknown|invalid|not found|has not been used|disabled)\b", said):
        return project
    if type(error).__name__ == "BadRequest":
        return StoreError(f"{url}: {line}")
    return AccessDeniedError(f"{url}: {line}", "the account needs roles/storage.objectUser there")
