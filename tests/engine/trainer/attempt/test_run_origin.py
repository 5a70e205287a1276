"""Origin of an attempt: the run's own checkpoints first, and no fresh start by mistake."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest

from midstream_core import records
from midstream_core.attempt.errors import CheckpointError, EngineError
from midstream_core.attempt.save_fence import FenceUnreadableError, seal
from midstream_engine.attempt.resume import Origin, check_same_data, find_origin
from midstream_engine.config import TrainerConfig, TrainLmConfig
from midstream_engine.runtime.attempt_record import AttemptRecord, open_attempt
from support.checkpoints.checkpoint_states import plain_state, save


def attempt(root: Path, run_id: str) -> AttemptRecord:
    return open_attempt(str(root), run_id, {"MIDSTREAM_TARGET": "here"})


def wishing(**trainer: object) -> TrainLmConfig:
    return TrainLmConfig(trainer=TrainerConfig(**trainer))  # pyright: ignore[reportArgumentType]


def test_origin_elsewhere_counts_until_run_has_a_checkpoint(tmp_path: Path) -> None:
    """A job that is restarted after a preemption does not return to its first origin."""
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


@pytest.mark.parametrize("wish", [None, True])
def test_origin_is_newest_checkpoint_of_run(tmp_path: Path, wish: bool | None) -> None:
    mine = attempt(tmp_path, "mine")
    for step in (5, 9):
        save(mine.paths, plain_state(), step=step, epoch=mine.epoch)
    origin = find_origin(mine, wishing(load_checkpoint=wish), None)
    assert origin is not None
    assert origin.name == "step-9-a001"


def test_origin_of_restart_from_step_0_is_refused(tmp_path: Path) -> None:
    """Levanter would begin again at step 0 and delete the checkpoints one by one."""
    mine = attempt(tmp_path, "mine")
    assert find_origin(mine, wishing(load_checkpoint=False), None) is None
    save(mine.paths, plain_state(), step=5, epoch=mine.epoch)
    with pytest.raises(
        EngineError, match=r"load_checkpoint is false, and run mine has checkpoints, the newest.*step-5"
    ):
        find_origin(mine, wishing(load_checkpoint=False), None)
    again = wishing(load_checkpoint=False).resolved()  # run.yaml, which later attempts start from
    assert again["trainer"]["load_checkpoint"] is None


@pytest.mark.parametrize("wish", [None, False])
def test_origin_of_initialize_from_is_the_complete_state(tmp_path: Path, wish: bool | None) -> None:
    """As in Levanter: model, optimizer and step; the model alone has a name of its own."""
    other, mine = attempt(tmp_path, "other"), attempt(tmp_path, "mine")
    save(other.paths, plain_state(), step=7, epoch=other.epoch)
    origin = find_origin(mine, wishing(initialize_from=other.paths.dir, load_checkpoint=wish), None)
    assert origin is not None
    assert (origin.step, origin.own, origin.same_run) == (7, False, True)
    origin = find_origin(mine, wishing(initialize_model_from=other.paths.dir, load_checkpoint=wish), None)
    assert origin is not None
    assert (origin.step, origin.own, origin.same_run) == (0, False, False)


def test_origin_absent_starts_fresh_unless_required(tmp_path: Path) -> None:
    mine = attempt(tmp_path, "mine")
    assert find_origin(mine, wishing(), None) is None
    with pytest.raises(EngineError, match="load_checkpoint is true, and run mine has no checkpoint"):
        find_origin(mine, wishing(load_checkpoint=True), None)
    with pytest.raises(EngineError, match="load_checkpoint_path: there is no complete checkpoint at"):
        find_origin(mine, wishing(load_checkpoint_path=str(tmp_path / "nowhere")), None)


@pytest.mark.parametrize("wish", [None, False])
def test_origin_unreadable_is_no_fresh_start(tmp_path: Path, wish: bool | None) -> None:
    mine = attempt(tmp_path, "mine")
    save(mine.paths, plain_state(), step=5, epoch=mine.epoch)
    manifest = Path(mine.paths.checkpoint("step-5-a001")) / records.MANIFEST
    manifest.write_text(manifest.read_text()[:100])
    with pytest.raises((CheckpointError, EngineError, records.RecordError), match="step-5-a001"):
        find_origin(mine, wishing(load_checkpoint=wish), None)


def test_origin_sealed_elsewhere_is_no_fresh_start(tmp_path: Path) -> None:
    """The checkpoint of the seal is missing: the run continues elsewhere, or it must be copied."""
    mine = attempt(tmp_path, "mine")
    fence = records.Fence.read(mine.paths.fence)
    dataclasses.replace(fence, epoch=2, owner="there", sealed_step=8).write(mine.paths.fence)
    with pytest.raises(EngineError, match="was migrated at step 8, and that checkpoint is missing"):
        find_origin(dataclasses.replace(mine, epoch=2), wishing(), None)


def test_removed_fence_is_not_a_new_run(tmp_path: Path) -> None:
    """It may name another owner: a source that was migrated would become the owner again."""
    mine = attempt(tmp_path, "mine")
    records.Lineage("mine").write(mine.paths.lineage)
    Path(mine.paths.fence).unlink()
    removed = r"fence.json has been removed.* \(hint: midstream --repair mine\)"
    with pytest.raises(EngineError, match=removed):
        attempt(tmp_path, "mine")
    with pytest.raises(FenceUnreadableError, match=removed):
        save(mine.paths, plain_state(), step=5, epoch=mine.epoch)
    with pytest.raises(FenceUnreadableError, match=removed):
        seal(mine.paths, epoch=2, owner="there", step=5)
    assert not Path(mine.paths.fence).exists()


def test_origin_of_command_names_its_checkpoint(tmp_path: Path) -> None:
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


def test_checkpoint_from_before_next_token_trained_without_it() -> None:
    config = TrainLmConfig()
    state = {"seed": config.trainer.seed, "seq_len": config.model.seq_len, "shuffle": True, "tokenizer": "bytes"}
    origin = Origin("checkpoints/step-5-a001", True, True, None, "", state, config={"data": {"pack": False}})
    check_same_data(origin, config, "bytes")
    longer = dataclasses.replace(config, data=dataclasses.replace(config.data, next_token=True))
    with pytest.raises(
        EngineError, match=r"data\.next_token is True, but checkpoint step-5-a001 was trained with False"
    ):
        check_same_data(origin, longer, "bytes")
    unknown = dataclasses.replace(origin, config={})
    check_same_data(unknown, longer, "bytes")


def test_requeued_replica_restores_the_sealed_state_alone(tmp_path: Path) -> None:
    """Its job had the command to take over before it ran again; an older checkpoint of the run is on its host."""
    mine = attempt(tmp_path, "mine")
    save(mine.paths, plain_state(), step=5, epoch=mine.epoch)
    seal(mine.paths, epoch=mine.epoch + 1, owner="there", step=9)
    replica = open_attempt(str(tmp_path), "mine", {"MIDSTREAM_ATTEMPT": "2", "MIDSTREAM_EPOCH": str(mine.epoch + 1)})
    command = records.Command(records.PROMOTE, epoch=replica.epoch, checkpoint="step-9-a001", step=9, sequence=3)
    with pytest.raises(CheckpointError, match="step-9-a001"):
        find_origin(replica, wishing(), command)
    save(mine.paths, plain_state(), step=9, epoch=mine.epoch)
    origin = find_origin(replica, wishing(), command)
    assert origin is not None
    assert origin.name == "step-9-a001"
