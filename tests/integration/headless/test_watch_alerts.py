"""`--watch` and an open terminal UI: a run that fails is reported, printed and sent."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from midstream.tui.refreshing_app import ALERT_INTERVAL
from midstream_core import records
from pages.json_lines import problem_of
from support.command_line import midstream
from support.run_directory import RunDirectory, dead_process
from support.tui import fleets
from support.tui.prepared_actions import PreparedActions, PreparedSnapshots
from support.tui.screens import app_over, settle


@pytest.fixture
def fleet(tmp_path: Path) -> Path:
    file = tmp_path / "fleet.yaml"
    hosts = f'hosts:\n  here: {{type: local, root: "{tmp_path}/root"}}\n'
    file.write_text(f'on_event: "cat >> {tmp_path}/reported"\n{hosts}')
    return file


def training(tmp_path: Path) -> RunDirectory:
    run = RunDirectory(tmp_path / "root", "nano")
    run.fence(1, "here")
    run.rows(1, *range(4))
    run.status(1, records.TRAINING, 4)  # by this process, which runs
    return run


def test_failed_run_is_printed_and_sent(fleet: Path, tmp_path: Path) -> None:
    run = training(tmp_path)
    command = [sys.executable, "-m", "midstream", "--fleet", str(fleet), "--watch", "nano", "--json"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as watch:
        assert watch.stderr is not None
        assert watch.stdout is not None
        assert "watching nano until Ctrl-C" in watch.stderr.readline()
        stalled = json.loads(watch.stdout.readline())  # its rows are old
        run.status(1, records.FAILED, 4, dead_process())
        line = json.loads(watch.stdout.readline())
        watch.send_signal(signal.SIGINT)
        _, said = watch.communicate(timeout=60)
    assert problem_of(line) == ""
    assert (line["event"], line["kind"], line["run"], line["host"]) == ("alert", "failed", "nano", "here")
    assert line["message"].startswith("nano failed on here")
    assert watch.returncode == 4
    assert "the watch has ended; nothing was changed" in said
    assert stalled["kind"] == "stalled"
    assert [json.loads(reported) for reported in (tmp_path / "reported").read_text().splitlines()] == [stalled, line]


def test_unknown_name_is_refused_at_once(fleet: Path, tmp_path: Path) -> None:
    training(tmp_path)
    ended = midstream("--fleet", fleet, "--watch", "nanno")
    assert ended.code == 2
    assert "no run 'nanno' (did you mean nano?)" in ended.stderr


@pytest.mark.parametrize("named", [True, False], ids=["receivers", "no receivers"])
async def test_open_screen_sends_the_same(named: bool) -> None:
    actions = PreparedActions()
    actions.alerts = [] if named else None
    run = fleets.run()
    app = app_over(fleets.small_fleet(run), actions)
    async with app.run_test(size=(100, 30)) as pilot:
        await pilot.pause(1.5 * ALERT_INTERVAL)
        failed = replace(fleets.run(state=records.FAILED, running=False), host=run.host)
        before = app.source.snapshot()
        assert isinstance(app.source, PreparedSnapshots)
        app.source.set(fleets.snapshot(before.hosts, [failed], version=before.version + 1))
        await settle(pilot, lambda: app.screen_state.run(run.host, run.run_id) == failed)
        await pilot.pause(1.5 * ALERT_INTERVAL)
    kinds = [alert.kind for alert in actions.alerts or ()]
    assert kinds.count("failed") == named
