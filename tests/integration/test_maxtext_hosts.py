"""MaxText on another number of hosts: what its grain iterator refuses is refused in the plan."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from midstream.errors import Exit
from simulators.sshd import Lab
from support.command_line import Run, midstream, refused
from support.launched_processes import kill_launched
from support.paths import FIXTURES

pytestmark = pytest.mark.drawn

# It saves what Orbax wrote as one process, with the state of a grain iterator as MaxText adds it, and trains on.
TRAIN = """
import json, os, shutil, sys, time
out, grain = sys.argv[1], sys.argv[2] == "dataset_type=grain"
checkpoints = os.path.join(out, "r", "checkpoints")
os.makedirs(checkpoints, exist_ok=True)
with open(os.path.join(out, "metrics.jsonl"), "a") as log:
    for step in range(100000):
        log.write(json.dumps({"step": step, "learning/loss": 1 / (1 + step)}) + "\\n")
        log.flush()
        if step == 20:
            name = os.path.join(checkpoints, str(step))
            shutil.copytree(FIXTURE, name + ".orbax-checkpoint-tmp")
            if grain:
                os.makedirs(name + ".orbax-checkpoint-tmp/iter")
                with open(name + ".orbax-checkpoint-tmp/iter/process_0-of-1.json", "w") as file:
                    json.dump({"next_index": 8}, file)
            os.rename(name + ".orbax-checkpoint-tmp", name)
        time.sleep(0.02)
"""


@pytest.fixture
def pair(lab: Lab) -> Iterator[Path]:
    """Write a fleet file of a host and a group with a common root."""
    root = str(lab.directory / "nfs")
    hosts = {name: dataclasses.replace(lab.host(name).config, root=root) for name in ("a", "b")}
    file = lab.fleet_file(one=lab.host("one").config, **hosts)
    file.write_text(f"{file.read_text()}targets: {{pair: {{type: hosts, hosts: [a, b], shared_root: {root}}}}}\n")
    yield file
    kill_launched(lab.directory)


@pytest.mark.parametrize(
    ("dataset", "factor", "hint"),
    [
        ("grain", "", "expansion_factor_real_data=2 in the resume command, or 1 host"),
        ("grain", "expansion_factor_real_data=4", "expansion_factor_real_data=2 in the resume command"),
        ("grain", "expansion_factor_real_data=2", ""),
        ("synthetic", "", ""),
    ],
)
def test_grain_state_stays_on_its_number_of_hosts(
    lab: Lab, pair: Path, runs: Callable[..., Run], tmp_path: Path, dataset: str, factor: str, hint: str
) -> None:
    """The target's trainer ended with an error after the source had been stopped."""
    code = tmp_path / "code"
    code.mkdir()
    (code / "train.py").write_text(TRAIN.replace("FIXTURE", repr(str(FIXTURES / "trainers/orbax/4"))))
    line = f"{{python}} train.py {{out}} dataset_type={dataset} process={{rank}} devices={{devices}}"
    file = code / "run.yaml"
    file.write_text(f'trainer: maxtext\ncommand: "{line}"\nresume: "{line} {factor}"\nfiles: ["*.py"]\n')
    launched = midstream("--fleet", pair, "--launch", file, "--on", "one", "--run-id", "r")
    assert launched.code == 0, launched.stderr
    source = runs(lab.servers["one"].root, "r")
    source.wait(lambda run: bool(run.checkpoints()), "a checkpoint")
    planned = midstream("--fleet", pair, "--migrate", "r", "--to", "pair", "--mode", "cold", "--yes", "--dry-run")
    if hint:
        refused(planned, Exit.REFUSED, "have the state of a grain iterator for 1 host: MaxText refuses them on 2", hint)
    else:
        assert planned.code == 0, planned.stderr
        assert "processes 1 -> 2" in " ".join(planned.stdout.split())
    assert source.running
