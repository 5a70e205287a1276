"""Machines of SkyPilot and dstack, from the files that their programs write."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from midstream.fleet.fleet_file import parse_fleet
from midstream.fleet.initial_fleet_file import fleet_from_ssh_config
from midstream.fleet.rented_machines import rented_machines, with_rented
from midstream.hosts.ssh.resolved_options import resolve, resolve_jump
from support.paths import FIXTURES

# As dstack 0.22.5 (`update_ssh_config`) writes them.
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
    for directory in (".sky/generated/ssh", ".dstack/ssh", ".ssh"):
        (tmp_path / directory).mkdir(parents=True)
    for name in ("single", "train", "box", "pods"):
        text = (FIXTURES / "skypilot" / name).read_text()
        (tmp_path / ".sky/generated/ssh" / name).write_text(text.replace("{home}", str(tmp_path)))
    (tmp_path / ".dstack/ssh/config").write_text(DSTACK)
    return tmp_path


def test_clusters_are_found_by_name(home: Path) -> None:
    (home / ".sky/generated/ssh/broken").write_text('Host "broken\n')
    found = rented_machines()
    assert {name: (each.by, each.hosts) for name, each in found.items()} == {
        "train": ("SkyPilot", ("train", "train-worker1")),
        "single": ("SkyPilot", ("single",)),
        "box": ("SkyPilot", ("box", "box-worker1")),
        "pods": ("SkyPilot", ("pods", "pods-worker1")),
        "finetune": ("dstack", ("finetune",)),
    }


def test_files_of_older_releases_are_found(home: Path) -> None:
    """SkyPilot wrote ``~/.sky/ssh`` before 0.5.0; where both have a cluster, the present file counts."""
    (home / ".sky/ssh").mkdir()
    for name in ("train", "older"):
        (home / ".sky/ssh" / name).write_text(f"Host {name}\n  HostName 203.0.113.99\n")
    found = rented_machines()
    assert found["older"].file == home / ".sky/ssh/older"
    assert found["train"].file == home / ".sky/generated/ssh/train"


def test_workers_are_in_the_order_of_their_numbers(home: Path) -> None:
    lines = "".join(f"Host many{end}\n  HostName 203.0.113.9\n" for end in ("", "-worker10", "-worker1", "-worker2"))
    (home / ".sky/generated/ssh/many").write_text(lines)
    assert rented_machines()["many"].hosts == ("many", "many-worker1", "many-worker2", "many-worker10")


@pytest.mark.parametrize("cluster", ["box", "pods"])
def test_machines_of_one_address_have_files_of_their_own(home: Path, cluster: str) -> None:
    fleet = with_rented(parse_fleet("hosts: {here: {type: local}}"), [cluster])
    found = [resolve(name, fleet.hosts[name]) for name in fleet.target(cluster).hosts]  # type: ignore[arg-type]
    assert len({each.known_as for each in found}) == 1
    assert len({each.known_hosts[0] for each in found}) == len(found) == 2


@pytest.mark.parametrize("included", [True, False])
def test_options_of_the_complete_configuration_apply(home: Path, included: bool) -> None:
    text = (FIXTURES / "skypilot/ssh_config").read_text() if included else ""
    (home / ".ssh/config").write_text(f"{text}\nHost train*\n  ProxyJump bastion\n  ConnectTimeout 40\n  User nobody\n")
    fleet = with_rented(parse_fleet("hosts: {here: {type: local}}"), ["train"])
    found = resolve("train-worker1", fleet.hosts["train-worker1"])  # type: ignore[arg-type]
    assert (found.address, found.jumps, found.connect_timeout) == ("gcpuser@203.0.113.3:22", ("bastion",), 40.0)
    words = ["ssh", *found.config_words, *found.host_key_words, "-G", "train-worker1"]
    printed = subprocess.run(words, capture_output=True, text=True, check=True).stdout.splitlines()
    assert {"proxyjump bastion", "user gcpuser", f"userknownhostsfile {found.known_hosts[0]}"} <= set(printed)


def test_nothing_is_found_without_the_programs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    assert rented_machines() == {}


def test_named_cluster_becomes_target(home: Path) -> None:
    fleet = with_rented(parse_fleet("hosts: {here: {type: local}}", "fleet.yaml"), ["train", "here", "nobody"])
    assert fleet.target("train").hosts == ("train-worker0", "train-worker1")
    first = fleet.hosts["train-worker0"]
    assert (first.address, first.ssh_config) == ("train", str(home / ".sky/generated/ssh/train"))  # type: ignore[attr-defined]
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
    (home / ".ssh/config").write_text(
        "Include ~/.sky/generated/ssh/*\nInclude ~/.dstack/ssh/config\nHost lab\n  User me\n"
    )
    fleet = parse_fleet(fleet_from_ssh_config(home / ".ssh/config"))
    assert fleet.hosts["train"].known_hosts == str(home / "state/known_hosts/skypilot-train")  # type: ignore[attr-defined]
    assert fleet.hosts["finetune"].known_hosts == str(home / "state/known_hosts/dstack-finetune")  # type: ignore[attr-defined]
    assert fleet.hosts["lab"].known_hosts is None  # type: ignore[attr-defined]


def test_jump_host_of_dstack_has_a_key_file_of_its_own(home: Path) -> None:
    jump = resolve_jump("finetune", "finetune-host", str(home / ".dstack/ssh/config"))
    assert jump.known_hosts[0] == str(home / "state/known_hosts/dstack-finetune-host")
    (home / ".ssh/config").write_text("Host other\n  HostName 203.0.113.1\n")
    assert resolve_jump("a", "other", str(home / ".ssh/config")).known_hosts[0].endswith(".ssh/known_hosts")
