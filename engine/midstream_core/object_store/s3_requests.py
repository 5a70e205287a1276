"""Requests to S3 services, repeated after transient failures.

Errors are those of this package.

Bodies are written with their SHA-256, which the service checks (``x-amz-checksum-sha256``); where it does not answer
with it, they are written with Content-MD5, which every service checks.
"""

from __future__ import annotations

import base64
import hashlib
import itertools
import threading
from collections.abc import Callable
from typing import Any, TypeVar

from midstream_core.object_store import s3_errors
from midstream_core.object_store.access import Access
from midstream_core.object_store.client_library import Answer, Client, ServiceError, library
from midstream_core.object_store.errors import AccessDeniedError, BusyError, StoreError, one_line
from midstream_core.object_store.object_checksum import NO_SECURITY
from midstream_core.object_store.retries import repeated
from midstream_core.object_store.s3_session import open_session, relevant_environment
from midstream_core.object_store.urls import joined, split_url

T = TypeVar("T")

_sessions, _latest = itertools.count(1), 0  # numbers of sessions; a client begins with the latest that was opened


class S3Requests:
    """Requests for objects below ``s3://bucket/prefix``."""

    def __init__(self, url: str, access: Access) -> None:
        self.url = url.rstrip("/")
        _, self.bucket, self.prefix = split_url(url)
        self._access, self._opened = access, _latest
        self.lock = threading.RLock()
        self.client, self._anonymous = open_session(access, relevant_environment(), _latest)
        self.failures = _failures()
        self._exists = False  # the bucket; known once any request has succeeded
        self.sends_md5 = False  # whether the service answers without the checksum, so that Content-MD5 is sent

    # ------------------------------------------------------------------------------------------------- requests

    def key(self, path: str) -> str:
        """Return the name of an object in the bucket."""
        return joined(self.prefix, path)

    def request(self, path: str, once: Callable[[Client], T], *, conditional: bool = False) -> T:
        """Send a request for ``path``; repeat transient failures and translate errors.

        Args:
            path: Path of the object; empty for the bucket.
            once: Sends the request with the client of botocore that it is given, and reads the body.
            conditional: Whether the request has a condition.
        """
        where = joined(self.url, path)
        client_error, others = self.failures

        def renewing() -> T:
            opened = self._opened
            try:
                return once(self.client)
            except client_error as error:
                worded = self._with_words(error)
                if s3_errors.fields(worded)[1] not in s3_errors.RENEWED:
                    raise worded from None
                self._renew(opened)  # credentials that ended in the middle, and that a file has again
                return once(self.client)

        try:
            result = repeated(renewing, self._is_transient)
        except client_error as error:
            error = self._with_words(error)
            translated = s3_errors.translated(error, where, self.bucket, conditional=conditional)
            if isinstance(translated, FileNotFoundError):
                self._check_bucket()
            if isinstance(translated, AccessDeniedError) and self._anonymous and self._access.public:
                text = f"{where}: not public, and there are no credentials here: {translated.message}"
                translated = AccessDeniedError(text, s3_errors.CREDENTIALS)
            raise translated from None
        except _unrenewed() as error:
            text = f"{where}: the credentials could not be renewed: {one_line(error)}"
            raise AccessDeniedError(text, s3_errors.CREDENTIALS) from None
        except others as error:
            raise BusyError(f"{where}: {one_line(error)}", s3_errors.AGAIN) from None
        except library("botocore.exceptions").BotoCoreError as error:
            raise StoreError(f"{where}: {one_line(error)}", "correct AWS's configuration") from None
        self._exists = True
        return result

    def _is_transient(self, error: Exception) -> bool:
        client_error, others = self.failures
        if isinstance(error, client_error):
            return s3_errors.is_transient(error)
        return isinstance(error, others)

    def _with_words(self, error: ServiceError) -> ServiceError:
        """Return the error of a listing instead of one of HEAD, which has no words."""
        client_error, others = self.failures
        status, code, _ = s3_errors.fields(error)
        if code.isdecimal() and status in (400, 401, 403):
            try:
                self._list_one()
            except client_error as worded:
                return worded
            except others:
                return error
        return error

    def _list_one(self) -> None:
        """Request a listing of one object; repeat transient failures.

        Raises botocore's errors.
        """
        repeated(lambda: self.client.list_objects_v2(Bucket=self.bucket, MaxKeys=1), self._is_transient)

    def _renew(self, opened: int) -> None:
        """Open the session again, once for all threads that saw the same one.

        Errors as of `open_session`; the next request tries it again.
        """
        global _latest
        with self.lock:
            if self._opened != opened:
                return
            number = next(_sessions)
            client, anonymous = open_session(self._access, relevant_environment(), number)
            if anonymous and not self._anonymous:  # their file is being written, for example
                raise AccessDeniedError(f"{self.url}: the credentials are no longer there", s3_errors.CREDENTIALS)
            self.client, self._anonymous, self._opened, _latest = client, anonymous, number, number

    def _check_bucket(self) -> None:
        """Raise BucketMissingError if the bucket does not exist.

        HEAD has the same answer for object and bucket. Raises BusyError if the service does not answer.
        """
        if self._exists:
            return
        client_error, others = self.failures
        try:
            self._list_one()
        except client_error as error:
            if s3_errors.fields(error)[1] == "NoSuchBucket":
                raise s3_errors.translated(error, self.url, self.bucket) from None
            return  # an account that may read objects need not be allowed to list them
        except others as error:
            raise BusyError(f"{self.url}: {one_line(error)}", s3_errors.AGAIN) from None
        self._exists = True

    def checked(self, path: str, operation: str, parameters: dict[str, Any], sha256: str) -> str:
        """Write a body with a checksum that the service checks; return its ETag."""
        conditional = "IfMatch" in parameters or "IfNoneMatch" in parameters
        parameters = {"Bucket": self.bucket, "ChecksumSHA256": _base64(bytes.fromhex(sha256)), **parameters}
        while True:
            if self.sends_md5:
                parameters["ContentMD5"] = _base64(hashlib.md5(parameters["Body"], **NO_SECURITY).digest())
            answer = self.request(
                path, lambda client: getattr(client, operation)(**parameters), conditional=conditional
            )
            if self.sends_md5 or answer.get("ChecksumSHA256") == parameters["ChecksumSHA256"]:
                return tag_of(answer)
            self.sends_md5 = True  # from now on
            if "IfNoneMatch" in parameters or "IfMatch" in parameters:
                parameters.pop("IfNoneMatch", None)
                parameters["IfMatch"] = f'"{tag_of(answer)}"'


def _failures() -> tuple[Any, tuple[type[Exception], ...]]:
    """Return botocore's error for an answer, and those for a connection that failed."""
    exceptions = library("botocore.exceptions")
    return exceptions.ClientError, (
        exceptions.HTTPClientError,
        exceptions.IncompleteReadError,
        exceptions.ResponseStreamingError,
        library("urllib3.exceptions").HTTPError,
        ConnectionError,
        TimeoutError,
        *_unrenewed(),
    )


def _unrenewed() -> tuple[type[Exception], ...]:
    """Return botocore's errors for credentials that were not renewed.

    Credentials of a role expire in the middle of a copy, and botocore requests new ones once, for a second.
    """
    exceptions = library("botocore.exceptions")
    return exceptions.CredentialRetrievalError, exceptions.MetadataRetrievalError


def tag_of(answer: Answer) -> str:
    """Return the ETag of an answer."""
    return str(answer["ETag"]).strip('"')


def _base64(data: bytes) -> str:
    return base64.b64encode(data).decode()
