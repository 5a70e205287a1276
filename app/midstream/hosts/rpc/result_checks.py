"""Check what a host answered: the envelope of a call, the result of each function, each line of a program.

The shapes are in `result_types` and `report_types`; what is wrong is one line that names host, function and field.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from midstream.errors import DamagedError, RemoteError
from midstream.hosts.rpc.report_types import REPORTS
from midstream.hosts.rpc.result_types import RESULTS
from midstream_engine import json_shapes

HINT = "is the host what it should be?"


def result_of(host: str, function: str, arguments: Mapping[str, Any], answer: Any) -> Any:
    """The result of a call of ``midstream.remote.<function>``, from the JSON value that the host answered.

    RemoteError where the function raised (``kind``: its exception), or, of kind "Answer", where the result has another
    shape; DamagedError where records cannot be read.
    """
    if not isinstance(answer, dict) or not ("value" in answer or "error" in answer):
        raise _refused(host, function, "neither a value nor an error")
    if "error" in answer:
        lines = str(answer["error"]).strip().splitlines()
        message, kind = f"{host}: {lines[0] if lines else 'an error without a message'}", str(answer.get("kind", ""))
        if kind == "Damaged":
            raise DamagedError(message, kind, repair_hint(host, arguments.get("run_id")))
        raise RemoteError(message, kind)
    try:
        json_shapes.check(RESULTS[function], answer["value"])
    except json_shapes.ShapeError as error:
        raise _refused(host, function, str(error)) from None
    return answer["value"]


def report_of(host: str, function: str, line: Any) -> dict[str, Any]:
    """A line of the program ``function``, from the JSON value that the host printed. RemoteError of kind "Answer" where
    it is none of its events, or of another shape."""
    event = line.get("event") if isinstance(line, dict) else None
    kind = REPORTS[function].get(event) if isinstance(event, str) else None
    if kind is None:
        raise _refused(host, function, "a line that is none of its events")
    try:
        json_shapes.check(kind, line)
    except json_shapes.ShapeError as error:
        raise _refused(host, f"{function}: {event}", str(error)) from None
    return line


def repair_hint(host: str, run_id: Any) -> str:
    """What to type where records of a run are damaged."""
    if not isinstance(run_id, str):
        return "what lies on its disk is damaged, or of another version"
    return f"midstream --repair {run_id} --on {host} shows what it would write, and from which evidence"


def _refused(host: str, function: str, why: str) -> RemoteError:
    return RemoteError(f"{host}: {function}: {why}", "Answer", HINT)
