"""Precision of products: that of traced programs, and equality of what CPUs compute."""

from __future__ import annotations

import logging
import re
from pathlib import Path
from typing import Any

import haliax as hax
import jax
import numpy as np
import pytest
import yaml

from midstream_engine.computation.programs import compile_evaluation_step, compile_step
from midstream_engine.computation.setup import CompilePlan, make_plan
from midstream_engine.computation.train_step import evaluation_step, train_step
from midstream_engine.config import ConfigError, load_config
from midstream_engine.runtime.jax_settings import log_precision
from support.engines.train_states import contents
from support.paths import CONFIGS

pytestmark = [
    # haliax 1.4 uses names that jax 0.10 deprecates.
    pytest.mark.filterwarnings("ignore:jax.core.is_constant_dim is deprecated:DeprecationWarning"),
    pytest.mark.filterwarnings("ignore:jax.interpreters.pxla.thread_resources is deprecated:DeprecationWarning"),
]
DEFAULT = ("--trainer.matmul_precision", "default")
JAX = "--trainer.jax_config.jax_default_matmul_precision"
# With all that computes products: blocks of the loss, rematerialisation, accumulation, and an update that has products.
MUON = ("--optimizer.type", "muon", "--model.gradient_checkpointing", "true", "--trainer.per_device_parallelism", "2")


def plan(*flags: str, model: str = "llama", mp: str = "f32") -> CompilePlan:
    path = str(CONFIGS / f"{model}_tiny.yaml")
    given = ["--config_path", path, "--trainer.mp", mp, "--model.num_layers", "2", *flags]
    return make_plan(load_config(given).config, jax.devices()[:1])


def precisions(made: CompilePlan) -> set[str]:
    """Precisions of all products of the step and of the evaluation, as they are lowered."""
    step = train_step(made.optimizer, made.schedule, made.policy, made.layout, eos=made.eos, dropout=made.dropout)
    example = made.cut.shape(made.positions)
    programs: list[tuple[Any, Any]] = [
        (step, (made.abstract, jax.ShapeDtypeStruct((), np.int32), example, example)),
        (evaluation_step(made.policy, eos=made.eos), (made.abstract.model, example, example)),
    ]
    found: set[str] = set()
    for function, arguments in programs:
        with made.layout.active():
            text = jax.jit(function).lower(*arguments).as_text()
        lines = [line for line in text.splitlines() if "stablehlo.dot_general" in line]
        assert len(lines) > 6
        found |= {match[1] for line in lines for match in [re.search(r"precision = (\[.*?\])", line)] if match}
        assert all("precision = [" in line for line in lines)
    return found


@pytest.mark.parametrize("model", ["gpt2", "llama", "neox"])
def test_products_of_float32_are_in_float32(model: str) -> None:
    assert precisions(plan(*MUON, model=model)) == {"[HIGHEST, HIGHEST]"}
    assert precisions(plan(mp="p=bf16,c=f32", model=model)) == {"[HIGHEST, HIGHEST]"}


@pytest.mark.parametrize(("mp", "flags"), [("f32", DEFAULT), ("p=f32,c=bfloat16", ()), ("half", ())])
def test_other_products_are_in_the_default_precision(mp: str, flags: tuple[str, ...]) -> None:
    with jax.default_matmul_precision("highest"):  # as JAX_DEFAULT_MATMUL_PRECISION sets it
        assert precisions(plan(*flags, mp=mp)) == {"[DEFAULT, DEFAULT]"}


def test_variable_of_jax_has_no_effect(caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch) -> None:
    with jax.default_matmul_precision("bfloat16"):
        assert precisions(plan()) == {"[HIGHEST, HIGHEST]"}
    monkeypatch.setenv("JAX_DEFAULT_MATMUL_PRECISION", "bfloat16")
    log_precision(plan().config, "cpu")
    assert "JAX_DEFAULT_MATMUL_PRECISION=bfloat16 has no effect: trainer.matmul_precision is highest" in caplog.text


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (("--trainer.matmul_precision", "tensorfloat32"), "'tensorfloat32' is neither highest"),
        ((JAX, "high"), "'high' has no exact counterpart with trainer.mp: f32 .hint: remove it; trainer.matmul_prec"),
        ((JAX, "tensorfloat32"), "'tensorfloat32' has no exact counterpart"),
        ((JAX, "BF16_BF16_F32_X6"), "'BF16_BF16_F32_X6' has no exact counterpart"),
        ((JAX, "[highest]"), "has no exact counterpart"),
        ((JAX, "highest", "--trainer.mp", "p=f32,c=bfloat16"), "counterpart with trainer.mp: p=f32,c=bfloat16"),
        ((JAX, "highest", *DEFAULT), "^trainer.jax_config.jax_default_matmul_precision is an alias of trainer.matmul_"),
        (
            (JAX, "default", "--trainer.matmul_precision", "highest"),
            "is an alias of trainer.matmul_precision: give one",
        ),
    ],
)
def test_other_precisions_are_refused(flags: tuple[str, ...], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        load_config(["--config_path", str(CONFIGS / "llama_tiny.yaml"), "--trainer.mp", "f32", *flags])


@pytest.mark.parametrize(
    ("value", "products"),
    [("highest", "highest"), ("float32", "highest"), ("default", None), ("bfloat16", None), ("null", None)],
)
def test_counterpart_of_the_option_of_jax_is_read(value: str, products: str | None, tmp_path: Path) -> None:
    """Both names are the same member for jax. Other options remain, and run.yaml is read again with the flag."""
    assert value == "null" or jax.lax.Precision(value) == jax.lax.Precision(products or "default")
    file = tmp_path / "levanter.yaml"
    option = f"jax_default_matmul_precision: {value}"
    file.write_text(f"data: {{tokenizer: bytes}}\ntrainer: {{jax_config: {{{option}, jax_debug_nans: false}}}}\n")
    config = load_config(["--config_path", str(file)]).config
    assert config.trainer.precision_of_products() == products
    assert config.trainer.jax_config == {"jax_debug_nans": False}
    run = tmp_path / "run.yaml"
    run.write_text(yaml.safe_dump(config.resolved()))
    assert load_config(["--config_path", str(run), JAX, value]).config == config
    assert precisions(plan(JAX, value)) == {"[HIGHEST, HIGHEST]" if products else "[DEFAULT, DEFAULT]"}


@pytest.mark.parametrize(
    ("flags", "mp", "line"),
    [
        ((), "f32", "are computed in float32; trainer.mp: p=f32,c=bfloat16 or trainer.matmul_precision: default is fa"),
        (DEFAULT, "f32", "in the accelerator's default precision"),
        ((), "p=f32,c=bfloat16", ""),
    ],
)
def test_log_says_how_float32_is_computed(
    flags: tuple[str, ...], mp: str, line: str, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("JAX_DEFAULT_MATMUL_PRECISION", raising=False)
    config = plan(*flags, mp=mp).config
    with caplog.at_level(logging.INFO):
        log_precision(config, "cpu")
        assert not caplog.text
        log_precision(config, "gpu")
    assert len(caplog.records) == bool(line)
    assert line in caplog.text


@pytest.mark.parametrize("model", ["llama", pytest.param("gpt2", marks=pytest.mark.drawn)])
def test_cpus_compute_the_same_bits(model: str) -> None:
    """CPUs have no other precision of float32 products."""
    results = []
    for flags in ((), DEFAULT):
        made = plan(*MUON, *flags, "--data.validation_urls", "stdlib:json/tool.py", model=model)
        step, evaluate = compile_step(made), compile_evaluation_step(made)
        state, losses = made.fresh_state(), []
        generator = np.random.default_rng(0)
        for number in range(3):
            tokens, mask = (
                hax.named(generator.integers(0, high, [axis.size for axis in axes], np.int32), axes)
                for high, axes in ((300, made.cut.shape(made.positions).axes), (2, made.cut.shape(made.positions).axes))
            )
            state, result = step(state, np.int32(number), tokens, mask)
            losses.append(np.asarray(result.loss).tobytes())
        axes = made.evaluation_cut.shape(made.config.model.seq_len).axes
        evaluated = (hax.named(np.ones([axis.size for axis in axes], np.int32), axes) for _ in range(2))
        results.append((losses, contents(state), np.asarray(evaluate(state.evaluated, *evaluated)[0]).tobytes()))
    assert results[0] == results[1]
