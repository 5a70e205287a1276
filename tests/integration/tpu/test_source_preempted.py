"""A slice is preempted while it trains: the run continues from its bucket.

First on a new slice that the migrating command requests, then on the GPU server, by a guard.
"""

from __future__ import annotations

import json
from collections.abc import Callable

import pytest

from midstream_core import records
from simulators.google.slice import Slice
from simulators.google.tpu_api import TpuServer, tpu_server
from simulators.object_stores.bucket import BucketServer
from simulators.sshd import Lab
from support.command_line import Ended, Run, midstream, refused, start_midstream, step_of
from support.guide import begin

__all__ = ["tpu_server"]
pytestmark = pytest.mark.system
FLAGS = ("--certify-steps", "3", "--healthy-steps", "3", "--json")
PATIENCE = 240.0  # seconds for what engines do


def complete(bucket: BucketServer) -> list[str]:
    """Return the names of the run's complete checkpoints, sorted by step."""
    names = (name.split("/") for name in bucket.blobs("runs", "mine/runs/r/checkpoints/"))
    found = [parts[-2] for parts in names if parts[-1] == records.MANIFEST]
    return sorted(found, key=lambda name: records.parse_checkpoint_name(name) or (0, 0))


def certified(moved: Ended) -> dict:
    assert moved.code == 0, (moved.stdout[-2000:], moved.stderr[-2000:])
    certificate = moved.result["certificate"]
    assert certificate["valid"], certificate
    return certificate


def assert_one_lineage(run: Run, owner: str, epoch: int, *lost: range) -> None:
    """Assert every step once, except those whose metrics a machine lost."""
    assert (run.fence.owner, run.fence.epoch) == (owner, epoch)
    steps = run.spliced()
    missing = {step for each in lost for step in each}
    assert sorted(steps) == sorted(set(range(max(steps) + 1)) - missing)


@pytest.mark.slow  # four engines start, on two cores
@pytest.mark.timeout(1500)
def test_run_of_preempted_slice_continues_from_bucket(
    lab: Lab, tpu_server: TpuServer, bucket: BucketServer, runs: Callable[..., Run]
) -> None:
    guide = begin(lab, tpu_server, bucket)
    gpu, pod, file = guide.gpu, guide.pod, guide.file
    source = runs(gpu.root, "r")
    source.wait_step(10, PATIENCE)
    moved = certified(midstream("--fleet", file, "--migrate", "r", "--to", "pod", "--yes", *FLAGS, timeout=480))
    first = runs(pod.roots[0], "r")
    first.wait(lambda _: len(complete(bucket)) > 2, "checkpoints of its own in the bucket", PATIENCE)
    tpu_server.preempt("n")
    pod.go_away()

    refused(midstream("--fleet", file, "--migrate", "r", "--to", "pod"), 2, "is PREEMPTED", "--source-lost")
    replacement = Slice(lab, "again", 1, bucket.environment, port=pod.port)
    tpu_server.workers["n"] = replacement.workers
    newest = complete(bucket)[-1]
    ended = midstream("--fleet", file, "--migrate", "r", "--to", "pod", "--source-lost", "--yes", *FLAGS, timeout=480)
    certificate = certified(ended)
    assert certificate["checkpoint"] == newest
    assert certificate["step"] > moved["step"]
    assert len(tpu_server.created) == 2
    assert len(tpu_server.nodes) == 1, "the preempted slice is deleted"
    second = runs(replacement.roots[0], "r")
    assert records.Restore.read(second.paths.attempt(second.attempt).restore).root_digest == certificate["root_digest"]
    first_gap = range(moved["step"], certificate["step"])
    assert_one_lineage(second, "pod", 3, first_gap)

    second.wait(lambda _: complete(bucket)[-1] != newest, "another checkpoint", PATIENCE)
    guard = start_midstream("--fleet", file, "--guard", "r", "--to", "pod,gpu", "--tries", "1", "--json")
    try:
        assert guard.stderr is not None
        line = next((line for line in guard.stderr if "guarding r on pod" in line), "")
        assert line, guard.wait(60)
        tpu_server.preempt("n")
        replacement.go_away()
        newest = complete(bucket)[-1]
        source.wait(lambda run: run.running or guard.poll() is not None, "the run on its first host", PATIENCE)
        assert guard.poll() is None, guard.communicate()
        source.wait_step(step_of(newest) + 130, PATIENCE)
        stopped = midstream("--fleet", file, "--stop", "r")
        assert stopped.code == 0, stopped.stderr
        output, errors = guard.communicate(timeout=120.0)
    finally:
        guard.kill()
    assert guard.returncode == 0, errors
    events = [json.loads(line) for line in output.splitlines()]
    assert [event["kind"] for event in events] == ["lost", "migrating", "finished", "finished"], errors
    assert "is PREEMPTED" in events[0]["message"]
    assert source.manifest(newest).root_digest, "copied from the bucket to its disk"
    assert_one_lineage(source, "gpu", 4, first_gap, range(certificate["step"], step_of(newest)))
