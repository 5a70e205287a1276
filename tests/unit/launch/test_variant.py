"""Choice of the package variant for a host."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from midstream.errors import UsageError
from midstream.fleet.fleet import VARIANTS, LocalHostConfig
from midstream.fleet.fleet_file import parse_fleet
from midstream.install.errors import LaunchError
from midstream.install.install_progress import pinned_versions
from midstream.install.variant import Variant, choose_variant
from midstream_host.machine.checks import AcceleratorKinds


def facts(**more: Any) -> AcceleratorKinds:
    none = AcceleratorKinds(gpus=[], driver="", cuda="", compute=[], tpus=[], pids=[], machine="x86_64")
    return replace(none, **more)


@pytest.mark.parametrize(
    ("found", "name", "why"),
    [
        ({}, "cpu", "no accelerator was found"),
        ({"gpus": ["A100"], "driver": "550.54.15", "compute": ["8.0"]}, "cuda12", "A100, driver 550.54.15"),
        ({"gpus": ["H100"], "driver": "580.65.06", "compute": ["9.0"]}, "cuda13", "H100, driver 580.65.06"),
        ({"gpus": ["V100"], "driver": "580.65.06", "compute": ["7.0"]}, "cuda12", "V100, compute capability 7.0"),
        (
            {"gpus": ["T4", "V100"], "driver": "590", "compute": ["7.0", "7.5"]},
            "cuda12",
            "T4, compute capability 7.0",
        ),
        ({"gpus": ["A100"], "driver": ""}, "cuda12", "A100; its driver does not report its version"),
        ({"tpus": ["TPU v2/v3"] * 8}, "tpu-v3", "8 x TPU v2/v3"),
        ({"tpus": ["TPU v4"] * 4}, "tpu", "4 x TPU v4"),
    ],
)
def test_variant_follows_from_accelerators_and_driver(found: dict[str, Any], name: str, why: str) -> None:
    assert choose_variant("gpu1", LocalHostConfig(), facts(**found)) == Variant(name, why)


@pytest.mark.parametrize(
    ("found", "message"),
    [
        ({"gpus": ["A100"], "driver": "470.82"}, "gpu1: the driver 470.82 of A100 is too old: jax needs 525 or newer"),
        ({"tpus": ["TPU v4"], "machine": "aarch64"}, "gpu1: libtpu is built for x86_64 alone, not for aarch64"),
    ],
)
def test_host_without_matching_variant_is_refused(found: dict[str, Any], message: str) -> None:
    with pytest.raises(LaunchError, match=message):
        choose_variant("gpu1", LocalHostConfig(), facts(**found))


def test_fleet_file_overrides_the_variant() -> None:
    old = facts(gpus=["K80"], driver="470.82")
    assert choose_variant("gpu1", LocalHostConfig(variant="cpu"), old).name == "cpu"
    assert choose_variant("gpu1", LocalHostConfig(devices=4), old).name == "cpu"
    with pytest.raises(UsageError, match=r"hosts\.a\.variant is 'cuda11' \(did you mean cuda1"):
        parse_fleet("hosts: {a: {type: local, variant: cuda11}}", "f")


@pytest.mark.parametrize("name", VARIANTS)
@pytest.mark.parametrize(("python", "series"), [("3.11.7", "0.10."), ("3.12.1", "0.12."), ("3.13.0", "0.12.")])
def test_each_variant_has_lock_with_hashes_and_its_jax(name: str, python: str, series: str) -> None:
    lock = Variant(name, "").lock
    pins = pinned_versions(lock, python)
    assert lock.count("--hash=sha256:") > len(pins)
    older = python.startswith("3.11.")  # jax 0.11 and marin-haliax need 3.12, and haliax an older jax
    assert pins.keys() & {"haliax", "marin-haliax"} == {"haliax" if older else "marin-haliax"}
    assert pins["jax"] == pins["jaxlib"]
    assert pins["jax"].startswith("0.10." if name == "tpu-v3" else series)
    plugins = {"cuda12": "jax-cuda12-plugin", "cuda13": "jax-cuda13-plugin", "tpu": "libtpu", "tpu-v3": "libtpu"}
    expected = {plugins[name]} if name in plugins else set()
    assert expected == {plugin for plugin in plugins.values() if plugin in pins}
    if name == "tpu-v3":
        assert pins["jax"] == "0.10.1"
        assert tuple(map(int, pins["libtpu"].split("."))) < (0, 0, 42, 1), "later ones have no TPU v3"
