"""Steps of other trainers' checkpoints: a number in a name is one only where the logged steps agree with it."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from midstream_host.driver.checkpoint_steps import CheckpointSteps, Logged
from midstream_host.driver.checkpoints.checkpoint import Checkpoint
from midstream_host.driver.checkpoints.checkpoint_finder import find_checkpoints
from midstream_host.driver.checkpoints.step_names import step_in
from support.trainers.checkpoint_cases import CASES, Case


@pytest.mark.parametrize(
    ("name", "step"),
    [
        ("checkpoint_2026-11-28_23-47-57.044119", None),  # Ray Train
        ("ckpt-20261128-235811", None),
        ("ckpt_20261128.pt", None),
        ("20261128T235811Z", None),
        ("ckpt-23-47-57.pt", None),
        ("step_100_20261128", 100),
        ("epoch=3-seed42", None),
        ("epoch_17", None),
        ("checkpoint_epoch_3.pt", None),
        ("epoch=3-step=400-v1.ckpt", 400),
        ("epoch=3-val_loss=0.25.pt", None),
        ("model_1e-4.pt", None),
        ("global_step100-v2", 100),
        ("my-run_100", 100),
        ("llama-7b", None),
        ("llama-7b-1000.safetensors", 1000),
        ("step_12b", None),
        ("iter_0000100", 100),
        ("model_000123.bin.txt", 123),
        ("ckpt_20200100.pt", 20200100),  # no month has a day 0
        ("1" * 19, None),
    ],
)
def test_number_of_a_name(name: str, step: int | None) -> None:
    assert step_in(name) == step


def checkpoint(name: str, stated: int | None = None) -> Checkpoint:
    return Checkpoint(name, True, "", 1.0, [], stated, step_in(name))


def decided(rule: str, appearances: list[tuple[Checkpoint, int]], first: int = 0) -> list[tuple[int | None, str]]:
    """Step and problem of checkpoints that appear one after another, each with the step that is logged then."""
    steps, found, answers = CheckpointSteps(rule, first), list[Checkpoint](), list[tuple[int | None, str]]()
    for each, step in appearances:
        steps.look(found, Logged(step - 1, 1, step - first, lags=False))
        logged = Logged(step, 1, step - first, lags=False)
        steps.look([*found, each], logged)
        found.append(each)
        answers.append((steps.step_of(each, found, logged), steps.problem))
    return answers


@pytest.mark.parametrize(
    ("rule", "names", "first", "expected"),
    [
        ("glob", [("model_50.pt", 50), ("model_100.pt", 100)], 0, [50, 100]),
        ("glob", [("model_1.pt", 50), ("model_2.pt", 100)], 0, [None, None]),  # it counts epochs
        ("glob", [("model_200.pt", 50), ("model_400.pt", 100)], 0, [None, None]),  # it counts sequences
        ("glob", [("ckpt-1764374277", 50), ("ckpt-1764374337", 100)], 0, [None, None]),  # seconds
        ("glob", [("model_400.pt", 420), ("model_450.pt", 470)], 350, [400, 450]),  # saved in the background
        ("dcp", [("step-1050", 1050)], 1000, [1050]),
        ("dcp", [("step-50", 1050)], 1000, [None]),
        ("orbax", [("my-run_50", 51)], 0, [50]),
    ],
)
def test_a_name_counts_where_the_curve_agrees(
    rule: str, names: list[tuple[str, int]], first: int, expected: list[int | None]
) -> None:
    answers = decided(rule, [(checkpoint(name), step) for name, step in names], first)
    assert [step for step, _ in answers] == expected
    for (name, logged), (step, problem) in zip(names, answers, strict=True):
        assert (name in problem and f"{logged} steps were logged" in problem and "hint: " in problem) == (step is None)


def test_state_decides_whatever_the_name_says() -> None:
    assert decided("glob", [(checkpoint("model_1.pt", 50), 50)]) == [(50, "")]


@pytest.mark.parametrize("rule", ["glob", "dcp"])
def test_stated_step_that_the_curve_contradicts_does_not_count(rule: str) -> None:
    """It was that of an epoch: later checkpoints had lower steps, were passed over, and an old one was sealed."""
    within = [(checkpoint("ckpt-75", 75), 75), (checkpoint("ckpt-130", 30), 130), (checkpoint("ckpt-155", 55), 155)]
    assert [step for step, _ in decided(rule, within)] == [75, 130, 155]
    unnamed = decided(rule, [(checkpoint("epoch_0_75", 75), 75), (checkpoint("last", 30), 130)])
    assert unnamed[0][0] == 75
    assert unnamed[1][0] is None
    assert "last has step 30, and 129 steps were logged when it appeared" in unnamed[1][1]
    # A log that counts the batches of an accumulation.
    [(step, problem)] = decided(rule, [(checkpoint("ckpt-25", 25), 100)])
    assert step is None
    assert "metrics: {names: {step: NAME}}" in problem
    late = [(checkpoint("ckpt-25", 25), 45), (checkpoint("ckpt-50", 50), 70)]  # saved in the background
    assert [step for step, _ in decided(rule, late)] == [25, 50]
    assert decided("huggingface", [(checkpoint("checkpoint-25", 25), 100)])[0][0] == 25, "its trainer writes both"


@pytest.mark.parametrize(
    ("name", "count", "logged", "step"),
    [
        ("epoch_17", 850, 850, 850),
        ("save_17", 850, 850, 850),
        ("step_100", 98, 100, 100),  # a loss scale has skipped two updates
        ("checkpoint_3", 200, 200, 200),
    ],
)
def test_accelerate_has_the_count_of_its_optimizer(name: str, count: int, logged: int, step: int) -> None:
    assert decided("accelerate", [(checkpoint(name, count), logged)]) == [(step, "")]


def test_without_a_logged_step_a_name_shows_nothing() -> None:
    steps, found = CheckpointSteps("dcp", 0), checkpoint("step-50")
    nothing = Logged(0, 1, 0, lags=True)
    steps.look([found], nothing)
    assert steps.step_of(found, [found], nothing) is None
    assert "no step is logged yet" in steps.problem


def test_rows_that_come_late_show_the_newest_name() -> None:
    steps, found = CheckpointSteps("dcp", 0), [checkpoint("step-50")]
    for step, expected in ((10, None), (60, 50)):
        logged = Logged(step, 1, step, lags=True)
        steps.look(found, logged)
        assert steps.step_of(found[0], found, logged) == expected


def test_script_states_its_step_in_a_file_of_its_folder(copy: Callable[[Case], Path]) -> None:
    """Ray Train names its folders by the time; the script's file has the step."""
    path = copy(CASES["script"])
    folder = path.parent / "checkpoint_2026-11-28_23-47-57.044119"
    folder.mkdir()
    path.rename(folder / "state.pt")
    (folder / "config.json").write_text(json.dumps({"step": 400, "steps": 400}))
    (folder / "log.json").write_text('{"step": 1, "loss": 0.5}\n{"step": 2, "loss": 0.25}\n')
    [found] = find_checkpoints("glob", str(path.parent), "checkpoint_*")
    assert (found.complete, found.stated, found.named) == (True, 4, None)
    (folder / "progress.json").write_text(json.dumps({"step": 5}))
    [found] = find_checkpoints("glob", str(path.parent), "checkpoint_*")
    assert (found.complete, found.step) == (True, None)
