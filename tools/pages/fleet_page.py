"""Sections of docs/reference/fleet-file.md: each field with its dataclass default."""

from __future__ import annotations

import dataclasses
from typing import Any

from midstream.fleet import fleet, machine_type, slice_target
from midstream.fleet.container_config import RUNTIMES, ContainerConfig
from midstream.fleet.notify_config import TYPES, NotifyConfig
from midstream.fleet.store_config import StoreConfig
from pages.events_page import notifications
from pages.markdown import table

_ENVIRONMENTS = "ssh.md#choose-how-the-engines-packages-get-there"
# Class -> field -> meaning, or meaning and default in words.
FIELDS: dict[type, dict[str, str | tuple[str, str]]] = {
    fleet.HostConfig: {
        "root": "directory for runs, engines, environments and data; `~` is the home on the host",
        "python": "absolute path of an interpreter that has the engine's packages; without it an "
        f"[environment]({_ENVIRONMENTS}) is built",
        "setup": "shell lines before the engine starts: `[module load cuda]`",
        "env": "added to the environment of the engine and of installers. For settings, not for secrets: the values "
        "are in command lines on that host, and in the files of a migration",
        "secrets": "added to the engine's environment, each read on this machine: `env:NAME`, a variable, or "
        "`file:PATH`",
        "variant": (f"build of the engine's packages: {', '.join(f'`{name}`' for name in fleet.VARIANTS)}", "detected"),
        "wheelhouse": "a directory of this machine with wheels, for a host without a package index",
        "internal_address": ("address for the other hosts of a target", "detected"),
        "stall_timeout": ("seconds without a step after which a running engine is ended", "`900`"),
        "devices": (
            "a list: the GPUs that runs here may use, as `[0, 1]`, or UUIDs of `nvidia-smi -L`, `[GPU-8932f937]`, "
            "`[MIG-c6d4f1ef-...]` ([part of a machine](../how-to/hosts.md#use-a-part-of-a-machine)); a number: "
            "that many virtual CPU devices instead, for trials",
            "all real ones",
        ),
        "price_per_hour": "in one currency for all prices",
        "store": (
            "where runs that start here keep their checkpoints: a name of `stores:`, `gs://BUCKET/PREFIX` or `s3://BUCKET/PREFIX`",
            "run directories",
        ),
        "bandwidth_limit": (
            "limit of copies to and from it: `100MB/s`, `1Gb/s`, `500MiB/s`; the lower one of two hosts counts", "none",
        ),
        "copy_route": (
            f"of copies: {', '.join(f'`{name}`' for name in fleet.COPY_ROUTES)}; "
            "`relay` opens no port, `direct` refuses to relay between two SSH hosts "
            "([copying](../explanation/copying.md))",
            "`auto`",
        ),
        "copy_ports": (
            "ports for direct copies, from other hosts and from this machine: `40000-40100`", "any free port",
        ),
        "container": ("a [container](#containers) in which its engines run", "on the host itself"),
    },
    fleet.SshHostConfig: {
        "address": "`[user@]name[:port]`; the name may be an alias of the SSH configuration; an IPv6 address with a "
        "port is in brackets",
        "port": "takes precedence over address and SSH configuration",
        "user": "takes precedence over address and SSH configuration",
        "identity_file": "this key first; the agent is then not used",
        "ssh_config": "complete SSH configuration, as `ssh -F`; of a file that `~/.ssh/config` includes, that one",
        "known_hosts": ("file of host keys", "that of the SSH configuration"),
    },
    fleet.KubernetesHostConfig: {
        "pod": "name of the pod; or a `selector`",
        "selector": "labels that one running pod has: `app=train`",
        "pod_container": ("name of the container", "the pod's default"),
        "context": ("of the kubeconfig", "the current one"),
        "namespace": ("of the pod", "the context's"),
        "kubeconfig": ("a file of this machine", "kubectl's own"),
    },
    ContainerConfig: {
        "image": "as the runtime names it: an image, a `.sif` file, the name of an enroot container",
        "runtime": f"{', '.join(f'`{name}`' for name in RUNTIMES)}; `pyxis` in SLURM targets alone",
        "mounts": "further directories of the host: `/data`, `/data:/mnt/data`, `/data:/data:ro`. The root is mounted",
        "options": "further flags of the runtime: `[--shm-size=16g]`",
    },
    fleet.HostsTarget: {
        "hosts": "hosts of this file, one engine process on each",
        "shared_root": "a directory that all of them see, and that replaces the root of each",
        "ports": ("the first and the last port that is open between them: `[29400, 29499]`", "all are open"),
        "container": ("a [container](#containers)", "that of each host"),
    },
    fleet.SlurmTarget: {
        "host": "the login node, whose root the compute nodes share",
        "sbatch": "flags of sbatch: `[--nodes=2, --gpus-per-node=8]`",
        "ports": ("the first and the last port that is open between the nodes", "all are open"),
        "container": ("a [container](#containers) on the nodes", "that of the login node"),
        "guard_lead": (
            "how long before its time limit `--guard` hands a job of it on: `45m`. `--guard-lead` goes before it",
            "twice the estimated migration",
        ),
    },
    fleet.KubernetesTarget: {
        "name": ("of the Job or JobSet", "the target's name"),
        "kind": f"{' or '.join(f'`{name}`' for name in fleet.JOB_KINDS)}",
        "pods": "number of pods: one engine process in each. They are the hosts `TARGET-0`, `TARGET-1`, ...",
        "pod_container": ("name of the container", "the pod's default"),
        "context": ("of the kubeconfig", "the current one"),
        "namespace": ("of the pods", "the context's"),
        "kubeconfig": ("a file of this machine", "kubectl's own"),
        "create": "midstream may create it",
        "image": "of the pods that midstream creates: with sh, and Python or the engine's packages",
        "resources": "limits of each pod: `{nvidia.com/gpu: 8}`",
        "node_selector": "labels of the nodes: `{cloud.google.com/gke-accelerator: nvidia-h100-80gb}`",
        "volume_claim": "a claim that is mounted at the root of each pod (`worker: {root: ...}`)",
        "manifest": ("a file of this machine; `$name`, `$pods`, `$image`, `$target` in it are replaced", "midstream's"),
        "ports": ("the first and the last port that is open between the pods", "all are open"),
        "worker": "fields of each pod as a host: `{root: /data/midstream, variant: cuda13}`",
    },
    fleet.TpuTarget: {
        "accelerator_type": "`v4-8`, `v5litepod-16`, `v6e-8`; with `topology` the generation alone: `v5p`",
        "topology": "`2x2x4`",
        "runtime_version": "v4 and older `tpu-ubuntu2204-base`, v5e `v2-alpha-tpuv5-lite`, v5p `v2-alpha-tpuv5`, "
        "v6e `v2-alpha-tpuv6e`",
        "queued": "request it as a queued resource; `reservation`, `calendar` and `flex_start` need it",
        "slices": "one; several (Multislice) are refused",
    },
    fleet.ComputeTarget: {
        "machine_type": f"one with TPUs: {', '.join(f'`{name}`' for name in machine_type.EXAMPLES.split(', '))}",
        "topology": ("of several machines, in chips: `2x2x2`. They are a managed instance group", "one machine"),
        "image": ("`projects/PROJECT/global/images/family/FAMILY`", "Google's for that generation"),
        "boot_disk_size": "GB of each machine",
        "slices": "one; several (Multislice) are refused",
    },
    fleet.SliceTarget: {
        "project": "of the slice",
        "zone": "of the slice",
        "name": ("of the node, machine or group", "the target's name"),
        "create": "midstream may create it",
        "spot": "price class: spot. Without any price class: on demand",
        "reserved": "price class: any reservation of the project; of `gce` with `reservation`",
        "reservation": "price class: this reservation, as `NAME` or `PROJECT/NAME`",
        "calendar": "the reservation is one of calendar mode: the machines are deleted when it ends",
        "flex_start": "price class: flex-start. Waits for capacity, runs for `run_duration`, is deleted",
        "run_duration": "of `flex_start`: `30m`, `6h`, at most `7d`",
        "valid_until": "limit of the wait: `30m`, `6h`, `2d`; time in which this machine sleeps counts",
        "network": ("of the workers", "the project's"),
        "subnetwork": ("of the workers", "the project's"),
        "service_account": ("of the workers: their identity for buckets", "the project's"),
        "reach": f"addresses that SSH connects to: {', '.join(f'`{name}`' for name in slice_target.REACHES)}",
        "user": ("for SSH", "you"),
        "os_login": ("the account whose OS Login profile gets the key", "the node's metadata"),
        "identity_file": "for SSH; a missing key is created",
        "port": "for SSH",
        "price_per_hour": "of the slice, for plans and costs",
        "worker": "fields of each worker as a host: `{env: {...}, setup: [...], store: ckpt}`",
        "hosts": "its workers: midstream finds them",
    },
    NotifyConfig: {
        "type": f"{' or '.join(f'`{name}`' for name in TYPES)}: the event as JSON, or a message for a chat",
        "url": "`env:NAME` or `file:PATH` of this machine, or an `https://` address without a secret",
        "kinds": ("of events: `[failed, needs you]`", "all"),
    },
    StoreConfig: {
        "url": "`gs://BUCKET/PREFIX` or `s3://BUCKET/PREFIX`; the prefix may be absent",
        "credentials": "of this machine: `default`, `anonymous`, or a file, which stays on this machine: a service "
        "account's key for gs://, a credentials file of AWS's format for s3://",
        "endpoint": ("of an S3 service, for this machine and for engines", "Amazon's, or `AWS_ENDPOINT_URL_S3`"),
        "region": ("of an S3 bucket, for this machine and for engines", "that of the profile"),
        "profile": ("of AWS's configuration on this machine", "`AWS_PROFILE`, or `default`"),
        "impersonate": "service account that this machine acts as; an engine cannot impersonate",
        "project": ("of the client", "that of the credentials"),
        "user_project": "project that pays for requests (requester pays), for this machine and for engines",
    },
    fleet.GoogleConfig: {
        "projects": "further projects in `--status`",
        "zones": ("their zones", "all"),
    },
}  # fmt: skip
_HIDDEN = {(fleet.SliceTarget, "hosts")}  # not for users


def sections() -> dict[str, str]:
    """Return the sections by name."""
    kinds = " or ".join(f"`{name}`" for name in sorted(fleet.HostConfig.get_known_choices()))
    return {
        "hosts": _table(fleet.HostConfig, ("`type`", kinds, "")),
        "ssh": _table(fleet.SshHostConfig),
        "hosts target": _table(fleet.HostsTarget),
        "slurm": _table(fleet.SlurmTarget),
        "slices": _table(fleet.SliceTarget),
        "kubernetes": _table(fleet.KubernetesHostConfig),
        "kubernetes target": _table(fleet.KubernetesTarget),
        "containers": _table(ContainerConfig),
        "tpu": _table(fleet.TpuTarget),
        "gce": _table(fleet.ComputeTarget),
        "notify": _table(NotifyConfig),
        "stores": _table(StoreConfig),
        "google": _table(fleet.GoogleConfig),
        "notifications": notifications(),
    }


def own_fields(cls: Any) -> list[dataclasses.Field[Any]]:
    """Return the fields of a class that its base does not have."""
    base = {
        field.name
        for parent in cls.__mro__[1:]
        if dataclasses.is_dataclass(parent)
        for field in dataclasses.fields(parent)
    }
    return [field for field in dataclasses.fields(cls) if field.name not in base]


def _table(cls: type, *first: tuple[str, str, str]) -> str:
    rows = [
        (f"`{field.name}`", *_described(cls, field)) for field in own_fields(cls) if (cls, field.name) not in _HIDDEN
    ]
    return table(("field", "means", "default"), [*first, *rows])


def _described(cls: type, field: dataclasses.Field[Any]) -> tuple[str, str]:
    """Return a field's meaning and default.

    Raises:
        KeyError: `FIELDS` lacks the field.
    """
    found = FIELDS[cls][field.name]
    if isinstance(found, tuple):
        return found
    factory = field.default_factory
    value = field.default if factory is dataclasses.MISSING else factory()
    if value is None or value == "":
        return found, ""
    return found, f"`{str(value).lower() if isinstance(value, bool) else value}`"
