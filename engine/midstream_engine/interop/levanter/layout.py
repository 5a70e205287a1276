"""Levanter's names and layouts of a model's arrays."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from midstream_engine.config.model import LlamaConfig, LmConfig


@dataclass(frozen=True)
class ArrayRule:
    """The counterpart of one of our arrays.

    ``turn``: a layer of theirs, or all of it, and our shape -> ours; ``back``: the way back.
    """

    theirs: str
    turn: Callable[[np.ndarray, tuple[int, ...]], np.ndarray]
    back: Callable[[np.ndarray, LmConfig], np.ndarray]


def rule_of(model: LmConfig, ours: str) -> ArrayRule:
    """Return the rule of an array. ``ours``: its name without ``model/``."""
    llama = isinstance(model, LlamaConfig)
    layers = "transformer/layers/stacked/" if llama else "transformer/blocks/stacked/"
    names = {
        "token_embeddings/weight": "embeddings/token_embeddings/weight",
        "position_embeddings/weight": "embeddings/position_embeddings/weight",
        "ln_f/weight": "transformer/ln_f/weight", "ln_f/bias": "transformer/ln_f/bias",
        "norm/weight": "transformer/norm/weight", "lm_head/weight": "lm_head/weight",
    }  # fmt: skip
    theirs = names.get(ours)
    if theirs is None:
        theirs = ours.replace("blocks/stacked/", layers)
        if not llama:
            for mine, yours in (("attn/qkv", "attn/c_attn"), ("attn/proj", "attn/c_proj"), ("mlp/up", "mlp/c_fc"),
                                ("mlp/down", "mlp/c_proj")):  # fmt: skip
                theirs = theirs.replace(mine, yours)
    if not llama or not ours.endswith("/weight") or "norm" in ours or "embeddings" in ours:
        bias = llama and ours.endswith("/bias") and "q_proj" in ours
        return ArrayRule(theirs, _reshaped if ours.endswith("/bias") else _same, _split_heads if bias else _as_it_is)
    if "o_proj" in ours or "down_proj" in ours or "lm_head" in ours:
        return ArrayRule(theirs, _output, lambda array, _: np.moveaxis(array, -1, 0))
    return ArrayRule(
        theirs, _turned, _split_queries if "q_proj" in ours else lambda array, _: np.moveaxis(array, 0, -1)
    )


def _same(array: np.ndarray, shape: tuple[int, ...]) -> np.ndarray:
    del shape
    return array


def _reshaped(array: np.ndarray, shape: tuple[int, ...]) -> np.ndarray:
    return array.reshape(shape)


def _turned(array: np.ndarray, shape: tuple[int, ...]) -> np.ndarray:
    """Turn [out..., in] to [in, out...]."""
    return np.moveaxis(array, -1, 0).reshape(shape)


def _output(array: np.ndarray, shape: tuple[int, ...]) -> np.ndarray:
    """Turn [out, in...] to [in..., out]."""
    return np.moveaxis(array, 0, -1).reshape(shape)


def _as_it_is(array: np.ndarray, model: LmConfig) -> np.ndarray:
    del model
    return array


def _split_heads(array: np.ndarray, model: LmConfig) -> np.ndarray:
    """Return [heads, ...] as [heads of keys, queries of each, ...]."""
    return array.reshape(model.kv_heads, -1, *array.shape[1:])


def _split_queries(array: np.ndarray, model: LmConfig) -> np.ndarray:
    """Turn [in, heads, size] to [heads of keys, queries of each, size, in]."""
    return _split_heads(np.moveaxis(array, 0, -1), model)
