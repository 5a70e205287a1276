"""SLURM targets as candidates of a comparison: accelerators from the flags of sbatch."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from midstream.compare.candidates import Candidate, candidates
from midstream.errors import UsageError
from midstream.fleet.fleet import Fleet
from midstream.fleet.fleet_file import parse_fleet


def fleet_of(root: Path, *flags: str, devices: str = "null") -> Fleet:
    host = f"hosts:\n  login: {{type: local, root: {root}, devices: {devices}, price_per_hour: 4.0}}\n"
    return parse_fleet(f"{host}targets:\n  cluster: {{type: slurm, host: login, sbatch: {json.dumps(flags)}}}\n")


@pytest.mark.parametrize(
    ("flags", "topology"),
    [
        (["--nodes=1", "--gpus-per-node=h100:8"], "h100x8"),
        (["--nodes=2", "--gres=gpu:h100:8"], "h100x16"),
        (["-N1", "--gres=gpu:a100_80gb:4"], "a100-80x4"),
        (["--ntasks=4", "--gpus-per-task=nvidia_h200:1", "--nodes=1"], "h200x4"),
        (["--gpus=nvidia_a100-sxm4-40gb:2"], "a100-40x2"),
    ],
)
def test_allocation_is_what_its_flags_request(tmp_path: Path, flags: list[str], topology: str) -> None:
    [found] = candidates("cluster", fleet_of(tmp_path, *flags), None, {})
    assert (found.accelerators.topology, found.target, found.price) == (topology, "cluster", 4.0)


@pytest.mark.parametrize(
    ("flags", "problem", "hint"),
    [
        (["--nodes=1"], "its flags of sbatch request no GPUs", "--gpus-per-node=h100:8"),
        (["--nodes=1-4", "--gres=gpu:h100:8"], "--nodes=1-4 is not one number", "--nodes=2"),
        (["--nodes=1", "--gres=gpu:8"], "request 8 devices on 1 node, of no type", "--gpus-per-node=h100:8"),
        (["--gres=gpu:a100:8"], "A100s have 40 or 80 GB", "a100-40x8 or a100-80x8"),
        (["--nodes=2", "--gres=gpu:h100:2"], "4 devices (h100) on 2 nodes, and several nodes", "h100x8"),
        (["--gres=gpu:l4:2"], "2 devices (l4) on 1 node, for which there is no compiler", "h100x8"),
    ],
)
def test_allocation_that_is_not_known_says_why(tmp_path: Path, flags: list[str], problem: str, hint: str) -> None:
    fleet = fleet_of(tmp_path, *flags)
    with pytest.raises(UsageError) as found:
        candidates("cluster", fleet, None, {})
    assert found.value.message.startswith("--with cluster: ")
    assert problem in found.value.message
    assert hint in found.value.hint
    known, cluster = candidates("h100x8,cluster", fleet, None, {})
    assert isinstance(known, Candidate)
    assert problem in cluster.problem, "a row beside the others"


def test_allocation_of_virtual_devices_has_no_compiler(tmp_path: Path) -> None:
    fleet = fleet_of(tmp_path, "--nodes=2", devices="2")
    with pytest.raises(UsageError, match="4 devices \\(cpu\\) on 2 nodes, for which there is no compiler"):
        candidates("cluster", fleet, None, {})
