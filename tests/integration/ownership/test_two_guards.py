"""Two guards of one run, each with an own operator's state: the run is migrated once."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from simulators.sshd import Lab
from support.command_line import Run, midstream, start_midstream
from support.trainers.script_runs import STEPS, check_curve
from support.trainers.script_trainer import write_script


@pytest.mark.drawn
def test_two_guards_migrate_a_lost_run_once(
    lab: Lab, runs: Callable[..., Run], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    names = ("here", "there", "third")
    servers = {name: lab.host(name) for name in names}
    fleet = lab.fleet_file(**{name: server.config for name, server in servers.items()})
    file = write_script(tmp_path / "code", steps=STEPS, every=25)
    launched = midstream("--fleet", fleet, "--launch", file, "--on", "here", "--run-id", "r")
    assert launched.code == 0, launched.stderr
    found = {name: runs(server.root, "r") for name, server in servers.items()}
    found["here"].wait(lambda run: bool(run.checkpoints()), "a checkpoint")
    guards = [
        start_midstream("--fleet", fleet, "--guard", "r", "--to", to, "--tries", "2", "--json", "--yes")
        for to in ("there", "third")
    ]
    try:
        for guard in guards:
            assert guard.stderr is not None
            assert any("guarding r on here" in line for line in guard.stderr)
        found["here"].kill()
        new = {"there", "third"}

        def owner(_: Run) -> bool:
            return any(found[name].running and len(found[name].rows()) > 60 for name in new)

        found["here"].wait(owner, "the run on another host", 240.0)
        [winner] = [name for name in new if found[name].running]
        [other] = new - {winner}
        assert found[winner].fence.owner == winner
        assert found[winner].fence.epoch == 2
        assert not Path(found[other].paths.attempts).exists() or not found[other].rows(), "no second lineage"
        stopped = midstream("--fleet", fleet, "--stop", "r")
        assert stopped.code == 0, stopped.stderr
        outputs = [guard.communicate(timeout=120.0) for guard in guards]
    finally:
        for guard in guards:
            guard.kill()
            guard.wait()
    kinds = [[json.loads(line)["kind"] for line in out.splitlines()] for out, _ in outputs]
    assert sum(each.count("migrating") for each in kinds) <= 2, kinds
    assert sum("migrated to" in out for out, _ in outputs) == 1, outputs
    check_curve(found[winner], file, tmp_path / "straight")
