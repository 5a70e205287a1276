"""Import of GPT-NeoX runs: all numbers and the next losses equal DeepSpeed's.

The fixtures were made with deepspeed and torch by tests/fixtures/neox/generate.py, on a CPU.
"""

from __future__ import annotations

import hashlib
import itertools
import json
import os
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml

from midstream_core.records import TRAIN
from midstream_engine.checkpoint.loading.verify import verify_checkpoint
from midstream_engine.config.load import load_config
from midstream_engine.convert import main
from midstream_engine.interop.archive import TorchFile
from midstream_engine.interop.calls import Storage, Tensor
from midstream_engine.interop.neox.architecture import Choices
from midstream_engine.interop.neox.directory import find
from midstream_engine.interop.neox.importer import open_neox
from midstream_engine.interop.neox.partitions import KINDS, ParameterRow
from midstream_engine.interop.neox.reader import Read, read
from midstream_engine.interop.neox.tensors import key_of
from support.imports import imported_runs, torch_files
from support.imports.neox_checkpoints import NEOX, PRESENT, choices_of, copy_of, filled, plain, rewrite

pytestmark = [
    pytest.mark.drawn,
    # haliax 1.4 uses names that jax 0.10 deprecates.
    pytest.mark.filterwarnings("ignore:jax.core.is_constant_dim is deprecated:DeprecationWarning"),
    pytest.mark.filterwarnings("ignore:jax.interpreters.pxla.thread_resources is deprecated:DeprecationWarning"),
]
NAMES = sorted(path.name for path in NEOX.iterdir() if (path / "latest").exists())


def expected_of(name: str) -> dict[str, Any]:
    return json.loads((NEOX / name / "expected.json").read_text())


def digest_of(array: np.ndarray) -> str:
    return hashlib.sha256(np.ascontiguousarray(array, "<f4").tobytes()).hexdigest()


def digests_of(found: Read) -> dict[tuple[int, str, str, int], str]:
    """Return digests by layer, name, kind and tensor-parallel rank."""
    return {
        (*key, kind, rank): digest_of(rows[kind].read())
        for key, parameter in found.parameters.items()
        for rank, rows in parameter.rows.items()
        for kind in KINDS
    }


@pytest.mark.parametrize("name", NAMES)
def test_masters_and_moments_equal_deepspeeds(name: str) -> None:
    found, about = read(find(str(NEOX / name))), expected_of(name)
    expected = {}
    for key, digest in about["arrays"].items():
        parameter, kind, *rank = key.split("|")
        expected[*key_of(parameter), kind, int(rank[0]) if rank else 0] = digest
    assert digests_of(found) == expected
    skipped = about.get("skipped", 0)
    assert f"global_step{found.iteration}" == (NEOX / name / "latest").read_text().strip()
    assert found.skipped == skipped
    assert found.steps == {found.iteration - skipped + (found.writer == "FP16_Optimizer")}


@pytest.mark.parametrize("name", [name for name in NAMES if "fp32" in name])
def test_next_updates_have_deepspeeds_losses(name: str) -> None:
    """In float32, in DeepSpeed and here."""
    losses, expected = continued(NEOX / name, expected_of(name)["tokens"]), expected_of(name)["losses"]
    np.testing.assert_allclose(losses[0], expected[0], rtol=1e-6)
    # With a parallel residual each tensor-parallel rank trains a bias of its own: their sum moves faster there.
    np.testing.assert_allclose(losses, expected, rtol=2e-3 if "pythia" in name and "tp" in name else 2e-6)


@pytest.mark.parametrize("name", ["pythia-bf16-z1-dp3", "llama-bf16-z1-tp2-pp2-dp2", "sequential-fp16-z1-tp2-overflow"])
def test_half_precision_continues_within_tolerance(name: str) -> None:
    np.testing.assert_allclose(
        continued(NEOX / name, expected_of(name)["tokens"]), expected_of(name)["losses"], rtol=2e-3
    )


def continued(path: Path, batches: list[Any]) -> list[float]:
    """Return the losses of the next updates of an imported run."""
    return imported_runs.continued(open_neox(str(path), choices_of(path)), batches)


@pytest.mark.parametrize("cuts", [[], [7], [6], [3], [1, 2, 3], [5, 7, 20], [12]])
def test_rows_split_over_files_are_joined(cuts: list[int]) -> None:
    """An array of shape [7, 3] is split over ranks, inside a row or between rows."""
    numbers = np.arange(21, dtype=np.float32)
    parts = tuple((held(numbers[start:stop]), 0, stop - start) for start, stop in itertools.pairwise([0, *cuts, 21]))
    row = ParameterRow(parts, (7, 3))
    np.testing.assert_array_equal(np.concatenate(list(row.blocks(row.load()))), row.read())
    np.testing.assert_array_equal(row.read(), numbers.reshape(7, 3))


def held(numbers: np.ndarray) -> Tensor:
    storage = Storage()
    storage.dtype, storage.size = numbers.dtype, len(numbers)
    storage.stretch = lambda start, stop: numbers[start:stop]
    return Tensor(storage, 0, (len(numbers),), (1,))


def sliced(source: Path, target: Path, ranks: int, drift: float = 0.0) -> None:
    """Write the checkpoint ``source`` as tensor-parallel ranks would have saved it.

    ``source`` has no pipeline and one data-parallel rank. ``drift`` is added to a replicated norm of the last rank.
    """
    folder = find(str(source)).directory
    shutil.copytree(Path(folder) / "configs", target / "global_step3" / "configs")
    (target / "latest").write_text("global_step3")
    model = plain(TorchFile(f"{folder}/mp_rank_00_model_states.pt").value)
    optimizer = plain(TorchFile(f"{folder}/bf16_zero_pp_rank_0_mp_rank_00_optim_states.pt").value)
    held = optimizer["optimizer_state_dict"]
    for rank in range(ranks):
        shapes, rows = [], {kind: [] for kind in KINDS}
        weights: dict[str, Any] = {}
        for group, named in enumerate(model["param_shapes"]):
            complete = {
                "fp32": held["single_partition_of_fp32_groups"][group],
                **{kind: held["base_optimizer_state"]["state"][group][kind] for kind in KINDS[1:]},
            }
            offset, parts = 0, {kind: [] for kind in KINDS}
            mine = {}
            for name, shape in named.items():
                size = int(np.prod(shape))
                for kind in KINDS:
                    part = slice_of(name, complete[kind][offset : offset + size].reshape(shape), rank, ranks)
                    if drift and rank == ranks - 1 and "input_layernorm" in name and kind == "fp32":
                        part = part + np.float32(drift)
                    parts[kind].append(part.reshape(-1))
                    if kind == "fp32":
                        mine[name] = part.shape
                        weights[name] = part.astype(model["module"][name].dtype)
                offset += size
            shapes.append(mine)
            for kind in KINDS:
                rows[kind].append(np.concatenate([*parts[kind], np.zeros(1, np.float32)]))  # and padding
        state = {
            "single_partition_of_fp32_groups": rows["fp32"],
            "base_optimizer_state": {
                "state": {
                    group: {"exp_avg": rows["exp_avg"][group], "exp_avg_sq": rows["exp_avg_sq"][group], "step": 3}
                    for group in range(2)
                },
                "param_groups": [{"weight_decay": 0.1, "betas": (0.9, 0.95), "eps": 1e-8}, {"weight_decay": 0.0}],
            },
        }
        folder_out = target / "global_step3"
        common = {key: value for key, value in model.items() if key in ("iteration", "lr_scheduler", "dp_world_size")}
        torch_files.save(
            folder_out / f"mp_rank_{rank:02d}_model_states.pt", {**common, "module": weights, "param_shapes": shapes}
        )
        torch_files.save(
            folder_out / f"bf16_zero_pp_rank_0_mp_rank_{rank:02d}_optim_states.pt", {"optimizer_state_dict": state}
        )


def slice_of(name: str, array: np.ndarray, rank: int, ranks: int) -> np.ndarray:
    """Return a rank's part by Megatron's rules (more of them: test_neox_layouts.py)."""
    if any(part in name for part in ("word_embeddings", "final_linear", "query_key_value", "linear1", "h_to_4h")):
        return np.split(array, ranks)[rank]
    if name.endswith(("attention.dense.weight", "linear2.weight", "4h_to_h.weight")):
        return np.split(array, ranks, 1)[rank]
    return array


@pytest.mark.parametrize("ranks", [2, 4])
def test_tensor_parallel_ranks_are_merged(ranks: int, tmp_path: Path) -> None:
    source = NEOX / "sequential-bf16-z0-dp1"
    sliced(source, tmp_path / "tp", ranks)
    single, merged = filled(source), filled(tmp_path / "tp")
    assert single.keys() == merged.keys()
    for name, array in single.items():
        np.testing.assert_array_equal(merged[name], array, name)


def test_drifted_ranks_are_averaged_and_reported(tmp_path: Path) -> None:
    sliced(NEOX / "sequential-bf16-z0-dp1", tmp_path / "tp", 2, drift=0.5)
    assert run(tmp_path / "tp", tmp_path / "out", "--without-data") == 0
    assert "differed in parameters" in (tmp_path / "out" / "train.yaml").read_text()
    assert "input_layernorm" in (tmp_path / "out" / "train.yaml").read_text()


def run(*arguments: str | Path) -> int:
    return main([str(argument) for argument in arguments])


def test_load_directory_is_recognized_and_continues(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    present = ["--gqa-layout", "blocked", "--rms-epsilon", "inside"]
    assert run(NEOX / "llama-bf16-z1-dp5", tmp_path / "out", "--without-data", *present) == 0
    printed = capsys.readouterr()
    assert "step 3" in printed.out
    assert "rng" in printed.err or "random generators" in printed.err
    config = load_config(["--config_path", str(tmp_path / "out" / "train.yaml")]).config
    assert config.trainer.load_checkpoint_path == str(tmp_path / "out")
    assert config.optimizer.learning_rate == 3e-3
    assert config.trainer.num_train_steps == 20
    train = json.loads((tmp_path / "out" / "checkpoints" / "step-3-a000" / "train.json").read_text())
    assert train["state"]["next_sample"] == 90
    from midstream_engine.checkpoint.loading.verify import verify_checkpoint

    assert verify_checkpoint(str(tmp_path / "out" / "checkpoints" / "step-3-a000")).sound
    assert sorted(os.listdir(tmp_path)) == ["out"]


def test_deepspeeds_record_of_clipping_goes_first(tmp_path: Path) -> None:
    """NeoX hands over only what differs from its defaults; DeepSpeed's default is not to clip."""
    adopted = open_neox(str(NEOX / "sequential-fp32-z1-pp1-unclipped"))
    assert adopted.mapping["optimizer"]["max_grad_norm"] is None
    assert [note for note in adopted.notes if note.startswith("gradient-clipping is 1, but") and "did not clip" in note]
    adopted = open_neox(str(NEOX / "sequential-fp32-z0-dp1"))  # without ZeRO the record is DeepSpeed's configuration
    assert adopted.mapping["optimizer"]["max_grad_norm"] == 1
    assert not [note for note in adopted.notes if "gradient-clipping" in note]
    model = copy_of("sequential-fp32-z0-dp1", tmp_path / "a") / "mp_rank_00_model_states.pt"
    rewrite(model, lambda value: value["ds_config"].pop("gradient_clipping"))
    assert open_neox(str(tmp_path / "a")).mapping["optimizer"]["max_grad_norm"] is None
    rewrite(model, lambda value: value.pop("ds_config"))
    assert open_neox(str(tmp_path / "a")).mapping["optimizer"]["max_grad_norm"] == 1


def test_tokenizer_files_are_copied_or_reported_missing(tmp_path: Path) -> None:
    folder = copy_of("sequential-bf16-z0-dp1", tmp_path / "a")
    (path,) = (folder / "configs").iterdir()
    names = {
        "tokenizer_type": "GPT2BPETokenizer",
        "vocab-file": "/elsewhere/gpt2-vocab.json",
        "merge-file": "/no/x.txt",
    }
    path.write_text(yaml.safe_dump(yaml.safe_load(path.read_text()) | names))
    (folder / "gpt2-vocab.json").write_text("{}")
    adopted = open_neox(str(folder))
    assert adopted.tokenizer == {"vocab.json": str(folder / "gpt2-vocab.json")}
    assert [note for note in adopted.notes if "merge-file: /no/x.txt is not here" in note]


def test_killed_import_continues(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Written arrays are not written again; the result is that of one import."""
    from midstream_engine.checkpoint import chunk_grid
    from midstream_engine.interop import import_record, import_run, streamed_import

    monkeypatch.setattr(chunk_grid, "PACK_BELOW", 64)
    monkeypatch.setattr(streamed_import, "SYNC_BYTES", 0)
    adopted = open_neox(str(NEOX / "sequential-fp32-z0-dp1"))
    options = import_run.ImportOptions(without_data=True)
    complete = import_run.import_run(adopted, str(tmp_path / "complete"), options)
    written: list[str] = []

    def stop(name: str, *_: int) -> None:
        written.append(name)
        if len(written) == 7:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        import_run.import_run(adopted, str(tmp_path / "parts"), options, stop)
    record = tmp_path / "parts.partial" / "checkpoints" / "step-3-a000" / import_record.RECORD
    recorded = {json.loads(line).get("array") for line in record.read_text().splitlines()} - {None}
    assert recorded
    again: list[str] = []
    made = import_run.import_run(adopted, str(tmp_path / "parts"), options, lambda name, *_: again.append(name))
    assert not set(again) & recorded
    assert made.manifest.arrays == complete.manifest.arrays
    assert sorted(entry["path"] for entry in made.manifest.objects) == sorted(
        entry["path"] for entry in complete.manifest.objects
    )


def test_killed_import_starts_again_with_other_options(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Names, shapes and types of the arrays are the same, and the rows of query, key and value are others."""
    from midstream_engine.checkpoint import chunk_grid
    from midstream_engine.interop import import_run, streamed_import

    monkeypatch.setattr(chunk_grid, "PACK_BELOW", 64)
    monkeypatch.setattr(streamed_import, "SYNC_BYTES", 0)
    source, options = str(NEOX / "llama-fp32-z1-dp3"), import_run.ImportOptions(without_data=True)
    interleaved, blocked = (
        open_neox(source, Choices(layout, "inside")) for layout in ("interleaved", "blocked")
    )  # fmt: skip
    complete = import_run.import_run(blocked, str(tmp_path / "complete"), options).manifest
    written: list[str] = []

    def stop(name: str, *_: int) -> None:
        written.append(name)
        if any("q_proj" in each for each in written) and not any(
            part in name for part in ("q_proj", "k_proj", "v_proj")
        ):
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        import_run.import_run(interleaved, str(tmp_path / "parts"), options, stop)
    made = import_run.import_run(blocked, str(tmp_path / "parts"), options).manifest
    assert made.arrays == complete.arrays
    assert made.root_digest == complete.root_digest


@pytest.mark.parametrize("name", ["llama-bf16-z1-dp5", "pythia-fp16-z1-dp2", "sequential-fp32-z0-dp1"])
def test_import_in_small_steps_equals_one_step(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With single planes, direct reads of small ranges, and chunks of many blocks."""
    from midstream_engine.checkpoint import chunk_grid
    from midstream_engine.interop import archive, chunk_writer, import_run, streamed_import

    for limit, size in (("PACK_BELOW", 64), ("MIN_CHUNK", 256), ("COMFORTABLE", 512), ("MAX_CHUNK", 2048)):
        monkeypatch.setattr(chunk_grid, limit, size)
    options = import_run.ImportOptions(without_data=True)
    source = str(NEOX / name)
    complete = import_run.import_run(open_neox(source, PRESENT), str(tmp_path / "complete"), options).manifest
    monkeypatch.setattr(archive, "SMALL", 0)
    monkeypatch.setattr(streamed_import, "LEAST", 4000)
    monkeypatch.setattr(chunk_writer, "BLOCK", 512)
    parts = import_run.import_run(open_neox(source, PRESENT), str(tmp_path / "parts"), options).manifest
    assert parts.root_digest == complete.root_digest
    assert [entry for entry in parts.objects if entry["path"] != TRAIN] == [
        entry for entry in complete.objects if entry["path"] != TRAIN
    ]
    assert verify_checkpoint(str(tmp_path / "parts" / "checkpoints" / "step-3-a000")).sound
