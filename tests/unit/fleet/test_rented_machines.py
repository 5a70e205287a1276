"""Machines of SkyPilot and dstack, from the files that their programs write."""

from __future__ import annotations

from pathlib import Path

import pytest

from midstream.fleet.fleet_file import parse_fleet
from midstream.fleet.initial_fleet_file import fleet_from_ssh_config
from midstream.fleet.rented_machines import rented_machines, with_rented
from midstream.hosts.ssh.settings import resolve_jump

# As SkyPilot 0.14.1 (`SSHConfigHelper.add_cluster`) and dstack 0.22.5 (`update_ssh_config`) write them.
SKY_NODE = """\
# Added by sky (use `sky stop/down train` to remove)
Host {name}
  HostName {address}
  User gcpuser
  IdentityFile ~/.sky/generated/ssh-keys/train.key
  IdentitiesOnly yes
  StrictHostKeyChecking no
  UserKnownHostsFile=/dev/null
  GlobalKnownHostsFile=/dev/null
  Port 22
  SetEnv SKYPILOT_CLUSTER_NAME=train-1234

"""
DSTACK = """\
Host finetune-host
    HostName 203.0.113.9
    Port 22
    User ubuntu
    IdentityFile ~/.dstack/ssh/id_rsa
    IdentitiesOnly yes
    StrictHostKeyChecking no
    UserKnownHostsFile /dev/null
Host finetune
    HostName localhost
    Port 10022
    User root
    IdentityFile ~/.dstack/ssh/id_rsa
    IdentitiesOnly yes
    StrictHostKeyChecking no
    UserKnownHostsFile /dev/null
    ProxyJump finetune-host
"""


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("MIDSTREAM_STATE", str(tmp_path / "state"))
    for directory in (".sky/ssh", ".dstack/ssh", ".ssh"):
        (tmp_path / directory).mkdir(parents=True)
    nodes = [("train", "203.0.113.2"), ("train-worker10", "203.0.113.4"), ("train-worker1", "203.0.113.3")]
    (tmp_path / ".sky/ssh/train").write_text(
        "".join(SKY_NODE.format(name=name, address=where) for name, where in nodes)
    )
    (tmp_path / ".sky/ssh/single").write_text(SKY_NODE.format(name="single", address="203.0.113.7"))
    (tmp_path / ".sky/ssh/broken").write_text('Host "broken\n')
    (tmp_path / ".dstack/ssh/config").write_text(DSTACK)
    return tmp_path


def test_clusters_are_found_by_name(home: Path) -> None:
    found = rented_machines()
    assert {name: (each.by, each.hosts) for name, each in found.items()} == {
        "train": ("SkyPilot", ("train", "train-worker1", "train-worker10")),
        "single": ("SkyPilot", ("single",)),
        "finetune": ("dstack", ("finetune",)),
    }


def test_nothing_is_found_without_the_programs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    assert rented_machines() == {}


def test_named_cluster_becomes_target(home: Path) -> None:
    fleet = with_rented(parse_fleet("hosts: {here: {type: local}}", "fleet.yaml"), ["train", "here", "nobody"])
    assert fleet.target("train").hosts == ("train-worker0", "train-worker1", "train-worker10")
    first = fleet.hosts["train-worker0"]
    assert (first.address, first.ssh_config) == ("train", str(home / ".sky/ssh/train"))  # type: ignore[attr-defined]
    assert first.known_hosts == str(home / "state/known_hosts/skypilot-train")  # type: ignore[attr-defined]
    assert parse_fleet(fleet.text).hosts == fleet.hosts, "its text has the same hosts"
    assert "single" not in fleet.target_names, "machines that nobody named stay out"
    one = with_rented(fleet, ["single", "finetune"])
    assert one.target("single").hosts == ("single",)
    assert one.hosts["finetune"].ssh_config == str(home / ".dstack/ssh/config")  # type: ignore[attr-defined]


def test_target_of_fleet_file_wins(home: Path) -> None:
    fleet = parse_fleet("hosts: {train: {type: local}}")
    assert with_rented(fleet, ["train"]) is fleet


def test_initial_fleet_file_keeps_their_host_keys(home: Path) -> None:
    (home / ".ssh/config").write_text("Include ~/.sky/ssh/train\nInclude ~/.dstack/ssh/config\nHost lab\n  User me\n")
    fleet = parse_fleet(fleet_from_ssh_config(home / ".ssh/config"))
    assert fleet.hosts["train"].known_hosts == str(home / "state/known_hosts/skypilot-train")  # type: ignore[attr-defined]
    assert fleet.hosts["finetune"].known_hosts == str(home / "state/known_hosts/dstack-finetune")  # type: ignore[attr-defined]
    assert fleet.hosts["lab"].known_hosts is None  # type: ignore[attr-defined]


def test_jump_host_of_dstack_has_a_key_file_of_its_own(home: Path) -> None:
    jump = resolve_jump("finetune", "finetune-host", str(home / ".dstack/ssh/config"))
    assert jump.known_hosts[0] == str(home / "state/known_hosts/dstack-finetune-host")
    (home / ".ssh/config").write_text("Host other\n  HostName 203.0.113.1\n")
    assert resolve_jump("a", "other", str(home / ".ssh/config")).known_hosts[0].endswith(".ssh/known_hosts")
