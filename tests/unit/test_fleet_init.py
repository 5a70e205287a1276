"""`midstream --init`: the fleet file that a person's SSH configuration becomes."""

from __future__ import annotations

from pathlib import Path

import pytest

from midstream.errors import UsageError
from midstream.fleet.first_file import fleet_from_ssh_config
from midstream.fleet.fleet import Fleet, LocalHost, SshHost
from midstream.fleet.fleet_file import parse_fleet


@pytest.fixture
def ssh(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty ~/.ssh."""
    monkeypatch.setenv("HOME", str(tmp_path))
    directory = tmp_path / ".ssh"
    directory.mkdir()
    return directory


def fleet(ssh: Path, text: str) -> Fleet:
    (ssh / "config").write_text(text)
    return parse_fleet(fleet_from_ssh_config(ssh / "config"), "written.yaml")


def addresses(found: Fleet) -> dict[str, str]:
    return {name: host.address for name, host in found.hosts.items() if isinstance(host, SshHost)}


def test_without_a_configuration_there_is_this_machine_alone(ssh: Path):
    found = parse_fleet(fleet_from_ssh_config(ssh / "config"), "written.yaml")
    assert list(found.hosts) == ["here"]
    assert isinstance(found.hosts["here"], LocalHost)


def test_every_concrete_name_becomes_a_host_once_in_order(ssh: Path):
    found = fleet(ssh, "Host gpu2 gpu1\n  HostName 10.0.0.1\nHost gpu1\n  User me\nHost=late\n\tPort 22\n")
    assert list(found.hosts) == ["here", "gpu2", "gpu1", "late"]
    assert addresses(found) == {"gpu2": "gpu2", "gpu1": "gpu1", "late": "late"}


def test_patterns_negations_and_match_blocks_are_no_hosts(ssh: Path):
    text = "Host *\n  User me\nHost gpu? !gpu9 *.lab real\n  Port 1\nMatch host other\n  User you\n# Host commented\n"
    assert list(fleet(ssh, text).hosts) == ["here", "real"]


@pytest.mark.parametrize("name", ["yes", "null", "1e3", "0x1f", "12_30", "007", "~", "a'b", "ü"])
def test_names_that_yaml_would_read_as_something_else_stay_names(ssh: Path, name: str):
    assert addresses(fleet(ssh, f'Host "{name}"\n')) == {name: name}


def test_a_name_with_a_space_is_one_name(ssh: Path):
    assert addresses(fleet(ssh, 'Host "lab box" other # both\n')) == {"lab box": "lab box", "other": "other"}


def test_includes_are_followed_where_they_stand_and_their_hosts_name_their_file(ssh: Path):
    (ssh / "conf.d").mkdir()
    (ssh / "conf.d" / "lab.conf").write_text("Host inner\n  HostName 10.0.0.2\nInclude deeper\n")
    (ssh / "deeper").write_text("Host deepest\n")
    found = fleet(ssh, "Include conf.d/*.conf missing/*\nHost outer inner\n")
    assert list(found.hosts) == ["here", "inner", "deepest", "outer"]
    inner, outer = found.hosts["inner"], found.hosts["outer"]
    assert isinstance(inner, SshHost)
    assert inner.ssh_config == str(ssh / "conf.d" / "lab.conf")
    assert isinstance(outer, SshHost)
    assert outer.ssh_config == "~/.ssh/config"


def test_an_included_host_is_resolved_as_its_file_says(ssh: Path):
    from midstream.hosts.ssh.settings import resolve

    (ssh / "lab").write_text("Host inner\n  HostName 10.0.0.2\n  Port 2200\n  User me\n")
    config = fleet(ssh, "Include lab\n").hosts["inner"]
    assert isinstance(config, SshHost)
    assert resolve("inner", config).address == "me@10.0.0.2:2200"


def test_a_configuration_that_includes_itself_is_read_to_an_end(ssh: Path):
    assert list(fleet(ssh, "Include config\nHost one\n").hosts) == ["here", "one"]


def test_code_forges_and_names_that_are_no_address_are_left_out_with_the_reason(ssh: Path):
    (ssh / "config").write_text("Host forge\n  User git\nHost fe80::1 me@there\nHost gpu\n  User me\n")
    text = fleet_from_ssh_config(ssh / "config")
    assert list(parse_fleet(text).hosts) == ["here", "gpu"]
    assert "# forge: logs in as git" in text
    assert "# fe80::1: " in text
    assert "# me@there: " in text


def test_a_host_called_here_gets_another_name_and_keeps_its_address(ssh: Path):
    assert addresses(fleet(ssh, "Host here here-ssh\n")) == {"here-ssh-2": "here", "here-ssh": "here-ssh"}


def test_an_open_quote_is_named_with_file_and_line(ssh: Path):
    (ssh / "config").write_text('Host fine\nHost "open\n')
    with pytest.raises(UsageError, match=r"config:2: No closing quotation \(mend the quotes there\)"):
        fleet_from_ssh_config(ssh / "config")


def test_a_configuration_that_cannot_be_read_is_named(ssh: Path):
    (ssh / "config").mkdir()
    with pytest.raises(UsageError, match=r"config cannot be read: Is a directory"):
        fleet_from_ssh_config(ssh / "config")
