"""Names and layouts: which tensor of Hugging Face's is which array of ours."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from midstream_engine.config.model import Gpt2Config, LlamaConfig, LmConfig, NeoxConfig

Shape = tuple[int, ...]
PREFIX = "model/"  # of the names of the parameters in a checkpoint


@dataclass(frozen=True)
class TensorForm:
    """Hugging Face's layout of an array of ours (of one layer, if it is stacked).

    Arrays are views if numpy can make them.
    """

    shape: Callable[[Shape], Shape]  # ours -> theirs
    ours: Callable[[np.ndarray, Shape], np.ndarray]  # their array, our shape -> our array
    theirs: Callable[[np.ndarray], np.ndarray]  # the way back


def _linear(inputs: int) -> TensorForm:
    """Return the form of a linear layer with ``inputs`` axes of input.

    Its layout is [out, in] for theirs, [in..., out...] for ours.
    """
    return TensorForm(
        lambda shape: (math.prod(shape[inputs:]), math.prod(shape[:inputs])),
        lambda array, shape: array.T.reshape(shape),
        lambda array: array.reshape(math.prod(array.shape[:inputs]), -1).T,
    )


def _conv1d(inputs: int) -> TensorForm:
    """Return the layout [in, out] of theirs (GPT-2's Conv1D), [in..., out...] of ours."""
    return TensorForm(
        lambda shape: (math.prod(shape[:inputs]), math.prod(shape[inputs:])),
        lambda array, shape: array.reshape(shape),
        lambda array: array.reshape(math.prod(array.shape[:inputs]), -1),
    )


_VECTOR = TensorForm(
    lambda shape: (math.prod(shape),), lambda array, shape: array.reshape(shape), lambda array: array.reshape(-1)
)
_TABLE = TensorForm(lambda shape: shape, lambda array, _: array, lambda array: array)

# NeoX has query, key, value of a head together: [heads * 3 * head_size, embed]; ours [embed, 3, heads, head_size].
_QKV_WEIGHT = TensorForm(
    lambda shape: (math.prod(shape[1:]), shape[0]),
    lambda array, shape: array.reshape(shape[2], 3, shape[3], shape[0]).transpose(3, 1, 0, 2),
    lambda array: array.transpose(2, 1, 3, 0).reshape(-1, array.shape[0]),
)
_QKV_BIAS = TensorForm(
    lambda shape: (math.prod(shape),),
    lambda array, shape: array.reshape(shape[1], 3, shape[2]).transpose(1, 0, 2),
    lambda array: array.transpose(1, 0, 2).reshape(-1),
)


@dataclass(frozen=True)
class TensorRule:
    """Our array ``model/<ours>`` and Hugging Face's tensor.

    ``{}`` in the tensor's name is the layer of a stacked array.
    """

    ours: str
    theirs: str
    form: TensorForm

    @property
    def stacked(self) -> bool:
        """Whether ours has a ``layers`` axis."""
        return "{}" in self.theirs


def _both(
    ours: str, theirs: str, form: TensorForm, bias: bool = True, bias_form: TensorForm = _VECTOR
) -> list[TensorRule]:
    """Return the rules of a weight and its bias, if it has one."""
    rules = [TensorRule(f"{ours}/weight", f"{theirs}.weight", form)]
    return [*rules, TensorRule(f"{ours}/bias", f"{theirs}.bias", bias_form)] if bias else rules


def rules_of(config: LmConfig) -> list[TensorRule]:
    """Return the rules of a model's arrays, in the order of transformers' modules."""
    match config:
        case Gpt2Config():
            layer, ours = "transformer.h.{}.", "blocks/stacked/"
            return [
                TensorRule("token_embeddings/weight", "transformer.wte.weight", _TABLE),
                TensorRule("position_embeddings/weight", "transformer.wpe.weight", _TABLE),
                *_both(f"{ours}ln_1", f"{layer}ln_1", _VECTOR),
                *_both(f"{ours}attn/qkv", f"{layer}attn.c_attn", _conv1d(1)),
                *_both(f"{ours}attn/proj", f"{layer}attn.c_proj", _conv1d(2)),
                *_both(f"{ours}ln_2", f"{layer}ln_2", _VECTOR),
                *_both(f"{ours}mlp/up", f"{layer}mlp.c_fc", _conv1d(1)),
                *_both(f"{ours}mlp/down", f"{layer}mlp.c_proj", _conv1d(1)),
                *_both("ln_f", "transformer.ln_f", _VECTOR),
            ]
        case LlamaConfig():
            layer, ours = "model.layers.{}.", "blocks/stacked/"
            attention, mlp = config.has_attention_bias, config.has_mlp_bias
            return [
                TensorRule("token_embeddings/weight", "model.embed_tokens.weight", _TABLE),
                *_both(f"{ours}self_attn/q_proj", f"{layer}self_attn.q_proj", _linear(1), attention),
                *_both(f"{ours}self_attn/k_proj", f"{layer}self_attn.k_proj", _linear(1), attention),
                *_both(f"{ours}self_attn/v_proj", f"{layer}self_attn.v_proj", _linear(1), attention),
                *_both(f"{ours}self_attn/o_proj", f"{layer}self_attn.o_proj", _linear(2), attention),
                *_both(f"{ours}mlp/gate_proj", f"{layer}mlp.gate_proj", _linear(1), mlp),
                *_both(f"{ours}mlp/up_proj", f"{layer}mlp.up_proj", _linear(1), mlp),
                *_both(f"{ours}mlp/down_proj", f"{layer}mlp.down_proj", _linear(1), mlp),
                *_both(f"{ours}input_layernorm", f"{layer}input_layernorm", _VECTOR, False),
                *_both(f"{ours}post_attention_layernorm", f"{layer}post_attention_layernorm", _VECTOR, False),
                *_both("norm", "model.norm", _VECTOR, False),
                *([] if config.tie_word_embeddings else _both("lm_head", "lm_head", _linear(1), False)),
            ]
        case NeoxConfig():
            layer, ours = "gpt_neox.layers.{}.", "blocks/stacked/"
            bias = config.attention_bias
            return [
                TensorRule("token_embeddings/weight", "gpt_neox.embed_in.weight", _TABLE),
                *_both(f"{ours}input_layernorm", f"{layer}input_layernorm", _VECTOR),
                *_both(f"{ours}post_attention_layernorm", f"{layer}post_attention_layernorm", _VECTOR),
                *_both(f"{ours}attention/qkv", f"{layer}attention.query_key_value", _QKV_WEIGHT, bias, _QKV_BIAS),
                *_both(f"{ours}attention/dense", f"{layer}attention.dense", _linear(2), bias),
                *_both(f"{ours}mlp/up", f"{layer}mlp.dense_h_to_4h", _linear(1)),
                *_both(f"{ours}mlp/down", f"{layer}mlp.dense_4h_to_h", _linear(1)),
                *_both("final_layer_norm", "gpt_neox.final_layer_norm", _VECTOR),
                *([] if config.tie_word_embeddings else _both("lm_head", "embed_out", _linear(1), False)),
            ]
    raise TypeError(f"no names for {type(config).__name__}")


def tied_head(config: LmConfig) -> tuple[str, str] | None:
    """Return Hugging Face's (head, embedding) if both are one array; else None.

    Some files have this array twice.
    """
    match config:
        case Gpt2Config():
            return "lm_head.weight", "transformer.wte.weight"
        case LlamaConfig() if config.tie_word_embeddings:
            return "lm_head.weight", "model.embed_tokens.weight"
        case NeoxConfig() if config.tie_word_embeddings:
            return "embed_out.weight", "gpt_neox.embed_in.weight"
    return None


# Constants that older versions wrote beside the weights: masks and rotary frequencies, which the config implies.
CONSTANTS = re.compile(r"(.*\.)?(h\.\d+\.attn|attention)\.(bias|masked_bias)|.*rotary_emb\.inv_freq")


def unpadded(axes: Sequence[str], shape: Sequence[int], vocab_size: int) -> tuple[int, ...]:
    """Return the shape without the rows that pad the vocabulary."""
    return tuple(vocab_size if axis == "vocab" else size for axis, size in zip(axes, shape, strict=True))
