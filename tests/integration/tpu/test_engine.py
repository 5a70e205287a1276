"""The engine on a slice of four workers: started, saved and stopped as one."""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from midstream.fleet.tpu_target import TpuTarget
from midstream.launch.start_attempt import ProcessPosition
from midstream_core import google_metadata, records
from simulators.google.metadata import MetadataServer
from simulators.google.slice import Slice, target_text
from simulators.google.tpu_api import TpuServer, tpu_server
from simulators.sshd import Lab
from support.command_line import TINY, midstream
from support.launched_processes import kill_launched

__all__ = ["tpu_server"]
pytestmark = pytest.mark.system
WORKERS = 4


@pytest.fixture
def pod(lab: Lab, tpu_server: TpuServer, metadata: MetadataServer) -> Iterator[Slice]:
    """Create a slice; kill its engines after the test."""
    node = Slice(lab, "n", WORKERS, {google_metadata.VARIABLE: metadata.address})
    tpu_server.workers["n"] = node.workers
    yield node
    kill_launched(lab.directory)


def statuses(pod: Slice) -> list[records.Status | None]:
    paths = [records.RunPaths(str(root), "r").attempt(1) for root in pod.roots]
    return [records.Status.read_or_none(each.status(process)) for process, each in enumerate(paths)]


def until(condition: Callable[[], bool], what: str, pod: Slice, timeout: float = 240) -> None:
    deadline = time.monotonic() + timeout
    while not condition():
        if time.monotonic() > deadline:
            log = Path(records.RunPaths(str(pod.roots[0]), "r").attempt(1).log(0))
            pytest.fail(f"{what}: not within {timeout} s\n" + (log.read_text()[-1500:] if log.exists() else ""))
        time.sleep(0.1)


@pytest.mark.slow
def test_slice_trains_as_one_mesh_and_saves_at_notice(lab: Lab, pod: Slice, metadata: MetadataServer) -> None:
    file = lab.directory / "fleet.yaml"
    worker = f"{{devices: 1, python: {sys.executable}}}"
    file.write_text("targets:\n" + target_text("pod", pod, lab.directory / "key", create="true", worker=worker))
    training = ("--trainer.num_train_steps", "100000", "--trainer.checkpointer.keep", "[{every: 100000}]")
    command = ("--fleet", file, "--launch", TINY, "--on", "pod", "--run-id", "r", "--yes")
    launched = midstream(*command, "--json", "--", *training)
    assert launched.code == 0, launched.stderr
    assert [event["event"] for event in launched.events] == ["price", "created", "result"]
    assert "runs on pod-0, pod-1, pod-2, pod-3, one process each" in launched.stderr

    until(lambda: all(each and each.step >= 3 for each in statuses(pod)), "three steps everywhere", pod)
    assert [each.process for each in statuses(pod) if each] == [0, 1, 2, 3]
    assert [len(each.devices) for each in statuses(pod) if each] == [4] * 4, "one mesh of all devices"
    assert [each.host for each in statuses(pod) if each] == ["pod-0", "pod-1", "pod-2", "pod-3"]

    def saved() -> list[list[str]]:
        found = [sorted(Path(records.RunPaths(str(root), "r").checkpoints).glob("step-*")) for root in pod.roots]
        return [[each.name for each in names if each.name.startswith("step-")] for names in found]

    before = saved()
    metadata.values["maintenance-event"] = "TERMINATE_ON_HOST_MAINTENANCE"
    until(lambda: all(len(new) > len(old) for new, old in zip(saved(), before, strict=True)), "a save everywhere", pod)
    assert any("maintenance-event" in path for path in metadata.requested)

    (last,) = [each for each in statuses(pod) if each and each.process == 3]
    os.kill(last.pid, signal.SIGTERM)  # as a machine that shuts down does, on one worker alone
    until(lambda: all(each and each.state == records.STOPPED for each in statuses(pod)), "all stopped", pod)
    assert len({each.step for each in statuses(pod) if each}) == 1, "all at the same step"
    assert len({each.checkpoint for each in statuses(pod) if each}) == 1


def test_slice_workers_initialize_jax_distributed() -> None:
    assert ProcessPosition(2, ("a", "b", "c"), "").flags == ("--trainer.distributed.initialize_jax_distributed", "true")
    assert TpuTarget(project="p", zone="z").price_class == "on demand"
