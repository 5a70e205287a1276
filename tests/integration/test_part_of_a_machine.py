"""Hosts with several GPUs (of a simulated nvidia-smi), of which a fleet file or a plan gives a run a part."""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from midstream.errors import Exit
from midstream.fleet.fleet import HostConfig
from simulators.sshd import Lab, SshServer, environment
from support.command_line import Run, midstream, refused
from support.simulated_gpus import KIND, uuid, write_nvidia_smi
from support.trainers.script_trainer import write_script

pytestmark = pytest.mark.drawn

STEPS = 20000  # more than a test trains
SEEN = re.compile(r"^devices (\S*) of (\S+)$", re.MULTILINE)
SHOWS = 'import os\nprint("devices", os.environ.get("CUDA_VISIBLE_DEVICES"), "of", os.environ["MIDSTREAM_HOST"])\n'


@pytest.fixture
def gpu_host(lab: Lab) -> Callable[..., SshServer]:
    """Start hosts with simulated GPUs: name, number, and processes on them by UUID."""

    def start(name: str, gpus: int, processes: dict[str, list[int]] | None = None) -> SshServer:
        folder = lab.directory / f"bin-{name}"
        write_nvidia_smi(folder, gpus, processes or {})
        return lab.host(name, sshd=environment(PATH=f"{folder}:{os.environ['PATH']}"))

    return start


def fleet_with(lab: Lab, chosen: dict[str, list[Any]], **hosts: HostConfig) -> Path:
    """Write a fleet file in which ``devices:`` of some hosts is a list."""
    file = lab.fleet_file(**hosts)
    text = file.read_text()
    for name, devices in chosen.items():
        text = text.replace(f"  {name}: {{", f"  {name}: {{devices: {devices}, ")
    file.write_text(text)
    return file


def script(directory: Path, **settings: Any) -> Path:
    """Write the script trainer, which prints the GPUs that it sees."""
    file = write_script(directory, steps=STEPS, every=25, **settings)
    (directory / "model.py").write_text(SHOWS + (directory / "model.py").read_text())
    return file


def seen(run: Run, attempt: int) -> str:
    """Return the GPUs that the newest trainer of an attempt saw."""
    found = SEEN.findall(Path(run.paths.attempt(attempt).log()).read_text())
    assert found
    return found[-1][0]


@pytest.mark.parametrize("way", ["devices", "env"])
def test_gpus_of_others_are_no_failed_check(lab: Lab, gpu_host: Callable[..., SshServer], way: str) -> None:
    """A process on a GPU that is not ours failed the check, and its hint was to kill it."""
    server = gpu_host("gpu1", 4, {uuid(0): [os.getpid()]})

    def fleet(devices: list[Any]) -> Path:
        if way == "devices":
            return fleet_with(lab, {"gpu1": devices}, gpu1=server.config)
        visible = ",".join(map(str, devices))
        return lab.fleet_file(gpu1=replace(server.config, env={"CUDA_VISIBLE_DEVICES": visible}))

    free = midstream("--fleet", fleet([2, "GPU-3333"]), "--check", "gpu1", "--json")
    found = {check["name"]: check for check in free.of("check")}
    assert found["accelerators"]["detail"].startswith(f"2 x {KIND} (those that CUDA_VISIBLE_DEVICES leaves visible)")
    assert found["accelerators are free"]["state"] == "pass"
    assert not [check for check in free.of("check") if "kill" in check.get("hint", "")]
    [host] = midstream("--fleet", fleet([2]), "--status", "--json").of("host")
    assert [each["index"] for each in host["machine"]["accelerators"]] == [2]
    assert host["machine"]["users"] == []

    used = midstream("--fleet", fleet([0]), "--check", "gpu1", "--json")
    [busy] = [check for check in used.of("check") if check["name"] == "accelerators are free"]
    assert busy["state"] == "fail"
    assert f"kill {os.getpid()} on gpu1" in busy["hint"]

    missing = midstream("--fleet", fleet([1, 7]), "--check", "gpu1", "--json")
    [check] = [check for check in missing.of("check") if check["name"] == "devices"]
    assert (check["state"], check["detail"]) == ("fail", "it has no GPU 7, which the fleet file names")


def test_run_sees_as_many_gpus_as_the_plan_says(
    lab: Lab, gpu_host: Callable[..., SshServer], runs: Callable[..., Run], tmp_path: Path
) -> None:
    """The command has no {devices}: on four GPUs it would have divided another batch, and nothing said so."""
    here, there = gpu_host("here", 1), gpu_host("there", 4)
    fleet = fleet_with(lab, {"there": [3, 1, 2]}, here=here.config, there=there.config)
    launched = midstream("--fleet", fleet, "--launch", script(tmp_path / "code"), "--on", "here", "--run-id", "r")
    assert launched.code == 0, launched.stderr
    source, target = runs(here.root, "r"), runs(there.root, "r")
    source.wait(lambda run: len(run.checkpoints()) > 1, "two checkpoints")
    assert seen(source, 1) == "None"
    words = ("--fleet", fleet, "--migrate", "r", "--to", "there", "--mode", "cold", "--yes", "--healthy-steps", "3")
    plan = midstream(*words, "--dry-run")
    assert "the trainer sees 1 of the 3 devices of there" in plan.stdout, plan.stdout + plan.stderr
    moved = midstream(*words, "--json")
    assert moved.code == 0, moved.stderr
    assert seen(target, 2) == "3", "the first that the fleet file names"

    # Stopped and started again there, it still has one.
    assert midstream("--fleet", fleet, "--stop", "r").code == 0
    again = midstream("--fleet", fleet, "--launch", tmp_path / "code/run.yaml", "--on", "there", "--run-id", "r")
    assert again.code == 0, again.stderr
    target.wait(lambda run: run.attempt == 3 and bool(run.rows()), "rows of the next attempt")
    assert seen(target, 3) == "3"

    # An attempt that ended before its first status says nothing of the devices.
    assert midstream("--fleet", fleet, "--stop", "r").code == 0
    Path(target.paths.attempt(4).dir).mkdir(parents=True)
    shutil.copy(target.paths.attempt(3).launched(0), target.paths.attempt(4).launched(0))
    last = midstream("--fleet", fleet, "--launch", tmp_path / "code/run.yaml", "--on", "there", "--run-id", "r")
    assert last.code == 0, last.stderr
    target.wait(lambda run: run.attempt == 5 and bool(run.rows()), "rows of the last attempt")
    assert seen(target, 5) == "3"


def test_fewer_gpus_are_refused_or_agreed_to(
    lab: Lab, gpu_host: Callable[..., SshServer], runs: Callable[..., Run], tmp_path: Path
) -> None:
    here, there = gpu_host("here", 2), gpu_host("there", 1)
    fleet = lab.fleet_file(here=here.config, there=there.config)
    file = script(tmp_path / "code")
    for run_id, more in (("open", ""), ("two", "devices: 2\n")):
        file.write_text(re.sub(r"^devices: 2\n", "", file.read_text()) + more)
        launched = midstream("--fleet", fleet, "--launch", file, "--on", "here", "--run-id", run_id)
        assert launched.code == 0, launched.stderr
        runs(here.root, run_id).wait(lambda run: bool(run.checkpoints()), "a checkpoint")
    words = ("--fleet", fleet, "--to", "there", "--mode", "cold")
    open_end = midstream(*words, "--migrate", "open")
    refused(open_end, Exit.REFUSED, "the global batch changes if script uses all devices that it sees: 2 devices -> 1")
    with_devices = midstream(*words, "--migrate", "two", "--yes")
    refused(with_devices, Exit.REFUSED, "the run file says devices: 2, and each host has 1 device")
    assert runs(here.root, "two").running
