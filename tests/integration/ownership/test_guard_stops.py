"""A guard process that would have to ask its user stops, and notifies; nothing is executed elsewhere."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from midstream_core import records
from simulators.sshd import Lab
from support.command_line import SLOWER, TINY, Run, midstream, start_midstream
from support.loopback import Loopback, Quiet
from support.trainers.script_runs import STEPS
from support.trainers.script_trainer import write_script

pytestmark = pytest.mark.drawn

Change = Callable[[dict[str, Any], Path], None]


class Receiver(Loopback):
    """A webhook's receiver on loopback."""

    def __init__(self) -> None:
        super().__init__(_Handler, "webhook")
        self.bodies: list[dict[str, Any]] = []


class _Handler(Quiet):
    def do_POST(self) -> None:
        self.server_of.bodies.append(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
        self.send_response(200)
        self.send_header("Content-Length", "0")
        self.end_headers()


def guarded_until_lost(
    lab: Lab, fleet: Path, source: Run, change: Change, monkeypatch: pytest.MonkeyPatch, *flags: str
) -> tuple[int, str, str, list[dict[str, Any]]]:
    """Start a guard with consent, change the run file of the run, and kill it; return how the guard ended."""
    with Receiver() as receiver:
        monkeypatch.setenv("HOOK", receiver.url)
        fleet.write_text(fleet.read_text() + "\nnotify: [{url: env:HOOK}]\n")
        guard = start_midstream("--fleet", fleet, "--guard", "r", "--to", "there", "--json", *flags)
        try:
            assert guard.stderr is not None
            for line in guard.stderr:
                if "guarding r on here" in line:
                    break
            config = yaml.safe_load(Path(source.paths.config).read_text())
            change(config, Path(source.paths.root))
            Path(source.paths.config).write_text(yaml.safe_dump(config))
            source.kill()
            out, err = guard.communicate(timeout=180)
        finally:
            guard.kill()
        return guard.returncode, out, err, receiver.bodies


def other_command(config: dict[str, Any], root: Path) -> None:
    config["resume"] = ["sh", "-c", f"touch {root}/executed; exec sleep 600"]


def other_files(config: dict[str, Any], _: Path) -> None:
    config["files_digest"] = "ab" * 32


@pytest.mark.parametrize("change", [other_command, other_files], ids=["command", "files"])
def test_guard_of_a_script_asks_nobody(
    lab: Lab, runs: Callable[..., Run], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, change: Change
) -> None:
    here, there = lab.host("here"), lab.host("there")
    fleet = lab.fleet_file(here=here.config, there=there.config)
    file = write_script(tmp_path / "code", steps=STEPS, every=25)
    launched = midstream("--fleet", fleet, "--launch", file, "--on", "here", "--run-id", "r")
    assert launched.code == 0, launched.stderr
    source = runs(here.root, "r")
    source.wait(lambda run: bool(run.checkpoints()), "a checkpoint")
    code, out, err, notified = guarded_until_lost(lab, fleet, source, change, monkeypatch, "--yes")
    assert code == 1, (out, err)
    message = "the run file of here (digest "
    assert message in err
    assert "midstream --migrate r --to there shows it and asks" in err
    needs = [event for event in notified if event["kind"] == "needs you"]
    assert message in needs[-1]["message"], notified
    assert [json.loads(line)["kind"] for line in out.splitlines() if '"guard"' in line] == ["lost", "needs you"]
    assert not (there.root / "runs").exists(), "nothing was sent there"
    assert not (here.root / "executed").exists()
    assert records.Fence.read(source.paths.fence).epoch == 1


def leads_out(config: dict[str, Any], root: Path) -> None:
    config["trainer"]["log_dir"] = f"{root}/elsewhere"


def test_guard_of_an_engine_asks_nobody(lab: Lab, runs: Callable[..., Run], monkeypatch: pytest.MonkeyPatch) -> None:
    here, there = lab.host("here", devices=1), lab.host("there", devices=1)
    fleet = lab.fleet_file(here=here.config, there=there.config)
    flags = (*SLOWER, "--trainer.num_train_steps", "100000", "--trainer.checkpointer.keep", "[{every: 5}]")
    launched = midstream("--fleet", fleet, "--launch", TINY, "--on", "here", "--run-id", "r", "--", *flags)
    assert launched.code == 0, launched.stderr
    source = runs(here.root, "r")
    source.wait(lambda run: bool(run.checkpoints()), "a checkpoint")
    code, out, err, notified = guarded_until_lost(lab, fleet, source, leads_out, monkeypatch)
    assert code == 1, (out, err)
    message = "not agreed to when the guard was started: "
    assert message in err
    assert "log_dir" in err
    assert any(message in event["message"] for event in notified if event["kind"] == "needs you"), notified
    assert not (there.root / "runs").exists(), "nothing was sent there"
