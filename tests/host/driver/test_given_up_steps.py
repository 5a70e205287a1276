"""Checkpoints and metrics of steps that were given up: a new attempt leaves them out."""

from __future__ import annotations

import dataclasses
import json
import os
from pathlib import Path
from typing import Any

import pytest

from midstream_core import records
from midstream_host.driver.attempt_place import AttemptPlace
from midstream_host.driver.attempt_trainer import AttemptTrainer
from midstream_host.driver.checkpoint_watch import CheckpointWatch
from midstream_host.driver.checkpoints.checkpoint_finder import find_checkpoints
from midstream_host.driver.recorded_checkpoints import usable
from midstream_host.driver.run_file import Checkpoints, Metrics, RunFile, World
from midstream_host.driver.trainer_setup import Node, TrainerSetup
from midstream_host.driver.work_directory import MismatchError
from midstream_host.trainers import travelling_files

JSONL = Metrics("jsonl", "{out}/**/metrics.jsonl")


class Attempt:
    """An attempt with a trainer whose files the test writes."""

    def __init__(self, root: Path, checkpoints: Checkpoints, metrics: Metrics = JSONL, out: str = "out") -> None:
        self.paths = records.RunPaths(str(root / "root"), "r")
        for place in (self.paths.checkpoints, self.paths.pins, self.paths.attempt(2).dir):
            os.makedirs(place, exist_ok=True)
        self.run = RunFile(
            trainer="script", command=["train"], resume=["train"], checkpoints=checkpoints, metrics=metrics, out=out
        )
        place = AttemptPlace(self.paths, 2, 1, "here", "here")
        self.trainer = AttemptTrainer(place, World(), Node(), "python")
        self.setup = self.trainer.setup(self.run, str(root / "work"))

    def metrics_of(self, rows: list[dict[str, Any]], first: int) -> list[int]:
        """Steps in the metrics of an attempt whose trainer writes these rows after its start."""
        tail = self.trainer.open_tail(self.setup, self.paths.attempt(2).metrics, first)
        write_rows(Path(self.setup.out), *rows)
        for _ in range(3):
            tail.poll()
        tail.close()
        return [row["global_step"] for row in metrics_of(self.paths)]


def metrics_of(paths: records.RunPaths) -> list[dict[str, Any]]:
    return records.parse_metrics(Path(paths.attempt(2).metrics).read_text().splitlines())


def write_checkpoint(directory: Path, step: int) -> None:
    """Write a checkpoint as Levanter does, with one array of zarr 2."""
    array = directory / f"step-{step - 1}" / "step"
    array.mkdir(parents=True)
    (array / ".zarray").write_text(json.dumps({"shape": [1], "chunks": [1]}))
    (array / "0").write_text("x")
    (array.parent / "metadata.json").write_text(json.dumps({"step": step - 1}))


def write_rows(directory: Path, *rows: dict[str, Any]) -> None:
    directory.mkdir(parents=True, exist_ok=True)
    with open(directory / "metrics.jsonl", "a") as file:
        file.writelines(json.dumps(row) + "\n" for row in rows)


def rows_of(first: int, last: int) -> list[dict[str, Any]]:
    return [{"step": step, "loss": 1.0} for step in range(first, last)]


def watch(attempt: Attempt, setup: TrainerSetup, first: int) -> list[int]:
    found = CheckpointWatch(setup, attempt.paths, 2, 1, {}, first, since=0.0)  # it has written what is there
    found.poll(settle=True)
    return [manifest.step for manifest in usable(attempt.paths)]


def test_given_up_checkpoints_in_folders_are_not_recorded(tmp_path: Path) -> None:
    """Rules that look in all folders (Lightning, Levanter, MaxText) found them where they had been set aside."""
    attempt = Attempt(tmp_path, Checkpoints("levanter"))
    write_checkpoint(Path(attempt.setup.out, "run"), 40)
    attempt.trainer.place_inputs(attempt.setup, None)
    assert list(Path(attempt.setup.out).glob("given-up-by-attempt-2/run/step-39"))
    assert watch(attempt, attempt.setup, 20) == []
    write_checkpoint(Path(attempt.setup.out, "run"), 30)
    assert watch(attempt, attempt.setup, 20) == [30]


def test_given_up_metrics_in_folders_are_not_in_the_curve(tmp_path: Path) -> None:
    attempt = Attempt(tmp_path, Checkpoints("levanter"))
    write_rows(Path(attempt.setup.out, "logs"), *rows_of(0, 50))
    attempt.trainer.place_inputs(attempt.setup, None)
    assert attempt.metrics_of(rows_of(20, 23), 20) == [20, 21, 22]


@pytest.mark.parametrize("pattern", ["", "**/step-*", "*/step-*"])
def test_checkpoints_beside_the_code_are_set_aside(tmp_path: Path, pattern: str) -> None:
    """The trainer writes into its working directory, whose other files stay."""
    attempt = Attempt(tmp_path, Checkpoints("levanter", pattern), out=".")
    work = Path(attempt.setup.directory)
    write_checkpoint(work / "run", 40)
    (work / "train.py").write_text("pass")
    attempt.trainer.place_inputs(attempt.setup, None)
    assert (work / "train.py").exists()
    assert list(work.glob("given-up-by-attempt-2/run/step-39/metadata.json"))
    assert watch(attempt, attempt.setup, 20) == []


def test_files_that_travel_are_no_checkpoints_of_the_run(tmp_path: Path) -> None:
    """Weights to begin with were moved away from the trainer, or counted as its newest checkpoint."""
    code = tmp_path / "code"
    write_checkpoint(code / "pretrained", 90000)
    attempt = Attempt(tmp_path, Checkpoints("levanter"), out=".")
    tree = travelling_files.snapshot(attempt.paths.root, str(code), ["pretrained"])
    run = dataclasses.replace(attempt.run, files_digest=tree.digest)
    setup = attempt.trainer.setup(run, attempt.setup.directory)
    write_checkpoint(Path(setup.directory, "run"), 40)
    attempt.trainer.place_inputs(setup, None)
    work = Path(setup.directory)
    assert (work / "pretrained" / "step-89999" / "metadata.json").exists()
    assert list(work.glob("given-up-by-attempt-2/run/step-39"))
    write_checkpoint(work / "run", 30)
    assert watch(attempt, setup, 20) == [30]


def test_latest_is_set_aside_with_the_checkpoints_it_names(tmp_path: Path) -> None:
    attempt = Attempt(tmp_path, Checkpoints("deepspeed"), out=".")
    work = Path(attempt.setup.directory)
    (work / "global_step40").mkdir(parents=True)
    (work / "latest").write_text("global_step40")
    attempt.trainer.place_inputs(attempt.setup, None)
    assert sorted(os.listdir(work)) == ["given-up-by-attempt-2"]


def test_metrics_beside_the_code_begin_with_the_attempt(tmp_path: Path) -> None:
    """A file that the trainer appends to has the rows of steps that were given up."""
    attempt = Attempt(tmp_path, Checkpoints("levanter"), Metrics("jsonl", "metrics.jsonl"), out=".")
    write_rows(Path(attempt.setup.directory), *rows_of(0, 50))
    assert attempt.metrics_of(rows_of(20, 23), 20) == [20, 21, 22]


def test_metrics_of_an_adopted_trainer_are_its_own(tmp_path: Path) -> None:
    attempt = Attempt(tmp_path, Checkpoints("levanter"))
    write_rows(Path(attempt.setup.out), *rows_of(0, 5))
    tail = attempt.trainer.open_tail(attempt.setup, attempt.paths.attempt(2).metrics, 0, started=0.0)
    for _ in range(3):
        tail.poll()
    tail.close()
    assert len(metrics_of(attempt.paths)) == 5


@pytest.mark.parametrize("path", ["/etc/passwd", "../../step-39", "run/../../x"])
def test_checkpoint_whose_path_leaves_the_directory_is_refused(tmp_path: Path, path: str) -> None:
    """The source wrote it: a file `latest` would be written beside any path of the target."""
    attempt = Attempt(tmp_path, Checkpoints("levanter"))
    write_checkpoint(Path(attempt.setup.out, "run"), 40)
    assert watch(attempt, attempt.setup, 0) == [40]
    (manifest,) = usable(attempt.paths)
    train = Path(attempt.paths.checkpoint(manifest.name), records.TRAIN)
    state = json.loads(train.read_text())
    state["state"] |= {"path": path, "rule": "deepspeed"}
    train.chmod(0o644)
    train.write_text(json.dumps(state))
    with pytest.raises(MismatchError, match="leaves the directory"):
        attempt.trainer.place_inputs(attempt.setup, manifest.name)
    assert not find_checkpoints("levanter", attempt.setup.out)
