"""The plan of an import, made without the engine, against the run that the converter opens."""

from __future__ import annotations

import dataclasses
import json
import shutil
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path
from typing import Any

import pytest

from midstream.errors import MidstreamError
from midstream.migrate.planning.foreign_config import ForeignRun, foreign_run, with_parameters
from midstream_engine.config import from_mapping
from midstream_engine.interop.foreign_run import ForeignRun as OpenedRun
from midstream_engine.interop.foreign_run import state_arrays
from midstream_engine.interop.huggingface.importer import described
from midstream_engine.interop.huggingface_trainer.importer import open_trainer
from midstream_engine.interop.levanter.importer import open_levanter
from midstream_engine.interop.maxtext.configuration import NEEDED, read_config
from midstream_engine.interop.maxtext.importer import open_maxtext
from midstream_engine.interop.neox.architecture import Choices
from midstream_engine.interop.neox.importer import open_neox
from midstream_engine.interop.torch_dcp.importer import open_torch_dcp
from midstream_host.trainers import checkpoint_survey
from support.paths import FIXTURES

pytestmark = [
    # haliax 1.4 uses names that jax 0.10 deprecates.
    pytest.mark.filterwarnings("ignore:jax.core.is_constant_dim is deprecated:DeprecationWarning"),
    pytest.mark.filterwarnings("ignore:jax.interpreters.pxla.thread_resources is deprecated:DeprecationWarning"),
]
NEOX = sorted(path.parent.name for path in (FIXTURES / "neox").glob("*/latest"))
LEVANTER = ("gpt2", "llama", "data/run", "clipped", "optimizers/lion", "optimizers/muon")
HUGGING_FACE = sorted(path.parent.name for path in (FIXTURES / "hf").glob("*/config.json"))
CHOICES = Choices("blocked", "inside")


def planned(path: Path, flags: dict[str, str] | None = None, config: str = "") -> ForeignRun:
    return foreign_run(checkpoint_survey.survey(path=str(path), config=config), "here", flags or {})


def shapes_of(run: ForeignRun) -> dict[str, tuple[tuple[str, ...], tuple[int, ...], str]]:
    return {each.name: (tuple(each.axes), tuple(each.shape), each.dtype) for each in run.arrays}


def large(arrays: Any) -> dict[str, tuple[tuple[str, ...], tuple[int, ...], str]]:
    """Return the arrays that grow with the model."""
    return {
        each.name: (tuple(each.axes), tuple(each.shape), each.dtype)
        for each in arrays
        if not each.name.endswith("count") and each.name != "key" and len(each.shape)
    }


def assert_same_numbers(plan: ForeignRun, opened: OpenedRun) -> None:
    ours, theirs = plan.config["trainer"], from_mapping(opened.mapping).config.trainer
    assert (ours["train_batch_size"], ours["num_train_steps"]) == (theirs.train_batch_size, theirs.num_train_steps)
    assert from_mapping({"data": {"tokenizer": "bytes"}, "trainer": {"mp": ours["mp"]}}).config.trainer.precision() == (
        theirs.precision()
    )
    model = from_mapping(opened.mapping).config.model
    assert plan.config["model"]["seq_len"] == model.seq_len


@pytest.mark.parametrize("name", NEOX)
def test_plan_of_neox_checkpoint_has_the_arrays_of_its_import(name: str) -> None:
    plan = planned(FIXTURES / "neox" / name)
    try:
        opened = open_neox(str(FIXTURES / "neox" / name), CHOICES)
    except Exception as error:  # noqa: BLE001  what the import refuses is not compared
        pytest.skip(f"{name} is not imported: {error}")
    assert shapes_of(plan) == large(opened.arrays)
    assert_same_numbers(plan, opened)
    assert checkpoint_survey.survey(path=str(FIXTURES / "neox" / name)).step == opened.step


@pytest.mark.parametrize("name", LEVANTER)
def test_plan_of_levanter_checkpoint_has_the_size_of_its_import(name: str) -> None:
    """Names of Levanter's own moments differ; zarr 2 shows all shapes, OCDBT the size of its files."""
    plan = planned(FIXTURES / "levanter" / name)
    opened = open_levanter(str(FIXTURES / "levanter" / name), without_data=True)
    survey = checkpoint_survey.survey(path=str(FIXTURES / "levanter" / name))
    assert survey.step == opened.step
    ours, theirs = shapes_of(plan), large(opened.arrays)
    parameters = {name: shape for name, shape in theirs.items() if name.startswith("model/")}
    vocabulary = ("model/token_embeddings/weight", "model/lm_head/weight")
    for array, shape in parameters.items():
        if survey.shapes or "passthrough" in str(survey.configs) or array not in vocabulary:
            assert ours[array] == shape, array
    assert ours.keys() >= parameters.keys()


@pytest.mark.parametrize("name", HUGGING_FACE)
def test_plan_of_hugging_face_model_has_the_arrays_of_its_state(name: str) -> None:
    plan = planned(FIXTURES / "hf" / name, {"data.train_urls": "x", "trainer.train_batch_size": "4"})
    _, model, rows = described(str(FIXTURES / "hf" / name))
    config = from_mapping({"data": {"tokenizer": "bytes"}, "trainer": {"train_batch_size": 4}}).config
    state = state_arrays(dataclasses.replace(config, model=model), rows)
    assert shapes_of(plan) == large(state.values())
    assert plan.config["trainer"]["train_batch_size"] == 4
    half = with_parameters(plan, "bfloat16")
    assert {each.dtype for each in half.arrays if each.name.startswith("model/")} == {"bfloat16"}


def test_plan_of_trainer_has_its_optimizer_and_step(tmp_path: Path) -> None:
    source = Path(shutil.copytree(FIXTURES / "hf_trainer" / "checkpoint-3", tmp_path / "checkpoint-3"))
    plan = planned(source, {"data.train_urls": "x"})
    opened = open_trainer(str(source), [])
    assert checkpoint_survey.survey(path=str(source)).step == opened.step == 3
    assert shapes_of(plan) == large(opened.arrays)
    assert_same_numbers(plan, opened)
    assert "order of the data is not imported" in plan.warnings[0]
    state = source / "trainer_state.json"
    text = state.read_text()
    state.write_text(text.replace("global_step", "steps"))
    with pytest.raises(ValueError, match="has no global_step and max_steps"):
        planned(source)
    state.write_text(text[:-9])
    with pytest.raises(ValueError, match=r"trainer_state\.json: not JSON, perhaps cut off"):
        planned(source)
    state.unlink()
    with pytest.raises(ValueError, match=r"lacks trainer_state\.json of a checkpoint of Trainer"):
        planned(source)


def test_plan_of_torchtitan_has_its_optimizer_and_step(tmp_path: Path) -> None:
    with tarfile.open(FIXTURES / "torchtitan" / "step-4.tar.gz") as archive:
        archive.extractall(tmp_path, filter="data")
    with pytest.raises(ValueError, match=r"--debug\.save_config_file"):
        planned(tmp_path)
    shutil.copy(FIXTURES / "torchtitan" / "config.json", tmp_path)
    plan, opened = planned(tmp_path), open_torch_dcp(str(tmp_path))
    assert checkpoint_survey.survey(path=str(tmp_path)).step == opened.step == 4
    assert shapes_of(plan) == large(opened.arrays)
    assert_same_numbers(plan, opened)
    metadata = tmp_path / "step-4" / ".metadata"
    metadata.write_bytes(metadata.read_bytes()[:-9])
    with pytest.raises(ValueError, match=r"step-4/\.metadata: "):
        planned(tmp_path)


def test_plan_of_maxtext_has_its_optimizer_and_step(tmp_path: Path) -> None:
    with tarfile.open(FIXTURES / "maxtext" / "checkpoint.tar.gz") as archive:
        archive.extractall(tmp_path, filter="data")
    log, step = str(FIXTURES / "maxtext" / "train.log"), tmp_path / "checkpoints" / "2"
    with pytest.raises(ValueError, match="the run's configuration is missing: --config names MaxText's log"):
        planned(tmp_path)
    plan, opened = planned(tmp_path, config=log), open_maxtext(str(tmp_path), log)
    assert checkpoint_survey.survey(path=str(step), config=log).step == opened.step == 3
    assert shapes_of(plan) == large(opened.arrays)
    assert_same_numbers(plan, opened)
    assert plan.config["trainer"]["matmul_precision"] == opened.mapping["trainer"]["matmul_precision"]
    assert "its arrays, which the import reads, have the number that counts" in plan.warnings[0]
    settings = {name: value for name, value in read_config(str(step), log).items() if name in NEEDED or "dim" in name}
    settings |= {"base_num_query_heads": 2, "base_num_kv_heads": 1, "base_num_decoder_layers": 2, "vocab_size": 48}
    (tmp_path / "maxtext.yml").write_text(json.dumps(settings))
    assert shapes_of(planned(tmp_path)) == shapes_of(plan)
    renamed = step.rename(tmp_path / "copy-of-2")
    with pytest.raises(ValueError, match="its name is no number of a step"):
        planned(renamed)
    moved = renamed.rename(tmp_path / "checkpoints" / "9")
    assert any("its arrays have 3 updates, whatever its name" in note for note in open_maxtext(str(moved), log).notes)
    for mark in (moved / "commit_success.txt", moved / "_CHECKPOINT_METADATA"):
        mark.unlink()
    (moved / "_CHECKPOINT_METADATA").write_text("{}")
    with pytest.raises(ValueError, match="the checkpoint is not complete"):
        planned(moved)
    with pytest.raises(ValueError, match="not a checkpoint of GPT-NeoX, Levanter, MaxText"):
        planned(tmp_path / "checkpoints")


def test_plan_finds_the_token_caches_of_a_mixture() -> None:
    run = FIXTURES / "levanter" / "data" / "run"
    assert [Path(path).resolve() for path in planned(run).data_paths] == [run.parent / name for name in ("b", "a", "c")]


def test_hugging_face_model_without_data_is_refused() -> None:
    with pytest.raises(MidstreamError, match=r"a model has no data: name it with -- --data\.train_urls"):
        planned(FIXTURES / "hf" / "gpt2")


def test_levanter_configuration_is_named_or_found(tmp_path: Path) -> None:
    """A configuration that Levanter wrote itself has Python tags; a missing one is refused."""
    shutil.copytree(FIXTURES / "levanter" / "gpt2" / "step-3", tmp_path / "step-3")
    with pytest.raises(ValueError, match="name its YAML with --config"):
        checkpoint_survey.survey(path=str(tmp_path))
    config = FIXTURES / "levanter" / "configs" / "gpt2-1.2.yaml"
    assert "!!python/object" in config.read_text()
    plan = planned(tmp_path, config=str(config))
    assert plan.config["model"]["num_layers"] == 2
    with pytest.raises(ValueError, match="name its YAML with --config"):
        checkpoint_survey.survey(path=str(tmp_path), config=str(tmp_path / "other.yaml"))


def test_pickle_of_a_checkpoint_runs_nothing(tmp_path: Path) -> None:
    """Classes that a pickle names are replaced: neither import nor call has an effect."""
    marker = tmp_path / "ran"
    attack = f"cos\nsystem\n(S'touch {marker}'\ntR.".encode()
    path = tmp_path / "x.pt"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("archive/data.pkl", attack)
    with path.open("rb") as file, pytest.raises(ValueError, match="no training state"):
        checkpoint_survey.training_state(file, "x.pt")
    path.write_bytes(b"no pickle at all")
    with path.open("rb") as file, pytest.raises(ValueError, match=r"x\.pt: not a file of torch"):
        checkpoint_survey.training_state(file, "x.pt")
    assert not marker.exists()


def test_survey_needs_the_standard_library_alone() -> None:
    path = FIXTURES / "neox" / "pythia-fp32-z1-dp2"
    code = (
        "import sys; from midstream_host.trainers.checkpoint_survey import survey; "
        f"print(survey({str(path)!r}).step, any(name in sys.modules for name in ('numpy', 'yaml', 'jax', 'torch')))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["3", "False"]
