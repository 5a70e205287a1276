"""Levanter's own trainer on the same model and batches, from its own initial parameters."""

from __future__ import annotations

import importlib.metadata
import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from steps.shape import BETA1, BETA2, CLIP, EPSILON, LEARNING_RATE, WEIGHT_DECAY, Shape


def start(shape: Shape, directory: Path) -> tuple[Callable[[np.ndarray], float], dict[str, Any]]:
    """(batch -> loss, facts)."""
    import haliax as hax
    import jax
    import jmp
    from haliax import Axis
    from levanter.models.gpt2 import Gpt2Config  # pyright: ignore[reportMissingImports]
    from levanter.models.llama import LlamaConfig  # pyright: ignore[reportMissingImports]
    from levanter.models.lm_model import LmExample  # pyright: ignore[reportMissingImports]
    from levanter.optim import AdamConfig  # pyright: ignore[reportMissingImports]
    from levanter.tracker import NoopConfig  # pyright: ignore[reportMissingImports]
    from levanter.trainer import Trainer, TrainerConfig  # pyright: ignore[reportMissingImports]

    logging.disable(logging.WARNING)
    common: dict[str, Any] = {
        "max_seq_len": shape.seq_len,
        "hidden_dim": shape.hidden,
        "num_layers": shape.layers,
        "num_heads": shape.heads,
        "gradient_checkpointing": shape.remat,
    }
    if shape.kind == "gpt2":
        model = Gpt2Config(**common)
    else:
        model = LlamaConfig(**common, num_kv_heads=shape.kv_heads, intermediate_dim=shape.mlp, tie_word_embeddings=True)
    optimizer = AdamConfig(
        learning_rate=LEARNING_RATE, weight_decay=WEIGHT_DECAY, beta1=BETA1, beta2=BETA2, epsilon=EPSILON,
        max_grad_norm=CLIP, lr_schedule="constant", warmup=0,
    )  # fmt: skip
    config = TrainerConfig(
        id="benchmark", train_batch_size=shape.batch, num_train_steps=1_000_000, require_accelerator=False,
        mp=jmp.get_policy("f32" if shape.compute == "float32" else f"p=f32,c={shape.compute}"),
        tracker=NoopConfig(), log_dir=directory / "logs", load_checkpoint=False, log_jaxprs=False, log_xla_hlo=False,
    )  # fmt: skip
    config.initialize()
    jax.config.update("jax_default_matmul_precision", shape.matmul_precision)

    def loss_of(model: Any, example: Any, *, key: Any = None) -> Any:
        return model.compute_next_token_loss(example, key=key)

    trainer = Trainer(config, optimizer.build(config.num_train_steps), loss_of)
    trainer.__enter__()
    Batch, Pos = Axis("batch", shape.batch), model.max_Pos
    key = jax.random.PRNGKey(0)
    held = [trainer.initial_state(key, model_init=lambda: model.build(Axis("vocab", shape.vocab), key=key))]
    examples = hax.named_jit(
        lambda tokens: hax.vmap(lambda one: LmExample.causal(one), Batch)(tokens),
        axis_resources=trainer.compute_axis_mapping,
    )

    def step(batch: np.ndarray) -> float:
        info = trainer.train_step(held[0], examples(hax.named(jax.device_put(batch), (Batch, Pos))))
        held[0] = info.state
        return float(info.loss)

    versions = {"jax": jax.__version__}
    for name in ("levanter", "marin-levanter"):
        try:
            versions[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    return step, {"versions": versions}
