"""The engine itself on two hosts of two devices each: it trains, loses a process, and goes on from what it saved."""

from __future__ import annotations

import json
import os
import signal
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from lab.command_line import TINY
from lab.sshd import Lab
from midstream.fleet.config import Fleet, HostsTarget
from midstream.hosts.open import Hosts
from midstream.launch.errors import LaunchError
from midstream.launch.follow import look_at_ranks, stop_ranks, wait_ranks
from midstream.launch.run import launch_run
from midstream.launch.start import Attempt
from midstream_engine import records

pytestmark = pytest.mark.system
STEPS = 40


@pytest.fixture
def fleet(lab: Lab) -> Iterator[Fleet]:
    """Two hosts of one root, as over NFS."""
    root = str(lab.directory / "shared")
    servers = {name: replace(lab.host(name, devices=2).config, root=root) for name in ("a", "b")}
    yield Fleet(servers, {"pair": HostsTarget(["a", "b"], shared_root=root)})
    for launched in lab.directory.glob("**/runs/*/attempts/*/launch*.json"):
        identity = records.ProcessIdentity.from_json(json.loads(launched.read_text()))
        if records.is_alive(identity):
            os.kill(identity.pid, signal.SIGKILL)


def until_step(hosts: Hosts, attempt: Attempt, step: int) -> list[records.Status]:
    """The statuses of all processes, once each has done that many updates."""
    deadline = time.monotonic() + 240
    while True:
        seen = look_at_ranks(hosts, attempt.ranks, attempt.run_id, attempt.number)
        statuses = [rank.status for rank in seen if rank.status is not None]
        if len(statuses) == len(seen) and all(status.step >= step for status in statuses):
            return statuses
        assert not any(rank.failed for rank in seen), [rank.why for rank in seen]
        assert time.monotonic() < deadline, [rank.state for rank in seen]
        time.sleep(0.2)


@pytest.mark.slow
def test_two_hosts_train_lose_a_process_and_go_on(lab: Lab, fleet: Fleet) -> None:
    hosts, said = Hosts(fleet), []
    overrides = ("--trainer.num_train_steps", "100000", "--trainer.checkpointer.keep", '[{"every": 20}]')
    overrides += ("--trainer.jax_compilation_cache_dir", str(lab.directory / "compiled"))
    try:
        attempt = launch_run(hosts, fleet, "pair", TINY, "group", overrides, said.append)
        assert said[-1] == "attempt 1 of group runs on a, b, one process each"
        first = until_step(hosts, attempt, 25)
        assert [status.process for status in first] == [0, 1]
        assert [status.processes for status in first] == [2, 2]
        assert [len(status.devices) for status in first] == [4, 4], "one mesh of all devices"

        os.kill(first[1].pid, signal.SIGKILL)
        with pytest.raises(LaunchError, match=r"process 1 on b failed: killed with SIGKILL: .*; the others were ended"):
            wait_ranks(hosts, attempt.ranks, "group", 1, {records.FINISHED}, 120)
        assert not any(rank.alive for rank in look_at_ranks(hosts, attempt.ranks, "group", 1))

        again = launch_run(hosts, fleet, "pair", TINY, "group", overrides)
        assert again.number == 2
        until_step(hosts, again, 30)
        ended = stop_ranks(hosts, again.ranks, "group", 2, 120)
        assert [rank.state for rank in ended] == ["stopped", "stopped"]
        steps = {rank.status.step for rank in ended if rank.status}
        assert len(steps) == 1, "all at the same step"
    finally:
        hosts.close()
    paths = records.RunPaths(str(lab.directory / "shared"), "group")
    restored = records.Restore.read(paths.attempt(2).restore)
    assert restored.step >= 20
    assert restored.root_digest == restored.expected_root_digest
    rows = [records.parse_metrics(Path(paths.attempt(n).metrics).read_text().splitlines()) for n in (1, 2)]
    losses = [{row["global_step"]: row["train/loss"] for row in each if "train/loss" in row} for each in rows]
    both = sorted(set(losses[0]) & set(losses[1]))
    assert both == [] or all(records.relative_difference(losses[0][k], losses[1][k]) < 1e-6 for k in both)
    assert min(losses[1]) == restored.step
