"""Faults of services: what is repeated, what is one line, what is not promised."""

from __future__ import annotations

import hashlib
import random
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from midstream_engine.object_store import retries
from midstream_engine.object_store.access import Access
from midstream_engine.object_store.bucket_client import ABSENT, BLOCK, BucketClient, hashed
from midstream_engine.object_store.errors import (
    AccessDeniedError,
    BusyError,
    DamagedObjectError,
    ObjectExistsError,
    StoreError,
)
from midstream_engine.object_store.gcs import gcs_client
from midstream_engine.object_store.open_bucket import open_bucket
from midstream_engine.object_store.s3 import s3_session
from simulators.object_stores.bucket import BucketServer, bucket_server
from simulators.object_stores.object_service import ObjectHandler
from simulators.object_stores.s3_server import IGNORED, REFUSED, S3Server, s3_server
from simulators.planted_faults import Fault

DATA = random.Random(5).randbytes(3_000_000)

# Google's client leaves the connection of an interrupted answer to the garbage collector.
pytestmark = pytest.mark.filterwarnings("ignore:unclosed <socket:ResourceWarning")


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


# ------------------------------------------------------------------------------------------------------------ S3 alone


@pytest.fixture
def s3(monkeypatch: pytest.MonkeyPatch) -> Iterator[S3Server]:
    monkeypatch.setattr(retries, "FIRST_PAUSE", 0.01)
    with s3_server("runs") as server:
        for name, value in server.environment.items():
            monkeypatch.setenv(name, value)
        yield server


def with_keys(monkeypatch: pytest.MonkeyPatch, file: Path, *profiles: tuple[str, str, str]) -> None:
    """Write a credentials file with (profile, access key, session token), and let it be the only source."""
    file.write_text(
        "".join(
            f"[{profile}]\naws_access_key_id = {key}\naws_secret_access_key = secret\naws_session_token = {token}\n"
            for profile, key, token in profiles
        )
    )
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.delenv(name)
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(file))


@pytest.mark.parametrize("request_", ["get", "look", "put", "entries"])
def test_s3_credentials_that_expire_are_read_again(
    s3: S3Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, request_: str
) -> None:
    s3.admits = {"mine": "first"}
    with_keys(monkeypatch, tmp_path / "keys", ("default", "mine", "first"))
    client = open_bucket("s3://runs/p", Access(region=f"region-{request_}"))
    client.put("object", DATA)
    s3.admits = {"mine": "second"}
    with_keys_again = (tmp_path / "keys").read_text().replace("first", "second")
    (tmp_path / "keys").write_text(with_keys_again)
    requests: dict[str, Callable[[], object]] = {
        "get": lambda: client.get("object"),
        "look": lambda: client.look("object"),
        "put": lambda: client.put("other", DATA),
        "entries": client.entries,
    }
    assert requests[request_]()
    s3.admits = {"mine": "third"}
    with pytest.raises(AccessDeniedError, match=r"ExpiredToken: The provided token has expired\.") as caught:
        requests[request_]()
    assert "\n" not in caught.value.with_hint()


def test_s3_profile_file_and_anonymous_access(s3: S3Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    s3.admits, s3.public = {"theirs": "t"}, True
    with_keys(monkeypatch, tmp_path / "keys", ("default", "mine", "m"), ("lab", "theirs", "t"))
    with pytest.raises(AccessDeniedError, match="InvalidAccessKeyId"):
        open_bucket("s3://runs/p", Access(region="a")).put("object", DATA)
    open_bucket("s3://runs/p", Access(region="a", profile="lab")).put("object", DATA)
    own = tmp_path / "own"
    own.write_text("[default]\naws_access_key_id = theirs\naws_secret_access_key = s\naws_session_token = t\n")
    assert open_bucket("s3://runs/p", Access(region="a", credentials=str(own))).get("object")[0] == DATA
    anonymous = open_bucket("s3://runs/p", Access(region="a", credentials="anonymous"))
    assert anonymous.get("object")[0] == DATA
    with pytest.raises(AccessDeniedError, match="AccessDenied: Access Denied"):
        anonymous.put("other", DATA)
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", "/dev/null")
    with pytest.raises(AccessDeniedError, match="no credentials for s3://"):
        open_bucket("s3://runs/p", Access(region="a"))
    assert open_bucket("s3://runs/p", Access(region="a", public=True)).get("object")[0] == DATA
    with pytest.raises(StoreError, match="nowhere: there is no such file"):
        open_bucket("s3://runs/p", Access(credentials=str(tmp_path / "nowhere")))
    with pytest.raises(StoreError, match="The config profile"):
        open_bucket("s3://runs/p", Access(profile="nobody"))


def test_s3_clock_that_is_wrong_is_named(s3: S3Server) -> None:
    s3.clock = 5000.0
    client = open_bucket("s3://runs/p", Access())
    for request in (client.entries, lambda: client.look("a"), lambda: client.put("a", b"1")):
        with pytest.raises(
            AccessDeniedError, match=r"RequestTimeTooSkewed: .* \(this clock is \d+ s behind\)"
        ) as caught:
            request()
        assert "timedatectl" in caught.value.hint


@pytest.mark.parametrize("writes", [REFUSED, IGNORED])
def test_s3_service_without_conditions_is_found_out(s3: S3Server, writes: str) -> None:
    """Then an existing object is looked for before, which keeps writers apart that do not write at the same time."""
    s3.writes = writes
    client = open_bucket("s3://runs/p", Access())
    assert not client.has_conditions()
    client.put("object", b"first", replaces=ABSENT)
    with pytest.raises(ObjectExistsError):
        client.put("object", b"second", replaces=ABSENT)
    _, version = client.get("object")
    client.put("object", b"third", replaces=version)
    with pytest.raises(ObjectExistsError):
        client.put("object", b"fourth", replaces=version)
    assert client.get("object")[0] == b"third"
    assert client.entries().keys() == {"object"}, "the trial leaves nothing"


@pytest.mark.parametrize("running", ["gs"], indirect=True)
def test_gcs_conditions_are_tried_without_an_object(server: BucketServer, client: BucketClient) -> None:
    server.faults.append(Fault("DELETE", "/o/", 403, times=99))
    assert client.has_conditions()
    assert server.blobs("runs") == {}


def test_account_that_may_not_delete_leaves_no_object(s3: S3Server) -> None:
    """The object that tries conditions would remain, one of each program that writes."""
    s3.faults.append(Fault("DELETE", "/p/", 403, times=99, message="s3:DeleteObject is denied"))
    for _ in range(2):
        with pytest.raises(AccessDeniedError, match="s3:DeleteObject is denied"):
            open_bucket("s3://runs/p", Access()).put("object", b"data")
    assert s3.blobs("runs") == {}


def test_s3_service_without_checksums_gets_md5(s3: S3Server) -> None:
    s3.checksums = False
    client = open_bucket("s3://runs/p", Access())
    client.put("one", DATA, replaces=ABSENT)
    client.put("two", DATA, replaces=ABSENT)
    parts = [client.put(f"part{number}", DATA * 2, part=True) for number in range(2)]
    client.join("joined", parts, len(DATA) * 4, hashed(DATA * 4), "x")
    assert [hashlib.sha256(blob.data).hexdigest() for blob in s3.blobs("runs").values()] == [
        hashed(DATA * 4), hashed(DATA), hashed(DATA)
    ]  # fmt: skip
    assert s3.md5_sent >= 3


def test_s3_body_that_changes_on_its_way_is_sent_again(s3: S3Server) -> None:
    s3.garbled_bodies = 2
    client = open_bucket("s3://runs/p", Access())
    client.put("one", DATA)
    assert s3.garbled_bodies == 0
    assert client.get("one")[0] == DATA


def test_s3_upload_that_fails_leaves_no_parts(s3: S3Server) -> None:
    client = open_bucket("s3://runs/p", Access())
    parts = [client.put(f"part{number}", DATA * 2, part=True) for number in range(3)]
    s3.faults.append(Fault("PUT", "partNumber=2", 403))
    with pytest.raises(AccessDeniedError):
        client.join("joined", parts, len(DATA) * 6, hashed(DATA * 6), "x")
    assert s3.uploads == {}
    s3.faults.append(Fault("POST", "uploadId", "close"))  # completed, and the answer lost
    client.join("joined", parts, len(DATA) * 6, hashed(DATA * 6), "x")
    assert client.get("joined")[0] == DATA * 6
    assert client.entries().keys() == {"joined"}


def test_s3_body_with_a_checksum_is_not_hashed_to_sign_it(s3: S3Server, monkeypatch: pytest.MonkeyPatch) -> None:
    auth = pytest.importorskip("botocore.auth")
    data = bytearray(random.Random(8).randbytes(100_000))
    with open_bucket("s3://runs/p", Access()) as client:
        client.put("first", b"tries conditions")
        hashes: list[int] = []
        digest = auth.sha256

        def sha256(data: bytes = b"") -> object:
            hashes.append(len(data))
            return digest(data)

        monkeypatch.setattr(auth, "sha256", sha256)
        client.put("x", data, hashed(data))
        assert max(hashes, default=0) < 10_000
        assert client.get("x")[0] == data
    assert s3.signed_hashes[-1] == hashed(data)


def test_s3_ranges_arrive_in_place_over_one_connection(s3: S3Server) -> None:
    data = random.Random(9).randbytes(5 * (1 << 20))
    with open_bucket("s3://runs/p", Access()) as client:
        client.put("x", data)
        connections = s3.connections()
        into = bytearray(3 * (1 << 20))
        for start in range(0, 3 * (1 << 20), (1 << 20)):
            with memoryview(into) as view:
                assert client.read_into("x", start, view[start : start + (1 << 20)]) == (1 << 20)
        assert into == data[: 3 * (1 << 20)]
        with memoryview(into) as view:
            assert client.read_into("x", 4 * (1 << 20), view) == (1 << 20)
        assert s3.connections() == connections
