"""Actions of the screens on a real host, this machine; and the flags that report the same."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from midstream.cli import main
from midstream.fleet.fleet import Fleet
from midstream.fleet.fleet_file import load_fleet
from midstream.hosts.host_pool import HostPool
from midstream.tui.actions import Actions
from midstream.watch.host_log import LogLines
from midstream.watch.log_query import LogQuery
from midstream.watch.snapshot import RunView
from midstream_core import records
from support.run_directory import RunDirectory

LOG = (
    "2026-11-21T10:00:00Z I resolved configuration:\n"
    "seed: 1\ntrainer:\n  id: run\n"
    "2026-11-21T10:00:01Z I begins: größer\n"
    "2026-11-21T10:00:02Z I without an end"
)
SIZE = len(LOG.encode())


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
def actions(fleet: Fleet) -> Iterator[Actions]:
    hosts = HostPool(fleet)
    yield Actions(fleet, hosts)
    hosts.close()


RUN = RunView("run", "here", None, None, 1, None, False)


def test_actions_read_and_search_a_log(actions: Actions) -> None:
    lines = LOG.split("\n")
    assert actions.read_log(RUN, 0, 0, 1 << 20) == LogLines(tuple(lines), 0, SIZE, SIZE)
    last = actions.read_log(RUN, 0, -60, 1 << 62)
    assert (last.lines, last.begin, last.end) == ((lines[-1],), SIZE - len(lines[-1]), SIZE)
    found = actions.search_log(RUN, 0, LogQuery.parse("without !zzz"), 0)
    assert (found.count, found.searched, found.size) == (1, SIZE, SIZE)
    assert (found.before, found.after) == (None, last.begin)


def test_actions_read_configuration_of_an_attempt(actions: Actions) -> None:
    assert actions.config(RUN, 1) == "seed: 1\ntrainer:\n  id: run"


def test_actions_verify_names_damage_of_a_checkpoint(actions: Actions) -> None:
    problems = actions.verify(RUN, "step-1-a001")
    assert problems, "its objects are missing"
    assert any("train.json" in problem for problem in problems)


def test_actions_compare_two_checkpoints(actions: Actions) -> None:
    assert actions.compare(RUN, "step-1-a001", "step-2-a001") == [f"equal states: root digest {'d' * 64}"]


def test_equal_arrays_with_other_training_state_differ(
    fleet: Fleet, actions: Actions, capsys: pytest.CaptureFixture[str]
) -> None:
    root = fleet.hosts["here"].root
    manifest = Path(records.RunPaths(root, "run").checkpoint("step-2-a001"), records.MANIFEST)
    manifest.write_text(manifest.read_text().replace("d" * 64, "e" * 64))
    line = "all arrays are equal; the training state in train.json differs"
    assert actions.compare(RUN, "step-1-a001", "step-2-a001") == [line]
    places = [str(manifest.parent.parent / name) for name in ("step-1-a001", "step-2-a001")]
    assert main(["--fleet", fleet.path, "--diff", *places]) == 1
    assert line in capsys.readouterr().out.splitlines()


def test_actions_offer_configs_and_no_other_yaml(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, actions: Actions
) -> None:
    (tmp_path / "mine.yaml").write_text("# my run\nmodel: {type: llama}\n")
    (tmp_path / "more").mkdir()
    (tmp_path / "more" / "other.yaml").write_text("trainer: !include base.yaml\n")
    monkeypatch.chdir(tmp_path)
    assert (tmp_path / "fleet.yaml").exists()
    own = [name for name in actions.configs() if not name.startswith("configs/")]
    assert own == ["mine.yaml", "more/other.yaml"]


def test_actions_add_ssh_config_hosts_to_fleet_file(
    actions: Actions, fleet: Fleet, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
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


def test_headless_flags_report_the_same_as_actions(fleet: Fleet, capfd: pytest.CaptureFixture[str]) -> None:
    assert main(["--fleet", fleet.path, "--metrics", "run", "--json"]) == 0
    rows = [json.loads(line) for line in capfd.readouterr().out.splitlines()]
    assert [(row["global_step"], row["attempt"]) for row in rows] == [(0, 1), (1, 1), (2, 1)]
    assert main(["--fleet", fleet.path, "--log", "run"]) == 0
    assert capfd.readouterr().out == LOG + "\n"
    assert main(["--fleet", fleet.path, "--log", "nonesuch"]) == 2
    assert main(["--fleet", fleet.path, "--log", "run", "--process", "1"]) == 2
    assert "run has no process 1 (it has 1, from 0 on)" in capfd.readouterr().err


def test_log_search_prints_matching_lines_with_their_numbers(fleet: Fleet, capfd: pytest.CaptureFixture[str]) -> None:
    lines = LOG.split("\n")
    number = next(number for number, line in enumerate(lines, 1) if "seed: 1" in line)
    mode = ["--fleet", fleet.path, "--log", "run", "--search"]
    assert main([*mode, "seed", "--follow"]) == 2
    assert "--follow and --search exclude each other" in capfd.readouterr().err
    assert main([*mode, "nonesuch|seed: 1"]) == 0
    out, err = capfd.readouterr()
    assert out == f"{number}: {lines[number - 1]}\n"
    assert f"midstream: 1 of {len(lines)} lines matches" in err
    assert main([*mode, "seed: 1 !SEED", "--json"]) == 0
    found, result = json_lines(capfd)
    assert (found["line"], found["number"]) == (lines[number - 1], number)
    assert (result["matches"], result["lines"]) == (1, len(lines))
    assert main([*mode, "!"]) == 2
    assert "--search has no word" in capfd.readouterr().err


def json_lines(capfd: pytest.CaptureFixture[str]) -> list[dict]:
    return [json.loads(line) for line in capfd.readouterr().out.splitlines()]


def test_headless_reports_configurations_of_attempts(
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
    (newest,) = json_lines(capfd)
    assert (newest["attempt"], newest["config"]) == (2, {"seed": 1, "mode": "fast", "trainer": {"id": 7}})
    assert main([*mode, "--attempts", "1"]) == 0
    assert capfd.readouterr().out == "seed: 1\ntrainer:\n  id: run\n"
    assert main([*mode, "--attempts", "1,2"]) == 0
    assert capfd.readouterr().out == "+ mode fast\n~ trainer.id run -> 7\n"
    assert main([*mode, "--attempts", "1,2", "--json"]) == 0
    added, changed, result = json_lines(capfd)
    assert (added["name"], added["kind"], added["after"]) == ("mode", "added", "fast")
    assert (changed["name"], changed["before"], changed["after"]) == ("trainer.id", "run", 7)
    assert result["changes"] == 2
    assert main([*mode, "--attempts", "1,3"]) == 2
    assert "known: 1, 2" in capfd.readouterr().err
    with pytest.raises(SystemExit, match="2"):
        main(["--fleet", fleet.path, "--status", "--attempts", "1"])


def test_headless_reports_curves_of_several_runs(
    fleet: Fleet, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
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
    assert [(row["run"], row["global_step"]) for row in json_lines(capfd)] == [
        ("run", 0), ("run", 1), ("run", 2), ("other", 1), ("other", 3),
    ]  # fmt: skip
    assert main(["--fleet", fleet.path, "--metrics", "run,nonesuch"]) == 2
