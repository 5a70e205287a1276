"""The arrays that a plan of an import computes, against those of the engine's state."""

from __future__ import annotations

import math
from typing import Any

import pytest

from midstream.migrate.planning.model_arrays import size_of, state_arrays
from midstream_engine.config import from_mapping
from midstream_engine.interop import foreign_run

pytestmark = [
    # haliax 1.4 uses names that jax 0.10 deprecates.
    pytest.mark.filterwarnings("ignore:jax.core.is_constant_dim is deprecated:DeprecationWarning"),
    pytest.mark.filterwarnings("ignore:jax.interpreters.pxla.thread_resources is deprecated:DeprecationWarning"),
]
SIZES = {"num_layers": 2, "hidden_dim": 16, "num_heads": 4, "seq_len": 8}
LLAMA = {"type": "llama", **SIZES, "num_kv_heads": 2, "intermediate_dim": 40}
NEOX = {"type": "neox", **SIZES, "rotary_pct": 0.5}
ROWS = 60


@pytest.mark.parametrize(
    ("model", "optimizer", "trainer"),
    [
        ({"type": "gpt2", **SIZES}, "adam", {}),
        ({"type": "gpt2", **SIZES, "use_bias": False}, "lion", {"mp": "bfloat16"}),
        ({"type": "gpt2", **SIZES, "mlp_scale": 2}, "cautious", {"mp": "p=f32,c=bfloat16"}),
        (LLAMA, "adam", {"model_averaging": {"type": "ema", "beta": 0.99}}),
        ({**LLAMA, "tie_word_embeddings": True, "attention_bias": True, "mlp_bias": True}, "adopt", {}),
        ({**LLAMA, "head_dim": 8, "use_bias": True}, "adam", {"mp": "p=bf16,c=f32"}),
        ({"type": "neox", **SIZES, "rotary_pct": 0.5}, "adam", {}),
        (
            {"type": "neox", **SIZES, "rotary_pct": 0.5, "tie_word_embeddings": True, "attention_bias": False},
            "adam",
            {},
        ),
    ],
)
def test_planned_arrays_are_those_of_the_state(model: dict[str, Any], optimizer: str, trainer: dict[str, Any]) -> None:
    mapping = {
        "data": {"tokenizer": f"ids:{ROWS}"},
        "model": {**model, "pad_vocab_to_multiple": ROWS},
        "optimizer": {"type": optimizer},
        "trainer": trainer,
    }
    state = foreign_run.state_arrays(from_mapping(mapping).config, ROWS)
    large = {name: array for name, array in state.items() if not name.endswith("count") and name != "key"}
    planned = {array.name: array for array in state_arrays(mapping, ROWS)}
    assert {name: (tuple(each.axes), tuple(each.shape), each.dtype) for name, each in planned.items()} == {
        name: (tuple(array.axes), array.shape, array.dtype) for name, array in large.items()
    }


def test_muon_is_planned_with_the_size_of_its_state() -> None:
    mapping = {
        "data": {"tokenizer": f"ids:{ROWS}"},
        "model": {**LLAMA, "pad_vocab_to_multiple": ROWS},
        "optimizer": {"type": "muon"},
        "trainer": {},
    }
    state = foreign_run.state_arrays(from_mapping(mapping).config, ROWS)
    exact = sum(4 * math.prod(array.shape) for array in state.values())
    assert sum(map(size_of, state_arrays(mapping, ROWS))) == pytest.approx(exact, rel=0.01)
