"""Memory of what was seen: an owner whose disk shows less starts nothing without consent."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from midstream.fleet.fleet_file import load_fleet
from midstream.hosts.host_pool import HostPool
from midstream.launch.launch_ownership import sign_import
from midstream.ownership import memory
from midstream_core import records
from support.local_fleet import Fleet, stopped_run


@pytest.mark.parametrize("look", [("--status",), ("--checkpoints", "solo"), ("--metrics", "solo")])
def test_newest_step_that_was_seen_is_remembered(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], look: tuple[str, ...]
) -> None:
    fleet = Fleet(tmp_path, capsys, "here", "there")
    run = stopped_run(fleet.roots["here"], "solo")
    hosts = HostPool(load_fleet(fleet.file))
    try:
        sign_import(hosts.get("here"), "solo")
    finally:
        hosts.close()
    newer = run.checkpoint(12)
    assert fleet(*look)[0] == 0
    found = memory.recall("solo")
    assert found is not None
    assert (found.step, found.epoch, found.host) == (12, 1, "here")
    written = memory.memory_file("solo").stat().st_mtime_ns
    assert fleet(*look)[0] == 0
    assert memory.memory_file("solo").stat().st_mtime_ns == written, "nothing new was seen"
    shutil.rmtree(Path(run.paths.checkpoints) / newer)  # as a restored disk
    (tmp_path / "config.yaml").write_text(Path(run.paths.config).read_text())
    line = fleet.refused("--launch", str(tmp_path / "config.yaml"), "--on", "here", "--run-id", "solo")
    assert "here shows step 8 of solo, and this machine has seen step 12 on here" in line
    assert "--yes" in line


def test_older_checkpoint_than_the_sealed_one_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """On the old code a target whose disk was put back was started from before its seal, or again and again."""
    fleet = Fleet(tmp_path, capsys, "here", "there")
    run = stopped_run(fleet.roots["here"], "solo")
    records.Fence(1, "there").sealed(2, "here", 12).write(run.paths.fence)
    line = fleet.refused("--restart", "solo")
    assert "here shows step 8 of solo, and got it at step 12" in line
    shutil.rmtree(run.paths.checkpoints)
    code, _, line = fleet("--restart", "solo", "--yes")
    assert (code, "here has lost solo, which was migrated there at step 12" in line) == (2, True)
