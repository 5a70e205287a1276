"""A live migration between two allocations of a real Slurm cluster, each of two nodes with a process of its own."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from midstream_core import records
from simulators.clusters.slurm_cluster import SlurmCluster, login_node, slurm_cluster
from simulators.sshd import Lab
from support.command_line import COMPILED, TINY, Run, midstream
from support.migrations.real_migrations import assert_one_lineage
from support.throttled import Throttled

__all__ = ["slurm_cluster"]
pytestmark = [pytest.mark.system, pytest.mark.drawn]
TRAINING = (
    "--trainer.num_train_steps", "100000", "--model.pad_vocab_to_multiple", "16384", "--model.num_layers", "1",
    "--trainer.jax_compilation_cache_dir", COMPILED,
)  # fmt: skip


def engines(root: Path) -> list[int]:
    """Return the pids, as this machine has them, of the engines of a root: each node has its own."""
    found = subprocess.run(["pgrep", "-f", f"midstream_engine.train.*{root}/"], capture_output=True, text=True)
    return [int(pid) for pid in found.stdout.split()]


def test_allocation_migrates_live_to_another(lab: Lab, runs: Callable[..., Run], slurm_cluster: SlurmCluster) -> None:
    """The allocations have login nodes with a root each: the standby has a directory of its own."""
    here, there = (login_node(lab, slurm_cluster, name, devices=2) for name in ("here", "there"))
    fleet = lab.fleet_file(here=here.config, there=there.config)
    targets = [
        f"  {name}: {{type: slurm, host: {host}, sbatch: [--nodes=2]}}"
        for name, host in (("old", "here"), ("new", "there"))
    ]
    fleet.write_text(fleet.read_text() + "targets:\n" + "\n".join(targets) + "\n")
    launched = midstream("--fleet", fleet, "--launch", TINY, "--on", "old", "--run-id", "r", "--", *TRAINING)
    assert launched.code == 0, launched.stderr
    source, target = runs(here.root, "r"), runs(there.root, "r")
    try:
        source.wait_step(4, 240)
        job = json.loads((Path(source.paths.attempt(1).dir) / "slurm.json").read_text())["job"]
        pids = engines(here.root)
        assert len(pids) >= 2
        words = ["--migrate", "r", "--to", "new", "--mode", "live", "--yes", "--healthy-steps", "2", "--json"]
        with Throttled(pids, 0.3, 0.6):
            moved = midstream("--fleet", fleet, *words)
        assert moved.code == 0, (moved.stdout[-3000:], moved.stderr)
        claims = {claim["name"]: claim for claim in moved.result["certificate"]["claims"]}
        assert {claim["verdict"] for claim in claims.values()} == {"verified"}, claims
        assert not any("continuing as a warm migration" in event["message"] for event in moved.of("note"))
        assert moved.result["downtime"]["total"] < 1.0
        step = moved.result["certificate"]["step"]
        drift = claims["continuity"]["evidence"]["parameter_drift"]
        assert (drift["step"], drift["root_digest"]) == (step, moved.result["certificate"]["root_digest"])
        assert [shard["process"] for shard in drift["shards"]] == [0, 1]
        assert len({shard["host"] for shard in drift["shards"]}) == 2, "a process on each node"
        assert max(shard["distance"] for shard in drift["shards"]) < 1e-3
        assert slurm_cluster.wait_state(job, "COMPLETED") == "COMPLETED"
        for process in range(2):
            trains = records.Status.read(target.paths.attempt(2).status(process))
            assert (trains.processes, trains.epoch, len(trains.devices)) == (2, 2, 4)
        assert (target.fence.owner, target.rows(2)[0]["global_step"]) == ("new", step)
        assert source.handed_over == target.handed_over
        assert_one_lineage(target)
        assert midstream("--fleet", fleet, "--stop", "r").code == 0
    finally:
        slurm_cluster.cancel_all()
