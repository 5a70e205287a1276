"""torchtitan's names and layouts of a Llama: which tensor is which array of ours.

Its rotary positions turn neighbours of a head (0 with 1, 2 with 3), ours turn halves (0 with size / 2): rows of queries
and keys have another order, as in Hugging Face's conversion of Llama.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from midstream_engine.config.model import LlamaConfig
from midstream_engine.interop.huggingface.names import TensorForm, TensorRule
from midstream_engine.interop.huggingface.names import rules_of as huggingface_rules

EXP_AVG, EXP_AVG_SQ = "exp_avg", "exp_avg_sq"
STATE, GROUPS = "optimizer.state.", "optimizer.param_groups."
FUSED = "qkv_linear.wqkv.weight"  # one parameter in the optimizer, three tensors in the model
PARTS = ("qkv_linear.wq.weight", "qkv_linear.wk.weight", "qkv_linear.wv.weight")
HEAD, TABLE = "lm_head.weight", "tok_embeddings.weight"
_NAMES = {
    "model.embed_tokens.": "tok_embeddings.", "model.norm.": "norm.", "model.layers.": "layers.",
    "self_attn.q_proj.": "attention.qkv_linear.wq.", "self_attn.k_proj.": "attention.qkv_linear.wk.",
    "self_attn.v_proj.": "attention.qkv_linear.wv.", "self_attn.o_proj.": "attention.wo.",
    "mlp.gate_proj.": "feed_forward.w1.", "mlp.down_proj.": "feed_forward.w2.", "mlp.up_proj.": "feed_forward.w3.",
    "post_attention_layernorm.": "ffn_norm.", "input_layernorm.": "attention_norm.",
}  # fmt: skip
# Names of releases before 0.3: three parameters in the optimizer too.
_OLDER = {
    "attention.wq.": "attention.qkv_linear.wq.", "attention.wk.": "attention.qkv_linear.wk.",
    "attention.wv.": "attention.qkv_linear.wv.",
}  # fmt: skip


def rules_of(model: LlamaConfig) -> list[TensorRule]:
    """Return the rules of a model's arrays, by the names of torchtitan 0.3."""
    return [_rule(model, rule) for rule in huggingface_rules(model)]


def present_name(name: str) -> str:
    """Return the name of torchtitan 0.3 for a name that it or an earlier release has."""
    for folder in (STATE, GROUPS):
        if name.startswith(folder):
            return folder + present_name(name.removeprefix(folder))
    name = name.removeprefix("model.")
    return _replaced(HEAD + name.removeprefix("output.weight") if name.startswith("output.weight") else name, _OLDER)


def fused(query: np.ndarray, key: np.ndarray, value: np.ndarray, kv_heads: int) -> np.ndarray:
    """Return one matrix: of each key head its queries, key, value. [out, in] each."""
    grouped = [matrix.reshape(kv_heads, -1, matrix.shape[1]) for matrix in (query, key, value)]
    return np.concatenate(grouped, axis=1).reshape(-1, query.shape[1])


def unfused(matrix: np.ndarray, kv_heads: int, head_size: int) -> list[np.ndarray]:
    """Return the matrices of queries, keys and values of ``fused``."""
    grouped = matrix.reshape(kv_heads, -1, matrix.shape[1])
    cuts = [grouped.shape[1] - 2 * head_size, grouped.shape[1] - head_size]
    return [rows.reshape(-1, matrix.shape[1]) for rows in np.split(grouped, cuts, axis=1)]


def _rule(model: LlamaConfig, rule: TensorRule) -> TensorRule:
    form, theirs = rule.form, _replaced(rule.theirs, _NAMES)
    if theirs.endswith(PARTS[0]):
        form = _neighbours(form, model.num_heads)
    elif theirs.endswith(PARTS[1]):
        form = _neighbours(form, model.num_kv_heads)
    return TensorRule(rule.ours, theirs, form)


def _neighbours(form: TensorForm, heads: int) -> TensorForm:
    """Return the form of rows whose neighbours are turned together.

    ``form``: that of halves of a head.
    """

    def turned(array: np.ndarray, *, halves: bool) -> np.ndarray:
        inner = (-1, 2) if halves else (2, array.shape[0] // heads // 2)
        return array.reshape(heads, *inner, array.shape[1]).transpose(0, 2, 1, 3).reshape(array.shape)

    return TensorForm(
        form.shape,
        lambda array, shape: form.ours(turned(array, halves=True), shape),
        lambda array: turned(form.theirs(array), halves=False),
    )


def _replaced(name: str, names: Mapping[str, str]) -> str:
    for old, new in names.items():
        name = name.replace(old, new)
    return name
