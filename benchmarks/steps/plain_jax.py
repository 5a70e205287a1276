"""The same step written by hand in jax, for this one model and one device: what midstream is measured against.

Plain arrays in a dict, the layers in one scan, AdamW spelled out, the state donated. No options.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from steps.shape import BETA1, BETA2, CLIP, EPSILON, LEARNING_RATE, PARAMETERS, WEIGHT_DECAY, Shape

LOGITS = 1 << 28  # numbers; above, the loss takes the positions in parts and computes their logits twice
Arrays = dict[str, jax.Array]


def layer_norm(x: jax.Array, weight: jax.Array, bias: jax.Array) -> jax.Array:
    wide = x.astype(jnp.float32)
    centred = wide - wide.mean(-1, keepdims=True)
    return (centred * jax.lax.rsqrt((centred**2).mean(-1, keepdims=True) + 1e-5)).astype(x.dtype) * weight + bias


def rms_norm(x: jax.Array, weight: jax.Array) -> jax.Array:
    wide = x.astype(jnp.float32)
    return (wide * jax.lax.rsqrt((wide**2).mean(-1, keepdims=True) + 1e-5)).astype(x.dtype) * weight


def attention(q: jax.Array, k: jax.Array, v: jax.Array) -> jax.Array:
    """[batch, position, heads, head] of each; k and v may have fewer heads."""
    if q.dtype == jnp.bfloat16 and jax.default_backend() == "gpu":
        return jax.nn.dot_product_attention(q, k, v, is_causal=True, implementation="cudnn")
    b, s, h, d = q.shape
    q = (q * (1 / math.sqrt(d))).reshape(b, s, k.shape[2], -1, d)
    scores = jnp.einsum("bsngd,btnd->bngst", q, k).astype(jnp.float32)
    scores = jnp.where(jnp.tril(jnp.ones((s, s), bool)), scores, -1e30)
    out = jnp.einsum("bngst,btnd->bsngd", jax.nn.softmax(scores).astype(v.dtype), v)
    return out.reshape(b, s, h, d)


def gpt2_layer(x: jax.Array, w: Arrays) -> jax.Array:
    y = layer_norm(x, w["ln_1/weight"], w["ln_1/bias"])
    q, k, v = jnp.moveaxis(jnp.einsum("bsd,dchk->bschk", y, w["attn/qkv/weight"]) + w["attn/qkv/bias"], 2, 0)
    x = x + jnp.einsum("bshk,hkd->bsd", attention(q, k, v), w["attn/proj/weight"]) + w["attn/proj/bias"]
    y = layer_norm(x, w["ln_2/weight"], w["ln_2/bias"])
    y = jax.nn.gelu(y @ w["mlp/up/weight"] + w["mlp/up/bias"], approximate=True)
    return x + y @ w["mlp/down/weight"] + w["mlp/down/bias"]


def rotate(x: jax.Array, angles: jax.Array) -> jax.Array:
    cos, sin = (f(angles).astype(x.dtype)[:, None, :] for f in (jnp.cos, jnp.sin))
    a, b = jnp.split(x, 2, -1)
    return jnp.concatenate([a * cos - b * sin, b * cos + a * sin], -1)


def llama_layer(x: jax.Array, w: Arrays, angles: jax.Array) -> jax.Array:
    y = rms_norm(x, w["input_layernorm/weight"])
    q, k, v = (jnp.einsum("bsd,dhk->bshk", y, w[f"self_attn/{n}_proj/weight"]) for n in "qkv")
    out = attention(rotate(q, angles), rotate(k, angles), v)
    x = x + jnp.einsum("bshk,hkd->bsd", out, w["self_attn/o_proj/weight"])
    y = rms_norm(x, w["post_attention_layernorm/weight"])
    gated = jax.nn.silu(y @ w["mlp/gate_proj/weight"]) * (y @ w["mlp/up_proj/weight"])
    return x + gated @ w["mlp/down_proj/weight"]


def loss_of(shape: Shape, parameters: Arrays, tokens: jax.Array) -> jax.Array:
    """The mean cross-entropy of all positions but the last of each row."""
    w = {name: value.astype(shape.compute) for name, value in parameters.items()}
    stacked = "blocks/stacked/"
    layers = {name.removeprefix(stacked): value for name, value in w.items() if name.startswith(stacked)}
    x = w["token_embeddings/weight"][tokens]
    if shape.kind == "gpt2":
        x = x + w["position_embeddings/weight"]
        layer: Callable[..., jax.Array] = gpt2_layer
    else:
        turning = 10_000.0 ** (-jnp.arange(0, shape.head, 2) / shape.head)
        angles = jnp.arange(shape.seq_len, dtype=jnp.float32)[:, None] * turning

        def rotating(x: jax.Array, w: Arrays) -> jax.Array:
            return llama_layer(x, w, angles)

        layer = rotating

    if shape.remat:
        layer = jax.checkpoint(layer, prevent_cse=False)
    x, _ = jax.lax.scan(lambda x, w: (layer(x, w), None), x, layers)
    if shape.kind == "gpt2":
        x = layer_norm(x, w["ln_f/weight"], w["ln_f/bias"])
    else:
        x = rms_norm(x, w["norm/weight"])
    targets, head = jnp.roll(tokens, -1, 1), w["token_embeddings/weight"]

    def losses(x: jax.Array, targets: jax.Array) -> jax.Array:
        logits = (x @ head.T).astype(jnp.float32)
        return jax.nn.logsumexp(logits, -1) - jnp.take_along_axis(logits, targets[..., None], -1)[..., 0]

    parts = -(-shape.tokens * head.shape[0] // LOGITS)
    if parts == 1:
        found = losses(x, targets)
    else:
        parts = next(count for count in range(parts, shape.seq_len + 1) if shape.seq_len % count == 0)
        cut = [jnp.moveaxis(a.reshape(a.shape[0], parts, -1, *a.shape[2:]), 1, 0) for a in (x, targets)]
        found = jnp.moveaxis(jax.lax.map(lambda part: jax.checkpoint(losses)(*part), tuple(cut)), 0, 1)
        found = found.reshape(targets.shape)
    return found[:, :-1].mean()


def decayed(name: str) -> bool:
    return name.endswith("/weight") and "embeddings" not in name and "norm" not in name and "ln_" not in name


def start(shape: Shape, directory: Path) -> tuple[Callable[[np.ndarray], float], dict[str, Any]]:
    """(batch -> loss, facts)."""
    parameters = {name: jnp.array(value) for name, value in np.load(directory / PARAMETERS).items()}
    zeros = {name: jnp.zeros_like(value) for name, value in parameters.items()}
    held = [(parameters, zeros, jax.tree.map(jnp.copy, zeros), jnp.zeros((), jnp.int32))]

    def update(state: Any, tokens: jax.Array) -> tuple[Any, jax.Array, jax.Array]:
        w, mu, nu, count = state
        loss, g = jax.value_and_grad(lambda w: loss_of(shape, w, tokens))(w)
        norm = jnp.sqrt(sum(jnp.vdot(x, x) for x in g.values()))
        scale, count = jnp.minimum(1.0, CLIP / norm), count + 1
        correct1, correct2 = 1 - BETA1**count, 1 - BETA2**count
        new: tuple[Arrays, Arrays, Arrays] = ({}, {}, {})
        for name, x in w.items():
            clipped = g[name] * scale
            m = BETA1 * mu[name] + (1 - BETA1) * clipped
            v = BETA2 * nu[name] + (1 - BETA2) * clipped**2
            direction = (m / correct1) / (jnp.sqrt(v / correct2) + EPSILON)
            direction = direction + WEIGHT_DECAY * x if decayed(name) else direction
            for arrays, value in zip(new, (x - LEARNING_RATE * direction, m, v), strict=True):
                arrays[name] = value
        return (*new, count), loss, norm

    example = jax.ShapeDtypeStruct((shape.batch, shape.seq_len), np.int32)
    with jax.default_matmul_precision(shape.matmul_precision):  # pyright: ignore[reportArgumentType]
        compiled = jax.jit(update, donate_argnums=0).lower(held[0], example).compile()

    def step(batch: np.ndarray) -> float:
        held[0], loss, _ = compiled(held[0], jax.device_put(batch))
        return float(loss)

    return step, {"versions": {"jax": jax.__version__}}
