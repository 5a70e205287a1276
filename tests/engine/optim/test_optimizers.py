"""Every optimizer: it trains, its state is saved and restored onto other devices, and its types stay what they are."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from midstream_core.records import RunPaths, checkpoint_name
from midstream_engine.checkpoint.array_names import flatten
from midstream_engine.checkpoint.loading.restore import restore_checkpoint
from midstream_engine.computation.programs import compile_step
from midstream_engine.computation.setup import make_plan, prepare
from midstream_engine.computation.train_step import train_step
from midstream_engine.config import ConfigError, load_config
from midstream_engine.config.load import from_mapping
from midstream_engine.config.muon import COEFFICIENTS
from midstream_engine.optim.muon import orthogonal
from midstream_engine.optim.optimizer import schedule_count, update_count
from support.checkpoints.checkpoint_states import save
from support.engines.train_states import contents, trained
from support.paths import CONFIGS

pytestmark = [
    # haliax 1.4 uses names that jax 0.10 deprecates.
    pytest.mark.filterwarnings("ignore:jax.core.is_constant_dim is deprecated:DeprecationWarning"),
    pytest.mark.filterwarnings("ignore:jax.interpreters.pxla.thread_resources is deprecated:DeprecationWarning"),
]
SAVED, LAST = 4, 12
# Each type with flags that make it train the tiny model, and the arrays of its state besides counts.
KINDS: dict[str, tuple[list[str], set[str]]] = {
    "adopt": (["--optimizer.learning_rate", "2e-3", "--optimizer.weight_decay", "0.1"], {"adopt/mu", "adopt/nu"}),
    "cautious": (["--optimizer.learning_rate", "3e-3"], {"cautious/mu", "cautious/nu"}),
    "muon": (
        ["--optimizer.learning_rate", "0.02", "--optimizer.adam_lr", "3e-3", "--optimizer.weight_decay", "0.1"],
        {"adam/mu", "adam/nu", "muon/momentum"},
    ),
    "lion": (["--optimizer.learning_rate", "1e-3", "--optimizer.weight_decay", "0.1"], {"lion/mu"}),
}


def flags(kind: str, *more: str, model: str = "gpt2") -> list[str]:
    return ["--config_path", str(CONFIGS / f"{model}_tiny.yaml"), "--optimizer.type", kind, *KINDS[kind][0], *more]


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(tmp_path_factory.mktemp("root"))


@pytest.mark.drawn
@pytest.mark.parametrize("kind", sorted(KINDS))
def test_optimizer_trains_and_continues_on_other_devices(kind: str, root: str, tmp_path: Path) -> None:
    arguments = flags(kind, "--optimizer.skip_bad_steps", "8")
    here, there = (prepare(load_config(arguments).config, root, None, jax.devices()[:count]) for count in (2, 4))
    step = compile_step(here)
    state, losses = trained(here, step, here.fresh_state(), 0, SAVED)
    saved = contents(state)
    parts = {"/".join(name.split("/")[1:3]) for name in saved if name.startswith("optimizer/")}
    skip = {f"skipstep/{name}" for name in ("losses", "norms", "seen", "skipped")}
    assert {part for part in parts - skip if not part.endswith("/count")} == KINDS[kind][1]
    assert (int(update_count(state.optimizer)), int(schedule_count(state.optimizer))) == (SAVED, SAVED)
    paths = RunPaths(str(tmp_path), "r")
    save(paths, state, step=SAVED, state={}, provenance={}, reference_losses=None)
    _, rest = trained(here, step, state, SAVED, LAST)
    assert rest[-1] < losses[0] - 0.2
    restored = restore_checkpoint(paths.checkpoint(checkpoint_name(SAVED, 1)), there.template, there.shardings).tree
    assert contents(restored) == saved
    _, continued = trained(there, compile_step(there), restored, SAVED, LAST)
    np.testing.assert_allclose(continued, rest, rtol=2e-4)


@pytest.mark.parametrize("model", ["gpt2", "llama", "neox"])
@pytest.mark.parametrize("kind", sorted(KINDS))
def test_step_keeps_types_and_moments_are_float32(kind: str, model: str) -> None:
    plan = make_plan(load_config(flags(kind, "--trainer.mp", "bfloat16", model=model)).config, jax.devices()[:1])
    step = train_step(plan.optimizer, plan.schedule, plan.policy, plan.layout, eos=plan.eos, dropout=plan.dropout)
    tokens = plan.cut.shape(plan.positions)
    with plan.layout.active():
        after, _ = jax.eval_shape(step, plan.template, jax.ShapeDtypeStruct((), jnp.int32), tokens, tokens)
    found, before = flatten(after), flatten(plan.template)
    assert {name: (one.shape, one.dtype) for name, one in found.items()} == {
        name: (one.shape, one.dtype) for name, one in before.items()
    }
    moments = [name for name in found if name.startswith("optimizer/") and not name.endswith("/count")]
    assert {found[name].dtype for name in moments} == {"float32"}
    assert {one.dtype for name, one in found.items() if name.startswith("model/")} == {"bfloat16"}


@pytest.mark.parametrize("kind", sorted(COEFFICIENTS))
@pytest.mark.parametrize("shape", [(3, 6, 4), (3, 4, 6), (5, 5)])
def test_orthogonal_maps_singular_values_alone(kind: str, shape: tuple[int, ...]) -> None:
    """Against the singular value decomposition in float64: each value s becomes a s + b s^3 + c s^5, in turn."""
    given = np.random.default_rng(2).standard_normal(shape)
    left, values, right = np.linalg.svd(
        given / np.linalg.norm(given, axis=(-2, -1), keepdims=True), full_matrices=False
    )
    for step in range(6):
        a, b, c = COEFFICIENTS[kind][step % len(COEFFICIENTS[kind])]
        values = a * values + b * values**3 + c * values**5
    found = orthogonal(jnp.asarray(given, jnp.float32), COEFFICIENTS[kind], 6, 1e-8)
    np.testing.assert_allclose(found, (left * values[..., None, :]) @ right, atol=3e-4)


@pytest.mark.parametrize("model", ["gpt2", "llama", "neox"])
def test_muon_has_the_matrices_of_blocks_and_adam_all_else(model: str) -> None:
    plan = make_plan(load_config(flags("muon", model=model)).config, jax.devices()[:1])
    names = list(flatten(plan.template))
    momentum, mean = (
        {name.removeprefix(prefix) for name in names if name.startswith(prefix)}
        for prefix in ("optimizer/muon/momentum/", "optimizer/adam/mu/")
    )
    arrays = {name.removeprefix("model/") for name in names if name.startswith("model/")}
    assert momentum | mean == arrays
    assert not momentum & mean
    norms = ("norm", "ln_")
    assert momentum == {
        name
        for name in arrays
        if name.startswith("blocks/") and name.endswith("/weight") and not any(norm in name for norm in norms)
    }


def refused(words: str, **optimizer: Any) -> None:
    with pytest.raises(ConfigError, match=words):
        from_mapping({"optimizer": optimizer})


def test_fields_out_of_range_are_refused() -> None:
    refused(r"optimizer\.beta1: 1\.0 is not in \[0, 1\)", type="lion", beta1=1.0)
    refused(r"optimizer\.max_grad_norm: -1\.0 is negative", type="lion", max_grad_norm=-1.0)
    refused(r"optimizer\.type: 'soap' is not known", type="soap")
    refused(r"optimizer\.backend_steps: 0 is not positive", type="muon", backend_steps=0)
    refused(r"optimizer\.learning_rate: Muon needs one above 0", type="muon", learning_rate=0.0)
    refused(r"optimizer\.coefficient_type: 'cubic' is not known", type="muon", coefficient_type="cubic")
