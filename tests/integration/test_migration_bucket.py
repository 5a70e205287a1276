"""A run that moves to a host which keeps checkpoints in a bucket, and back to one which keeps them on its disk."""

from __future__ import annotations

import os
from contextlib import closing
from dataclasses import replace

import pytest

from midstream.hosts.host_pool import open_host
from midstream.launch.bundle import install_engine
from midstream.launch.environment import prepare_environment
from midstream_engine import records
from simulators.bucket import BucketServer
from simulators.sshd import Lab, SshServer, environment
from support.command_line import SLOWER, TINY, Ended, Run, midstream, refused

pytestmark = pytest.mark.system
STORE = "gs://runs/of/ours"
KEPT = ("--certify-steps", "3", "--healthy-steps", "3", "--json")


def in_the_cloud(lab: Lab, server: BucketServer, name: str, devices: int) -> SshServer:
    """A host with an identity of its own for the bucket, which keeps its runs' checkpoints there."""
    host = lab.host(name, devices=devices, sshd=environment(**server.environment))
    host.config = replace(host.config, store="ours")
    return host


def complete(server: BucketServer, run_id: str) -> set[str]:
    """Names of the checkpoints that are whole."""
    start = f"of/ours/runs/{run_id}/checkpoints/"
    found = (name.removeprefix(start).partition("/") for name in server.blobs("runs") if name.startswith(start))
    return {name for name, _, inner in found if inner == records.MANIFEST and not name.startswith(".")}


def certified(moved: Ended, source: Run, target: Run, holder: str) -> str:
    """Name of the checkpoint that it went on from."""
    assert moved.code == 0, (moved.stdout[-2000:], moved.stderr[-2000:])
    certificate = moved.result["certificate"]
    assert certificate["valid"], certificate
    assert (target.fence.owner, source.fence.epoch) == (holder, target.fence.epoch)
    assert (source.alive, target.alive) == (False, True)
    return certificate["checkpoint"]


@pytest.mark.slow  # two whole moves; test_migration_shelf.py has their parts
def test_checkpoints_go_to_the_bucket_and_come_back_from_it(lab: Lab, bucket: BucketServer, runs) -> None:
    gpu, cloud = lab.host("gpu", devices=2), in_the_cloud(lab, bucket, "cloud", 4)
    file = lab.fleet_file(gpu=gpu.config, cloud=cloud.config)
    file.write_text(file.read_text() + f"stores: {{ours: {{url: {STORE}}}}}\n")
    training = (*SLOWER, "--trainer.num_train_steps", "100000", "--trainer.checkpointer.keep", "[{every: 20}]")
    launched = midstream("--fleet", file, "--launch", TINY, "--on", "gpu", "--run-id", "r", "--", *training)
    assert launched.code == 0, launched.stderr
    here, there = runs(gpu.root, "r"), runs(cloud.root, "r")
    here.wait_step(5)
    refused(midstream("--fleet", file, "--migrate", "r", "--to", "cloud", "--mode", "live"), 2, "warm", STORE)

    moved = midstream("--fleet", file, "--migrate", "r", "--to", "cloud", *KEPT)
    sealed = certified(moved, here, there, "cloud")
    plan = moved.of("plan")[0]
    assert (plan["source_store"], plan["target_store"]) == ("", STORE)
    assert "gpu -> this machine -> gs://runs over HTTPS" in plan["route"]
    assert records.Restore.read(there.paths.attempt(2).restore).root_digest == here.manifest(sealed).root_digest
    assert any(f"{sealed}%2Fmanifest.json" in path for method, path in bucket.requests if method == "GET")
    assert there.checkpoints() == []
    assert records.Store.read(there.paths.store_file).url == STORE
    there.wait_step(moved.result["certificate"]["step"] + 25, timeout=180)

    checked = midstream("--fleet", file, "--verify", "r")
    assert checked.code == 0, checked.stderr
    assert STORE in checked.stdout

    back = midstream("--fleet", file, "--migrate", "r", "--to", "gpu", "--mode", "cold", *KEPT)
    again = certified(back, there, here, "gpu")
    assert records.Restore.read(here.paths.attempt(here.attempt).restore).checkpoint == again
    assert again in complete(bucket, "r"), "what was moved stays where it was"
    assert not any("/pins/" in name for name in bucket.blobs("runs"))
    assert not list(gpu.root.glob("runs/r/store.json"))
    shown = midstream("--fleet", file, "--verify", back.result["migration"])
    assert shown.code == 0, (shown.stdout, shown.stderr)


STORED = """
import sys
from midstream_engine.checkpoint.stores import open_store
store = open_store("gs://runs/built/step-1-a001")
store.prepare(1)
store.write("a/0", [memoryview(b"cell")])
store.sync()
store.commit("manifest.json", b"{}")
print(sys.prefix, sorted(open_store("gs://runs/built/step-1-a001").names()), store.get("a/0"))
"""


@pytest.mark.slow  # builds an environment of 100 packages
def test_an_environment_that_is_built_from_the_locks_reads_and_writes_a_bucket(lab: Lab, bucket: BucketServer) -> None:
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
    assert "['a/0', 'manifest.json'] b'cell'" in done.stdout.decode()


@pytest.mark.slow  # two whole moves
def test_a_run_goes_on_from_the_bucket_of_a_machine_that_is_lost(lab: Lab, bucket: BucketServer, runs) -> None:
    gpu, cloud = lab.host("gpu", devices=2), in_the_cloud(lab, bucket, "cloud", 2)
    other = in_the_cloud(lab, bucket, "other", 4)
    file = lab.fleet_file(gpu=gpu.config, cloud=cloud.config, other=other.config)
    file.write_text(file.read_text() + f"stores: {{ours: {{url: {STORE}}}}}\n")
    training = (*SLOWER, "--trainer.num_train_steps", "100000", "--trainer.checkpointer.keep", "[{every: 10}]")
    launched = midstream("--fleet", file, "--launch", TINY, "--on", "gpu", "--run-id", "r", "--", *training)
    assert launched.code == 0, launched.stderr
    here, there, beyond = runs(gpu.root, "r"), runs(cloud.root, "r"), runs(other.root, "r")
    here.wait_step(5)
    moved = midstream("--fleet", file, "--migrate", "r", "--to", "cloud", "--mode", "cold", *KEPT)
    certified(moved, here, there, "cloud")
    first = moved.result["certificate"]["step"]
    newest = f"step-{(first // 10 + 2) * 10}-a002"
    there.wait(lambda run: newest in complete(bucket, "r"), newest, timeout=180)
    there.kill()
    cloud.stop()  # without a word; what it has on its disks is lost

    refused(midstream("--fleet", file, "--migrate", "r", "--to", "other"), 3, "cloud", f"what it left in {STORE}")
    again = midstream("--fleet", file, "--migrate", "r", "--to", "other", "--source-lost", "--yes", *KEPT)
    assert again.code == 0, (again.stdout[-2000:], again.stderr[-2000:])
    certificate = again.result["certificate"]
    assert certificate["valid"], certificate
    assert certificate["step"] >= (first // 10 + 2) * 10, "nothing that it had saved is lost"
    assert beyond.alive
    assert (beyond.fence.epoch, beyond.fence.owner) == (3, "other")
    assert records.Restore.read(beyond.paths.attempt(beyond.attempt).restore).checkpoint == certificate["checkpoint"]
    beyond.wait(lambda run: any("a003" in name for name in complete(bucket, "r")), "a save of its own", timeout=180)
