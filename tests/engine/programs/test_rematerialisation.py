"""Activations that a layer stores: by name, and as many as the memory of the devices has room for."""

from __future__ import annotations

import re
from dataclasses import dataclass

import jax
import pytest

from midstream_engine.computation.programs import compile_step
from midstream_engine.computation.rematerialisation import by_memory, memory_of, own_device
from midstream_engine.computation.setup import CompilePlan, make_plan
from midstream_engine.config import ConfigError, load_config
from midstream_engine.config.model import LlamaConfig
from support.paths import CONFIGS

pytestmark = [
    # haliax 1.4 uses names that jax 0.10 deprecates.
    pytest.mark.filterwarnings("ignore:jax.core.is_constant_dim is deprecated:DeprecationWarning"),
    pytest.mark.filterwarnings("ignore:jax.interpreters.pxla.thread_resources is deprecated:DeprecationWarning"),
]
ONE_BILLION = LlamaConfig(
    seq_len=4096, hidden_dim=2048, intermediate_dim=8192, num_layers=16, num_heads=32, num_kv_heads=8,
    gradient_checkpointing="auto",
)  # fmt: skip


@dataclass
class Device:
    """A device, as far as its memory is read."""

    device_kind: str
    platform: str = "tpu"
    limit: int | None = None
    process_index: int = 0

    def memory_stats(self) -> dict[str, int] | None:
        assert self.process_index == 0, "a device of another process"
        return None if self.limit is None else {"bytes_limit": self.limit}


def chosen(kind: str, *, chips: int = 16, examples: int = 4, config: LlamaConfig = ONE_BILLION) -> bool | str:
    numbers = 1.24e9 / chips
    return by_memory(
        config, Device(kind), state=12 * numbers, gradients=8 * numbers, tokens=examples * 4096, width=2
    )  # fmt: skip


def test_more_is_stored_where_there_is_more_memory() -> None:
    assert chosen("TPU v5 lite") == "qkv+attention"
    assert chosen("TPU v5") == "qkv+attention+mlp"
    assert chosen("TPU v5 lite", examples=6) == "attention"
    assert chosen("TPU v5 lite", examples=16) is True
    assert chosen("TPU v5 lite", chips=2) is True, "the state needs the memory"
    assert chosen("TPU v9") is True, "its memory is not known"


def test_a_device_says_its_memory_before_the_table_does() -> None:
    assert memory_of(Device("NVIDIA H100 80GB HBM3", "gpu", 60 << 30)) == 60 << 30
    assert memory_of(Device("TPU v5 lite")) == 16 << 30
    assert memory_of(jax.devices()[0]) is None


def test_each_process_reads_the_memory_of_its_own_device() -> None:
    """In each it is the same number; the device of another process reports none, and the table has a larger one."""
    others = [Device("NVIDIA H100 80GB HBM3", "gpu", process_index=process) for process in (1, 2)]
    own = Device("NVIDIA H100 80GB HBM3", "gpu", 60 << 30)
    assert memory_of(own_device([*others, own])) == 60 << 30
    assert memory_of(own_device(others)) is None, "as for devices that are compiled for and not here"


def plan_with(value: str) -> CompilePlan:
    flags = ["--config_path", str(CONFIGS / "llama_tiny.yaml"), "--model.gradient_checkpointing", value]
    return make_plan(load_config(flags).config, jax.devices()[:1])


@pytest.mark.drawn
def test_stored_products_are_not_computed_again() -> None:
    counts = {value: len(re.findall(r" dot\(", compile_step(plan_with(value)).as_text()))
              for value in ("true", "attention", "qkv+attention+mlp", "false")}  # fmt: skip
    assert counts["true"] > counts["attention"] > counts["qkv+attention+mlp"] >= counts["false"]


def test_choice_is_of_the_plan_and_not_of_the_configuration(monkeypatch: pytest.MonkeyPatch) -> None:
    module = "midstream_engine.computation.rematerialisation.memory_of"
    plan = plan_with("auto")
    assert plan.config.model.gradient_checkpointing is True, "the memory of a CPU is not known"
    monkeypatch.setattr(module, lambda _: 1 << 30)
    assert plan_with("auto").config.model.gradient_checkpointing == "qkv+attention+mlp"
    monkeypatch.setattr(module, lambda _: 1 << 20)
    assert plan_with("auto").config.model.gradient_checkpointing is True


@pytest.mark.parametrize("value", ["qkv+", "attention+attention", "keys"])
def test_unknown_names_are_refused(value: str) -> None:
    with pytest.raises(ConfigError, match=re.escape(f"model.gradient_checkpointing: {value!r} is not known")) as error:
        LlamaConfig(gradient_checkpointing=value)
    assert "qkv+attention" in str(error.value)
