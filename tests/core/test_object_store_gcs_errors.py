"""Errors of google-cloud-storage as messages with hints: the words of an answer decide nothing."""

from __future__ import annotations

import pytest
import requests
from google.api_core import exceptions
from google.auth import exceptions as auth

from midstream_core.object_store.errors import AccessDeniedError, BucketMissingError, ObjectExistsError, StoreError
from midstream_core.object_store.gcs_errors import is_transient, translate_errors
from midstream_core.object_store.urls import split_url

# The library puts the request's URL before the service's words.
DOWNLOAD = "GET https://storage.googleapis.com/download/storage/v1/b/my-bucket/o/the-specified-bucket-does-not-exist: "
URL = "gs://my-bucket/the bucket does not exist"


@pytest.mark.parametrize(
    ("error", "kind", "message"),
    [
        (exceptions.NotFound(DOWNLOAD + "No such object: my-bucket/run"), FileNotFoundError, URL),
        (exceptions.NotFound(DOWNLOAD + "The specified bucket does not exist."), FileNotFoundError, URL),
        (exceptions.PreconditionFailed("conditionNotMet"), ObjectExistsError, "another object exists"),
        (exceptions.Forbidden("lacks storage.objects.get access"), AccessDeniedError, "lacks storage.objects.get"),
        (exceptions.ServiceUnavailable("try again"), StoreError, "try again"),
    ],
)
def test_gcs_errors_are_translated_by_kind(error: Exception, kind: type[Exception], message: str) -> None:
    with pytest.raises(kind, match=message) as caught, translate_errors(URL):
        raise error
    assert type(caught.value) is kind


class Answer:
    """An answer of the metadata server, as google-auth passes it on."""

    def __init__(self, status: int) -> None:
        self.status = status


@pytest.mark.parametrize(
    ("error", "again"),
    [
        (auth.RefreshError(auth.TransportError("Compute Engine Metadata server unavailable")), True),
        (auth.RefreshError(auth.TransportError("Failed to retrieve", Answer(503))), True),
        (auth.RefreshError(auth.TransportError("Failed to retrieve", Answer(404))), False),
        (auth.RefreshError("invalid_grant: Token has been expired or revoked.", {}), False),
        (auth.RefreshError("server_error", {}, retryable=True), True),
        (auth.DefaultCredentialsError("none"), False),
        (exceptions.ServiceUnavailable("try again"), True),
        (exceptions.Forbidden("no"), False),
    ],
)
def test_gcs_renewal_without_an_answer_is_repeated(error: Exception, again: bool) -> None:
    assert is_transient(error) is again


def test_gcs_message_has_no_secret_of_an_upload() -> None:
    """The id of a resumable upload is as good as credentials, and requests puts it into its message."""
    upload = "http://127.0.0.1:1/upload/storage/v1/b/my-bucket/o?uploadType=resumable&upload_id=ADPycdt-1_2"
    with pytest.raises(StoreError, match=r"uploadType=resumable&upload_id=\.\.\. ") as caught, translate_errors(URL):
        requests.put(upload, data=b"", timeout=5)
    assert "ADPycdt" not in caught.value.with_hint()


def test_gcs_404_of_listing_is_about_the_bucket() -> None:
    with pytest.raises(BucketMissingError, match="there is no bucket my-bucket"), translate_errors(URL, of_bucket=True):
        raise exceptions.NotFound("No such object: my-bucket/run")


def test_gcs_names_of_buckets_are_not_searched_for_words() -> None:
    """A bucket may be named as what a message would say."""
    message = "me@x.org does not have storage.objects.get access to my-project-disabled/requester-pays/project-invalid."
    with (
        pytest.raises(AccessDeniedError, match=r"lacks storage\.objects\.get"),
        translate_errors("gs://my-project-disabled/a"),
    ):
        raise exceptions.Forbidden(message)


def test_bucket_url_is_split() -> None:
    assert split_url("gs://bucket/a/b/") == ("gs://", "bucket", "a/b")
    assert split_url("s3://bucket") == ("s3://", "bucket", "")
    for wrong in ("https://bucket/a", "gs://", "s3:bucket", "bucket/a"):
        with pytest.raises(StoreError, match="names no bucket"):
            split_url(wrong)
