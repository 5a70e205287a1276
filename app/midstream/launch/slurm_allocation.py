"""The devices of a SLURM allocation before it starts.

They follow from sbatch's flags, and from the nodes that SLURM would allocate.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from midstream.counts import count
from midstream.errors import RemoteError, UsageError
from midstream.fleet.fleet import HostConfig, SlurmTarget
from midstream.hosts.host import Host
from midstream.launch.errors import LaunchError
from midstream.remote.runs import slurm

ALLOCATION_TIMEOUT = 120.0  # seconds for SLURM to answer
EXAMPLE = "sbatch: [--nodes=2, --gpus-per-node=h100:8]"
SHORT = {"-N": "nodes", "-n": "ntasks", "-G": "gpus"}
# In messages of sbatch: it has no answer of the controller.
NO_ANSWER = re.compile("did not answer within|timed out|Unable to contact|Zero Bytes|[Cc]onnection refused")
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


def requested_devices(name: str, target: SlurmTarget, config: HostConfig) -> RequestedDevices:
    """Return the devices that a target's flags of sbatch request.

    Args:
        name: The target's name, for errors.
        target: The target.
        config: The login node's entry; its ``devices`` are virtual devices of each process.

    Raises:
        UsageError: The flags do not say how many devices the job gets.
    """
    flags = sbatch_flags(target.sbatch)
    ntasks = _number(name, "ntasks", flags)
    nodes = _number(name, "nodes", flags) or (1 if "ntasks-per-node" in flags or ntasks is None else ntasks)
    processes = ntasks or nodes * (_number(name, "ntasks-per-node", flags) or 1)
    if config.devices is not None:
        return RequestedDevices(nodes, processes, processes * config.devices, "cpu")
    per = {"gpus-per-node": nodes, "gres": nodes, "gpus-per-task": processes, "gpus": 1}
    for flag, factor in per.items():
        found = _gpus(name, flag, flags[flag]) if flag in flags else None
        if found is not None:
            kind, number = found
            return RequestedDevices(nodes, processes, number * factor, kind)
    raise UsageError(
        f"target {name}: its flags of sbatch request no GPUs, so that its devices are not known before the job runs",
        EXAMPLE,
    )


def device_kind(requested: RequestedDevices, found: slurm.Allocation | None) -> str:
    """Return the kind of the devices as their driver names it, as far as SLURM says.

    Empty: not known.

    The flags name it (``--gres=gpu:h100:8``), else the nodes that SLURM would allocate have GPUs of one type.
    """
    kind = requested.kind
    if not kind and found is not None:
        types = {match[1] for each in found.gres for match in re.finditer(r"gpu:([A-Za-z][\w.-]*)(?=[:(,]|$)", each)}
        kind = types.pop() if len(types) == 1 else ""
    if kind in ("", "cpu"):
        return kind
    words = kind.replace("_", " ").upper()
    return words if words.startswith(("NVIDIA", "TESLA", "AMD")) else f"NVIDIA {words}"


def query_allocation(host: Host, name: str, target: SlurmTarget) -> slurm.Allocation:
    """Return what SLURM would allocate to the target's job now.

    Raises:
        LaunchError: SLURM rejects the flags, or its commands do not run.
    """
    try:
        return host.call(slurm.allocation, timeout=ALLOCATION_TIMEOUT)(flags=list(target.sbatch))
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


def sbatch_flags(words: Sequence[str]) -> dict[str, str]:
    """Return sbatch's flags by long name; the last of several counts."""
    found: dict[str, str] = {}
    pending = ""
    for word in words:
        if word.startswith("--"):
            key, equals, value = word[2:].partition("=")
            found[key] = value
            pending = "" if equals else key
        elif word[:2] in SHORT:
            key = SHORT[word[:2]]
            found[key] = word[2:].lstrip("=")
            pending = "" if word[2:] else key
        elif pending:
            found[pending], pending = word, ""
    return found


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
    found: list[tuple[str, int]] = []
    for part in value.split(","):
        words = part.strip().split("/")[-1].split(":")
        if flag == "gres":
            if words[0] != "gpu":
                continue
            words = words[1:] or ["1"]
        number = words[-1] if words[-1].isdecimal() else "1"
        kind = ":".join(words[:-1] if words[-1].isdecimal() else words)
        if not 0 < int(number[:9]) <= LARGEST:
            raise UsageError(f"target {name}: --{flag}={value} requests no GPU", EXAMPLE)
        found.append((kind, int(number[:9])))
    if len({kind for kind, _ in found}) > 1:
        raise UsageError(f"target {name}: --{flag}={value} names several types of GPU", "one type: a mesh is of one")
    return (found[0][0], sum(number for _, number in found)) if found else None
