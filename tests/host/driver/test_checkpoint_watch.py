"""The watch of a trainer's checkpoints: nothing that may be partial is recorded, and nothing complete is left out."""

from __future__ import annotations

import errno
import json
import os
import time
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from midstream_core import records
from midstream_host.driver import checkpoint_watch, recorded_checkpoints, start_evidence
from midstream_host.driver.checkpoint_steps import Logged
from midstream_host.driver.checkpoint_watch import CheckpointWatch
from midstream_host.driver.metrics.metrics_reader import open_reader
from midstream_host.driver.metrics_tail import MetricsTail
from midstream_host.driver.recorded_checkpoints import FILES, usable
from midstream_host.driver.run_file import Checkpoints, Metrics, RunFile, World
from midstream_host.driver.start_evidence import StartEvidence
from midstream_host.driver.trainer_setup import Node, TrainerSetup
from midstream_host.driver.work_directory import PlacedCheckpoint


class Watched:
    """A directory of checkpoints with its watch, of the rule ``glob``."""

    def __init__(self, root: Path, **checkpoints: Any) -> None:
        run = RunFile(
            trainer="script", command=["train"], resume=["train"], metrics=Metrics("regex"),
            checkpoints=Checkpoints("glob", "ckpt-*", **checkpoints),
        )  # fmt: skip
        self.directory = root / "work" / "out"
        self.directory.mkdir(parents=True)
        self.paths = records.RunPaths(str(root / "root"), "r")
        for place in (self.paths.checkpoints, self.paths.pins):
            os.makedirs(place)
        setup = TrainerSetup(run, World(), Node(), "python", str(root / "work"), "")
        self.watch = CheckpointWatch(setup, self.paths, 1, 1, {}, first=0)

    def write(self, step: int, content: str = "{}", suffix: str = ".json") -> Path:
        path = self.directory / f"ckpt-{step}{suffix}"
        path.write_text(content)
        return path

    def poll(self, **how: Any) -> records.Manifest | None:
        """Look once, and wait for what is recorded by it."""
        self.watch._scanned = -checkpoint_watch.SCAN_INTERVAL - time.monotonic()
        found = self.watch.poll(**how)
        if self.watch._thread is not None:
            self.watch._thread.join()
        return found or self.watch._collect()

    @property
    def steps(self) -> list[int]:
        return [manifest.step for manifest in usable(self.paths)]


@pytest.fixture
def watched(tmp_path: Path) -> Watched:
    return Watched(tmp_path)


@pytest.fixture
def during(monkeypatch: pytest.MonkeyPatch) -> Callable[[Callable[[], object]], None]:
    """Call a function once, while a checkpoint's first file is taken."""
    place = recorded_checkpoints.place

    def install(once: Callable[[], object]) -> None:
        left = [once]

        def slow(source: str, target: str, *, link: bool) -> None:
            place(source, target, link=link)
            for each in left:
                each()
            left.clear()

        monkeypatch.setattr(recorded_checkpoints, "place", slow)

    return install


def test_checkpoint_written_while_it_is_taken_is_not_recorded(
    tmp_path: Path, during: Callable[[Callable[[], object]], None]
) -> None:
    """A file that is written again in place can be of two states; it is recorded once it stays as it is."""
    watched = Watched(tmp_path, rewritten=True)
    path = watched.write(20, '"old"')
    during(lambda: path.write_text('"other"'))
    assert watched.poll() is None
    assert "changed while it was recorded" in watched.watch.problem
    assert watched.steps == []
    assert os.listdir(watched.paths.checkpoints) == []
    found = watched.poll(settle=True, ended_well=True)
    assert found is not None
    assert Path(watched.paths.checkpoint(found.name), FILES, "ckpt-20.json").read_text() == '"other"'


def test_file_added_while_a_checkpoint_is_taken_belongs_to_it(
    watched: Watched, during: Callable[[Callable[[], object]], None]
) -> None:
    """Accelerate writes registered objects after everything that a complete checkpoint is recognised by."""
    directory = watched.directory / "ckpt-20"
    directory.mkdir()
    (directory / "model.txt").write_text("model")
    during(lambda: (directory / "optimizer.txt").write_text("optimizer"))
    watched.poll(settle=True, ended_well=True)
    assert watched.steps == []
    found = watched.poll(settle=True, ended_well=True)
    assert found is not None
    assert len(found.object_entries) == 3


def test_directory_is_recorded_once_nothing_more_is_written(watched: Watched, monkeypatch: pytest.MonkeyPatch) -> None:
    directory = watched.directory / "ckpt-20"
    directory.mkdir()
    (directory / "model.txt").write_text("model")
    (directory / "config.txt").write_text("config")
    assert watched.poll() is None  # the optimizer's state may follow
    (directory / "optimizer.txt").write_text("optimizer")
    assert watched.poll() is None
    monkeypatch.setattr(checkpoint_watch, "QUIET", 0.0)
    found = watched.poll()
    assert found is not None
    assert len(found.object_entries) == 4


def test_file_of_unknown_form_may_be_partial(watched: Watched, monkeypatch: pytest.MonkeyPatch) -> None:
    """It has bytes, and nothing says how many there will be, also where its trainer was killed."""
    watched.write(20)
    assert watched.poll() is not None
    watched.write(40, "a half", ".state")
    assert watched.poll() is None
    assert watched.poll(settle=True) is None
    assert "ckpt-40.state was written just before the trainer was ended" in watched.watch.problem
    assert watched.steps == [20]
    with monkeypatch.context() as patch:
        patch.setattr(checkpoint_watch, "QUIET", 0.0)
        assert watched.poll(settle=True) is not None
    watched.write(60, "complete", ".state")
    assert watched.poll(settle=True, ended_well=True) is not None  # it ended by itself
    assert watched.steps == [40, 60]  # the newest two are not removed


def test_clock_of_a_shared_disk_may_be_another(watched: Watched, monkeypatch: pytest.MonkeyPatch) -> None:
    watched.poll()
    watched.write(20, "a half", ".state")
    now = time.time
    for difference in (-60.0, 60.0):
        monkeypatch.setattr(time, "time", lambda difference=difference: now() + difference)
        assert watched.poll() is None
        assert watched.poll(settle=True) is None
    monkeypatch.setattr(checkpoint_watch, "QUIET", 0.0)
    assert watched.poll() is not None


def test_old_checkpoint_is_recorded_at_the_first_look(watched: Watched) -> None:
    path = watched.write(20, "complete", ".state")
    os.utime(path, (0, 0))  # its change is of now; a trainer may write any time of modification
    assert watched.poll() is None
    other = Watched(watched.directory.parents[1] / "other")
    now = time.time() + 60
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(time, "time", lambda: now)
        other.write(20, "complete", ".state")
        assert other.poll() is not None


@pytest.mark.parametrize(
    ("name", "content", "complete"),
    [
        ("log.json", '{"step": 1, "loss": 0.5}\n{"step": 2, "loss": 0.25}\n', True),  # a value in each line
        ("config.json", '{\n  // learning rate\n  "lr": 0.1,\n  "steps": 100\n}\n', True),
        ("config.json", '\ufeff{"lr": 0.1, "steps": 100}', True),
        ("config.json", '{"lr": 0.1, "ste', False),
        ("config.json", '{"lr": 0.1, "loss": -Infin', False),
        ("config.json", '{"lr": 0.1, "steps": 100' + "\0" * 40, False),  # the machine was switched off
    ],
)
def test_directory_may_have_json_of_another_form(watched: Watched, name: str, content: str, complete: bool) -> None:
    """Python's json cannot read it, and the checkpoint would never be recorded."""
    directory = watched.directory / "ckpt-20"
    directory.mkdir()
    (directory / "model.txt").write_text("model")
    (directory / name).write_text(content)
    assert (watched.poll(settle=True, ended_well=True) is not None) == complete


@pytest.mark.parametrize(("suffix", "content"), [(".json", b'{"weights": [1, 2'), (".npz", b"PK\x03\x04half")])
def test_partial_file_of_known_form_is_not_recorded(watched: Watched, suffix: str, content: bytes) -> None:
    path = watched.directory / f"ckpt-20{suffix}"
    path.write_bytes(content)
    assert watched.poll(settle=True, ended_well=True) is None
    if suffix == ".npz":
        with zipfile.ZipFile(path, "w") as archive:
            archive.writestr("weights.npy", b"x")
    else:
        path.write_text("{}")
    assert watched.poll() is not None
    assert watched.steps == [20]


def test_checkpoint_that_failed_once_is_recorded_at_the_end(watched: Watched, monkeypatch: pytest.MonkeyPatch) -> None:
    """The disk was full for a moment: without another try, a migration would give up the steps since step 20."""
    watched.write(20)
    assert watched.poll() is not None
    place, tries = recorded_checkpoints.place, []

    def full(source: str, target: str, *, link: bool) -> None:
        tries.append(target)
        Path(target).write_text("a part")
        raise OSError(errno.ENOSPC, "No space left on device", target)

    monkeypatch.setattr(recorded_checkpoints, "place", full)
    watched.write(40)
    for _ in range(3):
        assert watched.poll() is None
    assert len(tries) == 1  # not at every look
    assert "No space left" in watched.watch.problem
    assert watched.steps == [20]
    assert len(os.listdir(watched.paths.checkpoints)) == 1  # the part does not keep the disk full
    monkeypatch.setattr(recorded_checkpoints, "place", place)
    assert watched.poll(settle=True, ended_well=True) is not None
    assert watched.steps == [20, 40]


def test_failed_checkpoint_is_tried_again_later(watched: Watched, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checkpoint_watch, "RETRY_INTERVAL", 0.0)
    watched.watch._wait = 0.0
    Path(watched.paths.fence).parent.mkdir(parents=True, exist_ok=True)
    Path(watched.paths.fence).write_text("{")  # it is being replaced, or the shared disk hangs
    watched.write(20)
    assert watched.poll() is None
    assert watched.watch.problem
    Path(watched.paths.fence).write_text(json.dumps(records.first_fence("here").to_json()))
    assert watched.poll() is not None
    assert watched.steps == [20]


def test_pin_that_is_set_during_a_removal_keeps_its_checkpoint(
    watched: Watched, monkeypatch: pytest.MonkeyPatch
) -> None:
    for step in (1, 2):
        watched.write(step)
        watched.poll()
    rename = os.rename

    def pinning(source: str, target: str) -> None:
        if os.path.basename(source) == "step-1-a001":
            records.Pin("step-1-a001", time.time() + 60).write(f"{watched.paths.pins}/m.json")
        rename(source, target)

    monkeypatch.setattr(os, "rename", pinning)
    watched.write(3)
    watched.poll()
    assert watched.steps == [1, 2, 3]
    os.unlink(f"{watched.paths.pins}/m.json")
    monkeypatch.setattr(os, "rename", rename)
    assert recorded_checkpoints.prune(watched.paths, 1) == ["step-1-a001"]
    assert sorted(os.listdir(watched.paths.checkpoints)) == ["step-2-a001", "step-3-a001"]


def test_pin_that_cannot_be_read_keeps_all_checkpoints(watched: Watched) -> None:
    Path(watched.paths.pins, "m.json").write_text("{")
    for step in (1, 2, 3):
        watched.write(step)
        assert watched.poll() is not None
    assert watched.steps == [1, 2, 3]
    Path(watched.paths.pins, "m.json").unlink()
    assert recorded_checkpoints.prune(watched.paths, 1) == ["step-1-a001"]


def test_complete_checkpoint_of_unknown_step_is_named(watched: Watched) -> None:
    """A migration would wait for a checkpoint that is there."""
    logged = Logged(144, 1, 144, lags=False)
    path = watched.write(0)
    path.rename(path.with_name("ckpt-2026-11-28_23-47-57.json"))
    assert watched.poll(logged=logged) is None
    assert "ckpt-2026-11-28_23-47-57.json: it is complete, and nothing shows its step" in watched.watch.problem
    assert 'save the number of updates as "step"' in watched.watch.problem
    watched.write(3).rename(watched.directory / "ckpt-epoch_3.json")
    watched.write(395741)
    assert watched.poll(logged=logged) is None
    assert watched.steps == []
    assert "395741" in watched.watch.problem
    watched.write(3, '{"step": 144}')
    assert watched.poll(logged=logged) is not None
    assert watched.steps == [144]


def test_name_that_agrees_with_the_curve_is_recorded(watched: Watched) -> None:
    assert watched.poll(logged=Logged(19, 1, 19, lags=False)) is None
    watched.write(20)
    assert watched.poll(logged=Logged(0, 1, 0, lags=False)) is None
    assert "no step is logged yet" in watched.watch.problem
    assert watched.poll(logged=Logged(20, 1, 20, lags=False)) is not None
    assert watched.steps == [20]


def test_trainer_that_trains_without_a_row_is_seen(watched: Watched, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its checkpoints show that it trains; a migration to it would wait for its first row."""
    path = watched.directory / "rows.jsonl"
    path.touch()
    tail = MetricsTail(open_reader("jsonl", str(watched.directory), "rows.jsonl"), str(path) + ".copy", first=0)
    restored = PlacedCheckpoint("", 0, "d", "d", str(watched.directory), [])
    evidence = StartEvidence(str(watched.directory / "evidence.json"), restored, 1)

    def why() -> str:
        watched.poll()
        tail.poll()
        tail.poll()  # the last row may not be complete yet
        evidence.update(tail, watched.watch)
        return evidence.unrecorded

    watched.write(20)
    monkeypatch.setattr(start_evidence, "ROWLESS", 0.0)
    assert why() == ""
    watched.write(40)
    assert why() == "2 checkpoints were written since its start, and its source has no row"
    path.write_text('{"step": 20, "learning_rate": 0.5}\n')
    assert why().endswith("its rows have no loss, only optim/learning_rate")
    assert evidence.contradiction == ""
    with monkeypatch.context() as patch:
        patch.setattr(start_evidence, "ROWLESS", 300.0)
        assert why() == ""
    with path.open("a") as file:
        file.write('{"step": 21, "loss": 0.5}\n')
    assert why() == ""
    tail.close()


def test_rows_are_read_before_a_checkpoint_is_recorded(watched: Watched) -> None:
    """A driver that was killed in between had lost the row of the checkpoint's last step, which its trainer had."""
    recorded = list[list[str]]()

    def read_rows() -> None:
        recorded.append(os.listdir(watched.paths.checkpoints))

    assert watched.poll(settle=True, ended_well=True, read_rows=read_rows) is None
    assert recorded == [], "there is no checkpoint"
    watched.write(20)
    assert watched.poll(settle=True, ended_well=True, read_rows=read_rows) is not None
    assert recorded == [[]]
    assert watched.steps == [20]


def test_number_of_the_last_step_counts_one_more_from_then_on(watched: Watched) -> None:
    watched.write(24)
    watched.poll(settle=True)
    watched.watch.count_last_step()
    assert watched.watch.newest_step == 25, "what is recorded already is no newer one"
    watched.poll(settle=True)
    watched.write(49)
    newest = watched.poll(settle=True)
    assert watched.steps == [25, 50], "of the newest two, the first under its other number"
    assert newest is not None
    assert records.checkpoint_state(watched.paths.checkpoint(newest.name))["added"] == 1
    assert recorded_checkpoints.added_to_numbers(watched.paths) == 1, "the next start begins with it"
