"""Immutable state of the fleet at one moment, for screens, commands and plans."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING

from midstream.watch.log_errors import error_line
from midstream.watch.run_order import RunOrder, RunsByHost
from midstream_core import records
from midstream_core.json_types import LoggedRow

if TYPE_CHECKING:
    from midstream.ownership.judgement import Judgement
    from midstream.ownership.owner_judge import OwnerJudge
    from midstream.watch.machine import Machine
    from midstream.watch.system_series import SystemSeries
    from midstream_core.listed_checkpoint import ListedCheckpoint

CONNECTING, LIVE, STALE, DOWN = "connecting", "live", "stale", "down"


@dataclass(frozen=True)
class HostView:
    """A host of the fleet file and its last reports."""

    name: str
    kind: str  # "local", "ssh"
    link: str  # CONNECTING, LIVE, STALE or DOWN
    last_seen: float | None = None  # UTC seconds
    error: str = ""  # one line: why it is not live, with a hint
    machine: Machine | None = None


@dataclass(frozen=True)
class LogRange:
    """Reported part of a log: bytes ``begin`` to ``end`` of the log of ``process``."""

    begin: int = 0
    end: int = 0
    process: int = 0


@dataclass(frozen=True)
class RunView:
    """One copy of a run, on one host.

    A migrated run has several; see ``Snapshot.current``.
    """

    run_id: str
    host: str
    fence: records.Fence | None
    lineage: records.Lineage | None
    attempt: int  # newest attempt; 0: none
    status: records.Status | None  # of its process 0
    running: bool  # positive evidence that the process runs
    checkpoints: tuple[ListedCheckpoint, ...] = ()
    curve: Sequence[LoggedRow] = field(default=(), repr=False)  # spliced rows; see loss_curve
    log: Sequence[str] = field(default=(), repr=False)  # last lines of the newest attempt's first process here
    problem: str = ""  # one line: which of its files cannot be read; their last readable values are shown
    # (file, error) of records that exist and cannot be read, which are never treated as absent.
    damaged: tuple[tuple[str, str], ...] = ()
    store: str = ""  # URL of a prefix, if its checkpoints are stored there and not on its host
    job_remark: str = ""  # what its job of SLURM waits for, why it does not run, or how it ended; one line
    unproven: str = ""  # where a process was started that does not run here, and is not proven to have ended
    ended_without_status: bool = False  # its process has exited before it wrote a status
    checkpoints_listed: bool = True  # False until its bucket has been listed, which may take some time
    exit: records.ProcessExit | None = None  # of the attempt's process that failed first here
    log_range: LogRange = LogRange()
    ownership: str = field(default="", repr=False)  # text of its ownership.json: signed records, not checked here

    @property
    def key(self) -> tuple[str, str]:
        """(host, run id)."""
        return self.host, self.run_id

    @property
    def epoch(self) -> int:
        """The fence's epoch, 0 without a fence."""
        return self.fence.epoch if self.fence else 0

    @property
    def state(self) -> str:
        """The status' state, or one that is derived.

        ``lost``: the status claims a running process, and there is none, or the process exited before it wrote a status
        (for example on a full disk). ``unknown``: nothing proves that its process runs, or has ended. ``damaged``:
        records cannot be read, and there is no status. ``empty``: nothing was started.
        """
        if self.status is None and self.damaged:
            return "damaged"
        if self.status is None:
            return "lost" if self.ended_without_status else "unknown" if self.unproven else "empty"
        if self.status.state not in records.ENDED and not self.running:
            return "unknown" if self.unproven else "lost"
        return self.status.state

    @property
    def step(self) -> int | None:
        """The status' step."""
        return self.status.step if self.status else None

    @property
    def usable(self) -> list[ListedCheckpoint]:
        """The checkpoints that the run can continue from."""
        return [checkpoint for checkpoint in self.checkpoints if checkpoint.usable]

    @property
    def remark(self) -> str:
        """Reason of its wait, of its stop, or why it is unknown; empty for none."""
        if self.state == "unknown":
            return f"its process was started on {self.unproven}, and nothing proves that it runs or has ended"
        stopped = self.status is not None and self.status.state == records.STOPPED
        return self.job_remark or (self.status.message if self.status is not None and stopped else "")

    @cached_property
    def error_line(self) -> int:
        """Index in ``log`` of the line that says why the process failed; 0 without lines."""
        return error_line(self.log)


@dataclass(frozen=True)
class Snapshot:
    """The fleet at one moment. ``version`` grows with every change.

    ``system`` has the metrics of each host over the last day. Series grow after the snapshot: they are read as of now.
    ``known_order`` is the order of the runs where it is known.
    """

    version: int
    time: float
    hosts: tuple[HostView, ...] = ()
    runs: Sequence[RunView] = ()
    system: Mapping[str, SystemSeries] = field(default_factory=dict, repr=False, compare=False)
    known_order: RunOrder | None = field(default=None, repr=False, compare=False)
    owners: OwnerJudge | None = field(default=None, repr=False, compare=False)  # None: nothing is proven

    @cached_property
    def _by_host(self) -> dict[str, HostView]:
        return {host.name: host for host in self.hosts}

    @cached_property
    def by_host(self) -> RunsByHost[RunView]:
        """The runs, host by host."""
        return self.runs if isinstance(self.runs, RunsByHost) else RunsByHost.of(self.runs)

    @cached_property
    def order(self) -> RunOrder:
        """The order of the runs."""
        return RunOrder.of(self.by_host) if self.known_order is None else self.known_order

    def runs_on(self, host: str) -> Sequence[RunView]:
        """Return the views of the runs on a host."""
        return self.by_host.on(host)

    @property
    def run_count(self) -> int:
        """The number of runs, each counted once."""
        return len(self.order)

    def host(self, name: str) -> HostView | None:
        """Return the view of a host, None if it is not watched."""
        return self._by_host.get(name)

    def copies(self, run_id: str) -> tuple[RunView, ...]:
        """Return every copy of the run: the proven owner's first, claims last.

        Among equals the one with the highest fence epoch is first. A sealed source has the new epoch too; copies that
        have run under it come before it.
        """
        copies = self._shown(run_id)
        if len(copies) < 2:
            return copies
        judgement = self._judge(run_id, copies)

        def newest(run: RunView) -> tuple[int, int, int, int, int]:
            process = run.status.process if run.status else 0
            rank = judgement.standing(run.host).rank
            return rank, run.epoch, run.status.epoch if run.status else 0, run.attempt, -process

        return tuple(sorted(copies, key=newest, reverse=True))

    def believed(self, run_id: str) -> tuple[RunView, ...]:
        """Return the copies of the run without those that only claim to be its owner's.

        Where nothing is proven, all copies are returned.
        """
        judgement = self.judgement(run_id)
        copies = self.copies(run_id)
        return tuple(run for run in copies if judgement.is_believed(run.host)) if judgement.signed else copies

    def deciding(self, run_id: str) -> tuple[RunView, ...]:
        """Return the copies on the hosts of the proven owner, whatever they show.

        A damaged record there may say that the run has moved on; one of another host says nothing about the run. Where
        nothing is proven, these are all copies.
        """
        judgement, copies = self.judgement(run_id), self.copies(run_id)
        return tuple(run for run in copies if run.host in judgement.owner_hosts) if judgement.chain else copies

    def judgement(self, run_id: str) -> Judgement:
        """Return the proven owner of the run, and the standing of each copy."""
        return self._judge(run_id, self._shown(run_id))

    def _shown(self, run_id: str) -> tuple[RunView, ...]:
        return tuple(self.by_host.copy(number, run_id) for number in self.order.hosts(run_id))

    def _judge(self, run_id: str, copies: Sequence[RunView]) -> Judgement:
        from midstream.ownership.judgement import Judgement

        return Judgement(run_id) if self.owners is None else self.owners.judge(run_id, copies)

    def members(self, run: RunView) -> tuple[RunView, ...]:
        """Return the views of the run's attempt on all its hosts, process 0 first."""
        if run.status is None or run.status.processes < 2:
            return (run,)

        status = run.status

        def same_attempt(other: RunView) -> bool:
            return (
                other.status is not None
                and (other.attempt, other.status.epoch) == (run.attempt, status.epoch)
                and other.status.processes == status.processes
            )

        return tuple(other for other in self.copies(run.run_id) if same_attempt(other))

    def current(self) -> tuple[RunView, ...]:
        """Return one view of each run: the first of its copies."""
        views = {run.run_id: run for run in self.by_host}
        views |= {run_id: self.copies(run_id)[0] for run_id in self.order.several}
        return tuple(map(views.__getitem__, self.order.ids))

    def changes_since(self, before: Snapshot) -> list[tuple[RunView | None, RunView]]:
        """Return (earlier view, newer view) of each copy that has changed.

        The earlier view of a new copy is None. The comparison takes the time of the hosts that have reported, not of
        all runs.
        """
        now, then = self.by_host, before.by_host
        if now.numbers != then.numbers:
            then = RunsByHost(now.numbers, (then.on(host) for host in now.numbers))
        changes: list[tuple[RunView | None, RunView]] = []
        for old, new in zip(then.hosts, now.hosts, strict=True):
            if old is new:
                continue
            if len(old) == len(new) and all(a.run_id == b.run_id for a, b in zip(old, new, strict=True)):
                changes += [pair for pair in zip(old, new, strict=True) if pair[0] is not pair[1]]
            else:
                earlier = {run.run_id: run for run in old}
                changes += [(earlier.get(run.run_id), run) for run in new if earlier.get(run.run_id) is not run]
        return changes
