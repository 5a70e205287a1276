"""Repair of a run whose owner is damaged, claimed or not proven."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from midstream.fleet.fleet import Fleet as FleetConfig
from midstream.fleet.fleet_file import load_fleet
from midstream.hosts.host_pool import HostPool
from midstream.launch.launch_ownership import sign_import
from midstream.ownership import memory, operator_key, signed_chain
from midstream_core import records
from support.local_fleet import Fleet, stopped_run
from support.run_directory import RunDirectory


@pytest.fixture
def fleet(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Fleet:
    monkeypatch.setenv("MIDSTREAM_STATE", str(tmp_path / "state"))
    return Fleet(tmp_path, capsys, "here", "there")


@pytest.fixture
def run(fleet: Fleet) -> RunDirectory:
    """Create a run that stopped at step 8 on ``here``, which its fence names."""
    return stopped_run(fleet.roots["here"], "solo")


def sign(fleet: Fleet, host: str = "here") -> None:
    """Sign the first record of the run, as a launch does."""
    config: FleetConfig = load_fleet(fleet.file)
    hosts = HostPool(config)
    try:
        sign_import(hosts.get(host), "solo")
    finally:
        hosts.close()


def hostile(fleet: Fleet) -> RunDirectory:
    """Create a copy on ``there`` that shows the run under ownership 9, itself as the owner."""
    claimed = stopped_run(fleet.roots["there"], "solo")
    claimed.fence(9, "there", 3, [records.Seal(8, 3).to_json()])
    claimed.lineage({"attempt": 1, "epoch": 9, "target": "there"})
    return claimed


@pytest.mark.parametrize("signed", [True, False])
def test_fence_of_a_claim_is_never_written(fleet: Fleet, run: RunDirectory, signed: bool) -> None:
    """On the old code the hostile's fence of ownership 9 replaced the honest one, whose engine then ended."""
    if signed:
        sign(fleet)
    honest = records.Fence.read(run.paths.fence)
    Path(run.paths.fence).write_bytes(b"{")
    hostile(fleet)
    [written] = fleet.repaired("solo", "--on", "here")
    assert written["file"] == "fence.json"
    assert records.Fence.read(run.paths.fence) == honest


def test_damaged_fence_of_a_claim_blocks_nothing(fleet: Fleet, run: RunDirectory) -> None:
    sign(fleet)
    Path(hostile(fleet).paths.fence).write_bytes(b"{")
    code, out, err = fleet("--check", "solo")
    assert "Damaged" not in err, err
    code, out, _ = fleet("--status")
    assert code == 0
    assert "here" in out
    code, _, err = fleet("--stop", "solo")
    assert (code, err.strip()) == (
        2,
        "midstream: run solo is not running (stopped on here) (midstream --status shows it)",
    )


def test_status_shows_a_claim_in_the_row_of_its_host(fleet: Fleet, run: RunDirectory) -> None:
    sign(fleet)
    hostile(fleet)
    code, out, _ = fleet("--status")
    rows = {line.split()[1]: line for line in out.splitlines() if line.startswith("solo ")}
    assert code == 0
    assert "(claim)" in rows["there"]
    assert "here has it by a signed record (ownership 1)" in rows["there"]
    assert "(claim)" not in rows["here"]
    assert "(former copy)" not in rows["here"]


def test_lost_records_of_the_owner_are_restored_from_memory(fleet: Fleet, run: RunDirectory) -> None:
    sign(fleet)
    text = Path(run.paths.ownership).read_bytes()
    os.unlink(run.paths.ownership)
    line = fleet.refused("--launch", str(run.paths.config), "--on", "here", "--run-id", "solo")
    assert "it has no signed ownership record: here has it by a signed record (ownership 1)" in line
    [written] = fleet.repaired("solo")
    assert (written["host"], written["file"]) == ("here", "ownership.json")
    chain = records.OwnershipChain.read(run.paths.ownership)
    assert chain.to_json() == records.parse_json(text, "before")


def test_run_without_records_is_adopted_with_one_question(fleet: Fleet, run: RunDirectory) -> None:
    line = fleet.refused("--launch", str(run.paths.config), "--on", "here", "--run-id", "solo")
    assert "solo has no signed record of its owner" in line
    code, out, err = fleet("--repair", "solo", "--on", "here")
    assert (code, "would sign, once you agree" in out) == (0, True), err
    assert not os.path.exists(run.paths.ownership), "nothing is signed before the user agrees"
    assert memory.recall("solo") is None
    fleet.repaired("solo", "--on", "here")
    chain = records.OwnershipChain.read(run.paths.ownership)
    assert (chain.head.owner, chain.head.epoch, len(chain.records)) == ("here", 1, 1)
    assert "adopted by name" in chain.head.consent
    assert records.Fence.read(run.paths.fence) == records.first_fence("here")
    code, out, _ = fleet("--repair", "solo", "--on", "here")
    assert "no record of solo is damaged" in out


def test_claim_is_adopted_by_name_and_supersedes_the_chain(fleet: Fleet, run: RunDirectory) -> None:
    """The signed owner is lost for good: its copy was removed, and the former host has the last checkpoint."""
    sign(fleet)
    chain = records.OwnershipChain.read(run.paths.ownership)
    moved = signed_chain.next_chain(chain, epoch=2, owner="there", step=8, migration="m")
    memory.remember(moved)
    before = records.Fence.read(run.paths.fence)
    code, out, err = fleet("--repair", "solo", "--on", "here")
    assert code == 0, err
    assert "later steps of other hosts are given up" in out
    assert records.Fence.read(run.paths.fence) == before
    [written] = fleet.repaired("solo", "--on", "here")
    assert written["kept"].startswith("ownership.json.damaged-")
    fence, adopted = records.Fence.read(run.paths.fence), records.OwnershipChain.read(run.paths.ownership)
    assert (fence.epoch, fence.owner, fence.sealed_step) == (3, "here", 8)
    assert (adopted.head.epoch, adopted.head.owner, len(adopted.records)) == (3, "here", 1)
    remembered = memory.recall("solo")
    assert remembered is not None
    assert remembered.chain == adopted
    code, out, err = fleet("--repair", "solo", "--on", "here")
    assert "no record of solo is damaged" in out, err


def test_run_of_an_unnamed_operator_is_refused(
    fleet: Fleet, run: RunDirectory, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sign(fleet)
    ann = operator_key.public_key()
    monkeypatch.setenv("MIDSTREAM_STATE", str(tmp_path / "state of ben"))
    signed_chain.first_chain("other", "here", records.first_fence("here"))  # ben has a key of his own
    for command in (("--migrate", "solo", "--to", "there", "--yes"), ("--launch", run.paths.config, "--on", "here")):
        code, _, err = fleet(*command, *(("--run-id", "solo") if command[0] == "--launch" else ()))
        assert code == 2, err
        assert "is signed by an operator that the fleet file does not name" in err
        assert "midstream --repair solo --on here adopts it" in err
    fleet.file.write_text(fleet.file.read_text() + f"operators: [{ann} ann]\n")
    code, out, _ = fleet("--status")
    assert "(claim)" not in out
    code, out, err = fleet("--migrate", "solo", "--to", "there", "--dry-run")
    assert "signed" not in out + err
