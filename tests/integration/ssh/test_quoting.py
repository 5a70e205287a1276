"""Quoting of hostile names on the host."""

from __future__ import annotations

import hashlib
import os
import shlex
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, note, seed, settings
from hypothesis import strategies as st

from midstream.errors import RemoteError
from midstream.fleet.fleet import LocalHostConfig, SshHostConfig
from midstream.hosts.local_host import LocalHost
from midstream.hosts.ssh.ssh_host import SshHost, _command
from midstream_core import records
from midstream_host.runs import ownership
from simulators.sshd import Lab

EXAMPLES = 24
QUIET = (HealthCheck.function_scoped_fixture, HealthCheck.too_slow, HealthCheck.filter_too_much)
SEED = int(os.environ.get("MIDSTREAM_FUZZ_SEED", "20"))
HARM = "touch CANARY"
# Texts with a meaning for a shell, printf, an option parser, a terminal or a path.
PIECES = [
    " ", "'", '"', "\n", "\r", "\t", "\\", "\\'", "$HOME", f"$({HARM})", f"`{HARM}`", f"; {HARM} ;", f"\n{HARM}\n",
    f"| {HARM}", f"&& {HARM}", f"' ; {HARM} ; '", f'" ; {HARM} ; "', f"<({HARM})", "${IFS}", "-", "-rf", "--", "--help",
    "*", "?", "[a-z]", "~", "~root", "!", "!!", "^", "&", ">", ">>CANARY", "<", "#", "%", "%s%n", "{a,b}", "=",
    "..", ".", "é", "☃", "\x01", "\x1b[2J", "\x7f", "\udcff",
]  # fmt: skip
names = st.lists(
    st.one_of(st.sampled_from(PIECES), st.text(st.characters(blacklist_characters="\0"), max_size=4)),
    min_size=1, max_size=6,
).map("".join)  # fmt: skip


@pytest.fixture(scope="module")
def reached(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[SshHost, Path]]:
    """Connect to one host for all examples; yield it and the canary's directory."""
    from simulators.sshd import SSHD

    if not SSHD:
        pytest.skip("no sshd: apt-get install openssh-server")
    lab = Lab(tmp_path_factory.mktemp("lab"))
    server = lab.host("gpu1")
    machine = SshHost("gpu1", server.config)
    machine.connect()
    yield machine, tmp_path_factory.mktemp("harm")
    machine.close()
    lab.close()


def encodable(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


@seed(SEED)
@settings(max_examples=EXAMPLES, deadline=None, suppress_health_check=QUIET, database=None)
@given(words=st.lists(names.filter(encodable), min_size=1, max_size=4), value=names.filter(encodable))
def test_arguments_arrive_unchanged(reached: tuple[SshHost, Path], words: list[str], value: str) -> None:
    machine, folder = reached
    note(f"seed {SEED}")
    canary = folder / "canary"
    words = [word.replace("CANARY", str(canary)) for word in words]
    value = value.replace("CANARY", str(canary))
    show = ["sh", "-c", 'printf "%s\\0" "$@" "$X"', "sh"]
    done = machine.run([*show, *words], env={"X": value})
    assert done.stdout.decode().split("\0") == [*words, value, ""]
    assert os.listdir(folder) == []


@seed(SEED + 1)
@settings(max_examples=EXAMPLES // 4, deadline=None, suppress_health_check=QUIET, database=None)
@given(name=names.filter(encodable))
def test_owner_name_is_accepted_or_refused(reached: tuple[SshHost, Path], name: str) -> None:
    """Functions get their arguments as JSON over stdin: no shell reads them."""
    machine, folder = reached
    note(f"seed {SEED + 1}")
    name = name.replace("CANARY", str(folder / "canary"))
    fence = {**records.Fence(1, "here").to_json(), "owner": name}
    try:
        records.Fence.from_json(fence)
    except records.RecordError:
        with pytest.raises(RemoteError, match="owner"):
            machine.call(ownership.put_fence)(root=machine.root, run_id="r", fence=fence)
    else:
        written = machine.call(ownership.put_fence)(root=machine.root, run_id="r", fence=fence)
        assert written.owner == name
    assert machine.run(["rm", "-rf", "--", machine.root]).returncode == 0
    assert os.listdir(folder) == []


@pytest.mark.parametrize("argv", [[], [""], ["-c"], ["a\0b"], ["a", "b\0c"]])
def test_invalid_argv_is_refused(argv: list[str]) -> None:
    with pytest.raises(ValueError, match="command"):
        _command(argv, None)


@pytest.mark.parametrize("name", ["", "A=B", "-u"])
def test_invalid_variable_name_is_refused(name: str) -> None:
    with pytest.raises(ValueError, match="variable"):
        _command(["true"], {name: "x"})


def test_line_to_paste_runs_on_the_host_with_its_quoting(lab: Lab, tmp_path: Path) -> None:
    """A line of the command log, pasted into a shell here, reads a file with a hostile name there."""
    directory = tmp_path / "a 'b' $HOME {c}"
    directory.mkdir()
    (directory / "fence.json").write_text("its text")
    server = lab.host("gpu1")
    for command, expected in (
        (f"cat {shlex.quote(f'{directory}/fence.json')}", "its text"),
        (f"find {shlex.quote(str(directory))} -type f -exec sha256sum {{}} +", hashlib.sha256(b"its text").hexdigest()),
        ('printf %s "$SSH_CONNECTION"', "127.0.0.1"),
    ):
        line = SshHost("gpu1", server.config).shell_line(command)
        assert line.startswith("ssh ")
        done = subprocess.run(["/bin/sh", "-c", line], capture_output=True, text=True, timeout=120)
        assert done.returncode == 0, done.stderr
        assert expected in done.stdout


def test_line_to_paste_has_only_what_the_fleet_file_overrides(tmp_path: Path) -> None:
    command = "tail -n 20 '/root/my runs/log'"
    plain = SshHostConfig(address="lab", env={"TOKEN": "secret"})
    assert SshHost("gpu1", plain).shell_line(command) == """ssh lab 'tail -n 20 '"'"'/root/my runs/log'"'"''"""
    key = str(tmp_path / "a key")
    other = SshHostConfig(address="me@lab:2222", identity_file=key, known_hosts="~/known hosts")
    words = shlex.split(SshHost("gpu1", other).shell_line(command))
    home = os.path.expanduser("~")
    assert words == ["ssh", "-l", "me", "-p", "2222", "-o", f'UserKnownHostsFile="{home}/known hosts"',
                     "-o", "IdentitiesOnly=yes", "-i", key, "lab", command]  # fmt: skip
    assert LocalHost("here", LocalHostConfig()).shell_line(command) == command
