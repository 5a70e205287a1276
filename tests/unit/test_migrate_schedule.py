"""What another batch or other steps do to a run is what the engine will do."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from midstream.errors import UsageError
from midstream.migrate.planning import schedule_change
from midstream.migrate.planning.schedule_change import Rhythm, explain, rhythm
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
def test_the_learning_rate_is_the_engines(shape: str, total: int, warmup: float, decay: float | None, at: float):
    config = OptimizerConfig(lr_schedule=shape, warmup=warmup, decay=decay, learning_rate=3e-4, min_lr_ratio=0.2)
    told = Rhythm(total, ((0, 8),), 16, dataclasses.asdict(config))
    step = int(at * (total - 1))
    assert told.rate(step) == pytest.approx(float(np.asarray(learning_rate(config, total)(step))), rel=2e-5, abs=1e-9)


@given(
    sizes=st.lists(st.tuples(st.integers(1, 50), st.integers(1, 64)), max_size=3),
    first=st.integers(1, 64),
    at=st.integers(1, 200),
    then=st.integers(1, 64),
)
def test_samples_are_counted_as_the_engine_counts_them(sizes, first: int, at: int, then: int):
    starts = np.cumsum([0, *(start for start, _ in sizes)]).tolist()
    points = tuple(zip(starts, [first, *(size for _, size in sizes)], strict=True))
    ours = Rhythm(1000, points, 16, {}).then(at, Rhythm(1000, ((0, then),), 16, {}))
    theirs = BatchSchedule(points).then(at, BatchSchedule(((0, then),)))
    for step in (1, at, at + 1, 300):
        assert ours.samples(step) == theirs.first_sample(step)
        assert ours.size(step) == theirs.size(step)


def test_a_run_that_stays_what_it_is_needs_no_word():
    assert explain(rhythm(CONFIG), rhythm(CONFIG), 500) == ()
    same = rhythm(CONFIG, {"trainer.train_batch_size": "32", "trainer.mp": "f32"})
    assert explain(rhythm(CONFIG), same, 500) == ()


def test_more_steps_and_a_larger_batch_are_explained():
    after = rhythm(CONFIG, {"trainer.num_train_steps": "2000", "trainer.train_batch_size": "64"})
    told = {change.name: change for change in explain(rhythm(CONFIG), after, 500)}
    assert (told["warmup"].before, told["warmup"].after) == ("ends at 100", "ends at 200")
    assert (told["decay"].before, told["decay"].after) == ("100 to 1000", "200 to 2000")
    assert told["samples"].after == str(500 * 32 + 1500 * 64)
    assert told["tokens"].after == str(128 * (500 * 32 + 1500 * 64))
    assert told["rate"].before != told["rate"].after
    assert "step 600" in told["rate +100"].note
    again = {change.name: change for change in explain(rhythm(CONFIG), after, 150)}
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
def test_what_cannot_be_read_is_refused(name: str, text: str):
    with pytest.raises(UsageError, match="is n"):
        rhythm(CONFIG, {name: text})
