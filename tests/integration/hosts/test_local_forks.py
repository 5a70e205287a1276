"""Interpreters of the local host, forked by a process that has the modules imported."""

from __future__ import annotations

import contextlib
import errno
import gc
import json
import os
import resource
import secrets
import select
import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import midstream
import midstream_core
import midstream_host
from midstream.errors import ConnectionLostError, RemoteError
from midstream.fleet.fleet import LocalHostConfig
from midstream.hosts.fork_server import CLIENT_PROGRAMS
from midstream.hosts.local_forks import FORKED, FORKED_CLIENTS, ForkedChild, LocalForks
from midstream.hosts.local_host import LocalHost
from midstream.hosts.rpc import remote_call
from midstream_host.bucket import tree as bucket_tree
from midstream_host.machine import probe
from midstream_host.runs import attempt_view, run_state

pytestmark = pytest.mark.skipif(not FORKED, reason="forks are for Linux")
PATIENCE = 60.0  # seconds

STATE = """
import os, signal, sys
def state():
    return {
        "word": os.environ.get("WORD"),
        "directory": os.getcwd(),
        "session": os.getsid(0) == os.getpid(),
        "isolated": sys.flags.isolated,
        "descriptors": sorted(map(int, os.listdir("/proc/self/fd"))),
        "signals": [str(signal.getsignal(each)) for each in (signal.SIGCHLD, signal.SIGINT, signal.SIGPIPE)],
        "threads": len(os.listdir("/proc/self/task")),
        "path": sys.path,
        "forked": "midstream_host.declarations" in sys.modules,
        "clients": [name for name in ("botocore.session", "google.cloud.storage") if name in sys.modules],
    }
def end():
    os.kill(os.getpid(), signal.SIGTERM)
def wait():
    signal.pause()
def leave_an_idle_thread():
    global pool
    from concurrent.futures import ThreadPoolExecutor
    pool = ThreadPoolExecutor(1)
    return pool.submit(int).result()
"""


def job(function: str) -> bytes:
    """The line that makes an interpreter run a function of `STATE`."""
    line = {"modules": [["state", STATE]], "module": "state", "function": function, "arguments": {}, "program": False}
    return json.dumps(line).encode() + b"\n"


@pytest.fixture
def forks(monkeypatch: pytest.MonkeyPatch) -> Iterator[LocalForks]:
    """A fork server of the test's own."""
    made = LocalForks()
    monkeypatch.setattr("midstream.hosts.local_host.FORKS", made)
    yield made
    made.close()


@pytest.fixture
def client_forks(monkeypatch: pytest.MonkeyPatch) -> Iterator[LocalForks]:
    """A fork server for clients of buckets, of the test's own."""
    made = LocalForks("-P", CLIENT_PROGRAMS)
    monkeypatch.setattr("midstream.hosts.local_host.CLIENT_FORKS", made)
    yield made
    made.close()


@pytest.fixture
def host(forks: LocalForks, tmp_path: Path) -> LocalHost:
    return LocalHost("here", LocalHostConfig(root=str(tmp_path)))


def state_of(host: LocalHost, argv: list[str]) -> dict[str, Any]:
    return json.loads(host.run(argv, stdin=job("state")).stdout)["value"]


def server_of(forks: LocalForks) -> int:
    assert forks._server is not None
    return forks._server._process.pid


def test_forked_interpreter_equals_a_new_one(host: LocalHost, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    host.run(FORKED, stdin=job("state"))  # the server has another environment and directory than the next child
    monkeypatch.setenv("WORD", "set since the server was started")
    monkeypatch.chdir(tmp_path)
    forked, new = (state_of(host, argv) for argv in (FORKED, [*FORKED[:2], "-s", *FORKED[2:]]))
    assert (forked.pop("forked"), new.pop("forked")) == (True, False)
    assert forked == new


def test_forked_client_equals_a_new_interpreter(
    host: LocalHost, client_forks: LocalForks, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    client_forks.prepare("s3://")
    state_of(host, FORKED_CLIENTS)
    client_forks.prepare("gs://")  # a server that runs already
    monkeypatch.setenv("WORD", "set since the server was started")
    monkeypatch.chdir(tmp_path)
    forked, new = (state_of(host, argv) for argv in (FORKED_CLIENTS, [FORKED[0], "-W", "default", *FORKED_CLIENTS[1:]]))
    assert (forked.pop("forked"), new.pop("forked")) == (True, False)
    assert (forked.pop("clients"), new.pop("clients")) == (["botocore.session", "google.cloud.storage"], [])
    assert forked == new
    ended = os.pidfd_open(server_of(client_forks))
    os.kill(server_of(client_forks), signal.SIGKILL)
    assert select.select([ended], [], [], PATIENCE)[0]
    os.close(ended)
    assert state_of(host, FORKED_CLIENTS)["clients"] == ["botocore.session", "google.cloud.storage"], "the next one"


def test_broken_package_of_a_client_is_the_programs_error(
    host: LocalHost, client_forks: LocalForks, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "botocore").mkdir()
    (tmp_path / "botocore" / "__init__.py").write_text("raise RuntimeError('broken')\n")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    client_forks.prepare("s3://")
    assert state_of(host, FORKED_CLIENTS)["forked"]
    with pytest.raises(RemoteError, match="broken"):
        host.call(bucket_tree.missing)(directory="s3://runs", objects=[], access={})  # type: ignore[call-arg]


def test_requests_that_arrive_together_are_all_answered(host: LocalHost, forks: LocalForks) -> None:
    waiting = host.open(FORKED)
    waiting.stdin.write(job("wait"))
    waiting.stdin.flush()
    pid = waiting._child.pid  # type: ignore[attr-defined]
    os.kill(server_of(forks), signal.SIGSTOP)
    forks.kill(0)  # none of its children
    forks.kill(pid)
    calls = [threading.Thread(target=lambda: states.append(state_of(host, FORKED)["forked"])) for _ in range(3)]
    states: list[bool] = []
    for call in calls:
        call.start()
    os.kill(server_of(forks), signal.SIGCONT)
    for call in calls:
        call.join()
    assert waiting.wait(PATIENCE) == -signal.SIGKILL
    assert states == [True] * 3
    waiting.close()


def test_exit_codes_and_tracebacks_are_those_of_an_interpreter(host: LocalHost) -> None:
    done = host.run(FORKED, stdin=b"no json\n")
    assert done.returncode == 1
    assert b"JSONDecodeError" in done.stderr
    assert host.run(FORKED, stdin=job("end")).returncode == -signal.SIGTERM


def test_closed_program_is_ended_and_a_deaf_one_killed(host: LocalHost, monkeypatch: pytest.MonkeyPatch) -> None:
    process = remote_call.start_program(host, probe.main)(root=host.root, devices=1)
    process.close()
    assert process.wait(PATIENCE) == 0
    monkeypatch.setattr("midstream.hosts.local_host.SHUTDOWN_TIMEOUT", 0.01)
    deaf = host.open(FORKED)
    deaf.stdin.write(job("wait"))
    deaf.stdin.flush()
    deaf.close()
    assert deaf.wait(PATIENCE) == -signal.SIGKILL


def test_forked_interpreter_ends_the_idle_threads_of_pools(host: LocalHost) -> None:
    done = host.run(FORKED, stdin=job("leave_an_idle_thread"), timeout=PATIENCE)
    assert (done.returncode, json.loads(done.stdout)) == (0, {"value": 0})


def open_files() -> set[str]:
    """Return the names of this process's open files."""
    found: set[str] = set()
    for each in Path("/proc/self/fd").iterdir():
        with contextlib.suppress(FileNotFoundError):  # that of the folder itself
            found.add(os.readlink(each))
    return found


def test_program_of_a_stopped_server_is_closed(
    host: LocalHost, forks: LocalForks, monkeypatch: pytest.MonkeyPatch
) -> None:
    host.run(FORKED, stdin=job("state"))
    for module in ("local_host", "local_forks"):
        monkeypatch.setattr(f"midstream.hosts.{module}.SHUTDOWN_TIMEOUT", 0.01)
    os.kill(server_of(forks), signal.SIGSTOP)
    process = host.open(FORKED)
    status = os.readlink(f"/proc/self/fd/{process._child._status}")  # type: ignore[attr-defined]
    assert status in open_files()
    closing = threading.Thread(target=process.close, daemon=True)
    closing.start()
    closing.join(PATIENCE)
    assert not closing.is_alive()
    del process, closing
    gc.collect()
    left = open_files()
    os.kill(server_of(forks), signal.SIGCONT)
    assert status not in left


def test_new_interpreter_gets_all_modules(host: LocalHost, forks: LocalForks, monkeypatch: pytest.MonkeyPatch) -> None:
    """The server of one thread's call fails, and then another thread calls."""
    start, refused = forks.start, list[int]()
    others: list[list[str]] = []

    def failing() -> ForkedChild | None:
        if refused:
            return start()
        refused.append(1)
        forks._failed = True
        other = threading.Thread(target=lambda: others.append(host.call(run_state.list_runs)(root=host.root)))
        other.start()
        other.join()
        return None

    monkeypatch.setattr(forks, "start", failing)
    assert host.call(run_state.claim_attempt)(root=host.root, run_id="run") == 1, "a call that is not repeated"
    assert (refused, others) == ([1], [[]])


def test_waiting_new_interpreter_gets_all_modules(
    host: LocalHost, forks: LocalForks, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert host.call(run_state.list_runs)(root=host.root) == []
    with monkeypatch.context() as ended:
        ended.setattr(forks, "_send", lambda *_: False)
        waiting = remote_call.open_interpreter(host, probe.main)
    process = remote_call.start_program(host, probe.main, waiting=waiting)(root=host.root, devices=1)
    assert process is waiting
    assert not isinstance(process._child, ForkedChild)  # type: ignore[attr-defined]
    assert process.stdout.readline().startswith(b'{"hostname"')
    process.close()


def test_program_killed_before_it_begins_has_lost_contact(host: LocalHost) -> None:
    """A migration repeats its phase then, and does not return to the source."""
    waiting = remote_call.open_interpreter(host, probe.main)
    os.kill(waiting._child.pid, signal.SIGKILL)  # type: ignore[attr-defined]
    with pytest.raises(ConnectionLostError, match="was ended by signal 9 before it began"):
        remote_call._begun(host, waiting, FORKED[0], "probe.main", lambda _: job("state"))


def test_no_descriptor_is_left_where_there_are_too_few(
    host: LocalHost, forks: LocalForks, monkeypatch: pytest.MonkeyPatch
) -> None:
    host.run(FORKED, stdin=job("state"))
    before = len(os.listdir("/proc/self/fd"))
    pipe, made = os.pipe, list[tuple[int, int]]()

    def limited() -> tuple[int, int]:
        if len(made) == 2:
            raise OSError(errno.EMFILE, "Too many open files")
        made.append(pipe())
        return made[-1]

    with monkeypatch.context() as few:
        few.setattr("midstream.hosts.local_forks.os.pipe", limited)
        with pytest.raises(OSError, match="Too many open files"):
            forks.start()
    assert len(os.listdir("/proc/self/fd")) == before


def test_calls_work_after_the_server_was_killed(host: LocalHost, forks: LocalForks) -> None:
    assert host.call(run_state.list_runs)(root=host.root) == []
    first = server_of(forks)
    running = host.open(FORKED)
    pid = running._child.pid  # type: ignore[attr-defined]
    os.kill(first, signal.SIGKILL)
    assert running.wait(PATIENCE) == -signal.SIGKILL, "its exit code is lost with the server"
    assert host.call(run_state.list_runs)(root=host.root) == []
    assert server_of(forks) != first
    ended = os.pidfd_open(pid)
    running.close()
    assert select.select([ended], [], [], PATIENCE)[0], "it ends with its stdin"
    os.close(ended)


def test_others_run_on_where_a_process_has_too_few_descriptors(host: LocalHost, forks: LocalForks) -> None:
    running = host.open(FORKED)
    assert running._child.pid  # type: ignore[attr-defined]
    server = server_of(forks)
    limits = resource.prlimit(server, resource.RLIMIT_NOFILE)
    used = set(map(int, os.listdir(f"/proc/{server}/fd")))
    third_free = [number for number in range(100) if number not in used][2]
    resource.prlimit(server, resource.RLIMIT_NOFILE, (third_free, limits[1]))  # two descriptors are left
    with pytest.raises(ConnectionLostError):
        host.call(run_state.claim_attempt)(root=host.root, run_id="run")
    resource.prlimit(server, resource.RLIMIT_NOFILE, limits)
    assert state_of(host, FORKED)["forked"]
    assert server_of(forks) == server
    running.stdin.write(job("end"))
    running.stdin.flush()
    assert running.wait(PATIENCE) == -signal.SIGTERM
    running.close()


LIMITED = """
import errno, os
from midstream.hosts import fork_server
fork, forked = os.fork, []
def limited():
    forked.append(1)
    if len(forked) == 2:
        raise BlockingIOError(errno.EAGAIN, "Resource temporarily unavailable")
    return fork()
os.fork = limited
fork_server.main()
"""


def test_others_run_on_where_no_process_can_be_forked(
    host: LocalHost, forks: LocalForks, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As with a limit of processes, which the kernel does not apply to root."""
    (tmp_path / "limited.py").write_text(LIMITED)
    monkeypatch.setattr("midstream.hosts.local_forks.fork_server.__file__", str(tmp_path / "limited.py"))
    running = host.open(FORKED)
    with pytest.raises(RemoteError, match="no process can be forked: Resource temporarily unavailable"):
        host.call(run_state.claim_attempt)(root=host.root, run_id="run")
    assert host.call(run_state.claim_attempt)(root=host.root, run_id="run") == 1
    running.stdin.write(job("end"))
    running.stdin.flush()
    assert running.wait(PATIENCE) == -signal.SIGTERM
    running.close()


def missing_module() -> str:
    return f"midstream_host.machine.missing_{secrets.token_hex(4)}"


def test_server_that_cannot_import_is_replaced(
    host: LocalHost, forks: LocalForks, caplog: pytest.LogCaptureFixture, capfd: pytest.CaptureFixture[str]
) -> None:
    """As after a broken upgrade."""
    missing = missing_module()
    forks.modules = (*forks.modules, missing)
    forks.prepare()
    waiting = remote_call.open_interpreter(host, probe.main)
    for _ in range(2):
        assert host.call(run_state.list_runs)(root=host.root) == []
    process = remote_call.start_program(host, probe.main, waiting=waiting)(root=host.root, devices=1)
    process.close()
    assert process.wait(PATIENCE) == 0
    assert not state_of(host, FORKED)["forked"]
    (line,) = caplog.messages
    assert line.startswith("midstream: ")
    assert f"ModuleNotFoundError: No module named '{missing}'" in line
    assert "Traceback" not in capfd.readouterr().err


def test_server_for_clients_that_cannot_import_is_replaced(
    host: LocalHost, client_forks: LocalForks, caplog: pytest.LogCaptureFixture
) -> None:
    client_forks.modules = (*client_forks.modules, missing_module())
    client_forks.prepare("s3://")  # a request that the server does not read
    with pytest.raises(RemoteError, match="no/such"):
        host.call(bucket_tree.check)(directory="file:///no/such", entry={}, access={})  # type: ignore[arg-type]
    assert "ModuleNotFoundError" in caplog.text


@pytest.mark.parametrize(
    ("program", "reason"),
    [
        ("import sys; sys.exit(3)", "exit code 3"),
        ("import os; os.kill(os.getpid(), 9)", "signal 9"),
        ("import time; time.sleep(600)", "did not start within 1 s"),
    ],
)
def test_server_that_does_not_start_is_replaced(
    host: LocalHost,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    program: str,
    reason: str,
) -> None:
    (tmp_path / "server.py").write_text(program)
    monkeypatch.setattr("midstream.hosts.local_forks.fork_server.__file__", str(tmp_path / "server.py"))
    monkeypatch.setattr("midstream.hosts.local_forks.START_TIMEOUT", 1.0)
    for _ in range(2):
        assert host.call(run_state.list_runs)(root=host.root) == []
    (line,) = caplog.messages
    assert reason in line


CLIENTLESS = """
from midstream.hosts import fork_server
fork_server.CLIENTS = "midstream_core.missing"
fork_server.main()
"""


def test_server_runs_on_where_clients_cannot_be_imported(
    host: LocalHost, client_forks: LocalForks, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "clientless.py").write_text(CLIENTLESS)
    monkeypatch.setattr("midstream.hosts.local_forks.fork_server.__file__", str(tmp_path / "clientless.py"))
    client_forks.prepare("s3://")
    assert state_of(host, FORKED_CLIENTS)["forked"]


def test_command_works_where_a_program_of_copies_is_broken(tmp_path: Path) -> None:
    for package in (midstream, midstream_core, midstream_host):
        source = Path(str(package.__file__)).parent
        shutil.copytree(source, tmp_path / source.name, ignore=shutil.ignore_patterns("__pycache__"))
    (tmp_path / "midstream_host" / "copy" / "session.py").write_text("<<<<<<<\n")
    fleet = tmp_path / "fleet.yaml"
    fleet.write_text(f"hosts:\n  here: {{type: local, root: {tmp_path / 'root'}}}\n")
    environment = {**os.environ, "HOME": str(tmp_path), "MIDSTREAM_STATE": str(tmp_path / "state")}
    command = [sys.executable, "-m", "midstream", "--fleet", str(fleet), "--status", "--json"]
    done = subprocess.run(
        command, env={**environment, "PYTHONPATH": str(tmp_path)}, capture_output=True, text=True, timeout=PATIENCE
    )
    assert done.returncode == 0, done.stderr
    (host,) = map(json.loads, done.stdout.splitlines())
    assert (host["name"], host["link"]) == ("here", "live")
    (line,) = done.stderr.splitlines()
    assert "SyntaxError" in line
    assert "session.py" in line


def test_modules_of_the_server_are_not_sent(
    host: LocalHost, client_forks: LocalForks, monkeypatch: pytest.MonkeyPatch
) -> None:
    sent: list[bytes] = []
    line_of = remote_call.job_line
    monkeypatch.setattr(remote_call, "job_line", lambda *a, **k: sent.append(line_of(*a, **k)) or sent[-1])
    assert host.call(run_state.claim_attempt)(root=host.root, run_id="run") == 1
    host.call(attempt_view.attempt)(root=host.root, run_id="run", number=1)
    with pytest.raises(RemoteError):
        host.call(bucket_tree.check)(directory="file:///no/such", entry={}, access={})  # type: ignore[arg-type]
    known, further, client = sent
    assert len(known) < 1000
    assert b"midstream_host.runs.attempt_view" in further
    assert b'["midstream_host.declarations"' not in further
    assert len(client) < 1000, "the server of the buckets' clients has them, too"


def test_many_threads_start_and_end_programs(host: LocalHost) -> None:
    def calls() -> None:
        for _ in range(5):
            answers.append(host.call(run_state.list_runs)(root=host.root))

    before = len(os.listdir("/proc/self/fd"))
    answers: list[list[str]] = []
    threads = [threading.Thread(target=calls) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert answers == [[]] * 40
    assert len(os.listdir("/proc/self/fd")) <= before + 1, "the server's socket is left, and no pipe"


def test_server_ends_with_its_process(tmp_path: Path) -> None:
    code = (
        "import os\nfrom midstream.fleet.fleet import LocalHostConfig\n"
        "from midstream.hosts.local_host import LocalHost\nfrom midstream.hosts.local_forks import FORKS\n"
        "from midstream_host.runs import run_state\n"
        f"host = LocalHost('here', LocalHostConfig(root={str(tmp_path)!r}))\n"
        "assert host.call(run_state.list_runs)(root=host.root) == []\n"
        "print(FORKS._server._process.pid, flush=True)\ninput()\nos._exit(0)\n"
    )
    with subprocess.Popen(
        [sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        server = os.pidfd_open(int(process.stdout.readline()))
        process.communicate("\n", timeout=PATIENCE)
    assert select.select([server], [], [], PATIENCE)[0]
    os.close(server)


def test_forked_copy_of_the_app_has_a_server_of_its_own(
    host: LocalHost, forks: LocalForks, monkeypatch: pytest.MonkeyPatch
) -> None:
    host.call(run_state.list_runs)(root=host.root)
    first = forks._server
    with monkeypatch.context() as copy:
        copy.setattr("midstream.hosts.local_forks.os.getpid", lambda: -1)
        host.call(run_state.list_runs)(root=host.root)
        assert forks._server is not first
        forks.close()
    assert first is not None
    first.close()
