"""Build of the engine's packages for a host, by its driver, TPU or fleet file.

Floors: the CUDA 12 builds of jax need driver 525, those for CUDA 13 need driver 580 and compute capability 7.5; libtpu
0.0.42.1 drops TPU v2 and v3, whose last jax is 0.10.1. TPU wheels exist for x86_64 alone.
"""

from __future__ import annotations

from dataclasses import dataclass

from midstream.bundled_files import shipped
from midstream.counts import count
from midstream.fleet.fleet import HostConfig
from midstream.install.errors import LaunchError
from midstream_host.machine.checks import AcceleratorKinds

CUDA12_DRIVER, CUDA13_DRIVER = (525,), (580,)
CUDA13_COMPUTE = (7, 5)
# What a build has that the others have not: without it jax runs on the CPU and says so in a warning at most.
PLUGINS = {"cuda12": "jax_cuda12_plugin", "cuda13": "jax_cuda13_plugin", "tpu": "libtpu", "tpu-v3": "libtpu"}


@dataclass(frozen=True)
class Variant:
    """One of the fleet file's variants, and why it was chosen."""

    name: str
    why: str

    @property
    def lock(self) -> str:
        """Text of its lock file."""
        return shipped(f"locks/engine-{self.name}.txt").read_text(encoding="utf-8")

    @property
    def plugin(self) -> str | None:
        """Module that only this build has; None for the CPU."""
        return PLUGINS.get(self.name)


def choose_variant(name: str, config: HostConfig, facts: AcceleratorKinds | None) -> Variant:
    """Choose the variant for the host ``name`` by the ``facts`` of its accelerators.

    ``facts`` may be None if the fleet file has the variant or virtual devices.

    Raises:
        LaunchError: No variant runs on the host.
    """
    if config.variant is not None:
        return Variant(config.variant, "named in the fleet file")
    if config.devices is not None:
        return Variant("cpu", count(config.devices, "virtual device"))
    if facts is not None and facts.gpus:
        return _cuda(name, facts.gpus[0], facts.driver, facts.compute)
    if facts is not None and facts.tpus:
        tpus = facts.tpus
        if facts.machine != "x86_64":
            raise LaunchError(f"{name}: libtpu is built for x86_64 alone, not for {facts.machine}")
        old = tpus[0] in ("TPU v2", "TPU v3", "TPU v2/v3")
        return Variant("tpu-v3" if old else "tpu", f"{len(tpus)} x {tpus[0]}")
    return Variant("cpu", "no accelerator was found")


def _cuda(host: str, kind: str, driver: str, compute: list[str]) -> Variant:
    version = _numbers(driver)
    if not version:
        return Variant("cuda12", f"{kind}; its driver does not report its version")
    if version < CUDA12_DRIVER:
        raise LaunchError(
            f"{host}: the driver {driver} of {kind} is too old: jax needs {CUDA12_DRIVER[0]} or newer",
            "install a newer NVIDIA driver; `variant: cpu` in the fleet file does without the GPUs",
        )
    capable = all(_numbers(capability) >= CUDA13_COMPUTE for capability in compute) and bool(compute)
    if version >= CUDA13_DRIVER and capable:
        return Variant("cuda13", f"{kind}, driver {driver}")
    why = f"driver {driver}" if version < CUDA13_DRIVER else f"compute capability {min(compute, default='unknown')}"
    return Variant("cuda12", f"{kind}, {why}")


def _numbers(version: str) -> tuple[int, ...]:
    parts = version.split(".")
    return tuple(int(number) for number in parts) if all(number.isdecimal() for number in parts) else ()
