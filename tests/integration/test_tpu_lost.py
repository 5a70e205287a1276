"""A slice that is taken back without a word while it trains: what it left in the bucket goes on, on a new slice that is
asked for by the same command, and by a guard where somebody has set one."""

from __future__ import annotations

import json

import pytest

from midstream_engine import records
from simulators.bucket import BucketServer
from simulators.slice import Slice
from simulators.sshd import Lab
from simulators.tpu_api import TpuServer, tpu_server
from support.command_line import Ended, Run, midstream, refused, start_midstream, step_of
from support.guide import begin

__all__ = ["tpu_server"]
pytestmark = pytest.mark.system
KEPT = ("--certify-steps", "3", "--healthy-steps", "3", "--json")
PATIENCE = 240.0  # seconds for what engines do


def complete(bucket: BucketServer) -> list[str]:
    """Names of the run's checkpoints that are whole, by step."""
    names = (name.split("/") for name in bucket.blobs("runs", "mine/runs/r/checkpoints/"))
    found = [parts[-2] for parts in names if parts[-1] == records.MANIFEST]
    return sorted(found, key=lambda name: records.parse_checkpoint_name(name) or (0, 0))


def certified(moved: Ended) -> dict:
    assert moved.code == 0, (moved.stdout[-2000:], moved.stderr[-2000:])
    certificate = moved.result["certificate"]
    assert certificate["valid"], certificate
    return certificate


def one_lineage(run: Run, holder: str, epoch: int, *lost: range) -> None:
    """Every step once, but for those whose metrics went with a machine's disks: up to what it had saved."""
    assert (run.fence.owner, run.fence.epoch) == (holder, epoch)
    steps = run.spliced()
    gone = {step for each in lost for step in each}
    assert sorted(steps) == sorted(set(range(max(steps) + 1)) - gone)


@pytest.mark.slow  # four engines start, on two cores
@pytest.mark.timeout(1500)
def test_what_is_left_in_the_bucket_goes_on_on_a_slice_asked_for_anew_and_by_a_guard(
    lab: Lab, tpu_server: TpuServer, bucket: BucketServer, runs
) -> None:
    guide = begin(lab, tpu_server, bucket)
    gpu, pod, file = guide.gpu, guide.pod, guide.file
    source = runs(gpu.root, "r")
    source.wait_step(10, PATIENCE)
    moved = certified(midstream("--fleet", file, "--migrate", "r", "--to", "pod", "--yes", *KEPT, timeout=480))
    first = runs(pod.roots[0], "r")
    first.wait(lambda run: len(complete(bucket)) > 2, "checkpoints of its own in the bucket", PATIENCE)
    tpu_server.preempt("n")
    pod.go_away()

    refused(midstream("--fleet", file, "--migrate", "r", "--to", "pod"), 2, "is PREEMPTED", "--source-lost")
    anew = Slice(lab, "again", 1, bucket.environment, port=pod.port)
    tpu_server.workers["n"] = anew.workers
    newest = complete(bucket)[-1]
    ended = midstream("--fleet", file, "--migrate", "r", "--to", "pod", "--source-lost", "--yes", *KEPT, timeout=480)
    proof = certified(ended)
    assert proof["checkpoint"] == newest
    assert proof["step"] > moved["step"]
    assert len(tpu_server.created) == 2
    assert len(tpu_server.nodes) == 1, "what was taken back is deleted"
    second = runs(anew.roots[0], "r")
    assert records.Restore.read(second.paths.attempt(second.attempt).restore).root_digest == proof["root_digest"]
    first_gap = range(moved["step"], proof["step"])
    one_lineage(second, "pod", 3, first_gap)

    second.wait(lambda run: complete(bucket)[-1] != newest, "another checkpoint", PATIENCE)
    guard = start_midstream("--fleet", file, "--guard", "r", "--to", "pod,gpu", "--tries", "1", "--json")
    try:
        assert guard.stderr is not None
        told = next((line for line in guard.stderr if "guarding r on pod" in line), "")
        assert told, (guard.wait(60), "it looks on while all is well")
        tpu_server.preempt("n")
        anew.go_away()
        newest = complete(bucket)[-1]
        source.wait(lambda run: run.alive or guard.poll() is not None, "the run, back where it came from", PATIENCE)
        assert guard.poll() is None, guard.communicate()
        source.wait_step(step_of(newest) + 130, PATIENCE)
        stopped = midstream("--fleet", file, "--stop", "r")
        assert stopped.code == 0, stopped.stderr
        output, talk = guard.communicate(timeout=120.0)
    finally:
        guard.kill()
    assert guard.returncode == 0, talk
    events = [json.loads(line) for line in output.splitlines()]
    assert [event["kind"] for event in events] == ["lost", "moving", "finished", "finished"], talk
    assert "is PREEMPTED" in events[0]["message"]
    assert source.manifest(newest).root_digest, "brought from the bucket to its disk"
    one_lineage(source, "gpu", 4, first_gap, range(proof["step"], step_of(newest)))
