"""Limits of answers of real processes on this machine: bytes, lines, seconds."""

from __future__ import annotations

import inspect
import sys
from pathlib import Path
from threading import Thread

import pytest

from midstream.errors import ConnectionLostError
from midstream.fleet.fleet import LocalHostConfig
from midstream.hosts.local_host import LocalHost
from midstream.hosts.rpc.answer_limits import AnswerTooLargeError, read_line
from midstream_host.runs import run_state
from midstream_host.verify import objects
from support.remote_functions import function_of

DRIP = "while :; do printf x; sleep 0.05; done"


@pytest.fixture
def host(tmp_path: Path) -> LocalHost:
    return LocalHost("lab", LocalHostConfig(root=str(tmp_path)))


def test_run_times_out_while_single_bytes_arrive(host: LocalHost) -> None:
    with pytest.raises(ConnectionLostError, match="lab: sh did not end within 2 s"):
        host.run(["sh", "-c", DRIP], timeout=2.0)


@pytest.mark.parametrize(
    ("script", "message"),
    [
        ("yes", "lab: sh answered more than 2 MiB: closed"),
        ("yes >&2", "lab: a command, on stderr, answered more than 4"),
    ],
)
def test_run_closes_endless_output(host: LocalHost, script: str, message: str) -> None:
    with pytest.raises(AnswerTooLargeError, match=message):
        host.run(["sh", "-c", script])


def test_limit_error_names_the_remote_function(host: LocalHost, tmp_path: Path) -> None:
    python = tmp_path / "python"
    python.write_text("#!/bin/sh\nexec cat /dev/zero\n")
    python.chmod(0o755)
    host.remote_python = str(python)
    with pytest.raises(AnswerTooLargeError, match=r"lab: runs\.run_state\.list_runs answered more than 2 MiB: closed"):
        host.call(run_state.list_runs)(root=host.root)
    with pytest.raises(AnswerTooLargeError, match=r"lab: verify\.objects\.describe answered more than 16 MiB: closed"):
        host.call(objects.describe)(directory="/x", manifest="manifest.json")


@pytest.mark.parametrize(
    ("function", "mebibytes"),
    [
        ("runs.log_pages.page", 8),
        ("runs.log_pages.search", 2),
        ("runs.run_times.read", 8),
        ("machine.run_inputs.problems", 2),
        ("machine.environments.find", 2),
        ("machine.environments.ready", 2),
        ("trainers.checkpoint_survey.survey", 2),
        ("trainers.checkpoint_survey.sizes", 2),
    ],
)
def test_endless_answer_is_closed_at_the_function_s_limit(
    host: LocalHost, tmp_path: Path, function: str, mebibytes: int
) -> None:
    python = tmp_path / "python"
    python.write_text("#!/bin/sh\nexec cat /dev/zero\n")
    python.chmod(0o755)
    host.remote_python = str(python)
    called = function_of(function)
    needed = [each.name for each in inspect.signature(called).parameters.values() if each.default is each.empty]
    with pytest.raises(AnswerTooLargeError, match=f"lab: {function} answered more than {mebibytes} MiB: closed"):
        host.call(called)(**dict.fromkeys(needed, ""))


def test_read_line_limits_bytes_and_seconds(host: LocalHost) -> None:
    process = host.open([sys.executable, "-c", "print('a'); print('b' * 5000, flush=True); input()"])
    assert read_line(process, "it", limit=4096) == b"a\n"
    with pytest.raises(AnswerTooLargeError, match="lab: it, in one line, answered more than 4 KiB"):
        read_line(process, "it", limit=4096)
    process.close()
    process = host.open(["sh", "-c", DRIP])
    with pytest.raises(ConnectionLostError, match="lab: it: no complete answer within 1 s"):
        read_line(process, "it", seconds=1.0)
    process.close()
    process = host.open(["cat"])
    with pytest.raises(ConnectionLostError, match="within 1 s"):
        read_line(process, "it", first_byte_timeout=1.0)
    process.close()
    process = host.open(["true"])
    assert read_line(process, "it", first_byte_timeout=60.0) == b""
    process.close()


def test_read_line_waits_for_first_byte_without_timeout(host: LocalHost) -> None:
    process = host.open(["cat"])
    lines: list[bytes] = []
    reader = Thread(target=lambda: lines.append(read_line(process, "it", seconds=1.0)))
    reader.start()
    reader.join(1.5)
    assert reader.is_alive(), "the time limit starts with the first byte"
    process.stdin.write(b"late\n")
    process.stdin.flush()
    reader.join(60)
    assert lines == [b"late\n"]
    process.close()
