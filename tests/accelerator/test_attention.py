"""Attention kernels, compiled for the accelerator: equal to the product of all pairs in float32."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import haliax as hax
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from haliax import NamedArray

from midstream_engine.config import Gpt2Config
from midstream_engine.models.causal_attention import View, attend

BACKENDS = {"gpu": ("cudnn", "triton", "xla"), "tpu": ("splash", "xla")}
BATCH, POSITIONS, HEADS = 2, 1024, 8
# Of each row: one of a single position, one that ends with a block of 128, one that crosses blocks; one document alone.
LENGTHS = ((1, 127, 300, 596), (POSITIONS,))
ROUNDING = 1e-2  # of bfloat16, relative to the norm


def inputs(kv_heads: int, size: int) -> list[np.ndarray]:
    """Return queries, keys, values, and a weight for each number of the result."""
    random = np.random.default_rng(3)
    drawn = [random.normal(size=(BATCH, POSITIONS, each, size)) for each in (HEADS, kv_heads, kv_heads, HEADS)]
    return [drawn[0] / np.sqrt(size), *drawn[1:]]


def segments(*, documents: bool) -> np.ndarray:
    rows = [np.repeat(np.arange(len(row)), row) for row in LENGTHS]
    return np.asarray(rows if documents else np.zeros_like(rows), np.int32)


def expected(*given: np.ndarray, documents: bool) -> list[np.ndarray]:
    """Return the attention of all pairs and its gradients, in float32 on the CPU."""
    rows = segments(documents=documents)
    same = (rows[:, None, :, None] == rows[:, None, None, :]) & np.tri(POSITIONS, dtype=bool)

    def attended(q: jax.Array, k: jax.Array, v: jax.Array) -> jax.Array:
        k, v = (jnp.repeat(array, HEADS // array.shape[2], axis=2) for array in (k, v))
        scores = jnp.where(same, jnp.einsum("bqhd,bkhd->bhqk", q, k), -jnp.inf)
        return jnp.einsum("bhqk,bkhd->bqhd", jax.nn.softmax(scores), v)

    with jax.default_device(jax.local_devices(backend="cpu")[0]):
        return results(attended, *(jnp.asarray(array, jnp.float32) for array in given))


def results(function: Callable[..., jax.Array], *given: jax.Array) -> list[np.ndarray]:
    """Return the result of the first three, and the gradients of its sum weighted by the fourth."""
    *arguments, weight = given

    def weighted(*arguments: jax.Array) -> tuple[jax.Array, jax.Array]:
        out = function(*arguments)
        return jnp.sum(out.astype(jnp.float32) * weight), out

    (_, out), gradients = jax.jit(jax.value_and_grad(weighted, (0, 1, 2), has_aux=True))(*arguments)
    return [np.asarray(array, np.float32) for array in (out, *gradients)]


@pytest.mark.parametrize("documents", [False, True], ids=["one document", "documents"])
@pytest.mark.parametrize(("kv_heads", "size"), [(HEADS, 64), (2, 128)])
def test_kernels_equal_the_product_of_all_pairs(
    platform: str, accelerator: Any, kv_heads: int, size: int, documents: bool
) -> None:
    config: Any = Gpt2Config(seq_len=POSITIONS, hidden_dim=HEADS * size, num_heads=HEADS)
    order = hax.make_axes(batch=BATCH, position=POSITIONS)
    of_queries = (*order, *hax.make_axes(heads=HEADS, head_size=size))
    of_keys = (*order, *hax.make_axes(**{"heads" if kv_heads == HEADS else "kv_heads": kv_heads}, head_size=size))
    rows = segments(documents=documents)
    given = inputs(kv_heads, size)
    wanted = expected(*given, documents=documents)
    narrow = [jax.device_put(jnp.asarray(array, jnp.bfloat16), accelerator) for array in given]
    for backend in BACKENDS[platform]:
        view = View(NamedArray(jax.device_put(rows, accelerator), order) if documents else None, None)

        def attended(q: jax.Array, k: jax.Array, v: jax.Array, backend: str = backend, view: View = view) -> jax.Array:
            arrays = NamedArray(q, of_queries), NamedArray(k, of_keys), NamedArray(v, of_keys)
            return attend(config, backend, *arrays, view).rearrange(of_queries).array

        for name, one, other in zip(("out", "q", "k", "v"), results(attended, *narrow), wanted, strict=True):
            error = float(np.linalg.norm(one - other) / np.linalg.norm(other))
            assert error <= ROUNDING, (backend, name, error)
