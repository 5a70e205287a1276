"""Mappings of axes to the mesh: what cannot be laid out is refused before anything is compiled."""

from __future__ import annotations

import jax
import pytest

from midstream_engine.computation.setup import CompilePlan, make_plan
from midstream_engine.config import ConfigError, load_config
from support.paths import CONFIGS


def plan(model: str, *flags: str) -> CompilePlan:
    arguments = ["--config_path", str(CONFIGS / f"{model}_tiny.yaml"), "--trainer.model_axis_size", "2", *flags]
    return make_plan(load_config(arguments).config, jax.devices()[:4])


@pytest.mark.parametrize("model", ["gpt2", "llama", "neox"])
@pytest.mark.parametrize(
    ("mapping", "first", "second", "mesh_axis"),
    [
        ("{embed: data}", "batch", "embed", "data"),
        ("{position: data}", "batch", "position", "data"),
        ("{position: model, embed: model}", "position", "embed", "model"),
        ("{heads: model, head_size: model}", "heads", "head_size", "model"),
        ("{mlp: [model, data]}", "batch", "mlp", "data"),
        ("{position: model, key_position: model}", "position", "key_position", "model"),
        ("{embed: model, vocab: model}", "vocab", "embed", "model"),  # of the head
    ],
)
def test_axes_of_an_activation_on_one_mesh_axis_are_refused(
    model: str, mapping: str, first: str, second: str, mesh_axis: str
) -> None:
    with pytest.raises(ConfigError) as caught:
        plan(model, "--trainer.axis_resources", mapping)
    said = f"trainer.axis_resources: '{first}' and '{second}', axes of the same array, are both mapped to the mesh axis"
    assert str(caught.value).startswith(f"{said} {mesh_axis} (hint: ")


def test_axis_on_one_mesh_axis_twice_is_refused() -> None:
    with pytest.raises(ConfigError, match="axis 'embed' is mapped to the same mesh axis twice: model, model"):
        plan("gpt2", "--trainer.parameter_axis_resources", "{embed: [model, model]}")


@pytest.mark.parametrize("model", ["gpt2", "llama", "neox"])
@pytest.mark.parametrize(
    "flags",
    [
        ["--trainer.fsdp_axis", "[embed, mlp]"],
        ["--trainer.tensor_parallel_axes", "[heads, kv_heads, mlp, vocab]"],
        ["--trainer.parameter_axis_resources", "{mlp: data, embed: data}"],
        ["--trainer.axis_resources", "{embed: model, heads: model, mlp: model}"],
    ],
)
def test_axes_of_different_arrays_may_share_a_mesh_axis(model: str, flags: list[str]) -> None:
    assert plan(model, *flags).layout.mesh.size == 4
