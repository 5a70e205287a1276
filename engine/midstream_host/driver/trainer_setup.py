"""Start of a trainer on this node: its command, environment and directories."""

from __future__ import annotations

import dataclasses
import json
import os
import posixpath
import subprocess
from typing import Dict, List, Mapping, Tuple

from midstream_core import records
from midstream_core.visible_devices import limit_devices
from midstream_host.driver.batch_tap import VARIABLE
from midstream_host.driver.run_file import DISTRIBUTED, RunFile, World, below, expand

PORT = 29500  # of the rendezvous, where no other is given
OWN = (
    "PYTHONPATH",
    "PYTHONSAFEPATH",
    "MIDSTREAM_ROOT",
    "MIDSTREAM_RUN_DIRECTORY",
    "MIDSTREAM_EPOCH",
)  # not the trainer's
VERSIONS_TIMEOUT = 120.0  # seconds for the trainer's interpreter to answer: cold, from a shared disk
# Packages whose versions decide results, whatever the trainer.
PACKAGES = ("torch", "numpy", "transformers", "lightning", "accelerate", "deepspeed", "jax", "levanter", "maxtext")
_VERSIONS = """
import json, platform, sys
from importlib import metadata
found = {"python": platform.python_version()}
for name in sys.argv[1:]:
    try:
        found[name] = metadata.version(name)
    except metadata.PackageNotFoundError:
        pass
try:
    with open(metadata.distribution("torch").locate_file("torch/version.py")) as file:
        for line in file:
            if line.startswith("cuda") and "'" in line:
                found["cuda"] = line.split("'")[1]
except Exception:
    pass
print(json.dumps(found))
"""


@dataclasses.dataclass(frozen=True)
class Node:
    """This node among those of the attempt."""

    number: int = 0
    master: str = "127.0.0.1"
    port: int = PORT


@dataclasses.dataclass(frozen=True)
class TrainerSetup:
    """A run's trainer on this node, in one working directory."""

    run: RunFile
    world: World
    node: Node
    python: str
    directory: str  # working directory
    tap: str  # file of the batch digests
    elsewhere: str = ""  # folder in which it writes checkpoints too; empty: there is none

    @property
    def out(self) -> str:
        """Where the trainer writes."""
        return below(self.directory, "{out}", self.run.out)

    @property
    def checkpoints(self) -> str:
        """Directory of its checkpoints."""
        return below(self.directory, self.run.checkpoints.directory, self.run.out)

    def values(self, checkpoint: str) -> Dict[str, object]:
        """Return the values of the placeholders."""
        world, node = self.world, self.node
        return {
            "nodes": world.nodes,
            "rank": node.number,
            "master": node.master,
            "port": node.port,
            "devices": world.devices,
            "world": world.size,
            "per_device": world.per_device or "",
            "accumulation": world.accumulation or "",
            "checkpoint": checkpoint,
            "out": self.out,
            "python": self.python,
            "steps": self.run.steps or "",
        }

    def commands(self, checkpoint: str = "") -> List[List[str]]:
        """Return the command of each process that is started here.

        Raises RecordError for a placeholder without value.
        """
        words = expand(self.run.words(bool(checkpoint)), self.values(checkpoint))
        return [words] * (1 if self.run.launcher else self.world.node_processes)

    def environments(self, base: Mapping[str, str]) -> List[Dict[str, str]]:
        """Return the environment of each of these processes.

        Variables of torch.distributed that this process has inherited are not passed on. A launcher writes those of the
        ranks itself.
        """
        own = {name: value for name, value in base.items() if name not in DISTRIBUTED and name not in OWN}
        search = os.path.dirname(self.python)
        own["PATH"] = ":".join(filter(None, (search, own.get("PATH"))))
        if os.path.isdir(
            os.path.join(os.path.dirname(search), "conda-meta")
        ):  # compilers and libraries are found by it
            own["CONDA_PREFIX"] = os.path.dirname(search)
        own["PYTHONPATH"] = ":".join(
            filter(
                None,
                (posixpath.join(posixpath.dirname(__file__), "tap"), self.run.environment.variables.get("PYTHONPATH")),
            )
        )
        if self.run.metrics.source == "wandb":  # 0.31 writes every 15 s, and loses the rest when it is ended
            own["WANDB_X_TRANSACTION_LOG_FLUSH_INTERVAL"] = "1"
        own.update({name: value for name, value in self.run.environment.variables.items() if name != "PYTHONPATH"})
        own.update(PYTHONUNBUFFERED="1", MASTER_ADDR=self.node.master, MASTER_PORT=str(self.node.port),
                   NODE_RANK=str(self.node.number), NNODES=str(self.world.nodes),
                   NPROC_PER_NODE=str(self.world.node_processes))  # fmt: skip
        if self.world.limited:
            limit_devices(own, self.world.devices)
        own[VARIABLE] = self.tap
        if self.run.launcher:
            return [own]
        count = self.world.node_processes
        first = self.node.number * count
        return [
            {**own, "RANK": str(first + local), "LOCAL_RANK": str(local), "WORLD_SIZE": str(self.world.size)}
            if self.world.size > 1
            else own
            for local in range(count)
        ]


def versions(python: str, packages: Tuple[str, ...], environment: Mapping[str, str]) -> Dict[str, str]:
    """Return the versions of an interpreter's packages; empty if it does not answer."""
    try:
        done = subprocess.run(
            [python, "-s", "-c", _VERSIONS, *packages],
            env=dict(environment), stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
            timeout=VERSIONS_TIMEOUT, check=False,
        )  # fmt: skip
        value = json.loads(done.stdout.decode().strip().splitlines()[-1])
    except (OSError, subprocess.SubprocessError, ValueError, IndexError):
        return {}
    return {str(name): str(version)[:100] for name, version in value.items()}


def read_run_file(paths: records.RunPaths) -> RunFile:
    """Read ``run.yaml`` of a run of another trainer. Raises RecordError."""
    return RunFile.read(paths.config)
