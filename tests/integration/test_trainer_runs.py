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


def test_script_is_migrated_cold(lab: Lab, runs: Callable[..., Run], tmp_path: Path) -> None:
    here, there = lab.host("here"), lab.host("there")
    fleet = lab.fleet_file(here=here.config, there=there.config)
    file = write_script(tmp_path / "code", steps=300, every=10, pause=0.05)
    launched = midstream("--fleet", fleet, "--launch", file, "--on", "here", "--run-id", "r")
    assert launched.code == 0, launched.stderr
    source, target = runs(here.root, "r"), runs(there.root, "r")
    source.wait(lambda each: bool(recorded(each.paths)), "a checkpoint")
    moved = midstream(
        "--fleet", fleet, "--migrate", "r", "--to", "there", "--mode", "cold", "--yes", "--healthy-steps", "5", "--json"
    )
    print(moved.stderr[-3000:], moved.stdout[-3000:])
    assert moved.code == 0, moved.stderr
    target.wait(lambda run: (status := run.status()) is not None and status.state == "finished", "the end")
    print(source.fence, target.fence, len(target.spliced()))
