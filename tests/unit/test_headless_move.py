"""What a migration's end is told as, on stdout and on stderr."""

from __future__ import annotations

import io
import json

import pytest

from midstream.headless.migrate_run import _tell
from midstream.migrate.model import Event
from midstream.output import Output

MESSAGE = "large: no route to host (is the machine up?)"


def told(event: Event, *, as_json: bool) -> tuple[str, str]:
    data, talk = io.StringIO(), io.StringIO()
    _tell(event, Output(as_json, data, talk))
    return data.getvalue(), talk.getvalue()


def result(code: int, outcome: str, message: str) -> Event:
    detail = {"ok": not code, "exit_code": code, "outcome": outcome, "run": "r", "migration": "m", "certificate": None}
    return Event.from_json({"event": "result", "time": 1.0, "message": message, **detail})


@pytest.mark.parametrize(("code", "outcome"), [(1, "rolled back"), (4, "interrupted"), (5, "not certified")])
def test_a_move_that_failed_is_one_line_on_stderr_with_json_too(code: int, outcome: str):
    stdout, stderr = told(result(code, outcome, MESSAGE), as_json=True)
    assert json.loads(stdout)["exit_code"] == code
    assert stderr == f"midstream: r: {outcome}: {MESSAGE}\n"


def test_a_move_that_is_done_says_nothing_on_stderr():
    stdout, stderr = told(result(0, "done", ""), as_json=True)
    assert json.loads(stdout)["outcome"] == "done"
    assert stderr == ""


def test_for_people_the_result_is_on_stdout():
    stdout, _ = told(result(1, "rolled back", MESSAGE), as_json=False)
    assert stdout.splitlines()[0] == f"r: rolled back: {MESSAGE}"
