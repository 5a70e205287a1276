"""NeoX's arguments: every one has a class, values that change the training are refused, others leave no note.

``arguments.json`` has every argument that NeoX has had, with its default (fixtures/neox/generate_arguments.py).
"""

from __future__ import annotations

import ast
import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import yaml

from midstream_engine.interop.errors import ConversionError
from midstream_engine.interop.neox.architecture import DEFAULTS
from midstream_engine.interop.neox.arguments import ARGUMENTS, CHECKED, ELSEWHERE, check_arguments, with_extra
from midstream_engine.interop.neox.importer import open_neox
from pages import neox_arguments_page
from support.paths import CONFIGS, FIXTURES

NEOX = FIXTURES / "neox"
SOURCE = NEOX / "sequential-bf16-z0-dp1"
REMEDY = "make pages"
KNOWN = json.loads((NEOX / "arguments.json").read_text())
FOUND = {name: ast.literal_eval(default) for name, default in (KNOWN["older"] | KNOWN["present"]).items()
         if "(" not in default}  # fmt: skip
BASE = {"pos_emb": "rotary"}


def notes_of(**settings: Any) -> list[str]:
    notes: list[str] = []
    check_arguments(BASE | settings, DEFAULTS, notes)
    return notes


def test_every_argument_of_neox_has_a_class() -> None:
    assert set(KNOWN["older"]) | set(KNOWN["present"]) <= set(ARGUMENTS)


def test_page_of_arguments_is_current() -> None:
    page = (CONFIGS.parent / "docs" / "reference" / "neox-arguments.md").read_text()
    assert page == neox_arguments_page.document(), REMEDY


def test_defaults_are_those_of_neox() -> None:
    assert {name: FOUND[name] for name in DEFAULTS} == DEFAULTS


def test_neoxs_defaults_are_accepted_without_a_note() -> None:
    """All of them are set, but for the two whose default cannot be imported or asks the user to look."""
    set_elsewhere = {name for name, argument in ARGUMENTS.items() if argument.treatment == ELSEWHERE}
    assert notes_of(**{name: value for name, value in FOUND.items() if name not in {"pos_emb", *set_elsewhere}}) == []
    with pytest.raises(ConversionError, match="pos-emb: 'learned' cannot be carried over, only 'rotary'"):
        check_arguments({}, DEFAULTS, [])


@pytest.mark.parametrize("name", [name for name, argument in ARGUMENTS.items() if argument.treatment == CHECKED])
def test_other_values_are_refused_by_name(name: str) -> None:
    other: Any = False if name == "use_bias_in_norms" else "something"
    with pytest.raises(ConversionError, match=f"configs: {name.replace('_', '-')}: .* cannot be carried over"):
        notes_of(**{name: other})


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"train_impl": "dpo"}, "train-impl: 'dpo' cannot be carried over, only 'normal' (another objective)"),
        ({"train_impl": "kto"}, "train-impl: 'kto'"),
        (
            {"train_label_data_paths": ["/labels"]},
            "train-label-data-paths: ['/labels'] cannot be carried over, only an",
        ),
        ({"pack_impl": "unpacked"}, "pack-impl: 'unpacked' cannot be carried over, only 'packed' (other data)"),
        ({"hidden_dropout": 0.1}, "hidden-dropout: 0.1 cannot be carried over, only 0.0"),
        ({"curriculum_learning": {"enabled": True}}, "curriculum-learning"),
        ({"zero_optimization": {"stage": 1, "round_robin_gradients": True}}, "round-robin-gradients"),
        (
            {"optimizer": {"params": {"amsgrad": True}}},
            "optimizer.params.amsgrad: True cannot be carried over, only False",
        ),
        ({"optimizer": {"params": {"decoupled": True}}}, "optimizer.params.decoupled"),
        ({"train_impl": "rm", "weight_by_num_documents": True}, "weight-by-num-documents: True"),
    ],
)
def test_refusals_say_what_is_accepted(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ConversionError) as caught:
        notes_of(**settings)
    assert message in str(caught.value)


@pytest.mark.parametrize(
    "settings",
    [
        {"train_impl": "normal", "pack_impl": "packed", "dataset_impl": "gpt2", "train_label_data_paths": []},
        {"train_impl": "Normal", "moe_num_experts": 1, "label_data_paths": None, "z_loss": 0.0, "dpo_beta": 0.5},
        {"curriculum_learning": {"enabled": False}, "soft_prompt_tuning": {"enabled": False, "num_tokens": 10}},
        {"optimizer": {"params": {"lr": 1e-3, "betas": [0.9, 0.95], "eps": 1e-8, "bias_correction": True}}},
        {"log_interval": 10, "checkpoint_activations": True, "num_workers": 8, "wall_clock_breakdown": True},
        {"not_an_argument": False, "nor_this": None},
    ],
)
def test_neutral_values_leave_no_note(settings: dict[str, Any]) -> None:
    assert notes_of(**settings) == []


def test_notes_name_what_is_set_elsewhere_or_unknown() -> None:
    notes = notes_of(save="/there", checkpoint_factor=1000, eval_iters=0, use_wandb=True, scale_of_residual=2)
    assert notes[0] == "configs: checkpoint-factor, save: not imported, set trainer.checkpointer here"
    assert notes[1] == "configs: use-wandb: not imported, set trainer.tracker here"
    assert notes[2].startswith("configs: scale-of-residual: no argument of GPT-NeoX that is known here, and ignored")
    assert len(notes) == 3


def test_extra_arguments_of_deepspeed_count() -> None:
    settings = with_extra({"deepspeed_extra_args": {"curriculum_learning": {"enabled": True}, "seed": 1}, "seed": 2})
    assert settings["seed"] == 2
    with pytest.raises(ConversionError, match="curriculum-learning"):
        notes_of(**settings)


@pytest.mark.parametrize(
    "setting", [{"train-impl": "dpo"}, {"train_label_data_paths": ["x"]}, {"pack-impl": "unpacked"}]
)
def test_import_of_another_objective_is_refused(setting: dict[str, Any], tmp_path: Path) -> None:
    shutil.copytree(SOURCE, tmp_path / "c")
    (path,) = (tmp_path / "c").glob("global_step*/configs/*")
    path.write_text(yaml.safe_dump(yaml.safe_load(path.read_text()) | setting))
    with pytest.raises(ConversionError, match=next(iter(setting)).replace("_", "-")):
        open_neox(str(tmp_path / "c"))


def test_plain_configuration_imports_without_such_notes() -> None:
    assert not [note for note in open_neox(str(SOURCE)).notes if "configs:" in note]
