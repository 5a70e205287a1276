"""Checkpoints and configurations of GPT-NeoX that are refused by name."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml

from midstream_engine.interop.errors import ConversionError
from midstream_engine.interop.neox.accumulation import gradient_scale
from midstream_engine.interop.neox.directory import read_configs
from midstream_engine.interop.neox.importer import open_neox
from midstream_engine.interop.neox.revision import revision_of
from support.imports.neox_checkpoints import copy_of, filled, rewrite

pytestmark = [
    pytest.mark.drawn,
    # haliax 1.4 uses names that jax 0.10 deprecates.
    pytest.mark.filterwarnings("ignore:jax.core.is_constant_dim is deprecated:DeprecationWarning"),
    pytest.mark.filterwarnings("ignore:jax.interpreters.pxla.thread_resources is deprecated:DeprecationWarning"),
]


def refusal(source: Path, *words: str) -> None:
    with pytest.raises(ConversionError) as caught:
        filled(source)
    for word in words:
        assert word in str(caught.value)
    assert "\n" not in str(caught.value)


def test_unsupported_checkpoints_are_refused_by_name(tmp_path: Path) -> None:
    name, optimizer = "pythia-bf16-z1-dp3", "bf16_zero_pp_rank_0_mp_rank_00_optim_states.pt"

    def state(change: Callable[[dict[str, Any]], None], *words: str) -> None:
        shutil.rmtree(tmp_path / "c", ignore_errors=True)
        rewrite(copy_of(name, tmp_path / "c") / optimizer, lambda value: change(value["optimizer_state_dict"]))
        refusal(tmp_path / "c", *words)

    state(lambda value: value.update(zero_stage=2), "ZeRO stage 2")
    state(lambda value: value.update(zero_stage=3), "ZeRO stage 3")
    state(lambda value: value.update(elastic_checkpoint=True), "elastic")
    state(lambda value: value.update(base_optimizer_state=[{}]), "elastic")
    state(lambda value: value.pop("single_partition_of_fp32_groups"), "not known")
    state(lambda value: value["base_optimizer_state"]["state"][0].pop("exp_avg_sq"), "exp_avg_sq")
    state(lambda value: value["base_optimizer_state"]["state"].clear(), "not trained with Adam")
    universal = copy_of(name, tmp_path / "u")
    (universal / "zero").mkdir()
    refusal(tmp_path / "u", "universal")


def test_extra_missing_and_misshapen_arrays_are_listed(tmp_path: Path) -> None:
    name = "sequential-bf16-z0-dp1"
    model = copy_of(name, tmp_path / "a") / "mp_rank_00_model_states.pt"

    def without(value: dict[str, Any]) -> None:
        value["module"].pop("sequential.3.attention.dense.bias")

    rewrite(model, without)
    refusal(tmp_path / "a", "3.attention.dense.bias")
    model = copy_of(name, tmp_path / "b") / "mp_rank_00_model_states.pt"
    rewrite(model, lambda value: value["module"].update({"sequential.3.attention.extra": np.ones(3, np.float32)}))
    refusal(tmp_path / "b", "3.attention.extra")
    model = copy_of(name, tmp_path / "c") / "mp_rank_00_model_states.pt"
    rewrite(model, lambda value: value["module"].update({"sequential.5.norm.bias": np.ones(3, np.float32)}))
    refusal(tmp_path / "c", "5.norm.bias", "shape")
    folder = copy_of("pythia-bf16-z1-dp3", tmp_path / "d")
    os.unlink(folder / "bf16_zero_pp_rank_1_mp_rank_00_optim_states.pt")
    refusal(tmp_path / "d", "zero_pp_rank_1_mp_rank_00", "missing")
    folder = copy_of("sequential-bf16-z1-pp2-dp2", tmp_path / "e")
    os.unlink(folder / "layer_03-model_00-model_states.pt")
    refusal(tmp_path / "e", "3.")


def test_files_of_different_states_are_refused(tmp_path: Path) -> None:
    model = copy_of("pythia-bf16-z1-dp3", tmp_path / "a") / "mp_rank_00_model_states.pt"
    rewrite(model, lambda value: value["module"]["sequential.5.norm.bias"].__iadd__(1))
    refusal(tmp_path / "a", "5.norm.bias", "rounded master")
    model = copy_of("pythia-bf16-z1-dp3", tmp_path / "b") / "mp_rank_00_model_states.pt"
    rewrite(model, lambda value: value.update(iteration=4))
    refusal(tmp_path / "b", "counted [3]", "4 iterations")


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"pos_emb": "alibi"}, "alibi"),
        ({"hidden-dropout": 0.1}, "hidden-dropout"),
        ({"num_layers": 3}, "2 layers"),
        ({"optimizer": {"type": "Lion", "params": {"lr": 1e-3}}}, "Lion"),
        ({"lr-decay-style": "exponential"}, ""),
        ({"activation": "geglu"}, "geglu"),
        ({"attention-config": [[["local"], 2]]}, "local"),
        ({"no-weight-tying": False}, "no-weight-tying"),
        ({"weight-decay": 0.2}, "decays by"),
    ],
)  # fmt: skip
def test_unsupported_configurations_are_refused(change: dict[str, Any], words: str, tmp_path: Path) -> None:
    folder = copy_of("pythia-bf16-z1-dp3", tmp_path / "a")
    (path,) = (folder / "configs").iterdir()
    config = {key.replace("-", "_"): value for key, value in yaml.safe_load(path.read_text()).items()}
    config |= {key.replace("-", "_"): value for key, value in change.items()}
    path.write_text(yaml.safe_dump(config))
    if words:
        refusal(tmp_path / "a", words)
    else:
        assert open_neox(str(tmp_path / "a")).mapping["optimizer"]["lr_schedule"] == "cosine"  # from the checkpoint


def test_values_that_take_all_memory_are_not_shown(tmp_path: Path) -> None:
    """Each list has the one before it twice: as text the last one has 2 ** 60 elements."""
    nested: list[Any] = ["x"]
    for _ in range(60):
        nested = [nested, nested]
    state = {"ds_version": nested, "git_hash": nested}
    assert revision_of({}, [], state).findings == []
    assert gradient_scale(state, {}, 2, "here").factor == 1
    bomb = ["a0: &a0 [x, x]", *(f"a{number}: &a{number} [*a{number - 1}, *a{number - 1}]" for number in range(1, 60))]
    (tmp_path / "configs").mkdir()
    (tmp_path / "configs" / "run.yml").write_text("\n".join(bomb))
    with pytest.raises(ConversionError, match="its aliases stand for more than"):
        read_configs(str(tmp_path))


def test_commit_of_digits_is_one() -> None:
    """YAML reads it as a number."""
    assert revision_of({"git_hash": 4085302}, [], {}).findings == ["git_hash is 4085302"]
