"""Versions of GPT-NeoX that computed different things under the same names: grouped queries, RMSNorm.

Losses are compared with a forward pass in numpy (support/imports/neox_forward.py), and with what DeepSpeed
measured while it trained the fixtures.
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import haliax as hax
import jax
import numpy as np
import pytest
import yaml

from midstream_engine.config.model import LlamaConfig
from midstream_engine.convert import main
from midstream_engine.interop.errors import ConversionError
from midstream_engine.interop.huggingface.configuration import to_huggingface
from midstream_engine.interop.neox.architecture import Choices
from midstream_engine.interop.neox.directory import find
from midstream_engine.interop.neox.importer import open_neox
from midstream_engine.interop.neox.reader import read
from midstream_engine.interop.neox.revision import Heads, Revision, revision_of
from midstream_engine.models.layers import RmsNorm
from support.imports import imported_runs, neox_forward
from support.paths import FIXTURES

pytestmark = [
    pytest.mark.drawn,
    # haliax 1.4 uses names that jax 0.10 deprecates.
    pytest.mark.filterwarnings("ignore:jax.core.is_constant_dim is deprecated:DeprecationWarning"),
    pytest.mark.filterwarnings("ignore:jax.interpreters.pxla.thread_resources is deprecated:DeprecationWarning"),
]
NEOX = FIXTURES / "neox"
PRESENT, OLD = "llama-fp32-z1-dp3", "llama-old-fp32-z1-tp2"
GROUPED = Heads(queries=4, keys=2, size=4)


def tokens_of(name: str) -> np.ndarray:
    return np.asarray(json.loads((NEOX / name / "expected.json").read_text())["tokens"])[0]


def next_loss(path: Path, choices: Choices) -> float:
    return imported_runs.continued(open_neox(str(path), choices), [tokens_of(path.name.removesuffix("-changed"))])[0]


def changed(name: str, target: Path, **settings: Any) -> Path:
    """Copy a fixture with other settings."""
    folder = target / f"{name}-changed"
    shutil.copytree(NEOX / name, folder)
    (path,) = folder.glob("global_step*/configs/*")
    config = {key.replace("-", "_"): value for key, value in yaml.safe_load(path.read_text()).items()}
    path.write_text(yaml.safe_dump(config | settings))
    return folder


def parameters_of(name: str) -> dict[tuple[int, str], np.ndarray]:
    """Return NeoX's parameters; tensor-parallel ranks side by side, which is right where rows are not blocks."""
    found = {}
    for (layer, kind), parameter in read(find(str(NEOX / name))).parameters.items():
        parts = [parameter.weights[rank].read() for rank in sorted(parameter.weights)]
        axis = 1 if kind in ("attention.dense.weight", "mlp.w2.weight") else 0
        replicated = kind.endswith("scale") or len(parts) == 1
        found[layer, kind] = parts[0] if replicated else np.concatenate(parts, axis)
    return found


@pytest.mark.parametrize("layout", ["interleaved", "blocked"])
def test_each_gqa_layout_has_the_loss_of_neoxs_forward(layout: str, tmp_path: Path) -> None:
    source = changed(PRESENT, tmp_path, rms_norm_epsilon=1e-5)
    losses = {}
    for interleaved in (True, False):
        shape = neox_forward.Shape(2, 4, 2, 1e-5, interleaved, outside=False)
        losses[interleaved] = neox_forward.losses(parameters_of(PRESENT), shape, tokens_of(PRESENT))
    assert abs(losses[True] - losses[False]) > 1e-4  # a short training; the comparison is within 4e-6
    loss = next_loss(source, Choices(layout, "inside"))
    np.testing.assert_allclose(loss, losses[layout == "interleaved"], rtol=1e-6)


@pytest.mark.parametrize("place", ["outside", "inside"])
def test_each_epsilon_has_the_loss_of_neoxs_forward(place: str, tmp_path: Path) -> None:
    source = changed(PRESENT, tmp_path, rms_norm_epsilon=1e-2)
    losses = {}
    for outside in (True, False):
        shape = neox_forward.Shape(2, 4, 2, 1e-2, interleaved=False, outside=outside)
        losses[outside] = neox_forward.losses(parameters_of(PRESENT), shape, tokens_of(PRESENT))
    assert abs(losses[True] - losses[False]) > 1e-3
    np.testing.assert_allclose(next_loss(source, Choices("blocked", place)), losses[place == "outside"], rtol=1e-6)


def test_old_checkpoint_is_recognised_by_its_settings_and_names() -> None:
    """DeepSpeed trained it on two tensor-parallel ranks with interleaved rows, w1, w2 and w3."""
    adopted = open_neox(str(NEOX / OLD))
    shape = neox_forward.Shape(2, 4, 2, 1e-2, interleaved=True, outside=True)
    expected = neox_forward.losses(parameters_of(OLD), shape, tokens_of(OLD))
    measured = json.loads((NEOX / OLD / "expected.json").read_text())["losses"][0]
    np.testing.assert_allclose([measured, next_loss(NEOX / OLD, Choices())], expected, rtol=1e-6)
    assert [note for note in adopted.notes if "layout interleaved" in note and "mlp-type" in note and "mlp.w1" in note]
    assert [note for note in adopted.notes if "epsilon: added outside" in note]
    assert adopted.mapping["model"]["epsilon_outside_root"]


def test_option_goes_before_evidence_and_a_note_names_both() -> None:
    adopted = open_neox(str(NEOX / OLD), Choices("blocked"))
    assert [note for note in adopted.notes if "blocked, as --gqa-layout says, though" in note and "mlp-type" in note]
    assert abs(next_loss(NEOX / OLD, Choices("blocked")) - next_loss(NEOX / OLD, Choices())) > 1e-4


def test_ambiguous_checkpoint_asks_and_leaves_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = [str(NEOX / PRESENT), str(tmp_path / "out"), "--without-data"]
    assert main(arguments) == 1
    error = capsys.readouterr().err
    assert "--gqa-layout interleaved if NeoX was older than 2024-11-14" in error
    assert "DeepSpeed 0.16.5" in error
    assert main([*arguments, "--gqa-layout", "blocked"]) == 1
    assert "--rms-epsilon outside if NeoX was older than 2025-05-09" in capsys.readouterr().err
    assert not (tmp_path / "out").exists()
    assert main([*arguments, "--gqa-layout", "blocked", "--rms-epsilon", "inside"]) == 0
    assert "layout blocked, as --gqa-layout says" in (tmp_path / "out" / "train.yaml").read_text()


@pytest.mark.parametrize(
    ("settings", "state", "layout", "place"),
    [
        ({"git_hash": "774eb58"}, {}, "interleaved", "outside"),
        ({}, {"git_hash": "v2.0-318-g96c242eb"}, "blocked", "outside"),
        ({"git_hash": "d12c7711"}, {}, "blocked", "inside"),
        ({"git_hash": "0123456"}, {}, None, None),
        ({"mlp_type": "llama"}, {}, "interleaved", "outside"),
        ({"te_fp8_margin": 0}, {}, "blocked", None),
        ({"detect_nvlink_pairs": True}, {}, None, "outside"),
        ({"detect_nvlink_pairs": True, "te_fp8_margin": 0}, {}, "blocked", "outside"),
        ({"moe_router_type": "topk"}, {}, "blocked", "inside"),
        ({"moe_router_type": "topk", "mlp_type": "llama"}, {}, None, None),
    ],
)
def test_evidence_decides_or_an_option_is_requested(
    settings: dict[str, Any], state: dict[str, Any], layout: str | None, place: str | None
) -> None:
    def check(expected: str | None, call: Any, option: str) -> None:
        if expected is None:
            with pytest.raises(ConversionError, match=option):
                call()
        else:
            assert call() == expected

    revision = revision_of(settings, ["attention.dense.weight"], state)
    check(layout, lambda: revision.gqa_layout(GROUPED, None, []), "--gqa-layout")
    check(place, lambda: revision.rms_epsilon(1e-5, False, None, []), "--rms-epsilon")


def test_interleaved_layout_shows_an_epsilon_outside() -> None:
    """The user names the layout, whose period decides the norm as well."""
    revision = Revision()
    assert revision.gqa_layout(GROUPED, "interleaved", []) == "interleaved"
    assert revision.rms_epsilon(1e-5, False, None, []) == "outside"


def test_shapes_that_cannot_interleave_are_blocked() -> None:
    narrow = Heads(queries=8, keys=1, size=4)  # half a row of the key for each query head
    assert Revision().gqa_layout(narrow, None, notes := []) == "blocked"
    assert "cannot be interleaved" in notes[0]
    with pytest.raises(ConversionError, match="cannot be shared"):
        Revision().gqa_layout(narrow, "interleaved", [])


def test_epsilon_outside_has_a_gradient_at_zero() -> None:
    norm = RmsNorm.init(hax.Axis("embed", 4), 1e-2, outside=True)
    gradient = jax.grad(lambda x: hax.sum(norm(hax.named(x, "embed"))).scalar())(jax.numpy.zeros(4))
    np.testing.assert_allclose(gradient, 100.0, rtol=1e-6)


def test_epsilon_outside_has_no_huggingface_model() -> None:
    with pytest.raises(ConversionError, match="epsilon_outside_root"):
        to_huggingface(LlamaConfig(epsilon_outside_root=True), 64, "float32")


def test_options_of_neox_are_refused_for_other_formats(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    source = NEOX.parent / "hf" / "llama2"
    assert main([str(source), str(tmp_path / "out"), "--gqa-layout", "blocked"]) == 1
    assert "--gqa-layout and --rms-epsilon go with checkpoints of neox" in capsys.readouterr().err


def test_nothing_is_requested_that_does_not_matter() -> None:
    assert Revision().gqa_layout(Heads(4, 4, 4), None, []) == "blocked"
    assert Revision().rms_epsilon(1e-8, False, None, []) == "inside"
    assert Revision().rms_epsilon(1e-5, True, None, []) == "inside"  # apex's norm
