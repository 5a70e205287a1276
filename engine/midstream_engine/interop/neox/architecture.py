"""NeoX's configuration as ours: which model it is, how it is trained. What cannot be carried over is refused or told.

Defaults are NeoX's own where a file leaves a name out. Shapes are taken from the tensors, not from the file: what
``intermediate_size`` means has changed between versions.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from midstream_engine.config.errors import ConfigError
from midstream_engine.config.model import LlamaConfig, LmConfig, NeoxConfig
from midstream_engine.config.rope import DefaultRopeConfig
from midstream_engine.interop.errors import ConversionError

# NeoX's defaults for what is read here.
_DEFAULTS: dict[str, Any] = {
    "norm": "layernorm", "layernorm_epsilon": 1e-5, "rms_norm_epsilon": 1e-8, "pos_emb": "learned",
    "no_weight_tying": False, "rotary_pct": 1.0, "rotary_emb_base": 10000, "activation": "gelu",
    "bias_gelu_fusion": False, "gpt_j_residual": False, "gpt_j_tied": False, "use_bias_in_attn_linear": True,
    "use_bias_in_mlp": True, "use_bias_in_norms": True, "use_qk_layernorm": False, "use_mup": False,
    "hidden_dropout": 0.0, "attention_dropout": 0.0, "num_kv_heads": None, "sliding_window_width": None,
    "apply_query_key_layer_scaling": False, "moe_num_experts": 1, "precision": None, "seed": 1234, "train_iters": None,
    "reset_attention_mask": False, "eod_mask_loss": False, "weight_decay": 0.1, "gradient_clipping": 1.0,
    "init_method_std": 0.02, "round_robin_gradients": False, "soft_prompt_tuning": None, "attention_config": None,
    "num_unique_layers": None, "output_layer_parallelism": "column", "label_smoothing": 0.0,
}  # fmt: skip
_ACTIVATIONS = {"gelu": "gelu", "relu": "relu", "silu": "silu", "swish": "silu"}


@dataclass(frozen=True)
class Shapes:
    """What the tensors say. ``mlp``: rows of the first product of an MLP, all ranks together, gate included."""

    layers: int
    hidden: int
    vocab: int
    mlp: int
    head: bool


class Settings:
    """The stored configuration with defaults; remembers what was asked for, so that the rest can be told."""

    def __init__(self, found: Mapping[str, Any]):
        self._found, self.used = dict(found), set[str]()

    def get(self, name: str, default: Any = None) -> Any:
        self.used.add(name)
        return self._found.get(name, _DEFAULTS.get(name, default))

    def must(self, name: str) -> Any:
        """ConversionError where the file does not say."""
        value = self.get(name)
        if value is None:
            raise ConversionError(f"configs: {name.replace('_', '-')} is missing")
        return value

    def unused(self) -> dict[str, Any]:
        return {name: value for name, value in sorted(self._found.items()) if name not in self.used}


def model_of(settings: Settings, shapes: Shapes) -> LmConfig:
    """Our model. Raises ConversionError for what ours does not have, by name."""
    get = settings.get
    for name, wanted in (
        ("pos_emb", "rotary"), ("gpt_j_tied", False), ("use_bias_in_norms", True), ("use_qk_layernorm", False),
        ("use_mup", False), ("sliding_window_width", None), ("apply_query_key_layer_scaling", False),
        ("moe_num_experts", 1), ("soft_prompt_tuning", None), ("num_unique_layers", None), ("hidden_dropout", 0),
        ("attention_dropout", 0), ("round_robin_gradients", False), ("eod_mask_loss", False),
        ("reset_attention_mask", False), ("label_smoothing", 0), ("output_layer_parallelism", "column"),
    ):  # fmt: skip
        if (get(name) or None) != (wanted or None):
            raise ConversionError(
                f"configs: {name.replace('_', '-')}: {get(name)!r} cannot be carried over, only {wanted!r}"
            )
    _check_attention(get("attention_config"))
    if shapes.layers != int(settings.must("num_layers")) or shapes.hidden != int(settings.must("hidden_size")):
        raise ConversionError(
            f"configs: num-layers {settings.must('num_layers')} and hidden-size {settings.must('hidden_size')}, but "
            f"the tensors have {shapes.layers} layers of {shapes.hidden}"
        )
    heads = int(settings.must("num_attention_heads"))
    groups = int(get("num_kv_heads") or heads)
    common: dict[str, Any] = {
        "seq_len": int(settings.must("seq_length")), "hidden_dim": shapes.hidden, "num_layers": shapes.layers,
        "num_heads": heads, "initializer_range": float(get("init_method_std")), "pad_vocab_to_multiple": shapes.vocab,
        "tie_word_embeddings": not shapes.head, "rope": DefaultRopeConfig(float(get("rotary_emb_base"))),
    }  # fmt: skip
    if bool(get("no_weight_tying")) != shapes.head:
        raise ConversionError(f"configs: no-weight-tying is {get('no_weight_tying')}, but the tensors say otherwise")
    norm, activation, parallel = get("norm"), get("activation"), bool(get("gpt_j_residual"))
    attention_bias, mlp_bias = bool(get("use_bias_in_attn_linear")), bool(get("use_bias_in_mlp"))
    try:
        if norm in ("rmsnorm", "te_rmsnorm") and activation == "swiglu":
            if parallel or float(get("rotary_pct")) != 1.0:
                raise ConversionError(
                    "configs: RMSNorm with gpt-j-residual or a rotary-pct below 1 is no model that is known here"
                )
            return LlamaConfig(
                **common, num_kv_heads=groups, intermediate_dim=shapes.mlp // 2, attention_bias=attention_bias,
                mlp_bias=mlp_bias, layer_norm_epsilon=float(get("rms_norm_epsilon")),
            )  # fmt: skip
        if norm in ("layernorm", "te_layernorm") and activation in _ACTIVATIONS and groups == heads and mlp_bias:
            kind = "gelu_new" if activation == "gelu" and get("bias_gelu_fusion") else _ACTIVATIONS[activation]
            return NeoxConfig(
                **common, intermediate_dim=shapes.mlp, activation_function=kind, use_parallel_residual=parallel,
                rotary_pct=float(get("rotary_pct")), attention_bias=attention_bias,
                layer_norm_epsilon=float(get("layernorm_epsilon")),
            )  # fmt: skip
    except ConfigError as error:
        raise ConversionError(f"configs: {error}") from None
    raise ConversionError(
        f"configs: norm {norm}, activation {activation}, {groups} of {heads} key heads, use-bias-in-mlp {mlp_bias}: no "
        "model here is like that (LayerNorm with gelu, relu or silu and biases; RMSNorm with swiglu)"
    )


def optimizer_of(
    settings: Settings, schedule: Mapping[str, Any] | None, groups: list[dict[str, Any]], notes: list[str]
) -> tuple[dict[str, Any], int]:
    """``optimizer:`` of our configuration and the updates of the whole run. ``schedule``: what the checkpoint's
    learning-rate scheduler says; ``groups``: hyper-parameters of the optimizer's parameter groups."""
    described = settings.must("optimizer")
    kind = str(described.get("type", "Adam")).lower()
    if kind not in ("adam", "adamw", "cpu_adam", "cpu_torch_adam"):
        raise ConversionError(f"configs: optimizer.type {described.get('type')!r} is not carried over; Adam alone is")
    parameters = described.get("params") or {}
    group = next((one for one in groups if "betas" in one), {})
    beta1, beta2 = group.get("betas") or parameters.get("betas") or (0.9, 0.999)
    iterations = int(settings.must("train_iters"))
    plan = dict(schedule or {})
    style = plan.get("decay_style", settings.get("lr_decay_style", "linear"))
    peak = float(plan.get("start_lr", parameters.get("lr") or 0.0))
    low = float(plan.get("min_lr", settings.get("min_lr", 0.0)))
    end = int(plan.get("end_iter") or settings.get("lr_decay_iters") or iterations)
    warmup = float(plan.get("warmup_iter", settings.get("warmup", 0.01) * end))
    for name in ("lr_decay_style", "min_lr", "lr_decay_iters", "warmup"):
        settings.used.add(name)
    if style not in ("cosine", "linear", "constant"):
        raise ConversionError(f"configs: lr-decay-style {style!r} is not carried over; cosine, linear and constant are")
    total = max(end, iterations)
    if end != iterations:
        notes.append(
            f"lr-decay-iters is {end} and train-iters {iterations}: the schedule is that of {total} updates"
            + (f"; stop at {iterations}" if end > iterations else ", which decays more slowly than NeoX's")
        )
    if warmup % 1:
        notes.append(f"warmup is {warmup:g} updates; here it is {int(warmup)}")
    if style == "linear" and low:
        notes.append(
            f"a linear decay to min-lr {low:g} is a straight line to it here; NeoX's goes toward 0 and stops there"
        )
    steps = int(warmup)
    decay = settings.get("weight_decay")
    found = {
        "type": "adam", "learning_rate": peak, "weight_decay": float(decay or 0.0), "lr_schedule": style,
        "min_lr_ratio": low / peak if peak and style != "constant" else 0.0,
        # 1 would mean all of the run
        "warmup": steps if steps != 1 else math.nextafter(1 / total, 1), "decay": None, "beta1": float(beta1),
        "beta2": float(beta2), "epsilon": float(group.get("eps", parameters.get("eps", 1e-8))),
        "max_grad_norm": float(settings.get("gradient_clipping") or 0.0) or None,
        # NeoX's embeddings decay, too
        "weight_decay_modules": ["token_embeddings.weight"], "default_weight_decay_mask": True,
    }  # fmt: skip
    return found, total


def precision_of(settings: Settings, notes: list[str]) -> str:
    """``trainer.mp``."""
    precision = settings.get("precision")
    if precision is None:
        halves = {name: bool((settings.get(name) or {}).get("enabled", False)) for name in ("fp16", "bf16")}
        precision = "fp16" if halves["fp16"] else "bfloat16" if halves["bf16"] else "fp32"
    settings.used |= {"fp16", "bf16"}
    if precision == "fp16":
        notes.append("precision fp16 with its loss scale goes on as bfloat16, which needs none; masters stay float32")
    return "f32" if precision == "fp32" else "p=f32,c=bfloat16"


def _check_attention(found: Any) -> None:
    """``[[["global"], 12]]``: dense attention of whatever kernel in every layer."""
    kinds = {kind for entry in found or [] for kind in (entry[0] if isinstance(entry, list) else [entry])}
    strange = sorted(str(kind) for kind in kinds - {"global", "flash"})
    if strange:
        raise ConversionError(f"configs: attention-config {', '.join(strange)} is not known here; global and flash are")
