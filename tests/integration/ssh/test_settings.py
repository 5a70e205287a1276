"""The user's SSH configuration, resolved by OpenSSH or by paramiko."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from midstream.errors import HostError, UsageError
from midstream.fleet.fleet import SshHostConfig
from midstream.hosts.host_pool import open_host
from midstream.hosts.prompter import PROMPTS
from midstream.hosts.ssh.resolved_options import SshSettings, resolve
from midstream.hosts.ssh.ssh_host import SshHost
from midstream.state_directory import state_directory
from simulators.sshd import SshServer
from support.prepared_prompter import Answers


def settings(tmp_path: Path, text: str, address: str = "gpu7", **fields: object) -> SshSettings:
    file = tmp_path / "config"
    file.write_text(text)
    return resolve("gpu", SshHostConfig(address=address, ssh_config=str(file), **fields))  # type: ignore[arg-type]


def reached(server: SshServer, address: str) -> SshHost:
    machine = SshHost(
        "gpu", SshHostConfig(address=address, ssh_config=str(server.directory / "ssh_config"), root="/tmp/r")
    )
    machine.connect()
    return machine


def test_include_match_and_wildcards_apply(server: SshServer) -> None:
    (server.directory / "more").write_text(
        'Match originalhost "gpu?" exec "test %n = gpu7"\n  Port {port}\n'.replace("{port}", str(server.port))
    )
    server.configure(
        "Include {dir}/more\n"
        "Host gpu* !gpu9\n  HostName 127.0.0.1\n  IdentityFile {dir}/user_%%\n"
        "Match host 127.0.0.1\n  IdentityFile {dir}/user_key\n  IdentitiesOnly yes\n"
        "  UserKnownHostsFile {dir}/known_hosts\n"
    )
    reached(server, "gpu7").close()
    with pytest.raises(HostError):
        reached(server, "gpu8")  # Match exec gives it no port


def test_host_key_alias_selects_known_hosts_line(server: SshServer) -> None:
    kind, key = (server.directory / "host_key.pub").read_text().split()[:2]
    server.known_hosts.write_text(f"the-gpu {kind} {key}\n")
    server.configure(
        "Host gpu7\n  HostName 127.0.0.1\n  Port {port}\n  HostKeyAlias the-gpu\n  IdentityFile {dir}/user_key\n"
        '  UserKnownHostsFile /dev/null "{dir}/known_hosts"\n'
    )
    reached(server, "gpu7").close()
    server.known_hosts.write_text(f"[127.0.0.1]:{server.port} {kind} {key}\n")
    with pytest.raises(HostError, match="host key of the-gpu is not known"):
        reached(server, "gpu7")


@pytest.mark.parametrize("discarding", ["/dev/null", "none"])
def test_accepted_keys_that_ssh_discards_are_stored(server: SshServer, discarding: str) -> None:
    server.configure(
        "Host gpu7\n  HostName 127.0.0.1\n  Port {port}\n  IdentityFile {dir}/user_key\n  StrictHostKeyChecking no\n"
        f"  UserKnownHostsFile {discarding}\n"
    )
    with pytest.raises(HostError, match=r"is not known .*StrictHostKeyChecking no is not supported") as caught:
        reached(server, "gpu7")
    subprocess.run(["sh", "-c", caught.value.hint.split(": ", 1)[1]], check=True, capture_output=True)
    reached(server, "gpu7").close()


def test_accepted_key_is_prompted_for_once(server: SshServer) -> None:
    server.configure(
        "Host gpu7 gpu8\n  HostName 127.0.0.1\n  Port {port}\n  IdentityFile {dir}/user_key\n"
        "  UserKnownHostsFile /dev/null\n"
    )
    for alias in ("gpu7", "gpu8"):  # two machines, whatever their address is
        PROMPTS.reset()
        prompter = Answers(accepts=True)
        with PROMPTS.use(prompter):
            reached(server, alias).close()
            PROMPTS.reset()
            reached(server, alias).close()
        [prompt] = prompter.host_keys
        assert Path(prompt.file).parent == state_directory() / "known_hosts"


def test_accepted_key_that_cannot_be_stored_is_named(server: SshServer) -> None:
    server.configure(
        "Host gpu7\n  HostName 127.0.0.1\n  Port {port}\n  IdentityFile {dir}/user_key\n"
        "  UserKnownHostsFile {dir}/user_key/known_hosts\n"
    )
    PROMPTS.reset()
    with PROMPTS.use(Answers(accepts=True)), pytest.raises(HostError, match="cannot be written to") as caught:
        reached(server, "gpu7")
    assert caught.value.hint == "known_hosts: FILE at gpu in the fleet file"


@pytest.mark.parametrize("line", ["*.0.0.?", "!gpu7,[127.0.0.1]:{port}", "{hashed}"])
def test_known_hosts_patterns_and_hashes_apply(server: SshServer, line: str) -> None:
    from paramiko.hostkeys import HostKeys

    kind, key = (server.directory / "host_key.pub").read_text().split()[:2]
    names = line.format(port=server.port, hashed=HostKeys.hash_host(f"[127.0.0.1]:{server.port}"))
    server.known_hosts.write_text(f"# a comment\n\n{names} {kind} {key} comment\n")
    reached(server, "gpu1").close()
    server.known_hosts.write_text(f"@revoked {names} {kind} {key}\n{names} {kind} {key}\n")
    with pytest.raises(HostError, match="REVOKED"):
        reached(server, "gpu1")
    server.known_hosts.write_text(f"!*127.0.0.1*,* {kind} {key}\n127.0.0.1 {kind} {key}x\n")
    with pytest.raises(HostError, match="is not known"):
        reached(server, "gpu1")


def test_fleet_entry_overrides_ssh_configuration(tmp_path: Path) -> None:
    text = "Host gpu7\n  User them\n  Port 23\n  IdentityFile /k/theirs\n  UserKnownHostsFile /k/h\n"
    assert settings(tmp_path, text).address == "them@gpu7:23"
    assert settings(tmp_path, text, "me@gpu7:24").address == "me@gpu7:24"
    ours = str(tmp_path / "ours")
    with pytest.raises(UsageError, match=f"identity_file {ours} does not exist here"):
        settings(tmp_path, text, "me@gpu7", identity_file=ours)
    Path(ours).touch()
    found = settings(tmp_path, text, "me@gpu7", port=25, user="root", identity_file=ours, known_hosts="/k/own")
    assert found.address == "root@gpu7:25"
    assert found.identity_files[:2] == (ours, "/k/theirs")
    assert found.identities_only
    assert found.known_hosts[0] == "/k/own"


def test_tokens_and_variables_are_expanded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KEYS", "/k")
    found = settings(
        tmp_path,
        "Host gpu7\n  HostName %h.lab\n  User me\n  Port 23\n  IdentityFile ${KEYS}/%r@%h:%p\n  IdentityFile ~/%n%%\n"
        "  CertificateFile /c/%n-cert.pub\n  IdentityAgent /a/%h\n  UserKnownHostsFile /k/%h /k/b\n"
        "  ProxyCommand way %h %p %r %n %%\n",
    )
    assert found.identity_files == ("/k/me@gpu7.lab:23", os.path.expanduser("~/gpu7%"))
    assert found.certificate_files == ("/c/gpu7-cert.pub",)
    assert found.identity_agent == "/a/gpu7.lab"
    assert found.known_hosts[:2] == ("/k/gpu7.lab", "/k/b")
    assert found.known_as == "[gpu7.lab]:23"
    assert found.proxy_command == "way gpu7.lab 23 me gpu7 %"


def test_identity_agent_values(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SSH_AUTH_SOCK", "/a/usual")
    monkeypatch.setenv("OTHER", "/a/other")
    for value, path in (("SSH_AUTH_SOCK", "/a/usual"), ("$OTHER", "/a/other"), ("none", None), ("/a/b", "/a/b")):
        assert settings(tmp_path, f"Host gpu7\n  IdentityAgent {value}\n").identity_agent == path
    assert settings(tmp_path, "Host gpu7\n").identity_agent == "/a/usual"


def test_proxy_jump_values(tmp_path: Path) -> None:
    assert settings(tmp_path, "Host gpu7\n  ProxyJump a,me@b:33\n").jumps == ("a", "me@b:33")
    assert settings(tmp_path, "Host gpu7\n  ProxyJump none\nHost *\n  ProxyJump a\n").jumps == ()
    found = settings(tmp_path, "Host gpu7\n  ProxyCommand none\nHost *\n  ProxyCommand nc\n")
    assert found.proxy_command is None


@pytest.fixture
def hide_ssh(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Callable[[], None]]:
    """Return a function that sets a PATH without OpenSSH's programs: the server is started before."""
    with monkeypatch.context() as patch:
        yield lambda: patch.setenv("PATH", str(tmp_path))


def test_configuration_without_ssh_program(server: SshServer, tmp_path: Path, hide_ssh: Callable[[], None]) -> None:
    hide_ssh()
    server.configure(
        "Host gpu*\n  HostName 127.0.0.1\n  Port {port}\n  IdentityFile {dir}/user_key\n"
        "  UserKnownHostsFile {dir}/known_hosts\n"
    )
    machine = reached(server, "gpu7")
    assert machine.run(["true"]).returncode == 0
    machine.close()
    found = settings(tmp_path, "Host gpu7\n  HostName h\n  User me\n  ProxyJump a,b\n  IdentityAgent none\n")
    assert (found.address, found.jumps, found.identity_agent) == ("me@h:22", ("a", "b"), None)


@pytest.mark.parametrize(
    "line", ["Include more", "Match tagged a", "Host *\n  Include more", "Match all\nMatch version x"]
)
def test_options_that_need_the_ssh_program_are_named(tmp_path: Path, hide_ssh: Callable[[], None], line: str) -> None:
    """The parser of paramiko ignores Include, and takes a criterion that it does not know for true."""
    hide_ssh()
    keyword = line.splitlines()[-1].split()
    name = "Include" if "Include" in keyword else " ".join(keyword[:2])
    with pytest.raises(UsageError, match=f"{name} needs the ssh program here"):
        settings(tmp_path, f"{line}\n  User other\nHost gpu7\n  HostName h\n")


def test_configuration_error_reports_line(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"config: ?line 2") as refused:
        settings(tmp_path, "Host gpu7\n  NoSuchWord yes\n")
    assert "hosts.gpu.ssh_config" in refused.value.hint


@pytest.mark.parametrize("field", ["identity_file", "ssh_config", "known_hosts"])
def test_relative_paths_are_refused(field: str) -> None:
    config = SshHostConfig(address="gpu", **{field: "keys/id"})  # type: ignore[arg-type]
    with pytest.raises(UsageError, match=f"hosts.gpu.{field} 'keys/id' is relative"):
        open_host("gpu", config).connect()


@pytest.mark.parametrize(
    "address",
    ["", "-oProxyCommand=x", "a b", "a;b", "$(x)", "me;x@gpu", "-l@gpu", "gpu:port", "gpu:123456", "a\nb", "`x`@gpu"],
)
def test_address_with_shell_characters_is_refused(tmp_path: Path, address: str) -> None:
    with pytest.raises(UsageError):
        settings(tmp_path, f"Host *\n  ProxyCommand touch {tmp_path}/canary %h %r\n", address)
    assert not (tmp_path / "canary").exists()
