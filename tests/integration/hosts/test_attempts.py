"""Start of an engine process that is detached from its starter."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from midstream_core import records
from midstream_host.runs import attempt_view, attempts, run_state
from support.checkpoints.trees import SOURCES


def far_call(function: str, arguments: dict[str, Any]) -> Any:
    """Call a function of remote.runs in a new interpreter, because it forks."""
    code = (
        f"import json, sys; sys.path[:0] = {SOURCES!r}; from midstream_host.runs import attempt_view, attempts;"
        f" print(json.dumps({function}(**json.loads(sys.argv[1])), default=vars))"
    )
    done = subprocess.run([sys.executable, "-c", code, json.dumps(arguments)], capture_output=True, timeout=60)
    assert done.returncode == 0, done.stderr.decode()
    return json.loads(done.stdout)


def until(condition: Callable[[], bool], seconds: float = 20.0) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "timeout"
        time.sleep(0.02)


@pytest.fixture
def paths(tmp_path: Path) -> records.RunPaths:
    paths = records.RunPaths(str(tmp_path), "run")
    os.makedirs(paths.attempt(1).dir)
    return paths


def start(paths: records.RunPaths, code: str, **more: Any) -> records.ProcessIdentity:
    arguments = {
        "root": paths.root,
        "run_id": paths.run_id,
        "number": 1,
        "argv": [sys.executable, "-c", code],
        "env": {"WHO": "me"},
        "config": "a: 1\n",
        **more,
    }
    return records.ProcessIdentity.from_json(far_call("attempts.start", arguments))


def log(paths: records.RunPaths) -> str:
    return Path(paths.attempt(1).log()).read_text()


LOOK = (
    "import os, sys, json, signal; print(json.dumps([os.getpid(), os.getsid(0), os.environ['WHO'], os.getcwd(),"
    " os.readlink('/proc/self/fd/0'), signal.getsignal(signal.SIGHUP) == signal.SIG_DFL,"
    " sorted(os.listdir('/proc/self/fd'))]), flush=True); sys.stderr.write('to stderr\\n')"
)


@pytest.mark.parametrize("setup", [[], ["export WHO=$WHO-set", "cd . && : 'quo\"ted' $(true)"]])
def test_start_returns_the_engines_own_identity(paths: records.RunPaths, setup: list[str]) -> None:
    identity = start(paths, LOOK, setup=setup)
    until(lambda: "to stderr" in log(paths))
    pid, session, who, directory, stdin, default, descriptors = json.loads(log(paths).splitlines()[0])
    assert pid == identity.pid, "with setup lines too: the shell execs the engine"
    assert session != os.getsid(0)
    assert who == ("me-set" if setup else "me")
    assert os.path.dirname(directory) == paths.attempt(1).dir
    assert os.path.basename(directory).startswith(attempts.WORK)
    assert os.listdir(directory) == [], "no settings or modules of other hosts"
    assert stdin == "/dev/null"
    assert default
    assert descriptors == ["0", "1", "2", "3"], "no descriptor of the connection is open (3 is the listing's own)"
    assert Path(paths.config).read_text() == "a: 1\n"


def test_failing_setup_line_is_named_and_starts_nothing(paths: records.RunPaths) -> None:
    identity = start(paths, "print('engine')", setup=["true", "module load nothing-like-it"])
    until(lambda: not records.is_running(identity))
    assert "module load nothing-like-it failed" in log(paths)
    assert "engine" not in log(paths).splitlines()
    assert not far_call("attempt_view.attempt", {"root": paths.root, "run_id": "run", "number": 1})["running"]


def test_missing_interpreter_is_reported_by_start(paths: records.RunPaths) -> None:
    with pytest.raises(AssertionError, match="/no/such/python cannot be started"):
        start(paths, "", argv=["/no/such/python"])


def test_start_keeps_an_existing_config(paths: records.RunPaths) -> None:
    Path(paths.config).write_text("a: 2\n")
    start(paths, "")
    assert Path(paths.config).read_text() == "a: 2\n"


def test_start_without_config_is_refused(paths: records.RunPaths) -> None:
    with pytest.raises(AssertionError, match=r"run.yaml is missing"):
        start(paths, "", config=None)


def test_command_is_written_before_the_engine_starts(paths: records.RunPaths) -> None:
    command = records.Command(records.RESTORE, epoch=2, checkpoint="step-7-a001", step=7)
    code = f"print(open({paths.attempt(1).command_file!r}).read())"
    start(paths, code, command=command.to_json())
    until(lambda: log(paths).rstrip().endswith("}"))
    assert records.Command.from_json(json.loads(log(paths))) == command


def test_attempt_without_status_is_listed_and_signalled(paths: records.RunPaths) -> None:
    identity = start(paths, "import time; print('up', flush=True); time.sleep(600)")
    try:
        until(lambda: "up" in log(paths))
        found = attempt_view.attempt(paths.root, "run", 1)
        assert (found.status, found.running, found.log) == (None, True, ["up"])
        assert run_state.signal(paths.root, "run", 1, "SIGTERM")
        until(lambda: not records.is_running(identity))
        assert not run_state.signal(paths.root, "run", 1, "SIGTERM")
    finally:
        if records.is_running(identity):
            os.kill(identity.pid, signal.SIGKILL)


def test_reused_pid_is_not_signalled(paths: records.RunPaths) -> None:
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as other:
        found = records.identify(other.pid)
        assert found is not None
        stranger = dict(found.to_json(), start_ticks=found.start_ticks - 1)
        records.write_json(paths.attempt(1).launched(), stranger)
        assert not run_state.signal(paths.root, "run", 1, "SIGKILL")
        assert other.poll() is None
        other.communicate(b"\n")
