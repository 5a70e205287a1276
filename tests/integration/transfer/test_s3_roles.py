"""Requests to S3 with the role of a machine or of a container, by AWS's metadata service."""

from __future__ import annotations

import datetime
from collections.abc import Iterator

import pytest

from midstream_core.object_store.access import Access
from midstream_core.object_store.errors import AccessDeniedError
from midstream_core.object_store.open_bucket import open_bucket
from midstream_core.object_store.s3_client import S3Client
from simulators.cloud_metadata import AwsMetadata, role_credentials
from simulators.object_stores.s3_server import S3Server

KEYS = ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN", "AWS_EC2_METADATA_DISABLED")


@pytest.fixture
def s3(s3: S3Server, monkeypatch: pytest.MonkeyPatch) -> S3Server:
    """A service of which this machine has no keys."""
    for name in KEYS:
        monkeypatch.delenv(name, raising=False)
    return s3


@pytest.fixture
def metadata(monkeypatch: pytest.MonkeyPatch) -> Iterator[AwsMetadata]:
    with AwsMetadata() as server:
        monkeypatch.setenv("AWS_EC2_METADATA_SERVICE_ENDPOINT", server.url)
        yield server


def test_machine_uses_its_role_and_reads_it_again(s3: S3Server, metadata: AwsMetadata) -> None:
    metadata.role = role_credentials("of-the-machine", "first")
    s3.admits = {"of-the-machine": "first"}
    client = open_bucket("s3://runs/p", Access(region="role-a"))
    client.put("object", b"data")
    metadata.role = role_credentials("of-the-machine", "second")
    s3.admits = {"of-the-machine": "second"}
    assert client.get("object")[0] == b"data"


def test_role_is_read_again_until_its_service_answers(s3: S3Server, metadata: AwsMetadata) -> None:
    metadata.role = role_credentials("of-the-machine", "first")
    s3.admits = {"of-the-machine": "first"}
    client = S3Client("s3://runs/p", Access(region="role-d"))
    client.put("object", b"data")
    expired = client.client._request_signer._credentials
    expired._expiry_time = datetime.datetime.now(datetime.UTC)
    metadata.role = role_credentials("of-the-machine", "second")
    s3.admits, metadata.failing = {"of-the-machine": "second"}, 2
    assert client.get("object")[0] == b"data"
    assert metadata.failing == 0


def test_container_uses_its_role_before_that_of_the_machine(
    s3: S3Server, metadata: AwsMetadata, monkeypatch: pytest.MonkeyPatch
) -> None:
    metadata.role = role_credentials("of-the-machine", "m")
    metadata.container = role_credentials("of-the-container", "c")
    monkeypatch.setenv("AWS_CONTAINER_CREDENTIALS_FULL_URI", f"{metadata.url}/container")
    monkeypatch.setenv("AWS_CONTAINER_AUTHORIZATION_TOKEN", metadata.authorization)
    s3.admits = {"of-the-container": "c"}
    client = open_bucket("s3://runs/p", Access(region="role-b"))
    client.put("object", b"data")
    assert client.get("object")[0] == b"data"


def test_machine_without_a_role_is_one_line(s3: S3Server, metadata: AwsMetadata) -> None:
    with pytest.raises(AccessDeniedError, match="neither environment, files nor a role of this machine") as caught:
        open_bucket("s3://runs/p", Access(region="role-c"))
    assert "\n" not in caught.value.with_hint()
    assert metadata.tokens
