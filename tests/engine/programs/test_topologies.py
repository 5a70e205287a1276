"""Descriptions of TPUs and GPUs that are not here, for their compilers."""

from __future__ import annotations

import pytest

from midstream_engine.compiled_program.gpu_topologies import (
    cudnn_number,
    describe_gpus,
    gpu_compiler,
    gpu_devices,
    names_gpus,
)
from midstream_engine.compiled_program.topologies import tpu_devices, tpu_library
from midstream_engine.config import ConfigError


def test_unknown_topology_and_missing_compiler_are_errors(monkeypatch: pytest.MonkeyPatch) -> None:
    if tpu_library() is None:
        with pytest.raises(ConfigError, match="the compiler for TPUs is not installed: make compilers"):
            tpu_devices("v5e:2x2")
        return
    with pytest.raises(ConfigError, match="no such TPU topology"):
        tpu_devices("v9:2x2")


def test_unknown_gpus_and_missing_compiler_are_errors() -> None:
    for name in ("h100", "h100x0", "h100x12", "rtx9000x8", "v5e:4x4"):
        with pytest.raises(ConfigError, match=f"{name}: no such GPUs; write one of a100-40, a100-80, h100, h200"):
            gpu_devices(name)
    assert names_gpus("h100x8")
    assert not names_gpus("v5e:4x4")
    if gpu_compiler() is None:
        with pytest.raises(ConfigError, match="the compiler for GPUs is not installed: make compilers-cuda"):
            gpu_devices("h100x8")


def test_gpus_are_described_for_processes_without_the_engine() -> None:
    sixteen = describe_gpus("h100x16")
    assert sixteen.topology == "1x2x8", "hosts of eight"
    assert 'device_description_str: "NVIDIA H100 80GB HBM3"' in sixteen.target_config
    major, rest = divmod(cudnn_number(), 10_000)
    assert f"dnn_version_info {{ major: {major} minor: {rest // 100} patch: {rest % 100} }}" in sixteen.target_config
