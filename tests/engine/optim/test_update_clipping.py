"""Limits on updates, and AdamC's weight decay, against plain numpy and optax."""

from __future__ import annotations

from typing import Any

import equinox as eqx
import haliax as hax
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from midstream_engine.config import AdamConfig, ConfigError, from_mapping
from midstream_engine.config.optimizer import ClipUpdateNormConfig
from midstream_engine.optim.optimizer import build_optimizer
from midstream_engine.optim.update_clipping import CLIP, clip_by_recent_norms, clip_by_rms

pytestmark = [
    # haliax 1.4 uses names that jax 0.10 deprecates.
    pytest.mark.filterwarnings("ignore:jax.core.is_constant_dim is deprecated:DeprecationWarning"),
]
DRAW = np.random.default_rng(3)


def test_rms_limit_applies_to_each_layer_of_stacked_arrays() -> None:
    """As optax limits each layer's array where layers are not stacked."""
    layers = DRAW.normal(size=(3, 4, 5)).astype(np.float32) * np.asarray([0.1, 1.0, 10.0], np.float32)[:, None, None]
    single = DRAW.normal(size=7).astype(np.float32) * 3
    axes = hax.make_axes(layers=3, embed=4, mlp=5)
    updates = {"stacked": hax.named(jnp.asarray(layers), axes), "bias": hax.named(jnp.asarray(single), "embed")}
    found, _ = jax.jit(clip_by_rms(0.5).update)(updates, optax.EmptyState())
    reference = optax.clip_by_block_rms(0.5)
    by_name = {"bias": single, **{str(number): layer for number, layer in enumerate(layers)}}
    expected: Any
    expected, _ = reference.update(by_name, optax.EmptyState())
    clipped: Any = found
    np.testing.assert_allclose(clipped["bias"].array, expected["bias"], rtol=1e-6)
    np.testing.assert_allclose(clipped["stacked"].array, [expected[layer] for layer in "012"], rtol=1e-6)
    np.testing.assert_array_equal(clipped["stacked"].array[0], layers[0])  # below the limit: unchanged


def test_norm_limit_follows_recent_norms() -> None:
    window, sigma, updates = 6, 1.5, [DRAW.normal(size=(2, 3)) * scale for scale in (1, 2, 1, 9, 1, 2, 30, 1, 4, 3, 8)]
    transformation = clip_by_recent_norms(ClipUpdateNormConfig(window, sigma))
    state = transformation.init({"w": jnp.zeros((2, 3))})
    step, norms, scales = jax.jit(transformation.update), [], []
    for update in updates:
        found, state = step({"w": jnp.asarray(update, jnp.float32)}, state)
        recent, norm = norms[-window:], np.linalg.norm(update)
        limit = np.mean(recent) + sigma * max(np.std(recent), 1e-6) if len(recent) >= 3 else np.inf
        scales.append(min(1.0, limit / norm))
        np.testing.assert_allclose(found["w"], update * scales[-1], rtol=1e-5)
        norms.append(norm)
    assert min(scales) < 0.5
    assert int(state.seen) == len(updates)  # pyright: ignore[reportAttributeAccessIssue]


def test_norm_that_is_not_finite_is_not_remembered() -> None:
    transformation = clip_by_recent_norms(ClipUpdateNormConfig(4))
    state: Any = transformation.init({"w": jnp.zeros(2)})
    _, state = transformation.update({"w": jnp.ones(2)}, state)
    _, state = transformation.update({"w": jnp.full(2, np.nan)}, state)
    assert int(state.seen) == 1
    assert np.all(np.isfinite(state.norms))


class Weights(eqx.Module):
    """A model of one array, which decays."""

    w: Any

    def decayed(self) -> Weights:
        return Weights(True)


@pytest.mark.parametrize("corrected", [False, True])
def test_adamc_decay_is_proportional_to_learning_rate(corrected: bool) -> None:
    """With AdamC it is also multiplied by rate / peak."""
    rates = [0.01, 0.1, 0.05, 0.0025]
    config = AdamConfig(learning_rate=0.1, weight_decay=0.3, adamc_weight_decay=corrected, max_grad_norm=None)
    optimizer = build_optimizer(config, lambda count: jnp.asarray(rates, jnp.float32)[count])
    plain = optax.scale_by_adam(b1=config.beta1, b2=config.beta2, eps=config.epsilon)
    model: Any = Weights(jnp.asarray([1.0, -2.0]))
    weights, state, moments = np.asarray([1.0, -2.0]), optimizer.init(model), plain.init(jnp.zeros(2))
    for rate in rates:
        gradient = DRAW.normal(size=2).astype(np.float32)
        updates: Any = Weights(jnp.asarray(gradient))
        updates, state = optimizer.update(updates, state, model, loss=jnp.float32(1), gradient_norm=jnp.float32(1))
        changed: Any = optax.apply_updates(model, updates)
        model = changed
        direction, moments = plain.update(jnp.asarray(gradient), moments)
        decay = 0.3 * (rate / 0.1 if corrected else 1.0)
        weights = weights - rate * (np.asarray(direction) + decay * weights)
        np.testing.assert_allclose(model.w, weights, rtol=1e-5)


def test_recent_norms_are_a_part_of_the_saved_state() -> None:
    config = from_mapping({"optimizer": {"clip_update_norm": {"rolling_interval_length": 5}}}).config.optimizer
    state: Any = build_optimizer(config, lambda _: jnp.float32(1)).init(Weights(jnp.zeros(2)))  # pyright: ignore[reportArgumentType]
    assert state[CLIP].norms.shape == (5,)


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"update_rms_clipping": 0}, r"update_rms_clipping: 0.* is not positive"),
        ({"update_rms_clipping": 1.0, "clip_update_norm": {}}, "exclude each other"),
        ({"clip_update_norm": {"rolling_interval_length": 1}}, "clip_update_norm: rolling_interval_length"),
        ({"adamc_weight_decay": True, "learning_rate": 0}, "needs a learning_rate above 0"),
    ],
)
def test_limit_without_meaning_is_refused(given: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        from_mapping({"optimizer": given})
