"""Import of torch's distributed checkpoints: the next updates have torchtitan's losses.

The fixture is of torchtitan 0.3.0 on three processes (tests/trainers/train_torchtitan.py), with shards of unequal rows.
"""

from __future__ import annotations

import dataclasses
import json
import shutil
import tarfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from midstream_core import dcp_metadata, pickle_tree, pickle_writer
from midstream_core.format_error import FormatError
from midstream_core.learning_rate import rate_at, rate_parts, rate_settings
from midstream_engine.checkpoint.loading.verify import verify_checkpoint
from midstream_engine.convert import main
from midstream_engine.interop.errors import ConversionError
from midstream_engine.interop.exported_run import open_run
from midstream_engine.interop.exporters import ExportOptions
from midstream_engine.interop.torch_dcp import exporter
from midstream_engine.interop.torch_dcp.configuration import rate_factor, translate, warmup_of
from midstream_engine.interop.torch_dcp.importer import open_torch_dcp
from midstream_engine.interop.torch_dcp.names import fused, present_name, unfused
from midstream_engine.interop.torch_dcp.reader import DcpCheckpoint
from midstream_host.formats import torch_tree
from support.imports import imported_runs
from support.paths import FIXTURES

pytestmark = [
    # haliax 1.4 uses names that jax 0.10 deprecates.
    pytest.mark.filterwarnings("ignore:jax.core.is_constant_dim is deprecated:DeprecationWarning"),
    pytest.mark.filterwarnings("ignore:jax.interpreters.pxla.thread_resources is deprecated:DeprecationWarning"),
]
TITAN = FIXTURES / "torchtitan"
STEP = "step-4"


@pytest.fixture
def source(tmp_path: Path) -> Path:
    """A folder with the checkpoint and its configuration."""
    folder = tmp_path / "titan"
    folder.mkdir()
    with tarfile.open(TITAN / "step-4.tar.gz") as archive:
        archive.extractall(folder, filter="data")
    shutil.copy(TITAN / "config.json", folder)
    return folder


def refusal(source: Path, capsys: pytest.CaptureFixture[str]) -> str:
    """Convert, which fails with one line and leaves nothing."""
    target = source.parent / "out"
    assert main([str(source), str(target)]) == 1
    assert not list(source.parent.glob("out*"))
    *_, line = capsys.readouterr().err.splitlines()
    return line


def change(path: Path, edit: Callable[[dict[str, Any]], None]) -> None:
    values = json.loads(path.read_text())
    edit(values)
    path.write_text(json.dumps(values))


@pytest.mark.drawn
def test_next_updates_have_torchtitans_losses(source: Path) -> None:
    expected = json.loads((TITAN / "expected.json").read_text())
    losses = imported_runs.continued(open_torch_dcp(str(source)), expected["tokens"])
    np.testing.assert_allclose(losses, expected["losses"], rtol=1e-6)


def test_run_is_imported_and_its_loader_is_named(source: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([str(source), str(source.parent / "out")]) == 0
    messages = capsys.readouterr().err
    assert "dataloader.dp_rank_0, dataloader.dp_rank_1, dataloader.dp_rank_2" in messages
    checkpoint = source.parent / "out" / "checkpoints" / "step-4-a000"
    assert verify_checkpoint(str(checkpoint)).sound
    state = json.loads((checkpoint / "train.json").read_text())["state"]
    assert (state["step"], state["schedule_count"], state["next_sample"]) == (4, 4, 48)


def test_every_number_comes_back(source: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run, target = source.parent / "run", source.parent / "out"
    assert main([str(source), str(run)]) == 0
    assert main([str(run), str(target), "--to", "torch-dcp", "--max-shard-size", "100KB"]) == 0
    assert "exclude_from_loading has to name dataloader" in capsys.readouterr().err
    assert len(list((target / STEP).glob("__0_*.distcp"))) > 1
    expected, found = DcpCheckpoint(str(source / STEP)), DcpCheckpoint(str(target / STEP))
    for name in expected.names:
        if name in expected.tensors:
            assert found.tensors[name].dtype == expected.tensors[name].dtype
            np.testing.assert_array_equal(found.read(name), expected.read(name), name)
        elif not name.startswith("dataloader."):
            value = found.value(name)
            assert (list(value) if type(value) is tuple else value) == expected.value(name), name
    settings = json.loads((target / "torchtitan.json").read_text())
    again = open_torch_dcp(str(target), str(target / "torchtitan.json"))
    assert (again.step, settings["training"]["global_batch_size"]) == (4, 12)
    first = {array.name: array for array in open_torch_dcp(str(source)).arrays}
    for array in again.arrays:
        np.testing.assert_array_equal(array.value(), first[array.name].value(), array.name)


def test_state_that_torchtitan_has_not_is_named(source: Path) -> None:
    run, target = source.parent / "run", source.parent / "out"
    assert main([str(source), str(run)]) == 0

    def refused(section: str, **changes: object) -> str:
        config = open_run(str(run))
        changed = dataclasses.replace(getattr(config.config, section), **changes)
        other = dataclasses.replace(config, config=dataclasses.replace(config.config, **{section: changed}))
        with pytest.raises(ConversionError) as caught:
            exporter.export(other, str(target), ExportOptions())
        return str(caught.value)

    assert "optimizer.nesterov: True here" in refused("optimizer", nesterov=True)
    assert "linear or cosine" in refused("optimizer", lr_schedule="inv_sqrt")
    assert "learning rate of update 4" in refused("optimizer", warmup=8)
    assert "model.has_mlp_bias" in refused("model", mlp_bias=True)


def test_damaged_and_missing_parts_are_named(source: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = source / STEP / "__1_0.distcp"
    original = path.read_bytes()
    place = dcp_metadata.state_of((source / STEP / ".metadata").read_bytes()).tensors["norm.weight"].parts[1].place
    where = original.index(b"archive/data/0", place.offset)
    data = where + 100 + (-(where + 100) % 64)
    path.write_bytes(original[:data] + bytes([original[data] ^ 1]) + original[data + 1 :])
    line = refusal(source, capsys)
    assert line.startswith("midstream: norm.weight: ")
    assert "CRC" in line
    path.write_bytes(original[:-1])
    assert "is not complete" in refusal(source, capsys)
    path.unlink()
    assert "__1_0.distcp: missing, and .metadata names it" in refusal(source, capsys)
    metadata = source / STEP / ".metadata"
    metadata.write_bytes(metadata.read_bytes()[:-9])
    assert ".metadata" in refusal(source, capsys)


@pytest.mark.parametrize("what", ["chunks", "offsets"])
def test_parts_that_are_not_all_of_a_tensor_are_refused(what: str, source: Path) -> None:
    path = source / STEP / ".metadata"
    tree = pickle_tree.parse(path.read_bytes())
    pairs = next(
        node.pairs for node in torch_tree.walk(tree) if type(node) is pickle_tree.Pairs and
        any(name == "chunks" and len(value.items) == 3 for name, value in node.pairs)
    )  # fmt: skip
    chunks = next(value for name, value in pairs if name == "chunks")
    if what == "chunks":
        chunks.items.pop()
    else:
        chunks.items[1] = chunks.items[0]
    path.write_bytes(pickle_writer.dump(tree, 4))
    with pytest.raises(FormatError, match="not all of it"):
        dcp_metadata.state_of(path.read_bytes())


def test_another_configuration_is_refused(source: Path, capsys: pytest.CaptureFixture[str]) -> None:
    config = source / "config.json"
    original = config.read_text()

    def refused(edit: Callable[[dict[str, Any]], None]) -> str:
        config.write_text(original)
        change(config, edit)
        return refusal(source, capsys)

    assert "learning rate of the next update" in refused(lambda it: it["lr_scheduler"].update(min_lr_factor=0.2))
    assert "decay_type: sqrt" in refused(lambda it: it["lr_scheduler"].update(decay_type="sqrt"))
    assert "misshapen" in refused(lambda it: it["model_spec"]["model"].update(dim=64))
    assert "unused: layers.1" in refused(lambda it: it["model_spec"]["model"]["layers"].pop())
    assert "lr_scheduler" in refused(lambda it: it.pop("lr_scheduler"))
    config.unlink()
    assert "--debug.save_config_file" in refusal(source, capsys)


def test_rates_are_torchtitans_but_in_its_warmup() -> None:
    """Its warmup begins with the rate of the first update, ours with 0; of real schedules by update."""
    model = json.loads((TITAN / "config.json").read_text())["model_spec"]
    for case in json.loads((TITAN / "schedules.json").read_text()):
        training = {"steps": case["steps"], "seq_len": 16, "global_batch_size": 4}
        described = {"model_spec": model, "training": training, "lr_scheduler": case["lr_scheduler"]}
        optimizer = translate(described, None, [])["optimizer"]
        total, warmup = case["lr_scheduler"].get("total_steps", case["steps"]), warmup_of(described)
        parts = rate_parts(rate_settings(optimizer | {"learning_rate": 1.0}), total)
        np.testing.assert_allclose(
            [rate_factor(described)(k) for k in range(case["steps"])], case["factors"], atol=1e-9
        )
        ours = [rate_at(parts, count) for count in range(case["steps"])]
        np.testing.assert_allclose(ours[warmup:], case["factors"][warmup:], atol=1e-9, err_msg=str(case))
        np.testing.assert_allclose(ours[1:warmup], case["factors"][: max(warmup - 1, 0)], atol=1e-9)


def test_names_and_joined_matrices_are_turned_back() -> None:
    names = {
        "model.output.weight": "lm_head.weight", "optimizer.state.layers.1.attention.wk.weight.exp_avg":
        "optimizer.state.layers.1.attention.qkv_linear.wk.weight.exp_avg", "layers.0.attention.wo.weight":
        "layers.0.attention.wo.weight",
    }  # fmt: skip
    assert {name: present_name(name) for name in names} == names
    numbers = np.random.default_rng(1)
    parts = [numbers.normal(size=(rows, 6)) for rows in (16, 8, 8)]
    joined = fused(*parts, kv_heads=2)
    for part, again in zip(parts, unfused(joined, 2, 4), strict=True):
        np.testing.assert_array_equal(part, again)
    np.testing.assert_array_equal(joined[:16], np.concatenate([parts[0][:8], parts[1][:4], parts[2][:4]]))
