"""Checkpoints of transformers' Trainer: imported, exported, and refused where they cannot be said.

The fixture was made by Trainer. tests/trainers/test_huggingface_export.py trains on with checkpoints.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from midstream_core.learning_rate import rate_at, rate_parts, rate_settings
from midstream_engine.config.optimizer import AdamConfig
from midstream_engine.convert import main
from midstream_engine.interop.archive import TorchFile
from midstream_engine.interop.errors import ConversionError
from midstream_engine.interop.exported_run import EXP_AVG, MASTER, open_run
from midstream_engine.interop.huggingface_trainer.trainer_schedule import TrainerSchedule, schedule_of
from midstream_engine.interop.tensor_files import read_tensors
from midstream_engine.interop.torch_saving import save
from support.paths import FIXTURES

pytestmark = [
    # haliax 1.4 uses names that jax 0.10 deprecates.
    pytest.mark.filterwarnings("ignore:jax.core.is_constant_dim is deprecated:DeprecationWarning"),
    pytest.mark.filterwarnings("ignore:jax.interpreters.pxla.thread_resources is deprecated:DeprecationWarning"),
]
CHECKPOINT = FIXTURES / "hf_trainer" / "checkpoint-3"


def convert(*arguments: object) -> int:
    return main([str(argument) for argument in arguments])


@pytest.fixture(scope="module")
def imported(tmp_path_factory: pytest.TempPathFactory) -> Path:
    target = tmp_path_factory.mktemp("trainer") / "ours"
    assert convert(CHECKPOINT, target) == 0
    return target


def test_import_has_counters_settings_and_moments(imported: Path) -> None:
    run = open_run(str(imported))
    assert (run.step, run.optimizer_count, run.schedule_count) == (3, 3, 3)
    adam, trainer = run.config.optimizer, run.config.trainer
    assert isinstance(adam, AdamConfig)
    assert (adam.beta2, adam.max_grad_norm, adam.weight_decay, adam.min_lr_ratio) == (0.95, 0.5, 0.1, 0.1)
    assert (trainer.num_train_steps, trainer.train_batch_size, trainer.seed) == (8, 4, 7)
    optimizer = TorchFile(str(CHECKPOINT / "optimizer.pt")).value
    embedding = run.parameters["token_embeddings/weight"]
    assert embedding.decays  # by Trainer's rule
    assert np.array_equal(embedding.read(EXP_AVG)[:24], optimizer["state"][0]["exp_avg"].read())
    up = run.parameters["blocks/stacked/mlp/up_proj/weight"]
    theirs = read_tensors(str(CHECKPOINT))["model.layers.0.mlp.up_proj.weight"]
    assert np.array_equal(up.read(MASTER, 0), theirs.T)


def test_round_trip_is_equal_bit_by_bit(imported: Path, tmp_path: Path) -> None:
    assert convert(imported, tmp_path / "out", "--to", "huggingface-trainer") == 0
    back = tmp_path / "out" / "checkpoint-3"
    ours, theirs = read_tensors(str(back)), read_tensors(str(CHECKPOINT))
    assert ours.keys() == theirs.keys()
    assert all(np.array_equal(ours[name], theirs[name]) for name in theirs)
    ours, theirs = (TorchFile(str(folder / "optimizer.pt")).value for folder in (back, CHECKPOINT))
    assert ours["param_groups"] == theirs["param_groups"]
    for index, entry in theirs["state"].items():
        for name, tensor in entry.items():
            assert np.array_equal(ours["state"][index][name].read(), tensor.read()), (index, name)
    ours, theirs = (TorchFile(str(folder / "scheduler.pt")).value for folder in (back, CHECKPOINT))
    assert ours == {**theirs, "_last_lr": ours["_last_lr"]}
    assert ours["_last_lr"] == pytest.approx(theirs["_last_lr"], rel=1e-15)
    assert convert(back, tmp_path / "again") == 0  # with the arguments that the export has


def _replaced(name: str, key: str, value: object) -> Callable[[Path], None]:
    def change(folder: Path) -> None:
        path = folder / name
        if name.endswith(".json"):
            path.write_text(json.dumps({**json.loads(path.read_text()), key: value}))
        else:
            state = {"state": {}} if key == "param_groups" else TorchFile(str(path)).value
            save(str(path), {**state, key: value})

    return change


def _cut(name: str) -> Callable[[Path], None]:
    def change(folder: Path) -> None:
        (folder / name).write_bytes((folder / name).read_bytes()[:-900])

    return change


def _without(name: str) -> Callable[[Path], None]:
    return lambda folder: (folder / name).unlink()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (_without("scheduler.pt"), "lacks scheduler.pt of a checkpoint of Trainer"),
        (_without("training_args.bin"), "lacks training_args.bin"),
        (_cut("optimizer.pt"), "optimizer.pt: "),
        (_replaced("trainer_state.json", "global_step", "3"), "global_step is '3'"),
        (_replaced("trainer_state.json", "max_steps", 9), "the learning rate of update 3 is"),
        (_replaced("scheduler.pt", "last_epoch", 4), "the learning rate of update 4 is"),
        (_replaced("optimizer.pt", "param_groups", [{}]), "not the two groups"),
    ],
)
def test_damaged_and_foreign_parts_are_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], change: Callable[[Path], None], message: str
) -> None:
    source = Path(shutil.copytree(CHECKPOINT, tmp_path / "checkpoint-3"))
    change(source)
    assert convert(source, tmp_path / "out") == 1
    error = capsys.readouterr().err
    assert message in error
    assert error.count("\n") == 1
    assert [path.name for path in tmp_path.iterdir()] == ["checkpoint-3"]


def test_model_alone_is_imported_on_request(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert convert(CHECKPOINT, tmp_path / "out", "--without-optimizer") == 0
    assert open_run(str(tmp_path / "out")).step == 0
    assert "optimizer.pt, scheduler.pt, trainer_state.json: not imported" in capsys.readouterr().err


SCHEDULES = [
    (AdamConfig(lr_schedule="linear", min_lr_ratio=0.0, warmup=7), "linear"),
    (AdamConfig(lr_schedule="linear", min_lr_ratio=0.3, warmup=7), "polynomial"),
    (AdamConfig(lr_schedule="polynomial", polynomial_power=3.0, warmup=0), "polynomial"),
    (AdamConfig(lr_schedule="cosine", min_lr_ratio=0.0, warmup=0.1), "cosine"),
    (AdamConfig(lr_schedule="cosine", warmup=0), "cosine_with_min_lr"),
    (AdamConfig(lr_schedule="constant", warmup=0), "constant"),
    (AdamConfig(lr_schedule="constant", warmup=5), "constant_with_warmup"),
    (AdamConfig(lr_schedule="cosine", warmup=0, decay=40), "warmup_stable_decay"),
    (AdamConfig(lr_schedule="constant", warmup=0, cooldown=20), "warmup_stable_decay"),
]


@pytest.mark.parametrize(("config", "kind"), SCHEDULES)
def test_rates_are_equal_both_ways(config: AdamConfig, kind: str) -> None:
    theirs = schedule_of(config, 100)
    theirs.check()
    assert theirs.kind == kind
    back = AdamConfig(**theirs.ours())  # pyright: ignore[reportArgumentType]
    for ours in (config, back):
        parts = rate_parts(rate_settings(vars(ours)), 100)
        assert [rate_at(parts, count) for count in range(100)] == pytest.approx(
            [theirs.rate(count) for count in range(100)], rel=1e-9, abs=1e-18
        )


@pytest.mark.parametrize(
    ("config", "message"),
    [
        (AdamConfig(lr_schedule="inv_sqrt"), "inv_sqrt here, and Trainer has"),
        (AdamConfig(cycles=3), "one decay at the end"),
    ],
)
def test_other_shapes_are_refused(config: AdamConfig, message: str) -> None:
    with pytest.raises(ConversionError, match=message):
        schedule_of(config, 100)


def test_types_of_trainer_that_are_not_known_are_refused() -> None:
    for schedule in (
        TrainerSchedule("cosine_with_restarts", 1e-3, 0, 10),
        TrainerSchedule("cosine", 1e-3, 0, 10, {"num_cycles": 2.5}),
        TrainerSchedule("warmup_stable_decay", 1e-3, 0, 10, {"num_decay_steps": 3, "decay_type": "1-sqrt"}),
    ):
        with pytest.raises(ConversionError):
            schedule.check()


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"optimizer": {"nesterov": True}}, "optimizer.nesterov: True here, and Trainer has False"),
        ({"optimizer": {"cosine_exponent": 2.0}}, "the learning rate of update 3 is"),
        ({"z_loss_weight": 1e-4}, "z_loss_weight: 0.0001 here, and Trainer has 0.0"),
        ({"trainer": {"train_batch_size": [{"start": 0, "value": 4}, {"start": 5, "value": 8}]}}, "4 and later 8"),
    ],
)
def test_export_refuses_what_trainer_has_not(
    imported: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], changed: dict[str, object], message: str
) -> None:
    from midstream_engine.config.load import from_mapping
    from midstream_engine.interop.exporters import ExportOptions, exporter_of

    run = open_run(str(imported))
    mapping = run.config.resolved()
    for name, value in changed.items():
        mapping[name] = {**mapping[name], **value} if isinstance(value, dict) else value
    other = type(run)(**{**vars(run), "config": from_mapping(mapping).config})
    with pytest.raises(ConversionError, match=message):
        exporter_of("huggingface-trainer").export(other, str(tmp_path), ExportOptions())
