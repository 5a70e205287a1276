"""midstream's own train step, laid out, compiled and fed as the engine does it."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from steps.shape import BETA1, BETA2, CLIP, EPSILON, LEARNING_RATE, PARAMETERS, WEIGHT_DECAY, Shape


def tokenizer(directory: Path, vocab: int) -> str:
    """A tokenizer.json of ``vocab`` words; its path."""
    path = directory / "tokenizer.json"
    words = {"<|endoftext|>": vocab - 1, **{f"w{number}": number for number in range(vocab - 1)}}
    model = {"type": "WordLevel", "vocab": words, "unk_token": "w0"}
    text = {
        "version": "1.0", "truncation": None, "padding": None, "added_tokens": [], "normalizer": None,
        "pre_tokenizer": {"type": "Whitespace"}, "post_processor": None, "decoder": None, "model": model,
    }  # fmt: skip
    path.write_text(json.dumps(text))
    return str(path)


def flags(shape: Shape, directory: Path, overrides: Mapping[str, Any] | None = None) -> list[str]:
    """The configuration of ``shape``, as flags of ``midstream_engine.train``; ``overrides`` by key."""
    model: dict[str, Any] = {
        "type": shape.kind, "seq_len": shape.seq_len, "hidden_dim": shape.hidden, "num_layers": shape.layers,
        "num_heads": shape.heads, "gradient_checkpointing": shape.remat,
    }  # fmt: skip
    if shape.kind == "llama":
        model |= {"num_kv_heads": shape.kv_heads, "intermediate_dim": shape.mlp, "tie_word_embeddings": True}
    values = {
        **{f"model.{name}": value for name, value in model.items()},
        "data.tokenizer": tokenizer(directory, shape.vocab),
        "data.block_cross_document_attention": False,
        "trainer.train_batch_size": shape.batch,
        "trainer.mp": "f32" if shape.compute == "float32" else f"p=f32,c={shape.compute}",
        "optimizer.learning_rate": LEARNING_RATE,
        "optimizer.lr_schedule": "constant",
        "optimizer.warmup": 0,
        "optimizer.weight_decay": WEIGHT_DECAY,
        "optimizer.beta1": BETA1,
        "optimizer.beta2": BETA2,
        "optimizer.epsilon": EPSILON,
        "optimizer.max_grad_norm": CLIP,
        **(overrides or {}),
    }
    words = {name: str(value).lower() if isinstance(value, bool) else str(value) for name, value in values.items()}
    return [word for name, value in words.items() for word in (f"--{name}", value)]


def write_parameters(shape: Shape, directory: Path) -> None:
    """Write the initial parameters for the others."""
    from midstream_engine.computation.setup import make_plan
    from midstream_engine.config import load_config

    _write(make_plan(load_config(flags(shape, directory)).config).fresh_state(), directory)


def _write(state: Any, directory: Path) -> None:
    from midstream_engine.checkpoint.array_names import flatten

    named = {name: np.asarray(array.value) for name, array in flatten(state.model).items()}
    np.savez(directory / PARAMETERS, **named)  # pyright: ignore[reportArgumentType]


def device_memory() -> dict[str, int]:
    """The most bytes that the process had on its first device, where the device counts them."""
    import jax

    stats = jax.devices()[0].memory_stats() or {}
    return {"peak_device_bytes": stats["peak_bytes_in_use"]} if "peak_bytes_in_use" in stats else {}


def start(
    shape: Shape, directory: Path, overrides: Mapping[str, Any] | None = None, *, alone: bool = False
) -> tuple[Callable[[np.ndarray], float], dict[str, Any]]:
    """(batch -> loss, facts). Writes the initial parameters for the others, unless it is ``alone``."""
    import jax
    from haliax import NamedArray

    from midstream_engine.computation.programs import compile_steps
    from midstream_engine.computation.setup import make_plan
    from midstream_engine.config import load_config
    from midstream_engine.loop import flops

    config = load_config(flags(shape, directory, overrides)).config
    plan = make_plan(config)
    update = compile_steps(plan)
    held = [plan.fresh_state()]
    if not alone:
        _write(held[0], directory)
    counted = np.ones((shape.batch, shape.seq_len), np.int32)
    counted[:, -1] = 0
    number = 0

    def put(array: np.ndarray) -> NamedArray:
        return plan.cut.put(array)

    def step(batch: np.ndarray) -> float:
        nonlocal number
        count = jax.device_put(np.int32(number), plan.layout.replicated())
        held[0], result = update(held[0], count, put(batch), put(counted))
        number += 1
        return float(result.loss)

    facts = {
        "parameters": plan.parameters,
        "utilisation": flops.utilisation_columns(config.model, shape.vocab),
        "device": jax.devices()[0].device_kind,
        "peak": flops.peak(jax.devices()[0].device_kind, shape.compute, shape.matmul_precision),
        "devices": plan.layout.mesh.size,
        "versions": {"jax": jax.__version__},
    }
    return step, facts
