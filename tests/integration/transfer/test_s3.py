"""Copies to S3, from it, and between buckets of two kinds."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest

from midstream.errors import MidstreamError
from midstream.fleet.fleet import LocalHostConfig
from midstream.hosts.fork_server import CLIENT_PROGRAMS
from midstream.hosts.local_forks import ForkedChild, LocalForks
from midstream.hosts.local_host import LocalHost
from midstream.hosts.rpc import remote_call
from midstream.stores.bucket_checkpoint import BucketCheckpoint
from midstream.transfer import stream_transport
from midstream.transfer.copy_tree import copy_contents, copy_tree
from midstream.transfer.endpoint import Endpoint, bucket_endpoint
from midstream.transfer.errors import TransferError
from midstream.transfer.tree_contents import read_contents
from midstream_core.object_store.bucket_client import CHUNK
from midstream_core.object_store.open_bucket import open_bucket
from midstream_host.allowlist import CHECKPOINT
from midstream_host.bucket.session import part_path
from simulators.object_stores.bucket import BucketServer
from simulators.object_stores.s3_server import S3Server
from simulators.planted_faults import Fault
from support.checkpoints.trees import assert_same_tree, files, random_contents, write_checkpoint, write_tree
from support.command_line import midstream, refused

pytestmark = pytest.mark.drawn

URL = "s3://my-bucket/bucket/runs"


@pytest.fixture
def s3(s3: S3Server) -> S3Server:
    s3.create("my-bucket")
    return s3


@pytest.fixture
def here(tmp_path: Path) -> LocalHost:
    return LocalHost("here", LocalHostConfig(root=str(tmp_path / "root")))


def stored(server: S3Server) -> dict[str, bytes]:
    return {name.removeprefix("bucket/runs/"): blob.data for name, blob in server.blobs("my-bucket").items()}


def test_copy_to_s3_and_on_to_gcs_and_back(s3: S3Server, bucket: BucketServer, here: LocalHost, tmp_path: Path) -> None:
    """The bytes between the buckets stream through this machine: no disk has them."""
    rng = random.Random(1)
    write_tree(tmp_path / "source", random_contents(rng, [2 * CHUNK + 5, CHUNK, 70_000, 1, 0, 300]))
    expected = files(tmp_path / "source")
    there, google = bucket_endpoint(URL), bucket_endpoint("gs://runs/p")
    report = copy_tree(Endpoint(here, str(tmp_path / "source")), there)
    assert stored(s3) == expected
    assert report.bytes_sent == report.bytes
    before = {path for path in tmp_path.rglob("*") if path.is_file()}
    between = copy_tree(there, google)
    assert {name.removeprefix("p/"): blob.data for name, blob in bucket.blobs("runs").items()} == expected
    assert between.routes == ("s3://my-bucket -> this machine -> gs://runs over HTTPS",)
    assert {path for path in tmp_path.rglob("*") if path.is_file()} == before
    s3.buckets["my-bucket"].clear()
    copy_tree(google, there)
    assert stored(s3) == expected
    again = copy_tree(google, there)
    assert again.bytes_sent == 0, "recorded hashes are compared"
    copy_tree(there, Endpoint(here, str(tmp_path / "back")))
    assert_same_tree(tmp_path / "source", tmp_path / "back")


def test_programs_of_a_copy_have_the_client_already(
    s3: S3Server, here: LocalHost, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They are forked, one for each end, and the client is prepared before the first request of the copy."""
    happened: list[str] = []

    class Forks(LocalForks):
        def prepare(self, client: str = "") -> None:
            happened.append(client)
            super().prepare(client)

        def start(self) -> ForkedChild | None:
            happened.append("program")
            return super().start()

    made = Forks("-P", CLIENT_PROGRAMS)
    for module in ("hosts.local_host", "stores.bucket_host"):
        monkeypatch.setattr(f"midstream.{module}.CLIENT_FORKS", made)
    write_tree(tmp_path / "source", random_contents(random.Random(4), [3]))
    ends = Endpoint(here, str(tmp_path / "source")), bucket_endpoint(URL)
    try:
        copy_tree(*ends)
        assert (happened[0], happened.count("program")) == ("s3://", 2), "the session, and what reads and writes"
        happened.clear()
        copy_tree(ends[1], Endpoint(here, str(tmp_path / "back")))
        assert (happened[0], happened.count("program")) == ("s3://", 1), "the session of a disk needs no client"
    finally:
        made.close()


def test_interrupted_copy_to_s3_uses_its_parts(s3: S3Server, here: LocalHost, tmp_path: Path) -> None:
    write_tree(tmp_path / "source", random_contents(random.Random(2), [3 * CHUNK + 5]))
    source, there = Endpoint(here, str(tmp_path / "source")), bucket_endpoint(URL)
    s3.faults.append(Fault("POST", "uploads", 403, times=99))
    with pytest.raises(MidstreamError, match="AccessDenied"):
        copy_tree(source, there)
    assert any(name.startswith(".incoming/") for name in stored(s3))
    s3.faults.clear()
    report = copy_tree(source, there)
    assert report.bytes_sent < CHUNK
    assert stored(s3) == files(tmp_path / "source")
    assert s3.uploads == {}


def test_parts_of_every_length_are_used(s3: S3Server, here: LocalHost, tmp_path: Path) -> None:
    """A disk of this machine writes large parts, and a stream small ones."""
    [entry] = write_tree(tmp_path / "source", random_contents(random.Random(4), [6 * CHUNK + 5]))
    data = (tmp_path / "source" / entry["path"]).read_bytes()
    client = open_bucket(URL)
    for offset, length in ((0, 4 * CHUNK), (CHUNK, CHUNK), (5 * CHUNK, CHUNK)):
        client.put(part_path(entry, offset, length), data[offset : offset + length], part=True)
    report = copy_tree(Endpoint(here, str(tmp_path / "source")), bucket_endpoint(URL))
    assert CHUNK + 5 <= report.bytes_sent < 2 * CHUNK
    assert stored(s3) == files(tmp_path / "source")


@pytest.mark.parametrize("size", [500_000, 3 * CHUNK + 5])
def test_bytes_that_change_on_their_way_are_read_again(
    s3: S3Server, here: LocalHost, tmp_path: Path, size: int
) -> None:
    write_tree(tmp_path / "source", random_contents(random.Random(3), [size]))
    copy_tree(Endpoint(here, str(tmp_path / "source")), bucket_endpoint(URL))
    s3.faults.append(Fault("GET", "my-bucket/bucket/runs/(?!manifest)[^?]+", "garble"))
    copy_tree(bucket_endpoint(URL), Endpoint(here, str(tmp_path / "back")))
    assert s3.faults[0].times == 0
    assert_same_tree(tmp_path / "source", tmp_path / "back")


def test_disk_and_bucket_of_one_machine_share_a_program(
    s3: S3Server, here: LocalHost, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No pipe carries the bytes, and each is hashed once on this machine."""
    write_tree(tmp_path / "source", random_contents(random.Random(6), [3 * CHUNK, CHUNK, 5, 0]))
    started: list[str] = []
    begin = remote_call.start_program

    def start_program(host: Any, function: Any, **named: Any) -> Any:
        started.append(remote_call.name_of(function))
        return begin(host, function, **named)

    monkeypatch.setattr(remote_call, "start_program", start_program)
    monkeypatch.setattr(stream_transport, "start_program", start_program)
    source, back = Endpoint(here, str(tmp_path / "source")), Endpoint(here, str(tmp_path / "back"))
    copy_tree(source, bucket_endpoint(URL))
    assert sorted(started) == ["bucket.disk_upload.upload", "bucket.session.serve"]
    started.clear()
    copy_tree(bucket_endpoint(URL), back)
    assert sorted(started) == ["bucket.disk_download.download", "copy.session.serve"]
    assert_same_tree(tmp_path / "source", tmp_path / "back")


@pytest.mark.parametrize(("size", "problem"), [(70_000, "cut"), (70_000, "changed"), (3 * CHUNK, "changed")])
def test_damaged_source_is_not_uploaded(s3: S3Server, here: LocalHost, tmp_path: Path, size: int, problem: str) -> None:
    write_tree(tmp_path / "source", random_contents(random.Random(7), [size]))
    name = next(name for name in files(tmp_path / "source") if name != "manifest.json")
    data = (tmp_path / "source" / name).read_bytes()
    changed = data[:-1] if problem == "cut" else data[:-1] + bytes([data[-1] ^ 1])
    contents = read_contents(Endpoint(here, str(tmp_path / "source")), "manifest.json", CHECKPOINT)
    (tmp_path / "source" / name).write_bytes(changed)
    with pytest.raises(TransferError, match="the manifest says"):
        copy_contents(contents, bucket_endpoint(URL))
    assert not {"manifest.json", name} & set(stored(s3))


def test_s3_checkpoint_is_verified_once_listings_are_behind(s3: S3Server, here: LocalHost, tmp_path: Path) -> None:
    write_checkpoint(tmp_path / "source", random.Random(4))
    s3.late = 3
    copy_tree(Endpoint(here, str(tmp_path / "source")), bucket_endpoint(URL))
    s3.late = 1
    s3.faults.append(Fault("GET", "my-bucket/bucket/runs/arrays", "garble"))
    examined = BucketCheckpoint(URL).examine()
    assert (examined.problems, examined.recomputed) == ([], examined.recorded)
    name = next(name for name in s3.blobs("my-bucket") if "/arrays/" in name)
    data = s3.blobs("my-bucket")[name].data
    s3.put("my-bucket", name, data[:-1] + bytes([data[-1] ^ 1]))
    assert len(BucketCheckpoint(URL).examine().problems) == 1


def test_verify_and_checkpoints_read_s3_urls(s3: S3Server, here: LocalHost, tmp_path: Path) -> None:
    write_checkpoint(tmp_path / "source", random.Random(5))
    copy_tree(Endpoint(here, str(tmp_path / "source")), bucket_endpoint(URL))
    local = midstream("--verify", str(tmp_path / "source"), "--json").result
    found = midstream("--verify", URL, "--json")
    assert (found.code, found.result) == (0, {**local, "checkpoint": URL})
    assert midstream("--checkpoints", URL).stdout.splitlines()[0].startswith(f"{URL}: ")
    name = next(name for name in s3.blobs("my-bucket") if "/arrays/" in name and "/c/" in name)
    data = s3.blobs("my-bucket")[name].data
    s3.put("my-bucket", name, data[:-1] + bytes([data[-1] ^ 1]))
    damaged = midstream("--verify", URL)
    assert damaged.code == 1
    assert f"s3://my-bucket/{name}: SHA-256 is" in damaged.stdout
    assert "is damaged: 1 problem" in damaged.stderr
    refused(midstream("--verify", "s3://my-bucket/bucket/none"), 1, "s3://my-bucket/bucket/none")
    refused(midstream("--verify", "s3://nobody/x"), 1, "there is no bucket nobody")
