"""Reason of a run's failure: from its status, its exit record and the end of its log; known bytes of a log."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from midstream.headless import status as status_mode
from midstream.listing import documents
from midstream.watch import log_tail
from midstream.watch.log_errors import error_line
from midstream.watch.log_tail import LogTail
from midstream.watch.run_failure import failure_of
from midstream.watch.snapshot import LogRange, RunView, Snapshot
from midstream_core import records

TRACEBACK = (
    "2026-11-21T10:00:00Z I step 76",
    "Traceback (most recent call last):",
    '  File "train.py", line 3, in <module>',
    "    raise ValueError('boom')",
    "ValueError: boom",
    "W&B: uploaded 3 files",
)
OUT_OF_MEMORY = "killed with SIGKILL: out of memory (the kernel's OOM killer ended a process of its control group)"


def copy(
    state: str = records.TRAINING, process: int = 0, processes: int = 1, message: str = "", **fields: Any
) -> RunView:
    status = records.Status(state, 76, process, "boot", 1, 1, 5.0, processes=processes, message=message)
    return RunView("nano", f"h{process}", None, None, 1, status, False, **fields)


def ended(process: int = 0, code: int | None = 1, message: str = "", **fields: Any) -> records.ProcessExit:
    return records.ProcessExit(process, code, 100.0, state=records.TRAINING, step=76, message=message, **fields)


def test_failure_prefers_the_message_of_the_engine() -> None:
    run = copy(records.FAILED, message="data: no tokenizer (hint: name one)", log=TRACEBACK, exit=ended())
    failure = failure_of([run])
    assert failure is not None
    assert failure.reason == "data: no tokenizer"
    assert failure.message == "data: no tokenizer (hint: name one)"
    assert failure.ending == "exit code 1, training at step 76"
    assert failure.log == TRACEBACK[1:]


@pytest.mark.parametrize(
    ("record", "log", "reason"),
    [
        (ended(message="exit code 1: W&B: uploaded 3 files"), TRACEBACK, "exit code 1: ValueError: boom"),
        (ended(code=None, signal="SIGKILL", message=OUT_OF_MEMORY), TRACEBACK, OUT_OF_MEMORY),
        (ended(code=None, signal="SIGSEGV", message="ended by SIGSEGV: x"), (), "ended by SIGSEGV: x"),
        (ended(stalled=True, message="no progress for 9 s (training at step 76)"), TRACEBACK,
         "no progress for 9 s (training at step 76)"),
        (None, TRACEBACK, "exited without a message: ValueError: boom"),
        (None, (), "exited without a message"),
    ],
)  # fmt: skip
def test_failure_of_a_lost_process(record: records.ProcessExit | None, log: tuple[str, ...], reason: str) -> None:
    failure = failure_of([copy(log=log, exit=record)])
    assert failure is not None
    assert failure.reason == reason


def test_a_run_that_did_not_fail_has_no_failure() -> None:
    assert failure_of([copy(records.STOPPED, log=TRACEBACK)]) is None
    assert failure_of([replace(copy(), running=True)]) is None


def test_first_process_that_ended_is_the_reason_of_a_group() -> None:
    first = copy(records.FAILED, 0, 2, "process 1 failed", exit=replace(ended(0), time=9.0))
    second = copy(records.TRAINING, 1, 2, exit=replace(ended(1, message="ended by SIGBUS"), time=8.0, code=None))
    failure = failure_of([first, second])
    assert failure is not None
    assert (failure.reason, failure.process, failure.run) == ("process 1 on h1: ended by SIGBUS", 1, second)


def test_error_line_ends_the_last_traceback_or_is_the_last_error() -> None:
    assert TRACEBACK[error_line(TRACEBACK)] == "ValueError: boom"
    assert error_line(["2026-11-21T10:00:00Z E bad", "goes on", ""]) == 0
    assert error_line(["a", "b", "", " "]) == 1
    assert error_line(["Traceback (most recent call last):", "  File x"]) == 1
    assert error_line([]) == 0


def test_status_has_a_column_with_the_reason() -> None:
    run = copy(log=TRACEBACK, exit=ended(code=None, signal="SIGKILL", message=OUT_OF_MEMORY))
    heading, row = status_mode.run_rows(Snapshot(1, 0.0, (), (run,)))
    assert dict(zip(heading, row, strict=True))["REASON"] == OUT_OF_MEMORY
    value = documents.run_event(run).fields()
    assert value["reason"] == OUT_OF_MEMORY
    assert value["exit"]["signal"] == "SIGKILL"
    assert documents.run_event(copy(records.STOPPED)).fields()["reason"] == ""


def log_event(text: str, offset: int, end: int, first: bool = False) -> dict[str, Any]:
    return {"text": text, "offset": offset, "end": end, "first": first, "process": 0}


def test_log_tail_has_the_bytes_of_its_lines(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(log_tail, "MAX_LINES", 3)
    tail = LogTail()
    tail.take(log_event("äb\n12%\r50%\n", 100, 112, first=True))
    assert (tail.lines, tail.range) == (("äb", "50%"), LogRange(100, 112))
    tail.take(log_event("c\nd\n", 112, 116))
    assert (tail.lines, tail.range) == (("50%", "c", "d"), LogRange(104, 116)), "the dropped line had four bytes"
    tail.take(log_event("1\n2\n3\n4\n", 116, 124))
    assert (tail.lines, tail.range) == (("2", "3", "4"), LogRange(118, 124))
    tail.take(log_event("later\n", 900, 906))
    assert (tail.lines, tail.range) == (("later",), LogRange(900, 906)), "lines are missing before it"


def test_log_tail_without_offsets_has_no_range() -> None:
    tail = LogTail()
    tail.take({"text": "a\nb\n", "first": True})
    tail.take({"text": "c\n", "first": False})
    assert (tail.lines, tail.range) == (("a", "b", "c"), LogRange())
