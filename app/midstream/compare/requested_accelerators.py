"""Accelerators that a target's fleet file entry requests, before any hosts exist.

A SLURM job names them in the flags of sbatch, a Kubernetes Job in resources and labels of its nodes.
"""

from __future__ import annotations

import re
from typing import Any

from midstream.compare.device_names import accelerators_of_devices
from midstream.errors import UsageError
from midstream.fleet.fleet import Fleet, KubernetesTarget, SlurmTarget
from midstream.launch.slurm_allocation import EXAMPLE, device_kind, requested_devices
from midstream_core import accelerator_types
from midstream_core.accelerator_types import DEVICES_OF_HOST, EXAMPLES, AcceleratorType

GPU_RESOURCE = "nvidia.com/gpu"
GPU_LABELS = ("nvidia.com/gpu.product", "cloud.google.com/gke-accelerator")
TPU_LABEL, TOPOLOGY_LABEL = "cloud.google.com/gke-tpu-accelerator", "cloud.google.com/gke-tpu-topology"
# Values of the label. https://cloud.google.com/kubernetes-engine/docs/concepts/plan-tpus
TPU_KINDS = {"tpu-v4-podslice": "v4", "tpu-v5-lite-podslice": "v5e", "tpu-v5p-slice": "v5p", "tpu-v6e-slice": "v6e",
             "tpu7x": "tpu7x"}  # fmt: skip


class UnknownAcceleratorsError(UsageError):
    """Accelerators of a fleet file target that are unknown, or not in the table."""


def accelerators_of_job(fleet: Fleet, name: str, config: SlurmTarget) -> AcceleratorType:
    """Return the accelerators that a SLURM target's flags of sbatch request.

    Raises:
        UnknownAcceleratorsError: The flags do not say number and type, or the type is not in the table.
    """
    try:
        requested = requested_devices(name, config, fleet.hosts[config.host])
    except UsageError as error:
        raise UnknownAcceleratorsError(f"--with {name}: {error.message}", error.hint) from error
    count, kind = requested.devices, device_kind(requested, None)
    if not kind:
        what = f"its flags of sbatch request {requested.describe()}, of no type"
        raise UnknownAcceleratorsError(f"--with {name}: {what}", f"{EXAMPLE}, or name the accelerators: {EXAMPLES}")
    if re.fullmatch(r"(NVIDIA )?A100([ _-](SXM4|PCIE))?", kind):
        sizes = f"a100-40x{count} or a100-80x{count}"
        raise UnknownAcceleratorsError(f"--with {name}: A100s have 40 or 80 GB, and sbatch's flags do not say", sizes)
    if requested.nodes > 1 and count != DEVICES_OF_HOST * requested.nodes and kind != "cpu":
        what = f"{requested.describe()}, and several nodes are compared with {DEVICES_OF_HOST} GPUs each"
        raise UnknownAcceleratorsError(f"--with {name}: {what}", EXAMPLES)
    accelerators = accelerators_of_devices([kind] * count)
    if accelerators is None:
        what = f"{requested.describe()}, for which there is no compiler here"
        raise UnknownAcceleratorsError(f"--with {name}: {what}", EXAMPLES)
    return accelerators


def accelerators_of_pods(target: KubernetesTarget) -> AcceleratorType | None:
    """Return the accelerators that a Kubernetes target's pods request.

    None where the target names no kind, or no accelerators in the table have this kind and number.
    """
    labels = {str(key): str(value) for key, value in target.node_selector.items()}
    generation, topology = TPU_KINDS.get(labels.get(TPU_LABEL, "")), labels.get(TOPOLOGY_LABEL)
    if generation and topology:
        try:
            return accelerator_types.parse(f"{generation}:{topology}")
        except ValueError:
            return None
    kind = next((labels[label] for label in GPU_LABELS if label in labels), "")
    number = _number(target.resources.get(GPU_RESOURCE)) * target.pods
    return accelerators_of_devices([kind.upper()] * number) if kind else None


def _number(value: Any) -> int:
    """Return a number of devices; 0 for anything else."""
    text = str(value)
    return int(text) if text.isascii() and text.isdecimal() and len(text) < 5 else 0
