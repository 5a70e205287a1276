"""A bucket's fence and checkpoints prove no owner: beyond the signed records they can only say no."""

from __future__ import annotations

from pathlib import Path

import pytest

from midstream.fleet.fleet_file import load_fleet
from midstream.hosts.host_pool import HostPool
from midstream.launch.launch_ownership import sign_import
from midstream.migrate.checkpoint_store import checkpoint_store_of
from midstream.ownership import memory
from midstream_core import records
from midstream_core.attempt import start_number
from midstream_core.attempt.save_fence import FenceRejectedError
from midstream_core.records.fence import LAST
from midstream_host.runs import run_state
from simulators.object_stores.bucket import BucketServer
from support.local_fleet import CONFIG, Fleet, stopped_run
from support.ownership.run_bucket import STORE, put_fence, to_bucket
from support.run_directory import RunDirectory


@pytest.fixture
def fleet(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Fleet:
    monkeypatch.setenv("MIDSTREAM_STATE", str(tmp_path / "state"))
    return Fleet(tmp_path, capsys, "here", "there")


@pytest.fixture
def run(fleet: Fleet, bucket: BucketServer) -> RunDirectory:
    """Create a signed run that stopped on ``here``, with steps 4 and 8 in the bucket."""
    run = stopped_run(fleet.roots["here"], "solo")
    older = Path(run.paths.checkpoint(run.checkpoint(4)), records.TRAIN)
    older.write_bytes(Path(run.paths.checkpoint("step-8-a001"), records.TRAIN).read_bytes())
    hosts = HostPool(load_fleet(fleet.file))
    try:
        sign_import(hosts.get("here"), "solo")
    finally:
        hosts.close()
    to_bucket(bucket, run.paths)
    return run


def accepted(fleet: Fleet) -> list[int]:
    """Return the steps of the checkpoints in the bucket that count for ``here``."""
    config = load_fleet(fleet.file)
    hosts = HostPool(config)
    try:
        host = hosts.get("here")
        described = host.call(run_state.describe)(root=host.root, run_id="solo")
        found = checkpoint_store_of(config, host, "solo", STORE).checkpoints(described)
        return [checkpoint.step for checkpoint in found if checkpoint.accepted]
    finally:
        hosts.close()


def claimed(bucket: BucketServer, run: RunDirectory, epoch: int) -> None:
    """Write a checkpoint of an epoch into the bucket, far ahead of the run."""
    run.paths = records.RunPaths(run.paths.root, "solo")
    Path(run.paths.checkpoints).mkdir(exist_ok=True)
    run.checkpoint(5000, 7, epoch)
    to_bucket(bucket, run.paths)


def test_claim_of_a_bucket_makes_no_checkpoint_count(fleet: Fleet, run: RunDirectory, bucket: BucketServer) -> None:
    assert accepted(fleet) == [4, 8]
    claimed(bucket, run, 9)
    assert accepted(fleet) == [4, 8]
    put_fence(bucket, "solo", records.Fence(9, "there", 4, [records.Seal(8, 4).to_json()]))
    assert accepted(fleet) == [4], "it may remember a seal that a restored host does not"


@pytest.mark.parametrize("fence", [True, False])
def test_bucket_ahead_of_all_records_is_named(
    fleet: Fleet, run: RunDirectory, bucket: BucketServer, fence: bool
) -> None:
    """Operator, source and target were put back to before a hand-over; the bucket was not."""
    claimed(bucket, run, 2)
    if fence:
        put_fence(bucket, "solo", records.Fence(1, "here").sealed(2, "there", 8))
    shown = "shows ownership 2 of there" if fence else "has step-5000-a007 of ownership 2"
    line = fleet.refused("--launch", run.paths.config, "--on", "here", "--run-id", "solo")
    assert f"{STORE}/runs/solo {shown} without a signed record" in line
    line = fleet.refused("--migrate", "solo", "--to", "there", "--mode", "cold", "--dry-run")
    assert shown in line
    assert "--repair solo --on here" in line
    [written] = fleet.repaired("solo", "--on", "here")
    assert "ownership 2 without a signed record" in written["wrong"]
    own = records.Fence.read(run.paths.fence)
    assert (own.epoch, own.owner, own.sealed_step) == (3, "here", 8)
    assert accepted(fleet) == [4, 8]
    found = memory.recall("solo")
    assert found is not None
    assert (found.chain.head.epoch, found.step) == (3, 8)
    code, out, err = fleet("--migrate", "solo", "--to", "there", "--mode", "cold", "--dry-run", "--json")
    assert '"event": "plan"' in out, (code, err)


@pytest.mark.parametrize("named_by", ["fleet file", "config", "flag"])
def test_launch_beside_a_run_in_its_bucket_needs_consent(
    fleet: Fleet, run: RunDirectory, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, named_by: str
) -> None:
    """An operator without memory, with another fleet file: the bucket alone shows that the run exists."""
    monkeypatch.setenv("MIDSTREAM_STATE", str(tmp_path / "other"))
    store = f", store: {STORE}" if named_by == "fleet file" else ""
    fleet.file.write_text(f"hosts:\n  there: {{type: local, devices: 2, root: {fleet.roots['there']}{store}}}\n")
    config = tmp_path / "config.yaml"
    config.write_text(Path(run.paths.config).read_text() if named_by == "config" else CONFIG)
    flags = ("--", "--trainer.checkpointer.base_path", STORE) if named_by == "flag" else ()
    line = fleet.refused("--launch", str(config), "--on", "there", "--run-id", "solo", *flags)
    assert f"{STORE}/runs/solo has step 8 of a run of this name" in line
    assert "here owns it under ownership 1" in line


def test_older_bucket_is_no_claim_and_names_lost_steps(fleet: Fleet, run: RunDirectory, bucket: BucketServer) -> None:
    """The bucket alone was put back: its fence is older, and checkpoints that were seen are missing."""
    chain = records.OwnershipChain.read(run.paths.ownership)
    memory.remember(chain, step=8, epoch=1, host="here")
    for name in list(bucket.blobs("runs", "ours/runs/solo/checkpoints/step-8-a001/")):
        bucket.delete("runs", name, {})
    assert accepted(fleet) == [4]
    line = fleet.refused("--launch", run.paths.config, "--on", "here", "--run-id", "solo")
    assert "shows step 4 of solo, and this machine has seen step 8" in line
    code, out, err = fleet("--migrate", "solo", "--to", "there", "--mode", "cold", "--dry-run")
    assert "this machine has seen step 8 on here: steps 5 to 8 are given up" in out, (code, err)
    assert "4 steps after the chosen checkpoint are lost" in out, (code, err)


@pytest.mark.parametrize("shown", ["fence", "checkpoint", "own fence"])
def test_last_epoch_of_a_claim_damages_no_record(
    fleet: Fleet, run: RunDirectory, bucket: BucketServer, shown: str
) -> None:
    """On the old code the repair that the hint names made the memory of this machine unreadable."""
    last = 2**63 - 1
    false = records.Fence(last, "here", 8, [records.Seal(last - 1, 8).to_json()])
    if shown == "fence":
        put_fence(bucket, "solo", false)
    elif shown == "checkpoint":
        claimed(bucket, run, last)
    else:
        false.write(run.paths.fence)
    code, _, err = fleet("--repair", "solo", "--on", "here", "--yes")
    assert code == 3, err
    assert "is past the last one (999999999): a fence with it is damaged, or false; remove that record from" in err
    found = memory.recall("solo")
    assert found is not None
    assert (found.chain.head.owner, found.chain.head.epoch) == ("here", 1)
    if shown == "fence":
        assert fleet("--status")[0] == 0
        for start in (LAST - 1, last - 1):
            records.Fence(1, "here", start=start).write(run.paths.fence)
            with pytest.raises(FenceRejectedError, match=rf"start {start + 1} is (past )?the last one"):
                start_number.take(run.paths, 1, lambda _: None)
            assert records.Fence.read(run.paths.fence).start == start
