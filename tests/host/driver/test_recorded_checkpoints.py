"""Checkpoints that trainers wrote are recorded, and placed for a resume, by every rule."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from midstream_core import records
from midstream_core.attempt import save_fence
from midstream_core.attempt.save_fence import FenceUnreadableError
from midstream_host.driver.attempt_fence import check_fence
from midstream_host.driver.attempt_place import AttemptPlace
from midstream_host.driver.checkpoints.checkpoint_finder import find_checkpoints, saved_state
from midstream_host.driver.recorded_checkpoints import FILES, TrainerCheckpoint, prune, record, usable
from midstream_host.driver.run_file import Checkpoints, Metrics, RunFile
from midstream_host.driver.work_directory import place_checkpoint
from support.paths import FIXTURES
from support.trainers.checkpoint_cases import Case, each_case


@each_case
def test_checkpoint_is_recorded_and_placed_complete(case: Case, tmp_path: Path) -> None:
    source = FIXTURES / case.run
    (before,) = [
        each for each in find_checkpoints(case.rule, str(source), "", case.ranks) if each.path == case.path
    ] or find_checkpoints(case.rule, str(source), case.path, case.ranks)
    assert before.complete, before.reason
    paths = records.RunPaths(str(tmp_path / "root"), "r")
    Path(paths.checkpoints).mkdir(parents=True)
    run = RunFile(
        trainer="script", command=["train"], resume=["train"], checkpoints=Checkpoints(case.rule, case.path),
        metrics=Metrics("regex"),
    )  # fmt: skip
    files = tuple(file.path for file in before.files)
    found = TrainerCheckpoint(str(source), case.path, case.step, files)
    manifest = record(paths, run, found, 1, 1, {}, case.ranks or 1)
    assert manifest is not None
    assert [each.name for each in usable(paths)] == [manifest.name]
    copied = Path(paths.checkpoint(manifest.name), FILES)
    assert {str(each.relative_to(copied)) for each in copied.rglob("*") if each.is_file()} == set(files)
    assert saved_state(case.rule, str(copied / case.path)).model

    placed = place_checkpoint(paths, manifest.name, str(tmp_path / "there"))
    assert (placed.step, placed.root_digest) == (case.step, manifest.root_digest)
    (after,) = find_checkpoints(case.rule, str(tmp_path / "there"), case.path, case.ranks)
    assert (after.complete, after.step) == (True, case.step), after.reason


def test_manifest_is_written_after_all_files_are_on_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A power cut leaves no manifest of files that are empty: trainers do not wait for the disk."""
    work = tmp_path / "work" / "ckpt-7" / "shards"
    work.mkdir(parents=True)
    for name in ("0.json", "1.json"):
        (work / name).write_text("{}")
    paths = records.RunPaths(str(tmp_path / "root"), "r")
    Path(paths.checkpoints).mkdir(parents=True)
    run = RunFile(
        trainer="script", command=["train"], resume=["train"], checkpoints=Checkpoints("glob", "ckpt-*"),
        metrics=Metrics("regex"),
    )  # fmt: skip
    synced: set[int] = set()
    fsync, write = os.fsync, records.Manifest.write
    unsynced: list[str] = []

    def noted(descriptor: int) -> None:
        fsync(descriptor)
        synced.add(os.fstat(descriptor).st_ino)

    def checked(manifest: records.Manifest, path: str, **how: bool) -> None:
        directory = Path(path).parent
        unsynced.extend(str(each) for each in (directory.parent, directory, *directory.rglob("*"))
                        if each.stat().st_ino not in synced)  # fmt: skip
        write(manifest, path, **how)

    monkeypatch.setattr(os, "fsync", noted)
    monkeypatch.setattr(records.Manifest, "write", checked)
    files = ("ckpt-7/shards/0.json", "ckpt-7/shards/1.json")
    assert record(paths, run, TrainerCheckpoint(str(tmp_path / "work"), "ckpt-7", 7, files), 1, 1, {}, 1) is not None
    assert unsynced == []


def test_trash_that_could_not_be_emptied_does_not_stop_removals(tmp_path: Path) -> None:
    """An attempt that is started again records checkpoints of the same names."""
    paths = records.RunPaths(str(tmp_path), "r")
    left = Path(paths.checkpoint(".trash-step-1-a001"), FILES)
    left.mkdir(parents=True)
    (left / "old").write_text("")
    for step in (1, 2, 3):
        directory = Path(paths.checkpoint(records.checkpoint_name(step, 1)))
        directory.mkdir()
        records.Manifest(
            format=records.FORMAT, version=records.FORMAT_VERSION, run_id="r", step=step, attempt=1, epoch=1,
            created=0.0, root_digest="d" * 64, arrays=[], objects=[],
        ).write(str(directory / records.MANIFEST))  # fmt: skip
    prune(paths, 1)
    assert sorted(os.listdir(paths.checkpoints)) == ["step-2-a001", "step-3-a001"]


def test_start_without_the_fence_of_a_run_is_refused(tmp_path: Path) -> None:
    """It may name another owner: the trainer of a source that was migrated would train again."""
    place = AttemptPlace(records.RunPaths(str(tmp_path), "r"), 2, 1, "here", "here")
    os.makedirs(place.paths.dir)
    check_fence(place, first=True)
    assert records.Fence.read(place.paths.fence).owner == "here"
    records.Lineage("r").write(place.paths.lineage)
    os.unlink(place.paths.fence)
    with pytest.raises(FenceUnreadableError, match=r"has been removed.*midstream --repair r"):
        check_fence(place, first=True)
    assert not os.path.exists(place.paths.fence)


def test_numbered_start_commits_nothing_without_fence(tmp_path: Path) -> None:
    """The root was put back from a snapshot, which has no lineage either: on the old code the start committed."""
    paths = records.RunPaths(str(tmp_path), "r")
    os.makedirs(paths.dir)
    with pytest.raises(FenceUnreadableError, match=r"has been removed.*midstream --repair r"):
        save_fence.check(paths, 2, 9, start=1)
    with pytest.raises(FenceUnreadableError, match="has been removed"):
        save_fence.seal(paths, epoch=3, owner="there", step=9, start=1)
    assert save_fence.check(paths, 1, 9) is None, "a run that never had one"
    assert os.listdir(paths.dir) == [os.path.basename(paths.lock)]
