"""Places of checkpoints beside a run's own directory: Levanter's temporary ones are newer than those that it keeps."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest

from midstream_host.driver.checkpoint_places import CheckpointPlaces, environment_of, other_place
from midstream_host.driver.run_file import Checkpoints, Metrics, RunFile
from support.paths import FIXTURES

RUN = RunFile(
    trainer="levanter", command=["train"], resume=["train"], metrics=Metrics("jsonl"),
    checkpoints=Checkpoints("levanter"),
)  # fmt: skip
BLOCK = """\
tracker: {type: wandb, id: other}
trainer:
  # by time
  checkpointer:
    temporary_base_path: /tmp/soon  # local
    keep: [{every: 10}]
  tracker:
    id: third
  id: webtext
"""


@pytest.mark.parametrize(
    ("config", "words", "environment", "folder"),
    [
        (BLOCK, (), {}, "/tmp/soon/webtext"),
        (BLOCK, ("--trainer.id", "flag"), {}, "/tmp/soon/flag"),
        (BLOCK, ("--trainer.id=flag", "--trainer.checkpointer.temporary_base_path=soon"), {}, "{work}/soon/flag"),
        (BLOCK + "  x: {append_run_id_to_base_path: false}\n", (), {}, "/tmp/soon"),
        (BLOCK, ("--trainer.checkpointer.append_run_id_to_base_path", "False"), {}, "/tmp/soon"),
        ("trainer: {id: r7, checkpointer: {temporary_base_path: '/tmp/soon'}}\n", (), {}, "/tmp/soon/r7"),
        ("trainer:\n  checkpointer:\n    temporary_base_path: /tmp/soon\n", (), {"RUN_ID": "own"}, "/tmp/soon/own"),
        ("trainer:\n  checkpointer:\n    temporary_base_path: null\n", (), {"RUN_ID": "own"}, ""),
        ("trainer:\n  id: webtext\n", (), {}, ""),
    ],
)
def test_folder_of_temporary_checkpoints(
    tmp_path: Path, config: str, words: tuple[str, ...], environment: dict[str, str], folder: str
) -> None:
    (tmp_path / "run.yaml").write_text(config)
    found = other_place(RUN, ["train", "--config_path", "run.yaml", *words], str(tmp_path), environment)
    assert (found.folder, found.problem) == (folder.format(work=tmp_path), "")


@pytest.mark.parametrize(
    ("words", "problem"),
    [
        (
            ("--trainer.checkpointer.temporary_base_path", "gs://b/soon"),
            "gs://b/soon is a bucket, and is not looked at",
        ),
        (("--trainer.checkpointer.temporary_base_path", "/tmp/soon"), "the run's id is not known (hint: --trainer.id"),
        (("--trainer.checkpointer.temporary_base_path", "/tmp/soon", "--trainer.id", "../up"), "is not looked at"),
    ],
)
def test_place_that_is_not_looked_at_is_named(tmp_path: Path, words: tuple[str, ...], problem: str) -> None:
    found = other_place(RUN, ["train", "--config_path", "absent.yaml", *words], str(tmp_path), {})
    assert found.base
    assert not found.folder
    assert problem in found.problem


def test_checkpoints_of_both_places_are_found(tmp_path: Path) -> None:
    own, other = tmp_path / "out", tmp_path / "soon" / "r"
    for folder in (own / "r", other):
        shutil.copytree(FIXTURES / "levanter/gpt2/step-3", folder / "step-3")
    places = CheckpointPlaces(RUN, str(own), 1, str(other))
    assert [(each.path, each.complete, each.step) for each in places.find()] == [
        ("r/step-3", True, 4),
        (f"{other}/step-3", True, 4),
    ]
    assert all(Path(own, file.path).is_file() for each in places.find() for file in each.files)
    assert places.relative(str(own), f"{other}/step-3") == (str(other), "step-3")
    assert places.relative(str(own), "r/step-3") == (str(own), "r/step-3")
    below = CheckpointPlaces(RUN, str(tmp_path), 1, str(other))  # both in one directory: each once
    assert len(below.find()) == 2


def test_environment_of_a_process_is_read() -> None:
    assert environment_of(os.getpid())["PATH"]
    assert environment_of(0) == {}
