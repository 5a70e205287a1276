"""The guide's story: one command asks for a TPU slice, and moves a run there from a GPU server."""

from __future__ import annotations

import sys

import pytest

from lab.command_line import SLOWER, TINY, Run, midstream, refused
from lab.slice import Slice, target_text
from lab.sshd import Lab
from lab.tpu_api import TpuServer, tpu_server

__all__ = ["tpu_server"]
pytestmark = pytest.mark.system
WORKERS = 4
KEPT = ("--certify-steps", "3", "--healthy-steps", "3")


@pytest.mark.timeout(600)
@pytest.mark.slow
def test_a_run_moves_to_a_slice_that_is_made_for_it(lab: Lab, tpu_server: TpuServer, runs) -> None:
    gpu, pod = lab.host("gpu", devices=2), Slice(lab, "n", WORKERS)
    tpu_server.workers["n"] = pod.workers
    file = lab.fleet_file(gpu=gpu.config)
    worker = f"{{devices: {4 // WORKERS}, python: {sys.executable}}}"
    target = target_text("pod", pod, lab.directory / "key", create="true", spot="true", worker=worker)
    file.write_text(file.read_text() + "targets:\n" + target)

    training = (*SLOWER, "--trainer.num_train_steps", "100000", "--trainer.checkpointer.keep", "[{every: 20}]")
    launched = midstream("--fleet", file, "--launch", TINY, "--on", "gpu", "--run-id", "r", "--", *training)
    assert launched.code == 0, launched.stderr
    source, there = runs(gpu.root, "r"), runs(pod.roots[0], "r")
    source.wait_step(10)
    refused(midstream("--fleet", file, "--migrate", "r", "--to", "pod", *KEPT), 3, "pod is not there", "--yes")
    refused(midstream("--fleet", file, "--migrate", "r", "--to", "pod", "--dry-run"), 3, "pod is not there")
    assert tpu_server.created == []

    moved = midstream("--fleet", file, "--migrate", "r", "--to", "pod", "--yes", "--json", *KEPT, timeout=480)
    certified(moved, source, there, "pod")
    assert moved.of("created")[0]["slice"] == "lab/here-a/n"
    assert len(tpu_server.created) == 1

    assert midstream("--fleet", file, "--delete", "pod", "--yes").code == 0
    assert tpu_server.nodes == {}


def certified(moved, source: Run, target: Run, holder: str) -> None:
    assert moved.code == 0, (moved.stdout[-2000:], moved.stderr[-2000:])
    certificate = moved.result["certificate"]
    assert certificate["valid"], certificate
    assert (target.fence.holder, source.fence.epoch) == (holder, target.fence.epoch)
    assert not source.alive
    assert target.alive
