"""Hosts of fleet files that were read before."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from midstream.fleet.fleet import Fleet
from midstream.fleet.fleet_file import load_fleet
from midstream.watch import fleet_cache, known_fleets
from midstream.watch.known_fleets import fleets_file, hosts_of_file, remember_fleet

HOSTS = "hosts: {here: {type: local}, lab: {type: ssh, address: lab.example}}\n"
SLICE = "  pod: {type: tpu, project: research, zone: us-central2-b, name: pod}\n"


@pytest.fixture
def file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("MIDSTREAM_STATE", str(tmp_path / "state"))
    fleet = tmp_path / "fleet.yaml"
    fleet.write_text(HOSTS)
    return fleet


def test_hosts_of_a_file_that_was_read_are_known(file: Path) -> None:
    assert hosts_of_file(file) is None
    remember_fleet(load_fleet(file))
    assert hosts_of_file(file) == {"here": "local", "lab": "ssh"}
    assert list((hosts_of_file(file) or {}).values()) == ["local", "ssh"], "in the order of the file"
    assert hosts_of_file(file.with_name("other.yaml")) is None


def test_hosts_of_a_changed_file_are_unknown(file: Path) -> None:
    fleet = load_fleet(file)
    remember_fleet(fleet)
    file.write_text(HOSTS.replace("lab:", "den:"))
    assert hosts_of_file(file) is None
    remember_fleet(fleet)
    assert hosts_of_file(file) is None, "what was read is not what the file has now"
    remember_fleet(load_fleet(file))
    assert hosts_of_file(file) == {"here": "local", "den": "ssh"}


def test_hosts_read_by_another_version_are_unknown(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    remember_fleet(load_fleet(file))
    monkeypatch.setattr(known_fleets, "__version__", "9.9.9")
    assert hosts_of_file(file) is None


def test_hosts_of_a_fleet_with_slices_are_not_kept(file: Path) -> None:
    file.write_text(f"{HOSTS}targets:\n{SLICE}")
    fleet = load_fleet(file)
    assert fleet.has_slices
    remember_fleet(fleet)
    remember_fleet(Fleet())
    assert not fleets_file().exists()


@pytest.mark.parametrize(
    "damage", [b"", b"[]", b"\xff", b"[" * 5000, b'{"FILE": 3}', b'{"FILE": {"file": "STAMP", "hosts": [1]}}']
)
def test_damaged_file_counts_as_empty(file: Path, damage: bytes) -> None:
    fleet = load_fleet(file)
    remember_fleet(fleet)
    stamp = json.loads(fleets_file().read_text())[str(file)]["file"]
    text = damage.replace(b"FILE", os.fsencode(file)).replace(b'"STAMP"', json.dumps(stamp).encode())
    fleets_file().write_bytes(text)
    assert hosts_of_file(file) is None
    remember_fleet(fleet)
    assert hosts_of_file(file) == {"here": "local", "lab": "ssh"}


def test_last_read_fleets_are_kept(file: Path) -> None:
    files = [file.with_name(f"fleet{number}.yaml") for number in range(fleet_cache.FLEETS + 1)]
    for each in files:
        each.write_text(HOSTS)
        remember_fleet(load_fleet(each))
    assert [hosts_of_file(each) is None for each in files] == [True] + [False] * fleet_cache.FLEETS


def test_failed_write_leaves_no_file(file: Path) -> None:
    fleets_file().mkdir(parents=True)  # cannot be replaced by a file
    with pytest.raises(OSError, match="directory"):
        fleet_cache.write_entry(fleets_file(), file, {})
    assert list(fleets_file().parent.iterdir()) == [fleets_file()]
