"""On Google's machines: an engine saves before they are taken away, and the workers of a slice know each other."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from midstream_engine import preemption_notices, records
from midstream_engine.config.distributed import DistributedConfig
from midstream_engine.processes.rendezvous import complete
from simulators.metadata import MetadataServer

ENGINE = """
import os, signal, sys, time
from midstream_engine import records
state, path = sys.argv[1:]
me = records.this_process()
signal.signal(signal.SIGUSR1, lambda *_: sys.exit(7))
records.Status(state, 3, 0, me.boot_id, me.pid, me.start_ticks, time.time(), attempt=1).write(path)
time.sleep(float(os.environ["FOR"]))
"""


def supervise(directory: Path, server: str, state: str, seconds: float = 60) -> subprocess.CompletedProcess[str]:
    files = records.AttemptPaths(str(directory))
    argv = [sys.executable, "-m", "midstream_engine.supervise", "--attempt", files.dir, "--process", "0", "--"]
    return subprocess.run(
        [*argv, sys.executable, "-c", ENGINE, state, files.status(0)],
        env={**os.environ, preemption_notices.SERVER: server, "FOR": str(seconds)},
        capture_output=True, text=True, timeout=120,
    )  # fmt: skip


@pytest.mark.parametrize(
    ("name", "value"), [("preempted", "TRUE"), ("maintenance-event", "TERMINATE_ON_HOST_MAINTENANCE")]
)
def test_an_engine_that_trains_is_told_to_save(tmp_path: Path, name: str, value: str) -> None:
    with MetadataServer(**{name: value}) as server:
        ended = supervise(tmp_path, server.address, records.TRAINING)
    assert (ended.returncode, "a save is asked for" in ended.stdout) == (7, True), ended


def test_one_that_does_not_train_is_left_alone_and_so_is_one_without_a_notice(tmp_path: Path) -> None:
    with MetadataServer(preempted="TRUE") as server:
        ended = supervise(tmp_path, server.address, records.ON_STANDBY, seconds=4)
    assert (ended.returncode, ended.stdout) == (0, ""), ended
    with MetadataServer(**{"maintenance-event": "MIGRATE_ON_HOST_MAINTENANCE"}) as server:
        ended = supervise(tmp_path, server.address, records.TRAINING, seconds=4)
        assert server.asked, "it was asked"
    assert (ended.returncode, ended.stdout) == (0, ""), ended


def test_a_notice_is_told_once_and_again_after_it_was_called_off(monkeypatch: pytest.MonkeyPatch) -> None:
    with MetadataServer() as server:
        monkeypatch.setenv(preemption_notices.SERVER, server.address)
        looking = preemption_notices.Notices(every=0.02)
        looking.start()

        def until(told: bool, what: str) -> str:
            server.values["preempted"] = what
            asked, deadline, found = len(server.asked), time.monotonic() + 60, ""
            while not found if told else len(server.asked) < asked + 8:
                found = found or looking.take()
                assert time.monotonic() < deadline
                time.sleep(0.01)
            return found

        assert until(False, "FALSE") == ""
        assert until(True, "TRUE") == "preempted: TRUE"
        assert until(False, "TRUE") == ""
        assert until(False, "FALSE") == ""
        assert until(True, "TRUE") == "preempted: TRUE"


def test_the_workers_of_a_slice_need_no_arguments(monkeypatch: pytest.MonkeyPatch) -> None:
    """jax's own detection, against the metadata that a TPU VM has."""
    from jax._src.clusters import cloud_tpu_cluster

    values = {
        "attributes/agent-worker-number": "2",
        "attributes/worker-network-endpoints": "a:b:127.0.0.1,a:b:10.0.0.3,a:b:10.0.0.4,a:b:10.0.0.5",
        "attributes/tpu-env": "ACCELERATOR_TYPE: 'v3-32'",
    }
    with MetadataServer(**values) as server:
        monkeypatch.setattr(cloud_tpu_cluster, "running_in_cloud_tpu_vm", True)
        monkeypatch.setenv("GCE_METADATA_IP", server.address)
        monkeypatch.delenv("TPU_SKIP_MDS_QUERY", raising=False)
        found = complete(DistributedConfig(initialize_jax_distributed=True), {})
    assert found.coordinator_address == f"127.0.0.1:{cloud_tpu_cluster.coordinator_port}"
    assert (found.num_processes, found.process_id) == (4, 2)
