"""Migrations between hosts with a disk and with a bucket as checkpoint store."""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import closing
from dataclasses import replace

import pytest

from midstream.hosts.host_pool import open_host
from midstream.install.bundle import install_engine
from midstream.install.environment import prepare_environment
from midstream_core import records
from simulators.object_stores.bucket import BucketServer
from simulators.object_stores.s3_server import s3_server
from simulators.sshd import Lab, SshServer, environment
from support.command_line import SLOWER, TINY, Ended, Run, midstream, refused

pytestmark = pytest.mark.system
STORE = "gs://runs/of/ours"
FLAGS = ("--certify-steps", "3", "--healthy-steps", "3", "--json")


def cloud_host(lab: Lab, server: BucketServer, name: str, devices: int) -> SshServer:
    """Create a host with credentials of its own, whose checkpoint store is the bucket."""
    host = lab.host(name, devices=devices, sshd=environment(**server.environment))
    host.config = replace(host.config, store="ours")
    return host


def complete(server: BucketServer, run_id: str) -> set[str]:
    """Return the names of the complete checkpoints."""
    start = f"of/ours/runs/{run_id}/checkpoints/"
    found = (name.removeprefix(start).partition("/") for name in server.blobs("runs") if name.startswith(start))
    return {name for name, _, inner in found if inner == records.MANIFEST and not name.startswith(".")}


def certified(moved: Ended, source: Run, target: Run, owner: str) -> str:
    """Assert that a migration was certified; return the name of its checkpoint."""
    assert moved.code == 0, (moved.stdout[-2000:], moved.stderr[-2000:])
    certificate = moved.result["certificate"]
    assert certificate["valid"], certificate
    assert (target.fence.owner, source.fence.epoch) == (owner, target.fence.epoch)
    assert (source.running, target.running) == (False, True)
    return certificate["checkpoint"]


@pytest.mark.slow  # two complete migrations; test_migration_store.py has their parts
def test_migration_to_bucket_and_back(lab: Lab, bucket: BucketServer, runs: Callable[..., Run]) -> None:
    gpu, cloud = lab.host("gpu", devices=2), cloud_host(lab, bucket, "cloud", 4)
    file = lab.fleet_file(gpu=gpu.config, cloud=cloud.config)
    file.write_text(file.read_text() + f"stores: {{ours: {{url: {STORE}}}}}\n")
    training = (*SLOWER, "--trainer.num_train_steps", "100000", "--trainer.checkpointer.keep", "[{every: 20}]")
    launched = midstream("--fleet", file, "--launch", TINY, "--on", "gpu", "--run-id", "r", "--", *training)
    assert launched.code == 0, launched.stderr
    here, there = runs(gpu.root, "r"), runs(cloud.root, "r")
    here.wait_step(5)
    refused(midstream("--fleet", file, "--migrate", "r", "--to", "cloud", "--mode", "live"), 2, "warm", STORE)

    moved = midstream("--fleet", file, "--migrate", "r", "--to", "cloud", *FLAGS)
    sealed = certified(moved, here, there, "cloud")
    plan = moved.of("plan")[0]
    route = plan["route"]
    assert (route["source_store"], route["target_store"]) == ("", STORE)
    assert "gpu -> this machine -> gs://runs over HTTPS" in route["probed"]
    assert records.Restore.read(there.paths.attempt(2).restore).root_digest == here.manifest(sealed).root_digest
    assert any(f"{sealed}%2Fmanifest.json" in path for method, path in bucket.requests if method == "GET")
    assert there.checkpoints() == []
    assert records.Store.read(there.paths.store_file).url == STORE
    there.wait_step(moved.result["certificate"]["step"] + 25, timeout=180)

    checked = midstream("--fleet", file, "--verify", "r")
    assert checked.code == 0, checked.stderr
    assert STORE in checked.stdout

    back = midstream("--fleet", file, "--migrate", "r", "--to", "gpu", "--mode", "cold", *FLAGS)
    again = certified(back, there, here, "gpu")
    assert records.Restore.read(here.paths.attempt(here.attempt).restore).checkpoint == again
    assert again in complete(bucket, "r"), "the source's checkpoint remains"
    assert not any("/pins/" in name for name in bucket.blobs("runs"))
    assert not list(gpu.root.glob("runs/r/store.json"))
    shown = midstream("--fleet", file, "--verify", back.result["migration"])
    assert shown.code == 0, (shown.stdout, shown.stderr)


@pytest.mark.slow  # a complete migration; test_transfer_s3.py and test_checkpoint_s3.py have its parts
def test_migration_from_gcs_to_s3(lab: Lab, bucket: BucketServer, runs: Callable[..., Run]) -> None:
    """Both stores are buckets, of two kinds: the bytes stream from one to the other."""
    s3_store = "s3://my-bucket/bucket/runs"
    with s3_server("my-bucket") as s3:
        cloud = cloud_host(lab, bucket, "cloud", 2)
        keys = {
            name: value for name, value in s3.environment.items() if "ENDPOINT" not in name and "REGION" not in name
        }
        gpu = lab.host("gpu", devices=4, sshd=environment(**keys))
        gpu.config = replace(gpu.config, store="theirs")
        file = lab.fleet_file(cloud=cloud.config, gpu=gpu.config)
        theirs = f"theirs: {{url: {s3_store}, endpoint: '{s3.url}', region: us-east-1}}"
        file.write_text(file.read_text() + f"stores: {{ours: {{url: {STORE}}}, {theirs}}}\n")
        training = (*SLOWER, "--trainer.num_train_steps", "100000", "--trainer.checkpointer.keep", "[{every: 20}]")
        launched = midstream("--fleet", file, "--launch", TINY, "--on", "cloud", "--run-id", "r", "--", *training)
        assert launched.code == 0, launched.stderr
        source, target = runs(cloud.root, "r"), runs(gpu.root, "r")
        source.wait_step(5)
        with pytest.MonkeyPatch.context() as patch:
            for name, value in keys.items():
                patch.setenv(name, value)
            moved = midstream("--fleet", file, "--migrate", "r", "--to", "gpu", *FLAGS)
            sealed = certified(moved, source, target, "gpu")
            route = moved.of("plan")[0]["route"]
            assert (route["source_store"], route["target_store"]) == (STORE, s3_store)
            assert "gs://runs" in route["probed"]
            assert "s3://my-bucket" in route["probed"]
            assert records.Store.read(target.paths.store_file).url == s3_store
            assert target.checkpoints() == []
            checked = midstream("--fleet", file, "--verify", "r")
            assert checked.code == 0, checked.stderr
            assert s3_store in checked.stdout
            listed = midstream("--fleet", file, "--checkpoints", "r")
            assert "a002" in listed.stdout, (listed.stdout, listed.stderr)
            assert sealed.startswith("step-")


STORED = """
import sys
from midstream_engine.checkpoint.stores import open_store
store = open_store("gs://runs/built/step-1-a001")
store.prepare(1)
store.write("a/0", [memoryview(b"chunk")])
store.sync()
store.commit("manifest.json", b"{}")
print(sys.prefix, sorted(open_store("gs://runs/built/step-1-a001").names()), store.get("a/0"))
"""


@pytest.mark.slow  # builds an environment of 100 packages
def test_locked_environment_reads_and_writes_bucket(lab: Lab, bucket: BucketServer) -> None:
    server = lab.host("cloud", devices=1, python=None)
    network = {key: value for key, value in os.environ.items() if key.startswith(("PIP_", "UV_", "SSL_", "HTTP"))}
    config = replace(server.config, store="gs://runs/of/ours", env=network)
    with closing(open_host("cloud", config)) as host:
        host.connect()
        built = prepare_environment(host, config, print)
        assert built.how.startswith("built from the lock")
        engine = install_engine(host)
        done = host.run(
            [built.python, "-c", STORED], env={"PYTHONPATH": engine.directory, **bucket.environment}, timeout=300
        )
    assert done.returncode == 0, done.stderr.decode()[-2000:]
    assert f"{server.root}/envs/" in done.stdout.decode()
    assert "['a/0', 'manifest.json'] b'chunk'" in done.stdout.decode()


@pytest.mark.slow  # two complete migrations
def test_migration_from_bucket_of_lost_source(lab: Lab, bucket: BucketServer, runs: Callable[..., Run]) -> None:
    gpu, cloud = lab.host("gpu", devices=2), cloud_host(lab, bucket, "cloud", 2)
    other = cloud_host(lab, bucket, "other", 4)
    file = lab.fleet_file(gpu=gpu.config, cloud=cloud.config, other=other.config)
    file.write_text(file.read_text() + f"stores: {{ours: {{url: {STORE}}}}}\n")
    training = (*SLOWER, "--trainer.num_train_steps", "100000", "--trainer.checkpointer.keep", "[{every: 10}]")
    launched = midstream("--fleet", file, "--launch", TINY, "--on", "gpu", "--run-id", "r", "--", *training)
    assert launched.code == 0, launched.stderr
    here, there, third = runs(gpu.root, "r"), runs(cloud.root, "r"), runs(other.root, "r")
    here.wait_step(5)
    moved = midstream("--fleet", file, "--migrate", "r", "--to", "cloud", "--mode", "cold", *FLAGS)
    certified(moved, here, there, "cloud")
    first = moved.result["certificate"]["step"]
    newest = f"step-{(first // 10 + 2) * 10}-a002"
    there.wait(lambda _: newest in complete(bucket, "r"), newest, timeout=180)
    there.kill()
    cloud.stop()  # without a notice; the files on its disk are lost

    refused(midstream("--fleet", file, "--migrate", "r", "--to", "other"), 3, "cloud", f"its checkpoints in {STORE}")
    again = midstream("--fleet", file, "--migrate", "r", "--to", "other", "--source-lost", "--yes", *FLAGS)
    assert again.code == 0, (again.stdout[-2000:], again.stderr[-2000:])
    certificate = again.result["certificate"]
    assert certificate["valid"], certificate
    assert certificate["step"] >= (first // 10 + 2) * 10, "its newest checkpoint is used"
    assert third.running
    assert (third.fence.epoch, third.fence.owner) == (3, "other")
    assert records.Restore.read(third.paths.attempt(third.attempt).restore).checkpoint == certificate["checkpoint"]
    third.wait(lambda _: any("a003" in name for name in complete(bucket, "r")), "a save of its own", timeout=180)
