"""Behaviour of other trainers that are stopped, saved and resumed: the facts that their defaults here are built on.

A release that behaves in another way fails a test, and then the defaults and docs/reference/trainers.md have to follow.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
from pathlib import Path

import pytest

from midstream.migrate.journal.certificate import CLAIM_FAILED, NOT_CHECKED, VERIFIED, Claim
from midstream.migrate.proof.global_batch_claim import global_batch_claim
from midstream_host.driver.checkpoints.checkpoint import Checkpoint
from midstream_host.driver.checkpoints.checkpoint_finder import find_checkpoints, saved_state
from midstream_host.driver.checkpoints.huggingface import WITHOUT_LENGTH
from midstream_host.driver.checkpoints.rule import RecordedEpoch
from midstream_host.driver.metrics.metrics_reader import open_reader
from midstream_host.runs.losses import reduced
from support.trainers.trainer_processes import HUNG, finished, needs_trainers, running

pytestmark = [pytest.mark.slow, needs_trainers]

MANY = ("--steps", "100000", "--save-every", "5")  # the program runs until it is signalled


def complete(rule: str, directory: Path, pattern: str = "", ranks: int | None = None) -> list[Checkpoint]:
    return [each for each in find_checkpoints(rule, str(directory), pattern, ranks) if each.complete]


def newest_step(rule: str, directory: Path, pattern: str = "") -> int:
    found = complete(rule, directory, pattern)
    return max((each.step for each in found if each.step is not None), default=-1)


# ------------------------------------------------------------------------------------------- Lightning


def test_lightning_saves_nothing_on_sigterm_and_exits_with_0(tmp_path: Path) -> None:
    with running(tmp_path, "train_lightning.py", "out", *MANY, "--save", "default", pause=0.05) as process:
        process.wait_for_step(7)
        process.signal()
        assert process.wait() == 0
    assert find_checkpoints("lightning", str(tmp_path)) == []


def test_lightning_keeps_its_periodic_checkpoint_on_sigterm(tmp_path: Path) -> None:
    with running(tmp_path, "train_lightning.py", "out", *MANY, pause=0.05) as process:
        process.wait_for_step(7)
        process.signal()
        assert process.wait() == 0
        done = max(process.steps()) + 1
    assert newest_step("lightning", tmp_path) == done - done % 5


def test_lightning_saves_on_sigterm_with_save_on_exception(tmp_path: Path) -> None:
    with running(tmp_path, "train_lightning.py", "out", *MANY, "--save", "exception", pause=0.05) as process:
        process.wait_for_step(7)
        process.signal()
        assert process.wait() == 0
        printed = max(process.steps()) + 1
    assert printed - newest_step("lightning", tmp_path) in (0, 1)  # the signal may arrive between loss and update


def test_lightning_two_ranks_save_when_torchrun_is_signalled(tmp_path: Path) -> None:
    options = (*MANY, "--save", "exception", "--devices", "2")
    with running(tmp_path, "train_lightning.py", "out", *options, ranks=2, pause=0.05) as process:
        process.wait_for_step(7)
        process.signal()
        assert process.wait() == 1  # the same status as of a failure
        printed = max(process.steps()) + 1
    assert newest_step("lightning", tmp_path) >= printed - 1


def test_lightning_hangs_when_one_rank_alone_is_signalled(tmp_path: Path) -> None:
    options = (*MANY, "--save", "exception", "--devices", "2")
    with running(tmp_path, "train_lightning.py", "out", *options, ranks=2, pause=0.05) as process:
        process.wait_for_step(7)
        os.kill(process.ranks()[0], signal.SIGTERM)
        with pytest.raises(subprocess.TimeoutExpired):
            process.process.wait(HUNG)
        stopped = max(process.steps())
        assert max(process.steps()) == stopped
        assert len(process.ranks()) == 2


@pytest.mark.parametrize("stateful", [False, True])
def test_lightning_restarts_data_without_a_stateful_loader(stateful: bool, tmp_path: Path) -> None:
    more = ("--stateful",) if stateful else ()
    straight = finished(tmp_path, "train_lightning.py", "out", "--steps", "10", *more)
    (checkpoint,) = [each for each in complete("lightning", tmp_path / "out") if each.path.endswith("step=5.ckpt")]
    path = tmp_path / "out" / checkpoint.path
    resumed = finished(tmp_path, "train_lightning.py", "again", "--steps", "10", *more, "--resume", str(path))
    assert min(resumed) == 5  # the step is right in both
    same = resumed[5].batch == straight[5].batch
    assert same is stateful
    assert (saved_state("lightning", str(path)).data_position == "stored") is stateful
    if not stateful:
        assert resumed[5].batch == straight[0].batch  # the epoch begins again, without a word


# ------------------------------------------------------------------------------- Trainer of transformers


def test_huggingface_sigterm_exits_143_keeps_periodic_checkpoint(tmp_path: Path) -> None:
    with running(tmp_path, "train_huggingface.py", "out", *MANY, pause=0.05) as process:
        process.wait_for_step(7)
        process.signal()
        assert process.wait() == 143
        done = max(process.steps())
    assert newest_step("huggingface", tmp_path / "out") == done - done % 5


def test_huggingface_jit_checkpoint_is_a_step_behind_its_curve(tmp_path: Path) -> None:
    options = ("--steps", "100000", "--save-every", "100000", "--jit-checkpoint")
    with running(tmp_path, "train_huggingface.py", "out", *options, pause=0.05) as process:
        process.wait_for_step(7)
        process.signal()
        process.wait()
        logged = max(process.steps())
    assert newest_step("huggingface", tmp_path / "out") == logged - 1


def test_huggingface_resumes_exactly_on_the_same_world(tmp_path: Path) -> None:
    straight = finished(tmp_path, "train_huggingface.py", "out", "--steps", "10")
    path = tmp_path / "out" / "checkpoint-5"
    assert find_checkpoints("huggingface", str(tmp_path / "out"), "", 1)[0].complete
    resumed = finished(tmp_path, "train_huggingface.py", "again", "--steps", "10", "--resume", str(path))
    assert {number: (step.loss, step.batch) for number, step in resumed.items()} == {
        number: (straight[number].loss, straight[number].batch) for number in range(6, 11)
    }


@pytest.mark.parametrize("stream", [False, True])
def test_huggingface_epoch_shows_the_global_batch(stream: bool, tmp_path: Path) -> None:
    """Of data without a length it does not: the Trainer divides the steps by their number, whatever a batch has."""
    options = ("--save-every", "6", *(["--stream"] if stream else []))
    finished(tmp_path, "train_huggingface.py", "source", "--steps", "6", *options)
    claims: list[Claim] = []
    for batch in ("8", "16"):
        out = f"with-{batch}"
        shutil.copytree(tmp_path / "source", tmp_path / out)
        finished(tmp_path, "train_huggingface.py", out, "--steps", "12", "--batch", batch, "--resume", *options)
        found = open_reader("trainer_state", str(tmp_path / out), first_step=1).poll()
        rows = [dict(reduced(row)) for part in found for row in part.rows if "train/loss" in row]
        state = json.loads((tmp_path / "source/checkpoint-6/trainer_state.json").read_text())
        epoch = RecordedEpoch(6, state["num_train_epochs"] < WITHOUT_LENGTH)
        claims.append(global_batch_claim(None, rows[:6], rows[6:], [], [], epoch))
    expected = [NOT_CHECKED, NOT_CHECKED] if stream else [VERIFIED, CLAIM_FAILED]
    assert [claim.verdict for claim in claims] == expected, claims


def test_huggingface_resumes_a_partial_checkpoint_rule_refuses(tmp_path: Path) -> None:
    finished(tmp_path, "train_huggingface.py", "out", "--steps", "10")
    path = tmp_path / "out" / "checkpoint-5"
    for name in ("optimizer.pt", "scheduler.pt", "rng_state.pth"):
        (path / name).unlink()
    (path / "checkpoint-is-incomplete.txt").write_text("Checkpoint started at step 5 and in progress...")
    found = find_checkpoints("huggingface", str(tmp_path / "out"), "checkpoint-5", 1)
    assert [(each.complete, "checkpoint-is-incomplete.txt" in each.reason) for each in found] == [(False, True)]
    finished(tmp_path, "train_huggingface.py", "again", "--steps", "10", "--resume", str(path))  # it does not refuse

    def rates(directory: Path) -> dict[int, float]:
        rows = open_reader("trainer_state", str(directory), first_step=1).poll()[0].rows
        return {row["global_step"]: row["optim/learning_rate"] for row in rows}

    assert rates(tmp_path / "again")[5] != rates(tmp_path / "out")[5]


# ------------------------------------------------------------------------------------------ Accelerate


@pytest.mark.parametrize("stateful", [False, True])
@pytest.mark.parametrize("seedable", [False, True])
def test_accelerate_repeats_its_data_only_with_both_options(stateful: bool, seedable: bool, tmp_path: Path) -> None:
    options = [*["--stateful"][:stateful], *["--seedable"][:seedable], "--steps", "10"]
    straight = finished(tmp_path, "train_accelerate.py", "out", *options)
    (checkpoint,) = complete("accelerate", tmp_path / "out", "step_5", 1)
    path = str(tmp_path / "out" / checkpoint.path)
    assert (saved_state("accelerate", path).data_position == "stored") is stateful
    resumed = finished(tmp_path, "train_accelerate.py", "again", *options, "--resume", path)
    same = all(resumed[number].batch == straight[number].batch for number in range(6, 11))
    assert same is (stateful and seedable)
    # The resumed loader draws from the random state that was restored before it, so dropout differs in any case.
    assert resumed[6].loss != straight[6].loss


# --------------------------------------------------------------------------- torchrun, FSDP2 and DCP


def test_dcp_of_two_ranks_is_loaded_by_one(tmp_path: Path) -> None:
    straight = finished(tmp_path, "train_torchrun.py", "out", "--steps", "10", ranks=2)
    path = tmp_path / "out" / "step-5"
    assert [each.step for each in complete("dcp", tmp_path / "out", "", 2)] == [5, 10]
    for ranks in (1, 2):
        resumed = finished(
            tmp_path, "train_torchrun.py", f"again-{ranks}", "--steps", "10", "--resume", str(path), ranks=ranks
        )
        for number in range(6, 11):
            assert resumed[number].loss == pytest.approx(straight[number].loss, rel=1e-6)


def test_dcp_save_that_is_killed_leaves_no_complete_checkpoint(tmp_path: Path) -> None:
    finished(tmp_path, "train_torchrun.py", "out", "--steps", "5", ranks=2)
    path = tmp_path / "out" / "step-5"
    shutil.copytree(path, tmp_path / "out" / "step-6")
    (tmp_path / "out" / "step-6" / ".metadata").unlink()  # it is written last
    found = find_checkpoints("dcp", str(tmp_path / "out"), "", 2)
    assert [(each.step, each.complete) for each in found] == [(5, True), (6, False)]


def test_torchrun_passes_a_signal_to_ranks_that_then_save(tmp_path: Path) -> None:
    with running(tmp_path, "train_torchrun.py", "out", *MANY, "--save-on-signal", ranks=2, pause=0.05) as process:
        process.wait_for_step(7)
        process.signal()
        process.wait()
        done = max(process.steps())
    assert newest_step("dcp", tmp_path / "out") == done
