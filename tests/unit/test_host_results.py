"""What hosts answer is checked by one table: every function and program of the source tree is in it."""

from __future__ import annotations

import ast
import importlib
import re
from pathlib import Path
from typing import Any

import pytest

import midstream
from midstream.errors import DamagedError, Exit, RemoteError
from midstream.hosts.rpc.report_types import ELSEWHERE, REPORTS
from midstream.hosts.rpc.result_checks import report_of, result_of
from midstream.hosts.rpc.result_types import RESULTS
from midstream_engine import json_shapes, records

SOURCES = Path(midstream.__file__).parent


def _named() -> dict[str, str]:
    """``module.function`` of `midstream.remote` in any string of the app's sources -> the file."""
    remote = SOURCES / "remote"
    modules = {".".join(path.relative_to(remote).with_suffix("").parts) for path in remote.rglob("*.py")}
    found = {}
    for path in SOURCES.rglob("*.py"):
        if remote in path.parents:
            continue
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Constant) and isinstance(node.value, str):
                match = re.fullmatch(r"([a-z_.]+)\.([a-z_]+)", node.value)
                if match and match[1] in modules and match[2] != "py":
                    found[node.value] = str(path)
    return found


def test_every_function_that_is_called_on_a_host_has_a_type():
    tables = {**RESULTS, **REPORTS, **dict.fromkeys(ELSEWHERE)}
    named = _named()
    assert len(named) > 60
    missing = {name: path for name, path in named.items() if name not in tables and _exists(name)}
    assert not missing
    unused = set(tables) - set(named)
    assert not unused


def _exists(name: str) -> bool:
    module, _, function = name.rpartition(".")
    return callable(getattr(importlib.import_module(f"midstream.remote.{module}"), function, None))


def test_every_entry_is_a_function_of_the_source_tree_and_has_a_check():
    for name in {**RESULTS, **REPORTS, **dict.fromkeys(ELSEWHERE)}:
        assert _exists(name), name
    for kind in [*RESULTS.values(), *(kind for events in REPORTS.values() for kind in events.values())]:
        json_shapes.checker(kind)


STATUS: dict[str, Any] = {
    "state": "training", "step": 5, "process": 0, "boot_id": "x", "pid": 7, "start_ticks": 1, "heartbeat": 1.5,
}  # fmt: skip
DESCRIBED: dict[str, Any] = {
    "run_id": "r", "fence": None, "lineage": None, "attempts": [1], "attempt": 1, "status": STATUS, "running": True,
    "checkpoints": [],
}  # fmt: skip


@pytest.mark.parametrize(
    ("function", "value", "message"),
    [
        (
            "runs.run_state.describe",
            {**DESCRIBED, "status": {**STATUS, "step": "5"}},
            "status.step: expected an integer, found a",
        ),
        (
            "runs.run_state.describe",
            {**DESCRIBED, "status": {**STATUS, "step": -5}},
            "status.step: expected an integer from 0 on",
        ),
        ("runs.run_state.describe", {**DESCRIBED, "running": 1}, "running: expected a boolean, found an integer"),
        ("runs.run_state.describe", {**DESCRIBED, "checkpoints": [{"name": "../x"}]}, "checkpoints[0]: lacks step"),
        ("runs.run_state.describe", [], "expected an object, found a list"),
        ("runs.run_state.list_runs", ["nano", "../../x"], "[1]: '../../x' is not a run id"),
        ("runs.run_state.running_attempt", "1", "expected an integer, found a string"),
        (
            "machine.network.reach",
            {"10.0.0.1": {"seconds": "0"}},
            "10.0.0.1.seconds: expected a number, found a string",
        ),
        ("verify.objects.describe", {"manifest": "", "problems": [None]}, "problems[0]: expected"),
        ("runs.run_state.pin", 1, "expected null, found an integer"),
    ],
)
def test_an_answer_of_another_shape_is_one_line_with_host_function_and_field(function: str, value: Any, message: str):
    with pytest.raises(RemoteError) as caught:
        result_of("lab", function, {}, {"value": value})
    assert caught.value.kind == "Answer"
    assert caught.value.message.startswith(f"lab: {function}: ")
    assert message in caught.value.message


@pytest.mark.parametrize("answer", [None, [], 1, {}, {"result": 1}, "x"])
def test_an_answer_that_is_none_is_refused(answer: Any):
    with pytest.raises(RemoteError, match=r"lab: runs\.run_state\.pin: neither a value nor an error"):
        result_of("lab", "runs.run_state.pin", {}, answer)


@pytest.mark.parametrize("error", [{"error": ""}, {"error": None, "kind": 3}, {"error": ["x"]}, {"error": "a\nb"}])
def test_an_error_of_any_shape_is_one_line(error: Any):
    with pytest.raises(RemoteError) as caught:
        result_of("lab", "runs.run_state.pin", {}, error)
    assert "\n" not in str(caught.value)


def test_damaged_records_name_the_command_that_repairs_them():
    with pytest.raises(DamagedError) as caught:
        result_of(
            "lab",
            "runs.run_state.describe",
            {"run_id": "nano"},
            {"error": "run nano: fence.json: torn", "kind": "Damaged"},
        )
    assert caught.value.code == Exit.REFUSED
    assert caught.value.hint.startswith("midstream --repair nano --on lab")


@pytest.mark.parametrize(
    ("line", "message"),
    [
        (None, "a line that is none of its events"),
        ({"event": "reboot"}, "a line that is none of its events"),
        ({"event": ["run"]}, "a line that is none of its events"),
        ({"event": "run", "run": "a/b"}, "run: run: 'a/b' is not a run id"),
        ({"event": "run", "run": "\x1b]0;x\x07"}, "is not a run id"),
        ({"event": "metrics", "run": "r", "attempt": 1, "inode": 1, "offset": -1, "end": 2, "text": ""}, "offset"),
        ({"event": "beat", "time": "now"}, "time: expected a number, found a string"),
        ({"event": "beat", "time": 1, "accelerators": [{"index": 0}]}, "accelerators[0]: lacks kind"),
        (
            {"event": "log", "run": "r", "attempt": 1, "first": True, "text": None},
            "text: expected a string, found null",
        ),
    ],
)
def test_a_line_of_a_probe_of_another_shape_is_refused(line: Any, message: str):
    with pytest.raises(RemoteError) as caught:
        report_of("lab", "machine.probe.main", line)
    assert caught.value.message.startswith("lab: machine.probe.main: ")
    assert message in caught.value.message


def test_records_in_a_line_are_left_to_whoever_reads_them():
    line = {"event": "run", "run": "r", "fence": {"epoch": "7"}}
    assert report_of("lab", "machine.probe.main", line) is line
    with pytest.raises(records.RecordError):
        records.Fence.from_json(line["fence"])
