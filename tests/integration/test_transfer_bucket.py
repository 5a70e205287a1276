"""Copies to and from a bucket: the unmodified google-cloud-storage client against the lab's server."""

from __future__ import annotations

import json
import random
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from midstream.errors import MidstreamError
from midstream.fleet.fleet import LocalHost
from midstream.hosts.host_pool import open_host
from midstream.hosts.local_host import LocalMachine
from midstream.remote.gcs import client
from midstream.remote.verify import tree
from midstream.transfer import Access, CopySettings, Endpoint, Progress, TransferError, bucket_endpoint, copy_tree
from midstream_engine import records
from simulators.bucket import BucketServer, Fault
from simulators.sshd import Lab, environment
from support.trees import SOURCES, assert_same_tree, cell, random_contents, write_checkpoint, write_tree

MIB = 1 << 20
URL = "gs://runs/some/prefix"


@pytest.fixture
def here(tmp_path: Path) -> LocalMachine:
    return LocalMachine("here", LocalHost(root=str(tmp_path / "root")))


def in_bucket(bucket: BucketServer) -> dict[str, bytes]:
    start = URL.removeprefix("gs://runs/") + "/"
    return {name[len(start) :]: blob.data for name, blob in bucket.blobs("runs").items()}


def uploaded(bucket: BucketServer) -> int:
    return sum(method == "POST" and "uploadType" in path for method, path in bucket.requests)


def test_a_tree_goes_there_and_back(bucket: BucketServer, here: LocalMachine, tmp_path: Path) -> None:
    rng = random.Random(1)
    sizes = [17 * MIB + 5, client.CHUNK, client.CHUNK + 1, 70_000, 1, 0, *(rng.randrange(3000) for _ in range(40))]
    write_tree(tmp_path / "source", random_contents(rng, sizes))
    source, there = Endpoint(here, str(tmp_path / "source")), bucket_endpoint(URL)
    seen: list[Progress] = []
    report = copy_tree(source, there, progress=seen.append)
    assert_same_tree(in_bucket(bucket), tmp_path / "source", "or something temporary was left")
    assert report.bytes_sent == report.bytes == seen[-1].bytes_done == sum(sizes)
    assert report.routes == (f"here -> this machine -> {there.host.name} over HTTPS",)
    assert copy_tree(source, there).bytes_sent == 0
    back = copy_tree(there, Endpoint(here, str(tmp_path / "back")))
    assert back.bytes_sent == sum(sizes)
    assert_same_tree(tmp_path / "back", tmp_path / "source")


@pytest.mark.system
def test_from_a_host_over_the_bucket_to_another_host(
    lab: Lab, bucket: BucketServer, tmp_path: Path, here: LocalMachine
) -> None:
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
def test_a_host_with_an_identity_of_its_own_talks_to_the_bucket_itself(
    lab: Lab, bucket: BucketServer, tmp_path: Path
) -> None:
    host = open_host("cloud", lab.host("cloud", sshd=environment(**bucket.environment)).config)
    host.connect()
    write_checkpoint(tmp_path / "source", random.Random(3), size=400_000)
    there = bucket_endpoint(URL, via=host)
    assert there.host.why_not(URL) == ("", "")  # type: ignore[attr-defined]
    report = copy_tree(Endpoint(host, str(tmp_path / "source")), there)
    assert report.routes == ("cloud -> gs://runs, directly from the one to the other over HTTPS",)
    assert_same_tree(in_bucket(bucket), tmp_path / "source")
    copy_tree(there, Endpoint(host, str(tmp_path / "back")))
    assert_same_tree(tmp_path / "back", tmp_path / "source")
    host.close()


OPERATOR = """
import json, sys
sys.path[:0] = json.loads(sys.argv[1])
from midstream.fleet.fleet import LocalHost
from midstream.hosts.local_host import LocalMachine
from midstream.transfer import CopySettings, Place, bucket_place, copy_tree
here = LocalMachine("here", LocalHost(root=sys.argv[2]))
tell = lambda p: print(p.bytes_done, flush=True)
copy_tree(Place(here, sys.argv[3]), bucket_place(sys.argv[4]), progress=tell, settings=CopySettings(rate_limit=40e6))
"""


@pytest.mark.parametrize("seed", [5])
def test_a_killed_copy_goes_on_and_sends_no_chunk_again(
    bucket: BucketServer, here: LocalMachine, tmp_path: Path, seed: int
) -> None:
    print(f"seed {seed}")
    rng = random.Random(seed)
    write_tree(tmp_path / "source", random_contents(rng, [40 * MIB, 5 * MIB, 1000]))
    argv = [json.dumps(SOURCES), str(tmp_path), str(tmp_path / "source"), URL]
    with subprocess.Popen([sys.executable, "-c", OPERATOR, *argv], stdout=subprocess.PIPE) as operator:
        assert operator.stdout is not None
        for line in operator.stdout:
            if int(line) >= 17 * MIB:
                operator.send_signal(signal.SIGKILL)
                break
    assert operator.returncode == -signal.SIGKILL
    wait_for_calm(bucket)
    there = in_bucket(bucket)
    assert records.MANIFEST not in there
    kept = sum(len(data) for name, data in there.items())
    assert kept >= 2 * client.CHUNK
    report = copy_tree(Endpoint(here, str(tmp_path / "source")), bucket_endpoint(URL))
    assert report.bytes_sent == report.bytes - kept
    assert_same_tree(in_bucket(bucket), tmp_path / "source")


def wait_for_calm(bucket: BucketServer) -> None:
    """Until the programs of a killed operator have ended: nothing was asked for a second."""
    pause, before = threading.Event(), -1
    while len(bucket.requests) != before:
        before = len(bucket.requests)
        pause.wait(1.0)


def test_what_a_cut_download_left_is_gone_on_with(bucket: BucketServer, here: LocalMachine, tmp_path: Path) -> None:
    write_tree(tmp_path / "source", random_contents(random.Random(6), [30 * MIB, 1000]))
    copy_tree(Endpoint(here, str(tmp_path / "source")), bucket_endpoint(URL))

    class Cut(Exception):
        pass

    def cut(progress: Progress) -> None:
        if progress.bytes_done > 20 * MIB:
            raise Cut

    target = Endpoint(here, str(tmp_path / "target"))
    with pytest.raises(Cut):
        copy_tree(bucket_endpoint(URL), target, progress=cut, settings=CopySettings(rate_limit=60e6))
    report = copy_tree(bucket_endpoint(URL), target)
    assert report.bytes_sent <= report.bytes - 2 * client.CHUNK
    assert_same_tree(tmp_path / "target", tmp_path / "source")


def test_a_busy_service_is_asked_again(bucket: BucketServer, here: LocalMachine, tmp_path: Path) -> None:
    write_tree(tmp_path / "source", random_contents(random.Random(7), [9 * MIB, 5000, 300]))
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
    assert not [fault for fault in bucket.faults if fault.times], "each was met"


def test_what_is_corrupt_at_the_source_gets_no_name(bucket: BucketServer, here: LocalMachine, tmp_path: Path) -> None:
    write_tree(tmp_path / "source", {cell("small"): b"s" * 1000, cell("large"): b"l" * (9 * MIB)})
    for name in (cell("small"), cell("large")):
        whole = (tmp_path / "source" / name).read_bytes()
        (tmp_path / "source" / name).write_bytes(b"?" + whole[1:])
        with pytest.raises(TransferError, match=rf"object {name} of here:.* is corrupt"):
            copy_tree(Endpoint(here, str(tmp_path / "source")), bucket_endpoint(URL))
        assert not {name, records.MANIFEST} & in_bucket(bucket).keys()
        (tmp_path / "source" / name).write_bytes(whole)
        bucket.buckets["runs"].clear()
    copy_tree(Endpoint(here, str(tmp_path / "source")), bucket_endpoint(URL))
    assert_same_tree(in_bucket(bucket), tmp_path / "source")


def test_other_bytes_in_the_bucket_are_found_and_replaced(
    bucket: BucketServer, here: LocalMachine, tmp_path: Path
) -> None:
    """Of what another program wrote the hash is not known: it is read."""
    write_tree(tmp_path / "source", {cell("right"): b"r" * 500, cell("wrong"): b"w" * 500, cell("torn"): b"t" * 500})
    for name, data in ((cell("right"), b"r" * 500), (cell("wrong"), b"w" * 499 + b"?"), (cell("torn"), b"t")):
        bucket.put("runs", f"some/prefix/{name}", data)
    report = copy_tree(Endpoint(here, str(tmp_path / "source")), bucket_endpoint(URL))
    assert report.skipped == (cell("right"),)
    assert_same_tree(in_bucket(bucket), tmp_path / "source")


def test_another_tree_is_not_overwritten_even_where_it_comes_meanwhile(
    bucket: BucketServer, here: LocalMachine, tmp_path: Path
) -> None:
    write_tree(tmp_path / "source", {cell("a"): b"1" * 100})
    other = json.dumps({"objects": [{"path": cell("a"), "size": 1, "sha256": "0" * 64}]}).encode()

    def meanwhile(progress: Progress) -> None:
        if progress.objects_done:
            bucket.put("runs", f"some/prefix/{records.MANIFEST}", other)

    with pytest.raises(TransferError, match=r"manifest\.json: another one is there"):
        copy_tree(Endpoint(here, str(tmp_path / "source")), bucket_endpoint(URL), progress=meanwhile)
    with pytest.raises(TransferError, match="holds another tree"):
        copy_tree(Endpoint(here, str(tmp_path / "source")), bucket_endpoint(URL))
    assert in_bucket(bucket)[records.MANIFEST] == other


def test_missing_objects_of_a_bucket_are_named_before_anything_is_written(
    bucket: BucketServer, here: LocalMachine, tmp_path: Path
) -> None:
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
    ("status", "message", "said", "fix"),
    [
        (403, DENIED, "bucket runs: this account lacks storage.objects.create", "roles/storage.objectUser"),
        (404, "The specified bucket does not exist.", "there is no bucket runs", "--soft-deleted"),
        (400, "User project specified is invalid.", "bucket runs: the project is wrong", "gcloud projects list"),
        (401, "Invalid Credentials", "no credentials for gs://", "gcloud auth"),
    ],
)
def test_a_refusal_is_one_line_with_what_mends_it(
    bucket: BucketServer, status: int, message: str, said: str, hint: str
) -> None:
    bucket.faults.append(Fault("POST", "uploadType", status, times=9, message=message))
    with client.Bucket(URL, {}) as opened, pytest.raises(client.GcsError) as caught:
        opened.put("a", b"1", "hash")
    assert said in caught.value.message
    assert hint in caught.value.hint
    assert "\n" not in caught.value.message
    assert in_bucket(bucket) == {}


def test_an_object_with_an_unheard_of_name_is_named_in_one_line(bucket: BucketServer) -> None:
    bucket.put("runs", "some/prefix/a\nb", b"1")
    bucket.faults.append(Fault("GET", "alt=media", 400, times=9, message="no"))
    with client.Bucket(URL, {}) as opened, pytest.raises(client.GcsError) as caught:
        opened.get("a\nb")
    assert caught.value.message == URL + r"/a\nb: no"


def test_what_the_bucket_says_is_what_a_copy_says(bucket: BucketServer, here: LocalMachine, tmp_path: Path) -> None:
    write_tree(tmp_path / "source", {cell("a"): b"1"})
    bucket.faults.append(Fault("POST", "uploadType", 403, times=9, message=DENIED))
    said = r"bucket runs: this account lacks storage\.objects\.create \(gcloud storage buckets add-iam-policy-binding"
    with pytest.raises(MidstreamError, match=said):
        copy_tree(Endpoint(here, str(tmp_path / "source")), bucket_endpoint(URL))


def test_whoever_asks_pays_where_the_bucket_wants_it(bucket: BucketServer) -> None:
    bucket.requester_pays.add("runs")
    with (
        client.Bucket(URL, {}) as opened,
        pytest.raises(client.GcsError, match="whoever asks it pays, and nobody was named"),
    ):
        opened.names()
    with client.Bucket(URL, Access(user_project="ours").to_json()) as opened:
        blob = opened.put("a", b"1", "hash")
        assert (opened.names().keys(), opened.get("a"), opened.look("a").crc32c) == ({"a"}, b"1", blob.crc32c)
        opened.join("b", [blob], 1, "hash", "temporary")
    assert in_bucket(bucket) == {"b": b"1"}


def test_without_credentials_one_line_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("STORAGE_EMULATOR_HOST", "GOOGLE_APPLICATION_CREDENTIALS", "GOOGLE_CLOUD_PROJECT"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("CLOUDSDK_CONFIG", str(tmp_path))
    monkeypatch.setenv("NO_GCE_CHECK", "true")
    with pytest.raises(MidstreamError, match=r"no credentials for gs://.*gcloud auth application-default login"):
        bucket_endpoint(URL).host.call("verify.objects.describe", directory=URL, manifest=records.MANIFEST)
    (tmp_path / "key.json").write_text("{}")
    wrong = bucket_endpoint(URL, Access(str(tmp_path / "key.json")))
    with pytest.raises(MidstreamError, match=r"key\.json: no service account's key"):
        wrong.host.call("verify.objects.describe", directory=URL, manifest=records.MANIFEST)


def test_many_parts_are_joined_by_lots(bucket: BucketServer) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(client, "COMPOSED", 3)
        pieces = [random.Random(number).randbytes(100 + number) for number in range(11)]
        with client.Bucket(URL, {}) as opened:
            parts = [opened.put(f"{tree.INCOMING}/x/{n}", data, "", part=True) for n, data in enumerate(pieces)]
            opened.join("whole", parts, sum(map(len, pieces)), "hash", f"{tree.INCOMING}/x/joined")
    assert in_bucket(bucket) == {"whole": b"".join(pieces)}


def test_parts_that_were_joined_though_the_answer_was_lost_are_joined(bucket: BucketServer) -> None:
    with client.Bucket(URL, {}) as opened:
        parts = [opened.put(f"{tree.INCOMING}/x/{n}", data, "", part=True) for n, data in enumerate((b"one", b"two"))]
        bucket.faults.append(Fault("POST", "/compose", "close", times=2))
        opened.join("whole", parts, 6, "hash", f"{tree.INCOMING}/x/joined")
        assert in_bucket(bucket) == {"whole": b"onetwo"}
        other = opened.put(f"{tree.INCOMING}/x/2", b"three", "", part=True)
        bucket.faults.append(Fault("POST", "/compose", 412, message="At least one of the pre-conditions did not hold"))
        with pytest.raises(client.Taken):
            opened.join("whole", [other], 5, "another hash", f"{tree.INCOMING}/x/joined")
        assert in_bucket(bucket)["whole"] == b"onetwo"


def test_the_checksum_of_pieces_is_that_of_the_whole() -> None:
    import google_crc32c

    rng = random.Random(8)
    for _ in range(30):
        pieces = [rng.randbytes(rng.choice([0, 1, 7, 1000, 70_000])) for _ in range(rng.randrange(1, 6))]
        found = client.combined([(google_crc32c.value(piece), len(piece)) for piece in pieces])
        assert found == google_crc32c.value(b"".join(pieces))
