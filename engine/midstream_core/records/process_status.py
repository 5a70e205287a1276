"""Records of one process of an attempt: its status and its exit."""

from __future__ import annotations

import dataclasses
from typing import Dict, List, Optional

from midstream_core.json_types import JsonValue
from midstream_core.records.field_forms import CHECKPOINT_NAME, DIGEST, DIGEST_OR_EMPTY, RUN_ID_OR_EMPTY
from midstream_core.records.process_identity import ProcessIdentity
from midstream_core.records.process_states import FINISHED, STOPPED
from midstream_core.records.record import JsonRecord


@dataclasses.dataclass(frozen=True)
class Device(JsonRecord):
    """An accelerator, as the engine that computes on it describes it."""

    kind: str = ""
    platform: str = ""
    memory_bytes: Optional[int] = None


@dataclasses.dataclass(frozen=True)
class Status(JsonRecord):
    """``status-<p>.json``: state of one process of an attempt.

    ``heartbeat`` is rewritten every few seconds.
    """

    state: str
    step: int  # updates done: the process's state is that of checkpoint step-<step>
    process: int
    boot_id: str
    pid: int
    start_ticks: int
    heartbeat: float
    run_id: str = dataclasses.field(default="", metadata={"form": RUN_ID_OR_EMPTY})
    attempt: int = 0
    epoch: int = 1  # 0 while it waits or replays: it is not part of the run yet
    processes: int = 1
    num_train_steps: int = 0
    devices: List[Dict[str, JsonValue]] = dataclasses.field(default_factory=lambda: [], metadata={"items": Device})
    versions: Dict[str, str] = dataclasses.field(default_factory=lambda: {})
    checkpoint: Optional[str] = dataclasses.field(
        default=None, metadata={"form": CHECKPOINT_NAME}
    )  # newest complete checkpoint that this attempt wrote or restored
    root_digest: Optional[str] = None  # of that checkpoint
    data_digest: str = dataclasses.field(
        default="", metadata={"form": DIGEST_OR_EMPTY}
    )  # of the token cache that it trains on; empty until it is opened
    # Of every token cache that it reads from its host's data directory: the one it trains on, then its validation sets.
    data_digests: List[str] = dataclasses.field(default_factory=lambda: [], metadata={"form": DIGEST})
    acknowledged: int = 0  # sequence of the last command that was carried out
    rejected: int = 0  # sequence of the last command that was not: training goes on, ``message`` has the reason
    message: str = ""  # one line: why it failed, what it waits for
    contradiction: str = ""  # one line: what shows that it did not continue from its checkpoint
    state_bytes: int = 0  # of the run's complete state, as a checkpoint has it; 0 until it is known
    compiled_seconds: float = 0.0  # until its programs were compiled, or read from the cache; 0 before
    rehearsed_seconds: float = 0.0  # of one update in the rehearsal; 0 without a rehearsal
    # Time of the last progress: a step done, a save begun or ended, a state entered. ``heartbeat`` is written by a
    # thread of its own even where the training loop is blocked in a collective; ``progress`` is not, and so separates a
    # stalled process from a slow one. Both are by the process's own clock: do not compare them with another machine's.
    progress: float = 0.0
    host: str = ""  # the machine that it runs on, by the launcher's name ($MIDSTREAM_HOST) or its own
    project: str = ""  # of the first tracker that has one
    tags: List[str] = dataclasses.field(default_factory=lambda: [])  # of all trackers
    machine: str = ""  # these two as in ProcessIdentity
    namespace: str = ""
    start: int = 0  # its start number within the epoch; 0: it may not commit yet

    @property
    def identity(self) -> ProcessIdentity:
        """The process that wrote the status."""
        return ProcessIdentity(self.boot_id, self.pid, self.start_ticks, self.machine, self.namespace)


@dataclasses.dataclass(frozen=True)
class ProcessExit(JsonRecord):
    """``exit-<p>.json``: how a process of an attempt ended, by its supervisor.

    ``state``, ``step`` and ``heartbeat`` are those of its last status.
    """

    process: int
    code: Optional[int]  # None where a signal ended it
    time: float
    signal: str = ""  # "SIGKILL"
    stalled: bool = False  # it was running, and was ended because it made no more steps
    state: str = ""
    step: int = 0
    heartbeat: float = 0.0
    message: str = ""  # one line: why

    @property
    def failed(self) -> bool:
        """Whether the process failed.

        A signal after its last status (a second SIGTERM, the machine's shutdown) costs the run nothing: everything was
        saved and sealed before.
        """
        return self.code != 0 and self.state not in (STOPPED, FINISHED)
