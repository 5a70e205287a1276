"""`midstream --init`: the fleet file made from the user's SSH configuration."""

from __future__ import annotations

import stat
from pathlib import Path

import pytest

from midstream.errors import UsageError
from midstream.fleet.fleet import Fleet, LocalHostConfig, SshHostConfig
from midstream.fleet.fleet_file import load_fleet, parse_fleet
from midstream.fleet.initial_fleet_file import fleet_from_ssh_config
from midstream.fleet.ssh_config_hosts import add_hosts
from midstream.hosts.ssh.resolved_options import resolve


@pytest.fixture
def ssh(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Create an empty ~/.ssh."""
    monkeypatch.setenv("HOME", str(tmp_path))
    directory = tmp_path / ".ssh"
    directory.mkdir()
    return directory


def fleet(ssh: Path, text: str) -> Fleet:
    (ssh / "config").write_text(text)
    return parse_fleet(fleet_from_ssh_config(ssh / "config"), "written.yaml")


def addresses(found: Fleet) -> dict[str, str]:
    return {name: host.address for name, host in found.hosts.items() if isinstance(host, SshHostConfig)}


def test_without_ssh_config_only_this_machine_is_listed(ssh: Path) -> None:
    found = parse_fleet(fleet_from_ssh_config(ssh / "config"), "written.yaml")
    assert list(found.hosts) == ["here"]
    assert isinstance(found.hosts["here"], LocalHostConfig)


def test_each_concrete_name_becomes_one_host_in_order(ssh: Path) -> None:
    found = fleet(ssh, "Host gpu2 gpu1\n  HostName 10.0.0.1\nHost gpu1\n  User me\nHost=late\n\tPort 22\n")
    assert list(found.hosts) == ["here", "gpu2", "gpu1", "late"]
    assert addresses(found) == {"gpu2": "gpu2", "gpu1": "gpu1", "late": "late"}


def test_patterns_negations_and_match_blocks_are_skipped(ssh: Path) -> None:
    text = "Host *\n  User me\nHost gpu? !gpu9 *.lab real\n  Port 1\nMatch host other\n  User you\n# Host commented\n"
    assert list(fleet(ssh, text).hosts) == ["here", "real"]


@pytest.mark.parametrize("name", ["yes", "null", "1e3", "0x1f", "12_30", "007", "~", "a'b", "ü"])
def test_names_special_in_yaml_stay_strings(ssh: Path, name: str) -> None:
    assert addresses(fleet(ssh, f'Host "{name}"\n')) == {name: name}


def test_quoted_name_with_space_is_one_host(ssh: Path) -> None:
    assert addresses(fleet(ssh, 'Host "lab box" other # both\n')) == {"lab box": "lab box", "other": "other"}


def test_included_hosts_keep_the_complete_configuration(ssh: Path) -> None:
    (ssh / "conf.d").mkdir()
    (ssh / "conf.d" / "folder").mkdir()
    (ssh / "conf.d" / "lab.conf").write_text("Host inner\n  HostName 10.0.0.2\n  User them\nInclude deeper\n")
    (ssh / "deeper").write_text("Host deepest\n")
    found = fleet(ssh, "Include conf.d/* missing/*\nHost outer inner\nHost *\n  User me\n  Port 2200\n")
    assert list(found.hosts) == ["here", "inner", "deepest", "outer"]
    resolved = {name: resolve(name, host).address for name, host in found.hosts.items() if name != "here"}  # type: ignore[arg-type]
    assert resolved == {"inner": "them@10.0.0.2:2200", "deepest": "me@deepest:2200", "outer": "me@outer:2200"}


def test_entry_of_an_included_file_uses_all_files(ssh: Path) -> None:
    (ssh / "lab").write_text("Host inner\n  HostName 10.0.0.2\n")
    (ssh / "config").write_text("Include lab\nHost inner\n  Port 2200\n  User me\n")
    assert resolve("inner", SshHostConfig(address="inner", ssh_config=str(ssh / "lab"))).address == "me@10.0.0.2:2200"
    (ssh / "apart").write_text("Host inner\n  HostName 10.0.0.3\n  User root\n")
    assert resolve("inner", SshHostConfig(address="inner", ssh_config=str(ssh / "apart"))).address == "root@10.0.0.3:22"


def test_self_including_config_is_read_once(ssh: Path) -> None:
    assert list(fleet(ssh, "Include config\nHost one\n").hosts) == ["here", "one"]


def test_forges_and_invalid_names_are_skipped_with_reason(ssh: Path) -> None:
    (ssh / "config").write_text("Host forge\n  User git\nHost fe80::1 me@there\nHost gpu\n  User me\n")
    text = fleet_from_ssh_config(ssh / "config")
    assert list(parse_fleet(text).hosts) == ["here", "gpu"]
    assert "# forge: logs in as git" in text
    assert "# fe80::1: " in text
    assert "# me@there: " in text


def test_host_named_here_is_renamed_and_keeps_address(ssh: Path) -> None:
    assert addresses(fleet(ssh, "Host here here-ssh\n")) == {"here-ssh-2": "here", "here-ssh": "here-ssh"}


def test_open_quote_error_has_file_and_line(ssh: Path) -> None:
    (ssh / "config").write_text('Host fine\nHost "open\n')
    with pytest.raises(UsageError, match=r"config:2: No closing quotation \(correct the quotes there\)"):
        fleet_from_ssh_config(ssh / "config")


def test_unreadable_config_error_names_the_file(ssh: Path) -> None:
    (ssh / "config").mkdir()
    with pytest.raises(UsageError, match=r"config cannot be read: Is a directory"):
        fleet_from_ssh_config(ssh / "config")


def test_added_hosts_keep_link_and_mode_of_the_file(tmp_path: Path) -> None:
    """The fleet file is often a link into a repository of dotfiles, and only its owner may read it."""
    own, link = tmp_path / "dotfiles" / "fleet.yaml", tmp_path / "fleet.yaml"
    own.parent.mkdir()
    own.write_text("hosts:\n  here: {type: local}\n")
    own.chmod(0o600)
    link.symlink_to(own)
    add_hosts(link, ["  gpu: {type: ssh, address: gpu}"])
    assert link.is_symlink()
    assert list(load_fleet(own).hosts) == ["gpu", "here"]
    assert stat.S_IMODE(own.stat().st_mode) == 0o600
