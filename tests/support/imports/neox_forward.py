"""GPT-NeoX's Llama-like models in numpy: a forward pass from NeoX's own parameters, independent of the importer.

Written from the meaning of NeoX's source: ``ParallelSelfAttention.gqa_project`` at commits f36aed7f (rows interleaved
per query head) and 96c242eb (blocks), ``RMSNorm`` before and after 4c9f1081, ``LLaMAParallelMLP`` and the gated
``ParallelMLP``.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

Key = tuple[int, str]  # layer, name inside of it


@dataclass(frozen=True)
class Shape:
    """``interleaved``: rows of grouped queries; ``outside``: where RMSNorm adds its epsilon."""

    layers: int
    heads: int
    groups: int
    epsilon: float
    interleaved: bool
    outside: bool


def losses(parameters: Mapping[Key, np.ndarray], shape: Shape, tokens: np.ndarray) -> float:
    """Return the mean cross-entropy of ``tokens`` [batch, positions + 1], in float64."""
    weights = {key: value.astype(np.float64) for key, value in parameters.items()}
    inputs, targets = tokens[:, :-1], tokens[:, 1:]
    x = weights[0, "word_embeddings.weight"][inputs]
    for layer in range(2, 2 + shape.layers):
        mine = {name: value for (number, name), value in weights.items() if number == layer}
        x = x + _attention(mine, shape, _norm(x, mine["input_layernorm.scale"], shape))
        x = x + _mlp(mine, _norm(x, mine["post_attention_layernorm.scale"], shape))
    x = _norm(x, weights[shape.layers + 3, "norm.scale"], shape)
    logits = x @ weights[shape.layers + 4, "final_linear.weight"].T
    logits -= logits.max(-1, keepdims=True)
    logarithms = logits - np.log(np.exp(logits).sum(-1, keepdims=True))
    return float(-np.take_along_axis(logarithms, targets[..., None], -1).mean())


def _norm(x: np.ndarray, scale: np.ndarray, shape: Shape) -> np.ndarray:
    mean = (x**2).mean(-1, keepdims=True)
    return scale * x / (np.sqrt(mean) + shape.epsilon if shape.outside else np.sqrt(mean + shape.epsilon))


def _attention(weights: Mapping[str, np.ndarray], shape: Shape, x: np.ndarray) -> np.ndarray:
    batch, positions, hidden = x.shape
    heads, groups, size = shape.heads, shape.groups, hidden // shape.heads
    mixed = x @ weights["attention.query_key_value.weight"].T
    if shape.interleaved:
        # "treat like we have same num. heads, but smaller head dim": each head has its query, then a part of a key
        # head and a part of a value head; the parts of heads / groups neighbours make up one of each.
        part = size * groups // heads
        rows = mixed.reshape(batch, positions, heads, size + 2 * part)
        query, key, value = np.split(rows, [size, size + part], -1)
    else:
        query, key, value = np.split(mixed, [heads * size, (heads + groups) * size], -1)
    query = query.reshape(batch, positions, heads, size)
    key, value = (one.reshape(batch, positions, groups, size).repeat(heads // groups, 2) for one in (key, value))
    query, key = _rotate(query), _rotate(key)
    scores = np.einsum("bqhd,bkhd->bhqk", query, key) / np.sqrt(size)
    scores = np.where(np.tril(np.ones((positions, positions), bool)), scores, -np.inf)
    scores = np.exp(scores - scores.max(-1, keepdims=True))
    scores /= scores.sum(-1, keepdims=True)
    mixed = np.einsum("bhqk,bkhd->bqhd", scores, value).reshape(batch, positions, hidden)
    return mixed @ weights["attention.dense.weight"].T


def _rotate(x: np.ndarray) -> np.ndarray:
    """Rotary positions on all of a head [batch, position, head, size]; halves are paired."""
    size = x.shape[-1]
    angles = np.arange(x.shape[1])[:, None] * 10000.0 ** (-np.arange(0, size, 2) / size)
    angles = np.concatenate([angles, angles], -1)[None, :, None, :]
    first, second = np.split(x, 2, -1)
    return x * np.cos(angles) + np.concatenate([-second, first], -1) * np.sin(angles)


def _mlp(weights: Mapping[str, np.ndarray], x: np.ndarray) -> np.ndarray:
    if "mlp.w1.weight" in weights:
        gate, up, down = (weights[f"mlp.{name}.weight"] for name in ("w1", "w3", "w2"))
        return (_silu(x @ gate.T) * (x @ up.T)) @ down.T
    up, gate = np.split(x @ weights["mlp.linear1.weight"].T + weights["mlp.linear1.bias"], 2, -1)
    return (_silu(gate) * up) @ weights["mlp.linear2.weight"].T + weights["mlp.linear2.bias"]


def _silu(x: np.ndarray) -> np.ndarray:
    return x / (1 + np.exp(-x))
