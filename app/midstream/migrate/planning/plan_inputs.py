"""Inputs of a plan: both ends of the migration, and contents of the run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from midstream.fleet.fleet import Target
from midstream.hosts.host import Host
from midstream.launch.slurm_allocation import RequestedDevices
from midstream.migrate.checkpoint_store import CheckpointStore
from midstream.migrate.journal.json_values import section
from midstream.migrate.modes.mode import Mode
from midstream.migrate.planning.progress import Pace
from midstream.watch.machine import Accelerator
from midstream.watch.snapshot import RunView
from midstream_core import records
from midstream_core.json_types import RunConfig
from midstream_core.listed_checkpoint import ListedCheckpoint


@dataclass(frozen=True)
class Allocated:
    """The devices of a SLURM allocation that has not started."""

    requested: RequestedDevices
    kind: str  # as the driver names it; empty: not known
    starts: float  # when SLURM expects it to start, UTC seconds

    @property
    def accelerators(self) -> tuple[Accelerator, ...]:
        return tuple(Accelerator(index, self.kind) for index in range(self.requested.devices))


@dataclass(frozen=True)
class Ends:
    """The run to migrate, and both ends of the migration."""

    run: RunView
    status: records.Status
    fence: records.Fence
    target: Target
    source: Host
    destinations: tuple[Host, ...]  # the target's hosts, that of process 0 first
    source_hosts: tuple[str, ...]
    source_store: CheckpointStore
    target_store: CheckpointStore
    flags: Mapping[str, str]  # engine flags of the request
    mode: Mode
    done: int  # updates that the run has had
    pace: Pace  # of the run
    allocation: Allocated | None = None  # of a SLURM target

    @property
    def destination(self) -> Host:
        """The target's host of process 0."""
        return self.destinations[0]

    @property
    def data_hosts(self) -> tuple[Host, ...]:
        """The target's hosts that have directories of their own, that of process 0 first."""
        return self.destinations[:1] if self.target.shared_root else self.destinations


@dataclass(frozen=True)
class PlannedImport:
    """Part of a plan about an import that has not been done yet."""

    words: tuple[str, ...] = ()  # of the command line: HOST:PATH and the flags of the import
    warnings: tuple[str, ...] = ()  # what is given up, and what only the import can find


@dataclass(frozen=True)
class SourceContents:
    """Config, chosen checkpoint and newest state of the run on the source."""

    config: RunConfig
    owner_consent: tuple[str, ...]  # lines on the run's owner that need consent
    consent: tuple[str, ...]  # lines of the config that need consent
    checkpoint: ListedCheckpoint | None  # None: a final save at the seal
    newest: str  # name of the newest complete checkpoint; empty: none
    arrays: Sequence[records.ArrayEntry]  # of the newest checkpoint; empty: there is none
    checkpoint_bytes: int  # of the newest checkpoint; 0: unknown
    data_digests: tuple[str, ...]
    data_bytes: tuple[int, ...] | None  # that each of the target's `data_hosts` lacks; None: unknown
    steps_lost: int = 0  # that the run has done after the chosen checkpoint
    imported: PlannedImport | None = None  # it is another trainer's checkpoint, not imported yet

    @property
    def trainer(self) -> RunConfig:
        return section(self.config, "trainer")

    @property
    def seq_len(self) -> int:
        """Tokens of an example; 0: not known."""
        return int(section(self.config, "model").get("seq_len") or 0)
