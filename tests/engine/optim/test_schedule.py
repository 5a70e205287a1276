"""The learning rate at each step, against the explicit formula."""

from __future__ import annotations

import dataclasses
import math
from typing import Any

import numpy as np
import pytest

from midstream_core.learning_rate import cycle_ends, rate_settings
from midstream_engine.config import AdamConfig, ConfigError
from midstream_engine.optim.optimizer import SCHEDULE, build_optimizer, schedule_count
from midstream_engine.optim.schedule import learning_rate

TOTAL, PEAK, LOW = 100, 1e-3, 1e-4


def rates(total: int = TOTAL, **values: Any) -> np.ndarray:
    config = AdamConfig(learning_rate=PEAK, min_lr_ratio=LOW / PEAK, **values)
    schedule = learning_rate(config, total)
    return np.array([float(schedule(step)) for step in range(total + 5)])


def shape(kind: str, progress: float, steps: int, warmup: int) -> float:
    """The decay, ``progress`` of the way from the peak to the end."""
    if kind == "constant":
        return PEAK
    if kind == "linear":
        return PEAK + (LOW - PEAK) * progress
    if kind == "cosine":
        return LOW + (PEAK - LOW) * (1 + math.cos(math.pi * progress)) / 2
    if kind == "inv":
        return PEAK / ((PEAK / LOW - 1) * max(progress, 1 / steps) + 1)
    return max(PEAK * min(1.0, 1 / math.sqrt((progress * steps + warmup) / 10_000)), LOW)


@pytest.mark.parametrize("kind", ["constant", "linear", "cosine", "inv", "inv_sqrt"])
@pytest.mark.parametrize(("warmup", "steps"), [(10, 10), (0.2, 20)])
def test_schedule_warms_up_then_decays_to_the_end(kind: str, warmup: float, steps: int) -> None:
    got = rates(lr_schedule=kind, warmup=warmup)
    rest = TOTAL - steps
    for step in range(TOTAL):
        if step < steps:
            wanted = PEAK * step / steps
        else:
            wanted = shape(kind, (step - steps) / rest, rest, steps)
        assert got[step] == pytest.approx(wanted, rel=1e-5, abs=1e-12), step


def test_schedule_stable_part_is_between_warmup_and_decay() -> None:
    got = rates(lr_schedule="linear", warmup=10, decay=0.3)
    assert got[10:71] == pytest.approx(PEAK)
    assert got[85] == pytest.approx((PEAK + LOW) / 2, rel=1e-5)
    assert got[100:] == pytest.approx(LOW, rel=1e-5)


def test_schedule_keeps_warmup_when_decay_overflows() -> None:
    got = rates(lr_schedule="cosine", warmup=0.1, decay=1.0)
    assert got[5] == pytest.approx(PEAK / 2, rel=1e-5)
    assert got[10] == pytest.approx(PEAK, rel=1e-5)


@pytest.mark.parametrize("kind", ["cosine", "linear", "inv"])
def test_schedule_without_decay_stays_at_peak(kind: str) -> None:
    assert rates(lr_schedule=kind, warmup=10, decay=0.0)[10:] == pytest.approx(PEAK)


def test_schedule_refuses_inv_to_zero() -> None:
    with pytest.raises(ConfigError, match=r"min_lr_ratio: lr_schedule 'inv' needs one above 0"):
        AdamConfig(lr_schedule="inv", min_lr_ratio=0.0)


def test_schedule_follows_count_of_optimizer_state() -> None:
    """The count is restored from a checkpoint, independent of its step number."""
    config = AdamConfig(learning_rate=PEAK, warmup=10, weight_decay=0.0, max_grad_norm=0.0)
    schedule = learning_rate(config, TOTAL)
    optimizer = build_optimizer(config, schedule)
    weights: Any = {"w": np.ones(3, np.float32)}
    state: Any = optimizer.init(weights)
    before = {**state, SCHEDULE: state[SCHEDULE]._replace(count=np.int32(5))}
    updates: Any
    updates, after = optimizer.update(weights, before, weights)
    np.testing.assert_allclose(updates["w"], -schedule(5) * np.ones(3), rtol=1e-5)
    assert int(schedule_count(after)) == 6


def test_schedule_cycles_warm_up_from_end_of_the_last() -> None:
    got = rates(lr_schedule="linear", warmup=10, rewarmup=10, cycles=2)
    assert got[50] == pytest.approx(LOW, rel=1e-5)
    assert got[55] == pytest.approx((LOW + PEAK) / 2, rel=1e-5)
    assert got[60] == pytest.approx(PEAK, rel=1e-5)
    assert rates(lr_schedule="linear", warmup=10, cycles=2)[50] == pytest.approx(PEAK, rel=1e-5)


@pytest.mark.parametrize(
    ("values", "ends"),
    [
        ({}, [0, 100]),
        ({"cycles": 3}, [0, 33, 66, 100]),
        ({"cycles": [10, 50]}, [0, 10, 50, 100]),
        ({"cycle_length": [10, 20]}, [0, 10, 30, 100]),
        ({"cycle_length": 30}, [0, 30, 60, 100]),
        ({"cycle_length": 0.25}, [0, 25, 50, 75, 100]),
    ],
)
def test_schedule_cycle_ends(values: dict[str, Any], ends: list[int]) -> None:
    assert cycle_ends(rate_settings(dataclasses.asdict(AdamConfig(**values))), TOTAL) == ends


def test_schedule_refuses_more_cycles_than_steps() -> None:
    with pytest.raises(ConfigError, match=r"optimizer\.cycles: 1e\+15 cycles are more than the run's 100 steps"):
        learning_rate(AdamConfig(cycles=10**15), TOTAL)


@pytest.mark.parametrize("values", [{"cycle_length": 2}, {"cycles": 200_000}])
def test_schedule_refuses_more_cycles_than_fit_in_memory(values: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match=r"optimizer\.cycle.* more than 100,000"):
        learning_rate(AdamConfig(**values), 1 << 31)


def test_schedule_refuses_cycles_that_do_not_grow() -> None:
    with pytest.raises(ConfigError, match=r"optimizer\.cycles: \[50, 10\] decrease"):
        learning_rate(AdamConfig(cycles=[50, 10]), TOTAL)
