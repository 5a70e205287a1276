"""This machine as a host, and our functions on their way to any host."""

from __future__ import annotations

import os
import stat
import subprocess
import sys
import time
from pathlib import Path

import pytest

from midstream.errors import HostError, RemoteError, UsageError
from midstream.fleet.fleet import Fleet, LocalHost
from midstream.hosts.host_pool import Hosts
from midstream.hosts.local_host import LocalMachine
from midstream.hosts.rpc import remote_call
from midstream.hosts.rpc.remote_program import run_program


@pytest.fixture
def host(tmp_path: Path) -> LocalMachine:
    made = LocalMachine("here", LocalHost(root=str(tmp_path)))
    made.connect()
    return made


def test_a_command_gets_its_words_as_they_stand(host: LocalMachine):
    done = host.run(
        ["sh", "-c", 'cat; printf %s "$1" "$X" >&2; exit 3', "sh", "$(id) '*'"], stdin=b"in", env={"X": "y"}
    )
    assert (done.returncode, done.stdout, done.stderr) == (3, b"in", b"$(id) '*'y")


def test_a_command_that_is_not_there_ends_like_a_shells(host: LocalMachine, tmp_path: Path):
    assert host.run(["no-such-command"]).returncode == 127
    (tmp_path / "file").write_text("")
    assert host.run([str(tmp_path / "file")]).returncode == 126
    with pytest.raises(HostError, match="no-such-command: No such file"):
        host.open(["no-such-command"])


def test_a_command_that_takes_too_long_is_given_up(host: LocalMachine):
    with pytest.raises(HostError, match="did not end within"):
        host.run(["sleep", "60"], timeout=0.1)


def test_closing_a_process_ends_it(host: LocalMachine):
    process = host.open(["cat"])
    process.stdin.write(b"word\n")
    process.stdin.flush()
    assert process.stdout.readline() == b"word\n"
    process.close()
    process.close()
    assert process.wait(1) == 0


def test_a_function_travels_with_all_that_it_imports(host: LocalMachine):
    assert host.call("runs.run_state.claim_attempt", root=host.root, run_id="run") == 1
    described = host.call("runs.attempts.attempt", root=host.root, run_id="run", number=1)
    assert {"status": None, "running": False, "log": []}.items() <= described.items()


def test_what_a_function_raises_is_one_line_with_its_kind(host: LocalMachine):
    with pytest.raises(RemoteError) as refused:
        host.call("runs.run_state.read_text", path="/no/such\nfile")
    assert refused.value.kind == "FileNotFoundError"
    assert refused.value.message.startswith("here: ")
    assert "\n" not in refused.value.message


@pytest.mark.parametrize("function", ["runs", "runs.", ".describe", "../runs.describe", "runs.describe.x"])
def test_only_functions_of_our_own_are_called(host: LocalMachine, function: str):
    with pytest.raises(ValueError, match=r"not package\.module\.function"):
        host.call(function)


@pytest.fixture
def chatty(host: LocalMachine, tmp_path: Path) -> LocalMachine:
    """A host whose login shell talks before anything else does."""
    wrapper = tmp_path / "python3"
    wrapper.write_text(f'#!/bin/sh\necho "Welcome to the cluster!"\necho "Quota: 97 %"\nexec {sys.executable} "$@"\n')
    wrapper.chmod(wrapper.stat().st_mode | stat.S_IXUSR)
    host.far_python = str(wrapper)
    return host


def test_a_login_shell_that_talks_changes_no_answer(chatty: LocalMachine):
    assert chatty.call("runs.run_state.list_runs", root=chatty.root) == []
    process = remote_call.start_program(chatty, "machine.probe.main", {"root": chatty.root, "devices": 1})
    assert process.stdout.readline().startswith(b'{"hostname"')
    process.close()


def test_a_python_that_is_too_old_or_none_is_named(host: LocalMachine, tmp_path: Path):
    broken = tmp_path / "python3"
    broken.write_text("#!/bin/sh\necho 'SyntaxError: invalid syntax' >&2\nexit 1\n")
    broken.chmod(0o755)
    host.far_python = str(broken)
    for attempt in (
        lambda: host.call("runs.run_state.list_runs", root=host.root),
        lambda: remote_call.start_program(host, "machine.probe.main", {"root": host.root}),
    ):
        with pytest.raises(RemoteError, match=r"gave no answer \(exit 1\): SyntaxError") as refused:
            attempt()
        assert "Python 3.8" in refused.value.hint


def test_stray_prints_go_to_stderr_and_programs_own_stdout(host: LocalMachine):
    code = remote_call.BOOTSTRAP.replace(
        'if job["program"]:', 'print("stray"); os.write(1, b"strayer\\n")\nif job["program"]:'
    )
    assert code != remote_call.BOOTSTRAP
    job = remote_call.job_line("runs.run_state.list_runs", {"root": host.root}, program=False)
    done = host.run([sys.executable, "-c", code], stdin=job)
    assert done.stdout == b'\n{"value": []}\n'
    assert b"strayer" in done.stderr


def test_a_program_that_fails_says_so(host: LocalMachine, tmp_path: Path):
    with pytest.raises(RemoteError, match=r"tree.survey on here ended with 1: .*TypeError"):
        list(run_program(host, "verify.tree.survey", {"nonsense": 1}))


def test_nothing_secret_and_nothing_long_stands_in_a_command_line(host: LocalMachine):
    process = remote_call.start_program(host, "machine.probe.main", {"root": host.root, "known": {"secret-word": {}}})
    shown = subprocess.run(["ps", "-ww", "-o", "args=", "--ppid", str(os.getpid())], capture_output=True, text=True)
    process.close()
    assert "import json" in shown.stdout
    assert "secret-word" not in shown.stdout


def test_hosts_are_opened_once_and_named_when_unknown(tmp_path: Path):
    hosts = Hosts(Fleet(hosts={"here": LocalHost(root=str(tmp_path))}))
    assert hosts.get("here") is hosts.get("here")
    with pytest.raises(UsageError, match="did you mean here"):
        hosts.get("her")
    hosts.close()


def test_a_large_argument_goes_through(host: LocalMachine, tmp_path: Path):
    text = "x" * (3 << 20)
    (tmp_path / "big").write_text(text)
    began = time.monotonic()
    assert host.call("runs.run_state.read_text", path=str(tmp_path / "big")) == text
    assert host.run(["cat"], stdin=text.encode(), limit=len(text)).stdout == text.encode()
    assert time.monotonic() - began < 20
