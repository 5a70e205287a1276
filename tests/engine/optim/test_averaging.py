"""Model averages and SkipStep under jit against plain numpy; and the decay mask."""

from __future__ import annotations

import math
from typing import Any

import equinox as eqx
import haliax as hax
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from midstream_engine.config import AdamConfig, EmaConfig, EmaDecaySqrtConfig, SkipStepConfig
from midstream_engine.optim.averaging import start_average, update_average
from midstream_engine.optim.decay import decay_mask
from midstream_engine.optim.skip_step import SKIP, skip_step


def models(count: int = 12) -> list[np.ndarray]:
    draw = np.random.default_rng(7)
    return [draw.normal(size=3).astype(np.float32) for _ in range(count)]


def test_ema_moves_by_one_minus_decay_towards_each_model() -> None:
    config, (first, *rest) = EmaConfig(beta=0.9), models()
    average, expected = start_average(config, {"w": jnp.asarray(first)}), first.astype(np.float64)
    assert average is not None
    update = jax.jit(lambda *arguments: update_average(config, *arguments))
    for step, model in enumerate(rest):
        average = update(average, {"w": jnp.asarray(model)}, jnp.int32(step))
        expected += 0.1 * (model - expected)
    np.testing.assert_allclose(average.model["w"], expected, rtol=1e-5)
    assert average.weight is None


def test_ema_decay_sqrt_is_weighted_mean_and_constant_at_end() -> None:
    config, all_models = EmaDecaySqrtConfig(beta=0.75, switch_step=3, decay_steps=5), models()
    average = start_average(config, {"w": jnp.asarray(all_models[0])})
    assert average is not None
    update = jax.jit(lambda *arguments: update_average(config, *arguments))
    weights, means = [], []
    for step, model in enumerate(all_models[1:]):
        average = update(average, {"w": jnp.asarray(model)}, jnp.int32(step))
        weights.append(0.25 if step < 3 else 1 - math.sqrt(min((step - 3) / 5, 1.0)))
        expected = np.average(all_models[1 : step + 2], axis=0, weights=weights)
        np.testing.assert_allclose(average.model["w"], expected, rtol=1e-5, atol=1e-6)
        means.append(np.asarray(average.model["w"]))
    assert np.asarray(average.weight) == pytest.approx(sum(weights), rel=1e-6)
    assert np.array_equal(means[-1], means[-2])


def test_averaging_none_has_no_state() -> None:
    assert start_average(None, {"w": jnp.zeros(2)}) is None


@pytest.fixture
def skipping() -> Any:
    """A jitted update of a momentum under SkipStep with a window of 8 and 3 sigma."""
    inner = optax.named_chain(("trace", optax.trace(0.5)))
    optimizer = skip_step(inner, SkipStepConfig(8, 3.0))
    state = optimizer.init({"w": jnp.zeros(2)})
    update = jax.jit(lambda state, loss, norm: optimizer.update(
        {"w": jnp.ones(2)}, state, None, loss=jnp.float32(loss), gradient_norm=jnp.float32(norm)
    ))  # fmt: skip
    return state, update


def test_skip_step_skips_outlier_update_and_keeps_its_loss(skipping: Any) -> None:
    state, update = skipping
    for loss in (1.0, 1.1, 0.9):
        updates, state = update(state, 100 * loss, 1.0)
        assert float(updates["w"][0]) > 0  # three losses are too few to judge
    updates, state = update(state, 99.0, 1.05)
    momentum = np.asarray(state["trace"].trace["w"])
    for loss, norm in ((1e4, 1.0), (100.0, 50.0)):
        updates, state = update(state, loss, norm)
        assert not np.any(updates["w"])
        assert np.array_equal(state["trace"].trace["w"], momentum)
    assert (int(state[SKIP].skipped), int(state[SKIP].seen)) == (2, 6)
    updates, state = update(state, 101.0, 1.0)
    assert np.all(np.asarray(updates["w"]) > 0)


def test_skip_step_skips_and_forgets_non_finite_loss(skipping: Any) -> None:
    state, update = skipping
    _, state = update(state, 1.0, 1.0)
    updates, state = update(state, float("nan"), 1.0)
    assert not np.any(updates["w"])
    assert (int(state[SKIP].skipped), int(state[SKIP].seen)) == (1, 1)


def test_skip_step_accepts_lasting_change_of_level(skipping: Any) -> None:
    state, update = skipping
    for _ in range(8):
        _, state = update(state, 1.0, 1.0)
    skips = 0
    for _ in range(8):
        updates, state = update(state, 5.0, 1.0)
        skips += not np.any(updates["w"])
    assert 0 < skips < 8


class Small(eqx.Module):
    weight: jax.Array
    bias: jax.Array

    def decayed(self) -> Small:
        return Small(True, False)  # pyright: ignore[reportArgumentType]


@pytest.mark.parametrize(
    ("values", "marks"),
    [
        ({}, (True, False)),
        ({"default_weight_decay_mask": False}, (True, True)),
        ({"weight_decay_modules": ["bias"]}, (False, True)),
        ({"weight_decay_modules": ".*eight"}, (True, False)),
        ({"weight_decay_modules": ["bias"], "default_weight_decay_mask": True}, (True, True)),
    ],
)
def test_decay_mask_selects_arrays(values: dict[str, Any], marks: tuple[bool, bool]) -> None:
    mask = decay_mask(AdamConfig(**values))(Small(jnp.zeros(1), jnp.zeros(1)))
    assert (mask.weight, mask.bias) == marks


def test_expression_for_a_complete_name_selects_a_named_array() -> None:
    arrays = [hax.zeros(hax.Axis("embed", 1)) for _ in range(2)]
    model = Small(*arrays)  # pyright: ignore[reportArgumentType]
    mask = decay_mask(AdamConfig(weight_decay_modules="(?:weight)$", default_weight_decay_mask=False))(model)
    assert jax.tree.leaves(mask) == [True, False]


@pytest.mark.parametrize(
    ("value", "meant"),
    [(False, None), (True, SkipStepConfig()), (64, SkipStepConfig(64)), ({"sigma_factor": 4}, SkipStepConfig(128, 4))],
)
def test_skip_bad_steps_values(value: Any, meant: SkipStepConfig | None) -> None:
    assert AdamConfig(skip_bad_steps=value).skip_step() == meant
