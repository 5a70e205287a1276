"""Names: which parameter of NeoX's is which array of ours.

Layouts are those of Hugging Face's conversions of the same models, in ``huggingface.names``.
"""

from __future__ import annotations

import re
from collections.abc import Callable

import numpy as np

from midstream_engine.config.model import LlamaConfig, LmConfig, NeoxConfig
from midstream_engine.interop.huggingface.names import TensorRule as Form
from midstream_engine.interop.huggingface.names import rules_of
from midstream_engine.interop.neox.revision import INTERLEAVED
from midstream_engine.interop.neox.tensors import FIRST_BLOCK, MlpNames

Source = tuple[int | None, str, Callable[[np.ndarray], np.ndarray] | None]  # layer (None: each block), name, part


def sources_of(config: LmConfig, mlp: MlpNames, gqa_layout: str) -> list[tuple[Form, Source]]:
    """Return every array of the model and its source.

    ``gqa_layout``: one of ``revision.LAYOUTS``.
    """
    return [(rule, _source(config, rule, mlp, gqa_layout)) for rule in rules_of(config)]


def _source(config: LmConfig, rule: Form, mlp: MlpNames, gqa_layout: str) -> Source:
    name = rule.theirs
    outer = {
        "gpt_neox.embed_in.weight": (0, "word_embeddings.weight"),
        "model.embed_tokens.weight": (0, "word_embeddings.weight"),
        "gpt_neox.final_layer_norm.weight": (config.num_layers + 3, "norm.weight"),
        "gpt_neox.final_layer_norm.bias": (config.num_layers + 3, "norm.bias"),
        "model.norm.weight": (config.num_layers + 3, "norm.scale"),
        "embed_out.weight": (config.num_layers + 4, "final_linear.weight"),
        "lm_head.weight": (config.num_layers + 4, "final_linear.weight"),
    }  # fmt: skip
    if name in outer:
        return *outer[name], None
    inner = re.sub(r"^(gpt_neox|model)\.layers\.\{\}\.", "", name)
    if isinstance(config, NeoxConfig):
        return None, inner.replace("mlp.dense_h_to_4h", mlp.up).replace("mlp.dense_4h_to_h", mlp.down), None
    assert isinstance(config, LlamaConfig)
    module, _, kind = inner.rpartition(".")
    if module.endswith("layernorm"):
        return None, f"{module}.scale", None
    if module == "self_attn.o_proj":
        return None, f"attention.dense.{kind}", None
    if module == "mlp.down_proj":
        return None, f"{mlp.down}.{kind}", None
    if module in ("mlp.up_proj", "mlp.gate_proj"):
        half = 0 if module == "mlp.up_proj" else 1
        if mlp.gate != mlp.up:
            return None, f"{(mlp.up, mlp.gate)[half]}.{kind}", None
        return None, f"{mlp.up}.{kind}", lambda array: np.split(array, 2)[half]
    place = ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj").index(module)
    return None, f"attention.query_key_value.{kind}", lambda array: _head_part(config, array, place, gqa_layout)


def _head_part(config: LlamaConfig, array: np.ndarray, place: int, gqa_layout: str) -> np.ndarray:
    """Return query, key or value.

    With a key per query the three of a head are adjacent. Grouped queries: all of each kind, or, interleaved, each
    query head with its share of the keys and of the values (``revision``).
    """
    size, heads, groups = config.head_size, config.num_heads, config.num_kv_heads
    if heads == groups or gqa_layout == INTERLEAVED:
        share = size * groups // heads
        edges = np.cumsum([0, size, share, share])
        per_head = array.reshape(heads, size + 2 * share, *array.shape[1:])
        return per_head[:, edges[place] : edges[place + 1]].reshape(-1, *array.shape[1:])
    edges = np.cumsum([0, heads * size, groups * size, groups * size])
    return array[edges[place] : edges[place + 1]]


def parameters_of(config: LmConfig, source: Source) -> list[tuple[int, str]]:
    """Return the keys of an array's parameters, in order of the layers."""
    layer, name, _ = source
    if layer is not None:
        return [(layer, name)]
    return [(number + FIRST_BLOCK, name) for number in range(config.num_layers)]
