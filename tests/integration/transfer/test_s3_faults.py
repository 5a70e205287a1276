"""Faults of S3 and of services like it: credentials, clocks, conditions, checksums, uploads."""

from __future__ import annotations

import hashlib
import random
from collections.abc import Callable
from pathlib import Path

import pytest

from midstream_core.object_store import retries, s3_client, s3_multipart
from midstream_core.object_store.access import Access
from midstream_core.object_store.bucket_client import ABSENT, hashed
from midstream_core.object_store.errors import AccessDeniedError, ObjectExistsError, StoreError
from midstream_core.object_store.open_bucket import open_bucket
from simulators.object_stores.s3_server import IGNORED, REFUSED, S3Server
from simulators.planted_faults import Fault

DATA = random.Random(5).randbytes(3_000_000)


@pytest.fixture(autouse=True)
def _short_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(retries, "FIRST_PAUSE", 0.01)


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


@pytest.mark.parametrize("request_", ["get", "look", "put"])
def test_s3_key_that_was_replaced_is_read_again(
    s3: S3Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, request_: str
) -> None:
    """Keys are rotated while an engine trains for months: the file has the new one, and the old one is deleted."""
    s3.admits = {"old": "t"}
    with_keys(monkeypatch, tmp_path / "keys", ("default", "old", "t"))
    client = open_bucket("s3://runs/p", Access(region=f"rotated-{request_}"))
    client.put("object", DATA)
    s3.admits = {"new": "t"}
    (tmp_path / "keys").write_text((tmp_path / "keys").read_text().replace("old", "new"))
    requests: dict[str, Callable[[], object]] = {
        "get": lambda: client.get("object"),
        "look": lambda: client.look("object"),
        "put": lambda: client.put("other", DATA),
    }
    assert requests[request_]()


def test_s3_prefix_that_is_opened_after_rotations_has_new_key(
    s3: S3Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    keys, access = tmp_path / "keys", Access(region="rotations")
    with_keys(monkeypatch, keys, ("default", "key-0", "t"))
    s3.admits = {"key-0": "t"}
    client, idle = open_bucket("s3://runs/p", access), open_bucket("s3://runs/idle", access)
    for number in range(1, 4):
        s3.admits = {f"key-{number}": "t"}
        keys.write_text(keys.read_text().replace(f"key-{number - 1}", f"key-{number}"))
        client.put("object", DATA)
    open_bucket("s3://runs/q", access).put("object", DATA)
    idle.put("object", DATA)


@pytest.mark.parametrize("partial", ["", "[default]\naws_access_key_id = new\n"])
def test_s3_key_file_that_is_being_written_is_read_again(
    s3: S3Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, partial: str
) -> None:
    """A client that found no key must not stay without one, although a public bucket needs none."""
    keys = tmp_path / "keys"
    with_keys(monkeypatch, keys, ("default", "old", "t"))
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    s3.admits = {"old": "t"}
    client = open_bucket("s3://runs/p", Access(region=f"partial-{len(partial)}", public=True))
    client.put("object", DATA)
    s3.admits, complete = {"new": "t"}, keys.read_text().replace("old", "new")
    keys.write_text(partial)
    with pytest.raises((AccessDeniedError, StoreError)):
        client.get("object")
    keys.write_text(complete)
    assert client.get("object")[0] == DATA


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
        open_bucket("s3://runs/p", Access(profile="absent"))


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


def test_s3_object_of_more_parts_than_an_upload_may_have(s3: S3Server, monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (s3_client, s3_multipart):
        monkeypatch.setattr(module, "MAX_PARTS", 3)
    monkeypatch.setattr(s3_multipart, "MAX_COPY", 16 << 20)
    pieces = [random.Random(number).randbytes((5 << 20) + number) for number in range(7)]
    client = open_bucket("s3://runs/p", Access())
    parts = [client.put(f".incoming/{number}", data, part=True) for number, data in enumerate(pieces)]
    s3.faults.append(Fault("POST", r"joined-0-157\d+\?uploadId", "close"))  # completed, and the answer lost
    data = b"".join(pieces)
    client.join("joined", parts, len(data), hashed(data), ".incoming/joined")
    assert client.get("joined")[0] == data
    assert client.entries().keys() == {"joined"}
    assert not any("partNumber=4" in path for _, path in s3.requests)
    assert s3.uploads == {}


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
