"""Starting a process apart from whoever asked for it."""

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

from midstream.remote.runs import attempts, run_state
from midstream_engine import records
from support.trees import SOURCES


def far_call(function: str, arguments: dict[str, Any]) -> Any:
    """Call a function of midstream.remote.runs.attempts in an interpreter of its own: it forks."""
    code = (
        f"import json, sys; sys.path[:0] = {SOURCES!r}; from midstream.remote.runs import attempts;"
        f" print(json.dumps(attempts.{function}(**json.loads(sys.argv[1]))))"
    )
    done = subprocess.run([sys.executable, "-c", code, json.dumps(arguments)], capture_output=True, timeout=60)
    assert done.returncode == 0, done.stderr.decode()
    return json.loads(done.stdout)


def until(condition: Callable[[], bool], seconds: float = 20.0) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "not within time"
        time.sleep(0.02)


@pytest.fixture
def run(tmp_path: Path) -> records.RunPaths:
    paths = records.RunPaths(str(tmp_path), "run")
    os.makedirs(paths.attempt(1).dir)
    return paths


def start(run: records.RunPaths, code: str, **more: Any) -> records.ProcessIdentity:
    arguments = {
        "root": run.root,
        "run_id": run.run_id,
        "number": 1,
        "argv": [sys.executable, "-c", code],
        "env": {"WHO": "me"},
        "config": "a: 1\n",
        **more,
    }
    return records.ProcessIdentity.from_json(far_call("start", arguments))


def log(run: records.RunPaths) -> str:
    return Path(run.attempt(1).log()).read_text()


LOOK = (
    "import os, sys, json, signal; print(json.dumps([os.getpid(), os.getsid(0), os.environ['WHO'], os.getcwd(),"
    " os.readlink('/proc/self/fd/0'), signal.getsignal(signal.SIGHUP) == signal.SIG_DFL,"
    " sorted(os.listdir('/proc/self/fd'))])); sys.stderr.write('to stderr\\n')"
)


@pytest.mark.parametrize("setup", [[], ["export WHO=$WHO-set", "cd . && : 'quo\"ted' $(true)"]])
def test_the_identity_is_the_engines_own(run: records.RunPaths, setup: list[str]) -> None:
    identity = start(run, LOOK, setup=setup)
    until(lambda: "to stderr" in log(run))
    pid, session, who, directory, stdin, default, descriptors = json.loads(log(run).splitlines()[0])
    assert pid == identity.pid, "with setup lines too: the engine takes the shell's place"
    assert session != os.getsid(0)
    assert who == ("me-set" if setup else "me")
    assert os.path.dirname(directory) == run.attempt(1).dir
    assert os.path.basename(directory).startswith(attempts.WORK)
    assert os.listdir(directory) == [], "where programs find no settings and modules of other hosts"
    assert stdin == "/dev/null"
    assert default
    assert descriptors == ["0", "1", "2", "3"], "nothing of the connection is kept open (3 is the listing's own)"
    assert Path(run.config).read_text() == "a: 1\n"


def test_a_setup_line_that_fails_is_named_and_starts_nothing(run: records.RunPaths) -> None:
    identity = start(run, "print('engine')", setup=["true", "module load nothing-like-it"])
    until(lambda: not records.is_running(identity))
    assert "module load nothing-like-it failed" in log(run)
    assert "engine" not in log(run).splitlines()
    assert not far_call("attempt", {"root": run.root, "run_id": "run", "number": 1})["running"]


def test_an_interpreter_that_does_not_exist_is_an_error_at_once(run: records.RunPaths) -> None:
    with pytest.raises(AssertionError, match="/no/such/python cannot be started"):
        start(run, "", argv=["/no/such/python"])


def test_a_config_that_is_there_is_kept(run: records.RunPaths) -> None:
    Path(run.config).write_text("a: 2\n")
    start(run, "")
    assert Path(run.config).read_text() == "a: 2\n"


def test_a_run_without_config_is_not_started(run: records.RunPaths) -> None:
    with pytest.raises(AssertionError, match=r"run.yaml is missing"):
        start(run, "", config=None)


def test_the_order_is_there_before_the_engine(run: records.RunPaths) -> None:
    order = records.Command(records.RESTORE, epoch=2, checkpoint="step-7-a001", step=7)
    code = f"print(open({run.attempt(1).command_file!r}).read())"
    start(run, code, order=order.to_json())
    until(lambda: log(run).rstrip().endswith("}"))
    assert records.Command.from_json(json.loads(log(run))) == order


def test_an_attempt_is_known_before_it_has_a_status_and_signalled_by_identity(run: records.RunPaths) -> None:
    identity = start(run, "import time; print('up', flush=True); time.sleep(600)")
    try:
        until(lambda: "up" in log(run))
        seen = attempts.attempt(run.root, "run", 1)
        assert (seen["status"], seen["running"], seen["log"]) == (None, True, ["up"])
        assert run_state.signal(run.root, "run", 1, "SIGTERM")
        until(lambda: not records.is_running(identity))
        assert not run_state.signal(run.root, "run", 1, "SIGTERM")
    finally:
        if records.is_running(identity):
            os.kill(identity.pid, signal.SIGKILL)


def test_a_reused_pid_is_not_signalled(run: records.RunPaths) -> None:
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as other:
        found = records.identify(other.pid)
        assert found is not None
        stranger = dict(found.to_json(), start_ticks=found.start_ticks - 1)
        records.write_json(os.path.join(run.attempt(1).dir, attempts.LAUNCHED), stranger)
        assert not run_state.signal(run.root, "run", 1, "SIGKILL")
        assert other.poll() is None
        other.communicate(b"\n")
