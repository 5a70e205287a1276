"""MaxText's own train step, compiled for accelerators that are not here: ``PYTHON maxtext_program.py REQUEST_JSON``."""

from __future__ import annotations

import os
import sys
import tempfile
from functools import partial
from pathlib import Path
from typing import Any

# In the place of this folder, whose modules are named like the packages that they import.
sys.path[:1] = [str(Path(__file__).parents[1])]

from steps.peer_program import answer, devices_of, is_gpu, request  # noqa: E402
from steps.shape import BETA1, BETA2, CLIP, EPSILON, LEARNING_RATE, WEIGHT_DECAY, Shape  # noqa: E402

# MaxText's configurations for GPUs have cudnn_flash_te, which needs TransformerEngine; this is cuDNN's without it.
ATTENTION = {"tpu": "flash", "gpu": "cudnn_flash_jax"}
A3 = "a3"  # MaxText's only name of GPUs to compile for: a host with eight H100


def flags(found: dict[str, Any]) -> list[str]:
    """Return MaxText's flags for a Llama of this shape."""
    shape, platform = Shape(**found["shape"]), "gpu" if is_gpu(found) else "tpu"
    values: dict[str, Any] = {
        "run_name": "benchmark", "base_emb_dim": shape.hidden, "base_num_query_heads": shape.heads,
        "base_num_kv_heads": shape.kv_heads, "base_mlp_dim": shape.mlp, "base_num_decoder_layers": shape.layers,
        "head_dim": shape.head, "vocab_size": shape.vocab, "logits_via_embedding": True,
        "normalize_embedding_logits": False, "max_target_length": shape.seq_len, "rope_max_timescale": 500_000,
        "per_device_batch_size": found["examples"], "gradient_accumulation_steps": found["micro_batches"],
        "remat_policy": "full", "attention": ATTENTION[platform], "dtype": shape.compute, "weight_dtype": "float32",
        "matmul_precision": shape.matmul_precision or "default",
        "opt_type": "adamw", "learning_rate": LEARNING_RATE, "adam_weight_decay": WEIGHT_DECAY, "adam_b1": BETA1,
        "adam_b2": BETA2, "adam_eps": EPSILON, "gradient_clipping_threshold": CLIP, "enable_checkpointing": False,
        "dataset_type": "synthetic", "compile_topology": A3 if is_gpu(found) else found["accelerators"],
        "compile_topology_num_slices": 1, "hardware": platform,
        "log_config": False, "compiled_trainstep_file": "unused",
    }  # fmt: skip
    if found["options"]:
        values["compile_xla_flags"] = " ".join(f"--{name}={value}" for name, value in found["options"].items())
    return [f"{name}={value}" for name, value in values.items()]


def program(found: dict[str, Any], directory: Path) -> Any:
    """Return jax's compiled program, as MaxText's own program for compiling ahead makes it."""
    import jax
    from maxtext import configs  # pyright: ignore[reportMissingImports]
    from maxtext.trainers.pre_train import train_compile  # pyright: ignore[reportMissingImports]

    compiled: list[Any] = []
    if is_gpu(found):
        devices = devices_of(found)
        if len(devices) != 8:
            raise SystemExit("MaxText is compiled for eight GPUs (hint: --topology h100x8)")
        jax.devices = lambda *_: list(devices)  # MaxText takes those of this host
    train_compile.save_compiled = lambda one, _: compiled.append(one)
    base = Path(next(iter(configs.__path__)), "base.yml")
    out = os.dup(1)
    os.dup2(2, 1)  # what MaxText prints is no answer
    train_compile.main(["train_compile", str(base), f"base_output_directory={directory}", *flags(found)])
    sys.stdout.flush()
    os.dup2(out, 1)
    return compiled[0]


def main() -> None:
    found = request()
    with tempfile.TemporaryDirectory(prefix="midstream-maxtext-") as name:
        answer(found, partial(program, found, Path(name)), ("maxtext",))


if __name__ == "__main__":
    main()
