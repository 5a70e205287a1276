"""Runs of another trainer, a script without torch: launched, watched, migrated, rolled back, continued."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from simulators.sshd import Lab
from support.command_line import Run, midstream
from support.script_trainer import recorded, write_script


def test_script_is_launched_and_watched(lab: Lab, runs: Callable[..., Run], tmp_path: Path) -> None:
    here = lab.host("here")
    fleet = lab.fleet_file(here=here.config)
    launched = midstream("--fleet", fleet, "--launch", write_script(tmp_path / "code"), "--on", "here", "--run-id", "r")
    assert launched.code == 0, launched.stderr
    run = runs(here.root, "r")
    run.wait(lambda each: "step-20-a001" in recorded(each.paths), "the first checkpoint")
    status = midstream("--fleet", fleet, "--status", "--json")
    assert status.code == 0, status.stderr
    print(status.stdout[:3000])
    stopped = midstream("--fleet", fleet, "--stop", "r", "--json")
    assert stopped.code == 0, stopped.stderr
    print(stopped.stdout)
