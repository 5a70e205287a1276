"""Rules of completeness of each trainer's checkpoints, on what the trainers wrote."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from midstream_host.driver.checkpoints import glob, huggingface
from midstream_host.driver.checkpoints.checkpoint_finder import find_checkpoints, saved_state
from support.paths import FIXTURES
from support.trainers.checkpoint_cases import CASES, Case, look, refused


def test_huggingface_sentinel_refuses_what_else_is_complete(copy: Callable[[Case], Path]) -> None:
    path = copy(CASES["huggingface"])
    (path / huggingface.SENTINEL).write_text("Checkpoint started at step 6 and in progress...")
    assert huggingface.SENTINEL in refused(CASES["huggingface"], path)


def test_huggingface_without_its_state_is_refused(copy: Callable[[Case], Path]) -> None:
    path = copy(CASES["huggingface"])
    for name in ("optimizer.pt", "scheduler.pt", "rng_state_0.pth", "rng_state_1.pth"):
        (path / name).unlink()
    assert "optimizer.pt is missing" in refused(CASES["huggingface"], path)


def test_huggingface_step_has_to_agree_with_the_name(copy: Callable[[Case], Path]) -> None:
    path = copy(CASES["huggingface"])
    state = json.loads((path / "trainer_state.json").read_text())
    (path / "trainer_state.json").write_text(json.dumps({**state, "global_step": 5}))
    assert refused(CASES["huggingface"], path) == "trainer_state.json has step 5, and the name has step 6"


@pytest.mark.parametrize(
    ("ranks", "words"), [(1, "rng_state.pth is missing"), (3, "rng_state_2.pth is missing: the random state of rank 2")]
)
def test_huggingface_needs_a_random_state_of_every_rank(ranks: int, words: str) -> None:
    found = look(CASES["huggingface"], FIXTURES / "trainers/huggingface/checkpoint-6", ranks)
    assert not found.complete
    assert words in found.reason


def test_huggingface_shards_have_to_be_those_of_the_index(copy: Callable[[Case], Path]) -> None:
    path = copy(CASES["huggingface"])
    (path / "model.safetensors").rename(path / "model-00001-of-00002.safetensors")
    assert "index" in refused(CASES["huggingface"], path)
    index = {"weight_map": {"a": "model-00001-of-00002.safetensors", "b": "model-00002-of-00002.safetensors"}}
    (path / "model.safetensors.index.json").write_text(json.dumps(index))
    assert "model-00002-of-00002.safetensors is missing" in refused(CASES["huggingface"], path)
    shutil.copy(path / "model-00001-of-00002.safetensors", path / "model-00002-of-00002.safetensors")
    assert look(CASES["huggingface"], path).complete


def test_huggingface_weights_of_each_adapter_are_checked(copy: Callable[[Case], Path]) -> None:
    """PEFT saves an adapter that is not called default in a folder of its own."""
    path = copy(CASES["huggingface"])
    for name in ("mine", "second"):
        (path / name).mkdir()
        shutil.copy(path / "model.safetensors", path / name / "adapter_model.safetensors")
        (path / name / "adapter_config.json").write_text("{}")
    (path / "model.safetensors").unlink()
    assert look(CASES["huggingface"], path).complete
    weights = path / "second" / "adapter_model.safetensors"
    content = weights.read_bytes()
    weights.write_bytes(content[:200])
    assert "second/adapter_model.safetensors" in refused(CASES["huggingface"], path)
    weights.unlink()
    assert "second/adapter_model.safetensors is missing" in refused(CASES["huggingface"], path)
    (path / "second" / "adapter_config.json").unlink()
    assert look(CASES["huggingface"], path).complete
    shutil.rmtree(path / "mine")
    assert "model.safetensors is missing" in refused(CASES["huggingface"], path)


def test_huggingface_index_belongs_to_its_folder(copy: Callable[[Case], Path]) -> None:
    path = copy(CASES["huggingface"])
    (path / "encoder").mkdir()
    shutil.copy(path / "model.safetensors", path / "encoder" / "model-00001-of-00001.safetensors")
    assert "encoder/model-00001-of-00001.safetensors" in refused(CASES["huggingface"], path)
    index = path / "encoder" / "model.safetensors.index.json"
    index.write_text(json.dumps({"weight_map": {"a": "model-00001-of-00001.safetensors"}}))
    assert look(CASES["huggingface"], path).complete


def test_huggingface_full_state_of_fsdp_is_the_weights(copy: Callable[[Case], Path]) -> None:
    path = copy(CASES["huggingface"])
    (path / "model.safetensors").unlink()
    shutil.copy(path / "optimizer.pt", path / "pytorch_model_fsdp.bin")
    assert look(CASES["huggingface"], path).complete


def test_lightning_step_is_that_of_its_state(copy: Callable[[Case], Path]) -> None:
    """A metric that is logged as ``step`` goes into the name."""
    path = copy(CASES["lightning"])
    path.rename(path.with_name("epoch=0-step=7.ckpt"))
    (found,) = find_checkpoints("lightning", str(path.parent), "epoch=0-step=7.ckpt", 1)
    assert (found.complete, found.step) == (True, 6)


def test_deepspeed_step_is_that_of_its_state(copy: Callable[[Case], Path]) -> None:
    path = copy(CASES["deepspeed"])
    for tag in ("epoch-7", "global_step100-v2", "global_step9"):
        path = path.rename(path.with_name(tag))
        (path.parent / "latest").write_text(tag)
        (found,) = find_checkpoints("deepspeed", str(path.parent), tag, 3)
        assert (found.complete, found.step) == (True, 3)


def test_deepspeed_latest_is_compared_by_the_states(copy: Callable[[Case], Path]) -> None:
    path = copy(CASES["deepspeed"])
    shutil.copytree(path, path.with_name("best"))
    (path.parent / "latest").write_text("best")
    assert look(CASES["deepspeed"], path).complete


def test_dcp_data_may_be_longer_and_never_shorter(copy: Callable[[Case], Path]) -> None:
    path = copy(CASES["dcp"])
    data = path / "__1_0.distcp"
    content = data.read_bytes()
    data.write_bytes(content + b"more")
    assert look(CASES["dcp"], path).complete
    data.write_bytes(content[:-1])
    assert f"{len(content) - 1} bytes, and .metadata names {len(content)}" in refused(CASES["dcp"], path)


@pytest.mark.parametrize(
    ("ranks", "words"),
    [(1, "2 ranks saved it with use_collectives=False, and the run has 1"), (3, "__2.metadata is missing")],
)
def test_dcp_without_collectives_is_of_its_ranks(ranks: int, words: str) -> None:
    """One rank of torch loads its own half, leaves the other as it was, and raises no error."""
    case = CASES["dcp without collectives"]
    path = FIXTURES / case.run / case.path
    found = look(case, path, ranks)
    assert not found.complete
    assert words in found.reason
    assert not saved_state("dcp", str(path)).reshards
    assert saved_state("dcp", str(FIXTURES / "trainers/dcp/step-4")).reshards
    [same] = find_checkpoints("glob", str(path.parent), "step-4", 2)
    assert (same.complete, glob.shows_end(same)) == (True, True)


@pytest.mark.parametrize("rule", ["dcp", "glob"])
@pytest.mark.parametrize(
    ("path", "ranks", "step"),
    [
        ("dcp/step-4", 2, 4),  # a tensor
        ("dcp-alone/step-4", 2, 4),  # the same, in the metadata of one rank
        ("torchtitan/step-2", 1, 2),  # a number, beside the loader's and the optimizer's own counts
    ],
)
def test_dcp_step_is_that_of_its_state(tmp_path: Path, rule: str, path: str, ranks: int, step: int) -> None:
    for name in ("step-7", "latest-20261128"):
        shutil.copytree(FIXTURES / "trainers" / path, tmp_path / name)
        (found,) = find_checkpoints(rule, str(tmp_path), name, ranks)
        assert (found.complete, found.stated) == (True, step)


def test_dcp_number_that_is_none_is_no_step(copy: Callable[[Case], Path]) -> None:
    """Its bytes are another value, or in another format: the name is left."""
    path = copy(CASES["dcp"])
    data = (path / "__1_0.distcp").read_bytes()
    for damaged in (b"\0" * len(data), data.replace(b"LongStorage", b"LostStorage")):
        (path / "__1_0.distcp").write_bytes(damaged)
        (found,) = find_checkpoints("dcp", str(path.parent), path.name, 2)
        assert (found.complete, found.stated, found.named) == (True, None, 4)


def test_dcp_being_written_again_is_refused(copy: Callable[[Case], Path]) -> None:
    path = copy(CASES["dcp"])
    (path / ".metadata.tmp").write_bytes(b"")
    assert "being written" in refused(CASES["dcp"], path)


def test_deepspeed_latest_decides_what_is_finished(copy: Callable[[Case], Path]) -> None:
    path = copy(CASES["deepspeed"])
    latest = path.parent / "latest"
    latest.write_text("global_step2")
    assert "latest names global_step2" in refused(CASES["deepspeed"], path)
    latest.write_text("global_step9")
    assert look(CASES["deepspeed"], path).complete
    latest.unlink()
    assert "latest is missing" in refused(CASES["deepspeed"], path)


def test_deepspeed_of_another_number_of_ranks_is_refused() -> None:
    found = look(CASES["deepspeed"], FIXTURES / "neox/pythia-bf16-z1-dp3/global_step3", 4)
    assert found.reason == "it was written by 3 ranks, and the run has 4"


def test_orbax_is_renamed_when_it_is_complete(copy: Callable[[Case], Path]) -> None:
    path = copy(CASES["orbax"])
    path.rename(path.with_name("4.orbax-checkpoint-tmp"))
    found = [each for each in find_checkpoints("orbax", str(path.parent)) if each.path.startswith("4")]
    assert [(each.step, each.complete) for each in found] == [(4, False)]
    assert "orbax-checkpoint-tmp" in found[0].reason


def test_orbax_without_a_time_of_its_commit_is_refused(copy: Callable[[Case], Path]) -> None:
    path = copy(CASES["orbax"])
    metadata = json.loads((path / "_CHECKPOINT_METADATA").read_text())
    (path / "_CHECKPOINT_METADATA").write_text(json.dumps({**metadata, "commit_timestamp_nsecs": None}))
    assert look(CASES["orbax"], path).complete
    (path / "commit_success.txt").unlink()
    assert "time of the commit" in refused(CASES["orbax"], path)
    (path / "_CHECKPOINT_METADATA").unlink()
    assert "neither" in refused(CASES["orbax"], path)


def test_maxtext_names_count_updates_from_zero(copy: Callable[[Case], Path]) -> None:
    path = copy(CASES["orbax"])
    place = path.parent / "r" / "checkpoints"
    place.mkdir(parents=True)
    path.rename(place / "4")
    [found] = [each for each in find_checkpoints("maxtext", str(path.parent)) if each.path == "r/checkpoints/4"]
    assert (found.complete, found.step) == (True, 5)


def test_levanter_arrays_of_zarr_need_every_chunk(tmp_path: Path) -> None:
    path = tmp_path / "step-7"
    array = path / "model" / "weight"
    array.mkdir(parents=True)
    (path / "metadata.json").write_text(json.dumps({"step": 7, "is_temporary": True}))
    (array / ".zarray").write_text(json.dumps({"shape": [4, 3], "chunks": [2, 3], "zarr_format": 2}))
    case = Case("levanter", "", "step-7", 8, None)
    for count, name in enumerate(("0.0", "1.0")):
        assert refused(case, path) == f"model/weight has {count} chunks of 2"
        (array / name).write_bytes(b"chunk")
    assert look(case, path).step == 8
    assert saved_state("levanter", str(path)).advice == [
        "it is a temporary checkpoint, which Levanter deletes when it has written a newer one"
    ]


def test_a_scripts_file_has_its_step_in_it_or_in_its_name(copy: Callable[[Case], Path]) -> None:
    path = copy(CASES["script"])
    (path.parent / "model_000123.bin.txt").write_text("x")
    found = find_checkpoints("glob", str(path.parent), "*")
    steps = {each.path: (each.step, each.complete) for each in found}
    assert steps["ckpt.pt"] == (4, True)
    assert steps["model_000123.bin.txt"] == (123, True)
