"""URLs and errors of Google Cloud Storage, for the app, its programs on hosts, and the engine.

The source of this module is sent to hosts, as that of :mod:`midstream_engine.records` is: it runs on Python 3.8 and
needs the standard library alone until an error is translated.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator

SCHEME = "gs://"
LOGIN = "gcloud auth application-default login"
MESSAGE_LIMIT = 300  # characters of the service's own message


class GcsError(Exception):
    """A request to a bucket failed: one line, and a hint."""

    def __init__(self, message: str, hint: str = "") -> None:
        super().__init__(message)
        self.message, self.hint = message, hint

    def with_hint(self) -> str:
        """Return the message and the hint as one line."""
        return f"{self.message} (hint: {self.hint})" if self.hint else self.message


class ObjectExistsError(GcsError):
    """A precondition failed: the object exists, or has another generation."""


class AccessDeniedError(GcsError):
    """The service rejected the credentials or the account lacks a permission."""


def split_url(url: str) -> tuple[str, str]:
    """Return bucket and prefix of ``gs://bucket/a/b``, the prefix without slashes at its end.

    Raises:
        GcsError: ``url`` names no bucket.
    """
    bucket, _, prefix = url[len(SCHEME) :].partition("/")
    if not url.startswith(SCHEME) or not bucket:
        raise GcsError(f"{url!r} names no bucket", "write gs://BUCKET/PREFIX")
    return bucket, prefix.strip("/")


@contextlib.contextmanager
def translate_errors(url: str) -> Iterator[None]:
    """Raise errors of google-cloud-storage as the errors of this module.

    Args:
        url: URL of the bucket or object of the request; it begins every message.

    Raises:
        FileNotFoundError: The object does not exist; its bucket does.
        ObjectExistsError: A precondition failed.
        AccessDeniedError: The account may not do this.
        GcsError: Any other failure.
    """
    from google.api_core import exceptions
    from google.auth.exceptions import DefaultCredentialsError, GoogleAuthError
    from requests.exceptions import RequestException

    url = "".join(sign if sign.isprintable() else repr(sign)[1:-1] for sign in url)
    try:
        yield
    except exceptions.PreconditionFailed as error:
        raise ObjectExistsError(f"{url}: another object exists ({_one_line(error.message)})") from None
    except exceptions.NotFound as error:
        # A download's message has the request's URL, so that "bucket" alone may be a part of a name.
        if "bucket does not exist" in error.message.lower():
            raise _no_bucket(url) from None
        raise FileNotFoundError(url) from None
    except DefaultCredentialsError as error:
        raise AccessDeniedError(f"no credentials for gs://: {_one_line(error)}", LOGIN) from None
    except (GoogleAuthError, exceptions.Unauthorized) as error:
        raise AccessDeniedError(f"{url}: the credentials were rejected: {_one_line(error)}", LOGIN) from None
    except (exceptions.Forbidden, exceptions.BadRequest) as error:
        raise _rejected(url, error.message) from None
    except exceptions.RetryError as error:
        raise GcsError(
            f"{url}: the service is busy: {_one_line(error.cause or error)}", "run it again to continue"
        ) from None
    except (exceptions.GoogleAPIError, RequestException) as error:
        raise GcsError(f"{url}: {_one_line(error)}", "run it again to continue") from None


def _one_line(error: object) -> str:
    return " ".join(str(error).split())[:MESSAGE_LIMIT]


def _no_bucket(url: str) -> GcsError:
    return GcsError(
        f"there is no bucket {_bucket(url)}",
        "correct the name, or create it; gcloud storage buckets list --soft-deleted shows deleted buckets",
    )


def _bucket(url: str) -> str:
    return url[len(SCHEME) :].split("/")[0]


def _rejected(url: str, message: str) -> GcsError:
    """Return the error of an answer 400 or 403, with the permission or the project that is missing."""
    quoted = re.search(r'"message": *"([^"]+)"', message)  # a download's message is the complete answer
    bucket, line = _bucket(url), _one_line(quoted[1] if quoted else message)
    lower = line.lower()
    if "requester pays" in lower:
        return GcsError(f"bucket {bucket}: the requester pays, and no project is named", "name user_project")
    if "project" in lower and re.search(r"unknown|invalid|not found|has not been used|disabled|not exist", lower):
        return GcsError(f"bucket {bucket}: the project is wrong: {line}", "gcloud projects list shows them")
    if "serviceusage.services.use" in lower or "billing" in lower:
        hint = "the account needs serviceusage.services.use in the project that pays"
        return AccessDeniedError(f"bucket {bucket}: {line}", hint)
    permission = re.search(r"storage\.\w+(?:\.\w+)+", line)
    if permission:
        role = "roles/storage.legacyBucketReader" if "buckets" in permission[0] else "roles/storage.objectUser"
        return AccessDeniedError(
            f"bucket {bucket}: this account lacks {permission[0]}",
            f"gcloud storage buckets add-iam-policy-binding gs://{bucket} --member=... --role={role}",
        )
    return AccessDeniedError(f"{url}: {line}", "the account needs roles/storage.objectUser there")
