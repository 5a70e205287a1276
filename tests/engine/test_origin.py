"""Where an attempt begins: the run's own past before anything that the configuration names, and never afresh by
mistake."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest

from midstream_engine import records
from midstream_engine.checkpoint.errors import CheckpointError
from midstream_engine.config import TrainerConfig, TrainLmConfig
from midstream_engine.errors import EngineError
from midstream_engine.trainer.attempt.attempt_record import Attempt, open_attempt
from midstream_engine.trainer.attempt.resume import find_origin
from support.checkpoint_states import plain_state, save


def attempt(root: Path, run_id: str) -> Attempt:
    return open_attempt(str(root), run_id, {"MIDSTREAM_TARGET": "here"})


def wishing(**trainer: object) -> TrainLmConfig:
    return TrainLmConfig(trainer=TrainerConfig(**trainer))  # pyright: ignore[reportArgumentType]


def test_a_checkpoint_elsewhere_counts_until_the_run_has_its_own(tmp_path: Path) -> None:
    """A job that is restarted after a preemption does not go back to where it once came from."""
    other, mine = attempt(tmp_path, "other"), attempt(tmp_path, "mine")
    save(other.paths, plain_state(), step=7, epoch=other.epoch)
    for path in (other.paths.dir, other.paths.checkpoints, other.paths.checkpoint("step-7-a001")):
        origin = find_origin(mine, wishing(load_checkpoint_path=path), None)
        assert origin is not None
        assert (origin.name, origin.own, origin.same_run) == ("step-7-a001", False, True)
    save(mine.paths, plain_state(), step=5, epoch=mine.epoch)
    origin = find_origin(mine, wishing(load_checkpoint_path=other.paths.dir), None)
    assert origin is not None
    assert (origin.directory, origin.own) == (mine.paths.checkpoint("step-5-a001"), True)


@pytest.mark.parametrize("wish", [None, True, False])
def test_a_run_goes_on_from_its_newest_checkpoint_whatever_is_wished(tmp_path: Path, wish: bool | None) -> None:
    mine = attempt(tmp_path, "mine")
    for step in (5, 9):
        save(mine.paths, plain_state(), step=step, epoch=mine.epoch)
    origin = find_origin(mine, wishing(load_checkpoint=wish), None)
    assert origin is not None
    assert origin.name == "step-9-a001"


def test_without_a_past_it_begins_afresh_unless_there_must_be_one(tmp_path: Path) -> None:
    mine = attempt(tmp_path, "mine")
    assert find_origin(mine, wishing(), None) is None
    with pytest.raises(EngineError, match="load_checkpoint is true, and run mine has no checkpoint"):
        find_origin(mine, wishing(load_checkpoint=True), None)
    with pytest.raises(EngineError, match="load_checkpoint_path: there is no complete checkpoint at"):
        find_origin(mine, wishing(load_checkpoint_path=str(tmp_path / "nowhere")), None)


@pytest.mark.parametrize("wish", [None, False])
def test_a_past_that_cannot_be_read_is_no_fresh_start(tmp_path: Path, wish: bool | None) -> None:
    mine = attempt(tmp_path, "mine")
    save(mine.paths, plain_state(), step=5, epoch=mine.epoch)
    manifest = Path(mine.paths.checkpoint("step-5-a001")) / records.MANIFEST
    manifest.write_text(manifest.read_text()[:100])
    with pytest.raises((CheckpointError, EngineError, records.RecordError), match="step-5-a001"):
        find_origin(mine, wishing(load_checkpoint=wish), None)


def test_what_was_sealed_away_is_no_fresh_start(tmp_path: Path) -> None:
    """The checkpoint of the seal is not here: the run goes on elsewhere, or it has to be copied."""
    mine = attempt(tmp_path, "mine")
    fence = records.Fence.read(mine.paths.fence)
    dataclasses.replace(fence, epoch=2, owner="there", sealed_step=8).write(mine.paths.fence)
    with pytest.raises(EngineError, match="was handed over at step 8, and that checkpoint is not here"):
        find_origin(dataclasses.replace(mine, epoch=2), wishing(), None)


def test_an_order_names_the_checkpoint(tmp_path: Path) -> None:
    mine = attempt(tmp_path, "mine")
    manifests = [save(mine.paths, plain_state(), step=step, epoch=mine.epoch) for step in (5, 9)]
    order = records.Command(
        sequence=1, epoch=1, action=records.RESTORE, checkpoint="step-5-a001", root_digest=manifests[0].root_digest
    )
    origin = find_origin(mine, wishing(), order)
    assert origin is not None
    assert (origin.name, origin.root_digest) == ("step-5-a001", manifests[0].root_digest)
    with pytest.raises(EngineError, match="restore names no checkpoint"):
        find_origin(mine, wishing(), dataclasses.replace(order, checkpoint="../elsewhere"))
