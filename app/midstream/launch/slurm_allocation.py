"""Devices of a SLURM allocation before it starts, by sbatch's flags and SLURM.

SLURM names the nodes that it would allocate.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from midstream.counts import count
from midstream.errors import RemoteError, UsageError
from midstream.fleet.fleet import HostConfig, SlurmTarget
from midstream.fleet.sbatch_flags import sbatch_flags
from midstream.hosts.host import Host
from midstream.install.errors import LaunchError
from midstream_host.runs import slurm
from midstream_host.runs.slurm_states import seconds_of

ALLOCATION_TIMEOUT = 120.0  # seconds for SLURM to answer
EXAMPLE = "sbatch: [--nodes=2, --gpus-per-node=h100:8]"
# In messages of sbatch: it has no answer of the controller.
NO_ANSWER = re.compile("did not answer within|timed out|Unable to contact|Zero Bytes|[Cc]onnection refused")
UNCOUNTED = ("ntasks-per-gpu", "ntasks-per-core", "ntasks-per-socket")
LARGEST = 100_000  # nodes, tasks or devices


@dataclass(frozen=True)
class RequestedDevices:
    """The devices that sbatch's flags request.

    ``kind``: SLURM's type of the GPUs; empty where the flags name none.
    """

    nodes: int
    processes: int
    devices: int
    kind: str = ""

    def describe(self) -> str:
        """Return the request in words: ``16 devices (h100) on 2 nodes``."""
        kind = f" ({self.kind})" if self.kind else ""
        return f"{count(self.devices, 'device')}{kind} on {count(self.nodes, 'node')}"


def requested_devices(
    name: str, target: SlurmTarget, config: HostConfig, granted: slurm.Allocation | None = None
) -> RequestedDevices:
    """Return the devices that a target's flags of sbatch request.

    Args:
        name: The target's name, for errors.
        target: The target.
        config: The login node's entry; its ``devices`` are virtual devices of each process.
        granted: What SLURM would allocate: it has the number of nodes where the flags name none.

    Raises:
        UsageError: The flags do not say how many devices the job gets.
    """
    flags = sbatch_flags(target.sbatch)
    ntasks = _number(name, "ntasks", flags)
    for flag in UNCOUNTED:
        if flag in flags:
            raise UsageError(f"target {name}: --{flag} leaves the number of its processes open", EXAMPLE)
    nodes = _number(name, "nodes", flags)
    if nodes is None and granted is not None and granted.count:
        nodes = granted.count
    if nodes is None:
        nodes = 1 if "ntasks-per-node" in flags or ntasks is None else ntasks
    processes = ntasks or nodes * (_number(name, "ntasks-per-node", flags) or 1)
    if config.devices is not None:
        return RequestedDevices(nodes, processes, processes * config.devices, "cpu")
    per = {"gpus-per-node": nodes, "gres": nodes, "gpus-per-task": processes, "gpus": 1}
    for flag, factor in per.items():
        gpus = _gpus(name, flag, flags[flag]) if flag in flags else None
        if gpus is not None:
            kind, number = gpus
            return RequestedDevices(nodes, processes, number * factor, kind)
    raise UsageError(
        f"target {name}: its flags of sbatch request no GPUs, so that its devices are not known before the job runs",
        EXAMPLE,
    )


def device_kind(requested: RequestedDevices, allocation: slurm.Allocation | None) -> str:
    """Return the kind of the devices as their driver names it, as far as SLURM says.

    Empty: not known.

    The flags name it (``--gres=gpu:h100:8``), else the nodes that SLURM would allocate have GPUs of one type.
    """
    kind = requested.kind
    if not kind and allocation is not None:
        types = {
            match[1]
            for resources in allocation.gres
            for match in re.finditer(r"gpu:([A-Za-z][\w.-]*)(?=[:(,]|$)", resources)
        }
        kind = types.pop() if len(types) == 1 else ""
    if kind in ("", "cpu"):
        return kind
    words = kind.replace("_", " ").upper()
    return words if words.startswith(("NVIDIA", "TESLA", "AMD")) else f"NVIDIA {words}"


def time_limit(sbatch: Sequence[str], allocation: slurm.Allocation | None) -> float:
    """Return the seconds of a job's time limit; 0: none, or not known.

    Args:
        sbatch: The target's flags of sbatch.
        allocation: What SLURM would allocate, with the limit of its partition.
    """
    given = sbatch_flags(sbatch).get("time")
    if given is None:
        return allocation.limit if allocation is not None else 0.0
    return seconds_of(given)


def query_allocation(host: Host, name: str, target: SlurmTarget) -> slurm.Allocation:
    """Return what SLURM would allocate to the target's job now.

    Raises:
        LaunchError: SLURM rejects the flags, or its commands do not run.
    """
    try:
        flags = [*task_flags(target.sbatch), *target.sbatch]
        return host.call(slurm.allocation, timeout=ALLOCATION_TIMEOUT)(flags=flags)
    except RemoteError as error:
        if error.kind != "SlurmError":
            raise
        raise LaunchError(error.message, sbatch_hint(name, error.message)) from error


def sbatch_hint(name: str, message: str) -> str:
    """Return the hint for an error of sbatch.

    ``name`` is that of the target, ``message`` that of the error.
    """
    if NO_ANSWER.search(message):
        return "the cluster's controller does not answer: try again when it does"
    return f"correct sbatch: of target {name} in the fleet file"


def task_flags(sbatch: Sequence[str]) -> list[str]:
    """Return the flags that give a node one task where ``sbatch:`` leaves that open.

    ``--ntasks-per-node`` is an upper limit beside ``--ntasks``, and keeps ``--gpus`` alone on one node.
    """
    flags = sbatch_flags(sbatch)
    return ["--ntasks-per-node=1"] if ("nodes" in flags) != ("ntasks" in flags) else []


def _number(name: str, flag: str, flags: dict[str, str]) -> int | None:
    """Return a flag's number.

    Raises:
        UsageError: It is a range: the job may then get any number of it.
    """
    if flag not in flags:
        return None
    low, _, high = flags[flag].partition("-")
    if not re.fullmatch(r"[0-9]{1,6}", low) or high not in ("", low) or not 0 < int(low) <= LARGEST:
        raise UsageError(
            f"target {name}: --{flag}={flags[flag]} is not one number, so that its devices are not known", EXAMPLE
        )
    return int(low)


def _gpus(name: str, flag: str, value: str) -> tuple[str, int] | None:
    """Return type and number of the GPUs that a flag names; None for other resources."""
    gpus: list[tuple[str, int]] = []
    for word in value.split(","):
        words = word.strip().split("/")[-1].split(":")
        if flag == "gres":
            if words[0] != "gpu":
                continue
            words = words[1:] or ["1"]
        number = words[-1] if words[-1].isdecimal() else "1"
        kind = ":".join(words[:-1] if words[-1].isdecimal() else words)
        if not 0 < int(number[:9]) <= LARGEST:
            raise UsageError(f"target {name}: --{flag}={value} requests no GPU", EXAMPLE)
        gpus.append((kind, int(number[:9])))
    if len({kind for kind, _ in gpus}) > 1:
        raise UsageError(f"target {name}: --{flag}={value} names several types of GPU", "one type: a mesh is of one")
    return (gpus[0][0], sum(number for _, number in gpus)) if gpus else None
