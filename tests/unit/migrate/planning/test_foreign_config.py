"""Configurations of other trainers' checkpoints, as a hostile host would write them."""

from __future__ import annotations

import tracemalloc

import pytest

from midstream.errors import MidstreamError
from midstream.migrate.planning.foreign_config import foreign_run
from midstream_host.trainers.checkpoint_survey import CheckpointSurvey

MODEL = "type: gpt2, hidden_dim: 64, num_layers: 2, num_heads: 2, seq_len: 128"


def survey(config: str) -> CheckpointSurvey:
    return CheckpointSurvey("levanter", "/x", 5, 1 << 24, {"/x/config.yaml": config}, {}, {})


def config(model: str = MODEL, trainer: str = "num_train_steps: 9, train_batch_size: 4") -> str:
    return f"model: {{{model}}}\ntrainer: {{{trainer}}}\n"


def test_config_of_levanter_is_read() -> None:
    found = foreign_run(survey(config()), "far", {})
    assert (found.config["trainer"]["num_train_steps"], found.config["trainer"]["train_batch_size"]) == (9, 4)
    shared = "a: &a {num_train_steps: 9, train_batch_size: 4}\nmodel: {" + MODEL + "}\ntrainer: *a\n"
    assert foreign_run(survey(shared), "far", {}).config["trainer"]["num_train_steps"] == 9
    schedule = config(trainer="num_train_steps: 9, train_batch_size: [{start: 0, value: 4}, {start: 5, value: 8}]")
    assert len(foreign_run(survey(schedule), "far", {}).config["trainer"]["train_batch_size"]) == 2


@pytest.mark.parametrize(
    ("trainer", "products"),
    [
        ("mp: f32", "default"),
        ("jax_config: {jax_default_matmul_precision: float32}", "highest"),
        ("jax_config: {jax_default_matmul_precision: bfloat16}", "default"),
        ("jax_config: [x]", "default"),
    ],
)
def test_plan_has_the_products_of_levanter(trainer: str, products: str) -> None:
    found = foreign_run(survey(config(trainer=trainer)), "far", {})
    assert found.config["trainer"]["matmul_precision"] == products


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            "a: &a [x, x, x, x, x, x, x, x, x]\n"
            + "".join(f"{name}: &{name} [{', '.join([f'*{chr(ord(name) - 1)}'] * 9)}]\n" for name in "bcdefgh")
            + "model: {type: *h}\n",
            "more than 100,000 values, aliases expanded",
        ),
        (
            "a: &a {x: 1}\n"
            + "".join(f"{name}: &{name} {{<<: [{', '.join([f'*{chr(ord(name) - 1)}'] * 9)}]}}\n" for name in "bcdefgh"),
            "more than 100,000 values, aliases expanded",
        ),
        ("model: &m {n: *m}\n", "an alias names what contains it"),
        ("x: " + "y" * (300 << 10), "more than 262,144 characters"),
        ("- " * 60000 + "x\n", "far:/x: its configuration cannot be read"),
        (config(MODEL.replace("64", ".inf")), "the model's configuration cannot be read"),
        (config(MODEL.replace("64", "9" * 20)), "cannot have this length of the axis embed"),
        (config(MODEL.replace("64", "-64")), "cannot have this length of the axis embed"),
        (config(trainer="num_train_steps: .inf, train_batch_size: 4"), "trainer.num_train_steps is no number from 1"),
        (config(trainer="num_train_steps: 1e5, train_batch_size: 4"), "trainer.num_train_steps is no number from 1"),
        (config(trainer="num_train_steps: 9, train_batch_size: 9999999999"), "trainer.train_batch_size is no number"),
        (config(trainer="num_train_steps: 9, train_batch_size: [{value: 0}]"), "trainer.train_batch_size is no number"),
    ],
)
def test_config_with_huge_or_impossible_numbers_is_refused(text: str, message: str) -> None:
    tracemalloc.start()
    try:
        with pytest.raises(MidstreamError, match=message) as caught:
            foreign_run(survey(text), "far", {})
        assert tracemalloc.get_traced_memory()[1] < 64 << 20
        assert "\n" not in caught.value.message
        assert len(caught.value.message) < 400
    finally:
        tracemalloc.stop()
