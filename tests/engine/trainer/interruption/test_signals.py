"""Signals in every phase of an attempt: what is saved, the status, the exit code, and how the run continues."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from midstream_core import records
from midstream_engine.signals import SAME_REQUEST
from support.checkpoints.trees import SOURCES
from support.engines.engine_processes import Together
from support.engines.engine_runs import Engine

pytestmark = pytest.mark.drawn

STEPS = 40
FLAGS = ["--trainer.num_train_steps", str(STEPS), "--trainer.checkpointer.keep", "[]"]
# A main thread in C, where no handler of Python runs: it hashes for many minutes without the interpreter's lock.
IN_C = """
import hashlib, sys
sys.path[:0] = {sources!r}
from midstream_engine.signals import Signals
signals = Signals()
signals.install()
if {recorded}:
    signals.record_end_with(lambda name, lost: print(name, lost, flush=True) or 5)
print("ready", flush=True)
hashlib.pbkdf2_hmac("sha256", b"", b"", (1 << 31) - 1)
"""


def in_c(recorded: bool, ignored: bool = False, program: str = IN_C) -> subprocess.Popen[str]:
    """Start the program above, as nohup does where ``ignored``."""
    code = program.format(sources=SOURCES, recorded=recorded)
    ignore = ["-c", "trap '' HUP; exec \"$@\"", "sh"] if ignored else ["-c", 'exec "$@"', "sh"]
    process = subprocess.Popen(
        ["/bin/sh", *ignore, sys.executable, "-c", code], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"
    return process


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
def test_stop_is_answered_while_main_thread_is_in_c(number: signal.Signals) -> None:
    with in_c(recorded=True) as process:
        process.send_signal(number)
        assert process.communicate(timeout=60) == (f"{number.name} False\n", None)
    assert process.returncode == 5


def test_real_time_signal_of_a_library_ends_no_thread() -> None:
    """It has no name in Python; the signals after it are still answered."""
    program = IN_C.replace("signals.install()", "signals.install(); import signal; signal.signal(40, lambda *_: None)")
    with in_c(recorded=True, program=program) as process:
        process.send_signal(40)
        time.sleep(0.2)
        process.send_signal(signal.SIGTERM)
        assert process.communicate(timeout=60)[0] == "SIGTERM False\n"


def test_stop_before_the_attempt_exits_128_plus_number() -> None:
    with in_c(recorded=False) as process:
        process.send_signal(signal.SIGINT)
        assert process.communicate(timeout=60)[0] == "midstream: ended by SIGINT before the attempt began\n"
    assert process.returncode == records.EXIT_SIGNAL + signal.SIGINT


def test_sighup_that_nohup_ignores_stays_ignored() -> None:
    with in_c(recorded=True, ignored=True) as process:
        process.send_signal(signal.SIGHUP)
        process.send_signal(signal.SIGTERM)
        assert process.communicate(timeout=60)[0] == "SIGTERM False\n"


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Root shared for its data; each test has its own run id."""
    return tmp_path_factory.mktemp("root")


@pytest.fixture(scope="module")
def undisturbed(root: Path) -> dict[int, float]:
    """The losses of a run that no signal disturbs."""
    with Engine(root, *FLAGS, run_id="undisturbed") as engine:
        code, log = engine.finish()
    assert code == 0, log
    return losses(engine)


def losses(engine: Engine) -> dict[int, float]:
    return {row["global_step"]: row["train/loss"] for number in engine.attempts() for row in engine.rows(number)}


def in_state(engine: Engine, *states: str) -> Callable[[], bool | None]:
    """Return a condition for ``until``: the newest attempt is in one of ``states``."""

    def look() -> bool | None:
        numbers = engine.attempts() if os.path.isdir(engine.paths.attempts) else []
        status = engine.status(numbers[-1]) if numbers else None
        return True if status is not None and status.pid == engine.process.pid and status.state in states else None

    return look


def partial_files(directory: str) -> list[str]:
    return [path.name for path in Path(directory).rglob("*.tmp-*")]


def test_sigint_in_training_saves_and_the_run_continues(root: Path, undisturbed: dict[int, float]) -> None:
    with Engine(root, *FLAGS, run_id="interrupted") as engine:
        engine.until(engine.has_trained(1, 2))
        engine.process.send_signal(signal.SIGINT)
        code, log = engine.finish()
    status = engine.status(1)
    assert status is not None
    assert (code, status.state) == (records.EXIT_DONE, records.STOPPED)
    assert "Traceback" not in log
    assert status.checkpoint == f"step-{status.step}-a001"
    assert 2 < status.step < STEPS

    with Engine(root, *FLAGS, run_id="interrupted") as engine:
        engine.until(in_state(engine, records.TRAINING))
        while engine.process.poll() is None:  # the first may come before the first update
            engine.process.send_signal(signal.SIGHUP)
            time.sleep(0.05)
        assert engine.finish()[0] == records.EXIT_DONE
    second = engine.status(2)
    assert second is not None
    assert second.state == records.STOPPED

    with Engine(root, *FLAGS, run_id="interrupted") as engine:
        code, log = engine.finish()
    assert code == 0, log
    assert losses(engine) == undisturbed


def test_second_sigint_while_saving_ends_at_once(root: Path, undisturbed: dict[int, float]) -> None:
    with Engine(root, *FLAGS, run_id="twice") as engine:
        engine.until(engine.has_trained(1, 2))
        engine.process.send_signal(signal.SIGUSR1)
        saved = engine.until(lambda: ((now := engine.status(1)) and now.checkpoint) or None)
        with records.locked(engine.paths.lock):  # no commit ends while the test has it
            engine.process.send_signal(signal.SIGINT)
            engine.until(in_state(engine, records.SAVING))
            engine.process.send_signal(signal.SIGTERM)  # a repeated SIGTERM has no further effect
            time.sleep(SAME_REQUEST + 0.1)
            assert engine.process.poll() is None
            engine.process.send_signal(signal.SIGINT)
            code, log = engine.finish()
    status = engine.status(1)
    assert status is not None
    assert (code, status.state) == (records.EXIT_SIGNAL + signal.SIGINT, records.FAILED)
    assert "a second SIGINT ends at once, without saving" in log
    assert status.message == (
        f"ended by a second SIGINT at step {status.step}, not saved: a restart continues at {saved}"
    )
    assert [path.parent.name for path in Path(engine.paths.checkpoints).glob("*/manifest.json")] == [saved]

    with Engine(root, *FLAGS, run_id="twice") as engine:
        code, log = engine.finish()
    assert code == 0, log
    evidence = records.Restore.read(engine.paths.attempt(2).restore)
    assert evidence.checkpoint == saved
    assert losses(engine) == undisturbed


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
@pytest.mark.parametrize("phase", [records.STARTING, records.COMPILING, records.RESTORING])
def test_stop_before_the_first_update_ends_at_once(root: Path, phase: str, number: signal.Signals) -> None:
    run_id = f"early-{phase}-{number.name}"
    attempt = 1
    if phase == records.RESTORING:
        with Engine(root, *FLAGS, run_id=run_id) as engine:
            engine.until(engine.has_trained(1, 2))
            engine.process.send_signal(signal.SIGTERM)
            assert engine.finish()[0] == records.EXIT_DONE
        attempt = 2
    with Engine(root, *FLAGS, run_id=run_id) as engine:
        engine.until(in_state(engine, records.STARTING, phase))
        if phase != records.STARTING:
            engine.until(lambda: ((status := engine.status(attempt)) and status.start) or None)  # it takes the lock
        with records.locked(engine.paths.lock):  # no update begins while the test has it
            engine.until(in_state(engine, phase))
            engine.process.send_signal(number)
            code, log = engine.finish()
    status = engine.status(attempt)
    assert status is not None
    assert (code, status.state) == (records.EXIT_DONE, records.STOPPED), log
    assert status.message == f"stopped by {number.name} while {phase}: there was no update to save"
    assert "Traceback" not in log
    assert engine.rows(attempt) == []
    assert not any(f"a{attempt:03d}" in name for name in os.listdir(engine.paths.checkpoints))
    assert partial_files(engine.paths.dir) == []


def test_run_continues_after_stops_before_its_updates(root: Path, undisturbed: dict[int, float]) -> None:
    for number in (1, 2):
        with Engine(root, *FLAGS, run_id="early") as engine:
            engine.until(in_state(engine, records.STARTING))
            engine.process.send_signal(signal.SIGTERM)
            assert engine.finish()[0] == records.EXIT_DONE
        assert engine.attempts()[-1] == number
    with Engine(root, *FLAGS, run_id="early") as engine:
        code, log = engine.finish()
    assert code == 0, log
    assert losses(engine) == undisturbed


def test_launched_engine_records_a_stop_in_its_first_moment(root: Path) -> None:
    """The launcher reads the status, so a process whose attempt is launched opens it first."""
    paths = records.RunPaths(str(root), "launched")
    os.makedirs(paths.attempt(1).dir)
    with Engine(root, *FLAGS, run_id="launched", MIDSTREAM_ATTEMPT="1", MIDSTREAM_EPOCH="1") as engine:
        engine.until(lambda: signals_are_caught(engine.process.pid))
        engine.process.send_signal(signal.SIGTERM)
        code, log = engine.finish()
    status = engine.status(1)
    assert status is not None, log
    assert (code, status.state) == (records.EXIT_DONE, records.STOPPED)


def signals_are_caught(pid: int) -> bool | None:
    """Return whether a process has a handler for SIGTERM."""
    lines = dict(line.split(":\t", 1) for line in Path(f"/proc/{pid}/status").read_text().splitlines() if ":\t" in line)
    return True if int(lines["SigCgt"], 16) >> (signal.SIGTERM - 1) & 1 else None


@pytest.mark.parametrize("signalled", [0, 1])
def test_stop_of_one_process_before_updates_stops_all(tmp_path: Path, signalled: int) -> None:
    with Together([tmp_path, tmp_path], *FLAGS) as both:
        paths = both.paths[0]

        def status(process: int) -> records.Status | None:
            return records.Status.read_or_none(paths.attempt(1).status(process))

        for process in (0, 1):  # each takes the lock for its start number
            both.until(lambda process=process: ((now := status(process)) and now.start) or None)
        with records.locked(paths.lock):
            both.until(lambda: ((now := status(signalled)) and now.state == records.COMPILING) or None)
            both.processes[signalled].send_signal(signal.SIGTERM)
            ended = both.finish()
    statuses = [records.Status.read(paths.attempt(1).status(process)) for process in (0, 1)]
    assert [code for code, _ in ended] == [0, 0], ended
    assert [status.state for status in statuses] == [records.STOPPED, records.STOPPED]
    assert "stopped by SIGTERM while compiling" in statuses[1 - signalled].message
    assert statuses[1 - signalled].message.startswith(f"process {signalled} (")
