"""Names that would do harm if anything ever read them as more than names; and secrets, which no process list shows."""

from __future__ import annotations

import os
import stat
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, note, seed, settings
from hypothesis import strategies as st

from midstream.errors import HostError, LostContact, RemoteError
from midstream.hosts.secret_files import remove_private, write_private
from midstream.hosts.ssh.ssh_host import SshMachine, _command
from midstream_engine import records
from simulators.sshd import Lab

EXAMPLES = 24
QUIET = (HealthCheck.function_scoped_fixture, HealthCheck.too_slow, HealthCheck.filter_too_much)
SEED = int(os.environ.get("MIDSTREAM_FUZZ_SEED", "20"))
HARM = "touch CANARY"
# What means something to a shell, to printf, to an option parser, to a terminal or to a path.
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
def reached(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[SshMachine, Path]]:
    """One host for all examples, and the folder in which harm would be done."""
    from simulators.sshd import SSHD

    if not SSHD:
        pytest.skip("no sshd: apt-get install openssh-server")
    lab = Lab(tmp_path_factory.mktemp("lab"))
    server = lab.host("gpu1")
    machine = SshMachine("gpu1", server.config)
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
def test_words_arrive_as_they_are_and_nothing_is_executed(
    reached: tuple[SshMachine, Path], words: list[str], value: str
):
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
@settings(max_examples=EXAMPLES // 3, deadline=None, suppress_health_check=QUIET, database=None)
@given(name=names.filter(encodable), data=st.binary(max_size=200))
def test_private_files_of_any_name_hold_what_they_were_given(reached: tuple[SshMachine, Path], name: str, data: bytes):
    machine, folder = reached
    note(f"seed {SEED + 1}")
    canary = folder / "canary"
    name = name.replace("CANARY", str(canary)).replace("/", "_").encode()[:200].decode(errors="ignore") or "x"
    path = folder / f"d-{name}" / f"-{name}"
    if len(os.fsencode(str(path))) > 3000:
        return
    write_private(machine, str(path), data)
    assert path.read_bytes() == data
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700
    assert os.listdir(path.parent) == [path.name]
    remove_private(machine, str(path))
    path.parent.rmdir()
    assert os.listdir(folder) == []


@seed(SEED + 2)
@settings(max_examples=EXAMPLES // 4, deadline=None, suppress_health_check=QUIET, database=None)
@given(name=names.filter(encodable))
def test_a_runs_name_is_a_name_or_refused(reached: tuple[SshMachine, Path], name: str):
    """Functions get their arguments as JSON over stdin: no shell sees them."""
    machine, folder = reached
    note(f"seed {SEED + 2}")
    name = name.replace("CANARY", str(folder / "canary"))
    fence = {**records.Fence(1, "here").to_json(), "owner": name}
    try:
        records.Fence.from_json(fence)
    except records.RecordError:
        with pytest.raises(RemoteError, match="owner"):
            machine.call("runs.ownership.put_fence", root=machine.root, run_id="r", fence=fence)
    else:
        written = machine.call("runs.ownership.put_fence", root=machine.root, run_id="r", fence=fence)
        assert written["owner"] == name
    assert machine.run(["rm", "-rf", "--", machine.root]).returncode == 0
    assert os.listdir(folder) == []


@pytest.mark.parametrize("argv", [[], [""], ["-c"], ["a\0b"], ["a", "b\0c"]])
def test_what_no_shell_can_be_told_is_refused(argv: list[str]):
    with pytest.raises(ValueError, match="command"):
        _command(argv, None)


@pytest.mark.parametrize("name", ["", "A=B", "-u"])
def test_what_is_no_variable_is_refused(name: str):
    with pytest.raises(ValueError, match="variable"):
        _command(["true"], {name: "x"})


def test_a_secret_is_in_no_command_line_while_it_travels(lab: Lab, tmp_path: Path):
    """Every command line of this machine, looked at again and again while secrets are written."""
    server = lab.host("gpu1")
    machine = SshMachine("gpu1", server.config)
    machine.connect()
    secret = f"hf_{os.urandom(16).hex()}"
    seen: list[str] = []
    done = threading.Event()

    def look() -> None:
        while not done.is_set():
            for pid in filter(str.isdigit, os.listdir("/proc")):
                for file in ("cmdline", "environ"):
                    try:
                        text = Path(f"/proc/{pid}/{file}").read_bytes()
                    except OSError:
                        continue
                    if secret.encode() in text:
                        seen.append(f"{pid} {file} {text!r}")

    watcher = threading.Thread(target=look)
    watcher.start()
    try:
        for _ in range(5):
            write_private(machine, str(tmp_path / "keys" / "env"), f"HF_TOKEN={secret}\n".encode())
    finally:
        done.set()
        watcher.join()
    assert seen == []
    assert secret not in (server.directory / "sshd.log").read_text()
    machine.close()


def test_a_secret_that_was_cut_off_leaves_no_file(lab: Lab, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    server = lab.host("gpu1")
    machine = SshMachine("gpu1", server.config)
    machine.connect()
    path = tmp_path / "keys" / "env"
    from midstream.hosts import secret_files

    process = machine.open(["sh", "-c", secret_files._WRITE, "sh", str(path), str(path.parent), "100"])
    process.stdin.write(b"HF_TOKEN=half")
    process.stdin.flush()
    server.drop_connections()
    with pytest.raises(LostContact):
        process.wait(90)
    process.close()
    machine.connect()
    machine.run(["sh", "-c", 'while [ -e "$1" ]; do sleep 0.1; done', "sh", f"{path}.part"])
    assert not path.exists()
    machine.close()


def test_where_a_secret_cannot_be_written_the_error_does_not_tell_it(lab: Lab, tmp_path: Path):
    server = lab.host("gpu1")
    machine = SshMachine("gpu1", server.config)
    machine.connect()
    (tmp_path / "file").write_text("")
    with pytest.raises(HostError, match="cannot be written") as refused:
        write_private(machine, str(tmp_path / "file" / "env"), b"HF_TOKEN=sesame")
    assert "sesame" not in str(refused.value)
    with pytest.raises(ValueError, match="not absolute"):
        write_private(machine, "env", b"x")
    machine.close()


def test_this_machine_writes_private_files_too(tmp_path: Path):
    from midstream.fleet.fleet import LocalHost
    from midstream.hosts.local_host import LocalMachine

    path = tmp_path / "new" / "env"
    write_private(LocalMachine("here", LocalHost(root=str(tmp_path))), str(path), b"x")
    assert (path.read_bytes(), stat.S_IMODE(path.stat().st_mode)) == (b"x", 0o600)
    assert subprocess.run(["ls", str(path.parent)], capture_output=True, text=True, check=True).stdout == "env\n"
