"""Devices and packages of this process, as its status names them."""

from __future__ import annotations

from typing import Any


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
    import platform
    from importlib import metadata

    packages = {"python": platform.python_version()}
    for package in ("midstream", "jax", "jaxlib", "haliax", "equinox", "optax", "numpy"):
        try:
            packages[package] = metadata.version(package)
        except metadata.PackageNotFoundError:  # the engine bundle is not an installed distribution
            continue
    return packages
