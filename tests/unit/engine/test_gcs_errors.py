"""Errors of google-cloud-storage as messages with hints."""

from __future__ import annotations

import pytest
from google.api_core import exceptions

from midstream_engine.gcs_errors import (
    AccessDeniedError,
    GcsError,
    ObjectExistsError,
    split_url,
    translate_errors,
)

DOWNLOAD = "GET https://storage.googleapis.com/download/storage/v1/b/my-bucket/o/run?alt=media: "


@pytest.mark.parametrize(
    ("error", "kind", "message"),
    [
        (exceptions.NotFound(DOWNLOAD + "No such object: my-bucket/run"), FileNotFoundError, "gs://my-bucket/run"),
        (exceptions.NotFound(DOWNLOAD + "The specified bucket does not exist."), GcsError, "there is no bucket"),
        (exceptions.PreconditionFailed("conditionNotMet"), ObjectExistsError, "another object exists"),
        (exceptions.Forbidden("lacks storage.objects.get access"), AccessDeniedError, "lacks storage.objects.get"),
        (exceptions.ServiceUnavailable("try again"), GcsError, "try again"),
    ],
)
def test_gcs_errors_are_translated_by_kind(error: Exception, kind: type[Exception], message: str) -> None:
    with pytest.raises(kind, match=message) as caught, translate_errors("gs://my-bucket/run"):
        raise error
    assert type(caught.value) is kind


def test_gcs_url_is_split_into_bucket_and_prefix() -> None:
    assert split_url("gs://bucket/a/b/") == ("bucket", "a/b")
    with pytest.raises(GcsError, match="names no bucket"):
        split_url("https://bucket/a")
