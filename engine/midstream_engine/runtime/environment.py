"""Devices and packages of this process, as its status names them."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from typing import Any

_PACKAGES = ("midstream", "jax", "jaxlib", "haliax", "marin-haliax", "equinox", "optax", "numpy")
# Compilers and libraries of accelerators; a host has those of one kind.
_COMPILERS = (
    "libtpu", "jax-cuda12-pjrt", "jax-cuda12-plugin", "jax-cuda13-pjrt", "jax-cuda13-plugin", "nvidia-cublas",
    "nvidia-cublas-cu12", "nvidia-cuda-nvcc", "nvidia-cuda-nvcc-cu12", "nvidia-cudnn-cu12", "nvidia-cudnn-cu13",
)  # fmt: skip


def describe_devices() -> list[dict[str, Any]]:
    """Return the kind, platform and memory of all devices.

    ``[{"kind", "platform", "memory_bytes"}]``; memory_bytes may be None.
    """
    import jax

    described = []
    for device in jax.devices():
        stats = device.memory_stats() if device.platform != "cpu" else None
        memory = (stats or {}).get("bytes_limit")
        described.append({"kind": device.device_kind, "platform": device.platform, "memory_bytes": memory})
    return described


def versions() -> dict[str, str]:
    """Return the versions of the interpreter and of the packages that affect results."""
    return dict(_versions())


@cache
def _versions() -> Mapping[str, str]:
    import platform
    from importlib import metadata

    packages = {"python": platform.python_version()}
    for package in (*_PACKAGES, *_COMPILERS):
        try:
            packages[package] = metadata.version(package)
        except metadata.PackageNotFoundError:  # the engine bundle is not an installed distribution
            continue
    return packages
