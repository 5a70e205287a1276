"""Runs of another trainer whose environment is a lock of conda: launched, migrated and compared.

The packages come from a channel on loopback. Who creates the environment: a simulated tool; py-rattler, from the wheels
in ``MIDSTREAM_CONDA_WHEELS`` (`make test-conda`); a real tool of this machine, in the folder ``MIDSTREAM_CONDA_TOOL``.
"""

from __future__ import annotations

import dataclasses
import json
import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from midstream_host.machine.conda_environments import RATTLER, own_platform
from simulators import conda_tool
from simulators.sshd import Lab
from support.command_line import Ended, Run, midstream, refused
from support.conda_channel import PACKAGE, Channel, python_channel
from support.trainers.script_trainer import write_script

STEPS = 20000  # more than a test trains
WHEELS, TOOL = "MIDSTREAM_CONDA_WHEELS", "MIDSTREAM_CONDA_TOOL"


@pytest.fixture
def channel(tmp_path: Path) -> Iterator[Channel]:
    with python_channel(tmp_path / "channel") as made:
        yield made


def tool_environment(tool: str, folder: Path) -> dict[str, str]:
    """Return the variables of a host that has ``tool``; skip the test where this machine lacks it."""
    if tool == RATTLER:
        wheels = os.environ.get(WHEELS, "")
        if not wheels:
            pytest.skip(f"{WHEELS} names no folder with the wheels of locks/conda.txt (make test-conda)")
        offline = {"PIP_NO_INDEX": "1", "PIP_FIND_LINKS": wheels, "UV_NO_INDEX": "1", "UV_FIND_LINKS": wheels,
                   "UV_OFFLINE": "1"}  # fmt: skip
        return {**offline, "PATH": "/usr/local/bin:/usr/bin:/bin"}
    if tool == "real":
        place = os.environ.get(TOOL, "")
        if not place:
            pytest.skip(f"{TOOL} names no folder with micromamba, mamba or conda")
        return {"PATH": f"{place}:/usr/local/bin:/usr/bin:/bin", "HOME": str(folder)}
    conda_tool.install(folder, "micromamba")
    return {"PATH": f"{folder}:/usr/local/bin:/usr/bin:/bin"}


def fleet_of(lab: Lab, environment: dict[str, str]) -> tuple[Path, Path, Path]:
    """Return a fleet file of two hosts, here and there, without ``python:`` and with a tool; and their roots."""
    servers = {name: lab.host(name) for name in ("here", "there")}
    fleet = lab.fleet_file(
        **{
            name: dataclasses.replace(server.config, python=None, env={**server.config.env, **environment})
            for name, server in servers.items()
        }
    )
    return fleet, Path(servers["here"].root), Path(servers["there"].root)


def write_run(directory: Path, text: str, lock: str = "conda-lock.yml") -> Path:
    """Write a script that needs the channel's package, its lock and its run file; return the run file's path."""
    file = write_script(directory, steps=STEPS, every=25, more=f"environment: {{lock: {lock}, packages: [{PACKAGE}]}}")
    (directory / lock).write_text(text)
    script = directory / "train.py"
    check = f"import os, {PACKAGE}\nassert {PACKAGE}.VALUE == 42\nassert os.environ['CONDA_PREFIX'] == sys.prefix\n"
    script.write_text(f"import sys\n{check}{script.read_text()}")
    return file


def environment_of(ended: Ended) -> dict[str, str]:
    [found] = (claim for claim in ended.result["certificate"]["claims"] if claim["name"] == "environment")
    return found


@pytest.mark.slow
@pytest.mark.parametrize("tool", ["simulated", RATTLER, "real"])
def test_environment_of_a_conda_lock_is_created_on_each_host(
    lab: Lab, runs: Callable[..., Run], tmp_path: Path, channel: Channel, tool: str
) -> None:
    fleet, here, there = fleet_of(lab, tool_environment(tool, tmp_path / "tools"))
    other = [f"p{n}-1.0-0" for n in range(900)]  # a lock of several platforms is long
    rows = "".join(
        f"- {{name: p{n}, manager: conda, platform: linux-riscv64, url: 'https://conda.example/forge/linux-riscv64/"
        f"{each}.conda', hash: {{sha256: {'a' * 64}}}}}\n"
        for n, each in enumerate(other)
    )
    file = write_run(tmp_path / "code", channel.unified() + rows)
    launched = midstream("--fleet", fleet, "--launch", file, "--on", "here", "--run-id", "r")
    assert launched.code == 0, launched.stderr
    source, target = runs(str(here), "r"), runs(str(there), "r")
    source.wait(lambda run: bool(run.checkpoints()), "a checkpoint")
    checked = midstream("--fleet", fleet, "--migrate", "r", "--to", "there", "--dry-run")
    assert f"the lock of conda, 2 packages for {own_platform()}, with " in checked.stdout, checked.stdout
    agreed = (
        f"there installs 900 packages of a lock of conda from 127.0.0.1:{channel.address.rpartition(':')[2]}, conda."
    )
    assert agreed in checked.stdout, checked.stdout
    words = ("--fleet", fleet, "--migrate", "r", "--to", "there", "--yes", "--healthy-steps", "3", "--json")
    moved = midstream(*words)
    assert moved.code == 0, moved.stderr
    assert environment_of(moved)["verdict"] == "verified"
    assert f"{PACKAGE} 2.0" in environment_of(moved)["statement"], environment_of(moved)
    for run in (source, target):
        status = run.status()
        assert status is not None
        assert status.versions[PACKAGE] == "2.0"
        [record] = Path(run.paths.root, "envs").glob(f"*/conda-meta/{PACKAGE}-2.0-0.json")
        assert json.loads(record.read_text())["sha256"] == channel.digest(channel.packages[-1])


@pytest.mark.slow
def test_difference_of_a_conda_environment_is_named(
    lab: Lab, runs: Callable[..., Run], tmp_path: Path, channel: Channel
) -> None:
    """The source's environment is changed by hand after its start: the certificate names the version."""
    fleet, here, there = fleet_of(lab, tool_environment("simulated", tmp_path / "tools"))
    file = write_run(tmp_path / "code", channel.explicit(), "linux-64.lock")
    assert midstream("--fleet", fleet, "--launch", file, "--on", "here", "--run-id", "r").code == 0
    source = runs(str(here), "r")
    source.wait(lambda run: bool(run.checkpoints()), "a checkpoint")
    assert midstream("--fleet", fleet, "--stop", "r").code == 0
    [metadata] = Path(here, "envs").glob(f"*/lib/python3*/site-packages/{PACKAGE}-2.0.dist-info/METADATA")
    metadata.write_text(metadata.read_text().replace("2.0", "2.1"))
    assert midstream("--fleet", fleet, "--launch", file, "--on", "here", "--run-id", "r").code == 0
    source.wait(lambda run: run.attempt == 2 and len(run.rows()) > 3, "its steps")
    words = ("--fleet", fleet, "--migrate", "r", "--to", "there", "--mode", "cold", "--yes", "--healthy-steps", "3")
    moved = midstream(*words, "--json")
    assert moved.code == 0, moved.stderr
    assert f"versions differ: {PACKAGE} 2.1 -> 2.0" in environment_of(moved)["statement"]
    assert Path(there, "envs").exists()


@pytest.mark.drawn
def test_lock_of_another_platform_is_refused_before_a_launch(lab: Lab, tmp_path: Path, channel: Channel) -> None:
    fleet, here, there = fleet_of(lab, tool_environment("simulated", tmp_path / "tools"))
    file = write_run(tmp_path / "code", channel.unified().replace(own_platform(), "linux-riscv64"))
    launched = midstream("--fleet", fleet, "--launch", file, "--on", "here", "--run-id", "r")
    refused(launched, 3, f"here is {own_platform()}, the lock of conda is for linux-riscv64")
    assert not [
        each for root in (here, there) for each in ("engines", "envs", "data", "runs") if (root / each).exists()
    ]
    assert channel.requested == []


@pytest.mark.slow
def test_migration_to_another_platform_is_refused(
    lab: Lab, runs: Callable[..., Run], tmp_path: Path, channel: Channel
) -> None:
    """The run's file on the source is one whose lock has another platform alone: the source is not stopped."""
    fleet, here, there = fleet_of(lab, tool_environment("simulated", tmp_path / "tools"))
    file = write_run(tmp_path / "code", channel.unified())
    assert midstream("--fleet", fleet, "--launch", file, "--on", "here", "--run-id", "r").code == 0
    source = runs(str(here), "r")
    source.wait(lambda run: bool(run.checkpoints()), "a checkpoint")
    config = Path(source.paths.config)
    config.write_text(config.read_text().replace(own_platform(), "linux-riscv64"))
    moved = midstream("--fleet", fleet, "--migrate", "r", "--to", "there", "--yes")
    refused(moved, 3, f"there is {own_platform()}, the lock of conda is for linux-riscv64")
    assert source.running
    assert not (there / "envs").exists()
    hostile = config.read_text().replace(channel.address, "file:///etc")
    config.write_text(hostile)
    moved = midstream("--fleet", fleet, "--migrate", "r", "--to", "there", "--yes")
    assert moved.code != 0
    assert "is no address of http or https" in moved.stderr
    assert source.running
