"""Copies to and from the lab's bucket with the google-cloud-storage client."""

from __future__ import annotations

import json
import random
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from midstream.errors import MidstreamError
from midstream.fleet.fleet import LocalHostConfig
from midstream.hosts.host_pool import open_host
from midstream.hosts.local_host import LocalHost
from midstream.stores.bucket_access import Access
from midstream.transfer.copy_settings import CopySettings
from midstream.transfer.copy_tree import copy_tree
from midstream.transfer.endpoint import Endpoint, bucket_endpoint
from midstream.transfer.errors import TransferError
from midstream.transfer.report import Progress
from midstream_core import records
from midstream_core.object_store import gcs_client
from midstream_core.object_store.bucket_client import CHUNK
from midstream_core.object_store.errors import ObjectExistsError, StoreError
from midstream_core.object_store.joined_crc32c import combined
from midstream_core.object_store.open_bucket import open_bucket
from midstream_host.bucket import session
from midstream_host.object_files import INCOMING
from midstream_host.verify import objects
from simulators.object_stores.bucket import BucketServer
from simulators.planted_faults import Fault
from simulators.sshd import Lab, environment
from support.checkpoints.trees import SOURCES, assert_same_tree, cell, random_contents, write_checkpoint, write_tree

pytestmark = pytest.mark.drawn

MIB = 1 << 20
URL = "gs://runs/some/prefix"


@pytest.fixture
def here(tmp_path: Path) -> LocalHost:
    return LocalHost("here", LocalHostConfig(root=str(tmp_path / "root")))


def in_bucket(bucket: BucketServer) -> dict[str, bytes]:
    start = URL.removeprefix("gs://runs/") + "/"
    return {name[len(start) :]: blob.data for name, blob in bucket.blobs("runs").items()}


def test_copy_to_bucket_and_back(bucket: BucketServer, here: LocalHost, tmp_path: Path) -> None:
    rng = random.Random(1)
    sizes = [17 * MIB + 5, CHUNK, CHUNK + 1, 70_000, 1, 0, *(rng.randrange(3000) for _ in range(40))]
    write_tree(tmp_path / "source", random_contents(rng, sizes))
    source, there = Endpoint(here, str(tmp_path / "source")), bucket_endpoint(URL)
    reports: list[Progress] = []
    report = copy_tree(source, there, progress=reports.append)
    assert_same_tree(in_bucket(bucket), tmp_path / "source", "and no temporary object")
    assert report.bytes_sent == report.bytes == reports[-1].bytes_done == sum(sizes)
    assert report.routes == (f"here -> this machine -> {there.host.name} over HTTPS",)
    assert copy_tree(source, there).bytes_sent == 0
    back = copy_tree(there, Endpoint(here, str(tmp_path / "back")))
    assert back.bytes_sent == sum(sizes)
    assert_same_tree(tmp_path / "back", tmp_path / "source")


@pytest.mark.system
@pytest.mark.usefixtures("bucket")
def test_copy_between_hosts_over_bucket(lab: Lab, tmp_path: Path) -> None:
    one, two = (open_host(each.name, each.config) for each in (lab.host("one"), lab.host("two")))
    for host in (one, two):
        host.connect()
    write_checkpoint(tmp_path / "source", random.Random(2), size=300_000)
    there = bucket_endpoint(URL)
    assert "one -> this machine -> gs://runs" in copy_tree(Endpoint(one, str(tmp_path / "source")), there).routes[0]
    copy_tree(there, Endpoint(two, str(tmp_path / "target")))
    assert_same_tree(tmp_path / "target", tmp_path / "source")
    for host in (one, two):
        host.close()


@pytest.mark.system
def test_host_with_own_identity_copies_directly(lab: Lab, bucket: BucketServer, tmp_path: Path) -> None:
    host = open_host("cloud", lab.host("cloud", sshd=environment(**bucket.environment)).config)
    host.connect()
    write_checkpoint(tmp_path / "source", random.Random(3), size=400_000)
    there = bucket_endpoint(URL, via=host)
    assert there.host.access_problem(URL) == ("", "")  # type: ignore[attr-defined]
    report = copy_tree(Endpoint(host, str(tmp_path / "source")), there)
    assert report.routes == ("direct, cloud -> gs://runs over HTTPS",)
    assert_same_tree(in_bucket(bucket), tmp_path / "source")
    copy_tree(there, Endpoint(host, str(tmp_path / "back")))
    assert_same_tree(tmp_path / "back", tmp_path / "source")
    host.close()


OPERATOR = """
import json, os, signal, sys
sys.path[:0] = json.loads(sys.argv[1])
from midstream.fleet.fleet import LocalHostConfig
from midstream.hosts.local_host import LocalHost
from midstream.transfer.copy_settings import CopySettings
from midstream.transfer.endpoint import Endpoint, bucket_endpoint
from midstream.transfer.copy_tree import copy_tree
here = LocalHost("here", LocalHostConfig(root=sys.argv[2]))
report = lambda p: p.bytes_done >= int(sys.argv[5]) and os.kill(os.getpid(), signal.SIGKILL)
settings = CopySettings(bandwidth_limit=40e6)
copy_tree(Endpoint(here, sys.argv[3]), bucket_endpoint(sys.argv[4]), progress=report, settings=settings)
"""


@pytest.mark.parametrize("seed", [5])
def test_killed_copy_resumes_without_resending_chunks(
    bucket: BucketServer, here: LocalHost, tmp_path: Path, seed: int
) -> None:
    print(f"seed {seed}")
    rng = random.Random(seed)
    write_tree(tmp_path / "source", random_contents(rng, [40 * MIB, 5 * MIB, 1000]))
    others = bucket.connections()
    # It kills itself: the copy could be over before another process does.
    argv = [json.dumps(SOURCES), str(tmp_path), str(tmp_path / "source"), URL, str(17 * MIB)]
    operator = subprocess.run([sys.executable, "-c", OPERATOR, *argv])
    assert operator.returncode == -signal.SIGKILL
    bucket.wait_served(others)
    there = in_bucket(bucket)
    assert records.MANIFEST not in there
    uploaded_bytes = sum(len(data) for name, data in there.items())
    assert uploaded_bytes >= 2 * CHUNK
    report = copy_tree(Endpoint(here, str(tmp_path / "source")), bucket_endpoint(URL))
    assert report.bytes_sent == report.bytes - uploaded_bytes
    assert_same_tree(in_bucket(bucket), tmp_path / "source")


@pytest.mark.usefixtures("bucket")
def test_interrupted_download_resumes(here: LocalHost, tmp_path: Path) -> None:
    write_tree(tmp_path / "source", random_contents(random.Random(6), [30 * MIB, 1000]))
    copy_tree(Endpoint(here, str(tmp_path / "source")), bucket_endpoint(URL))

    class CutError(Exception):
        pass

    def cut(progress: Progress) -> None:
        if progress.bytes_done > 20 * MIB:
            raise CutError

    target = Endpoint(here, str(tmp_path / "target"))
    with pytest.raises(CutError):
        copy_tree(bucket_endpoint(URL), target, progress=cut, settings=CopySettings(bandwidth_limit=60e6))
    report = copy_tree(bucket_endpoint(URL), target)
    assert report.bytes_sent <= report.bytes - 2 * CHUNK
    assert_same_tree(tmp_path / "target", tmp_path / "source")


def test_busy_service_is_retried(bucket: BucketServer, here: LocalHost, tmp_path: Path) -> None:
    write_tree(tmp_path / "source", random_contents(random.Random(7), [18 * MIB, 5000, 300]))
    upload, media = ("POST", "uploadType"), ("GET", r"object-\d.*alt=media")
    for (method, path), kind in (
        (upload, 429), (upload, "close"), (("POST", "compose"), 503), (media, "truncate"), (media, 503),
        (("GET", r"/o\?"), "drop"),
    ):  # fmt: skip
        bucket.faults.append(Fault(method, path, kind))
    copy_tree(Endpoint(here, str(tmp_path / "source")), bucket_endpoint(URL))
    assert_same_tree(in_bucket(bucket), tmp_path / "source")
    copy_tree(bucket_endpoint(URL), Endpoint(here, str(tmp_path / "back")))
    assert_same_tree(tmp_path / "back", tmp_path / "source")
    assert not [fault for fault in bucket.faults if fault.times], "each fault was used"


@pytest.mark.parametrize("size", [700_000, 3 * CHUNK + 5])
def test_bytes_that_break_off_or_change_are_read_again(
    bucket: BucketServer, here: LocalHost, tmp_path: Path, size: int
) -> None:
    write_tree(tmp_path / "source", random_contents(random.Random(8), [size]))
    copy_tree(Endpoint(here, str(tmp_path / "source")), bucket_endpoint(URL))
    bucket.faults += [Fault("GET", r"object-\d.*alt=media", kind) for kind in ("truncate", "garble", "truncate")]
    copy_tree(bucket_endpoint(URL), Endpoint(here, str(tmp_path / "back")))
    assert not any(fault.times for fault in bucket.faults)
    assert_same_tree(tmp_path / "back", tmp_path / "source")


def test_corrupt_source_object_is_not_uploaded(bucket: BucketServer, here: LocalHost, tmp_path: Path) -> None:
    write_tree(tmp_path / "source", {cell("small"): b"s" * 1000, cell("large"): b"l" * (9 * MIB)})
    for name in (cell("small"), cell("large")):
        original = (tmp_path / "source" / name).read_bytes()
        (tmp_path / "source" / name).write_bytes(b"?" + original[1:])
        with pytest.raises(TransferError, match=rf"object {name} of here:.* is corrupt"):
            copy_tree(Endpoint(here, str(tmp_path / "source")), bucket_endpoint(URL))
        assert not {name, records.MANIFEST} & in_bucket(bucket).keys()
        (tmp_path / "source" / name).write_bytes(original)
        bucket.buckets["runs"].clear()
    copy_tree(Endpoint(here, str(tmp_path / "source")), bucket_endpoint(URL))
    assert_same_tree(in_bucket(bucket), tmp_path / "source")


def test_different_bytes_in_bucket_are_replaced(bucket: BucketServer, here: LocalHost, tmp_path: Path) -> None:
    """Objects that another program wrote have no recorded hash: they are read."""
    write_tree(tmp_path / "source", {cell("right"): b"r" * 500, cell("wrong"): b"w" * 500, cell("partial"): b"t" * 500})
    for name, data in ((cell("right"), b"r" * 500), (cell("wrong"), b"w" * 499 + b"?"), (cell("partial"), b"t")):
        bucket.put("runs", f"some/prefix/{name}", data)
    report = copy_tree(Endpoint(here, str(tmp_path / "source")), bucket_endpoint(URL))
    assert report.skipped == (cell("right"),)
    assert_same_tree(in_bucket(bucket), tmp_path / "source")


def test_other_tree_in_bucket_is_not_overwritten(bucket: BucketServer, here: LocalHost, tmp_path: Path) -> None:
    write_tree(tmp_path / "source", {cell("a"): b"1" * 100})
    other = json.dumps({"objects": [{"path": cell("a"), "size": 1, "sha256": "0" * 64}]}).encode()

    def put_other_manifest(progress: Progress) -> None:
        if progress.objects_done:
            bucket.put("runs", f"some/prefix/{records.MANIFEST}", other)

    with pytest.raises(TransferError, match=r"manifest\.json: another object exists"):
        copy_tree(Endpoint(here, str(tmp_path / "source")), bucket_endpoint(URL), progress=put_other_manifest)
    with pytest.raises(TransferError, match="has another tree"):
        copy_tree(Endpoint(here, str(tmp_path / "source")), bucket_endpoint(URL))
    assert in_bucket(bucket)[records.MANIFEST] == other


def test_missing_bucket_object_is_named_before_writing(bucket: BucketServer, here: LocalHost, tmp_path: Path) -> None:
    write_tree(tmp_path / "source", {cell("a"): b"1", cell("b"): b"2"})
    copy_tree(Endpoint(here, str(tmp_path / "source")), bucket_endpoint(URL))
    bucket.delete("runs", f"some/prefix/{cell('b')}", {})
    with pytest.raises(TransferError, match=rf"object {cell('b')} of {URL}: missing"):
        copy_tree(bucket_endpoint(URL), Endpoint(here, str(tmp_path / "target")))
    assert not (tmp_path / "target").exists()
    with pytest.raises(TransferError, match="there is no manifest"):
        copy_tree(bucket_endpoint("gs://runs/nothing"), Endpoint(here, str(tmp_path / "target")))


DENIED = "me@p.iam does not have storage.objects.create access to the Google Cloud Storage object. Permission denied."


@pytest.mark.parametrize(
    ("status", "message", "expected", "hint"),
    [
        (403, DENIED, "bucket runs: this account lacks storage.objects.create", "roles/storage.objectUser"),
        (404, "The specified bucket does not exist.", "there is no bucket runs", "--soft-deleted"),
        (400, "User project specified is invalid.", "bucket runs: the project is wrong", "gcloud projects list"),
        (401, "Invalid Credentials", "no credentials for gs://", "gcloud auth"),
    ],
)
def test_bucket_refusal_has_hint(bucket: BucketServer, status: int, message: str, expected: str, hint: str) -> None:
    bucket.faults.append(Fault("POST", "uploadType", status, times=9, message=message))
    with open_bucket(URL) as opened, pytest.raises(StoreError) as caught:
        opened.put("a", b"1", "hash")
    assert expected in caught.value.message
    assert hint in caught.value.hint
    assert "\n" not in caught.value.message
    assert in_bucket(bucket) == {}


def test_object_name_with_newline_is_one_line(bucket: BucketServer) -> None:
    bucket.put("runs", "some/prefix/a\nb", b"1")
    bucket.faults.append(Fault("GET", "alt=media", 400, times=9, message="no"))
    with open_bucket(URL) as opened, pytest.raises(StoreError) as caught:
        opened.get("a\nb")
    assert caught.value.message == URL + r"/a\nb: no"


def test_copy_reports_error_of_bucket(bucket: BucketServer, here: LocalHost, tmp_path: Path) -> None:
    write_tree(tmp_path / "source", {cell("a"): b"1"})
    bucket.faults.append(Fault("POST", "uploadType", 403, times=9, message=DENIED))
    expected = (
        r"bucket runs: this account lacks storage\.objects\.create \(gcloud storage buckets add-iam-policy-binding"
    )
    with pytest.raises(MidstreamError, match=expected):
        copy_tree(Endpoint(here, str(tmp_path / "source")), bucket_endpoint(URL))


def test_requester_pays_needs_user_project(bucket: BucketServer) -> None:
    bucket.requester_pays.add("runs")
    with (
        open_bucket(URL) as opened,
        pytest.raises(StoreError, match="the requester pays, and no project is named"),
    ):
        opened.entries()
    with open_bucket(URL, Access(user_project="ours")) as opened:
        blob = opened.put("a", b"1", "hash")
        assert (opened.entries().keys(), opened.get("a")) == ({"a"}, (b"1", blob.version))
        assert opened.read("a", 0, 1, blob.version) == b"1"
        assert opened.look("a") == blob
        opened.join("b", [blob], 1, "hash", "temporary")
    assert in_bucket(bucket) == {"b": b"1"}


def test_missing_credentials_are_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("STORAGE_EMULATOR_HOST", "GOOGLE_APPLICATION_CREDENTIALS", "GOOGLE_CLOUD_PROJECT"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("CLOUDSDK_CONFIG", str(tmp_path))
    monkeypatch.setenv("NO_GCE_CHECK", "true")
    with pytest.raises(MidstreamError, match=r"no credentials for gs://.*gcloud auth application-default login"):
        bucket_endpoint(URL).host.call(objects.describe)(directory=URL, manifest=records.MANIFEST)
    (tmp_path / "key.json").write_text("{}")
    wrong = bucket_endpoint(URL, Access(str(tmp_path / "key.json")))
    with pytest.raises(MidstreamError, match=r"key\.json: no service account's key"):
        wrong.host.call(objects.describe)(directory=URL, manifest=records.MANIFEST)


def test_many_parts_are_composed_in_batches(bucket: BucketServer) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(gcs_client, "COMPOSED", 3)
        pieces = [random.Random(number).randbytes(100 + number) for number in range(11)]
        with open_bucket(URL) as opened:
            parts = [opened.put(f"{INCOMING}/x/{n}", data, "", part=True) for n, data in enumerate(pieces)]
            opened.join("joined", parts, sum(map(len, pieces)), "hash", f"{INCOMING}/x/temporary")
    assert in_bucket(bucket) == {"joined": b"".join(pieces)}


def test_composition_survives_lost_answer(bucket: BucketServer) -> None:
    with open_bucket(URL) as opened:
        parts = [opened.put(f"{INCOMING}/x/{n}", data, "", part=True) for n, data in enumerate((b"one", b"two"))]
        bucket.faults.append(Fault("POST", "/compose", "close", times=2))
        opened.join("joined", parts, 6, "hash", f"{INCOMING}/x/temporary")
        assert in_bucket(bucket) == {"joined": b"onetwo"}
        other = opened.put(f"{INCOMING}/x/2", b"three", "", part=True)
        bucket.faults.append(Fault("POST", "/compose", 412, message="At least one of the pre-conditions did not hold"))
        with pytest.raises(ObjectExistsError):
            opened.join("joined", [other], 5, "another hash", f"{INCOMING}/x/temporary")
        assert in_bucket(bucket)["joined"] == b"onetwo"


def test_combined_crc32c_equals_crc32c_of_all_bytes() -> None:
    import google_crc32c

    rng = random.Random(8)
    for _ in range(30):
        pieces = [rng.randbytes(rng.choice([0, 1, 7, 1000, 70_000])) for _ in range(rng.randrange(1, 6))]
        found = combined([(google_crc32c.value(piece), len(piece)) for piece in pieces])
        assert found == google_crc32c.value(b"".join(pieces))


def test_unexpected_error_of_an_object_in_ranges_is_reported(
    bucket: BucketServer, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """The app waits for each object until a report of it arrives."""
    client = open_bucket(URL, Access())
    monkeypatch.setattr(client, "look", lambda path: 1 / 0)
    gathering = session._Gathering(client)
    gathering.landed({"path": "object", "size": 2, "sha256": "0" * 64}, 0, 2)
    gathering._pool.shutdown(wait=True)
    report = json.loads(capfd.readouterr().out)
    assert (report["event"], report["kind"]) == ("problem", "system")
    assert "division by zero" in report["message"]
