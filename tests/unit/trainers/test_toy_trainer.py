"""A trainer is a file of the app, a rule of its checkpoints, and a line for each.

A toy shows which places read them.
"""

from __future__ import annotations

from pathlib import Path
from typing import cast

import pytest

from midstream.check.check_result import WARN
from midstream.check.stored_checks import stored_checks
from midstream.errors import UsageError
from midstream.launch.run_file_draft import Evidence, draft
from midstream.trainers.continuation import stored_for
from midstream.trainers.registry import TRAINERS
from midstream.trainers.run_file_parser import parse_run_file
from midstream.trainers.trainer_defaults import Launcher, OtherProcesses, TrainerDefaults
from midstream.trainers.world import process_per_device
from midstream_host.driver.checkpoints.checkpoint import IncompleteError, SavedState
from midstream_host.driver.checkpoints.checkpoint_finder import RULES, find_checkpoints
from midstream_host.driver.checkpoints.checkpoint_tree import CheckpointTree
from midstream_host.driver.checkpoints.rule import CheckpointRule
from midstream_host.driver.recorded_checkpoints import write_newest_file
from midstream_host.driver.run_file import NO, YES, Checkpoints, Metrics, RunFile, StoredContents
from midstream_host.trainers.processes import TrainerDirectory
from midstream_host.trainers.stored_state import StoredState


def _named_step(name: str) -> int | None:
    return int(name[4:]) if name.startswith("toy-") else None


def _check(tree: CheckpointTree, ranks: int | None) -> int | None:
    if not tree.has("end"):
        raise IncompleteError("end is missing: it is written last")
    return int(tree.text("step"))


def _saved_state(tree: CheckpointTree) -> SavedState:
    return SavedState(True, True, True, 1, "stored", True)


RULE = CheckpointRule("toy-*", _named_step, _check, _saved_state, newest_file="newest", one_process=True)
TOY = TrainerDefaults(
    name="toy",
    title="Toy trainer",
    resume=("--continue", "{checkpoint}"),
    checkpoints=Checkpoints("toy", reshards=True),
    metrics=Metrics("jsonl", "{out}/losses.jsonl"),
    stored=StoredContents(YES, YES),
    elsewhere=OtherProcesses(NO, YES, changes=("toys are shared out again",)),
    imports=("toybox",),
    launchers=(Launcher(("toyrun",), "--toys", "{world}"),),
    one_process=True,
)


@pytest.fixture(autouse=True)
def registered(monkeypatch: pytest.MonkeyPatch) -> None:
    """Register the toy, as its two lines would."""
    monkeypatch.setitem(cast("dict[str, TrainerDefaults]", TRAINERS), TOY.name, TOY)
    monkeypatch.setitem(RULES, TOY.name, RULE)


def run_of(command: str) -> RunFile:
    return parse_run_file(f"trainer: toy\ncommand: {command}\n", Path("run.yaml")).run


def test_run_file_has_the_defaults_of_the_trainer() -> None:
    run = run_of("toyrun --toys {world} train.py")
    assert run.resume == [*run.command, "--continue", "{checkpoint}"]
    assert (run.checkpoints.rule, run.metrics.source) == ("toy", "jsonl")
    assert not process_per_device(run), "it has one process on each node"


def test_launcher_of_the_trainer_needs_the_number_of_processes() -> None:
    with pytest.raises(UsageError, match="toyrun starts as many processes as it finds GPUs") as raised:
        run_of("toyrun train.py")
    assert "--toys {world}" in raised.value.hint


def test_directory_of_the_trainer_is_recognized_by_imports() -> None:
    found = TrainerDirectory("/work", [], ["train.py"], ["numpy", "toybox.play"], None)
    text = draft(Evidence(found)).text
    assert text.startswith("# A run of Toy trainer;")
    assert "trainer: toy\n" in text


def test_checkpoints_are_found_and_placed_by_the_rule(tmp_path: Path) -> None:
    for step, parts in ((3, ("step", "end")), (6, ("step",))):
        folder = tmp_path / f"toy-{step}"
        folder.mkdir()
        for part in parts:
            (folder / part).write_text(str(step))
    first, second = find_checkpoints("toy", str(tmp_path))
    assert (first.complete, first.step) == (True, 3)
    assert (second.complete, second.reason) == (False, "end is missing: it is written last")
    assert write_newest_file("toy", str(tmp_path), "toy-3") == str(tmp_path / "newest")
    assert (tmp_path / "newest").read_text() == "toy-3"


def test_another_number_of_processes_follows_the_trainer() -> None:
    run = run_of("python train.py")
    assert stored_for(run, 2, 4).random_state == NO
    found = StoredState("/out", 3, 4096, True, True, True, 1, "stored", True, [], "", [])
    shown = {check.detail: check.state for check in stored_checks(run, found, 2, 4)}
    assert shown["2 processes -> 4: toys are shared out again"] == WARN
