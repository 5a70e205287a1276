"""Clients of buckets on services: our own simulators, moto (S3) and gcp-storage-emulator, which nobody here wrote."""

from __future__ import annotations

import hashlib
import random
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from midstream_core.object_store import s3_client
from midstream_core.object_store.access import Access
from midstream_core.object_store.bucket_client import ABSENT, BucketClient, has_bytes, hashed
from midstream_core.object_store.errors import BucketMissingError, ObjectExistsError
from midstream_core.object_store.open_bucket import open_bucket
from simulators.object_stores.bucket import bucket_server
from simulators.object_stores.public_services import gcs_emulator, moto
from simulators.object_stores.s3_server import s3_server

BUCKET, PREFIX = "my-bucket", "bucket/runs"  # names that contain the word "bucket"
PART = 5 << 20  # bytes; the smallest of an S3 upload
SERVICES = ("gcs simulator", "s3 simulator", "moto", "gcp-storage-emulator")
CONDITIONAL = SERVICES[:3]  # the emulator ignores preconditions


@contextmanager
def service(name: str) -> Iterator[dict[str, str]]:
    """Context with a running service; yields the environment of its clients."""
    with ExitStack() as stack:
        if name == "gcs simulator":
            yield stack.enter_context(bucket_server(BUCKET)).environment
        elif name == "s3 simulator":
            yield stack.enter_context(s3_server(BUCKET)).environment
        elif name == "moto":
            pytest.importorskip("moto", reason="needs moto: make setup")
            yield stack.enter_context(moto(BUCKET))
        else:
            pytest.importorskip("gcp_storage_emulator", reason="needs gcp-storage-emulator: make setup")
            yield stack.enter_context(gcs_emulator(BUCKET))


@pytest.fixture(scope="module", params=SERVICES)
def environment(request: pytest.FixtureRequest) -> Iterator[tuple[str, dict[str, str]]]:
    with service(request.param) as found:
        yield request.param, found


@pytest.fixture
def opened(
    environment: tuple[str, dict[str, str]], monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> Iterator[Callable[..., BucketClient]]:
    """Return a function that opens a client of a prefix of the test's own."""
    _, variables = environment
    for key, value in variables.items():
        monkeypatch.setenv(key, value)
    scheme = "s3" if "AWS_REGION" in variables else "gs"
    test = request.node.originalname

    def open_(bucket: str = BUCKET) -> BucketClient:
        return stack.enter_context(open_bucket(f"{scheme}://{bucket}/{PREFIX}/{test}", Access()))

    with ExitStack() as stack:
        yield open_


def test_objects_are_written_read_listed_deleted(opened: Callable[..., BucketClient]) -> None:
    client = opened()
    data = random.Random(1).randbytes(70_000)
    made = client.put("a/one", data, replaces=ABSENT)
    client.put("a/two", b"", replaces=ABSENT)
    client.put("b/ü%20 &+x", b"three")
    assert (made.size, made.sha256) == (len(data), hashlib.sha256(data).hexdigest())
    assert client.get("a/one") == (data, made.version)
    assert client.get("a/two")[0] == b""
    assert client.get("b/ü%20 &+x")[0] == b"three"
    assert client.read("a/one", 65_000, 100) == data[65_000:65_100]
    assert client.read("a/one", 69_990, 100) == data[69_990:]
    assert client.read("a/one", 70_000, 100) == b""
    listed = client.entries()
    assert {path: found.size for path, found in listed.items()} == {"a/one": 70_000, "a/two": 0, "b/ü%20 &+x": 5}
    assert listed["a/one"].version == made.version
    assert abs(listed["a/one"].updated - time.time()) < 3600
    assert client.entries("a/").keys() == {"a/one", "a/two"}
    assert client.folders() == ["a", "b"]
    looked = client.look("a/one")
    assert looked is not None
    assert has_bytes(looked, 70_000, hashed(data))
    client.delete("a/one")
    client.delete("a/one")
    assert client.look("a/one") is None
    assert client.entries().keys() == {"a/two", "b/ü%20 &+x"}


def test_missing_object_is_no_missing_bucket(opened: Callable[..., BucketClient]) -> None:
    """Bucket, prefix and object have the word in their names, and the client has sent no request before."""
    for request in (
        lambda client: client.get("no-bucket"),
        lambda client: client.read("the bucket does not exist", 0, 9),
    ):
        with pytest.raises(FileNotFoundError):
            request(opened())
    assert opened().look("no-bucket") is None
    assert opened().entries("bucket") == {}
    opened().delete("no-bucket")


def test_missing_bucket_is_named(opened: Callable[..., BucketClient]) -> None:
    for request in (
        lambda client: client.get("a"),
        lambda client: client.look("a"),
        lambda client: client.entries(),
        lambda client: client.probe(),
        lambda client: client.put("a", b"1"),
    ):
        with pytest.raises(BucketMissingError, match="there is no bucket other-bucket"):
            request(opened("other-bucket"))


def test_writes_on_condition_have_one_winner(
    opened: Callable[..., BucketClient], environment: tuple[str, dict[str, str]]
) -> None:
    if environment[0] not in CONDITIONAL:
        pytest.skip(f"{environment[0]} ignores preconditions")
    client = opened()
    assert client.has_conditions()
    barrier = threading.Barrier(8)

    def write(number: int) -> bool:
        barrier.wait(30)
        try:
            client.put("manifest", b"%d" % number, replaces=ABSENT)
        except ObjectExistsError:
            return False
        return True

    with ThreadPoolExecutor(8) as pool:
        won = list(pool.map(write, range(8)))
    data, version = client.get("manifest")
    assert won == [b"%d" % number == data for number in range(8)]
    client.put("manifest", b"second", replaces=version)
    with pytest.raises(ObjectExistsError):
        client.put("manifest", b"third", replaces=version)
    with pytest.raises(ObjectExistsError):
        client.put("deleted", b"third", replaces=version)
    assert client.get("manifest")[0] == b"second"
    client.put("manifest", b"whatever was there")
    assert client.get("manifest")[0] == b"whatever was there"
    assert client.entries().keys() == {"manifest"}, "the trial of conditions leaves nothing"


def test_service_without_conditions_is_found_out(
    opened: Callable[..., BucketClient], environment: tuple[str, dict[str, str]]
) -> None:
    client = opened()
    assert client.has_conditions() == (environment[0] in CONDITIONAL)
    assert client.entries() == {}, "the trial leaves nothing"
    made = client.put("object", b"first", replaces=ABSENT)
    with pytest.raises(ObjectExistsError):
        client.put("object", b"second", replaces=ABSENT)
    client.put("object", b"third", replaces=made.version)
    with pytest.raises(ObjectExistsError):
        client.put("object", b"fourth", replaces=made.version)
    assert client.get("object")[0] == b"third"


def test_parts_are_joined_by_the_service(opened: Callable[..., BucketClient]) -> None:
    client = opened()
    sizes = [PART, 100, PART, 7, 8, 9, 5]  # also some that are too small for a part of S3
    pieces = [random.Random(number).randbytes(size) for number, size in enumerate(sizes)]
    parts = [client.put(f".incoming/x/{number}", data, part=True) for number, data in enumerate(pieces)]
    complete = b"".join(pieces)
    client.put("joined", b"an older object")
    made = client.join("joined", parts, len(complete), hashed(complete), ".incoming/x/joined")
    assert client.get("joined") == (complete, made.version)
    assert client.entries().keys() == {"joined"}
    looked = client.look("joined")
    assert looked is not None
    assert looked.sha256 == hashed(complete)


def test_files_are_created_once(
    opened: Callable[..., BucketClient],
    environment: tuple[str, dict[str, str]],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(s3_client, "ONE_REQUEST", 1 << 20)  # the file is larger, so that it is sent in parts
    file = tmp_path / "file"
    file.write_bytes(random.Random(3).randbytes(17 << 20))
    client, sha256 = opened(), hashed(file.read_bytes())
    client.put_file("file", str(file), sha256)
    client.put_file("file", str(file), sha256)
    assert hashed(client.get("file")[0]) == sha256
    if environment[0] in CONDITIONAL:
        file.write_bytes(b"other")
        with pytest.raises(ObjectExistsError):
            client.put_file("file", str(file), hashed(b"other"))
        assert hashed(client.get("file")[0]) == sha256
