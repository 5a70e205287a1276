"""Faults of services: what is repeated, what is one line, what is not promised."""

from __future__ import annotations

import contextlib
import random
from collections.abc import Iterator

import pytest

from midstream_core.object_store import gcs_client, retries, s3_session
from midstream_core.object_store.access import Access
from midstream_core.object_store.bucket_client import ABSENT, BLOCK, BucketClient
from midstream_core.object_store.errors import BusyError, DamagedObjectError, ObjectExistsError, StoreError
from midstream_core.object_store.open_bucket import open_bucket
from simulators.object_stores.bucket import BucketServer, bucket_server
from simulators.object_stores.object_service import ObjectHandler
from simulators.object_stores.s3_server import S3Server, s3_server
from simulators.planted_faults import Fault

DATA = random.Random(5).randbytes(3_000_000)


@pytest.fixture(scope="module", params=["gs", "s3"])
def running(request: pytest.FixtureRequest) -> Iterator[BucketServer | S3Server]:
    with bucket_server("runs") if request.param == "gs" else s3_server("runs") as server:
        yield server


@pytest.fixture
def server(running: BucketServer | S3Server, monkeypatch: pytest.MonkeyPatch) -> BucketServer | S3Server:
    running.faults.clear()
    running.buckets["runs"].clear()
    for name, value in running.environment.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(retries, "FIRST_PAUSE", 0.01)
    return running


@pytest.fixture
def client(server: BucketServer | S3Server) -> Iterator[BucketClient]:
    scheme = "s3" if isinstance(server, S3Server) else "gs"
    with open_bucket(f"{scheme}://runs/p", Access()) as opened:
        yield opened


@pytest.mark.parametrize("kind", [408, 429, 500, 502, 503, 504, "drop", "truncate", "garble"])
def test_transient_failure_of_a_read_is_repeated(
    server: BucketServer | S3Server, client: BucketClient, kind: int | str
) -> None:
    client.put("object", DATA)
    server.faults.append(Fault("GET", "object", kind, times=2))
    assert client.get("object")[0] == DATA
    assert server.faults[0].times == 0
    if kind != "garble":  # a range has no hash of its own
        server.faults.append(Fault("GET", "object", kind, times=2))
        assert client.read("object", 1000, 2_000_000) == DATA[1000:2_001_000]
        assert server.faults[1].times == 0


@pytest.mark.parametrize("kind", [503, "drop"])
def test_check_for_the_bucket_is_repeated(
    server: BucketServer | S3Server, client: BucketClient, kind: int | str
) -> None:
    """S3 gives the same answer for an object and a bucket that do not exist: a listing shows which it is."""
    server.faults.append(Fault("GET", "list-type", kind, times=2))
    with pytest.raises(FileNotFoundError):
        client.get("absent")
    assert server.faults[0].times == (0 if isinstance(server, S3Server) else 2)
    server.faults[:] = [Fault("GET", "list-type", "drop", times=99)]
    if isinstance(server, S3Server):
        with pytest.MonkeyPatch.context() as patched, open_bucket("s3://runs/other", Access()) as other:
            patched.setattr(retries, "RETRY_TIMEOUT", 0.0)
            with pytest.raises(BusyError, match="s3://runs/other"):
                other.get("absent")


def test_rest_of_a_broken_body_is_read_by_range(server: BucketServer | S3Server, client: BucketClient) -> None:
    client.put("object", DATA)
    server.ranges.clear()
    server.faults.append(Fault("GET", "object", "truncate"))
    assert client.read("object", 0, 3_000_000) == DATA
    assert server.ranges == ["bytes=0-2999999", "bytes=1500000-2999999"]


@pytest.mark.parametrize("room", [BLOCK, 1000, 2_900_000])
def test_blocks_arrive_once_in_order_despite_faults(
    server: BucketServer | S3Server, client: BucketClient, room: int
) -> None:
    """Also where the memory has no room for all of them, and where it has."""
    client.put("object", DATA)
    for fault in ("truncate", 503, "truncate", "drop"):
        server.faults.append(Fault("GET", "object", fault))
    memory, found = bytearray(room), bytearray()
    with memoryview(memory) as view:
        count = client.read_blocks("object", 100_000, 2_900_000, view, lambda block: found.extend(block))
    assert (count, bytes(found)) == (2_900_000, DATA[100_000:])
    assert room < 2_900_000 or memory == found
    assert not any(fault.times for fault in server.faults)


def test_error_of_the_one_who_takes_blocks_is_not_repeated(client: BucketClient) -> None:
    """A disk may report what a connection reports, too."""
    client.put("object", DATA)
    calls: list[int] = []

    def take(block: memoryview) -> None:
        calls.append(len(block))
        raise TimeoutError("the disk")

    with memoryview(bytearray(BLOCK)) as view, pytest.raises(TimeoutError, match="the disk"):
        client.read_blocks("object", 0, len(DATA), view, take)
    assert calls == [BLOCK]
    assert client.get("object")[0] == DATA


def test_rest_of_a_body_is_of_no_other_object(server: BucketServer | S3Server, client: BucketClient) -> None:
    client.put("object", DATA)
    server.faults.append(Fault("GET", "object", "truncate"))
    found = bytearray()

    def take(block: memoryview) -> None:
        if not found:
            server.put("runs", "p/object", DATA[::-1])
        found.extend(block)

    with memoryview(bytearray(BLOCK)) as view, pytest.raises(ObjectExistsError, match="object"):
        client.read_blocks("object", 0, len(DATA), view, take)
    assert found == DATA[: len(DATA) // 2]


def test_range_that_ends_after_the_object_is_shorter(client: BucketClient) -> None:
    client.put("object", DATA)
    assert client.read("object", 2_999_990, 50) == DATA[-10:]
    assert client.read("object", 3_000_000, 50) == b""
    with pytest.raises(FileNotFoundError):
        client.read("absent", 0, 50)


def test_answer_without_a_range_is_refused(client: BucketClient, monkeypatch: pytest.MonkeyPatch) -> None:
    """Bytes from the object's begin are not those that were requested."""
    monkeypatch.setattr(ObjectHandler, "byte_range", lambda self, total: None)
    client.put("object", DATA)
    assert client.read("object", 0, 100) == DATA[:100]
    with pytest.raises(StoreError, match="the complete object, not with a range"):
        client.read("object", 1000, 100)
    assert client.get("object")[0] == DATA


@pytest.mark.parametrize("kind", [408, 429, 503, "drop", "close"])
def test_transient_failure_of_a_write_is_repeated(
    server: BucketServer | S3Server, client: BucketClient, kind: int | str
) -> None:
    """Also on the condition that the object is absent, if the answer to a request that had its effect was lost."""
    assert client.has_conditions()
    server.faults.append(Fault("PUT" if isinstance(server, S3Server) else "POST", "object|uploadType", kind, times=1))
    client.put("object", DATA, replaces=ABSENT)
    assert server.faults[0].times == 0
    assert client.get("object")[0] == DATA


def test_object_is_damaged_only_after_several_reads(server: BucketServer | S3Server, client: BucketClient) -> None:
    client.put("object", DATA)
    server.faults.append(Fault("GET", "object", "garble", times=99))
    with pytest.raises(DamagedObjectError) as caught:
        client.get("object")
    assert server.faults[0].times == 96
    assert "\n" not in caught.value.with_hint()


def test_service_that_stays_busy_is_one_line(
    server: BucketServer | S3Server, client: BucketClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    client.put("object", DATA)
    monkeypatch.setattr(retries, "RETRY_TIMEOUT", 0.3)
    server.faults.append(
        Fault("GET", "object", 503, times=9999, message="Please reduce your\nrequest rate", code="SlowDown")
    )
    with pytest.raises(BusyError) as caught:
        client.get("object")
    assert "the service is busy" in caught.value.message
    assert "Please reduce your request rate" in caught.value.message
    assert "run it again" in caught.value.hint


@pytest.mark.parametrize(("status", "code"), [(403, "AccessDenied"), (400, "InvalidRequest"), (501, "NotImplemented")])
def test_permanent_failure_is_one_line_with_the_words(
    server: BucketServer | S3Server, client: BucketClient, status: int, code: str
) -> None:
    server.faults.append(Fault("GET", "object", status, times=1, message="the words\nof the service", code=code))
    with pytest.raises(StoreError) as caught:
        client.get("object")
    assert "the words of the service" in caught.value.message
    assert "\n" not in caught.value.with_hint()
    assert caught.value.message.startswith((client.url, "bucket runs"))


def test_rival_writer_is_no_success(server: BucketServer | S3Server, client: BucketClient) -> None:
    """412 although nothing is there: a rival has written and deleted, or another condition failed."""
    assert client.has_conditions()
    server.faults.append(Fault("PUT" if isinstance(server, S3Server) else "POST", "object|uploadType", 412))
    with pytest.raises(ObjectExistsError):
        client.put("object", DATA, replaces=ABSENT)
    client.put("object", b"the rival's", replaces=ABSENT)
    with pytest.raises(ObjectExistsError):
        client.put("object", DATA, replaces=ABSENT)
    assert client.get("object")[0] == b"the rival's"


def test_hung_connection_is_given_up(server: BucketServer | S3Server, monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (gcs_client, s3_session):
        monkeypatch.setattr(module, "REQUEST_TIMEOUT", 0.5)
    scheme = "s3" if isinstance(server, S3Server) else "gs"
    with open_bucket(f"{scheme}://runs/p", Access(region="us-east-2")) as client:  # not the session of another test
        client.put("object", DATA)
        server.faults.append(Fault("GET", "object", "hang"))
        assert client.get("object")[0] == DATA
        assert server.faults[0].times == 0


def test_listing_has_all_pages(server: BucketServer | S3Server, client: BucketClient) -> None:
    for number in range(2003):
        server.put("runs", f"p/many/{number:04d}", b"x")
    assert len(client.entries("many/")) == 2003
    assert client.folders() == ["many"]


@pytest.mark.parametrize("running", ["gs"], indirect=True)
def test_gcs_conditions_are_tried_without_an_object(server: BucketServer, client: BucketClient) -> None:
    server.faults.append(Fault("DELETE", "/o/", 403, times=99))
    assert client.has_conditions()
    assert server.blobs("runs") == {}


@pytest.mark.parametrize("running", ["gs"], indirect=True)
@pytest.mark.parametrize("status", [401, 404, 429, 503])
def test_gcs_refusal_leaves_no_open_connection(server: BucketServer, client: BucketClient, status: int) -> None:
    """Google's packages drop a streamed refusal unread, with its connection."""
    client.put("object", DATA)
    before = server.connections()
    server.faults.append(Fault("GET", "alt=media", status))
    with contextlib.suppress(StoreError, FileNotFoundError):  # some are repeated
        client.get("object")
    server.faults.append(Fault("GET", "alt=media", status))
    with contextlib.suppress(StoreError, FileNotFoundError):
        client.read("object", 5, 1000)
    assert not any(fault.times for fault in server.faults)
    assert client.read("object", 5, 1000) == DATA[5:1005]
    assert server.connections() <= before
    server.faults.clear()
