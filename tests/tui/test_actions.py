"""What the screens ask of a host, on a real one: this machine. And the flags that tell the same."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from midstream.cli import main
from midstream.fleet.fleet import Fleet
from midstream.fleet.fleet_file import load_fleet
from midstream.hosts.host_pool import Hosts
from midstream.tui.actions import FleetActions
from midstream.watch.snapshot import RunView
from midstream_engine import records
from support.run_directory import RunDirectory

LOG = (
    "2026-11-21T10:00:00Z I resolved configuration:\n"
    "seed: 1\ntrainer:\n  id: run\n"
    "2026-11-21T10:00:01Z I begins: größer\n"
    "2026-11-21T10:00:02Z I without an end"
)


@pytest.fixture
def fleet(tmp_path: Path) -> Fleet:
    run = RunDirectory(tmp_path / "root")
    run.fence(1)
    run.lineage({"attempt": 1, "epoch": 1})
    run.status(1, records.TRAINING, 3)
    run.rows(1, 0, 1, 2)
    run.log(1, LOG)
    for step in (1, 2):
        run.checkpoint(step)
    file = tmp_path / "fleet.yaml"
    file.write_text(f"hosts:\n  here: {{type: local, root: {tmp_path / 'root'}}}\n")
    return load_fleet(file)


@pytest.fixture
def actions(fleet: Fleet) -> Iterator[FleetActions]:
    hosts = Hosts(fleet)
    yield FleetActions(fleet, hosts)
    hosts.close()


RUN = RunView("run", "here", None, None, 1, None, False)


def test_all_of_a_log_is_read_in_parts(actions: FleetActions, monkeypatch: pytest.MonkeyPatch) -> None:
    assert actions.read_log(RUN) == LOG.split("\n")
    monkeypatch.setattr("midstream.watch.log_file.PART", 60)
    assert actions.read_log(RUN)[-1] == "2026-11-21T10:00:02Z I without an end"
    assert len(actions.read_log(RUN)) == len(LOG.split("\n"))
    monkeypatch.setattr("midstream.tui.actions.LOG_LIMIT", 10)
    assert actions.read_log(RUN)[-1] == "... the log is longer: midstream --log run prints all of it"
    assert len(actions.read_log(RUN)) < len(LOG.split("\n"))


def test_the_configuration_of_an_attempt_is_read(actions: FleetActions) -> None:
    assert actions.config(RUN, 1) == "seed: 1\ntrainer:\n  id: run"


def test_damage_of_a_checkpoint_is_named(actions: FleetActions) -> None:
    problems = actions.verify(RUN, "step-1-a001")
    assert problems, "its objects are not there"
    assert any("train.json" in problem for problem in problems)


def test_two_checkpoints_are_compared(actions: FleetActions) -> None:
    assert actions.compare(RUN, "step-1-a001", "step-2-a001") == []


def test_hosts_of_the_ssh_configuration_are_put_into_the_fleet_file(
    actions: FleetActions, fleet: Fleet, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    (tmp_path / ".ssh").mkdir()
    (tmp_path / ".ssh" / "config").write_text("Host gpu1 here-not\n  User me\nHost *\n")
    settings = tmp_path / ".config" / "gcloud" / "configurations"
    settings.mkdir(parents=True)
    (settings / "config_default").write_text("[core]\nproject = lab\n")
    candidates, projects, file = actions.ssh_hosts()
    assert list(candidates) == ["gpu1", "here-not"]
    assert projects == ["lab"]
    assert file == fleet.path
    actions.add_hosts([candidates["gpu1"]])
    assert list(load_fleet(file).hosts) == ["gpu1", "here"]
    assert not list(tmp_path.glob("*.new"))


def test_the_same_from_the_command_line(fleet: Fleet, capfd: pytest.CaptureFixture[str]) -> None:
    assert main(["--fleet", fleet.path, "--metrics", "run", "--json"]) == 0
    rows = [json.loads(line) for line in capfd.readouterr().out.splitlines()]
    assert [(row["global_step"], row["attempt"]) for row in rows] == [(0, 1), (1, 1), (2, 1)]
    assert main(["--fleet", fleet.path, "--log", "run"]) == 0
    assert capfd.readouterr().out == LOG + "\n"
    assert main(["--fleet", fleet.path, "--log", "nonesuch"]) == 2
    assert main(["--fleet", fleet.path, "--log", "run", "--process", "1"]) == 2
    assert "run has no process 1 (it has 1, from 0 on)" in capfd.readouterr().err


def out(capfd: pytest.CaptureFixture[str]) -> list[dict]:
    return [json.loads(line) for line in capfd.readouterr().out.splitlines()]


def test_configurations_of_attempts_from_the_command_line(
    fleet: Fleet, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    paths = records.RunPaths(str(tmp_path / "root"), "run")
    second = records.LineageEntry.from_json(
        {"attempt": 2, "epoch": 1, "target": "here", "devices": 2, "device_kind": "cpu", "first_step": 3}
    )
    records.Lineage.read(paths.lineage).with_entry(second).write(paths.lineage)
    Path(paths.attempt(2).dir).mkdir()
    Path(paths.attempt(2).log()).write_text(LOG.replace("seed: 1", "seed: 1\nmode: fast").replace("id: run", "id: 7"))
    records.Status.from_json({**records.Status.read(paths.attempt(1).status()).to_json(), "attempt": 2}).write(
        paths.attempt(2).status()
    )
    mode = ["--fleet", fleet.path, "--config", "run"]
    assert main([*mode, "--json"]) == 0
    (newest,) = out(capfd)
    assert (newest["attempt"], newest["config"]) == (2, {"seed": 1, "mode": "fast", "trainer": {"id": 7}})
    assert main([*mode, "--attempts", "1"]) == 0
    assert capfd.readouterr().out == "seed: 1\ntrainer:\n  id: run\n"
    assert main([*mode, "--attempts", "1,2"]) == 0
    assert capfd.readouterr().out == "+ mode fast\n~ trainer.id run -> 7\n"
    assert main([*mode, "--attempts", "1,2", "--json"]) == 0
    added, changed, result = out(capfd)
    assert (added["name"], added["kind"], added["after"]) == ("mode", "added", "fast")
    assert (changed["name"], changed["before"], changed["after"]) == ("trainer.id", "run", 7)
    assert result["changes"] == 2
    assert main([*mode, "--attempts", "1,3"]) == 2
    assert "known: 1, 2" in capfd.readouterr().err
    with pytest.raises(SystemExit, match="2"):
        main(["--fleet", fleet.path, "--status", "--attempts", "1"])


def test_curves_of_several_runs_side_by_side(fleet: Fleet, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    other = RunDirectory(tmp_path / "root", "other")
    other.fence(1)
    other.status(1, records.FINISHED, 2)
    other.rows(1, 1, 3)
    assert main(["--fleet", fleet.path, "--metrics", "run,other"]) == 0
    lines = [line.split() for line in capfd.readouterr().out.splitlines()]
    assert lines == [
        ["STEP", "run", "other"], ["0", "1", "-"], ["1", "0.5", "0.5"], ["2", "0.333333", "-"], ["3", "-", "0.25"],
    ]  # fmt: skip
    assert main(["--fleet", fleet.path, "--metrics", "run,other", "--json"]) == 0
    assert [(row["run"], row["global_step"]) for row in out(capfd)] == [
        ("run", 0), ("run", 1), ("run", 2), ("other", 1), ("other", 3),
    ]  # fmt: skip
    assert main(["--fleet", fleet.path, "--metrics", "run,nonesuch"]) == 2
