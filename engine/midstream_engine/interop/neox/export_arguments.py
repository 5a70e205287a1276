"""Arguments and learning-rate schedule of an export to GPT-NeoX."""

from __future__ import annotations

import math
from dataclasses import dataclass

from midstream_core.learning_rate import fraction_or_steps
from midstream_engine.config.model import LlamaConfig, NeoxConfig
from midstream_engine.config.optimizer import AdamConfig
from midstream_engine.config.rope import DefaultRopeConfig
from midstream_engine.interop.deepspeed.checkpoint_files import DeepSpeedState
from midstream_engine.interop.errors import ConversionError
from midstream_engine.interop.exported_run import ExportedRun
from midstream_engine.interop.neox.revision import commit_of

_STYLES = ("cosine", "linear", "constant")
_ACTIVATIONS = {"gelu": ("gelu", False), "gelu_new": ("gelu", True), "relu": ("relu", False), "silu": ("silu", False)}


@dataclass(frozen=True)
class Schedule:
    """NeoX's learning rates: ``warmup`` updates, then a decay until ``end``."""

    peak: float
    warmup: int
    end: int
    style: str
    low: float

    def rate(self, count: int) -> float:
        """Return the learning rate of the update after ``count`` others."""
        if self.warmup and count <= self.warmup:
            return self.peak * count / self.warmup
        done, all_updates = count - self.warmup, self.end - self.warmup
        rate = self.peak
        if self.style == "linear":
            rate = self.peak * (all_updates - done) / all_updates
        elif self.style == "cosine":
            rate = self.low + (self.peak - self.low) / 2 * (math.cos(math.pi * done / all_updates) + 1)
        return max(rate, self.low)

    def state(self, count: int) -> dict[str, object]:
        """Return the state of NeoX's scheduler."""
        return {
            "start_lr": self.peak, "warmup_iter": self.warmup, "num_iters": count, "decay_style": self.style,
            "end_iter": self.end, "min_lr": self.low,
        }  # fmt: skip


def schedule_of(run: ExportedRun, adam: AdamConfig) -> Schedule:
    """Return the schedule of NeoX that may be the run's: compare its rates.

    Raises:
        ConversionError: NeoX has no decay of that shape.
    """
    style, total = adam.lr_schedule, run.config.trainer.num_train_steps
    if style not in _STYLES:
        raise ConversionError(f"optimizer.lr_schedule: {style} here, and GPT-NeoX has {', '.join(_STYLES)}")
    # Without the rounding of a product of decimals.
    low = 0.0 if style == "constant" else float(f"{adam.learning_rate * adam.min_lr_ratio:.15g}")
    return Schedule(adam.learning_rate, fraction_or_steps(adam.warmup, total), total, style, low)


def arguments_of(run: ExportedRun, state: DeepSpeedState, stages: int) -> dict[str, object]:
    """Return the arguments with which GPT-NeoX continues the run.

    Raises:
        ConversionError: NeoX's model cannot be the run's.
    """
    adam, trainer = state.adam, run.config.trainer
    schedule = schedule_of(run, adam)
    config = state.config()
    return {
        "pipe-parallel-size": stages, "model-parallel-size": state.model_ranks,
        **_model_arguments(run, state.model_ranks),
        "precision": "bfloat16" if state.half else "fp32", "seed": trainer.seed,
        "optimizer": {
            "type": "Adam",
            "params": {"lr": adam.learning_rate, "betas": [adam.beta1, adam.beta2], "eps": adam.epsilon},
        },
        "min-lr": schedule.low, "lr-decay-style": schedule.style, "warmup": schedule.warmup / schedule.end,
        "train-iters": trainer.num_train_steps, "lr-decay-iters": schedule.end,
        "weight-decay": adam.weight_decay, "gradient-clipping": config["gradient_clipping"],
        "train-batch-size": state.batch, "train-micro-batch-size-per-gpu": config["train_micro_batch_size_per_gpu"],
        "zero-optimization": config["zero_optimization"],
        **({"bf16": config["bf16"], "data-types": config["data_types"]} if state.half else {}),
        "no-load-rng": True,
    }  # fmt: skip


def _model_arguments(run: ExportedRun, ranks: int) -> dict[str, object]:
    model = run.config.model
    assert isinstance(model, LlamaConfig | NeoxConfig)
    if not isinstance(model.rope, DefaultRopeConfig):
        raise ConversionError(f"model.rope: {type(model.rope).__name__} here, and GPT-NeoX has plain rotary positions")
    if model.head_size * model.num_heads != model.hidden_dim:
        raise ConversionError(f"model.head_dim: {model.head_size} here, and in GPT-NeoX hidden_dim / num_heads")
    common = {
        "num-layers": model.num_layers, "hidden-size": model.hidden_dim, "num-attention-heads": model.num_heads,
        "seq-length": model.seq_len, "max-position-embeddings": model.seq_len, "pos-emb": "rotary",
        "rotary-emb-base": int(model.rope.theta) if model.rope.theta % 1 == 0 else model.rope.theta,
        "no-weight-tying": not model.tie_word_embeddings, "make-vocab-size-divisible-by": run.vocab_size // ranks,
        "hidden-dropout": 0, "attention-dropout": 0, "init-method-std": model.initializer_range,
    }  # fmt: skip
    if isinstance(model, NeoxConfig):
        if model.activation_function not in _ACTIVATIONS:
            raise ConversionError(f"model.activation_function: {model.activation_function} here, and GPT-NeoX gets "
                                  f"{', '.join(_ACTIVATIONS)}")  # fmt: skip
        activation, fused = _ACTIVATIONS[model.activation_function]
        return common | {
            "norm": "layernorm", "layernorm-epsilon": model.layer_norm_epsilon, "activation": activation,
            "bias-gelu-fusion": fused, "gpt-j-residual": model.use_parallel_residual, "rotary-pct": model.rotary_pct,
            "use-bias-in-attn-linear": model.attention_bias, "use-bias-in-mlp": True,
            "intermediate-size": model.mlp_dim, "git-hash": commit_of(outside=False),
        }  # fmt: skip
    if model.activation_function != "silu" or not model.use_layer_norm_weight:
        raise ConversionError(f"model.activation_function: {model.activation_function} here, with "
                              f"use_layer_norm_weight {model.use_layer_norm_weight}: GPT-NeoX has silu and weights of "
                              "norms")  # fmt: skip
    if not model.scale_attention:
        raise ConversionError("model.scale_attention: False here, and GPT-NeoX scales the scores")
    return common | {
        "norm": "rmsnorm", "rms-norm-epsilon": model.layer_norm_epsilon, "activation": "swiglu", "rotary-pct": 1.0,
        "num-kv-heads": model.num_kv_heads, "use-bias-in-attn-linear": model.has_attention_bias,
        "use-bias-in-mlp": model.has_mlp_bias, "gpt-j-residual": False,
        "intermediate-size": 3 * model.intermediate_dim,  # NeoX takes two thirds of it, for both halves
        "git-hash": commit_of(outside=model.epsilon_outside_root),
    }  # fmt: skip
