"""Levanter's own train step, compiled for accelerators that are not here: ``PYTHON levanter_program.py REQUEST_JSON``.

Attention is splash on TPUs. On GPUs it is what Levanter takes by default: TransformerEngine where it is installed, else
its own product of blocks in jax.
"""

from __future__ import annotations

import contextlib
import sys
import tempfile
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

# In the place of this folder, whose modules are named like the packages that they import.
sys.path[:1] = [str(Path(__file__).parents[1])]

from steps.peer_program import answer, devices_of, is_gpu, request  # noqa: E402
from steps.shape import BETA1, BETA2, CLIP, EPSILON, LEARNING_RATE, WEIGHT_DECAY, Shape  # noqa: E402


def program(found: dict[str, Any], directory: Path) -> Any:
    """Return jax's compiled program."""
    import equinox as eqx
    import haliax as hax
    import jax
    import jax.numpy as jnp
    import jmp
    from haliax import Axis
    from levanter.layers.attention import AttentionBackend  # pyright: ignore[reportMissingImports]
    from levanter.models.gpt2 import Gpt2Config  # pyright: ignore[reportMissingImports]
    from levanter.models.llama import LlamaConfig  # pyright: ignore[reportMissingImports]
    from levanter.models.lm_model import LmExample  # pyright: ignore[reportMissingImports]
    from levanter.optim import AdamConfig  # pyright: ignore[reportMissingImports]
    from levanter.tracker import NoopConfig  # pyright: ignore[reportMissingImports]
    from levanter.trainer import Trainer, TrainerConfig  # pyright: ignore[reportMissingImports]
    from levanter.trainer_state import TrainerState  # pyright: ignore[reportMissingImports]

    devices = devices_of(found)
    own = jax.local_devices
    # Levanter asks jax for the devices of this host. Constants that it computes while it traces would be put on them.
    jax.devices = lambda *_: list(devices)  # pyright: ignore[reportAttributeAccessIssue]
    jax.device_count = lambda *_: len(devices)  # pyright: ignore[reportAttributeAccessIssue]
    jax.default_backend = lambda: "gpu" if is_gpu(found) else "tpu"
    jax.local_devices = lambda *a, **k: own(*a, **k) if a or k else list(devices)  # pyright: ignore[reportAttributeAccessIssue]
    jax.ensure_compile_time_eval = contextlib.nullcontext  # pyright: ignore[reportAttributeAccessIssue]

    shape = Shape(**found["shape"])
    jax.config.update("jax_default_matmul_precision", shape.matmul_precision)
    common: dict[str, Any] = {
        "max_seq_len": shape.seq_len, "hidden_dim": shape.hidden, "num_layers": shape.layers,
        "num_heads": shape.heads, "gradient_checkpointing": shape.remat,
        "attn_backend": AttentionBackend.DEFAULT if is_gpu(found) else AttentionBackend.SPLASH,
    }  # fmt: skip
    if shape.kind == "gpt2":
        model = Gpt2Config(**common)
    else:
        model = LlamaConfig(**common, num_kv_heads=shape.kv_heads, intermediate_dim=shape.mlp, tie_word_embeddings=True)
    optimizer = AdamConfig(
        learning_rate=LEARNING_RATE, weight_decay=WEIGHT_DECAY, beta1=BETA1, beta2=BETA2, epsilon=EPSILON,
        max_grad_norm=CLIP, lr_schedule="constant", warmup=0,
    )  # fmt: skip
    config = TrainerConfig(
        id="benchmark", train_batch_size=shape.batch, per_device_parallelism=found["examples"],
        num_train_steps=1_000_000, mp=jmp.get_policy(f"p=f32,c={shape.compute}"), tracker=NoopConfig(),
        log_dir=directory, load_checkpoint=False,
    )  # fmt: skip

    def loss_of(model: Any, example: Any, *, key: Any = None) -> Any:
        return model.compute_next_token_loss(example, key=key)

    trainer = Trainer(config, optimizer.build(config.num_train_steps), loss_of, add_default_hooks=False)
    Batch, Vocab = Axis("batch", shape.batch), Axis("vocab", shape.vocab)

    def state(key: Any) -> Any:
        return TrainerState.init(
            trainer.optimizer, model.build(Vocab, key=key), key=key, is_trainable=True, mp=config.mp
        )

    def batch() -> Any:
        tokens = hax.zeros((Batch, model.max_Pos), dtype=jnp.int32)
        return hax.vmap(lambda one: LmExample.causal(one), Batch)(tokens)

    key = jax.eval_shape(partial(jax.random.PRNGKey, 0))
    abstract, examples = eqx.filter_eval_shape(state, key), eqx.filter_eval_shape(batch)
    mesh = trainer.device_mesh
    abstract = with_sharding(abstract, trainer.parameter_axis_mapping, mesh)
    examples = with_sharding(examples, trainer.compute_axis_mapping, mesh)
    with trainer:
        return compile_abstract(trainer, abstract, examples, found["options"])


def with_sharding(tree: Any, mapping: Any, mesh: Any) -> Any:
    """Return abstract arrays with the sharding that Levanter gives them."""
    import haliax as hax
    import jax

    shardings = hax.partitioning.infer_resource_partitions(tree, mapping, mesh=mesh)

    def one(leaf: Any, sharding: Any) -> Any:
        if isinstance(leaf, hax.NamedArray):
            return hax.NamedArray(one(leaf.array, sharding), leaf.axes)
        if not isinstance(leaf, jax.ShapeDtypeStruct):
            return leaf
        return jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=sharding)

    return jax.tree.map(one, tree, shardings, is_leaf=lambda leaf: isinstance(leaf, hax.NamedArray))


def compile_abstract(trainer: Any, state: Any, batch: Any, options: Mapping[str, str]) -> Any:
    """Compile the step of Levanter's trainer for abstract arrays; as its own, it donates the state."""
    import equinox as eqx
    import haliax as hax
    import jax

    def is_array(leaf: Any) -> bool:
        return isinstance(leaf, jax.ShapeDtypeStruct)

    arrays, static = eqx.partition((state, batch), is_array)

    def step(state: Any, batch: Any) -> Any:
        complete, examples = eqx.combine((state, batch), static)
        with hax.axis_mapping(trainer.parameter_axis_mapping):
            result = trainer._train_step(complete, (examples,), {}, _no_hooks=True)  # noqa: SLF001 (jax compiles it)
        return eqx.filter(result, eqx.is_array)

    return jax.jit(step, donate_argnums=0).lower(*arrays).compile(dict(options))


def main() -> None:
    found = request()
    with tempfile.TemporaryDirectory(prefix="midstream-levanter-") as name:
        answer(found, partial(program, found, Path(name)), ("marin-levanter",))


if __name__ == "__main__":
    main()
