"""Models from and to Hugging Face: the same logits, no lost tensor, no residue of a failure.

The fixtures were made with transformers by tests/fixtures/hf/generate.py. Where torch and transformers are installed,
the export is also read by transformers itself.
"""

from __future__ import annotations

import importlib.util
import json
import os
import shutil
from pathlib import Path
from typing import Any

import haliax as hax
import jax
import jmp
import numpy as np
import pytest
from haliax import NamedArray
from jax.sharding import SingleDeviceSharding

from midstream_core.records import (
    FORMAT,
    FORMAT_VERSION,
    MANIFEST,
    Manifest,
    RunPaths,
    checkpoint_name,
    first_fence,
    read_json,
)
from midstream_engine.checkpoint.loading.restore import restore_checkpoint
from midstream_engine.checkpoint.loading.verify import verify_checkpoint
from midstream_engine.computation.train_state import TrainState, abstract_state, initializer
from midstream_engine.config import load_config
from midstream_engine.config.train import TrainLmConfig
from midstream_engine.convert import main
from midstream_engine.interop.exported_run import newest_checkpoint
from midstream_engine.interop.huggingface.configuration import from_huggingface
from midstream_engine.interop.tensor_files import read_tensors
from midstream_engine.optim.optimizer import build_optimizer
from midstream_engine.optim.schedule import learning_rate
from support.engines.engine_process import train_all
from support.paths import FIXTURES

pytestmark = [
    # haliax 1.4 uses names that jax 0.10 deprecates.
    pytest.mark.filterwarnings("ignore:jax.core.is_constant_dim is deprecated:DeprecationWarning"),
    pytest.mark.filterwarnings("ignore:jax.interpreters.pxla.thread_resources is deprecated:DeprecationWarning"),
]
HUGGING_FACE = FIXTURES / "hf"
NAMES = sorted(path.name for path in HUGGING_FACE.iterdir() if path.is_dir() and path.name != "__pycache__")
LIVE = all(importlib.util.find_spec(name) for name in ("torch", "transformers"))
TOLERANCE = 1e-4  # largest absolute difference of logits, float32


def run(*arguments: str | Path) -> int:
    return main([str(argument) for argument in arguments])


def to_midstream(source: Path, target: Path) -> Path:
    assert run(source, target, "--from", "huggingface", "--to", "midstream") == 0
    return target


def restored(directory: Path, vocab_size: int) -> tuple[TrainLmConfig, TrainState]:
    """Return the configuration beside a converted model, and the state that training starts from."""
    config = load_config(["--config_path", str(directory / "train.yaml")]).config
    assert config.trainer.initialize_model_from == str(directory)
    optimizer = build_optimizer(config.optimizer, learning_rate(config.optimizer, config.trainer.num_train_steps))
    template = abstract_state(initializer(config, vocab_size, optimizer, jmp.get_policy("f32")))
    found = restore_checkpoint(newest_checkpoint(str(directory)), template, SingleDeviceSharding(jax.devices()[0]))
    return config, found.tree


def logits_of(state: TrainState, tokens: np.ndarray) -> np.ndarray:
    axes = hax.make_axes(batch=tokens.shape[0], position=tokens.shape[1])
    named = NamedArray(jax.numpy.asarray(tokens), axes)
    return np.asarray(jax.jit(lambda model: model(named, None, None).array)(state.model))


@pytest.fixture(scope="module", params=NAMES)
def converted(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A fixture and its converted directory."""
    source = HUGGING_FACE / request.param
    return source, to_midstream(source, tmp_path_factory.mktemp(request.param) / "model")


def test_conversion_does_not_remove_the_work_of_another(tmp_path: Path) -> None:
    """Of a process with the same number, on a host that shares the directory."""
    theirs = tmp_path / f"out.partial-{os.getpid()}"
    theirs.mkdir()
    (theirs / "model.safetensors").touch()
    to_midstream(HUGGING_FACE / NAMES[0], tmp_path / "out")
    assert [path.name for path in theirs.iterdir()] == ["model.safetensors"]


def test_convert_logits_equal_hugging_face(converted: tuple[Path, Path]) -> None:
    source, target = converted
    expected = np.load(source / "logits.npy")
    _, state = restored(target, expected.shape[-1])
    found = logits_of(state, np.load(source / "tokens.npy"))[..., : expected.shape[-1]]
    assert np.abs(expected).max() > 0.5  # the comparison means something
    assert np.abs(found - expected).max() <= TOLERANCE


def test_convert_gives_complete_checkpoint_at_step_0(converted: tuple[Path, Path]) -> None:
    _, target = converted
    report = verify_checkpoint(newest_checkpoint(str(target)), deep=True)
    assert (report.flaws, report.manifest.name) == ([], "step-0-a000")
    assert report.contents is not None
    moments = {name: seen.norm for name, seen in report.contents.items() if "/mu/" in name or "/nu/" in name}
    assert moments
    assert set(moments.values()) == {0.0}


def test_convert_back_gives_the_same_tensors(converted: tuple[Path, Path], tmp_path: Path) -> None:
    source, target = converted
    back = tmp_path / "back"
    assert run(target, back, "--from", "midstream", "--to", "huggingface", "--max-shard-size", "20KB") == 0
    ours, theirs = read_tensors(str(back)), read_tensors(str(source))
    assert ours.keys() == theirs.keys()
    for name, tensor in theirs.items():
        assert np.array_equal(ours[name], tensor), name
    assert (back / "model.safetensors.index.json").exists()
    described = [from_huggingface(read_json(str(directory / "config.json"))) for directory in (source, back)]
    assert described[0] == described[1]


@pytest.mark.skipif(not LIVE, reason="torch and transformers are not installed: pip install torch transformers")
def test_convert_output_is_read_by_transformers(converted: tuple[Path, Path], tmp_path: Path) -> None:
    import torch  # pyright: ignore[reportMissingImports]
    from transformers import AutoModelForCausalLM  # pyright: ignore[reportMissingImports]

    source, target = converted
    back = tmp_path / "back"
    assert run(target, back, "--from", "midstream", "--to", "huggingface") == 0
    model = AutoModelForCausalLM.from_pretrained(back, attn_implementation="eager").eval()
    tokens = torch.from_numpy(np.load(source / "tokens.npy").astype(np.int64))
    with torch.no_grad():
        found = model(tokens).logits.numpy()
    assert np.abs(found - np.load(source / "logits.npy")).max() <= TOLERANCE


# --------------------------------------------------------------------------------------------------- what is refused


@pytest.fixture
def source(tmp_path: Path) -> Path:
    return Path(shutil.copytree(HUGGING_FACE / "llama2", tmp_path / "source"))


def refused(capsys: pytest.CaptureFixture[str], source: Path, *more: str) -> str:
    """Return the one line of a refused conversion, which leaves nothing."""
    capsys.readouterr()
    before = set(source.parent.iterdir())
    code = run(source, source.parent / "target", "--from", "huggingface", "--to", "midstream", *more)
    output = capsys.readouterr()
    assert (code, output.out, output.err.count("\n")) == (1, "", 1)
    assert set(source.parent.iterdir()) == before
    return output.err


def change(source: Path, **values: Any) -> None:
    path = source / "config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **values}))


def test_convert_refuses_model_that_mismatches_its_config(source: Path, capsys: pytest.CaptureFixture[str]) -> None:
    change(source, num_hidden_layers=1)
    message = refused(capsys, source)
    assert "9 tensors of the source have no place in the model" in message
    assert "model.layers.1.mlp.down_proj.weight" in message
    change(source, num_hidden_layers=3)
    assert "lacks model.layers.2.input_layernorm.weight" in refused(capsys, source)
    change(source, num_hidden_layers=2, intermediate_size=64)
    assert "shape (32, 56), config.json calls for (32, 64)" in refused(capsys, source)


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"model_type": "mamba"}, "model_type 'mamba' is none of gpt2, llama, gpt_neox"),
        (
            {"rope_parameters": {"rope_type": "yarn", "factor": 2}},
            "rope_type 'yarn' is none of default, linear, llama3",
        ),
        ({"hidden_act": "mish"}, "activation 'mish' is none of"),
        ({"num_key_value_heads": 3}, "num_kv_heads: 3 does not divide num_heads"),
        ({"tie_word_embeddings": True}, "lm_head.weight differs from model.embed_tokens.weight"),
    ],
)
def test_convert_refuses_unsupported_options(
    source: Path, capsys: pytest.CaptureFixture[str], changed: dict[str, Any], message: str
) -> None:
    change(source, **changed)
    assert message in refused(capsys, source)


def test_convert_names_missing_and_partial_files(source: Path, capsys: pytest.CaptureFixture[str]) -> None:
    part = source / "model-00002-of-00006.safetensors"
    data = part.read_bytes()
    part.write_bytes(data[: len(data) // 2])
    assert "model-00002-of-00006.safetensors: no sound safetensors file" in refused(capsys, source)
    part.unlink()
    assert "model-00002-of-00006.safetensors: no such file" in refused(capsys, source)
    (source / "config.json").unlink()
    assert "config.json: no such file" in refused(capsys, source)


def test_convert_refuses_existing_target(source: Path, capsys: pytest.CaptureFixture[str]) -> None:
    target = source.parent / "target"
    target.mkdir()
    (target / "precious").write_text("x")
    assert "exists already" in refused(capsys, source)
    assert [path.name for path in target.iterdir()] == ["precious"]


def test_convert_usage_errors_are_distinct(source: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for more in (["--to", "huggingface"], ["--to", "midstream", "--max-shard-size", "much"], ["--to", "torch"]):
        with pytest.raises(SystemExit) as ended:
            run(source, source.parent / "target", "--from", "huggingface", *more)
        assert ended.value.code == 2
    assert "much" in capsys.readouterr().err


# --------------------------------------------------------------------------------------------------------- tokenizers


def test_convert_copies_tokenizer_files_both_ways(source: Path) -> None:
    vocabulary = {"a": 0, "<end>": 1}
    tokenizer = json.dumps({"version": "1.0", "model": {"type": "WordLevel", "vocab": vocabulary, "unk_token": "a"}})
    (source / "tokenizer.json").write_text(tokenizer)
    (source / "tokenizer_config.json").write_text(json.dumps({"eos_token": {"content": "<end>"}}))
    target = to_midstream(source, source.parent / "target")
    config = load_config(["--config_path", str(target / "train.yaml")]).config
    assert config.data.eos_token == "<end>"
    carried = Path(config.data.given_tokenizer.removeprefix("imported:"))
    assert carried.parent == target / "data"
    assert (carried / "tokenizer.json").read_text() == tokenizer
    back = source.parent / "back"
    assert run(target, back, "--from", "midstream", "--to", "huggingface") == 0
    assert (back / "tokenizer.json").read_text() == tokenizer
    assert (back / "tokenizer_config.json").exists()


def test_convert_widens_weights_to_float32_and_back(source: Path) -> None:
    target = to_midstream(source, source.parent / "wide")
    narrow, back = source.parent / "narrow", source.parent / "back"
    assert run(target, narrow, "--from", "midstream", "--to", "huggingface", "--dtype", "bfloat16") == 0
    assert {str(tensor.dtype) for tensor in read_tensors(str(narrow)).values()} == {"bfloat16"}
    again = to_midstream(narrow, source.parent / "again")
    assert run(again, back, "--from", "midstream", "--to", "huggingface", "--dtype", "bfloat16") == 0
    ours, theirs = read_tensors(str(back)), read_tensors(str(narrow))
    assert all(np.array_equal(ours[name], tensor) for name, tensor in theirs.items())


# ----------------------------------------------------------------------------------------------------------- training

CONTINUED = ["gpt2", "llama3-tied"]
LETTERS = "abcdefghijklmnopqrstuvwxyz ."


@pytest.fixture(scope="module")
def continued(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Models with a tokenizer: converted, trained by their ``train.yaml``, converted back.

    Once with a learning rate of 0, once with a real one.
    """
    pytest.importorskip("tokenizers", reason="needs tokenizers: make setup")
    folder = tmp_path_factory.mktemp("continued")
    (folder / "text.txt").write_text("do not change horses in midstream. " * 40)
    vocabulary = {"<end>": 0, **{letter: 1 + number for number, letter in enumerate(LETTERS)}}
    tokenizer = {"version": "1.0", "model": {"type": "BPE", "vocab": vocabulary, "merges": []}}
    runs = []
    for name in CONTINUED:
        source = folder / name / "source"
        shutil.copytree(HUGGING_FACE / name, source)
        (source / "tokenizer.json").write_text(json.dumps(tokenizer))
        (source / "tokenizer_config.json").write_text(json.dumps({"eos_token": "<end>"}))
        config = to_midstream(source, folder / name / "model") / "train.yaml"
        for rate in ("0", "1e-2"):
            runs.append([
                "--config_path", config, "--data.train_urls", folder / "text.txt", "--trainer.id", f"{name}-{rate}",
                "--trainer.num_train_steps", "12", "--trainer.train_batch_size", "4", "--optimizer.learning_rate", rate,
                "--optimizer.warmup", "0",
            ])  # fmt: skip
    codes, log = train_all(folder / "root", runs)
    assert codes == [0] * len(runs), log
    return folder


@pytest.mark.drawn
@pytest.mark.parametrize("name", CONTINUED)
def test_converted_model_trains_from_its_configuration(continued: Path, name: str) -> None:
    path = continued / "root" / "runs" / f"{name}-1e-2" / "attempts" / "001" / "metrics.jsonl"
    losses = [json.loads(line)["train/loss"] for line in path.read_text().splitlines()]
    assert len(losses) == 12
    assert losses[-1] < 0.9 * losses[0]


@pytest.mark.drawn
@pytest.mark.parametrize("name", CONTINUED)
def test_converted_run_is_exported_again(continued: Path, name: str) -> None:
    size = read_json(str(HUGGING_FACE / name / "config.json"))["vocab_size"]
    logits = {}
    for rate in ("0", "1e-2"):
        run_directory, back = continued / "root" / "runs" / f"{name}-{rate}", continued / name / f"back-{rate}"
        command = [run_directory, back, "--from", "midstream", "--to", "huggingface", "--vocab-size", size]
        assert run(*command) == 0
        assert (back / "tokenizer.json").exists()
        _, state = restored(to_midstream(back, continued / name / f"again-{rate}"), size)
        logits[rate] = logits_of(state, np.load(HUGGING_FACE / name / "tokens.npy"))[..., :size]
    theirs = np.load(HUGGING_FACE / name / "logits.npy")
    assert (
        np.abs(logits["0"] - theirs).max() <= TOLERANCE
    )  # transformers' own, after twelve updates that change nothing
    assert np.abs(logits["1e-2"] - theirs).max() > 0.01


def test_export_takes_no_checkpoint_of_steps_that_were_given_up(tmp_path: Path) -> None:
    """The run was migrated at step 40 of its first epoch: what a lost host wrote after it is of another history."""
    paths = RunPaths(str(tmp_path), "r")
    for step, attempt, epoch in ((40, 1, 1), (60, 1, 1), (50, 2, 2)):
        name = checkpoint_name(step, attempt)
        Path(paths.checkpoint(name)).mkdir(parents=True)
        manifest = Manifest(FORMAT, FORMAT_VERSION, "r", step, attempt, epoch, 1.0, "0" * 64, [], [])
        manifest.write(os.path.join(paths.checkpoint(name), MANIFEST))
    for place in (paths.dir, paths.checkpoints):
        assert newest_checkpoint(place) == paths.checkpoint("step-60-a001")  # it was not migrated
    first_fence("here").sealed(2, "there", 40).write(paths.fence)
    for place in (paths.dir, paths.checkpoints):
        assert newest_checkpoint(place) == paths.checkpoint("step-50-a002")


def test_settings_that_are_not_carried_over_are_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    to_midstream(HUGGING_FACE / "gpt2", tmp_path / "model")
    note = "resid_pdrop 0.1, attn_pdrop 0.1: not carried over"
    assert note in capsys.readouterr().err
    assert note in (tmp_path / "model" / "train.yaml").read_text()
    shutil.copytree(HUGGING_FACE / "llama2", tmp_path / "checkpoint-5")  # of transformers' Trainer
    for name in ("optimizer.pt", "trainer_state.json"):
        (tmp_path / "checkpoint-5" / name).touch()
    assert run(tmp_path / "checkpoint-5", tmp_path / "trained") == 1
    assert "lacks scheduler.pt of a checkpoint of Trainer" in capsys.readouterr().err
    assert run(tmp_path / "checkpoint-5", tmp_path / "trained", "--without-optimizer") == 0
    assert "optimizer.pt, trainer_state.json: not imported: the model begins at step 0" in capsys.readouterr().err
    to_midstream(HUGGING_FACE / "llama2", tmp_path / "llama")
    assert "not carried over" not in capsys.readouterr().err


@pytest.mark.parametrize(
    ("name", "change", "expected"),
    [
        ("llama2", {"quantization_config": {"quant_method": "fp8"}}, "quantization_config"),
        ("llama2", {"rope_parameters": {"rope_type": "default", "partial_rotary_factor": 0.5}}, "partial_rotary"),
    ],
)
def test_settings_of_another_model_are_refused(
    name: str, change: dict[str, Any], expected: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    shutil.copytree(HUGGING_FACE / name, tmp_path / "model")
    described = json.loads((tmp_path / "model" / "config.json").read_text())
    (tmp_path / "model" / "config.json").write_text(json.dumps({**described, **change}))
    assert run(tmp_path / "model", tmp_path / "out") == 1
    assert expected in capsys.readouterr().err
