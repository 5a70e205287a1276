"""Training with parameters below float32: types of the state, updates, save and restore, other device counts."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from midstream_core.attempt.errors import EngineError
from midstream_core.precision import Precision
from midstream_core.records import Manifest, RunPaths, checkpoint_name
from midstream_engine.attempt.resume import Origin, restore
from midstream_engine.checkpoint.array_names import flatten
from midstream_engine.checkpoint.loading.restore import restore_checkpoint
from midstream_engine.computation.programs import compile_step
from midstream_engine.computation.setup import CompilePlan, Setup, make_plan, prepare
from midstream_engine.computation.train_state import TrainState
from midstream_engine.computation.train_step import train_step
from midstream_engine.config import EmaConfig, load_config
from midstream_engine.optim.averaging import start_average, update_average
from support.checkpoints.checkpoint_states import save
from support.engines.train_states import contents, trained
from support.paths import CONFIGS

pytestmark = [
    pytest.mark.drawn,
    # haliax 1.4 uses names that jax 0.10 deprecates.
    pytest.mark.filterwarnings("ignore:jax.core.is_constant_dim is deprecated:DeprecationWarning"),
    pytest.mark.filterwarnings("ignore:jax.interpreters.pxla.thread_resources is deprecated:DeprecationWarning"),
]
SAVED, LAST = 4, 10
TYPES = {"bfloat16": "bfloat16", "half": "float16"}
NARROW = ["--optimizer.mu_dtype", "bfloat16", "--optimizer.nu_dtype", "bfloat16"]
# Everything that adds an array to the state, and accumulation.
ALL = [
    "--trainer.per_device_parallelism", "2", "--trainer.model_averaging", "{type: ema, beta: 0.9}",
    "--optimizer.skip_bad_steps", "8",
]  # fmt: skip


WIDE = ["--trainer.gradient_reduce_dtype", "float32"]


def flags(model: str, precision: str, *more: str) -> list[str]:
    return ["--config_path", str(CONFIGS / f"{model}_tiny.yaml"), "--trainer.mp", precision, *more]


def types_of(tree: Any) -> dict[str, tuple[tuple[int, ...], str]]:
    return {name: (array.shape, array.dtype) for name, array in flatten(tree).items()}


def step_of(plan: CompilePlan) -> Any:
    return train_step(
        plan.optimizer, plan.schedule, plan.policy, plan.layout,
        eos=plan.eos, dropout=plan.dropout, averaging=plan.config.trainer.model_averaging,
    )  # fmt: skip


@pytest.mark.parametrize("model", ["gpt2", "llama"])
@pytest.mark.parametrize("precision", ["bfloat16", "half", "p=bf16,c=f16", "p=f16,c=f32"])
@pytest.mark.parametrize("more", [[], [*ALL, *NARROW], ["--optimizer.nesterov", "true", *NARROW], WIDE])
def test_step_returns_the_types_that_it_gets(model: str, precision: str, more: list[str]) -> None:
    plan = make_plan(load_config(flags(model, precision, *more)).config, jax.devices()[:1])
    tokens = plan.cut.shape(plan.positions)
    with plan.layout.active():
        after, _ = jax.eval_shape(step_of(plan), plan.template, jax.ShapeDtypeStruct((), jnp.int32), tokens, tokens)
    assert types_of(after) == types_of(plan.template)


def test_types_follow_the_configuration() -> None:
    more = ["--trainer.model_averaging", "{type: ema}", "--optimizer.mu_dtype", "bfloat16"]
    plan = make_plan(load_config(flags("gpt2", "p=f16,c=bf16", *more)).config, jax.devices()[:1])
    found = types_of(plan.template)
    for prefix, dtype in {
        "model/": "float16", "optimizer/adam/mu/": "bfloat16", "optimizer/adam/nu/": "float32",
        "average/model/": "float32",
    }.items():  # fmt: skip
        assert {found[name][1] for name in found if name.startswith(prefix)} == {dtype}


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("root")


def setup_on(root: Path, devices: int, precision: str, *more: str, model: str = "gpt2") -> Setup:
    return prepare(load_config(flags(model, precision, *more)).config, str(root), None, jax.devices()[:devices])


@pytest.fixture(scope="module")
def wide(root: Path) -> list[float]:
    """Losses in float32."""
    setup = setup_on(root, 1, "f32", *ALL)
    return trained(setup, compile_step(setup), setup.fresh_state(), 0, LAST)[1]


@pytest.mark.parametrize(("precision", "moments"), [("bfloat16", "bfloat16"), ("half", "float32")])
def test_saved_state_continues_as_if_undisturbed(
    precision: str, moments: str, root: Path, wide: list[float], tmp_path: Path
) -> None:
    """On the same devices bit by bit; on others from the same bits, with losses near those of float32."""
    more = [*ALL, "--optimizer.mu_dtype", moments, "--optimizer.nu_dtype", moments]
    setup = setup_on(root, 2, precision, *more)
    assert setup.cut.micro > 1
    step = compile_step(setup)
    state, losses = trained(setup, step, setup.fresh_state(), 0, SAVED)
    assert {dtype for name, (_, dtype) in types_of(state).items() if name.startswith("model/")} == {TYPES[precision]}
    saved = contents(state)
    paths = RunPaths(str(tmp_path), "r")
    manifest = save(paths, state, step=SAVED, state={}, provenance={}, reference_losses=None)
    directory = paths.checkpoint(checkpoint_name(SAVED, 1))
    end, rest = trained(setup, step, state, SAVED, LAST)
    losses += rest
    assert losses[-1] < losses[0] - 0.2
    np.testing.assert_allclose(losses, wide, rtol=2e-2)
    again, continued = trained(setup, step, restored(directory, setup, manifest, saved), SAVED, LAST)
    assert (contents(again), continued) == (contents(end), rest)
    refuse_other_types(directory, setup_on(root, 1, "p=f32,c=bf16", *ALL), TYPES[precision], moments)
    alone = setup_on(root, 1, precision, *more)
    _, continued = trained(alone, compile_step(alone), restored(directory, alone, manifest, saved), SAVED, LAST)
    np.testing.assert_allclose(continued, rest, rtol=2e-2)


def refuse_other_types(directory: str, other: Setup, stored: str, moments: str) -> None:
    state = {"step": SAVED, "batch_schedule": other.batch_schedule.to_json()}
    with pytest.raises(EngineError) as caught:
        restore(Origin(directory, True, True, None, "", state), other)
    message = str(caught.value)
    assert f"{stored} where trainer.mp means float32" in message
    assert f"--trainer.mp {Precision(stored, 'bfloat16', 'bfloat16')}" in message
    assert ("bfloat16 where optimizer.mu_dtype means float32" in message) == (moments == "bfloat16")


def restored(directory: str, setup: Setup, manifest: Manifest, saved: dict[str, bytes]) -> TrainState:
    found = restore_checkpoint(directory, setup.template, setup.shardings)
    assert found.root_digest == manifest.root_digest
    assert contents(found.tree) == saved
    return found.tree


def test_average_moves_by_less_than_the_parameters_can_store() -> None:
    config = EmaConfig(beta=0.9999)
    model = {"w": jnp.full(3, 1.0, jnp.bfloat16)}
    average = start_average(config, model)
    assert average is not None
    for step in range(10):
        average = update_average(config, average, {"w": jnp.full(3, 2.0, jnp.bfloat16)}, jnp.int32(step))
    np.testing.assert_allclose(average.model["w"], 1.001, rtol=1e-5)
