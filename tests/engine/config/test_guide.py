"""Each parameter of Levanter's configuration guide, by its names there and in Levanter's code."""

from __future__ import annotations

from functools import reduce
from typing import Any

import numpy as np
import pytest

from midstream_engine.config import ConfigError, EmaDecaySqrtConfig, from_mapping
from midstream_engine.config.keep_policy import KeepEvery
from midstream_engine.optim.schedule import learning_rate

KEEP = [{"every": 1000, "until": 10000}, {"every": 5000, "until": 40000}, {"every": 10000}]
MAPPED = {"mlp": "model", "heads": ["model"]}

# The guide's spelling, the value, our field, and its value there (None: the same).
GUIDE: list[tuple[str, Any, str | None, Any]] = [
    ("trainer.seed", 3, None, None),
    ("trainer.num_train_steps", 77, None, None),
    ("trainer.train_batch_size", 64, None, None),
    ("trainer.train_batch_size", [{"start": 0, "value": 32}, {"start": 10, "value": 64}], None, None),
    ("trainer.per_device_train_parallelism", 4, "trainer.per_device_parallelism", 4),
    ("trainer.per_device_parallelism", 4, None, None),
    ("trainer.per_device_eval_parallelism", 2, None, None),
    ("trainer.steps_per_eval", 10, None, None),
    ("trainer.max_eval_batches", 5, None, None),
    ("trainer.mp", "p=f32,c=bfloat16", None, None),
    ("trainer.log_dir", "logs/", None, None),
    ("trainer.batch_axis", "batch", None, None),
    ("trainer.fsdp_axis", "embed", None, ["embed"]),
    ("trainer.fsdp_axis", ["embed", "mlp"], None, None),
    ("trainer.tensor_parallel_axes", ["mlp", "heads"], None, None),
    ("trainer.model_axis_size", 2, None, None),
    ("trainer.axis_resources", MAPPED, None, {"mlp": ["model"], "heads": ["model"]}),
    ("trainer.parameter_axis_resources", MAPPED, None, {"mlp": ["model"], "heads": ["model"]}),
    ("trainer.compute_axis_resources", MAPPED, None, {"mlp": ["model"], "heads": ["model"]}),
    ("trainer.load_checkpoint", True, None, None),
    ("trainer.load_checkpoint_path", "gs://bucket/run", None, None),
    ("trainer.initialize_from", "elsewhere", None, None),
    ("trainer.checkpointer.base_path", "gs://bucket/runs", None, None),
    ("trainer.checkpointer.save_interval", "15min", None, None),
    ("trainer.checkpointer.keep", KEEP, None, [KeepEvery(1000, 10000), KeepEvery(5000, 40000), KeepEvery(10000)]),
    ("trainer.jax_compilation_cache_dir", "/cache", None, None),
    ("trainer.jax_config", {"jax_persistent_cache_min_compile_time_secs": 5.0}, None, None),
    ("trainer.id", "rj96a79n", None, None),
    ("trainer.distributed.coordinator_address", None, None, None),
    ("trainer.distributed.num_processes", None, None, None),
    ("trainer.distributed.process_id", None, None, None),
    ("trainer.distributed.local_device_ids", [0, 1], None, None),
    ("trainer.model_averaging.beta", 0.9, None, None),
    ("trainer.profiler", True, None, None),
    ("optimizer.weight_decay", 0.1, None, None),
    ("optimizer.learning_rate", "6E-4", None, 6e-4),
    *[("optimizer.lr_schedule", name, None, None) for name in ("constant", "linear", "cosine", "inv_sqrt", "inv")],
    ("optimizer.min_lr_ratio", 0.2, None, None),
    ("optimizer.warmup", 0.02, None, None),
    ("optimizer.warmup", 1000, None, None),
    ("optimizer.warmup_ratio", 0.02, "optimizer.warmup", 0.02),
    ("optimizer.decay", 0.3, None, None),
    ("optimizer.rewarmup", 0.05, None, None),
    ("optimizer.cycles", 3, None, None),
    ("optimizer.cycles", [10000, 25000, 50000], None, None),
    ("optimizer.haps", [100, 200], "optimizer.cycles", [100, 200]),
    ("optimizer.cycle_length", 0.25, None, None),
    ("optimizer.cycle_length", [10, 20], None, None),
    ("optimizer.beta1", 0.8, None, None),
    ("optimizer.beta2", 0.99, None, None),
    ("optimizer.epsilon", 1e-9, None, None),
    ("optimizer.max_grad_norm", 2.0, None, None),
    ("optimizer.skip_bad_steps", True, None, None),
    ("data.train_urls", ["gs://b/x.{1..128}.jsonl.gz"], None, None),
    ("data.validation_urls", ["gs://b/v.{1..8}.jsonl.gz"], None, None),
    ("data.cache_dir", "gs://my_bucket/tokenized/openwebtext_2/", None, None),
    ("model.scale_attn_by_inverse_layer_idx", True, None, None),
    ("model.gradient_checkpointing", True, None, None),
    ("model.seq_len", 512, None, None),
]


@pytest.mark.parametrize(
    ("key", "value", "ours", "became"), GUIDE, ids=[f"{number}-{row[0]}" for number, row in enumerate(GUIDE)]
)
def test_guide_parameter_has_its_effect(key: str, value: Any, ours: str | None, became: Any) -> None:
    value = float(value) if key == "optimizer.learning_rate" else value
    loaded = from_mapping(nested(key, value))
    assert loaded.notes == []
    assert attribute(loaded.config, ours or key) == (value if became is None else became)


@pytest.mark.parametrize("field", ["entity", "project", "id", "name", "save_code", "save_xla_dumps", "tags"])
def test_guide_wandb_parameter_works_with_and_without_type(field: str) -> None:
    value: Any = {"tags": ["a"], "save_code": False, "save_xla_dumps": True}.get(field, "x")
    for tracker in ({field: value}, {"type": "wandb", field: value}):
        (found,) = from_mapping({"trainer": {"tracker": tracker}}).config.trainer.tracker
        assert getattr(found, field) == value
        (found,) = from_mapping({"trainer": {"wandb": tracker}}).config.trainer.tracker
        assert getattr(found, field) == value


@pytest.mark.parametrize("key", ["address", "start_workers", "auto_start_cluster"])
def test_guide_ray_is_accepted_with_one_line(key: str) -> None:
    assert from_mapping({"trainer": {"ray": {key: "x"}}}).notes == [
        f"trainer.ray.{key} has no effect here: there is no Ray here"
    ]


def nested(key: str, value: Any) -> dict[str, Any]:
    first, *rest = key.split(".")
    return {first: nested(".".join(rest), value) if rest else value}


def attribute(config: Any, key: str) -> Any:
    return reduce(getattr, key.split("."), config)


def trainer(**keys: Any) -> Any:
    return from_mapping({"trainer": keys}).config.trainer


def test_guide_defaults_are_ours() -> None:
    config = from_mapping({}).config
    found = {
        key: attribute(config, key)
        for key in (
            "trainer.seed", "trainer.num_train_steps", "trainer.train_batch_size", "trainer.steps_per_eval",
            "trainer.max_eval_batches", "trainer.mp", "trainer.batch_axis", "trainer.fsdp_axis",
            "trainer.tensor_parallel_axes", "trainer.model_axis_size", "trainer.load_checkpoint",
            "trainer.checkpointer.keep", "optimizer.weight_decay", "optimizer.learning_rate", "optimizer.lr_schedule",
            "optimizer.min_lr_ratio", "optimizer.warmup", "optimizer.decay", "optimizer.rewarmup", "optimizer.cycles",
            "optimizer.cycle_length", "optimizer.beta1", "optimizer.beta2", "optimizer.epsilon",
            "optimizer.max_grad_norm",
        )
    }  # fmt: skip
    assert list(found.values()) == [
        0, 400_000, 32, 1000, None, "f32", "batch", ["embed"], [], 1, None, [KeepEvery(10_000)], 0.0, 1e-4, "cosine",
        0.1, 0.01, None, 0.0, None, None, 0.9, 0.95, 1e-8, 1.0,
    ]  # fmt: skip
    assert config.trainer.checkpointer.policy().save_interval == 15 * 60


def test_guide_averages_are_chosen_by_type() -> None:
    found = trainer(model_averaging={"type": "ema_decay_sqrt", "switch_step": 5, "decay_steps": 7}).model_averaging
    assert found == EmaDecaySqrtConfig(switch_step=5, decay_steps=7)


# ---------------------------------------------------------------------------------------------- the newer spellings


def test_guide_newer_mesh_spelling_is_basic_mode() -> None:
    new = trainer(
        mesh={
            "axes": {"data": -1, "replica": 1, "model": 2}, "dcn_axes": {"replica_dcn": -1},
            "compute_mapping": {"batch": ["replica_dcn", "replica", "data"], "mlp": "model"},
            "param_mapping": {"embed": "data"}, "shared_mapping": {"heads": "model"},
        }
    )  # fmt: skip
    assert new.model_axis_size == 2
    assert new.tensor_parallel_axes == ["mlp", "heads"]
    assert new.compute_axis_resources == {"batch": ["data"], "mlp": ["model"]}
    assert new.parameter_axis_resources == {"embed": ["data"]}
    assert new.axis_resources == {"heads": ["model"]}
    assert trainer(mesh={"axes": {"data": -1}}) == trainer()
    assert trainer(mesh={}) == trainer()


@pytest.mark.parametrize(
    ("mesh", "said"),
    [
        ({"axes": {"replica": 2}}, r"trainer\.mesh\.axes\.replica: 2: the mesh has the axes data"),
        ({"axes": {"data": 4}}, r"trainer\.mesh\.axes\.data: 4.*data is -1"),
        ({"axes": {"model": -1}}, r"axes\.model: -1 is no number"),
        ({"axes": {"expert": 2}}, r"axes\.expert"),
        ({"axes": 3}, r"trainer\.mesh\.axes: expected keys and values"),
        ({"compute_maping": {}}, r"unknown key trainer\.mesh\.compute_maping; nearest: trainer\.mesh\.compute_mapping"),
        ({"compute_mapping": ["a"]}, r"compute_mapping: expected keys and values"),
    ],
)  # fmt: skip
def test_guide_larger_mesh_only_features_are_refused(mesh: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        trainer(mesh=mesh)


def test_guide_duplicate_spellings_are_refused() -> None:
    with pytest.raises(ConfigError, match=r"trainer\.mesh\.axes\.model is an alias of trainer\.model_axis_size"):
        trainer(mesh={"axes": {"model": 2}}, model_axis_size=2)


def test_guide_schedule_may_be_a_mapping() -> None:
    plain = from_mapping({"optimizer": {"lr_schedule": "linear"}}).config
    assert from_mapping({"optimizer": {"lr_schedule": {"type": "linear"}}}).config == plain
    with pytest.raises(ConfigError, match=r"unknown key optimizer\.lr_schedule\.exponant; nearest: .*exponent"):
        from_mapping({"optimizer": {"lr_schedule": {"type": "cosine", "exponant": 2}}})
    with pytest.raises(ConfigError, match=r"'power' is not known; use one of constant, linear"):
        from_mapping({"optimizer": {"lr_schedule": {"type": "power"}}})
    with pytest.raises(ConfigError, match=r"cosine_exponent: 0\.0 is not positive"):
        from_mapping({"optimizer": {"lr_schedule": {"type": "cosine", "exponent": 0.0}}})


def test_guide_schedule_parameters_shape_it() -> None:
    def rates(schedule: dict[str, Any]) -> np.ndarray:
        values = {"lr_schedule": schedule, "learning_rate": 1.0, "warmup": 0, "min_lr_ratio": 0.1}
        rate = learning_rate(from_mapping({"optimizer": values}).config.optimizer, 100)
        return np.asarray([rate(step) for step in range(100)])

    steps = np.arange(100)
    cosine = 0.1 + 0.9 * (0.5 * (1 + np.cos(np.pi * steps / 100))) ** 2
    np.testing.assert_allclose(rates({"type": "cosine", "exponent": 2.0}), cosine, rtol=1e-5)
    root = np.maximum(np.minimum(1, 1 / np.sqrt(np.maximum(steps, 1) / 10)), 0.1)
    np.testing.assert_allclose(rates({"type": "inv_sqrt", "timescale": 10}), root, rtol=1e-5)
