"""The result of a migration that `--migrate` prints on stdout and stderr."""

from __future__ import annotations

import io
import json
from pathlib import Path

import pytest

from midstream.headless import migrate_run
from midstream.headless.migrate_run import print_event, result_lines
from midstream.migrate.journal import migration_directory
from midstream.migrate.journal.downtime_report import DowntimeReport
from midstream.migrate.journal.event import Event
from midstream.output import Output
from midstream_core import records
from support.migrations.sample_plan import PLAN, changed

MESSAGE = "large: no route to host (is the machine up?)"


def printed(event: Event, *, as_json: bool) -> tuple[str, str]:
    data, talk = io.StringIO(), io.StringIO()
    print_event(event, Output(as_json, data, talk))
    return data.getvalue(), talk.getvalue()


def result(code: int, outcome: str, message: str) -> Event:
    detail = {"ok": not code, "exit_code": code, "outcome": outcome, "run": "r", "migration": "m", "certificate": None}
    return Event.from_json({"event": "result", "time": 1.0, "message": message, **detail})


@pytest.mark.parametrize(("code", "outcome"), [(1, "rolled back"), (4, "interrupted"), (5, "not certified")])
def test_failed_migration_prints_one_stderr_line_with_json(code: int, outcome: str) -> None:
    stdout, stderr = printed(result(code, outcome, MESSAGE), as_json=True)
    assert json.loads(stdout)["exit_code"] == code
    assert stderr == f"midstream: r: {outcome}: {MESSAGE}\n"


def test_completed_migration_prints_nothing_on_stderr() -> None:
    stdout, stderr = printed(result(0, "done", ""), as_json=True)
    assert json.loads(stdout)["outcome"] == "done"
    assert stderr == ""


def test_text_result_is_on_stdout() -> None:
    stdout, _ = printed(result(1, "rolled back", MESSAGE), as_json=False)
    assert stdout.splitlines()[0] == f"r: rolled back: {MESSAGE}"


@pytest.mark.parametrize(
    ("valid", "outcome", "words"),
    [(True, "completed", "valid"), (True, "rolled back", "void (rolled back)"), (False, "rolled back", "NOT VALID")],
)
def test_result_says_whether_the_certificate_is_in_force(valid: bool, outcome: str, words: str) -> None:
    certificate = {"valid": valid, "step": 7, "root_digest": "0" * 64, "claims": []}
    event = Event("result", 0.0, detail={"run": "r", "outcome": outcome, "certificate": certificate})
    assert result_lines(event)[1].startswith(f"certificate: {words}, step 7")


@pytest.mark.parametrize(
    ("measured", "line"),
    [
        ({"save": 0.5, "first_step": 1.5}, "downtime: 2.0 s (save 0.5, first step 1.5); predicted 3.0 s"),
        ({"save": 0.0}, "downtime: 2.0 s; predicted 3.0 s"),
    ],
)
def test_result_has_the_measured_downtime(measured: dict[str, float], line: str) -> None:
    report = DowntimeReport({"save": 3.0}, measured, 10.0, 12.0)
    event = Event("result", 0.0, detail={"run": "r", "outcome": "completed", "downtime": report.to_json()})
    assert line in result_lines(event)


@pytest.mark.parametrize(("epoch", "words"), [(1, ""), (2, "a rollback discards 50 steps of a")])
def test_rollback_discards_steps_of_the_target_alone(tmp_path: Path, epoch: int, words: str) -> None:
    """Source and target have one run directory, and the seal is of an older checkpoint.

    The steps past it are the source's, which a rollback returns to, until the target trains.
    """
    paths = records.RunPaths(str(tmp_path / "a"), "r")
    Path(paths.attempt(1).dir).mkdir(parents=True)
    records.Fence(2, "a", 100, [records.Seal(1, 100).to_json()]).write(paths.fence)
    records.Status(records.STOPPED, 150, 0, "", 1, 0, 0.0, epoch=epoch).write(paths.attempt(1).status())
    plan = changed(PLAN, run_id="r", source="a", target="a", target_host="a", epoch=2)
    directory = migration_directory.create(plan, f"hosts:\n  a: {{type: local, root: {tmp_path / 'a'}}}\n")
    assert migrate_run._discarded_steps(directory.view()) == words
