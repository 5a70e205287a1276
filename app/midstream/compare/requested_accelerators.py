"""Accelerators that a target's entry in the fleet file requests.

They are known before there are any hosts.

A SLURM job names them in the flags of sbatch, a Kubernetes Job in resources and labels of its nodes.
"""

from __future__ import annotations

from typing import Any

from midstream.compare.device_names import accelerators_of_devices
from midstream.errors import UsageError
from midstream.fleet.fleet import Fleet, KubernetesTarget, SlurmTarget
from midstream.launch.slurm_allocation import device_kind, requested_devices
from midstream_engine.shared import accelerator_types
from midstream_engine.shared.accelerator_types import AcceleratorType

GPU_RESOURCE = "nvidia.com/gpu"
GPU_LABELS = ("nvidia.com/gpu.product", "cloud.google.com/gke-accelerator")
TPU_LABEL, TOPOLOGY_LABEL = "cloud.google.com/gke-tpu-accelerator", "cloud.google.com/gke-tpu-topology"
# Values of the label. https://cloud.google.com/kubernetes-engine/docs/concepts/plan-tpus
TPU_KINDS = {"tpu-v4-podslice": "v4", "tpu-v5-lite-podslice": "v5e", "tpu-v5p-slice": "v5p", "tpu-v6e-slice": "v6e",
             "tpu7x": "tpu7x"}  # fmt: skip


def requested_accelerators(fleet: Fleet, name: str) -> AcceleratorType | None:
    """Return the accelerators that a target's entry requests.

    None where it does not say, or they are not of one kind in the table.
    """
    config = fleet.targets.get(name)
    if isinstance(config, SlurmTarget):
        try:
            requested = requested_devices(name, config, fleet.hosts[config.host])
        except UsageError:
            return None
        return accelerators_of_devices([device_kind(requested, None)] * requested.devices)
    if isinstance(config, KubernetesTarget):
        return _of_pods(config)
    return None


def _of_pods(target: KubernetesTarget) -> AcceleratorType | None:
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
    return int(text) if text.isascii() and text.isdigit() and len(text) < 5 else 0
