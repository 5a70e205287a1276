"""The real engine: launched, then its checkpoint, data and history are copied."""

from __future__ import annotations

import os
import signal
from contextlib import closing
from pathlib import Path

import pytest

from midstream.fleet.fleet import Fleet, LocalHostConfig
from midstream.hosts.host_pool import HostPool
from midstream.launch.attempt_monitor import wait_exited
from midstream.launch.launch_request import LaunchRequest
from midstream.launch.launch_run import launch_run
from midstream.transfer.copy_history import copy_history
from midstream.transfer.copy_tree import copy_tree
from midstream.transfer.endpoint import Endpoint
from midstream.transfer.verify_tree import verify_objects
from midstream_core import records
from midstream_host.allowlist import DATA
from support.checkpoints.trees import files
from support.engines.attempt_states import wait_state
from support.paths import CONFIGS

CONFIG = CONFIGS / "gpt2_tiny.yaml"


@pytest.mark.drawn
def test_launched_run_can_be_copied_and_verified(tmp_path: Path) -> None:
    config = LocalHostConfig(root=str(tmp_path / "small"), devices=2)
    fleet = Fleet({"small": config, "large": LocalHostConfig(root=str(tmp_path / "large"))})
    with closing(HostPool(fleet)) as hosts:
        small, large = hosts.get("small"), hosts.get("large")
        attempt = launch_run(hosts, LaunchRequest("small", str(CONFIG), "tiny", ("--trainer.num_train_steps", "3")))
        try:
            status = wait_state(hosts, "small", "tiny", attempt.number, {records.FINISHED}, 240)
            wait_exited(small, "tiny", attempt.number)
        finally:
            if records.is_running(attempt.process):
                os.kill(attempt.process.pid, signal.SIGKILL)
        assert (status.step, len(status.devices), status.boot_id) == (3, 2, attempt.process.boot_id)
        assert status.pid != attempt.process.pid, "the engine is a child of its supervisor"

        here, there = records.RunPaths(small.root, "tiny"), records.RunPaths(large.root, "tiny")
        name = records.checkpoint_name(3, attempt.number)
        verdict = verify_objects(small, here.checkpoint(name))
        assert (verdict.ok, verdict.extra, verdict.root_digest) == (True, (), status.root_digest)
        copy_history(small, large, "tiny", source_root=small.root, target_root=large.root)
        copy_tree(Endpoint(small, here.checkpoint(name)), Endpoint(large, there.checkpoint(name)))
        assert files(Path(there.checkpoint(name))) == files(Path(here.checkpoint(name)))
        assert verify_objects(large, there.checkpoint(name)).root_digest == status.root_digest
        rows = records.parse_metrics(Path(there.attempt(1).metrics).read_text().splitlines())
        assert [row["global_step"] for row in rows if "train/loss" in row] == [0, 1, 2]

        [cache] = (manifest.parent for manifest in Path(small.root, "data").glob("*/manifest.json"))
        copy_tree(Endpoint(small, str(cache)), Endpoint(large, str(Path(large.root, "data", cache.name))), kind=DATA)
        assert verify_objects(large, str(Path(large.root, "data", cache.name))).ok
