"""State in another trainer's checkpoint, and what a resume from it continues."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from midstream_host.driver.checkpoints.checkpoint_finder import saved_state
from support.paths import FIXTURES
from support.trainers.checkpoint_cases import CASES, Case


@pytest.mark.parametrize(
    ("name", "position", "random", "scheduler", "advice"),
    [
        ("huggingface", "recomputed", 2, True, ""),
        ("lightning", "none", 0, True, "StatefulDataLoader"),
        ("accelerate", "stored", 2, True, "use_seedable_sampler"),
        ("dcp", "none", 0, True, "by the step"),
        ("script", "none", 1, False, "by the step"),
        ("deepspeed", "none", 1, True, "by the step"),
        ("levanter", "recomputed", 1, True, ""),
        ("orbax", "none", 0, True, "grain"),
    ],
)
def test_saved_state_says_what_a_resume_continues(name, position, random, scheduler, advice) -> None:
    case = CASES[name]
    state = saved_state(case.rule, str(FIXTURES / case.run / case.path))
    assert (state.model, state.optimizer) == (True, True)
    assert (state.data_position, state.random_states, state.scheduler) == (position, random, scheduler)
    assert advice in " ".join(state.advice)


def test_huggingface_without_skipped_batches_restarts_its_data(copy: Callable[[Case], Path]) -> None:
    path = copy(CASES["huggingface"])
    data = (path / "training_args.bin").read_bytes()
    name = b"ignore_data_skip"
    at = data.index(name) + len(name)
    at += data[at : at + 8].index(b"\x89")  # False
    (path / "training_args.bin").write_bytes(data[:at] + b"\x88" + data[at + 1 :])
    state = saved_state("huggingface", str(path))
    assert state.data_position == "none"
    assert "ignore_data_skip" in state.advice[0]


def test_a_stateful_loader_is_seen_in_a_checkpoint_of_lightning() -> None:
    (path,) = (FIXTURES / "trainers/lightning-stateful").rglob("epoch=0-step=3.ckpt")
    state = saved_state("lightning", str(path))
    assert state.data_position == "stored"
    assert not [line for line in state.advice if "StatefulDataLoader" in line]


def test_stream_in_its_second_pass_begins_the_pass_again(copy: Callable[[Case], Path]) -> None:
    path = copy(CASES["huggingface"])
    state = json.loads((path / "trainer_state.json").read_text())
    for epoch, position in ((0.75, "recomputed"), (1.0, "none"), (2.25, "none")):
        of_stream = {**state, "num_train_epochs": sys.maxsize, "epoch": epoch}
        (path / "trainer_state.json").write_text(json.dumps(of_stream))
        found = saved_state("huggingface", str(path))
        assert found.data_position == position
        assert ("begins the pass again" in " ".join(found.advice)) is (position == "none")


def test_dispatched_batches_of_two_processes_are_repeated(copy: Callable[[Case], Path]) -> None:
    path = copy(CASES["huggingface"])
    data = (path / "training_args.bin").read_bytes()
    at = data.index(b"dispatch_batches") + len(b"dispatch_batches")
    at += data[at : at + 8].index(b"N")  # None
    (path / "training_args.bin").write_bytes(data[:at] + b"\x88" + data[at + 1 :])
    found = saved_state("huggingface", str(path))
    assert found.random_states == 2
    assert found.data_position == "none"
    assert found.advice[0].startswith("dispatch_batches")


def test_loader_states_of_torchtitan_are_counted() -> None:
    state = saved_state("dcp", str(FIXTURES / "trainers/torchtitan/step-2"))
    assert (state.loader_ranks, state.data_position) == (2, "stored")
    case = CASES["dcp"]
    assert saved_state("dcp", str(FIXTURES / case.run / case.path)).loader_ranks is None


def test_automatic_name_of_accelerate_is_no_step(copy: Callable[[Case], Path]) -> None:
    path = copy(CASES["accelerate"])
    assert saved_state("accelerate", str(path)).counted_name is None
    counted = path.rename(path.parent / "checkpoint_3")
    assert saved_state("accelerate", str(counted)).counted_name == 3
