"""Layouts of GPT-NeoX runs without fixtures, made from a checkpoint of DeepSpeed.

Tensor-parallel ranks follow Megatron's rules: gated products and grouped keys are split within each of their matrices.
Pipeline stages include a tied embedding that the last stage has, too.
"""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml

from midstream_engine.interop.errors import ConversionError
from midstream_engine.interop.neox.architecture import Choices
from midstream_engine.interop.neox.directory import find
from midstream_engine.interop.neox.importer import open_neox
from midstream_engine.interop.neox.partitions import KINDS
from midstream_engine.interop.neox.reader import Read, read
from midstream_engine.interop.neox.tensors import Key
from support.imports import torch_files
from support.paths import FIXTURES

NEOX = FIXTURES / "neox"
STEP, DATA = 3, 2
PRESENT = Choices(gqa_layout="blocked", rms_epsilon="inside")
HEADS, GROUPS, SIZE = 4, 2, 4  # of the fixtures shaped like Llama
HEAD, EMBEDDING = "final_linear.weight", "word_embeddings.weight"
Arrays = dict[str, np.ndarray]  # fp32, exp_avg, exp_avg_sq and the weight itself


def complete_of(found: Read) -> dict[Key, Arrays]:
    """Return every parameter of a checkpoint without tensor parallelism."""
    return {
        key: {**{kind: parameter.rows[0][kind].read() for kind in KINDS}, "weight": parameter.weights[0].read()}
        for key, parameter in found.parameters.items()
    }


def part_of(key: Key, array: np.ndarray, rank: int, ranks: int, gated: bool) -> np.ndarray:
    """Return the part of a parameter that a tensor-parallel rank has."""
    name = key[1]
    if "query_key_value" in name and gated:
        matrices = np.split(array, [HEADS * SIZE, (HEADS + GROUPS) * SIZE])
        return np.concatenate([np.split(one, ranks)[rank] for one in matrices])
    if name.startswith("mlp.linear1") and gated:
        return np.concatenate([np.split(one, ranks)[rank] for one in np.split(array, 2)])
    if name in (HEAD, EMBEDDING) or "query_key_value" in name or name.startswith(("mlp.linear1", "mlp.dense_h_to_4h")):
        return np.split(array, ranks)[rank]
    if name in ("attention.dense.weight", "mlp.linear2.weight", "mlp.dense_4h_to_h.weight"):
        return np.split(array, ranks, 1)[rank]
    return array


def write(source: Path, target: Path, *, tensor: int = 1, stages: int = 0, tied: bool = False) -> None:
    """Write the checkpoint ``source`` in this layout; no pipeline if ``stages`` is 0."""
    found = read(find(str(source)))
    configs = source / f"global_step{STEP}" / "configs"
    folder = target / f"global_step{STEP}"
    shutil.copytree(configs, folder / "configs")
    (target / "latest").write_text(folder.name)
    (path,) = (folder / "configs").iterdir()
    config = {key.replace("-", "_"): value for key, value in yaml.safe_load(path.read_text()).items()}
    gated = config["activation"] == "swiglu"
    if tied:
        config["no_weight_tying"] = False
    path.write_text(yaml.safe_dump(config))
    arrays = {key: value for key, value in sorted(complete_of(found).items()) if not (tied and key[1] == HEAD)}
    layers = max(layer for layer, name in arrays if name.startswith("attention")) - 1
    for rank in range(tensor * max(stages, 1)):
        stage, slot = divmod(rank, tensor)
        mine = {
            key: {kind: part_of(key, value, slot, tensor, gated) for kind, value in arrays[key].items()}
            for key in arrays
            if stages < 2 or (key[0] - 2 < layers // 2) == (stage == 0)
        }
        if tied and stages and stage == stages - 1:
            mine[0, EMBEDDING] = mine.get((0, EMBEDDING)) or {
                kind: part_of((0, EMBEDDING), value, slot, tensor, gated)
                for kind, value in arrays[0, EMBEDDING].items()
            }
        save(folder, rank, slot, mine, found, stages > 0, tied)


def name_of(key: Key, pipeline: bool, tied: bool) -> str:
    if pipeline and tied and key[1] == EMBEDDING:
        return f"tied_modules.embed.{EMBEDDING}"
    return f"{key[0]}.{key[1]}" if pipeline else f"sequential.{key[0]}.{key[1]}"


def save(folder: Path, rank: int, slot: int, mine: dict[Key, Arrays], found: Read, pipeline: bool, tied: bool) -> None:
    plain = {key for key in mine if key[1].endswith(".bias") or "norm" in key[1]}
    groups = [[key for key in mine if key not in plain], sorted(plain)]
    states: list[dict[str, Any]] = [{kind: [] for kind in KINDS} for _ in range(DATA)]
    for group in groups:
        for kind in KINDS:
            row = np.concatenate([mine[key][kind].reshape(-1) for key in group])
            row = np.pad(row, (0, -len(row) % (2 * DATA)))
            for number, part in enumerate(np.split(row, DATA)):
                states[number][kind].append(part)
    for number, state in enumerate(states):
        held = {
            group: {"exp_avg": state["exp_avg"][group], "exp_avg_sq": state["exp_avg_sq"][group], "step": STEP}
            for group in range(2)
        }
        hyper = [{"weight_decay": decay, "betas": (0.9, 0.95), "eps": 1e-8} for decay in (0.1, 0.0)]
        optimizer = {
            "single_partition_of_fp32_groups": state["fp32"],
            "base_optimizer_state": {"state": held, "param_groups": hyper},
        }
        path = folder / f"bf16_zero_pp_rank_{number}_mp_rank_{rank:02d}_optim_states.pt"
        torch_files.save(path, {"optimizer_state_dict": optimizer})
    names = {key: name_of(key, pipeline, tied) for key in mine}
    module = None if pipeline else {names[key]: value["weight"] for key, value in mine.items()}
    state = {
        "module": module, "iteration": STEP, "dp_world_size": DATA,
        "lr_scheduler": found.state["lr_scheduler"],
        "param_shapes": [{names[key]: mine[key]["fp32"].shape for key in group} for group in groups],
    }  # fmt: skip
    torch_files.save(folder / f"mp_rank_{rank:02d}_model_states.pt", state)
    if pipeline:
        for layer in {key[0] for key in mine}:
            held = {key[1]: value["weight"] for key, value in mine.items() if key[0] == layer}
            torch_files.save(folder / f"layer_{layer:02d}-model_{slot:02d}-model_states.pt", held)


def contents(path: Path) -> dict[str, np.ndarray]:
    """Return every array of the imported checkpoint, verified."""
    adopted = open_neox(str(path), PRESENT)
    found = {array.name: array.value() for array in adopted.arrays}
    adopted.verify()
    return found


def assert_same(first: dict[str, np.ndarray], second: dict[str, np.ndarray]) -> None:
    assert first.keys() == second.keys()
    for name, array in first.items():
        np.testing.assert_array_equal(second[name], array, name)


@pytest.mark.parametrize("stages", [0, 1, 2])
@pytest.mark.parametrize("name", ["llama-bf16-z1-dp5", "sequential-bf16-z0-dp1"])
def test_tensor_parallel_ranks_and_stages_are_merged(name: str, stages: int, tmp_path: Path) -> None:
    """With SwiGLU, grouped queries and MLP biases; with LayerNorm and all biases."""
    write(NEOX / name, tmp_path / "x", tensor=2, stages=stages)
    assert_same(contents(NEOX / name), contents(tmp_path / "x"))


@pytest.mark.parametrize("tensor", [1, 2])
@pytest.mark.parametrize("name", ["llama-bf16-z1-dp5", "sequential-bf16-z0-dp1"])
def test_tied_embedding_of_two_stages_is_read_once(name: str, tensor: int, tmp_path: Path) -> None:
    write(NEOX / name, tmp_path / "complete", tied=True)
    complete = contents(tmp_path / "complete")
    assert not any("head" in array for array in complete)
    for stages in (1, 2):
        write(NEOX / name, tmp_path / str(stages), tensor=tensor, stages=stages, tied=True)
        assert_same(complete, contents(tmp_path / str(stages)))


def test_stages_with_different_tied_embeddings_are_refused(tmp_path: Path) -> None:
    write(NEOX / "llama-bf16-z1-dp5", tmp_path / "x", stages=2, tied=True)
    write(NEOX / "llama-fp32-z1-dp3", tmp_path / "y", stages=2, tied=True)
    for path in (tmp_path / "y" / "global_step3").glob("*mp_rank_01_optim*"):
        shutil.copy(path, tmp_path / "x" / "global_step3" / path.name)
    with pytest.raises(ConversionError, match="two stages"):
        contents(tmp_path / "x")


# ------------------------------------------------------------------------------------------------- DeeperSpeed 1.0


def write_legacy(source: Path, target: Path, ranks: int, intervals: int) -> Path:
    """Write the checkpoint as DeeperSpeed 1.0 does: intervals shared by all ranks."""
    found = read(find(str(source)))
    folder = target / f"global_step{STEP}"
    shutil.copytree(source / f"global_step{STEP}" / "configs", folder / "configs")
    (target / "latest").write_text(folder.name)
    arrays = complete_of(found)
    plain = [key for key in arrays if key[1].endswith(".bias") or "norm" in key[1]]
    groups = [[key for key in arrays if key not in plain], plain]
    cut: dict[str, list[list[np.ndarray]]] = {}
    for kind in KINDS:
        rows = [np.concatenate([arrays[key][kind].reshape(-1) for key in group]) for group in groups]
        padded = [np.pad(row, (0, -len(row) % (ranks * intervals))) for row in rows]
        cut[kind] = [np.split(row, ranks * intervals) for row in padded]
    for rank in range(ranks):
        mine = {kind: [parts[rank::ranks] for parts in cut[kind]] for kind in KINDS}
        numbers = [list(range(group * intervals, (group + 1) * intervals)) for group in range(2)]
        moments = {
            number: {"exp_avg": mine["exp_avg"][group][index], "exp_avg_sq": mine["exp_avg_sq"][group][index]}
            for group in range(2)
            for index, number in enumerate(numbers[group])
        }
        hyper = [
            {"params": numbers[group], "weight_decay": decay, "betas": (0.9, 0.95), "eps": 1e-8, "step": STEP}
            for group, decay in enumerate((0.1, 0.0))
        ]
        state = {
            "zero_stage": 1, "partition_count": ranks, "num_comm_intervals_per_group": [intervals] * 2,
            "local_sub_partitions_of_fp32_groups": mine["fp32"],
            "base_optimizer_state": {"state": moments, "param_groups": hyper},
        }  # fmt: skip
        torch_files.save(folder / f"zero_pp_rank_{rank}_mp_rank_00optim_states.pt", {"optimizer_state_dict": state})
    module = {f"sequential.{layer}.{name}": arrays[layer, name]["weight"] for layer, name in arrays}
    state = {"module": module, "iteration": STEP, "lr_scheduler": found.state["lr_scheduler"]}
    torch_files.save(folder / "mp_rank_00_model_states.pt", state)
    return folder


@pytest.mark.parametrize(("ranks", "intervals"), [(1, 1), (2, 3), (4, 2)])
def test_deeperspeed_1_layout_is_read(ranks: int, intervals: int, tmp_path: Path) -> None:
    write_legacy(NEOX / "pythia-fp16-z1-dp2", tmp_path / "x", ranks, intervals)
    assert_same(contents(NEOX / "pythia-fp16-z1-dp2"), contents(tmp_path / "x"))
    assert any("was not tested on a real file" in note for note in open_neox(str(tmp_path / "x")).notes)


def test_sub_partitions_in_another_order_are_refused(tmp_path: Path) -> None:
    folder = write_legacy(NEOX / "pythia-fp16-z1-dp2", tmp_path / "x", 2, 1)
    first, second = (folder / f"zero_pp_rank_{rank}_mp_rank_00optim_states.pt" for rank in range(2))
    held = first.read_bytes()
    first.write_bytes(second.read_bytes())
    second.write_bytes(held)
    with pytest.raises(ConversionError, match=r"rounded master|not padding"):
        contents(tmp_path / "x")
