"""Checksums of objects as moto reports them: of the bytes, of parts, of an object that has none."""

from __future__ import annotations

import importlib
import os
import random
from collections.abc import Iterator
from typing import Any

import pytest

from midstream_core.object_store.access import Access
from midstream_core.object_store.open_bucket import open_bucket
from midstream_core.object_store.s3_checksums import checksum_of
from simulators.object_stores.public_services import moto
from simulators.planted_faults import garbled

BUCKET, PART = "my-bucket", 5 << 20
DATA = random.Random(1).randbytes(2 * PART + 100)


@pytest.fixture(scope="module")
def botocore() -> Iterator[Any]:
    """A client of botocore for moto."""
    pytest.importorskip("moto", reason="needs moto: make setup")
    with moto(BUCKET) as variables, pytest.MonkeyPatch.context() as patch:
        for name, value in variables.items():
            patch.setenv(name, value)
        client = importlib.import_module("botocore.session").Session().create_client("s3")
        yield client
        client.close()


def upload(client: Any, key: str, size: int, **settings: str) -> None:
    """Write an object in parts of ``size`` bytes."""
    named = {"Bucket": BUCKET, "Key": key}
    identity = client.create_multipart_upload(**named, **settings)["UploadId"]
    parts: list[dict[str, Any]] = []
    for number, start in enumerate(range(0, len(DATA), size), 1):
        part = {**named, "UploadId": identity, "PartNumber": number}
        parts.append(
            {"PartNumber": number, "ETag": client.upload_part(**part, Body=DATA[start : start + size])["ETag"]}
        )
    client.complete_multipart_upload(**named, UploadId=identity, MultipartUpload={"Parts": parts})


@pytest.mark.parametrize(
    ("kind", "algorithm", "part_size"),
    [
        ("ours", "sha256", 0),
        ("default", "crc32", 0),
        ("SHA256", "sha256", 0),
        ("SHA1", "sha1", 0),
        ("aws:kms", "crc32", 0),
        ("parts", "md5", PART),
    ],
)
def test_checksum_of_moto_is_that_of_the_bytes(
    botocore: Any, kind: str, algorithm: str, part_size: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AWS_ENDPOINT_URL_S3", botocore.meta.endpoint_url)
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.setenv(name, os.environ[name])
    client = open_bucket(f"s3://{BUCKET}", Access())
    key = kind.replace(":", "-")
    if kind == "ours":
        client.put(key, DATA)
    elif kind == "parts":
        upload(botocore, key, PART)
    else:
        more = {"ServerSideEncryption" if ":" in kind else "ChecksumAlgorithm": kind} if kind != "default" else {}
        botocore.put_object(Bucket=BUCKET, Key=key, Body=DATA, **more)
    found = client.entries()[key]
    print(
        botocore.head_object(Bucket=BUCKET, Key=key, PartNumber=1),
        botocore.head_object(Bucket=BUCKET, Key=key, ChecksumMode="ENABLED"),
    )
    checksum = client.checksum(found)
    assert checksum is not None
    assert (checksum.algorithm, checksum.part_size) == (algorithm, part_size)
    for data, same in ((DATA, True), (garbled(DATA), False), (DATA[:-1], False)):
        comparison = checksum.begin()
        for start in range(0, len(data), 3 << 20):
            comparison.update(data[start : start + (3 << 20)])
        assert comparison.matches() is same


HEAD = {"ContentLength": 100, "ETag": '"0123456789abcdef0123456789abcdef"'}
CRC = "Xg5djw=="


@pytest.mark.parametrize(
    ("answer", "expected"),
    [
        (HEAD, ("md5", 0, False)),
        ({**HEAD, "ServerSideEncryption": "AES256"}, ("md5", 0, False)),
        ({**HEAD, "ServerSideEncryption": "aws:kms"}, None),
        ({**HEAD, "SSECustomerAlgorithm": "AES256"}, None),
        ({**HEAD, "ETag": '"another"'}, None),
        ({**HEAD, "ETag": HEAD["ETag"][:-1] + '-3"'}, ("md5", 40, False)),
        ({**HEAD, "ETag": HEAD["ETag"][:-1] + '-4"'}, None),
        ({**HEAD, "ChecksumCRC32": CRC}, ("crc32", 0, True)),
        ({**HEAD, "ChecksumCRC32": "broken"}, ("md5", 0, False)),
        ({**HEAD, "ETag": HEAD["ETag"][:-1] + '-3"', "ChecksumCRC32": f"{CRC}-3"}, ("crc32", 40, True)),
        (
            {**HEAD, "ETag": HEAD["ETag"][:-1] + '-4"', "ChecksumCRC32": CRC, "ChecksumType": "FULL_OBJECT"},
            ("crc32", 0, True),
        ),
        ({**HEAD, "ETag": HEAD["ETag"][:-1] + '-4"', "ChecksumCRC32": CRC}, None),
        ({**HEAD, "Metadata": {"midstream-sha256": "ab" * 32}}, ("sha256", 0, True)),
        ({**HEAD, "Metadata": {"midstream-sha256": "ab"}}, ("md5", 0, False)),
    ],
)
def test_checksum_is_taken_only_if_its_meaning_is_known(answer: dict[str, Any], expected: Any) -> None:
    found = checksum_of(answer, lambda: 40)
    assert (found and (found.algorithm, found.part_size, found.certain)) == expected
