"""A host behind a real sshd: login, host keys, commands, lost connections."""

from __future__ import annotations

import dataclasses
import os
import random
import signal
import string
import subprocess
import time
from pathlib import Path

import pytest

from midstream.errors import ConnectionLostError, HostError, RemoteError
from midstream.hosts.host_pool import open_host
from midstream.hosts.rpc.remote_call import start_program
from midstream.hosts.ssh.ssh_host import SshHost
from midstream_host.machine import probe
from midstream_host.runs import run_state
from simulators.sshd import SshServer, environment, free_port


def connect(server: SshServer, **changes: object) -> SshHost:
    machine = open_host(server.name, dataclasses.replace(server.config, **changes))
    assert isinstance(machine, SshHost)
    machine.connect()
    return machine


def test_host_runs_commands_and_functions(server: SshServer) -> None:
    machine = connect(server)
    done = machine.run(["sh", "-c", "cat; echo talk >&2; exit 3"], stdin=b"data")
    assert (done.returncode, done.stdout, done.stderr) == (3, b"data", b"talk\n")
    assert machine.run(["env"], env={"A B": "x y\nz"}).stdout.count(b"A B=x y\nz\n") == 1
    assert machine.call(run_state.claim_attempt)(root=machine.root, run_id="r") == 1
    assert machine.call(run_state.list_runs)(root=machine.root) == ["r"]
    with pytest.raises(RemoteError, match="run id") as refused:
        machine.call(run_state.claim_attempt)(root=machine.root, run_id="../r")
    assert refused.value.kind == "RecordError"
    machine.close()


def test_three_megabytes_pass_through_stdin(server: SshServer) -> None:
    machine = connect(server)
    data = os.urandom(3 << 20)
    assert machine.run(["cat"], stdin=data, limit=len(data)).stdout == data
    machine.close()


def test_program_has_open_pipes(server: SshServer) -> None:
    machine = connect(server)
    process = machine.open(["sh", "-c", "while read line; do echo got $line; done; echo bye >&2; exit 4"])
    for word in (b"one", b"two"):
        process.stdin.write(word + b"\n")
        process.stdin.flush()
        assert process.stdout.readline() == b"got " + word + b"\n"
    with pytest.raises(TimeoutError):
        process.wait(0.05)
    process.stdin.close()
    assert process.wait(60) == 4
    deadline = time.monotonic() + 60.0  # the exit code may arrive before the last of stderr
    while process.stderr_text() != "bye\n":
        assert time.monotonic() < deadline, process.stderr_text()
        time.sleep(0.01)
    process.close()
    machine.close()


def test_unknown_host_key_hint_accepts_it(server: SshServer) -> None:
    known = server.known_hosts.read_text()
    server.known_hosts.write_text("")
    with pytest.raises(HostError, match="is not known") as refused:
        connect(server)
    fingerprint = subprocess.run(
        ["ssh-keygen", "-lf", str(server.directory / "host_key.pub")], capture_output=True, text=True, check=True
    ).stdout.split()[1]
    assert fingerprint in refused.value.message
    line = refused.value.hint.split(": ", 1)[1]
    subprocess.run(["sh", "-c", line], check=True, capture_output=True)
    assert known.split()[2] in server.known_hosts.read_text()
    connect(server).close()


def test_changed_host_key_is_refused(server: SshServer, tmp_path: Path) -> None:
    subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(tmp_path / "other")], check=True)
    address = server.known_hosts.read_text().split()[0]
    kind, key = (tmp_path / "other.pub").read_text().split()[:2]
    server.known_hosts.write_text(f"{address} {kind} {key}\n")
    with pytest.raises(HostError, match="CHANGED") as refused:
        connect(server)
    assert "ssh-keygen -R" in refused.value.hint


def test_rejected_user_key_is_one_line(server: SshServer, tmp_path: Path) -> None:
    subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(tmp_path / "wrong")], check=True)
    config = (
        (server.directory / "ssh_config")
        .read_text()
        .replace(str(server.directory / "user_key"), str(tmp_path / "wrong"))
    )
    (server.directory / "ssh_config").write_text(config)
    with pytest.raises(HostError, match="accepts none of our keys"):
        connect(server)


def test_unreachable_address_is_one_line(server: SshServer) -> None:
    with pytest.raises(HostError, match=r"cannot be reached: Connection refused"):
        connect(server, port=free_port())
    with pytest.raises(HostError, match="cannot be resolved"):
        connect(server, address="nosuchhost.invalid")


def test_arguments_are_never_expanded_on_host(server: SshServer, tmp_path: Path) -> None:
    seed = random.randrange(1 << 32)
    print(f"seed {seed}")
    rng = random.Random(seed)
    canary = tmp_path / "canary"
    parts = [
        " ", "'", '"', "\n", "\\", "$HOME", f"$(touch {canary})", f"`touch {canary}`", f"; touch {canary} ;",
        "-rf", "--", "*", "~", "!", "&", "|", ">", "#", "%", "é", "\t", "{a,b}", "\r",
    ]  # fmt: skip
    machine = connect(server)
    show = ["python3", "-c", "import sys; sys.stdout.write('\\0'.join(sys.argv[1:]))"]
    for _ in range(25):
        words = ["".join(rng.choices(parts + list(string.ascii_letters), k=rng.randint(0, 6))) for _ in range(4)]
        done = machine.run([*show, *words], env={"X": rng.choice(parts)})
        assert done.stdout.decode().split("\0") == words, words
    assert not canary.exists()
    with pytest.raises(ValueError, match="NUL"):
        machine.run(["echo", "a\0b"])
    machine.close()


def test_cut_connection_is_reported_and_reconnects(server: SshServer) -> None:
    machine = connect(server)
    process = machine.open(["sleep", "60"])
    server.drop_connections()
    with pytest.raises(ConnectionLostError):
        process.wait(90)
    process.close()
    with pytest.raises(ConnectionLostError):
        machine.open(["true"])
    machine.connect()
    assert machine.run(["true"]).returncode == 0
    machine.close()


def test_command_timeout_is_reported(server: SshServer) -> None:
    machine = connect(server)
    with pytest.raises(HostError, match="did not end within"):
        machine.run(["sleep", "60"], timeout=0.3)
    machine.close()


def test_channels_share_connection(server: SshServer) -> None:
    machine = connect(server)
    processes = [machine.open(["cat"]) for _ in range(12)]
    for number, process in enumerate(processes):
        process.stdin.write(f"{number}\n".encode())
        process.stdin.close()
    assert [process.stdout.read() for process in processes] == [f"{number}\n".encode() for number in range(12)]
    for process in processes:
        assert process.wait(60) == 0
        process.close()
    assert len(server.sessions()) == 1
    machine.close()


def test_printing_function_keeps_its_result(server: SshServer) -> None:
    machine = connect(server)
    process = start_program(machine, run_state.read_text)(path="/etc/passwd")
    process.stdin.close()
    assert process.wait(60) == 0
    process.close()
    machine.close()


def test_dialed_connection_is_independent(server: SshServer) -> None:
    machine = connect(server)
    further = machine.with_new_connection()
    assert len(server.sessions()) == 2
    assert (further.root, further.remote_python) == (machine.root, machine.remote_python)
    assert further.call(run_state.list_runs)(root=further.root) == []
    machine.close()
    assert further.run(["true"]).returncode == 0, "it does not depend on the first connection"
    server.drop_connections()
    with pytest.raises(ConnectionLostError):
        further.open(["true"])
    further.connect()
    assert further.run(["true"]).returncode == 0
    further.close()


def test_stopped_session_is_reported_by_keepalive(server: SshServer) -> None:
    """The kernel still acknowledges bytes: keep-alives alone detect the stop."""
    machine = connect(server)
    process = machine.open(["sleep", "60"])
    for pid in server.sessions():
        os.kill(pid, signal.SIGSTOP)
    with pytest.raises(ConnectionLostError):
        process.wait(90)
    process.close()
    machine.connect()
    assert machine.run(["true"]).returncode == 0
    machine.close()


def test_host_without_python_is_reachable(server: SshServer, tmp_path: Path) -> None:
    config = server.directory / "sshd_config"
    tools = tmp_path / "bin"
    tools.mkdir()
    for tool in ("sh", "cat", "env"):
        (tools / tool).symlink_to(f"/bin/{tool}")
    config.write_text(environment(PATH=tools) + config.read_text())
    server.stop()
    server.start()
    machine = connect(server, python=None)
    assert machine.remote_python == ""
    assert machine.root == str(server.root)
    assert machine.run(["cat"], stdin=b"data").stdout == b"data"
    with pytest.raises(HostError, match=r"no Python 3.8 or newer there \(install python3"):
        machine.call(run_state.list_runs)(root=machine.root)
    with pytest.raises(HostError, match=r"no Python 3.8 or newer there"):
        start_program(machine, probe.main)(root=machine.root)
    machine.close()
