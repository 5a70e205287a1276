"""The TPU guide: from a GPU server over a bucket to a TPU slice and back."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from midstream_core import records
from simulators.google.slice import Slice
from simulators.google.tpu_api import TpuServer, tpu_server
from simulators.object_stores.bucket import BucketServer
from simulators.sshd import Lab
from support.command_line import Ended, Run, midstream, refused
from support.guide import begin

__all__ = ["tpu_server"]
pytestmark = pytest.mark.system
WORKERS = 4
FLAGS = ("--certify-steps", "3", "--healthy-steps", "3")


@pytest.mark.timeout(1200)
@pytest.mark.slow
def test_migration_to_created_slice_and_back(
    lab: Lab, tpu_server: TpuServer, bucket: BucketServer, runs: Callable[..., Run]
) -> None:
    guide = begin(lab, tpu_server, bucket, workers=WORKERS, devices=2, of_worker=4 // WORKERS)
    gpu, pod, file = guide.gpu, guide.pod, guide.file
    source, there = runs(gpu.root, "r"), runs(pod.roots[0], "r")
    source.wait_step(10)
    refused(midstream("--fleet", file, "--migrate", "r", "--to", "pod", *FLAGS), 3, "pod does not exist", "--yes")
    refused(midstream("--fleet", file, "--migrate", "r", "--to", "pod", "--dry-run"), 3, "pod does not exist")
    assert tpu_server.created == []

    moved = midstream("--fleet", file, "--migrate", "r", "--to", "pod", "--yes", "--json", *FLAGS, timeout=480)
    assert_certified(moved, source, there, "pod")
    assert moved.of("created")[0]["slice"] == "lab/here-a/n"
    assert len(tpu_server.created) == 1
    restored = there.paths.attempt(2)
    assert records.Restore.read(restored.restore).root_digest == moved.result["certificate"]["root_digest"]
    assert [status for number in range(WORKERS) if (status := worker_status(pod, number)).processes == WORKERS]
    assert not any(list(root.glob("runs/r/checkpoints/*")) for root in pod.roots), "no copy on the workers' disks"
    assert any("/r/checkpoints/" in name for name in bucket.blobs("runs", "mine/runs/"))
    there.wait_step(moved.result["certificate"]["step"] + 5, timeout=240)

    back = midstream("--fleet", file, "--migrate", "r", "--to", "gpu", "--json", *FLAGS, timeout=480)
    assert_certified(back, there, source, "gpu")
    assert [event["message"] for event in back.events if "gs://runs -> this machine -> gpu" in event.get("message", "")]
    assert midstream("--fleet", file, "--verify", back.result["migration"]).code == 0
    assert midstream("--fleet", file, "--delete", "pod", "--yes").code == 0
    assert tpu_server.nodes == {}


def worker_status(pod: Slice, number: int) -> records.Status:
    """Return the status of a worker's process."""
    return records.Status.read(records.RunPaths(str(pod.roots[number]), "r").attempt(2).status(number))


def assert_certified(moved: Ended, source: Run, target: Run, owner: str) -> None:
    assert moved.code == 0, (moved.stdout[-2000:], moved.stderr[-2000:])
    certificate = moved.result["certificate"]
    assert certificate["valid"], certificate
    assert (target.fence.owner, source.fence.epoch) == (owner, target.fence.epoch)
    assert not source.running
    assert target.running
