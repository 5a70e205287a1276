"""A run that exists: it restarts with its own config, and no other one is taken for its."""

from __future__ import annotations

from pathlib import Path

import pytest

from midstream.errors import MidstreamError
from midstream.fleet.fleet import Target
from midstream.launch import launch_run
from support.local_fleet import CONFIG, Fleet, stopped_run


@pytest.fixture
def fleet(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Fleet:
    made = Fleet(tmp_path, capsys, "here", "there")
    stopped_run(made.roots["here"], "solo")
    return made


def test_another_config_is_not_taken_for_the_runs_own(fleet: Fleet, tmp_path: Path) -> None:
    other = tmp_path / "other.yaml"
    other.write_text(CONFIG.replace("gpt2", "llama"))
    before = fleet.tree()
    code, _, err = fleet("--launch", str(other), "--on", "here", "--run-id", "solo", "--yes")
    assert code == 2
    assert f"solo exists on here, and {other} is not its config" in err
    assert "midstream --restart solo continues it with its own" in err
    assert fleet.tree() == before


@pytest.mark.parametrize("restart", [True, False])
def test_run_continues_with_its_own_config(
    fleet: Fleet, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, restart: bool
) -> None:
    def prepare(_hosts: object, target: Target, *_: object) -> None:
        raise MidstreamError(f"{target.name} would start it", "this is a test")

    monkeypatch.setattr(launch_run, "prepare_target", prepare)
    same = tmp_path / "same.yaml"
    same.write_text("# a comment\n" + CONFIG)
    words = ("--restart", "solo") if restart else ("--launch", str(same), "--on", "here", "--run-id", "solo")
    code, out, err = fleet(*words, "--yes", "--", "--trainer.num_train_steps", "9")
    assert code == 1
    assert "midstream: here would start it" in err
    assert "solo exists on here: it continues with its own config; only overrides change it" in out + err


def test_run_that_no_host_has_is_not_restarted(fleet: Fleet) -> None:
    code, _, err = fleet("--restart", "sol")
    assert code == 2
    assert "no run 'sol'" in err
    assert "solo" in err
