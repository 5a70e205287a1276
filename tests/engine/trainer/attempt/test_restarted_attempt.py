"""An attempt that is started a second time, as a requeued job is: it continues from what it has saved since."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import pytest

from midstream_core import records
from midstream_core.attempt.status_file import StatusFile
from midstream_engine.attempt.resume import find_origin
from midstream_engine.config import TrainLmConfig
from midstream_engine.loop.requests import CommandFile, Requests
from midstream_engine.runtime.attempt_record import AttemptRecord, lineage_entry, open_attempt, record_start
from midstream_engine.signals import Signals
from support.checkpoints.checkpoint_states import plain_state, save
from support.engines.engine_process import train_all
from support.paths import CONFIGS

TINY = ("--config_path", str(CONFIGS / "gpt2_tiny.yaml"), "--trainer.id", "r")


def target(root: Path) -> tuple[AttemptRecord, records.Command]:
    """Return attempt 2, which a migration has started from step 5 of attempt 1, and its command."""
    mine = open_attempt(str(root), "r", {"MIDSTREAM_TARGET": "here", "MIDSTREAM_ATTEMPT": "2"})
    manifest = save(mine.paths, plain_state(), step=5, epoch=mine.epoch, attempt=1)
    command = records.Command(
        records.RESTORE, epoch=1, checkpoint="step-5-a001", root_digest=manifest.root_digest, migration="m"
    )
    return mine, command


def test_requeued_target_gives_up_no_step(tmp_path: Path) -> None:
    mine, command = target(tmp_path)
    first = find_origin(mine, TrainLmConfig(), command)
    assert first is not None
    assert (first.name, first.root_digest) == ("step-5-a001", command.root_digest)
    save(mine.paths, plain_state(), step=9, epoch=mine.epoch, attempt=2)
    again = find_origin(mine, TrainLmConfig(), command)
    assert again is not None
    assert (again.name, again.own, again.root_digest, again.migration) == ("step-9-a002", True, None, "m")


def test_checkpoints_of_others_do_not_replace_a_restore(tmp_path: Path) -> None:
    """A run may return to an earlier checkpoint: later ones of earlier attempts were given up by name."""
    mine, command = target(tmp_path)
    save(mine.paths, plain_state(), step=9, epoch=mine.epoch, attempt=1)
    origin = find_origin(mine, TrainLmConfig(), command)
    assert origin is not None
    assert origin.name == "step-5-a001"


def test_answers_to_commands_stay_when_started_again(tmp_path: Path) -> None:
    """A rejected stop of a migration that failed must not seal the run when its job is requeued."""
    path = str(tmp_path / "status-0.json")

    def start(attempt: int = 2) -> records.Status:
        status = StatusFile(path, run_id="r", attempt=attempt, epoch=1, num_train_steps=9)
        status.close()
        return status.value

    dataclasses.replace(start(), acknowledged=2, rejected=3).write(path)
    assert (start().acknowledged, start().rejected) == (2, 3)
    assert (start(attempt=3).acknowledged, start(attempt=3).rejected) == (0, 0)

    command_file = str(tmp_path / "command.json")
    for sequence, done in ((3, False), (4, True)):
        records.Command(records.STOP, epoch=2, owner="there", sequence=sequence).write(command_file)
        assert Requests(Signals(), CommandFile(command_file), answered=3).look().stop is done


def test_lineage_of_attempt_started_again_is_its_first(tmp_path: Path) -> None:
    mine, _ = target(tmp_path)
    for first_step, checkpoint in ((5, "step-5-a001"), (9, "step-9-a002")):
        record_start(
            mine,
            lineage_entry(
                mine, devices=[], first_step=first_step, checkpoint=checkpoint, root_digest="d" * 64, migration="m"
            ),
        )
    (entry,) = records.Lineage.read(mine.paths.lineage).entries
    assert (entry.first_step, entry.checkpoint, entry.last_step) == (5, "step-5-a001", None)


@pytest.mark.drawn
def test_requeued_job_continues_and_its_records_are_readable(tmp_path: Path) -> None:
    keep = ("--trainer.checkpointer.keep", "[{every: 4}]")
    assert train_all(tmp_path, [(*TINY, *keep, "--trainer.num_train_steps", "4")])[0] == [0]
    paths = records.RunPaths(str(tmp_path), "r")
    files = paths.attempt(2)
    Path(files.dir).mkdir()
    digest = records.Manifest.read(f"{paths.checkpoint('step-4-a001')}/{records.MANIFEST}").root_digest
    records.Command(records.RESTORE, checkpoint="step-4-a001", root_digest=digest).write(files.command_file)

    job: dict[str, Any] = {"MIDSTREAM_ATTEMPT": "2", "MIDSTREAM_EPOCH": "1"}
    assert train_all(tmp_path, [(*TINY, *keep, "--trainer.num_train_steps", "8")], **job)[0] == [0]
    with open(files.metrics, "ab") as file:
        file.write(b'{"global_step": 8, "train/lo')  # the first start was killed while it wrote a row
    before = Path(files.restore).read_bytes()
    codes, log = train_all(tmp_path, [(*TINY, *keep, "--trainer.num_train_steps", "12")], **job)
    assert codes == [0], log
    assert "continuing at step 8" in log
    rows = records.parse_metrics(Path(files.metrics).read_text().splitlines())
    assert [row["global_step"] for row in rows] == list(range(4, 12))
    assert Path(files.restore).read_bytes() == before, "the evidence that a certificate is checked against"
    entry = records.Lineage.read(paths.lineage).entries[-1]
    assert (entry.attempt, entry.first_step, entry.checkpoint, entry.last_step) == (2, 4, "step-4-a001", 12)


def test_superseded_start_leaves_the_status_of_the_next(tmp_path: Path) -> None:
    """A requeued job starts while its earlier start goes on elsewhere: what that writes at its end is not the job's.

    On the old code its failure replaced the status of the start that had no number yet: the job seemed to have ended.
    """
    path = str(tmp_path / "status-0.json")
    earlier = StatusFile(path, run_id="r", attempt=2, epoch=1, num_train_steps=9)
    earlier.update(start=1, state=records.TRAINING)
    next_one = dataclasses.replace(earlier.value, start=0, state=records.STARTING, pid=earlier.value.pid + 1)
    next_one.write(path)
    earlier.update(state=records.FAILED, message="the run was started again")
    earlier.close()
    assert records.Status.read(path).state == records.STARTING
