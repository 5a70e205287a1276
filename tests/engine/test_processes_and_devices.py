"""Trainers with one process on several devices, and with a process for each of them."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from midstream.trainers.run_file_parser import parse_run_file
from midstream.trainers.world import world_of
from midstream_core import records
from midstream_host.trainers import stored_state
from support.paths import FIXTURES
from support.trainers.trainer_drivers import Driver, drivers

# One process of jax on all devices: it saves what Orbax has written as such a process, under the name of each step.
TRAIN = """
import json, os, shutil, sys, time
out, steps = sys.argv[1], int(sys.argv[2])
with open(os.path.join(out, "devices-%s.json" % os.environ.get("RANK", "0")), "w") as file:
    json.dump({"argv": sys.argv[3:], "environment": dict(os.environ)}, file)
with open(os.path.join(out, "metrics.jsonl") if os.environ.get("RANK", "0") == "0" else os.devnull, "a") as log:
    for step in range(steps):
        log.write(json.dumps({"step": step, "loss": 1 / (1 + step), "time": time.time()}) + "\\n")
        log.flush()
        if step % 20 == 19 and os.environ.get("RANK", "0") == "0":
            name = os.path.join(out, str(step + 1))
            shutil.copytree(FIXTURE, name + ".orbax-checkpoint-tmp")
            os.rename(name + ".orbax-checkpoint-tmp", name)
        time.sleep(0.02)
"""
RUN_FILE = """
trainer: script
command: "{{python}} train.py {{out}} 100000 fsdp={{devices}}"
resume: "{{python}} train.py {{out}} 100000 fsdp={{devices}} {{checkpoint}}"
checkpoints: {{rule: orbax, reshards: true}}
metrics: {{source: jsonl, path: "{{out}}/metrics.jsonl"}}
batch: {{kept_by: trainer}}
stop: {{grace: 10, wait: 60}}
{more}
"""


@pytest.fixture
def make(tmp_path: Path) -> Iterator[Callable[..., Driver]]:
    with drivers(tmp_path) as factory:
        yield factory


def jax_script(directory: Path, more: str = "") -> Path:
    directory.mkdir()
    fixture = repr(str(FIXTURES / "trainers/orbax/4"))
    (directory / "train.py").write_text(TRAIN.replace("FIXTURE", fixture))
    file = directory / "run.yaml"
    file.write_text(RUN_FILE.format(more=more))
    return file


def flags_on(file: Path, devices: int) -> list[str]:
    """Return the driver's flags for a host with so many devices."""
    return world_of(parse_run_file(file.read_text(), file).run, 1, devices).flags()


def test_checkpoints_of_one_process_on_two_devices_count(make: Callable[..., Driver], tmp_path: Path) -> None:
    """They were never complete, "ocdbt.process_1 is missing", and a stop waited until the run was over."""
    file = jax_script(tmp_path / "jax")
    driver = make(file)
    driver.start(*flags_on(file, 2))
    driver.wait("a checkpoint", driver.checkpoints)
    assert len(driver.status.devices) == 2
    out = Path(driver.paths.dir) / "work" / "out"
    assert json.loads((out / "devices-0.json").read_text())["argv"] == ["fsdp=2"]
    driver.send(records.STOP)
    driver.ended()
    assert driver.status.state == records.STOPPED
    train = records.read_json(f"{driver.paths.checkpoint(driver.checkpoints()[-1])}/{records.TRAIN}")
    assert train["provenance"]["processes"] == 1


def test_process_for_each_device_lacks_the_others(make: Callable[..., Driver], tmp_path: Path) -> None:
    """The run file says so: what one of two processes has written is a part."""
    file = jax_script(tmp_path / "jax", "processes: device")
    driver = make(file)
    driver.start(*flags_on(file, 2))
    out = Path(driver.paths.dir) / "work" / "out"
    driver.wait("a checkpoint on the disk", lambda: (out / "40").exists())
    [*_, (_, reason)] = stored_state.newest(str(driver.root), "r", 2).incomplete
    assert "ocdbt.process_1 is missing" in reason
    assert not driver.checkpoints()


@pytest.mark.parametrize(("launcher", "ranks"), [(True, 1), (False, 2)])
def test_trainer_sees_the_devices_of_the_plan(
    make: Callable[..., Driver], tmp_path: Path, launcher: bool, ranks: int
) -> None:
    """It is started by a launcher, or midstream starts a process for each device."""
    file = jax_script(tmp_path / "jax", f"launcher: {str(launcher).lower()}\ndevices: 2")
    driver = make(file)
    driver.start(*flags_on(file, 8))
    driver.wait("rows", driver.rows)
    assert len(driver.trainers()) == ranks
    driver.wait("the devices in its status", lambda: driver.status.devices)
    assert len(driver.status.devices) == 2
    out = Path(driver.paths.dir) / "work" / "out"
    environment = json.loads((out / "devices-0.json").read_text())["environment"]
    assert environment["CUDA_VISIBLE_DEVICES"] == "0,1"
    assert environment["NPROC_PER_NODE"] == str(ranks)
    assert environment.get("WORLD_SIZE") == (None if launcher else "2")
