"""`--status` of hosts of which one does not answer."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from support.command_line import midstream
from support.run_directory import RunDirectory

PATIENCE = 60.0


def test_json_lines_of_a_host_do_not_wait_for_another(tmp_path: Path) -> None:
    run = RunDirectory(tmp_path / "root", "nano")
    run.fence(1)
    run.status(1, "training", 3)
    with socket.create_server(("127.0.0.1", 0)) as mute:  # accepts, and says nothing
        fleet = tmp_path / "fleet.yaml"
        fleet.write_text(
            f"hosts:\n  mute: {{type: ssh, address: '127.0.0.1:{mute.getsockname()[1]}'}}\n"
            f"  here: {{type: local, root: {tmp_path / 'root'}}}\n"
        )
        environment = {**os.environ, "HOME": str(tmp_path), "MIDSTREAM_STATE": str(tmp_path / "state")}
        command = [sys.executable, "-m", "midstream", "--fleet", str(fleet), "--status", "--json"]
        with subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True) as process:
            assert process.stdout is not None
            first = [json.loads(process.stdout.readline()) for _ in range(2)]
            assert [(each["event"], each.get("name", each.get("run"))) for each in first] == [
                ("host", "here"),
                ("run", "nano"),
            ]
            assert first[0]["link"] == "live"
            mute.close()
            rest, _ = process.communicate(timeout=PATIENCE)
        assert [(each["name"], each["link"]) for each in map(json.loads, rest.splitlines())] == [("mute", "down")]
        assert process.returncode == 0


@pytest.mark.parametrize(
    ("hosts", "line"),
    [
        ("{}", "the fleet file has no hosts"),
        ("{here: {type: local, root: ROOT}}", "no runs yet: midstream --launch"),
        (
            "{here: {type: local, root: ROOT}, far: {type: ssh, address: 127.0.0.1:1}}",
            "no runs on the hosts that answer; not answering: far",
        ),
    ],
)
def test_status_without_runs_says_what_is_known(hosts: str, line: str, tmp_path: Path) -> None:
    fleet = tmp_path / "fleet.yaml"
    fleet.write_text(f"hosts: {hosts.replace('ROOT', str(tmp_path / 'root'))}\n")
    assert midstream("--fleet", fleet, "--status").stdout.splitlines()[-1].startswith(line)


@pytest.mark.parametrize("flags", [[], ["--json"]])
def test_full_disk_below_the_output_is_one_line(tmp_path: Path, flags: list[str]) -> None:
    fleet = tmp_path / "fleet.yaml"
    fleet.write_text(f"hosts:\n  here: {{type: local, root: {tmp_path / 'root'}}}\n")
    environment = {**os.environ, "HOME": str(tmp_path), "MIDSTREAM_STATE": str(tmp_path / "state")}
    command = [sys.executable, "-m", "midstream", "--fleet", str(fleet), "--status", *flags]
    with open("/dev/full", "w") as full:
        done = subprocess.run(command, env=environment, stdout=full, stderr=subprocess.PIPE, text=True)
    assert done.stderr == "midstream: the output cannot be written: No space left on device (hint: free some)\n"
    assert done.returncode == 1
