"""A cluster of SkyPilot is a target under its own name; its host keys are checked, whatever its file says."""

from __future__ import annotations

import getpass
from pathlib import Path

import pytest

from simulators.sshd import Lab
from support.command_line import midstream

pytestmark = pytest.mark.system


def test_cluster_is_checked_under_its_name(lab: Lab, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    server = lab.host("train")
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("MIDSTREAM_STATE", str(tmp_path / "state"))
    file = tmp_path / ".sky/ssh/train"
    file.parent.mkdir(parents=True)
    file.write_text(
        "# Added by sky (use `sky stop/down train` to remove)\nHost train\n  HostName 127.0.0.1\n"
        f"  User {getpass.getuser()}\n  IdentityFile {server.directory / 'user_key'}\n  IdentitiesOnly yes\n"
        "  StrictHostKeyChecking no\n  UserKnownHostsFile=/dev/null\n  GlobalKnownHostsFile=/dev/null\n"
        f"  Port {server.port}\n"
    )
    fleet = lab.fleet_file()
    unknown = midstream("--fleet", fleet, "--check", "train")
    known_hosts = tmp_path / "state/known_hosts/skypilot-train"
    assert unknown.code != 0
    assert f">> {known_hosts}" in unknown.stderr + unknown.stdout, (unknown.stdout, unknown.stderr)
    known_hosts.write_text((server.directory / "known_hosts").read_text())
    checked = midstream("--fleet", fleet, "--check", "train", "--json")
    answers = [check for check in checked.of("check") if check["name"] == "answers"]
    assert [(check["host"], check["state"]) for check in answers] == [("train", "pass")], checked.stderr
    assert "train" not in fleet.read_text(), "the fleet file is not changed"
    wrong = midstream("--fleet", fleet, "--check", "trian")
    assert wrong.code == 2
