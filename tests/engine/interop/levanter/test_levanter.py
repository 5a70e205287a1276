"""Import of Levanter runs: the next updates have Levanter's losses.

The fixtures were made with marin-levanter by tests/fixtures/levanter/generate.py, on a CPU.
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from midstream_engine.checkpoint.loading.verify import verify_checkpoint
from midstream_engine.config.load import load_config
from midstream_engine.convert import main
from midstream_engine.interop.errors import ConversionError
from midstream_engine.interop.levanter.arrays import open_arrays
from midstream_engine.interop.levanter.importer import open_levanter
from support.imports import imported_runs
from support.imports.levanter_checkpoints import as_format_a
from support.paths import FIXTURES

pytestmark = [
    pytest.mark.drawn,
    # haliax 1.4 uses names that jax 0.10 deprecates.
    pytest.mark.filterwarnings("ignore:jax.core.is_constant_dim is deprecated:DeprecationWarning"),
    pytest.mark.filterwarnings("ignore:jax.interpreters.pxla.thread_resources is deprecated:DeprecationWarning"),
]
LEVANTER = FIXTURES / "levanter"


@pytest.mark.parametrize("name", ["gpt2", "llama"])
def test_next_updates_have_levanters_losses(name: str) -> None:
    """In float32; later updates need correct moments, counts, schedule and decay."""
    expected = json.loads((LEVANTER / name / "expected.json").read_text())
    losses = imported_runs.continued(open_levanter(str(LEVANTER / name)), expected["tokens"])
    np.testing.assert_allclose(losses, expected["losses"], rtol=1e-5)


@pytest.mark.parametrize("name", ["clipped", "rms"])
def test_next_updates_have_levanters_z_loss_and_limits(name: str) -> None:
    """Also AdamC's decay, which moves these losses by 6e-6, and the norms that the checkpoint has recorded."""
    expected = json.loads((LEVANTER / name / "expected.json").read_text())
    losses = imported_runs.continued(open_levanter(str(LEVANTER / name)), expected["tokens"])
    np.testing.assert_allclose(losses, expected["losses"], rtol=1e-6)


def contents(path: Path) -> dict[str, np.ndarray]:
    return {array.name: array.value() for array in open_levanter(str(path)).arrays}


def test_all_formats_have_equal_contents(tmp_path: Path) -> None:
    as_format_a(LEVANTER / "llama", tmp_path / "a")
    shutil.copytree(LEVANTER / "llama", tmp_path / "c")
    (tmp_path / "c" / "step-3" / "manifest.json").write_text('{"arrays": []}')
    kinds = {name: open_arrays(str(tmp_path / name / "step-3"))[0] for name in "ac"}
    assert kinds == {"a": "A", "c": "C"}
    expected = contents(LEVANTER / "llama")
    for name in "ac":
        found = contents(tmp_path / name)
        assert found.keys() == expected.keys()
        for array in expected:
            np.testing.assert_array_equal(found[array], expected[array], array)


def test_checkpoint_is_recognized_with_its_configuration(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([str(LEVANTER / "gpt2"), str(tmp_path / "out")]) == 0
    messages = capsys.readouterr().err
    for line in ("trainer.ray", "data.vocab_size", "its order is ours", "training key"):
        assert line in messages
    config = load_config(["--config_path", str(tmp_path / "out" / "train.yaml")]).config
    assert (config.optimizer.weight_decay, config.trainer.steps_per_eval) == (0.1, 1000)
    checkpoint = tmp_path / "out" / "checkpoints" / "step-3-a000"
    assert verify_checkpoint(str(checkpoint)).sound
    assert json.loads((checkpoint / "train.json").read_text())["state"]["next_sample"] == 24


def test_levanters_own_defaults_are_written_out(tmp_path: Path) -> None:
    shutil.copytree(LEVANTER / "gpt2", tmp_path / "a")
    config = (tmp_path / "a" / "config.yaml").read_text()
    lines = [line for line in config.splitlines() if not line.strip().startswith(("learning_rate", "weight_decay"))]
    (tmp_path / "a" / "config.yaml").write_text("\n".join(lines))
    optimizer = open_levanter(str(tmp_path / "a")).mapping["optimizer"]
    assert (optimizer["learning_rate"], optimizer["weight_decay"]) == (6e-4, 0.1)


def test_schedule_follows_the_release_that_wrote_the_checkpoint(tmp_path: Path) -> None:
    as_format_a(LEVANTER / "gpt2", tmp_path / "a")
    shutil.copytree(LEVANTER / "gpt2", tmp_path / "b")

    def rules(name: str, old: str, new: str) -> tuple[str, list[str]]:
        path = tmp_path / name / "config.yaml"
        text = path.read_text()
        assert old in text
        path.write_text(text.replace(old, new))
        run = open_levanter(str(tmp_path / name))
        return run.mapping["optimizer"]["schedule_rules"], [note for note in run.notes if "schedule_rules" in note]

    assert rules("a", "warmup: 2", "warmup: 2") == ("levanter-1.2", [])  # both have the same learning rates
    assert rules("b", "warmup: 2", "warmup: 2") == ("levanter-0.2", [])
    chosen, (note,) = rules("a", "warmup: 2", "warmup: 2\n  decay: 1.0")
    assert chosen == "levanter-1.2"
    assert "levanter-0.2 gives other learning rates" in note
    assert rules("a", "warmup: 2", "warmup: 2\n  schedule_rules: levanter-0.2")[0] == "levanter-0.2"
    with pytest.raises(ConversionError, match=r"optimizer\.decay: .* levanter-1\.2 rejects"):
        rules("a", "warmup: 2\n  schedule_rules: levanter-0.2\n  decay: 1.0", "warmup: 2\n  decay: 0.0")


def test_incompatible_configurations_are_named(tmp_path: Path) -> None:
    def refusal(change: dict[str, Any], *words: str) -> None:
        shutil.rmtree(tmp_path / "x", ignore_errors=True)
        shutil.copytree(LEVANTER / "llama", tmp_path / "x")
        text = (tmp_path / "x" / "config.yaml").read_text()
        for old, new in change.items():
            assert old in text, old
            text = text.replace(old, new)
        (tmp_path / "x" / "config.yaml").write_text(text)
        with pytest.raises(ConversionError) as caught:
            open_levanter(str(tmp_path / "x"))
        for word in words:
            assert word in str(caught.value)

    refusal({"num_layers: 2": "num_layers: 3"}, "misshapen", "q_proj")
    refusal({"hidden_dim: 16": "hidden_dim: 32"}, "misshapen", "lm_head")
    refusal({"num_layers: 2": "num_layers: 2\n  use_bias: true"}, "missing", "q_proj/bias")
    refusal({"num_layers: 2": "num_layers: 2\n  tie_word_embeddings: true"}, "unused", "lm_head")
    refusal({"type: llama": "type: mixtral"}, "mixtral")
    refusal({"type: adam": "type: muon"}, "muon")
    shutil.rmtree(tmp_path / "x")
    shutil.copytree(LEVANTER / "llama", tmp_path / "x")
    (tmp_path / "x" / "config.yaml").unlink()
    with pytest.raises(ConversionError, match="--config"):
        open_levanter(str(tmp_path / "x"))
    (tmp_path / "x" / "step-3" / "metadata.json").unlink()
    with pytest.raises(ConversionError, match="none was finished"):
        open_levanter(str(tmp_path / "x"))


def test_truncated_store_is_refused(tmp_path: Path) -> None:
    shutil.copytree(LEVANTER / "llama", tmp_path / "x")
    for data in (tmp_path / "x" / "step-3" / "d").iterdir():
        data.write_bytes(data.read_bytes()[:100])
    with pytest.raises(ConversionError, match=r"cannot be (read|opened)"):
        contents(tmp_path / "x")


@pytest.mark.parametrize(("step", "imported"), [(3, True), (2, True), (9, False), (4, False), ("3", False)])
def test_metadata_of_another_step_is_refused(step: Any, imported: bool, tmp_path: Path) -> None:
    """Levanter saves into a directory that is there: arrays and metadata.json are then of two checkpoints."""
    shutil.copytree(LEVANTER / "gpt2", tmp_path / "run")
    path = tmp_path / "run" / "step-3" / "metadata.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "step": step}))
    if imported:
        assert open_levanter(str(tmp_path / "run")).step == 3
    else:
        with pytest.raises(ConversionError, match=r"metadata\.json has step"):
            open_levanter(str(tmp_path / "run"))
