"""A root that two machines share under one name: a process of the other machine is not taken for an ended one."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from midstream_core import records
from simulators.sshd import Lab
from support.command_line import Run, midstream, refused
from support.migrations.real_migrations import launched

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="namespaces need root")


@pytest.mark.drawn
def test_login_name_of_two_machines_starts_one_engine(lab: Lab, runs: Callable[..., Run]) -> None:
    """A name with several addresses, as of a cluster's login nodes, or a machine that was replaced."""
    one, two = lab.host("one", devices=1), lab.host("two", devices=1, machine="another-machine")
    run = runs(one.root, "r")
    fleet = lab.fleet_file(login=one.config)
    launch = ("--launch", run.paths.config, "--on", "login", "--run-id", "r")
    launched(fleet, run, "login")
    fleet = lab.fleet_file(login=replace(two.config, root=one.config.root))
    shown = midstream("--fleet", fleet, "--status")
    [row] = [line for line in shown.stdout.splitlines() if line.startswith("r ")]
    assert "unknown" in row, shown.stdout
    refused(midstream("--fleet", fleet, *launch), 1, "attempt 1 of r runs on", "its files change")
    assert Path(run.paths.attempts, "002").exists() is False
    before = len(run.rows())
    run.wait(lambda run: len(run.rows()) > before + 5, "it trains on")
    assert records.Fence.read(run.paths.fence).start == 1
