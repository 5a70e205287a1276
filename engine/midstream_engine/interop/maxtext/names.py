"""MaxText's names and layouts of a Llama: which of its arrays is which of ours.

Axes are in our order, but for the layers of scanned ones, which are on the axis ``param_scan_axis``. With
``rope_type: llama3.1`` neighbours of a head are turned together (0 with 1, 2 with 3), ours are halves (0 with
size / 2).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from midstream_engine.config.model import LlamaConfig

PARAMETERS, ADAM, RATE = "params.params.", "opt_state.0.", "opt_state.2."
STEP = "step"
COUNTS = (STEP, f"{ADAM}count", f"{RATE}count")
GENERATORS = "nnx_aux."  # states of random generators
TABLE, NORM, HEAD = "token_embedder.embedding", "decoder.decoder_norm.scale", "decoder.logits_dense.kernel"
KINDS = {"model/": PARAMETERS, "optimizer/adam/mu/": f"{ADAM}mu.params.", "optimizer/adam/nu/": f"{ADAM}nu.params."}
_LAYER = {
    "input_layernorm": "pre_self_attention_layer_norm.scale",
    "post_attention_layernorm": "post_self_attention_layer_norm.scale",
    "self_attn/q_proj": "self_attention.query.kernel", "self_attn/k_proj": "self_attention.key.kernel",
    "self_attn/v_proj": "self_attention.value.kernel", "self_attn/o_proj": "self_attention.out.kernel",
    "mlp/gate_proj": "mlp.wi_0.kernel", "mlp/up_proj": "mlp.wi_1.kernel", "mlp/down_proj": "mlp.wo.kernel",
}  # fmt: skip


@dataclass(frozen=True)
class ArrayRule:
    """Our array ``model/<ours>`` and MaxText's.

    ``{}`` in its name is empty for all layers together, or ``_N`` for one. ``turned``: rows of a head have the order
    of neighbours.
    """

    ours: str
    theirs: str
    turned: bool

    @property
    def stacked(self) -> bool:
        """Whether ours has a ``layers`` axis."""
        return "{}" in self.theirs

    def to_ours(self, array: np.ndarray) -> np.ndarray:
        """Return an array, or a layer of it, in our order. A view where nothing is turned."""
        return _turned(array, (-1, 2)) if self.turned else array

    def to_theirs(self, array: np.ndarray) -> np.ndarray:
        """Return the way back."""
        return _turned(array, (2, -1)) if self.turned else array


def rules_of(model: LlamaConfig, *, neighbours: bool) -> list[ArrayRule]:
    """Return the rules of a model's arrays. ``neighbours``: of rotary positions."""
    ends = {"token_embeddings": TABLE, "norm": NORM}
    if not model.tie_word_embeddings:
        ends["lm_head"] = HEAD
    return [
        *(ArrayRule(f"{ours}/weight", theirs, turned=False) for ours, theirs in ends.items()),
        *(ArrayRule(f"blocks/stacked/{ours}/weight", f"decoder.layers{{}}.{theirs}",
                    turned=neighbours and ours.endswith(("q_proj", "k_proj"))) for ours, theirs in _LAYER.items()),
    ]  # fmt: skip


def _turned(array: np.ndarray, inner: tuple[int, int]) -> np.ndarray:
    """Exchange the two axes into which the last is split."""
    return array.reshape(*array.shape[:-1], *inner).swapaxes(-1, -2).reshape(array.shape)
