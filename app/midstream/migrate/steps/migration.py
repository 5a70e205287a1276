"""Context of a migration that is executed: plan, journal, hosts, reports."""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Any, Protocol

from midstream.errors import MidstreamError
from midstream.fleet.fleet import Fleet
from midstream.hosts.host import Host
from midstream.hosts.host_pool import HostPool
from midstream.hosts.prepared_calls import PreparedCalls
from midstream.migrate.host_group import HostGroup, target_of
from midstream.migrate.journal.journal import Journal
from midstream.migrate.journal.migration_directory import MigrationDirectory
from midstream.migrate.journal.plan import Plan
from midstream.migrate.modes.registry import present_mode
from midstream.migrate.steps.stage_clock import StageClock
from midstream.transfer.report import Progress
from midstream.watch.watcher import Watcher
from midstream_core import records


class RollbackRequested(Exception):
    """The user requested a rollback of the running migration: a signal, not an error."""


class NeedsOperatorError(MidstreamError):
    """Error: the migration cannot continue by itself.

    A rollback would lose more than it saves.

    The message says what happened; ``hint`` has the commands to choose from.
    """


class MovedOnError(MidstreamError):
    """A later migration owns the run, so there is nothing to roll back."""


class Phase(Protocol):
    """One step of a migration.

    ``run`` may be called again after a kill at any moment: it reads journal and hosts, and does what remains.
    """

    name: str

    def run(self, migration: Migration) -> None: ...

    def undo(self, migration: Migration) -> None: ...


@dataclass
class Migration:
    """A migration in execution: the objects its phases work with, and their reports."""

    plan: Plan
    directory: MigrationDirectory
    journal: Journal
    fleet: Fleet
    hosts: HostPool
    watch: Watcher
    phase: str = ""
    prepared_calls: PreparedCalls = field(default_factory=PreparedCalls, repr=False)  # of the downtime
    process: str = field(default_factory=lambda: secrets.token_hex(8))  # names this process to the source
    chain_before: records.OwnershipChain | None = None  # signed records before the seal, read before the downtime
    # When the source has permitted this process to start the target: by the wall clock, and by the monotonic one.
    start_allowed_at: tuple[float, float] | None = None
    agreed: bool = False  # the user goes on without the evidence that the shown certificate lacks
    gives_up: bool = False  # a rollback may give up what the target has done since the seal
    target_closed: bool = False  # by this process: no other one can start the target any more
    clock: StageClock = field(init=False, repr=False)
    source_group: HostGroup = field(init=False, repr=False)
    target_group: HostGroup = field(init=False, repr=False)

    def __post_init__(self) -> None:
        plan, fleet = self.plan, self.fleet
        self.clock = StageClock(plan, self.journal)
        source = target_of(fleet, plan.route.source_target, plan.route.source_hosts or (plan.source,))
        target = target_of(fleet, plan.target, plan.route.target_hosts or (plan.target_host,))
        trainer = plan.trainer.run_file if plan.trainer is not None else None
        self.source_group = HostGroup(self.hosts, source, plan.run_id, plan.route.source_store, trainer)
        self.target_group = HostGroup(self.hosts, target, plan.run_id, plan.route.target_store, trainer)

    @property
    def source(self) -> Host:
        """The host of the source's process 0."""
        return self.source_group.first

    @property
    def target(self) -> Host:
        """The host of the target's process 0."""
        return self.target_group.first

    @property
    def source_paths(self) -> records.RunPaths:
        return self.source_group.paths

    @property
    def target_paths(self) -> records.RunPaths:
        return self.target_group.paths

    def note(self, message: str, **detail: Any) -> None:
        """Journal one line for the user."""
        self.journal.write("note", phase=self.phase, message=message, **detail)

    def log_command(self, host: Host, line: str, *, does: str = "", shows: str = "") -> None:
        """Journal one line of the command log: what is done on which host.

        Args:
            host: The host.
            line: What is done, in prose.
            does: A line of shell that does the same on the host; empty where midstream's own program does it.
            shows: A line of shell that shows the result on the host, where nothing does the same.
        """
        shown = self.hosts.lookup(host.name) if host.name in self.fleet.hosts else None  # None: a bucket
        lines = {
            name: shown.shell_line(text)
            for name, text in (("does", does), ("shows", shows))
            if text and shown is not None
        }
        self.journal.write("command", phase=self.phase, message=line, host=host.name, **lines)

    def log_own_command(self, line: str, does: str) -> None:
        """Journal the action of ``does``, a midstream command on the operator's machine."""
        self.journal.write("command", phase=self.phase, message=line, does=does)

    def progress(self, what: str) -> Callable[[Progress], None]:
        """Return a function that journals copy progress: at most four lines a second.

        The last report is always journaled.
        """
        last_bytes, last_time = -1, 0.0

        def report(progress: Progress) -> None:
            nonlocal last_bytes, last_time
            self.check_requests()
            self.clock.report(self.phase)
            now = time.monotonic()
            done = progress.bytes_done >= progress.bytes_total
            if progress.bytes_done == last_bytes or (now - last_time < 0.25 and not done):
                return
            last_bytes, last_time = progress.bytes_done, now
            self.journal.write(
                "phase",
                phase=self.phase,
                state="progress",
                what=what,
                bytes_done=progress.bytes_done,
                bytes_total=progress.bytes_total,
                objects_done=progress.objects_done,
                objects_total=progress.objects_total,
                object=progress.object,
                bytes_per_second=progress.bytes_per_second,
                eta_seconds=progress.eta_seconds,
            )

        return report

    def stage(self, name: str) -> AbstractContextManager[None]:
        """Return a context manager that measures a stage of `duration.stages`."""
        return self.clock.stage(name, self.phase)

    def check_requests(self) -> None:
        """Raise RollbackRequested if the user requested a rollback that has not begun."""
        if self.phase != "rollback" and self.directory.rollback_requested():
            raise RollbackRequested


def ways_to_continue(migration: Migration) -> str:
    """Return the commands to choose from once the run may have trained on its target."""
    plan, sealed = migration.plan, migration.journal.facts.sealed
    place = f"to step {sealed.step} on {plan.source}" if sealed is not None else f"to {plan.source}"
    return (
        f"midstream --continue {plan.migration} starts it there again, "
        f"midstream --rollback {plan.migration} --yes goes back {place}"
    )


def replayed(migration: Migration) -> bool:
    """Return whether the target replays: a live migration that has not fallen back."""
    return present_mode(migration.plan.mode, migration.journal.facts.fallback_reason).replays
