"""What stands beside an engine: it tells how the engine ended, ends one that stands still, and dies with it."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from midstream_engine import records, supervise
from midstream_engine.supervise import PATIENCE, Progress
from support.trees import SOURCES

WRITER = """
import os, signal, sys, time
sys.path[:0] = {sources!r}
from midstream_engine import records
me = records.this_process()
def say(state, step, message=""):
    records.Status(state, step, {process}, me.boot_id, me.pid, me.start_ticks, time.time(), message=message).write(
        records.AttemptPaths({directory!r}).status({process}))
"""


SUPERVISE = (sys.executable, "-m", "midstream_engine.supervise")


class Engine:
    """A supervised stand-in in an attempt's directory."""

    def __init__(self, directory: Path, body: str, *flags: str, process: int = 0):
        self.files = records.AttemptPaths(str(directory))
        self.number = process
        code = WRITER.format(sources=SOURCES, directory=str(directory), process=process) + body
        with open(self.files.log(process), "ab") as log:
            self.process = subprocess.Popen(
                [
                    *SUPERVISE,
                    "--attempt",
                    directory,
                    "--process",
                    str(process),
                    *flags,
                    "--",
                    sys.executable,
                    "-c",
                    code,
                ],
                stdout=log,
                stderr=log,
                env={**os.environ, "PYTHONPATH": os.pathsep.join(SOURCES)},
            )

    def status(self) -> records.Status:
        until(lambda: os.path.exists(self.files.status(self.number)))
        return records.Status.read(self.files.status(self.number))

    def ended(self) -> tuple[int, records.ProcessExit]:
        code = self.process.wait(60)
        return code, records.ProcessExit.read(self.files.exit(self.number))


def until(condition: Callable[[], bool], seconds: float = 30.0) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "not within time"
        time.sleep(0.02)


def test_the_end_is_told_with_code_and_last_words(tmp_path: Path) -> None:
    code, ended = Engine(tmp_path, "say('training', 7); print('the disk is full'); sys.exit(3)").ended()
    assert code == 3
    assert (ended.code, ended.signal, ended.step, ended.stalled) == (3, "", 7, False)
    assert ended.message == "exit code 3: the disk is full"
    code, ended = Engine(tmp_path, "say('failed', 7, 'the batch does not divide'); sys.exit(1)").ended()
    assert ended.message == "the batch does not divide", "what the engine said itself comes first"
    assert Engine(tmp_path, "say('finished', 9)").ended()[1].code == 0


def test_an_engine_that_was_killed_leaves_a_word(tmp_path: Path) -> None:
    engine = Engine(tmp_path, "say('training', 7); time.sleep(600)")
    os.kill(engine.status().pid, signal.SIGKILL)
    code, ended = engine.ended()
    assert code == 128 + signal.SIGKILL
    assert (ended.code, ended.signal) == (None, "SIGKILL")
    assert ended.message.startswith("killed with SIGKILL")


def test_signals_are_handed_on(tmp_path: Path) -> None:
    body = "signal.signal(signal.SIGTERM, lambda *_: sys.exit(0)); say('training', 7); time.sleep(600)"
    engine = Engine(tmp_path, body)
    engine.status()
    engine.process.send_signal(signal.SIGTERM)
    assert engine.ended()[0] == 0


def test_the_engine_dies_with_its_supervisor(tmp_path: Path) -> None:
    engine = Engine(tmp_path, "say('training', 7); time.sleep(600)")
    identity = engine.status().identity
    engine.process.kill()
    engine.process.wait()
    until(lambda: not records.is_running(identity))


@pytest.mark.parametrize(
    "body",
    [
        pytest.param("say('training', 5)\nwhile True: time.sleep(.1); say('training', 5)", id="it-beats-and-stands"),
        pytest.param("say('training', 5); os.kill(os.getpid(), signal.SIGSTOP)", id="stopped"),
        pytest.param("time.sleep(600)", id="never-a-status"),
    ],
)
def test_an_engine_that_stands_still_is_ended_and_told(tmp_path: Path, body: str) -> None:
    code, ended = Engine(tmp_path, body, "--stall-timeout", "0.4").ended()
    assert code > 128
    assert ended.stalled
    where = "before its first status" if "600" in body else "training at step 5"
    assert ended.message.startswith("no progress for ")
    assert ended.message.endswith(f"({where})")


def test_the_failure_of_another_process_ends_this_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(supervise, "FOLLOW", 0.1)
    Engine(tmp_path, "sys.exit(1)", process=1).ended()
    alive = supervise.Supervisor(str(tmp_path), 0, [sys.executable, "-c", "import time; time.sleep(600)"])
    assert alive.run() > 128
    assert records.ProcessExit.read(records.AttemptPaths(str(tmp_path)).exit(0)).message == "process 1 failed"


def test_secrets_reach_the_engine_and_no_command_line(tmp_path: Path) -> None:
    secrets = tmp_path / "secrets.json"
    secrets.write_text(json.dumps({"TOKEN": "hunter2"}))
    body = "say('training', 1); print(os.environ['TOKEN']); sys.stdout.flush(); time.sleep(600)"
    engine = Engine(tmp_path, body, "--secrets", str(secrets))
    until(lambda: "hunter2" in Path(engine.files.log()).read_text())
    for pid in (engine.process.pid, engine.status().pid):
        assert b"hunter2" not in Path(f"/proc/{pid}/cmdline").read_bytes()
    assert not secrets.exists(), "it is read once"
    engine.process.terminate()
    engine.process.wait(30)


def test_secrets_of_a_job_stay_for_its_next_start(tmp_path: Path) -> None:
    secrets = tmp_path / "secrets.json"
    secrets.write_text(json.dumps({"TOKEN": "hunter2"}))
    assert supervise.read_secrets(str(secrets), keep=True) == {"TOKEN": "hunter2"}
    assert secrets.exists()
    assert supervise.read_secrets(str(secrets), keep=False) == {"TOKEN": "hunter2"}
    assert not secrets.exists()


def status(state: str, step: int) -> records.Status:
    return records.Status(state, step, 0, "boot", 1, 1, 0.0)


def test_a_standstill_is_measured_against_the_steps_so_far() -> None:
    progress = Progress(10.0, 0.0)
    assert not progress.standstill(status(records.COMPILING, 0), 1.0)
    assert not progress.standstill(status(records.COMPILING, 0), 1.0 + 10 * PATIENCE), "compiling may take longer"
    assert progress.standstill(status(records.COMPILING, 0), 2.0 + 10 * PATIENCE)
    assert not progress.standstill(status(records.TRAINING, 0), 100.0)
    assert not progress.standstill(status(records.TRAINING, 1), 109.0)
    assert not progress.standstill(status(records.TRAINING, 1), 109.0 + 20 * 9), "steps of nine seconds are slow"
    assert progress.standstill(status(records.TRAINING, 1), 110.0 + 20 * 9)


def test_waiting_for_an_order_is_no_standstill() -> None:
    progress = Progress(10.0, 0.0)
    for state in (records.WAITING, records.ON_STANDBY):
        assert not progress.standstill(status(state, 3), 1.0)
        assert not progress.standstill(status(state, 3), 1e6)


def test_what_takes_a_process_after_its_last_word_is_no_failure(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A second SIGTERM, or the machine's shutdown: everything is saved and sealed."""
    code, ended = Engine(tmp_path, "say('stopped', 7); os.kill(os.getpid(), signal.SIGTERM)", process=1).ended()
    assert code == 128 + signal.SIGTERM
    assert (ended.signal, ended.state, ended.failed) == ("SIGTERM", "stopped", False)
    monkeypatch.setattr(supervise, "FOLLOW", 0.1)
    peer = supervise.Supervisor(str(tmp_path), 0, [sys.executable, "-c", "import time; time.sleep(2)"])
    assert peer.run() == 0, "its peers are left alone"
    _, ended = Engine(tmp_path, "say('training', 7); os.kill(os.getpid(), signal.SIGTERM)", process=1).ended()
    assert ended.failed
