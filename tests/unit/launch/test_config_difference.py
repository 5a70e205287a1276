"""A config that is given, beside the resolved one that an engine has written in place of a run's own."""

from __future__ import annotations

import re

import pytest
import yaml

from midstream.launch.config_difference import first_difference

RESOLVED = {
    "model": {"type": "gpt2", "hidden_dim": 128, "seq_len": 128, "use_bias": True},
    "trainer": {"id": "demo", "fsdp_axis": ["embed"], "checkpointer": {"keep": [{"every": 5000, "until": None}]}},
    "optimizer": {"type": "adam", "learning_rate": 0.001, "warmup": 100.0},
}


@pytest.mark.parametrize(
    ("given", "difference"),
    [
        ("optimizer: {learning_rate: 1e-3, warmup: 100}", ""),
        ("trainer: {fsdp_axis: embed, checkpointer: {keep: [{every: 5_000}]}}", ""),
        ("model: {type: GPT2, unknown_name: 3, seq_len: null}", ""),
        ("optimizer: adam", ""),
        ("optimizer: {learning_rate: 2e-3}", "optimizer.learning_rate is 0.001, not 2e-3"),
        ("model: {type: llama}", "model.type is gpt2, not llama"),
        ("model: {use_bias: false}", "model.use_bias is True, not False"),
        ("trainer: {fsdp_axis: [embed, mlp]}", "trainer.fsdp_axis is ['embed'], not ['embed', 'mlp']"),
        ("trainer: {checkpointer: {keep: [{every: 10}]}}", "trainer.checkpointer.keep is"),
    ],
)
def test_only_certain_differences_are_named(given: str, difference: str) -> None:
    found = first_difference(yaml.safe_load(given), RESOLVED)
    assert re.match(re.escape(difference), found) if difference else not found


def test_what_flags_set_is_not_compared() -> None:
    given = {"optimizer": {"learning_rate": 3.0}, "trainer": {"id": "other"}}
    assert first_difference(given, RESOLVED, ["optimizer.learning_rate", "trainer.id"]) == ""
    assert first_difference(given, RESOLVED, ["optimizer"]) == "trainer.id is demo, not other"
