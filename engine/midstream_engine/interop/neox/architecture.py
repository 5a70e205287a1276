"""Translation of NeoX's configuration to ours: model and training.

Settings that have no counterpart are rejected or noted.

Missing names have NeoX's defaults. Shapes are those of the tensors, not of the file: the meaning of
``intermediate_size`` has changed between versions.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from midstream_core.json_types import JsonObject
from midstream_engine.config.errors import ConfigError
from midstream_engine.config.model import LlamaConfig, LmConfig, NeoxConfig
from midstream_engine.config.rope import DefaultRopeConfig
from midstream_engine.interop.errors import ConversionError
from midstream_engine.interop.foreign_values import TorchState, TorchValue
from midstream_engine.interop.neox.revision import BLOCKED, OUTSIDE, Heads, Revision

# NeoX's defaults of what is read here.
DEFAULTS: dict[str, TorchValue] = {
    "norm": "layernorm", "layernorm_epsilon": 1e-5, "rms_norm_epsilon": 1e-8, "rmsnorm_fusion": False,
    "pos_emb": "learned", "no_weight_tying": False, "rotary_pct": 1.0, "rotary_emb_base": 10000, "activation": "gelu",
    "bias_gelu_fusion": False, "gpt_j_residual": False, "use_bias_in_attn_linear": True, "use_bias_in_mlp": True,
    "num_kv_heads": None, "precision": None, "seed": 1234, "train_iters": None, "weight_decay": 0.1,
    "gradient_clipping": 1.0, "init_method_std": 0.02, "attention_config": None, "mlp_type": "regular",
    "lr_decay_style": "linear", "lr_decay_iters": None, "lr_decay_fraction": None, "min_lr": 0.0, "warmup": 0.01,
    "gradient_accumulation_steps": 1,
}  # fmt: skip
_ACTIVATIONS = {"gelu": "gelu", "relu": "relu", "silu": "silu", "swish": "silu"}


@dataclass(frozen=True)
class Choices:
    """The user's statement about the NeoX that wrote a checkpoint (``revision``).

    None: as the checkpoint shows.
    """

    gqa_layout: str | None = None
    rms_epsilon: str | None = None


AS_FOUND = Choices()


@dataclass(frozen=True)
class Shapes:
    """Shapes of the tensors.

    ``mlp``: rows of the first product of an MLP, of all ranks, with the gate.
    """

    layers: int
    hidden: int
    vocab: int
    mlp: int
    head: bool


class Settings:
    """The stored configuration with NeoX's defaults."""

    def __init__(self, config: JsonObject) -> None:
        self.values = dict(config)

    def get(self, name: str) -> TorchValue:
        """Return a value, or NeoX's default."""
        return self.values.get(name, DEFAULTS.get(name))

    def must(self, name: str) -> TorchValue:
        """Return a value.

        Raises:
            ConversionError: The file does not have it.
        """
        value = self.get(name)
        if value is None:
            raise ConversionError(f"configs: {name.replace('_', '-')} is missing")
        return value


def model_of(
    settings: Settings, shapes: Shapes, revision: Revision, choices: Choices, notes: list[str]
) -> tuple[LmConfig, str]:
    """Return our model configuration and the layout of grouped queries.

    Args:
        settings: The stored configuration with NeoX's defaults.
        shapes: Shapes of the tensors.
        revision: The possible periods of the NeoX that wrote the checkpoint.
        choices: The user's statement about that NeoX.
        notes: Receives lines on what was decided.

    Raises:
        ConversionError: Ours lacks a feature, or two models are possible; the message names it.
    """
    get = settings.get
    _check_attention(get("attention_config"))
    if shapes.layers != int(settings.must("num_layers")) or shapes.hidden != int(settings.must("hidden_size")):
        raise ConversionError(
            f"configs: num-layers {settings.must('num_layers')} and hidden-size {settings.must('hidden_size')}, but "
            f"the tensors have {shapes.layers} layers of {shapes.hidden}"
        )
    heads = int(settings.must("num_attention_heads"))
    groups = int(get("num_kv_heads") or heads)
    common: dict[str, TorchValue] = {
        "seq_len": int(settings.must("seq_length")), "hidden_dim": shapes.hidden, "num_layers": shapes.layers,
        "num_heads": heads, "initializer_range": float(get("init_method_std")), "pad_vocab_to_multiple": shapes.vocab,
        "tie_word_embeddings": not shapes.head, "rope": DefaultRopeConfig(float(get("rotary_emb_base"))),
    }  # fmt: skip
    if bool(get("no_weight_tying")) != shapes.head:
        raise ConversionError(f"configs: no-weight-tying is {get('no_weight_tying')}, but the tensors say otherwise")
    norm, activation, parallel = get("norm"), get("activation"), bool(get("gpt_j_residual"))
    attention_bias, mlp_bias = bool(get("use_bias_in_attn_linear")), bool(get("use_bias_in_mlp"))
    legacy = get("mlp_type") == "llama"  # its MLP has no biases
    gated = activation in ("silu", "swish") if legacy else activation == "swiglu"
    try:
        if norm in ("rmsnorm", "te_rmsnorm") and gated:
            if parallel or float(get("rotary_pct")) != 1.0:
                raise ConversionError(
                    "configs: RMSNorm with gpt-j-residual or a rotary-pct below 1 is no model that is known here"
                )
            if shapes.hidden % heads:
                raise ConversionError(f"configs: num-attention-heads {heads} does not divide hidden-size")
            layout = revision.gqa_layout(Heads(heads, groups, shapes.hidden // heads), choices.gqa_layout, notes)
            epsilon, fused = float(get("rms_norm_epsilon")), bool(get("rmsnorm_fusion")) or norm == "te_rmsnorm"
            place = revision.rms_epsilon(epsilon, fused, choices.rms_epsilon, notes)
            return LlamaConfig(
                **common, num_kv_heads=groups, intermediate_dim=shapes.mlp // 2, attention_bias=attention_bias,
                mlp_bias=mlp_bias and not legacy, layer_norm_epsilon=epsilon, epsilon_outside_root=place == OUTSIDE,
            ), layout  # fmt: skip
        if (
            norm in ("layernorm", "te_layernorm")
            and activation in _ACTIVATIONS
            and groups == heads
            and mlp_bias
            and not legacy
        ):
            kind = "gelu_new" if activation == "gelu" and get("bias_gelu_fusion") else _ACTIVATIONS[activation]
            return NeoxConfig(
                **common, intermediate_dim=shapes.mlp, activation_function=kind, use_parallel_residual=parallel,
                rotary_pct=float(get("rotary_pct")), attention_bias=attention_bias,
                layer_norm_epsilon=float(get("layernorm_epsilon")),
            ), BLOCKED  # fmt: skip
    except ConfigError as error:
        raise ConversionError(f"configs: {error}") from None
    raise ConversionError(
        f"configs: norm {norm}, activation {activation}, {groups} of {heads} key heads, use-bias-in-mlp {mlp_bias}: no "
        "model here is like that (LayerNorm with gelu, relu or silu and biases; RMSNorm with swiglu)"
    )


def optimizer_of(
    settings: Settings,
    schedule: TorchState | None,
    groups: list[dict[str, TorchValue]],
    clipping: float | None,
    notes: list[str],
) -> tuple[dict[str, TorchValue], int]:
    """Return ``optimizer:`` of our configuration and the updates of the complete run.

    Args:
        settings: NeoX's configuration.
        schedule: State of the checkpoint's learning-rate scheduler.
        groups: Hyper-parameters of the optimizer's parameter groups.
        clipping: DeepSpeed's own record of the norm that gradients were clipped to, 0 for none; None: no record.
        notes: Gets a line for each difference.

    Raises:
        ConversionError: The optimizer or its schedule cannot be carried over.
    """
    described = settings.must("optimizer")
    kind = str(described.get("type", "Adam")).lower()
    if kind not in ("adam", "adamw", "cpu_adam", "cpu_torch_adam"):
        raise ConversionError(f"configs: optimizer.type {described.get('type')!r} is not carried over; Adam alone is")
    parameters = described.get("params") or {}
    group = next((group for group in groups if "betas" in group), {})
    beta1, beta2 = group.get("betas") or parameters.get("betas") or (0.9, 0.999)
    iterations = int(settings.must("train_iters"))
    plan = dict(schedule or {})
    style = plan.get("decay_style", settings.get("lr_decay_style"))
    peak = float(plan.get("start_lr", parameters.get("lr") or 0.0))
    low = float(plan.get("min_lr", settings.get("min_lr")))
    fraction = settings.get("lr_decay_fraction")
    decayed = iterations if fraction is None else max(1, math.floor(iterations * float(fraction)))
    end = int(plan.get("end_iter") or settings.get("lr_decay_iters") or decayed)
    warmup = float(plan.get("warmup_iter", settings.get("warmup") * end))
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
    optimizer = {
        "type": "adam", "learning_rate": peak, "weight_decay": float(decay or 0.0), "lr_schedule": style,
        "min_lr_ratio": low / peak if peak and style != "constant" else 0.0,
        # 1 would mean all of the run
        "warmup": steps if steps != 1 else math.nextafter(1 / total, 1), "decay": None, "beta1": float(beta1),
        "beta2": float(beta2), "epsilon": float(group.get("eps", parameters.get("eps", 1e-8))),
        "max_grad_norm": _max_grad_norm(settings, clipping, notes),
        # NeoX's embeddings decay, too
        "weight_decay_modules": ["token_embeddings.weight"], "default_weight_decay_mask": True,
    }  # fmt: skip
    return optimizer, total


def _max_grad_norm(settings: Settings, clipping: float | None, notes: list[str]) -> float | None:
    """Return the norm to which gradients are clipped.

    DeepSpeed's record goes first: NeoX passes on only the settings that differ from its own defaults, and DeepSpeed's
    default is not to clip. Since 2023-03-26 (5c5fb945) ``gradient-clipping: 1.0`` is such a default.
    """
    norm = float(settings.get("gradient_clipping") or 0.0)
    if clipping is not None and clipping != norm:
        notes.append(
            f"gradient-clipping is {norm:g}, but DeepSpeed's record of it in the checkpoint is {clipping:g}"
            + (": it did not clip, and neither does the imported run" if not clipping else ", which is taken")
            + (" (NeoX does not hand over a value that is its default)" if norm == 1.0 else "")
        )
    return (norm if clipping is None else clipping) or None


def precision_of(settings: Settings, notes: list[str]) -> str:
    """Return ``trainer.mp``."""
    precision = settings.get("precision")
    if precision is None:
        halves = {name: bool((settings.get(name) or {}).get("enabled", False)) for name in ("fp16", "bf16")}
        precision = "fp16" if halves["fp16"] else "bfloat16" if halves["bf16"] else "fp32"
    if precision == "fp16":
        notes.append("precision fp16 with its loss scale goes on as bfloat16, which needs none; masters stay float32")
    return "f32" if precision == "fp32" else "p=f32,c=bfloat16"


def _check_attention(value: TorchValue) -> None:
    """Check for ``[[["global"], 12]]``: dense attention in all layers, any kernel."""
    kinds = {kind for entry in value or [] for kind in (entry[0] if isinstance(entry, list) else [entry])}
    strange = sorted(str(kind) for kind in kinds - {"global", "flash"})
    if strange:
        raise ConversionError(f"configs: attention-config {', '.join(strange)} is not known here; global and flash are")
