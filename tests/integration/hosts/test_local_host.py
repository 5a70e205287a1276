"""This machine as a host, and calls of remote functions."""

from __future__ import annotations

import contextlib
import io
import os
import resource
import signal
import stat
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from midstream.errors import HostError, RemoteError, UsageError
from midstream.fleet.fleet import Fleet, LocalHostConfig
from midstream.hosts import local_host
from midstream.hosts.host import Process
from midstream.hosts.host_pool import HostPool
from midstream.hosts.local_host import LocalHost
from midstream.hosts.rpc import remote_call
from midstream.hosts.rpc.remote_program import run_program
from midstream.hosts.rpc.report_types import VERIFY
from midstream_host.machine import probe
from midstream_host.runs import attempt_view, run_state


@pytest.fixture
def host(tmp_path: Path) -> LocalHost:
    made = LocalHost("here", LocalHostConfig(root=str(tmp_path)))
    made.connect()
    return made


@contextlib.contextmanager
def no_descriptor_left() -> Iterator[None]:
    """This process has as many open files as it may have."""
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    highest = max(map(int, os.listdir("/proc/self/fd")))
    taken: list[int] = []
    resource.setrlimit(resource.RLIMIT_NOFILE, (highest + 1, limits[1]))
    try:
        with contextlib.suppress(OSError):
            while True:
                taken.append(os.dup(0))
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)
        for each in taken:
            os.close(each)


def test_run_passes_arguments_unchanged(host: LocalHost) -> None:
    done = host.run(
        ["sh", "-c", 'cat; printf %s "$1" "$X" >&2; exit 3', "sh", "$(id) '*'"], stdin=b"in", env={"X": "y"}
    )
    assert (done.returncode, done.stdout, done.stderr) == (3, b"in", b"$(id) '*'y")


def test_run_missing_command_exits_127_like_a_shell(host: LocalHost, tmp_path: Path) -> None:
    assert host.run(["no-such-command"]).returncode == 127
    (tmp_path / "file").write_text("")
    assert host.run([str(tmp_path / "file")]).returncode == 126
    with pytest.raises(HostError, match="no-such-command: No such file"):
        host.open(["no-such-command"])


def test_run_times_out(host: LocalHost) -> None:
    with pytest.raises(HostError, match="did not end within"):
        host.run(["sleep", "60"], timeout=0.1)


def test_close_ends_a_process_that_keeps_writing(host: LocalHost, tmp_path: Path) -> None:
    ended = tmp_path / "ended"
    program = "yes; echo $? >$0"  # 128 + 13: a write failed; it would be absent if the shell had been killed
    process = host.open(["sh", "-c", program, str(ended)])
    assert process.stdout.read(2) == b"y\n"
    process.close()
    assert ended.read_text() == "141\n"


def test_close_ends_a_read_of_another_thread(host: LocalHost) -> None:
    process = host.open(["yes"])
    parts: list[bytes] = []

    def read_to_the_end() -> None:
        parts.extend(iter(lambda: process.stdout.read(1 << 16), b""))
        process.close()  # as the first close may not have ended yet

    reader = threading.Thread(target=read_to_the_end)
    reader.start()
    process.close()
    reader.join(60)
    assert not reader.is_alive()
    assert set(b"".join(parts)) <= set(b"y\n")


def test_close_does_not_wait_for_what_a_command_left(host: LocalHost) -> None:
    """A process in the background has the command's stderr open, or its stdout while a thread reads that."""
    done = host.run(["sh", "-c", "sleep 50 >/dev/null & echo $!"])
    left = [int(done.stdout)]
    process = host.open(["sh", "-c", "sleep 50 & echo $!"])
    left.append(int(process.stdout.readline()))
    rest: list[bytes] = []
    reader = threading.Thread(target=lambda: rest.append(process.stdout.read()))
    reader.start()
    assert process.wait(60) == 0
    while not process._reading._reading.locked():  # type: ignore[attr-defined]
        time.sleep(0.01)
    process.close()
    for pid in left:
        assert Path(f"/proc/{pid}/stat").read_text().split()[2] != "Z", "it still runs"
        os.kill(pid, signal.SIGKILL)
    reader.join(60)
    assert rest == [b""]


def test_close_ends_a_process_despite_many_files(host: LocalHost) -> None:
    process = host.open(["cat"])
    with no_descriptor_left():
        process.close()
    assert process.wait(1) == 0


@pytest.mark.parametrize("taken", [0, 1])
def test_process_is_ended_where_pipes_are_missing(host: LocalHost, monkeypatch: pytest.MonkeyPatch, taken: int) -> None:
    before = len(os.listdir("/proc/self/fd"))
    take, start, streams = local_host._taken, subprocess.Popen, list[Any]()
    started: list[subprocess.Popen[bytes]] = []

    def limited(stream: Any) -> int:
        streams.append(stream)
        with no_descriptor_left() if len(streams) > taken else contextlib.nullcontext():
            return take(stream)

    def observed(*positional: Any, **named: Any) -> subprocess.Popen[bytes]:
        started.append(start(*positional, **named))
        return started[-1]

    monkeypatch.setattr(local_host, "_taken", limited)
    monkeypatch.setattr(local_host.subprocess, "Popen", observed)
    with pytest.raises(OSError, match="Too many open files"):
        host.open(["sleep", "50"])
    assert started[0].poll() == -signal.SIGKILL
    deadline = time.monotonic() + 60  # threads that an earlier test has left may have opened some
    while len(os.listdir("/proc/self/fd")) > before:
        assert time.monotonic() < deadline, os.listdir("/proc/self/fd")
        time.sleep(0.1)


def test_close_ends_the_process(host: LocalHost) -> None:
    process = host.open(["cat"])
    process.stdin.write(b"word\n")
    process.stdin.flush()
    assert process.stdout.readline() == b"word\n"
    process.close()
    process.close()
    assert process.wait(1) == 0


def test_closed_process_keeps_its_buffers(host: LocalHost) -> None:
    """Closing a buffered stream frees its buffer; another thread that waits for its lock would use it afterwards."""
    process = host.open(["cat"])
    sizes = [sys.getsizeof(stream) for stream in (process.stdin, process.stdout)]
    assert min(sizes) > io.DEFAULT_BUFFER_SIZE, "a size without the buffer"
    process.close()
    assert (process.stdin.closed, process.stdout.closed) == (True, True)
    assert [sys.getsizeof(stream) for stream in (process.stdin, process.stdout)] == sizes


def test_call_sends_function_with_its_imports(host: LocalHost) -> None:
    assert host.call(run_state.claim_attempt)(root=host.root, run_id="run") == 1
    described = host.call(attempt_view.attempt)(root=host.root, run_id="run", number=1)
    assert (described.status, described.running, described.log) == (None, False, [])


def test_call_error_is_one_line_with_kind(host: LocalHost) -> None:
    with pytest.raises(RemoteError) as refused:
        host.call(run_state.read_text)(path="/no/such\nfile")
    assert refused.value.kind == "FileNotFoundError"
    assert refused.value.message.startswith("here: ")
    assert "\n" not in refused.value.message


@pytest.fixture
def chatty(host: LocalHost, tmp_path: Path) -> LocalHost:
    """Create a host whose login shell prints before anything else does."""
    wrapper = tmp_path / "python3"
    wrapper.write_text(f'#!/bin/sh\necho "Welcome to the cluster!"\necho "Quota: 97 %"\nexec {sys.executable} "$@"\n')
    wrapper.chmod(wrapper.stat().st_mode | stat.S_IXUSR)
    host.remote_python = str(wrapper)
    return host


def test_login_shell_output_does_not_change_answers(chatty: LocalHost) -> None:
    assert chatty.call(run_state.list_runs)(root=chatty.root) == []
    process = remote_call.start_program(chatty, probe.main)(root=chatty.root, devices=1)
    assert process.stdout.readline().startswith(b'{"hostname"')
    process.close()


def test_missing_or_old_python_is_reported(host: LocalHost, tmp_path: Path) -> None:
    broken = tmp_path / "python3"
    broken.write_text("#!/bin/sh\necho 'SyntaxError: invalid syntax' >&2\nexit 1\n")
    broken.chmod(0o755)
    host.remote_python = str(broken)
    for attempt in (
        lambda: host.call(run_state.list_runs)(root=host.root),
        lambda: remote_call.start_program(host, probe.main)(root=host.root),
    ):
        with pytest.raises(RemoteError, match=r"gave no answer \(exit 1\): SyntaxError") as refused:
            attempt()
        assert "Python 3.8" in refused.value.hint


def test_stray_prints_go_to_stderr(host: LocalHost) -> None:
    code = remote_call.BOOTSTRAP.replace(
        'if job["program"]:', 'print("stray"); os.write(1, b"strayer\\n")\nif job["program"]:'
    )
    assert code != remote_call.BOOTSTRAP
    job = remote_call.job_line(run_state.list_runs, {"root": host.root}, program=False)
    done = host.run([sys.executable, "-c", code], stdin=job)
    assert done.stdout == b'\n{"value": []}\n'
    assert b"strayer" in done.stderr


def test_failing_program_is_reported(host: LocalHost) -> None:
    running = run_program(host, VERIFY)(5, "x")  # type: ignore[arg-type]
    with pytest.raises(RemoteError, match=r"tree.verify on here ended with 1: .*TypeError"), running as reports:
        list(reports)


def test_program_is_closed_if_reports_are_left_unread(host: LocalHost, tmp_path: Path) -> None:
    started: list[Process] = []

    class Recording(LocalHost):
        def open(self, argv: Sequence[str], **options: Any) -> Process:
            started.append(super().open(argv, **options))
            return started[-1]

    recording = Recording("here", host.config)
    with pytest.raises(KeyError), run_program(recording, VERIFY)(str(tmp_path / "missing"), "manifest.json") as reports:
        raise KeyError(next(reports))
    assert started[0].stdout.closed


def test_command_line_has_no_arguments_of_calls(host: LocalHost) -> None:
    process = remote_call.start_program(host, probe.main)(root=host.root, positions={"secret-word": {}})
    shown = subprocess.run(["ps", "-ww", "-e", "-o", "args="], capture_output=True, text=True)
    process.close()
    assert "json, types" in shown.stdout
    assert "secret-word" not in shown.stdout


def test_host_pool_opens_hosts_once_and_suggests_names(tmp_path: Path) -> None:
    hosts = HostPool(Fleet(hosts={"here": LocalHostConfig(root=str(tmp_path))}))
    assert hosts.get("here") is hosts.get("here")
    with pytest.raises(UsageError, match="did you mean here"):
        hosts.get("her")
    hosts.close()


def test_large_values_pass_in_both_directions(host: LocalHost, tmp_path: Path) -> None:
    text = "x" * (3 << 20)
    (tmp_path / "big").write_text(text)
    assert host.call(run_state.read_text)(path=str(tmp_path / "big")) == text
    assert host.run(["cat"], stdin=text.encode(), limit=len(text)).stdout == text.encode()
