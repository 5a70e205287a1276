"""Translation between Hugging Face's ``config.json`` and our model configuration.

Unknown features are rejected.
"""

from __future__ import annotations

import dataclasses

from midstream_core.json_types import JsonValue
from midstream_engine.config.errors import ConfigError
from midstream_engine.config.model import Gpt2Config, LlamaConfig, LmConfig, NeoxConfig
from midstream_engine.config.rope import DefaultRopeConfig, Llama3RopeConfig, RopeConfig
from midstream_engine.interop.errors import ConversionError
from midstream_engine.interop.foreign_values import ForeignValue

_ACTIVATIONS = {
    "gelu": "gelu", "gelu_python": "gelu", "gelu_new": "gelu_new", "gelu_fast": "gelu_new",
    "gelu_pytorch_tanh": "gelu_new", "relu": "relu", "silu": "silu", "swish": "silu",
}  # fmt: skip

# Rates of dropout: by name there, and here where the model has one.
_DROPOUT = {
    "embd_pdrop": "model.embed_pdrop", "resid_pdrop": "model.resid_pdrop", "attn_pdrop": "model.attn_pdrop",
    "attention_dropout": "", "hidden_dropout": "",
}  # fmt: skip


def from_huggingface(theirs: dict[str, ForeignValue]) -> tuple[LmConfig, int]:
    """Return our configuration and the size of the vocabulary.

    Raises:
        ConversionError: The model type, or a feature of it, is unsupported.
    """
    kind = theirs.get("model_type")
    if theirs.get("quantization_config"):
        raise ConversionError("config.json: quantization_config: weights that are quantized are not read")
    try:
        match kind:
            case "gpt2":
                config: LmConfig = _gpt2(theirs)
            case "llama":
                config = _llama(theirs)
            case "gpt_neox":
                config = _neox(theirs)
            case _:
                raise ConversionError(f"config.json: model_type {kind!r} is none of gpt2, llama, gpt_neox")
        return config, int(theirs["vocab_size"])
    except KeyError as error:
        raise ConversionError(f"config.json: lacks {error}") from None
    except ConfigError as error:
        raise ConversionError(f"config.json: {error}") from None


def with_dropout(config: LmConfig, theirs: dict[str, ForeignValue]) -> LmConfig:
    """Return the configuration with the rates of dropout of ``config.json``.

    A model that has no dropout here stays as it is.
    """
    if not isinstance(config, Gpt2Config):
        return config
    rates = {ours.partition(".")[2]: float(theirs.get(name, 0.1)) for name, ours in _DROPOUT.items() if ours}
    return dataclasses.replace(config, **rates)


def left_out(config: dict[str, JsonValue]) -> list[str]:
    """Return a line for each setting of the training that is not carried over.

    ``config``: config.json.
    """
    rates = {name: config[name] for name in _DROPOUT if config.get(name)}
    ours = [f"{_DROPOUT[name]} {rate}" for name, rate in rates.items() if _DROPOUT[name]]
    named = ", ".join(f"{name} {rate}" for name, rate in rates.items())
    return [
        f"config.json: {named}: not carried over: there is no dropout here"
        + (f" unless {', '.join(ours)} sets it" if ours else "")
    ] if rates else []  # fmt: skip


def to_huggingface(config: LmConfig, vocab_size: int, dtype: str) -> dict[str, JsonValue]:
    """Return ``config.json`` for present and older versions of transformers.

    Raises:
        ConversionError: Hugging Face has no such model.
    """
    common = {"vocab_size": vocab_size, "torch_dtype": dtype, "initializer_range": config.initializer_range}
    match config:
        case Gpt2Config():
            if not config.use_bias:
                raise ConversionError("model.use_bias is false, and Hugging Face's GPT-2 has biases everywhere")
            return common | {
                "architectures": ["GPT2LMHeadModel"], "model_type": "gpt2",
                "n_positions": config.seq_len, "n_embd": config.hidden_dim, "n_layer": config.num_layers,
                "n_head": config.num_heads, "n_inner": config.mlp_dim,
                "activation_function": config.activation_function, "layer_norm_epsilon": config.layer_norm_epsilon,
                "embd_pdrop": config.embed_pdrop, "resid_pdrop": config.resid_pdrop, "attn_pdrop": config.attn_pdrop,
                "scale_attn_weights": True, "tie_word_embeddings": True,
                "scale_attn_by_inverse_layer_idx": config.scale_attn_by_inverse_layer_idx,
            }  # fmt: skip
        case LlamaConfig():
            if not config.use_layer_norm_weight:
                raise ConversionError(
                    "model.use_layer_norm_weight is false, and Hugging Face's Llama norms have weights"
                )
            if config.epsilon_outside_root:
                raise ConversionError(
                    "model.epsilon_outside_root is true, and Hugging Face's Llama norms have epsilon inside the root"
                )
            if not config.scale_attention:
                raise ConversionError("model.scale_attention is false, and Hugging Face's Llama scales the scores")
            return common | _shape(config) | _rope(config.rope, {}) | {
                "architectures": ["LlamaForCausalLM"], "model_type": "llama",
                "num_key_value_heads": config.num_kv_heads, "head_dim": config.head_size,
                "hidden_act": config.activation_function, "rms_norm_eps": config.layer_norm_epsilon,
                "attention_bias": config.has_attention_bias, "mlp_bias": config.has_mlp_bias,
                "tie_word_embeddings": config.tie_word_embeddings,
            }  # fmt: skip
        case NeoxConfig():
            old = {"rotary_pct": config.rotary_pct, "rotary_emb_base": config.rope.theta}
            return common | _shape(config) | _rope(config.rope, {"partial_rotary_factor": config.rotary_pct}) | old | {
                "architectures": ["GPTNeoXForCausalLM"], "model_type": "gpt_neox",
                "hidden_act": config.activation_function, "layer_norm_eps": config.layer_norm_epsilon,
                "attention_bias": config.attention_bias, "use_parallel_residual": config.use_parallel_residual,
                "tie_word_embeddings": config.tie_word_embeddings,
            }  # fmt: skip
    raise ConversionError(f"a model of type {type(config).__name__} has no counterpart at Hugging Face")


def _shape(config: LmConfig) -> dict[str, JsonValue]:
    return {
        "max_position_embeddings": config.seq_len, "hidden_size": config.hidden_dim,
        "intermediate_size": config.mlp_dim, "num_hidden_layers": config.num_layers,
        "num_attention_heads": config.num_heads,
    }  # fmt: skip


def _rope(rope: RopeConfig, more: dict[str, JsonValue]) -> dict[str, JsonValue]:
    scaling: dict[str, JsonValue] = {"rope_type": "default"}
    if isinstance(rope, Llama3RopeConfig):
        scaling = {
            "rope_type": "llama3", "factor": rope.factor, "low_freq_factor": rope.low_freq_factor,
            "high_freq_factor": rope.high_freq_factor,
            "original_max_position_embeddings": rope.original_max_position_embeddings,
        }  # fmt: skip
    elif isinstance(rope, DefaultRopeConfig) and rope.factor != 1.0:
        scaling = {"rope_type": "linear", "factor": rope.factor}
    older = None if scaling["rope_type"] == "default" else scaling
    return {
        "rope_parameters": {**scaling, **more, "rope_theta": rope.theta},
        "rope_theta": rope.theta, "rope_scaling": older,
    }  # fmt: skip


def _gpt2(config: dict[str, ForeignValue]) -> Gpt2Config:
    hidden, inner = config["n_embd"], config.get("n_inner") or 4 * config["n_embd"]
    _refuse(inner % hidden != 0, "n_inner", inner, f"only multiples of n_embd ({hidden}) are known")
    _refuse(not config.get("scale_attn_weights", True), "scale_attn_weights", False, "scores are always scaled")
    _refuse(bool(config.get("add_cross_attention")), "add_cross_attention", True, "there is no encoder")
    _refuse(not config.get("tie_word_embeddings", True), "tie_word_embeddings", False, "GPT-2's head is the embedding")
    return Gpt2Config(
        seq_len=config["n_positions"],
        hidden_dim=hidden,
        num_layers=config["n_layer"],
        num_heads=config["n_head"],
        mlp_scale=inner // hidden,
        activation_function=_activation(config.get("activation_function", "gelu_new")),
        layer_norm_epsilon=config.get("layer_norm_epsilon", 1e-5),
        initializer_range=config.get("initializer_range", 0.02),
        scale_attn_by_inverse_layer_idx=config.get("scale_attn_by_inverse_layer_idx", False),
    )


def _llama(config: dict[str, ForeignValue]) -> LlamaConfig:
    _refuse(config.get("pretraining_tp", 1) != 1, "pretraining_tp", config.get("pretraining_tp"), "only 1 is known")
    heads, hidden = config["num_attention_heads"], config["hidden_size"]
    head, (rope, rotated) = config.get("head_dim"), _rope_from(config, 10_000.0)
    _refuse(rotated not in (None, 1), "partial_rotary_factor", rotated, "all of a head is rotated")
    return LlamaConfig(
        seq_len=config["max_position_embeddings"],
        hidden_dim=hidden,
        intermediate_dim=config["intermediate_size"],
        num_layers=config["num_hidden_layers"],
        num_heads=heads,
        num_kv_heads=config.get("num_key_value_heads") or heads,
        head_dim=None if head is None or head * heads == hidden else head,
        activation_function=_activation(config.get("hidden_act", "silu")),
        layer_norm_epsilon=config.get("rms_norm_eps", 1e-6),
        initializer_range=config.get("initializer_range", 0.02),
        rope=rope,
        tie_word_embeddings=config.get("tie_word_embeddings", False),
        attention_bias=config.get("attention_bias", False),
        mlp_bias=config.get("mlp_bias", False),
    )


def _neox(config: dict[str, ForeignValue]) -> NeoxConfig:
    rope, rotated = _rope_from(config, config.get("rotary_emb_base", 10_000.0))
    return NeoxConfig(
        seq_len=config["max_position_embeddings"],
        hidden_dim=config["hidden_size"],
        intermediate_dim=config["intermediate_size"],
        num_layers=config["num_hidden_layers"],
        num_heads=config["num_attention_heads"],
        activation_function=_activation(config.get("hidden_act", "gelu")),
        layer_norm_epsilon=config.get("layer_norm_eps", 1e-5),
        initializer_range=config.get("initializer_range", 0.02),
        rope=rope,
        rotary_pct=config.get("rotary_pct", 0.25) if rotated is None else rotated,
        use_parallel_residual=config.get("use_parallel_residual", True),
        attention_bias=config.get("attention_bias", True),
        tie_word_embeddings=config.get("tie_word_embeddings", False),
    )


def _rope_from(config: dict[str, ForeignValue], theta: float) -> tuple[RopeConfig, float | None]:
    """Return rotary positions, and a head's rotated part.

    The part is there if ``rope_parameters`` has it.
    """
    scaling = config.get("rope_parameters") or config.get("rope_scaling") or {}
    kind = scaling.get("rope_type") or scaling.get("type") or "default"
    theta = float(scaling.get("rope_theta") or config.get("rope_theta") or theta)
    rotated = scaling.get("partial_rotary_factor")
    match kind:
        case "default":
            return DefaultRopeConfig(theta), rotated
        case "linear":
            return DefaultRopeConfig(theta, float(scaling["factor"])), rotated
        case "llama3":
            factor, low, high = (float(scaling[name]) for name in ("factor", "low_freq_factor", "high_freq_factor"))
            return Llama3RopeConfig(theta, factor, low, high, int(scaling["original_max_position_embeddings"])), rotated
    raise ConversionError(f"config.json: rope_type {kind!r} is none of default, linear, llama3")


def _activation(name: str) -> str:
    if name not in _ACTIVATIONS:
        raise ConversionError(f"config.json: activation {name!r} is none of {', '.join(_ACTIVATIONS)}")
    return _ACTIVATIONS[name]


def _refuse(wrong: bool, name: str, value: object, why: str) -> None:
    if wrong:
        raise ConversionError(f"config.json: {name} {value!r} cannot be converted: {why}")
