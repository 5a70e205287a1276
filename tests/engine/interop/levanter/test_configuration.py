"""Configurations that Levanter wrote itself, and settings that change the training.

``fixtures/levanter/configs`` was made with both releases by generate_configs.py there.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml

from midstream_engine.config import TensorboardConfig, WandbConfig, from_mapping
from midstream_engine.interop.errors import ConversionError
from midstream_engine.interop.foreign_run import ForeignRun
from midstream_engine.interop.levanter.configuration import read_config, translate
from midstream_engine.interop.levanter.importer import open_levanter
from support.imports import imported_runs
from support.paths import FIXTURES

pytestmark = [
    # haliax 1.4 uses names that jax 0.10 deprecates.
    pytest.mark.filterwarnings("ignore:jax.core.is_constant_dim is deprecated:DeprecationWarning"),
    pytest.mark.filterwarnings("ignore:jax.interpreters.pxla.thread_resources is deprecated:DeprecationWarning"),
]
LEVANTER = FIXTURES / "levanter"
RELEASES = ["1.2", "0.2.20"]
ONLY_A_NAME = "data.tokenizer: passthrough is no path here: ids:64 stands for it, and for text tokenized already"
PRODUCTS = (
    "trainer.matmul_precision: default, as in Levanter: products of float32 numbers are rounded to TF32 on NVIDIA GPUs "
    "and to bfloat16 on TPUs (hint: highest computes them in float32)"
)
KEY = "the training key is imported, but dropout uses it differently here"


def opened(checkpoint: str, configuration: str) -> ForeignRun:
    return open_levanter(str(LEVANTER / checkpoint), str(LEVANTER / "configs" / f"{configuration}.yaml"))


@pytest.mark.drawn
@pytest.mark.parametrize("release", RELEASES)
def test_dump_imports_with_its_checkpoint(release: str) -> None:
    """Enumerations, durations and lists without types are read; paths and places of the machine are left out."""
    run = opened("gpt2", f"gpt2-{release}")
    config = from_mapping(run.mapping).config
    assert config.trainer.checkpointer.policy().save_interval == 4 * 24 * 3600 + 4 * 3600
    assert config.trainer.checkpointer.base_path is None
    assert (config.trainer.load_checkpoint_path, config.trainer.log_dir) == (None, None)
    assert config.trainer.tracker == [WandbConfig(project="p", tags=["a"]), TensorboardConfig(logdir="tb")]
    assert (config.model.attn_backend, getattr(config.model, "activation_function", "")) == ("jax_flash", "gelu_new")
    assert (config.optimizer.cycles, config.optimizer.skip_step()) == (None, None)
    (data,) = set(run.notes) - {ONLY_A_NAME, KEY, PRODUCTS}
    assert "data.vocab_size: not carried over; neither is the order of the data" in data
    expected = json.loads((LEVANTER / "gpt2" / "expected.json").read_text())
    losses = imported_runs.continued(run, expected["tokens"])
    np.testing.assert_allclose(losses, expected["losses"], rtol=1e-5)


@pytest.mark.parametrize("release", RELEASES)
def test_dump_imports_with_its_data(release: str) -> None:
    """Also a policy of rematerialisation, a schedule with fields, and the tracker under both of its names."""
    run = opened("data/run", f"llama-{release}")
    config = from_mapping(run.mapping).config
    assert config.model.gradient_checkpointing == ("nested" if release == "1.2" else True)
    assert (config.optimizer.lr_schedule, config.optimizer.inv_sqrt_timescale) == ("inv_sqrt", 100.0)
    assert config.optimizer.cycles == [8, 15]
    assert config.trainer.checkpointer.policy().save_interval == 3660
    assert len(config.trainer.checkpointer.keep) == (2 if release == "1.2" else 0)
    assert config.trainer.tracker == [WandbConfig(project="p")]
    assert config.trainer.initialize_from is None
    assert run.data is not None
    assert [note for note in run.notes if "has no effect" in note or "not carried" in note] == []


def refusal(change: dict[str, Any]) -> str:
    value = yaml.safe_load((LEVANTER / "gpt2" / "config.yaml").read_text())
    for name, item in change.items():
        section = value
        *parents, last = name.split(".")
        for parent in parents:
            section = section.setdefault(parent, {})
        section[last] = item
    with pytest.raises(ConversionError) as caught:
        translate(value, 64, [], ordered=False, rules="levanter-0.2")
    return str(caught.value)


@pytest.mark.parametrize(
    ("name", "item"),
    [
        ("adapter", {"type": "lora"}), ("epoch", 2), ("use_hf_model_config", True),
        ("trainer.quantization", {"fp8": True}), ("z_loss_weight", -1.0), ("optimizer.update_rms_clipping", 0.0),
        ("optimizer.lr_schedule", {"type": "power"}), ("optimizer.brand_new", 0.1), ("brand_new", {"a": 1}),
    ],
)  # fmt: skip
def test_setting_that_changes_the_training_is_refused_by_name(name: str, item: Any) -> None:
    assert name in refusal({name: item})


def test_setting_of_an_unknown_release_may_be_unset() -> None:
    value = yaml.safe_load((LEVANTER / "gpt2" / "config.yaml").read_text())
    value["brand_new"] = value["optimizer"]["brand_new"] = None
    notes: list[str] = []
    mapping = translate(value, 64, notes, ordered=False, rules="levanter-0.2")
    assert "brand_new" not in mapping
    assert "brand_new" not in mapping["optimizer"]
    assert "optimizer.brand_new is unknown here, and is not set" in notes


def test_neutral_settings_are_not_mentioned() -> None:
    value = yaml.safe_load((LEVANTER / "gpt2" / "config.yaml").read_text())
    value["trainer"] |= {"quantization": None, "ray": {"auto_start_cluster": True}, "watch": {"interval": 10}}
    value |= {"z_loss_weight": 0.0, "epoch": 0, "adapter": {"type": "none"}, "hf_save_path": None}
    value["trainer"]["jax_config"] = {"jax_default_matmul_precision": None}
    value["optimizer"] |= {"adamc_weight_decay": False, "clip_update_norm": None, "update_rms_clipping": None}
    notes: list[str] = []
    translate(value, 64, notes, ordered=False, rules="levanter-0.2")
    assert notes == [ONLY_A_NAME, "data.vocab_size: not carried over; neither is the order of the data"]


@pytest.mark.parametrize(
    ("trainer", "chosen", "noted"),
    [
        ({}, "default", True),
        ({"mp": "compute=float32,params=float32,output=float32", "jax_config": None}, "default", True),
        ({"mp": "p=f32,c=bfloat16"}, "highest", False),
        ({"jax_config": {"jax_default_matmul_precision": "float32"}}, "highest", False),
        ({"jax_config": {"jax_default_matmul_precision": "bfloat16"}}, "default", False),
        ({"jax_config": {"jax_default_matmul_precision": None}}, "default", False),
    ],
)
def test_products_are_as_precise_as_in_levanter(trainer: dict[str, Any], chosen: str, noted: bool) -> None:
    """Without the option jax's default; it has no effect where the computation has 16 bits."""
    value = yaml.safe_load((LEVANTER / "gpt2" / "config.yaml").read_text())
    value["trainer"] |= trainer
    notes: list[str] = []
    mapping = translate(value, 64, notes, ordered=False, rules="levanter-0.2")
    assert mapping["trainer"]["matmul_precision"] == chosen
    assert "jax_default_matmul_precision" not in mapping["trainer"]["jax_config"]
    assert (PRODUCTS in notes) is noted


def test_products_without_a_counterpart_are_refused() -> None:
    option = "trainer.jax_config.jax_default_matmul_precision"
    assert f"{option}: 'high' has no exact counterpart" in refusal({option: "high"})


def test_options_of_jax_that_are_no_section_are_refused_by_name() -> None:
    assert refusal({"trainer.jax_config": ["x"]}) == "trainer.jax_config: expected keys and values, found ['x']"


def test_ignored_token_is_imported_where_there_is_one() -> None:
    def ignored(item: int | None) -> Any:
        value = yaml.safe_load((LEVANTER / "gpt2" / "config.yaml").read_text())
        value["data"]["ignore_token_id"] = item
        return translate(value, 64, [], ordered=False, rules="levanter-0.2")["data"]["ignore_token_id"]

    assert [ignored(item) for item in (-100, None, 0, 3)] == [None, None, 0, 3]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("a: !!python/object/apply:os.system [touch /tmp/x]", "could not determine a constructor"),
        ("a: !!python/object/apply:levanter.Enum {args: [x]}", "Enum is a Python object, which is not constructed"),
        ("a: !!python/object/apply:levanter.Enum [x, y]", "Enum is a Python object, which is not constructed"),
        ("a: !!python/object:haliax.Policy x", "Policy is a Python object, which is not constructed"),
        ("a: !!python/name:levanter.x", "could not determine a constructor"),
    ],
)
def test_python_objects_are_not_constructed(tmp_path: Path, text: str, said: str) -> None:
    (tmp_path / "config.yaml").write_text(f"b: 1\n{text}\n")
    with pytest.raises(ConversionError, match=f"config.yaml:2: .*{said}"):
        read_config(str(tmp_path), None)
