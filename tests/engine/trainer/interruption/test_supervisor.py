"""The supervisor reports the engine's exit, ends a stalled engine, and exits with it."""

from __future__ import annotations

import contextlib
import dataclasses
import errno
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from midstream_core import records
from midstream_host import supervise
from midstream_host.memory_kills import MemoryKills
from midstream_host.supervise import START_FACTOR, StallTimer
from support.checkpoints.trees import SOURCES

WRITER = """
import os, signal, sys, time
sys.path[:0] = {sources!r}
from midstream_core import records
from midstream_host import supervise
me = records.this_process()
def say(state, step, message=""):
    records.Status(state, step, {process}, me.boot_id, me.pid, me.start_ticks, time.time(), message=message).write(
        records.AttemptPaths({directory!r}).status({process}))
"""


SUPERVISE = (sys.executable, "-m", "midstream_host.supervise")
# It waits for the engine's first status as long as a busy machine takes to start the engine.
SUPERVISE_SLOW_START = (
    sys.executable,
    "-c",
    "import sys; from midstream_host import supervise; supervise.START_FACTOR = 1000.0; sys.exit(supervise.main())",
)


class Engine:
    """A supervised stand-in engine in an attempt's directory."""

    def __init__(
        self, directory: Path, body: str, *flags: str, process: int = 0, supervisor: Sequence[str] = SUPERVISE
    ) -> None:
        self.files = records.AttemptPaths(str(directory))
        self.number = process
        code = WRITER.format(sources=SOURCES, directory=str(directory), process=process) + body
        with open(self.files.log(process), "ab") as log:
            self.process = subprocess.Popen(
                [
                    *supervisor,
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
                process_group=0,
            )

    def status(self) -> records.Status:
        until(lambda: os.path.exists(self.files.status(self.number)))
        return records.Status.read(self.files.status(self.number))

    def ended(self) -> tuple[int, records.ProcessExit]:
        code = self.process.wait(60)
        return code, records.ProcessExit.read(self.files.exit(self.number))


def supervise_with_short_timeout(directory: Path, seconds: int) -> int:
    """Return the exit code of a supervisor whose engine sleeps and whose timeout for failed peers is 0.1 s.

    It has a process of its own: a fork of the test's process would run the fork handlers of gRPC.
    """
    engine = [sys.executable, "-c", f"import time; time.sleep({seconds})"]
    code = (
        "import sys; from midstream_host import supervise; supervise.PEER_TIMEOUT = 0.1; "
        f"sys.exit(supervise.Supervisor({str(directory)!r}, 0, {engine!r}).run())"
    )
    return subprocess.call(
        [sys.executable, "-c", code], env={**os.environ, "PYTHONPATH": os.pathsep.join(SOURCES)}, timeout=60
    )


def until(condition: Callable[[], bool], seconds: float = 30.0) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "not within time"
        time.sleep(0.02)


def test_supervisor_reports_exit_code_and_last_message(tmp_path: Path) -> None:
    code, ended = Engine(tmp_path, "say('training', 7); print('the disk is full'); sys.exit(3)").ended()
    assert code == 3
    assert (ended.code, ended.signal, ended.step, ended.stalled) == (3, "", 7, False)
    assert ended.message == "exit code 3: the disk is full"
    code, ended = Engine(tmp_path, "say('failed', 7, 'the batch does not divide'); sys.exit(1)").ended()
    assert ended.message == "the batch does not divide", "what the engine said itself comes first"
    assert Engine(tmp_path, "say('finished', 9)").ended()[1].code == 0


def test_supervisor_reports_killed_engine(tmp_path: Path) -> None:
    engine = Engine(tmp_path, "say('training', 7); time.sleep(600)")
    os.kill(engine.status().pid, signal.SIGKILL)
    code, ended = engine.ended()
    assert code == 128 + signal.SIGKILL
    assert (ended.code, ended.signal) == (None, "SIGKILL")
    assert ended.message.startswith("killed with SIGKILL")


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
def test_supervisor_forwards_signals(tmp_path: Path, number: signal.Signals) -> None:
    body = f"signal.signal({int(number)}, lambda *_: sys.exit(0)); say('training', 7); time.sleep(600)"
    engine = Engine(tmp_path, body)
    engine.status()
    engine.process.send_signal(number)
    assert engine.ended()[0] == 0


STOPPING = """
from midstream_engine.signals import Signals
signals = Signals()
signals.install()
signals.record_end_with(lambda name, lost: 9)
signals.answer_at_boundaries()
say('training', 7)
while not signals.stops: time.sleep(0.01)
time.sleep(0.5)
"""


def test_ctrl_c_in_the_supervisors_terminal_is_one_request(tmp_path: Path) -> None:
    """A terminal sends SIGINT to the supervisor, which forwards it, and to the engine."""
    engine = Engine(tmp_path, STOPPING)
    engine.status()
    os.killpg(engine.process.pid, signal.SIGINT)
    assert engine.ended()[0] == 0


def test_engine_exits_with_its_supervisor(tmp_path: Path) -> None:
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
def test_supervisor_ends_and_reports_stalled_engine(tmp_path: Path, body: str) -> None:
    begins = "say" in body
    supervisor = SUPERVISE_SLOW_START if begins else SUPERVISE
    code, ended = Engine(tmp_path, body, "--stall-timeout", "0.4", supervisor=supervisor).ended()
    assert code > 128
    assert ended.stalled
    where = "training at step 5" if begins else "before its first status"
    assert ended.message.startswith("no progress for ")
    assert ended.message.endswith(f"({where})")


def test_failure_of_another_process_ends_this_one(tmp_path: Path) -> None:
    Engine(tmp_path, "sys.exit(1)", process=1).ended()
    assert supervise_with_short_timeout(tmp_path, 600) > 128
    assert records.ProcessExit.read(records.AttemptPaths(str(tmp_path)).exit(0)).message == "process 1 failed"


def test_secrets_reach_engine_but_no_command_line(tmp_path: Path) -> None:
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


def test_kill_for_want_of_memory_is_named(tmp_path: Path) -> None:
    group = tmp_path / "cgroup" / "job"
    group.mkdir(parents=True)
    (tmp_path / "proc/self").mkdir(parents=True)
    (tmp_path / "proc/self/cgroup").write_text("4:memory:/other\n0::/job\n")
    (tmp_path / "proc/vmstat").write_text("nr_free_pages 7\noom_kill 3\n")
    (group / "memory.events").write_text("oom 1\noom_kill 0\noom_group_kill 0\n")
    kills = MemoryKills(str(tmp_path / "proc"), str(tmp_path / "cgroup"))
    assert kills.evidence() == ""
    (tmp_path / "proc/vmstat").write_text("nr_free_pages 7\noom_kill 4\n")
    assert kills.evidence().startswith("out of memory, it seems")
    (group / "memory.events").write_text("oom 2\noom_kill 1\noom_group_kill 0\n")
    assert kills.evidence().startswith("out of memory (")
    assert MemoryKills(str(tmp_path / "none"), str(tmp_path / "none")).evidence() == ""


def exit_of_peer(directory: Path) -> Path:
    """Write the record of a process 1 that was killed."""
    path = records.AttemptPaths(str(directory)).exit(1)
    records.ProcessExit(1, None, 0.0, "SIGKILL", state=records.TRAINING).write(path)
    return Path(path)


def test_peer_that_is_started_again_ends_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As after a requeue: its supervisor starts later than this one, and removes the record of the last exit."""
    supervisor = supervise.Supervisor(str(tmp_path), 0, [])
    record = exit_of_peer(tmp_path)
    assert supervisor._reason_to_end() == ""
    monkeypatch.setattr(supervise, "PEER_TIMEOUT", -1.0)  # the time has passed
    assert supervisor._reason_to_end() == "process 1 failed"
    record.unlink()
    assert supervisor._reason_to_end() == ""


def test_second_start_is_not_judged_by_the_first(tmp_path: Path) -> None:
    """A requeued job has the status and the exits of its first start in its directory."""
    stopped = Engine(tmp_path, "say('stopped', 7)")
    assert stopped.ended()[1].state == "stopped"
    exit_of_peer(tmp_path)
    code, ended = Engine(tmp_path, "sys.exit(3)").ended()
    assert (code, ended.state, ended.failed) == (3, "", True), "it failed before its first status"

    again = (sys.executable, "-c", "import sys; from midstream_host import supervise; "
             "supervise.PEER_TIMEOUT = -1.0; sys.exit(supervise.main())")  # fmt: skip
    path = records.AttemptPaths(str(tmp_path)).exit(1)
    peer_fails = f"records.ProcessExit(1, None, 1.0, 'SIGKILL', state='training').write({path!r})"
    assert Engine(tmp_path, f"time.sleep(2); {peer_fails}; time.sleep(600)", supervisor=again).ended()[1].message == (
        "process 1 failed"
    )
    assert records.ProcessExit.read(path).time == 1.0, "it was ended by the second exit, not by the first"


def test_replaced_start_records_no_exit(tmp_path: Path) -> None:
    """The job was requeued while its processes lived: their exit would be that of a failed peer of the newer ones."""
    supervisor = supervise.Supervisor(str(tmp_path), 0, [])
    record = Path(supervisor._files.exit(0))
    own = status(records.TRAINING, 7)
    own.write(supervisor._files.status(0))
    assert supervisor._reason_to_end() == ""  # it has seen its engine's status
    dataclasses.replace(own, namespace="pid:[17]", step=9).write(supervisor._files.status(0))
    supervisor._report(records.EXIT_FENCED)
    assert not record.exists()
    own.write(supervisor._files.status(0))
    supervisor._report(records.EXIT_FENCED)
    assert records.ProcessExit.read(str(record)).code == records.EXIT_FENCED


def test_disk_that_does_not_answer_ends_no_engine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    supervisor = supervise.Supervisor(str(tmp_path), 0, [])
    exit_of_peer(tmp_path)

    def stale(*_: object) -> list[str]:
        raise OSError(errno.ESTALE, "Stale file handle")

    with monkeypatch.context() as patch:
        patch.setattr(os, "listdir", stale)
        assert supervisor._reason_to_end() == ""
    with monkeypatch.context() as patch:
        patch.setattr(records.ProcessExit, "read", stale)
        assert supervisor._reason_to_end() == ""
    assert supervisor._reason_to_end() == ""
    monkeypatch.setattr(supervise, "PEER_TIMEOUT", -1.0)
    monkeypatch.setattr(os, "listdir", stale)
    assert supervisor._reason_to_end() == "process 1 failed", "found before"


def test_notice_on_a_full_disk_still_requests_a_save(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The log is on the disk. The engine is killed when its supervisor ends."""
    supervisor, sent = supervise.Supervisor(str(tmp_path), 0, []), []
    engine: Any = SimpleNamespace(send_signal=sent.append)
    supervisor._notices._new = ["maintenance"]
    status(records.TRAINING, 3).write(supervisor._files.status(0))
    with open("/dev/full", "w") as full:
        monkeypatch.setattr(sys, "stdout", full)
        for _ in range(2):
            supervisor._save_before_preemption(engine)
        monkeypatch.undo()
        with contextlib.suppress(OSError):
            full.close()
    assert sent == [signal.SIGUSR1]


def test_exit_code_is_the_engines_where_it_cannot_be_recorded(tmp_path: Path) -> None:
    attempt = tmp_path / "attempt"
    attempt.mkdir()
    code = f"import os, sys; os.rmdir({str(attempt)!r}); sys.exit(3)"
    command = [*SUPERVISE, "--attempt", str(attempt), "--process", "0", "--", sys.executable, "-c", code]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(SOURCES)}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60)
    assert done.returncode == 3
    assert "the engine's end is not recorded: " in done.stdout
    assert done.stderr == ""


def test_exit_code_is_the_engines_on_a_full_log(tmp_path: Path) -> None:
    """Without PYTHONUNBUFFERED, the interpreter writes what is buffered at its exit."""
    attempt = tmp_path / "attempt"
    attempt.mkdir()
    code = f"import os, sys; os.rmdir({str(attempt)!r}); sys.exit(3)"
    command = [*SUPERVISE, "--attempt", str(attempt), "--process", "0", "--", sys.executable, "-c", code]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(SOURCES)}
    environment.pop("PYTHONUNBUFFERED", None)
    with open("/dev/full", "wb") as full:
        done = subprocess.run(command, env=environment, stdout=full, stderr=subprocess.PIPE, text=True, timeout=60)
    assert (done.returncode, done.stderr) == (3, "")


def status(state: str, step: int) -> records.Status:
    return records.Status(state, step, 0, "boot", 1, 1, 0.0)


def test_stall_timeout_follows_step_times() -> None:
    progress = StallTimer(10.0, 0.0)
    assert not progress.stalled_seconds(status(records.COMPILING, 0), 1.0)
    assert not progress.stalled_seconds(status(records.COMPILING, 0), 1.0 + 10 * START_FACTOR), (
        "compiling may take longer"
    )
    assert progress.stalled_seconds(status(records.COMPILING, 0), 2.0 + 10 * START_FACTOR)
    assert not progress.stalled_seconds(status(records.TRAINING, 0), 100.0)
    assert not progress.stalled_seconds(status(records.TRAINING, 1), 109.0)
    assert not progress.stalled_seconds(status(records.TRAINING, 1), 109.0 + 20 * 9), "steps of nine seconds are slow"
    assert progress.stalled_seconds(status(records.TRAINING, 1), 110.0 + 20 * 9)


def test_waiting_for_command_is_no_stall() -> None:
    progress = StallTimer(10.0, 0.0)
    for state in (records.WAITING, records.ON_STANDBY):
        assert not progress.stalled_seconds(status(state, 3), 1.0)
        assert not progress.stalled_seconds(status(state, 3), 1e6)


def test_signal_after_last_message_is_no_failure(tmp_path: Path) -> None:
    """A second SIGTERM, or the machine's shutdown, after everything is saved and sealed."""
    code, ended = Engine(tmp_path, "say('stopped', 7); os.kill(os.getpid(), signal.SIGTERM)", process=1).ended()
    assert code == 128 + signal.SIGTERM
    assert (ended.signal, ended.state, ended.failed) == ("SIGTERM", "stopped", False)
    assert supervise_with_short_timeout(tmp_path, 2) == 0, "its peers are left alone"
    _, ended = Engine(tmp_path, "say('training', 7); os.kill(os.getpid(), signal.SIGTERM)", process=1).ended()
    assert ended.failed
