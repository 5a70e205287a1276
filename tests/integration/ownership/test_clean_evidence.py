"""`--clean` removes only what no process can write, and no state that nothing replaces."""

from __future__ import annotations

import json
import os
import random
import time
from dataclasses import replace
from pathlib import Path

import pytest

from midstream.cli import main
from midstream.errors import Exit
from midstream_core import records
from simulators.object_stores.bucket import BucketServer
from support.checkpoints.trees import write_checkpoint
from support.run_directory import RunDirectory, dead_process

STORE = "gs://runs/ours"
HERE = "ours/runs/run/checkpoints"
HOUR = 3600.0
ELSEWHERE = records.ProcessIdentity("another-boot", 5, 5)


@pytest.fixture(autouse=True)
def _state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MIDSTREAM_STATE", str(tmp_path / "state"))


def put(bucket: BucketServer, name: str, data: bytes) -> None:
    """Store an object an hour ago."""
    blob = bucket.put("runs", f"{HERE}/{name}", data)
    bucket.buckets["runs"][blob.name] = replace(blob, updated=blob.updated - HOUR)


def host(tmp_path: Path, name: str) -> RunDirectory:
    """Create a host's copy of a run whose checkpoints are in the bucket."""
    run = RunDirectory(tmp_path / name)
    records.Store(STORE).write(run.paths.store_file)
    return run


def clean(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], *flags: str, unreachable: tuple[str, ...] = ()
) -> dict[str, tuple[str, bool]]:
    """Return what `--clean` keeps, and why; and what it has removed."""
    lines = ["hosts:"]
    for root in sorted(path for path in tmp_path.iterdir() if (path / "runs").is_dir()):
        how = "type: ssh, address: 127.0.0.1, port: 1, user: nobody" if root.name in unreachable else "type: local"
        lines.append(f'  {root.name}: {{{how}, root: "{root}"}}')
    file = tmp_path / "fleet.yaml"
    file.write_text("\n".join(lines) + "\n")
    capsys.readouterr()
    assert main(["--fleet", str(file), "--json", "--clean", *flags]) == Exit.DONE
    found = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    listed = [each for each in found if each["event"] == "leftover"]
    assert len({each["path"] for each in listed}) == len(listed), "a leftover of a bucket is listed once"
    return {each["path"].rpartition("/")[2]: (each["kept"], each["removed"]) for each in listed}


def aged(directory: Path) -> None:
    for path in [directory, *directory.rglob("*")]:
        os.utime(path, (time.time() - HOUR, time.time() - HOUR), follow_symlinks=False)


def test_former_owner_does_not_decide_for_a_bucket(
    tmp_path: Path, bucket: BucketServer, capsys: pytest.CaptureFixture[str]
) -> None:
    """The source has ended and has the bucket's URL; an engine of the target saves to it."""
    one, two = host(tmp_path, "one"), host(tmp_path, "two")
    for run in (one, two):
        run.status(1, records.STOPPED, 20, dead_process())
    two.status(2, records.TRAINING, 40)
    put(bucket, "step-40-a002/train.json", b"half")
    put(bucket, "step-24-a001/train.json", b"half")
    assert clean(tmp_path, capsys, "--yes") == {
        "step-40-a002": ("attempt 2 is running", False),
        "step-24-a001": ("", True),
    }
    kept = clean(tmp_path, capsys, "--yes", unreachable=("two",))["step-40-a002"]
    assert kept == ("two does not answer: a process there may be writing it", False)
    two.status(2, records.STOPPED, 40, dead_process())
    assert clean(tmp_path, capsys, "--yes") == {"step-40-a002": ("", True)}


def test_attempt_without_a_record_is_not_taken_as_ended(
    tmp_path: Path, bucket: BucketServer, capsys: pytest.CaptureFixture[str]
) -> None:
    """A disk that was put back to a moment before the attempt began has no record of it."""
    one = host(tmp_path, "one")
    one.status(1, records.STOPPED, 20, dead_process())
    put(bucket, "step-40-a002/train.json", b"half")
    found = clean(tmp_path, capsys, "--yes")
    assert found == {
        "step-40-a002": ("no host of the fleet has a record of attempt 2: it may be running elsewhere", False)
    }
    records.MigrationLock("m", 2, "two", time.time() + HOUR).write(one.paths.migration_lock)
    put(bucket, "step-24-a001/train.json", b"half")
    assert clean(tmp_path, capsys, "--yes")["step-24-a001"] == ("migration m may be copying to it", False)


def test_copied_status_is_no_proof_that_its_process_runs(
    tmp_path: Path, bucket: BucketServer, capsys: pytest.CaptureFixture[str]
) -> None:
    """The target has a copy of the source's status; the source's machine proves the end."""
    one, two = host(tmp_path, "one"), host(tmp_path, "two")
    two.status(1, records.TRAINING, 20, ELSEWHERE)
    put(bucket, "step-24-a001/train.json", b"half")
    assert "which alone can prove its end" in clean(tmp_path, capsys, "--yes")["step-24-a001"][0]
    one.status(1, records.TRAINING, 20, dead_process())
    assert clean(tmp_path, capsys, "--yes") == {"step-24-a001": ("", True)}


def test_only_complete_state_in_the_trash_of_a_bucket_stays(
    tmp_path: Path, bucket: BucketServer, capsys: pytest.CaptureFixture[str]
) -> None:
    one = host(tmp_path, "one")
    one.status(1, records.STOPPED, 20, dead_process())
    manifest = Path(one.paths.checkpoint(one.checkpoint(20)), records.MANIFEST).read_bytes()
    older = Path(one.paths.checkpoint(one.checkpoint(8)), records.MANIFEST).read_bytes()
    for path in Path(one.paths.checkpoints).iterdir():
        (path / records.MANIFEST).unlink()
        path.rmdir()
    put(bucket, f"step-8-a001/{records.MANIFEST}", older)
    put(bucket, f".trash-step-20-a001/{records.MANIFEST}", manifest)
    for name, data in (("a", b"x" * 40), ("b", b"xx")):
        put(bucket, f"step-20-a001/{name}", data)
    why = "it is complete, and no complete checkpoint of its step or later replaces it"
    assert clean(tmp_path, capsys, "--yes") == {
        "step-20-a001": (why, False), ".trash-step-20-a001": (why, False),
    }  # fmt: skip
    newer = json.loads(manifest) | {"step": 24}
    put(bucket, f"step-24-a001/{records.MANIFEST}", json.dumps(newer).encode())
    assert clean(tmp_path, capsys, "--yes") == {
        "step-20-a001": ("", True), ".trash-step-20-a001": ("", True),
    }  # fmt: skip


def trashed(run: RunDirectory, step: int) -> Path:
    """Write a complete checkpoint to the trash."""
    directory = Path(run.paths.checkpoints, f".trash-step-{step}-a001")
    write_checkpoint(directory, random.Random(1), size=9_000)
    manifest = records.Manifest.read(str(directory / records.MANIFEST))
    replace(manifest, run_id="run", step=step).write(str(directory / records.MANIFEST))
    return directory


def test_only_complete_state_in_the_trash_of_a_disk_stays(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = RunDirectory(tmp_path / "one")
    run.fence(1)
    run.status(1, records.STOPPED, 20, dead_process())
    run.checkpoint(8)
    trash = trashed(run, 20)
    run.checkpoint(20, complete=False)
    aged(tmp_path / "one")
    clean(tmp_path, capsys, "--yes")
    found = clean(tmp_path, capsys, "--yes")
    assert found[trash.name] == (
        "it is complete, and no complete checkpoint of its step or later replaces it", False,
    )  # fmt: skip
    assert (trash / records.MANIFEST).is_file()
    run.checkpoint(24)
    aged(tmp_path / "one")
    assert clean(tmp_path, capsys, "--yes")[trash.name] == ("", True)
    assert not trash.exists()


def test_old_heartbeat_of_another_machine_proves_no_end(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """On a shared root, of a process on another machine, which may be suspended."""
    run = RunDirectory(tmp_path / "one")
    run.fence(1)
    run.status(1, records.TRAINING, 20, ELSEWHERE)
    status = records.Status.read(run.attempt(1).status())
    replace(status, heartbeat=time.time() - HOUR, start=1, host="node-7").write(run.attempt(1).status())
    partial = run.checkpoint(24, complete=False)
    aged(tmp_path / "one")
    why, removed = clean(tmp_path, capsys, "--yes")[partial]
    assert "on node-7, which alone can prove its end" in why
    assert not removed
    assert Path(run.paths.checkpoint(partial)).is_dir()
    records.Fence(1, "here").started(20).started(20).write(run.paths.fence)  # start 2: it cannot commit any more
    aged(tmp_path / "one")
    assert clean(tmp_path, capsys, "--yes") == {partial: ("", True)}
