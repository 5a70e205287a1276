"""``run.yaml`` of another trainer: start, stop, outputs and files that travel.

The app resolves the user's run file with the defaults of its trainer, and writes it as JSON, which is YAML too: hosts
read it with the standard library. ``trainer`` is a name there; in a run of midstream's own engine it is a mapping.
"""

from __future__ import annotations

import dataclasses
import posixpath
import re
from typing import Any, ClassVar, Dict, List, Mapping, Optional

from midstream_core.json_shapes import Form, Long
from midstream_core.json_types import JsonValue
from midstream_core.records.errors import RecordError
from midstream_core.records.field_forms import DIGEST_OR_EMPTY, NAME
from midstream_core.records.record import JsonRecord

# What replaces a placeholder of the command: `Placeholders`.
PLACEHOLDER = re.compile(r"\{([a-z_]+)\}")
SCRIPT = re.compile(r"[\s;&|<>$`]")  # a word with one of these is read by a shell: sh -c 'cd {out} && ...'
PLAIN = re.compile(r"[\w@%+=:,./-]+")  # a shell takes it as it is, letters of every language too
PLACEHOLDERS = (
    "nodes", "rank", "master", "port", "devices", "world", "per_device", "accumulation", "checkpoint", "out", "python",
    "steps",
)  # fmt: skip
# Written by midstream for the trainer; a command or an environment may not fix them.
DISTRIBUTED = ("MASTER_ADDR", "MASTER_PORT", "WORLD_SIZE", "RANK", "LOCAL_RANK", "NODE_RANK", "NPROC_PER_NODE")

BY_COMMAND = "command"  # the command has {per_device} or {accumulation}
BY_TRAINER = "trainer"  # the trainer divides its global batch by the number of processes
FIXED = "fixed"  # nothing keeps it: the run stays at its number of processes
BATCHES = (BY_COMMAND, BY_TRAINER, FIXED)

BY_DEVICE = "device"  # one process for each device, as torchrun starts them
BY_NODE = "node"  # one process on each node, with all of its devices, as of jax

MAX_LOCK = 1 << 19  # characters of the packages: the run file has 1 MiB in all

YES, NO, UNKNOWN = "yes", "no", "unknown"
_STORED = Form("yes, no or unknown", "yes|no|unknown")


@dataclasses.dataclass(frozen=True)
class BatchDivision(JsonRecord):
    """Means that keep the global batch on another number of processes."""

    kept_by: str = FIXED
    sequences: int = 0  # of the global batch; 0: not stated
    per_device: int = 0  # sequences that a device can take at once; 0: not stated


@dataclasses.dataclass(frozen=True)
class Stop(JsonRecord):
    """Stop policy: a signal to its launcher on every node, never to one rank alone."""

    signal: str = "SIGTERM"
    saves: bool = False  # it saves before it exits; else the next periodic checkpoint is waited for
    grace: float = 60.0  # seconds from the signal to the exit, after which it is killed
    wait: float = 3600.0  # seconds for which the next periodic checkpoint is waited for


@dataclasses.dataclass(frozen=True)
class Checkpoints(JsonRecord):
    """Where the trainer writes its checkpoints, and what a complete one is."""

    rule: str  # huggingface, lightning, dcp, accelerate, deepspeed, levanter, orbax, maxtext, glob
    pattern: str = ""  # of their names below ``directory``; empty: that of the rule
    directory: str = "{out}"
    reshards: bool = False  # another number of processes can load them
    rewritten: bool = False  # files are written again in place: they are copied, not linked


@dataclasses.dataclass(frozen=True)
class Metrics(JsonRecord):
    """Where the trainer writes its losses."""

    source: str  # tensorboard, csv, trainer_state, jsonl, trackio, wandb, regex
    path: str = ""  # a file or a pattern below the working directory; empty: that of the source
    first_step: int = 0  # the number that the first update has there
    names: Dict[str, str] = dataclasses.field(default_factory=lambda: {})  # loss, learning_rate -> its own name
    pattern: str = ""  # of ``regex``: with the groups step, loss, learning_rate


@dataclasses.dataclass(frozen=True)
class TrainerEnvironment(JsonRecord):
    """The trainer's Python; without a field, the host's ``python:`` of the fleet file."""

    python: str = ""  # an interpreter that each host has
    # Text of a requirements file or lock, from which it is built on a host that lacks it.
    requirements: str = dataclasses.field(default="", metadata={"form": Long(MAX_LOCK)})
    # Explicit lists of conda, one for each platform, from which it is built instead: exact URLs and hashes.
    conda: str = dataclasses.field(default="", metadata={"form": Long(MAX_LOCK)})
    variables: Dict[str, str] = dataclasses.field(default_factory=lambda: {})
    packages: List[str] = dataclasses.field(default_factory=lambda: [])  # whose versions are compared


@dataclasses.dataclass(frozen=True)
class StoredContents(JsonRecord):
    """Checkpoint contents besides parameters and optimizer: yes, no or unknown."""

    random_state: str = dataclasses.field(default=UNKNOWN, metadata={"form": _STORED})
    data_position: str = dataclasses.field(default=UNKNOWN, metadata={"form": _STORED})
    advice: List[str] = dataclasses.field(default_factory=lambda: [])  # what to switch on, one line each


_PARTS: Dict[str, Any] = {
    "batch": BatchDivision,
    "stop": Stop,
    "checkpoints": Checkpoints,
    "metrics": Metrics,
    "environment": TrainerEnvironment,
    "stored": StoredContents,
}


@dataclasses.dataclass(frozen=True)
class RunFile(JsonRecord):
    """A resolved run file. Templates are lists of words with `PLACEHOLDERS`."""

    FORMAT: ClassVar[int] = 1

    trainer: str = dataclasses.field(metadata={"form": NAME})
    command: List[str]
    resume: List[str]
    checkpoints: Checkpoints
    metrics: Metrics
    batch: BatchDivision = BatchDivision()
    stop: Stop = Stop()
    environment: TrainerEnvironment = TrainerEnvironment()
    stored: StoredContents = StoredContents()
    directory: str = ""  # working directory on the host; empty: midstream's own, with the files that travel
    out: str = "out"  # where the trainer writes, below the working directory
    steps: int = 0  # of the run; 0: not stated
    launcher: bool = True  # the command starts all processes of a node; else midstream starts one for each device
    devices: int = 0  # of each node that it uses, the first ones; 0: all
    processes: str = ""  # that its command starts: BY_DEVICE or BY_NODE; empty: `process_per_device` decides
    rehearsal_steps: int = 3  # rows of a rehearsal that are compared
    files: List[str] = dataclasses.field(default_factory=lambda: [])  # patterns of the code and data that travel
    files_digest: str = dataclasses.field(default="", metadata={"form": DIGEST_OR_EMPTY})  # of their tree

    @classmethod
    def from_checked(cls, value: Mapping[str, Any]) -> "RunFile":
        """Decode a value that was checked before, with its parts."""
        parts = {name: kind.from_checked(value[name]) for name, kind in _PARTS.items() if name in value}
        return super().from_checked({**value, **parts})

    def words(self, resumes: bool) -> List[str]:
        """Return the template of a start, or of a start from a checkpoint."""
        return self.resume if resumes else self.command

    def uses(self, placeholder: str) -> bool:
        """Return whether a template has the placeholder."""
        return any("{" + placeholder + "}" in word for word in [*self.command, *self.resume])

    @property
    def scales(self) -> bool:
        """Whether midstream passes it the number of devices, or starts one on each."""
        return not self.launcher or self.uses("devices") or self.uses("world")


def is_run_file(value: JsonValue) -> bool:
    """Return whether the content of a ``run.yaml`` is a run file of another trainer."""
    return isinstance(value, dict) and isinstance(value.get("trainer"), str)


@dataclasses.dataclass(frozen=True)
class World:
    """Devices and processes of a run on a target, and each device's batch."""

    nodes: int = 1
    devices: int = 1  # of each node
    per_device: int = 0  # sequences; 0: not stated
    accumulation: int = 0
    processes: int = 0  # of each node; 0: one for each device
    limited: bool = False  # the nodes have more devices, which the trainer must not see

    @property
    def node_processes(self) -> int:
        """Number of processes of the trainer on each node."""
        return self.processes or self.devices

    @property
    def size(self) -> int:
        """Number of processes of the trainer."""
        return self.nodes * self.node_processes

    @property
    def device_count(self) -> int:
        """Number of devices of all nodes."""
        return self.nodes * self.devices

    def flags(self) -> List[str]:
        """Return the driver's flags."""
        named = {"nodes": self.nodes, "devices": self.devices, "per-device": self.per_device,
                 "accumulation": self.accumulation, "processes": self.node_processes}  # fmt: skip
        flags = [word for name, value in named.items() for word in ("--" + name, str(value))]
        return [*flags, "--limit-devices"] if self.limited else flags


def expand(words: List[str], values: Mapping[str, object]) -> List[str]:
    """Replace the placeholders of a template.

    A value in a script of a shell has to be `PLAIN`: the name of a checkpoint is of another host, and may be a command.

    Raises RecordError for one that has no value, or for such a value that is not plain.
    """

    def value(match: "re.Match[str]") -> str:
        name = match.group(1)
        if name not in PLACEHOLDERS:
            return match.group(0)  # braces of the command itself
        default = values.get(name)
        if default is None or default == "":
            raise RecordError("{{{}}} has no value here".format(name))
        if SCRIPT.search(match.string) and not PLAIN.fullmatch(str(default)):
            raise RecordError(
                "{{{0}}} is in a script, and a shell would not read {1!r} as one word (hint: give it to the script as "
                'an argument: [sh, -c, \'exec train "$1"\', sh, "{{{0}}}"])'.format(name, default)
            )
        return str(default)

    return [PLACEHOLDER.sub(value, word) for word in words]


def below(directory: str, path: str, out: str) -> str:
    """Return a path of the run file on a host.

    ``{out}`` is replaced; relative paths are below the working directory.
    """
    return posixpath.normpath(posixpath.join(directory, path.replace("{out}", posixpath.join(directory, out))))


def distributed_name(word: str) -> Optional[str]:
    """Return the torch.distributed variable that a command's word fixes, or None.

    ``--nproc_per_node={devices}`` fixes nothing: its value is a placeholder.
    """
    name, equals, value = word.partition("=")
    if not equals or PLACEHOLDER.search(value):
        return None
    plain = name.lstrip("-").replace("-", "_").upper()
    return plain if plain in DISTRIBUTED else None
