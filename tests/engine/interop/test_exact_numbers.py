"""Imports keep every number: types come from the arrays, and nothing is rounded without the flag.

The archives were made with Levanter under ``mp: bfloat16`` by tests/fixtures/levanter/generate_half.py.
"""

from __future__ import annotations

import dataclasses
import json
import tarfile
from pathlib import Path
from typing import Any

import jax
import ml_dtypes
import numpy as np
import pytest

from midstream_engine.checkpoint.array_names import flatten
from midstream_engine.checkpoint.loading.checkpoint_records import read_manifest
from midstream_engine.checkpoint.loading.restore import restore_checkpoint
from midstream_engine.checkpoint.packed_arrays import pack, unpack
from midstream_engine.computation.setup import make_plan
from midstream_engine.config import AdamConfig
from midstream_engine.config.load import load_config
from midstream_engine.convert import main
from midstream_engine.interop.errors import ConversionError
from midstream_engine.interop.exact_numbers import check_finite, checked, common_dtype
from midstream_engine.interop.foreign_run import ForeignRun
from midstream_engine.interop.levanter.arrays import open_arrays
from midstream_engine.interop.levanter.importer import open_levanter
from midstream_engine.interop.neox.importer import open_neox
from midstream_engine.interop.parameter_cast import with_parameters
from support.imports import imported_runs
from support.paths import FIXTURES

pytestmark = [
    pytest.mark.drawn,
    # haliax 1.4 uses names that jax 0.10 deprecates.
    pytest.mark.filterwarnings("ignore:jax.core.is_constant_dim is deprecated:DeprecationWarning"),
    pytest.mark.filterwarnings("ignore:jax.interpreters.pxla.thread_resources is deprecated:DeprecationWarning"),
]
BFLOAT16, FLOAT16, FLOAT32 = np.dtype(ml_dtypes.bfloat16), np.dtype(np.float16), np.dtype(np.float32)
PLACES = {"model/": "model/", "optimizer/adam/mu/": "opt_state/inner_state/1/mu/",
          "optimizer/adam/nu/": "opt_state/inner_state/1/nu/"}  # fmt: skip


@pytest.fixture(scope="module", params=["gpt2", "llama"])
def source(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of Levanter under ``mp: bfloat16``."""
    folder = tmp_path_factory.mktemp("levanter")
    with tarfile.open(FIXTURES / "levanter" / f"{request.param}-bf16.tar.gz") as archive:
        archive.extractall(folder, filter="data")
    return folder / f"{request.param}-bf16"


def numbers(arrays: dict[str, np.ndarray], prefix: str) -> np.ndarray:
    """The numbers of all arrays below ``prefix``, sorted: the same in any layout."""
    return np.sort(np.concatenate([array.ravel() for name, array in arrays.items() if name.startswith(prefix)]))


def of_levanter(source: Path) -> dict[str, np.ndarray]:
    return {name: stored.read() for name, stored in open_arrays(str(source / "step-3"))[1].items()}


def of_run(adopted: ForeignRun) -> dict[str, np.ndarray]:
    return {array.name: array.value() for array in adopted.arrays}


def test_every_number_and_type_is_that_of_the_source(source: Path) -> None:
    adopted = open_levanter(str(source))
    assert adopted.mapping["trainer"]["mp"] == "p=float32,c=bfloat16"
    theirs, ours = of_levanter(source), of_run(adopted)
    for prefix, place in PLACES.items():
        expected, found = numbers(theirs, place), numbers(ours, prefix)
        assert found.dtype == expected.dtype == (BFLOAT16 if prefix.endswith("nu/") else FLOAT32)
        assert found.tobytes() == expected.tobytes()
    assert any("Levanter's updates made them float32" in note for note in adopted.notes)


def test_next_updates_have_levanters_losses(source: Path) -> None:
    expected = json.loads((source / "expected.json").read_text())
    losses = imported_runs.continued(open_levanter(str(source)), expected["tokens"])
    # In bfloat16 (2^-8) the order of a processor's additions shows: 7e-4 between two kinds of processors.
    np.testing.assert_allclose(losses, expected["losses"], rtol=2e-3)


@pytest.mark.parametrize("dtype", [BFLOAT16, FLOAT16], ids=str)
def test_imported_run_trains_in_half_precision(dtype: np.dtype, source: Path) -> None:
    adopted, before = open_levanter(str(source)), of_run(open_levanter(str(source)))
    policy = {"mp": f"p=f32,c={dtype.name}"}
    adopted = dataclasses.replace(adopted, mapping=adopted.mapping | {"trainer": adopted.mapping["trainer"] | policy})
    adopted = with_parameters(adopted, dtype.name)
    assert adopted.mapping["trainer"]["mp"] == dtype.name
    for name, array in of_run(adopted).items():
        expected = before[name].astype(dtype) if name.startswith("model/") else before[name]
        assert (array.dtype, array.tobytes()) == (expected.dtype, expected.tobytes()), name
    expected = json.loads((source / "expected.json").read_text())
    losses = imported_runs.continued(adopted, expected["tokens"])
    np.testing.assert_allclose(losses, expected["losses"], rtol=1e-2)


def test_converted_run_is_restored_with_its_types(source: Path, tmp_path: Path) -> None:
    assert main([str(source), str(tmp_path / "out"), "--cast-parameters", "bfloat16"]) == 0
    config = load_config(["--config_path", str(tmp_path / "out" / "train.yaml")]).config
    assert isinstance(config.optimizer, AdamConfig)
    assert (config.trainer.mp, config.optimizer.mu_dtype, config.optimizer.nu_dtype) == (
        "bfloat16", "float32", "bfloat16",
    )  # fmt: skip
    plan = make_plan(config, jax.devices()[:2], step=3)
    restored = restore_checkpoint(str(tmp_path / "out" / "checkpoints" / "step-3-a000"), plan.template, plan.shardings)
    expected = of_run(with_parameters(open_levanter(str(source)), "bfloat16"))
    found = {name: np.asarray(array.value) for name, array in flatten(restored.tree).items()}
    assert {name: array.tobytes() for name, array in found.items()} == {
        name: array.tobytes() for name, array in expected.items()
    }


def copy_of(source: Path, target: Path, dtype: Any) -> Path:
    """A copy of a Hugging Face model with its tensors in ``dtype``."""
    target.mkdir()
    for path in source.iterdir():
        if path.suffix == ".json":
            (target / path.name).write_bytes(path.read_bytes())
    tensors = unpack(memoryview((source / "model.safetensors").read_bytes()))
    (target / "model.safetensors").write_bytes(pack({name: one.astype(dtype) for name, one in tensors.items()}))
    return target


def as_run(source: Path, folder: Path, *flags: str, cast: str | None = None) -> int:
    (folder / "text.txt").write_text(" ".join(str(7 * number % 63) for number in range(3000)))
    tokenizer = str(FIXTURES / "levanter" / "data" / "tokenizer")
    words = [str(source), str(folder / "b"), "--run-id", "tiny", "--root", str(folder / "root")]
    words += ["--cast-parameters", cast] if cast else []
    return main([
        *words, "--", "--data.train_urls", f"[{folder}/text.txt]", "--data.tokenizer", tokenizer, "--data.eos_token",
        "<end>", "--trainer.train_batch_size", "4", *flags,
    ])  # fmt: skip


def types_of(checkpoint: Path) -> set[str]:
    return {entry.dtype for entry in read_manifest(str(checkpoint)).array_entries if entry.name.startswith("model/")}


def test_model_is_not_rounded_without_the_flag(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    model = FIXTURES / "hf" / "llama3-tied"
    assert as_run(model, tmp_path, "--trainer.mp", "bfloat16") == 1
    message = capsys.readouterr().err.splitlines()[-1]
    assert "would be rounded to bfloat16 (hint: --cast-parameters bfloat16" in message
    assert message.startswith("midstream: model/")
    assert {path.name for path in tmp_path.iterdir()} == {"text.txt"}
    assert as_run(model, tmp_path, "--trainer.mp", "p=f32,c=bf16", cast="bfloat16") == 0
    (checkpoint,) = (tmp_path / "root" / "runs" / "tiny" / "checkpoints").iterdir()
    assert types_of(checkpoint) == {"bfloat16"}
    assert "mp: bfloat16" in (tmp_path / "root" / "runs" / "tiny" / "run.yaml").read_text()


def test_model_that_fits_the_type_is_imported_in_it(tmp_path: Path) -> None:
    model = copy_of(FIXTURES / "hf" / "llama3-tied", tmp_path / "narrow", BFLOAT16)
    assert as_run(model, tmp_path, "--trainer.mp", "bfloat16") == 0
    (checkpoint,) = (tmp_path / "root" / "runs" / "tiny" / "checkpoints").iterdir()
    assert types_of(checkpoint) == {"bfloat16"}


def test_model_with_wider_numbers_needs_the_flag(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    model = copy_of(FIXTURES / "hf" / "llama3-tied", tmp_path / "wide", np.float64)
    tensors = unpack(memoryview((model / "model.safetensors").read_bytes()))
    (model / "model.safetensors").write_bytes(pack({name: one * (1 + 1e-12) for name, one in tensors.items()}))
    assert main([str(model), str(tmp_path / "out")]) == 1
    assert "numbers are float64 and would be rounded to float32" in capsys.readouterr().err
    assert main([str(model), str(tmp_path / "out"), "--cast-parameters", "float16"]) == 0
    assert types_of(tmp_path / "out" / "checkpoints" / "step-0-a000") == {"float16"}
    assert "mp: p=float16,c=float32" in (tmp_path / "out" / "train.yaml").read_text()


def test_model_that_is_not_finite_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    model = copy_of(FIXTURES / "hf" / "llama3-tied", tmp_path / "nan", np.float32)
    tensors = {name: one.copy() for name, one in unpack(memoryview((model / "model.safetensors").read_bytes())).items()}
    tensors["model.norm.weight"][3] = np.nan
    (model / "model.safetensors").write_bytes(pack(tensors))
    assert main([str(model), str(tmp_path / "out")]) == 1
    assert "model/norm/weight has NaN: a state that is not finite is not imported" in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


def test_neox_masters_are_rounded_on_demand_only() -> None:
    adopted = open_neox(str(FIXTURES / "neox" / "sequential-bf16-z0-dp1"))
    before, after = of_run(adopted), of_run(with_parameters(adopted, "bfloat16"))
    for name, array in before.items():
        assert array.dtype.itemsize == 4
        expected = array.astype(BFLOAT16) if name.startswith("model/") else array
        assert (after[name].dtype, after[name].tobytes()) == (expected.dtype, expected.tobytes()), name


def test_cast_keeps_numbers_or_counts_those_it_would_change() -> None:
    exact = np.array([[1.0, -2.5], [0.0, 3e38]], np.float32)
    np.testing.assert_array_equal(checked("model/w", exact[:1], BFLOAT16), exact[:1].astype(BFLOAT16))
    assert checked("model/w", exact, FLOAT32) is exact
    with pytest.raises(ConversionError, match=r"^model/w: 1 of 4 numbers are float32 and would be rounded to float16"):
        checked("model/w", exact, FLOAT16)
    with pytest.raises(ConversionError, match="w as float16 has infinity"):
        checked("w", exact, FLOAT16, rounds=True)
    third = np.full((3, 2), 1 / 3, np.float32).T
    with pytest.raises(ConversionError, match="6 of 6 numbers"):
        checked("optimizer/adam/mu/w", third, BFLOAT16)
    np.testing.assert_array_equal(checked("w", third, BFLOAT16, rounds=True), third.astype(BFLOAT16))


@pytest.mark.parametrize("dtype", [BFLOAT16, FLOAT16, FLOAT32, np.dtype(np.float64)], ids=str)
def test_what_is_not_finite_is_named(dtype: np.dtype) -> None:
    largest = np.full((2, 50), ml_dtypes.finfo(dtype).max, dtype)
    check_finite("w", largest)  # its sum is infinite
    for value, word in ((np.nan, "NaN"), (np.inf, "infinity"), (-np.inf, "infinity")):
        bad = largest.copy()
        bad[1, 7] = value
        with pytest.raises(ConversionError, match=f"^w has {word}:"):
            check_finite("w", bad.T)


def test_common_type_has_every_number() -> None:
    assert common_dtype({"bfloat16"}) == "bfloat16"
    assert common_dtype({"bfloat16", "float16"}) == common_dtype({"float16", "float32"}) == "float32"
    assert common_dtype({"float64"}) == "float32"
