"""Type checks of hosts' answers: results of functions and lines of programs.

The error is one line that names host, function and field.
"""

from __future__ import annotations

import functools
import typing
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

from midstream.errors import DamagedError, RemoteError
from midstream.hosts.rpc.answer_limits import decode
from midstream.hosts.rpc.os_errors import plain_words
from midstream.hosts.rpc.reporting_program import Events, Report, ReportingProgram
from midstream.hosts.rpc.result_builder import build
from midstream_core import json_shapes, records
from midstream_core.json_types import JsonObject, object_or_empty

Printed = TypeVar("Printed")  # a dataclass

PACKAGE = "midstream_host."
HINT = "is the host what it should be?"


def name_of(function: Callable[..., object]) -> str:
    """Return the name of a function in messages: "runs.run_state.describe"."""
    return f"{function.__module__}.{function.__name__}".removeprefix(PACKAGE)


def result_of(host: str, function: Callable[..., object], arguments: JsonObject, answer: Any) -> Any:
    """Return the result of a call of ``function`` from the JSON value of the answer.

    Raises:
        DamagedError: Records of the run cannot be read.
        RemoteError: The function raised (``kind``: its exception), or, of kind "Answer", its result has another shape.
    """
    name = name_of(function)
    fields = object_or_empty(answer)
    if not ("value" in fields or "error" in fields):
        raise _rejected(host, name, "neither a value nor an error")
    if "error" in fields:
        lines = str(fields["error"]).strip().splitlines()
        words, hint = plain_words(host, lines[0] if lines else "an error without a message")
        message, kind = f"{host}: {words}", str(fields.get("kind", ""))
        if kind == "NewerFormatError":  # the message says what to do
            raise DamagedError(message, kind)
        if kind == "DamagedRecordError":
            raise DamagedError(message, kind, repair_hint(host, arguments.get("run_id")))
        raise RemoteError(message, kind, hint)
    annotation = result_type(function)
    try:
        json_shapes.check(annotation, fields["value"])
        return build(annotation, fields["value"])
    except (json_shapes.ShapeError, records.RecordError) as error:
        raise _rejected(host, name, str(error)) from None


@functools.cache
def result_type(function: Callable[..., object]) -> object:
    """Return the annotation of a function's result."""
    return typing.get_type_hints(function, include_extras=True)["return"]


def report_of(host: str, reporting: ReportingProgram[..., Report], line: object) -> Report:
    """Return a line of a program as the type of its event. Raises as `event_of`."""
    return event_of(host, name_of(reporting.program), reporting.events, line)


def event_of(host: str, name: str, events: Events[Report], line: Any) -> Report:
    """Return a line as the type of its event, one of ``events``.

    ``name``: that of the program, for messages.

    Raises:
        RemoteError: It is none of the events, or has another shape; of kind "Answer".
    """
    fields = line_of(host, name, events, line)
    try:
        return build(events[fields["event"]], fields)
    except records.RecordError as error:
        raise _rejected(host, f"{name}: {fields['event']}", str(error)) from None


def printed_value(host: str, what: str, kind: type[Printed], text: str) -> Printed:
    """Return the JSON value that a command on a host has printed, as a ``kind``.

    ``what`` printed it, for messages.

    Raises:
        RemoteError: It is no JSON, or has another shape; of kind "Answer".
    """
    try:
        value = decode(text.encode("utf-8", "replace"))
        json_shapes.check(kind, value)
        return build(kind, value)
    except (ValueError, records.RecordError) as error:  # a ShapeError is a ValueError
        raise _rejected(host, what, " ".join(str(error).split())[:300]) from None


def line_of(host: str, name: str, events: Mapping[str, Any], line: Any) -> dict[str, Any]:
    """Check that a line is one of ``events`` and return it as JSON.

    Raises as `event_of`.
    """
    fields = object_or_empty(line)
    event: object = fields.get("event")
    kind = events.get(event) if isinstance(event, str) else None
    if kind is None:
        raise _rejected(host, name, "a line that is none of its events")
    try:
        json_shapes.check(kind, line)
    except json_shapes.ShapeError as error:
        raise _rejected(host, f"{name}: {event}", str(error)) from None
    return fields


def repair_hint(host: str, run_id: Any) -> str:
    """Return the hint for damaged records of a run: the command that repairs them."""
    if not isinstance(run_id, str):
        return "the files on its disk are damaged, or of another version"
    return f"midstream --repair {run_id} --on {host} shows what it would write, and from which evidence"


def _rejected(host: str, function: str, why: str) -> RemoteError:
    return RemoteError(f"{host}: {function}: {why}", "Answer", HINT)
