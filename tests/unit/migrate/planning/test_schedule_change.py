"""Explained changes of batch and steps equal what the engine does."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from midstream.errors import UsageError
from midstream.migrate.planning import schedule_change
from midstream.migrate.planning.schedule_change import TrainingSchedule, explain, training_schedule
from midstream_core.learning_rate import rate_settings
from midstream_engine.config.batch_schedule import BatchSchedule
from midstream_engine.config.optimizer import OptimizerConfig
from midstream_engine.optim.schedule import learning_rate

CONFIG = {
    "model": {"seq_len": 128},
    "trainer": {"train_batch_size": 32, "num_train_steps": 1000},
    "optimizer": {"learning_rate": 1e-3, "warmup": 0.1, "min_lr_ratio": 0.1, "lr_schedule": "cosine", "decay": None},
}


@settings(max_examples=25, deadline=None)
@given(
    shape=st.sampled_from(["cosine", "linear", "constant", "inv", "inv_sqrt"]),
    total=st.integers(20, 400),
    warmup=st.sampled_from([0.0, 0.01, 0.3, 7.0, 1000.0]),
    decay=st.sampled_from([None, 0.2, 11.0]),
    at=st.floats(0, 1),
)
def test_learning_rate_equals_the_engines(
    shape: str, total: int, warmup: float, decay: float | None, at: float
) -> None:
    config = OptimizerConfig(lr_schedule=shape, warmup=warmup, decay=decay, learning_rate=3e-4, min_lr_ratio=0.2)
    ours = TrainingSchedule(total, ((0, 8),), 16, dataclasses.asdict(config))
    step = int(at * (total - 1))
    assert ours.rate(step) == pytest.approx(float(np.asarray(learning_rate(config, total)(step))), rel=2e-5, abs=1e-9)


def test_explain_has_rates_of_cycles_and_refuses_impossible_ones() -> None:
    optimizer = {**CONFIG["optimizer"], "cycle_length": [400, 500], "rewarmup": 0.1}
    before = training_schedule({**CONFIG, "optimizer": optimizer})
    after = training_schedule({**CONFIG, "optimizer": optimizer}, {"trainer.num_train_steps": "950"})
    changes = {change.name: change for change in explain(before, after, 800)}
    assert changes["schedule"].note == "cycles are divided again by the number of steps"
    rate = float(np.asarray(learning_rate(OptimizerConfig(**optimizer), 1000)(900)))  # pyright: ignore[reportArgumentType]
    assert changes["rate +100"].before == f"{rate:.4g}"
    with pytest.raises(UsageError, match="cycle_length: the cycles have 900 steps in all, more than the run's 800"):
        training_schedule({**CONFIG, "optimizer": optimizer}, {"trainer.num_train_steps": "800"})


def test_rate_settings_have_the_defaults_of_the_engine() -> None:
    assert rate_settings({}) == rate_settings(dataclasses.asdict(OptimizerConfig()))
    assert rate_settings({"learning_rate": "3e-4", "decay": None}).learning_rate == 3e-4  # YAML reads 3e-4 as text


@given(
    sizes=st.lists(st.tuples(st.integers(1, 50), st.integers(1, 64)), max_size=3),
    first=st.integers(1, 64),
    at=st.integers(1, 200),
    then=st.integers(1, 64),
)
def test_samples_equal_the_engines_count(sizes: list[tuple[int, int]], first: int, at: int, then: int) -> None:
    starts = np.cumsum([0, *(start for start, _ in sizes)]).tolist()
    points = tuple(zip(starts, [first, *(size for _, size in sizes)], strict=True))
    ours = TrainingSchedule(1000, points, 16, {}).then(at, TrainingSchedule(1000, ((0, then),), 16, {}))
    theirs = BatchSchedule(points).then(at, BatchSchedule(((0, then),)))
    for step in (1, at, at + 1, 300):
        assert ours.samples(step) == theirs.first_sample(step)
        assert ours.size(step) == theirs.size(step)


def test_unchanged_run_has_no_explanation() -> None:
    assert explain(training_schedule(CONFIG), training_schedule(CONFIG), 500) == ()
    same = training_schedule(CONFIG, {"trainer.train_batch_size": "32", "trainer.mp": "f32"})
    assert explain(training_schedule(CONFIG), same, 500) == ()


def test_explain_lists_changed_steps_and_batch() -> None:
    after = training_schedule(CONFIG, {"trainer.num_train_steps": "2000", "trainer.train_batch_size": "64"})
    changes = {change.name: change for change in explain(training_schedule(CONFIG), after, 500)}
    assert (changes["warmup"].before, changes["warmup"].after) == ("ends at 100", "ends at 200")
    assert (changes["decay"].before, changes["decay"].after) == ("100 to 1000", "200 to 2000")
    assert changes["samples"].after == str(500 * 32 + 1500 * 64)
    assert changes["tokens"].after == str(128 * (500 * 32 + 1500 * 64))
    assert changes["rate"].before != changes["rate"].after
    assert "step 600" in changes["rate +100"].note
    again = {change.name: change for change in explain(training_schedule(CONFIG), after, 150)}
    assert "warm up again" in again["warmup"].note


@pytest.mark.parametrize(
    ("name", "text"),
    [
        (schedule_change.STEPS, "many"),
        (schedule_change.STEPS, "0"),
        (schedule_change.BATCH, "x"),
        (schedule_change.BATCH, "[{start: 1}]"),
    ],
)
def test_unreadable_schedule_values_are_refused(name: str, text: str) -> None:
    with pytest.raises(UsageError, match="is n"):
        training_schedule(CONFIG, {name: text})
