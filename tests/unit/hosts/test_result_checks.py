"""Answers of hosts are checked against the annotations of the called functions."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest

from midstream.errors import DamagedError, Exit, RemoteError
from midstream.hosts.rpc.probe_lines import PROBE
from midstream.hosts.rpc.report_types import (
    BUILD,
    COPY,
    DIVIDE,
    EXAMINE,
    FOLLOW,
    LISTEN,
    VERIFY,
    CheckedObject,
    Complete,
    Landed,
    Object,
    Placed,
    Ready,
)  # fmt: skip
from midstream.hosts.rpc.result_builder import builder_of
from midstream.hosts.rpc.result_checks import (
    event_of,
    line_of,
    name_of,
    printed_value,
    report_of,
    result_of,
    result_type,
)
from midstream_core import json_shapes, records
from midstream_host.machine import probe
from midstream_host.runs import checkpoint_pins, run_state
from support.remote_functions import declared_functions, function_of


def test_every_declared_function_has_a_checkable_result() -> None:
    declared = list(declared_functions())
    assert len(declared) > 60
    for function in declared:
        annotation = result_type(function)
        json_shapes.checker(annotation)
        builder_of(annotation)
    reporting = (BUILD, DIVIDE, EXAMINE, FOLLOW, LISTEN, VERIFY)
    for kind in (kind for events in (*(each.events for each in reporting), COPY) for kind in events.values()):
        json_shapes.checker(kind)
        assert builder_of(kind) is not None
    for kind in PROBE.values():
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
        ("runs.checkpoint_pins.pin", 1, "expected null, found an integer"),
    ],
)
def test_result_error_names_host_function_and_field(function: str, value: Any, message: str) -> None:
    with pytest.raises(RemoteError) as caught:
        result_of("lab", function_of(function), {}, {"value": value})
    assert caught.value.kind == "Answer"
    assert caught.value.message.startswith(f"lab: {function}: ")
    assert message in caught.value.message


@pytest.mark.parametrize("answer", [None, [], 1, {}, {"result": 1}, "x"])
def test_answer_without_value_or_error_is_refused(answer: Any) -> None:
    with pytest.raises(RemoteError, match=r"lab: runs\.checkpoint_pins\.pin: neither a value nor an error"):
        result_of("lab", checkpoint_pins.pin, {}, answer)


@pytest.mark.parametrize("error", [{"error": ""}, {"error": None, "kind": 3}, {"error": ["x"]}, {"error": "a\nb"}])
def test_remote_error_of_any_shape_is_one_line(error: Any) -> None:
    with pytest.raises(RemoteError) as caught:
        result_of("lab", checkpoint_pins.pin, {}, error)
    assert "\n" not in str(caught.value)


@dataclass(frozen=True)
class Printed:
    version: list[int]


@pytest.mark.parametrize("text", ["", "x", "[]", "{}", '{"version": 3}', '{"version": [-1]}', "[" * 100_000])
def test_printed_value_of_another_shape_is_refused(text: str) -> None:
    assert printed_value("lab", "its python", Printed, '{"version": [3, 11]}') == Printed([3, 11])
    with pytest.raises(RemoteError, match="lab: its python: "):
        printed_value("lab", "its python", Printed, text)


def test_damaged_record_error_has_the_repair_command() -> None:
    with pytest.raises(DamagedError) as caught:
        result_of(
            "lab",
            run_state.describe,
            {"run_id": "nano"},
            {"error": "run nano: fence.json: partial", "kind": "DamagedRecordError"},
        )
    assert caught.value.code == Exit.REFUSED
    assert caught.value.hint.startswith("midstream --repair nano --on lab")


def test_record_of_a_newer_midstream_has_no_repair_command() -> None:
    answer = {"error": "fence.json: format 2 is newer than this midstream reads (1)", "kind": "NewerFormatError"}
    with pytest.raises(DamagedError) as caught:
        result_of("lab", run_state.describe, {"run_id": "nano"}, answer)
    assert (caught.value.code, caught.value.hint) == (Exit.REFUSED, "")


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
def test_malformed_probe_line_is_refused(line: Any, message: str) -> None:
    with pytest.raises(RemoteError) as caught:
        line_of("lab", name_of(probe.main), PROBE, line)
    assert caught.value.message.startswith("lab: machine.probe.main: ")
    assert message in caught.value.message


def test_records_in_probe_lines_are_checked_when_read() -> None:
    line = {"event": "run", "run": "r", "fence": {"epoch": "7"}}
    assert line_of("lab", name_of(probe.main), PROBE, line) is line
    with pytest.raises(records.RecordError):
        records.Fence.from_json(line["fence"])


def test_report_is_built_as_the_type_of_its_event() -> None:
    line = {"event": "complete", "name": "step-2-a001", "objects": [{"path": "w", "size": 3, "sha256": "00"}]}
    assert report_of("lab", FOLLOW, line) == Complete("step-2-a001", [Object("w", 3, "00")])
    line = {"event": "checked", "path": "w", "bytes": 3, "of_a_newer_version": None}
    assert report_of("lab", VERIFY, line) == CheckedObject("w", 3, wrong=None)
    landed = {"event": "landed", "bytes": 3, "received": 2, "objects": ["w"], "ranges": [["v", 0, 2]]}
    assert event_of("lab", "copy", COPY, landed) == Landed(3, 2, ["w"], [("v", 0, 2)])
    assert event_of("lab", "copy", COPY, {"event": "placed", "objects": []}) == Placed([])
    assert event_of("lab", "copy", COPY, {"event": "ready"}) == Ready()


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ({"event": "verified"}, "lab: copy.growing_checkpoint.follow: a line that is none of its events"),
        ({"event": "named"}, "lab: copy.growing_checkpoint.follow: named: lacks name"),
        (
            {
                "event": "answered", "status": None, "running": True, "migration_lock": None,
                "described": {**DESCRIBED, "fence": {"format": 2, "epoch": 1, "owner": "a"}},
            },
            "lab: copy.growing_checkpoint.follow: answered: Fence: format 2 is newer",
        ),
    ],
)  # fmt: skip
def test_malformed_report_names_host_program_and_event(line: Any, message: str) -> None:
    with pytest.raises(RemoteError) as caught:
        report_of("lab", FOLLOW, line)
    assert caught.value.message.startswith(message)
