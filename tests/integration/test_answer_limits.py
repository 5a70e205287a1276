"""Hosts that answer without end: one line, and bounded memory."""

from __future__ import annotations

import json
import os
import shlex
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path

import paramiko
import pytest
from paramiko.common import AUTH_SUCCESSFUL, OPEN_SUCCEEDED

from midstream.fleet.fleet import SshHostConfig
from simulators.sshd import Lab, SshServer, make_key

pytestmark = pytest.mark.drawn

ALLOWED_KIB = 64 << 10
# The peak that `getrusage` has begins with the peak of the process that has forked this one.
MEASURED = (
    "import re, sys; from midstream.cli import main; code = main(sys.argv[1:]);"
    "print(code, *re.findall(r'VmHWM:\\s+(\\d+) kB', open('/proc/self/status').read()), file=sys.stderr)"
)


def status(fleet: Path) -> tuple[dict[str, dict], int]:
    """Return the hosts of ``midstream --status --json``, and its peak memory in KiB."""
    done = subprocess.run(
        [sys.executable, "-c", MEASURED, "--status", "--json", "--fleet", str(fleet)], capture_output=True, text=True
    )
    *_, last = done.stderr.splitlines()
    code, peak = last.split()
    assert code == "0", done.stderr
    assert "Traceback" not in done.stderr, done.stderr
    rows = [json.loads(line) for line in done.stdout.splitlines()]
    return {row["name"]: row for row in rows if row["event"] == "host"}, int(peak)


@pytest.fixture(scope="module")
def quiet(tmp_path_factory: pytest.TempPathFactory) -> int:
    """Return the peak memory, in KiB, of the status of a normal host."""
    lab = Lab(tmp_path_factory.mktemp("quiet"))
    hosts, peak = status(lab.fleet_file(quiet=lab.host("quiet", devices=1).config))
    lab.close()
    assert hosts["quiet"]["link"] == "live"
    return peak


def force(server: SshServer, command: str) -> None:
    keys = server.directory / "authorized_keys"
    keys.write_text(f'command="{command}" {keys.read_text()}')


@pytest.mark.parametrize(
    ("command", "expected"),
    [
        ("yes", "its login shell, before any command began, answered more than 256 KiB: closed"),
        ("cat /dev/zero", "its login shell, before any command began, answered more than 256 KiB: closed"),
        ("yes >&2", "a command, on stderr, answered more than 4 MiB: closed"),
        # After the mark that commands print, every byte counts as the answer.
        ("printf '\\001midstream\\001\\n'; yes", "sh answered more than 2 MiB: closed"),
        ("echo no shell here; exit 3", "its login shell did not run sh (exit 3): no shell here"),
    ],
    ids=["yes", "zeros", "stderr", "answer", "refusal"],
)
def test_endless_forced_command_is_closed_at_limit(lab: Lab, quiet: int, command: str, expected: str) -> None:
    server = lab.host("flood", devices=1)
    force(server, command)
    good = lab.host("good", devices=1)
    hosts, peak = status(lab.fleet_file(flood=server.config, good=good.config))
    assert (hosts["flood"]["link"], hosts["good"]["link"]) == ("down", "live")
    assert hosts["flood"]["error"].startswith("flood: ")
    assert expected in hosts["flood"]["error"]
    assert peak - quiet < ALLOWED_KIB, f"{peak - quiet} KiB more than with a quiet host"


PROBE = """\
import json, os, sys
read = sys.stdin.buffer.readline()
if json.loads(read)["program"]:
    os.write(1, b"\\0midstream\\n")
    data = {data}
    while True: os.write(1, data)
"""


@pytest.mark.parametrize(
    ("data", "expected"),
    [
        ("b'x' * 65536", "its probe, in one line, answered more than 2 MiB: closed"),
        ("b'[' + b'[],' * 600000 + b'0]\\n'", "more than 500,000 values"),
        ("b'[' * 200000 + b'\\n'", "nested too deeply"),
    ],
    ids=["line without end", "many values", "nested"],
)
def test_flooding_probe_is_closed_at_limit(lab: Lab, quiet: int, data: str, expected: str) -> None:
    server = lab.host("flood", devices=1)
    script = server.directory / "python"
    script.write_text(
        f'#!/bin/sh\nif [ "$1" = -c ]; then case $2 in *version_info*) exec {sys.executable} "$@" ;; esac; fi\n'
        f"exec {sys.executable} -c {shlex.quote(PROBE.replace('{data}', data))}\n"
    )
    script.chmod(0o755)
    hosts, peak = status(lab.fleet_file(flood=replace(server.config, python=str(script))))
    assert hosts["flood"]["link"] == "down"
    assert expected in hosts["flood"]["error"]
    assert peak - quiet < ALLOWED_KIB, f"{peak - quiet} KiB more than with a quiet host"


# ------------------------------------------------------------------------------------------------ before the login


@contextmanager
def serving(serve: Callable[[socket.socket], None]) -> Iterator[int]:
    """Serve TCP on loopback; yield the port."""
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def accept() -> None:
            while True:
                try:
                    caller, _ = listener.accept()
                except OSError:
                    return
                threading.Thread(target=one, args=(caller,), daemon=True).start()

        def one(caller: socket.socket) -> None:
            with caller:
                try:
                    serve(caller)
                except (OSError, EOFError, paramiko.SSHException):
                    return

        threading.Thread(target=accept, daemon=True).start()
        yield listener.getsockname()[1]
        listener.shutdown(socket.SHUT_RDWR)


def flood(greeting: bytes, piece: bytes) -> Callable[[socket.socket], None]:
    def serve(caller: socket.socket) -> None:
        caller.sendall(greeting)
        while True:
            caller.sendall(piece)

    return serve


def host_config(lab: Lab, port: int) -> SshHostConfig:
    key = make_key(lab.directory / "user_key")
    (lab.directory / "ssh_config").write_text("")
    return SshHostConfig(
        address=f"127.0.0.1:{port}", ssh_config=str(lab.directory / "ssh_config"), identity_file=str(key), user="x",
        known_hosts=str(lab.directory / "known_hosts"),
    )  # fmt: skip


@pytest.mark.parametrize(
    ("greeting", "piece", "expected"),
    [
        (b"", b"x" * 65536, "its greeting is longer than 64 KiB"),
        (b"", b"hello\r\n" * 9000, "it sent 'hello hello hello"),
        (b"SSH-2.0-odd\r\n", b"\x7f\xff\xff\xfc" * 16384, "it announced a packet of"),
    ],
    ids=["line", "lines", "packet"],
)
def test_endless_greeting_is_closed_at_limit(
    lab: Lab, quiet: int, greeting: bytes, piece: bytes, expected: str
) -> None:
    with serving(flood(greeting, piece)) as port:
        hosts, peak = status(lab.fleet_file(odd=host_config(lab, port)))
    assert hosts["odd"]["link"] == "down"
    assert expected in hosts["odd"]["error"]
    assert peak - quiet < ALLOWED_KIB


class _Careless(paramiko.ServerInterface):
    """Accept every key, and send without regard for the window."""

    def check_auth_publickey(self, username: str, key: paramiko.PKey) -> int:
        del username, key
        return AUTH_SUCCESSFUL

    def get_allowed_auths(self, username: str) -> str:
        del username
        return "publickey"

    def check_channel_request(self, kind: str, chanid: int) -> int:
        del kind, chanid
        return OPEN_SUCCEEDED

    def check_channel_exec_request(self, channel: paramiko.Channel, command: bytes) -> bool:
        del command

        def send() -> None:
            with suppress(OSError, EOFError):  # the client has closed the connection
                channel.send(b"\1midstream\1\n")
                while not channel.closed:
                    channel.out_window_size = 1 << 30
                    channel.send(b"x" * 32000)

        threading.Thread(target=send, daemon=True).start()
        return True


def test_server_that_ignores_ssh_window_is_disconnected(lab: Lab, quiet: int) -> None:
    key = make_key(lab.directory / "host_key", kind="rsa")
    ended = threading.Event()

    def serve(caller: socket.socket) -> None:
        transport = paramiko.Transport(caller)
        transport.add_server_key(paramiko.RSAKey.from_private_key_file(str(key)))
        transport.start_server(server=_Careless())
        transport.join()
        ended.set()

    with serving(serve) as port:
        config = host_config(lab, port)
        kind, public = key.with_suffix(".pub").read_text().split()[:2]
        Path(config.known_hosts or "").write_text(f"[127.0.0.1]:{port} {kind} {public}\n")
        hosts, peak = status(lab.fleet_file(odd=config))
        assert hosts["odd"]["link"] == "down", hosts["odd"]
        assert ended.wait(60)
    assert peak - quiet < ALLOWED_KIB


# -------------------------------------------------------------------------------------------------- login scripts


def test_login_script_output_without_newline_is_skipped(lab: Lab) -> None:
    """The login shell prints before the command, as a profile would."""
    server = lab.host("chatty", devices=1)
    force(server, "printf hello; printf '\\033]0;owned\\007'; eval \\\"$SSH_ORIGINAL_COMMAND\\\"")
    hosts, _ = status(lab.fleet_file(chatty=server.config))
    assert hosts["chatty"]["link"] == "live", hosts["chatty"]
    assert hosts["chatty"]["machine"]["hostname"] == os.uname().nodename
