"""Rotary positions against their published formulas, written out pair by pair and position by position in numpy."""

from __future__ import annotations

import math
from collections.abc import Callable

import haliax as hax
import numpy as np
import pytest
from haliax import Axis, NamedArray

from midstream_engine.config.rope import DefaultRopeConfig, LinearRopeConfig, Llama3RopeConfig, RopeConfig
from midstream_engine.models.rope import Rotation, frequencies

pytestmark = [
    # haliax 1.4 uses names that jax 0.10 deprecates.
    pytest.mark.filterwarnings("ignore:jax.core.is_constant_dim is deprecated:DeprecationWarning"),
    pytest.mark.filterwarnings("ignore:jax.interpreters.pxla.thread_resources is deprecated:DeprecationWarning"),
]
SEED, HEAD = 7, 16
POSITIONS = (0, 1, 7, 100, 1000)


def roformer(pair: int, size: int, theta: float) -> float:
    """Su et al., "RoFormer" (2021), section 3.2.2: theta_i = base^(-2 (i - 1) / d), here with i counted from 0."""
    return theta ** (-2.0 * pair / size)


def interpolated(pair: int, size: int, theta: float, factor: float) -> float:
    """Chen et al., "Extending context window of LLMs via positional interpolation" (2023), eq. 4: position / factor."""
    return roformer(pair, size, theta) / factor


def llama3(pair: int, size: int, theta: float, factor: float, low: float, high: float, context: int) -> float:
    """``apply_scaling`` of Meta's Llama 3.1 reference code, by wavelength with its three cases."""
    frequency = roformer(pair, size, theta)
    wavelength = 2 * math.pi / frequency
    if wavelength < context / high:
        return frequency
    if wavelength > context / low:
        return frequency / factor
    smooth = (context / wavelength - low) / (high - low)
    return (1 - smooth) * frequency / factor + smooth * frequency


CASES: dict[str, tuple[RopeConfig, int, Callable[[int, int], float]]] = {
    "plain": (DefaultRopeConfig(), HEAD, lambda i, d: roformer(i, d, 10_000.0)),
    "plain-stretched": (DefaultRopeConfig(factor=4.0), HEAD, lambda i, d: interpolated(i, d, 10_000.0, 4.0)),
    "linear": (LinearRopeConfig(theta=500.0, factor=2.5), HEAD, lambda i, d: interpolated(i, d, 500.0, 2.5)),
    "llama3": (Llama3RopeConfig(), 128, lambda i, d: llama3(i, d, 500_000.0, 8.0, 1.0, 4.0, 8192)),
    "llama3-short": (
        Llama3RopeConfig(theta=10_000.0, factor=4.0, low_freq_factor=2.0, high_freq_factor=3.0,
                         original_max_position_embeddings=64),
        HEAD,
        lambda i, d: llama3(i, d, 10_000.0, 4.0, 2.0, 3.0, 64),
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_rope_frequencies_equal_published_formula(name: str) -> None:
    config, size, formula = CASES[name]
    expected = [formula(pair, size) for pair in range(size // 2)]
    np.testing.assert_allclose(frequencies(config, size), expected, rtol=1e-6)


def test_rope_llama3_case_has_pairs_of_all_three_kinds() -> None:
    """Otherwise the test above does not cover the range between unchanged and divided."""
    config, size, _ = CASES["llama3"]
    ratio = frequencies(config, size) / [roformer(pair, size, config.theta) for pair in range(size // 2)]
    assert ratio[0] == pytest.approx(1.0)
    assert ratio[-1] == pytest.approx(1 / 8)
    assert ((ratio > 0.13) & (ratio < 0.99)).sum() >= 3


@pytest.mark.parametrize("name", ["plain", "linear", "llama3-short"])
def test_rope_rotates_by_position_times_frequency(name: str) -> None:
    """Elements i and i + rotary / 2 are a pair; the rest after the rotary part is unchanged."""
    config, size, formula = CASES[name]
    Position = Axis("position", POSITIONS[-1] + 1)
    x = np.random.default_rng(SEED).normal(size=(Position.size, 2, size + 4)).astype(np.float32)
    axes = hax.make_axes(position=Position.size, heads=2, head_size=size + 4)
    found = np.asarray(Rotation.of(config, Position, size)(NamedArray(hax.named(x, axes).array, axes)).array)
    for position in POSITIONS:
        expected = x[position].astype(np.float64)
        for pair in range(size // 2):
            angle, other = position * formula(pair, size), pair + size // 2
            a, b = x[position, :, pair].astype(np.float64), x[position, :, other].astype(np.float64)
            expected[:, pair] = a * math.cos(angle) - b * math.sin(angle)
            expected[:, other] = b * math.cos(angle) + a * math.sin(angle)
        # An angle of 1000 radians in float32 is off by 6e-5.
        np.testing.assert_allclose(found[position], expected, atol=5e-4 if position > 100 else 5e-5)
