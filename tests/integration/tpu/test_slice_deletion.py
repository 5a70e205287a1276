"""--delete of a slice: what trains there is named, and saved first where that is wanted."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from midstream.fleet.fleet_file import load_fleet
from midstream.providers import fleet_slices
from midstream_core import records
from simulators.google.slice import Slice, target_text
from simulators.google.tpu_api import TpuServer, fast_polling, tpu_server
from simulators.object_stores.bucket import BucketServer
from simulators.sshd import Lab
from support.command_line import TINY, midstream, refused
from support.guide import TRAINING
from support.run_directory import RunDirectory

__all__ = ["fast_polling", "tpu_server"]
pytestmark = [pytest.mark.drawn, pytest.mark.system, pytest.mark.usefixtures("fast_polling")]


@pytest.fixture
def pod(lab: Lab, tpu_server: TpuServer) -> Slice:
    node = Slice(lab, "n", 1)
    tpu_server.workers["n"] = node.workers
    return node


def fleet_file(lab: Lab, node: Slice, worker: str = "", stores: str = "") -> Path:
    words = {"create": "true", "spot": "true", "worker": f"{{devices: 1, python: {sys.executable}{worker}}}"}
    file = lab.directory / "fleet.yaml"
    file.write_text(f"hosts: {{}}\n{stores}targets:\n" + target_text("pod", node, lab.directory / "key", **words))
    return file


def created(file: Path) -> None:
    """Create the slice, and register our key on its worker."""
    fleet = load_fleet(file)
    target = fleet.slices["pod"]
    fleet_slices.provider_of(target).create("pod", target, lambda _: None)
    fleet_slices.wait_for_login(fleet_slices.with_slices(fleet, lambda _: None), "pod", lambda _: None)


def test_training_run_is_named_before_deletion(lab: Lab, tpu_server: TpuServer, pod: Slice) -> None:
    file = fleet_file(lab, pod)
    created(file)
    run = RunDirectory(pod.roots[0], "webtext")
    run.fence(1, "pod")
    run.lineage({"attempt": 1, "epoch": 1})
    run.status(1, records.TRAINING, 70)  # of this process, which runs
    run.checkpoint(60)
    refusal = midstream("--fleet", file, "--delete", "pod", "--json")
    line = refused(refusal, 3, "lab/here-a/n, where webtext trains, would be deleted", "--save-first")
    assert "--yes deletes it" in line
    (occupant,) = refusal.of("occupant")
    assert (occupant["run"], occupant["host"], occupant["step"], occupant["store"]) == ("webtext", "pod-0", 70, "")
    assert (
        "webtext trains on pod-0 at step 70; its newest checkpoint is of step 60, on the slice's disks"
        in refusal.stderr
    )
    assert "midstream --migrate webtext --to TARGET moves it away first" in refusal.stderr
    saving = midstream("--fleet", file, "--delete", "lab/here-a/n", "--yes", "--save-first")
    refused(saving, 3, "webtext has no bucket: a checkpoint that is saved there is deleted with the slice", "--migrate")
    assert tpu_server.nodes, "nothing is deleted"
    agreed = midstream("--fleet", file, "--delete", "pod", "--yes")
    assert (agreed.code, tpu_server.nodes) == (0, {})
    assert "webtext trains on pod-0" in agreed.stderr


def test_unreachable_worker_is_no_evidence_of_an_idle_slice(lab: Lab, tpu_server: TpuServer, pod: Slice) -> None:
    file = fleet_file(lab, pod)
    created(file)
    pod.servers[0].stop()
    refusal = midstream("--fleet", file, "--delete", "pod")
    refused(refusal, 3, "lab/here-a/n would be deleted", "--yes")
    assert "what trains there may be unknown: pod-0 does not answer" in refusal.stderr
    other = file.with_name("other.yaml")
    other.write_text("hosts: {here: {type: local}}\n")
    refusal = midstream("--fleet", other, "--delete", "lab/here-a/n")
    assert "lab/here-a/n is not a target of the fleet file: what trains there is unknown" in refusal.stderr
    assert midstream("--fleet", other, "--delete", "lab/here-a/n", "--yes").code == 0
    assert tpu_server.nodes == {}


@pytest.mark.drawn
def test_run_is_saved_before_its_slice_is_deleted(
    lab: Lab, tpu_server: TpuServer, bucket: BucketServer, tmp_path: Path
) -> None:
    node = Slice(lab, "n", 1, bucket.environment)
    tpu_server.workers["n"] = node.workers
    file = fleet_file(lab, node, ", store: ckpt", "stores: {ckpt: {url: gs://runs/mine}}\n")
    launched = midstream(
        "--fleet", file, "--launch", TINY, "--on", "pod", "--run-id", "r", "--yes", "--", *TRAINING, timeout=480
    )
    assert launched.code == 0, launched.stderr[-2000:]
    deleted = midstream("--fleet", file, "--delete", "pod", "--yes", "--save-first", "--json", timeout=480)
    assert deleted.code == 0, deleted.stderr[-2000:]
    (saved,) = deleted.of("saved")
    assert deleted.of("occupant")[0]["store"] == "gs://runs/mine"
    manifest = f"mine/runs/r/checkpoints/{saved['checkpoint']}/{records.MANIFEST}"
    assert manifest in bucket.blobs("runs", "mine/runs/r/checkpoints/"), "what was saved outlives the slice"
    assert tpu_server.nodes == {}
