"""Google's machines: an engine saves before a preemption; workers of a slice find each other."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from midstream_core import google_metadata, records
from midstream_engine.config.distributed import DistributedConfig
from midstream_engine.processes.rendezvous import complete
from midstream_host import preemption_watch as preemption_notices
from simulators.google.metadata import MetadataServer

ENGINE = """
import os, signal, sys, time
from midstream_core import records
state, path = sys.argv[1:]
me = records.this_process()
signal.signal(signal.SIGUSR1, lambda *_: sys.exit(7))
records.Status(state, 3, 0, me.boot_id, me.pid, me.start_ticks, time.time(), attempt=1).write(path)
sys.stdin.read()
"""


def supervise(directory: Path, server: MetadataServer, state: str, polls: int = 0) -> tuple[int, str]:
    """Return the exit code and the output of a supervisor whose engine ends with its standard input.

    Args:
        directory: The attempt's directory.
        server: The metadata server.
        state: State of the engine.
        polls: The engine ends once the supervisor begins this poll; 0 if a signal ends it.
    """
    files = records.AttemptPaths(str(directory))
    argv = [sys.executable, "-m", "midstream_host.supervise", "--attempt", files.dir, "--process", "0", "--"]
    with subprocess.Popen(
        [*argv, sys.executable, "-c", ENGINE, state, files.status(0)],
        env={**os.environ, google_metadata.VARIABLE: server.address},
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
    ) as process:  # fmt: skip
        assert process.stdin is not None
        assert process.stdout is not None
        deadline = time.monotonic() + 120
        while len([path for path in server.requested if "preempted" in path]) < polls:
            assert time.monotonic() < deadline
            time.sleep(0.01)
        if polls:
            process.stdin.close()
        return process.wait(120), process.stdout.read()


@pytest.mark.parametrize(
    ("name", "value"), [("preempted", "TRUE"), ("maintenance-event", "TERMINATE_ON_HOST_MAINTENANCE")]
)
def test_preemption_notice_makes_training_engine_save(tmp_path: Path, name: str, value: str) -> None:
    with MetadataServer(**{name: value}) as server:
        code, output = supervise(tmp_path, server, records.TRAINING)
    assert (code, "requesting a save" in output) == (7, True), output


def test_preemption_notice_leaves_other_engines_alone(tmp_path: Path) -> None:
    with MetadataServer(preempted="TRUE") as server:
        assert supervise(tmp_path, server, records.ON_STANDBY, polls=2) == (0, "")
    with MetadataServer(**{"maintenance-event": "MIGRATE_ON_HOST_MAINTENANCE"}) as server:
        assert supervise(tmp_path, server, records.TRAINING, polls=2) == (0, "")


def test_preemption_notice_is_sent_once_until_withdrawn(monkeypatch: pytest.MonkeyPatch) -> None:
    with MetadataServer() as server:
        monkeypatch.setenv(google_metadata.VARIABLE, server.address)
        looking = preemption_notices.PreemptionNotices(interval=0.02)
        looking.start()

        def until(notified: bool, what: str) -> str:
            server.values["preempted"] = what
            requests, deadline, found = len(server.requested), time.monotonic() + 60, ""
            while not found if notified else len(server.requested) < requests + 8:
                found = found or looking.take()
                assert time.monotonic() < deadline
                time.sleep(0.01)
            return found

        assert until(False, "FALSE") == ""
        assert until(True, "TRUE") == "preempted: TRUE"
        assert until(False, "TRUE") == ""
        assert until(False, "FALSE") == ""
        assert until(True, "TRUE") == "preempted: TRUE"


def test_slice_workers_need_no_arguments(monkeypatch: pytest.MonkeyPatch) -> None:
    """Jax's own detection, against the metadata that a TPU VM has."""
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
