"""What a phase has at hand while a migration is carried out."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

from midstream.errors import MidstreamError, RemoteError
from midstream.hosts.deadline import Deadline
from midstream.launch.host_group_start import start
from midstream.launch.start_attempt import Launch
from midstream.migrate.failover.preemption import ProviderQuery
from midstream.migrate.host_group import HostGroup, target_of
from midstream.migrate.model import LIVE
from midstream_engine import records

if TYPE_CHECKING:
    from midstream.fleet.fleet import Fleet
    from midstream.hosts.host import Host
    from midstream.hosts.host_pool import Hosts
    from midstream.migrate.execution.journal import Journal
    from midstream.migrate.execution.migration_directory import MigrationDirectory
    from midstream.migrate.model import Plan
    from midstream.transfer.report import Progress
    from midstream.watch.snapshot import RunView, Snapshot
    from midstream.watch.watcher import Watch


LOOK = 2.0  # seconds between two looks at what the watch does not see


class RollbackRequested(Exception):
    """A person asked for the rollback while the migration was under way."""


class NeedsOperator(MidstreamError):
    """The migration cannot go on by itself, and rolling back would give up more than it saves. The message says what
    happened, ``fix`` which lines there are to choose from."""


class MovedOn(MidstreamError):
    """Another migration has taken the run further: there is nothing to take back any more."""


class Phase(Protocol):
    """One step of a migration. ``run`` may be called again after a kill at any moment: it looks at what the journal
    and the hosts say, and does what is still to be done."""

    name: str

    def run(self, move: Migration) -> None: ...


@dataclass
class Migration:
    """A migration that is being carried out."""

    plan: Plan
    directory: MigrationDirectory
    journal: Journal
    fleet: Fleet
    hosts: Hosts
    watch: Watch
    phase: str = ""
    source_group: HostGroup = field(init=False, repr=False)
    target_group: HostGroup = field(init=False, repr=False)

    def __post_init__(self) -> None:
        plan, fleet = self.plan, self.fleet
        source = target_of(fleet, plan.source_target, plan.source_hosts or (plan.source,))
        target = target_of(fleet, plan.target, plan.target_hosts or (plan.target_host,))
        self.source_group = HostGroup(self.hosts, source, plan.run_id, plan.source_store)
        self.target_group = HostGroup(self.hosts, target, plan.run_id, plan.target_store)

    @property
    def source(self) -> Host:
        """That of the source's process 0."""
        return self.source_group.first

    @property
    def target(self) -> Host:
        """That of the target's process 0."""
        return self.target_group.first

    @property
    def source_paths(self) -> records.RunPaths:
        return self.source_group.paths

    @property
    def target_paths(self) -> records.RunPaths:
        return self.target_group.paths

    # ------------------------------------------------------------------------------------------ starting

    def start(self, side: HostGroup, order: records.Command, *, holder: str, at_least: int) -> int:
        """Start the run's next attempt on a side, as ``order`` says, under the name of ``holder``: its number, which is
        ``at_least`` that. One that a killed process of this migration had asked for, and that came through meanwhile,
        is taken for it."""
        plan = self.plan
        overrides = plan.target_flags if side is self.target_group else ()
        launch = Launch(plan.run_id, holder, order.epoch, order, overrides, at_least=at_least)
        try:
            number = start(self.hosts, self.fleet, side.target, launch, side.prepared(self.fleet)).number
        except RemoteError as error:
            found = side.attempt_of_migration(plan.migration) if error.kind == "Refused" else None
            if found is None or not (found["running"] or _finished(found)) or found["epoch"] != order.epoch:
                raise
            return int(found["attempt"])
        held = order.action in (records.STANDBY, records.REPLAY)
        what = f": it rehearses on {order.checkpoint} and waits" if held else f" from {order.checkpoint}"
        self.command(side.first, f"start attempt {number} of {plan.run_id}{what}")
        return number

    # ------------------------------------------------------------------------------------------ telling

    def note(self, message: str, **detail: Any) -> None:
        """One line for a person."""
        self.journal.write("note", phase=self.phase, message=message, **detail)

    def command(self, host: Host, line: str) -> None:
        """One line of the command log: what is done where, as a person would type it."""
        self.journal.write("command", phase=self.phase, message=line, host=host.name)

    def progress(self, what: str) -> Callable[[Progress], None]:
        """A receiver of copy progress, at most four lines a second and the last one always."""
        last_bytes, last_time = -1, 0.0

        def tell(progress: Progress) -> None:
            nonlocal last_bytes, last_time
            self.check_requests()
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

        return tell

    # ------------------------------------------------------------------------------------------ looking

    def check_requests(self) -> None:
        """Raises RollbackRequested where a person asked for it and it was not begun yet."""
        if self.phase != "rollback" and self.directory.rollback_requested():
            raise RollbackRequested

    def run_on(self, snapshot: Snapshot, host: str) -> RunView | None:
        """The copy of the run on ``host``, where the host answers now."""
        view = snapshot.host(host)
        if view is None or view.link != "live":
            return None
        return next((run for run in snapshot.runs if run.key == (host, self.plan.run_id)), None)

    def skew(self, host: str) -> float:
        """Seconds that the host's clock is ahead of the operator's; 0 where that is not known."""
        view = self.watch.snapshot().host(host)
        return view.machine.clock_skew if view and view.machine else 0.0

    def provider_of(self, side: HostGroup) -> ProviderQuery:
        """Who asks the provider of a side that does not answer."""
        if side is not self.source_group:
            return ProviderQuery(self.fleet, side.target)
        return ProviderQuery(
            self.fleet, side.target, f"midstream --migrate {self.plan.run_id} --to TARGET --source-lost"
        )

    def wait_for(
        self,
        what: str,
        host: str,
        predicate: Callable[[RunView], bool],
        timeout: float,
        meanwhile: Callable[[], None] | None = None,
    ) -> RunView:
        """The run's copy on ``host`` once ``predicate`` holds for it. ``meanwhile`` is called every few seconds, and
        may raise what ends the waiting.

        While the host does not answer, its silence is no evidence of anything: time without contact does not count
        towards ``timeout``, and neither does time in which this process did not run. MidstreamError names ``what`` was
        waited for; NeedsOperator after ten times ``timeout`` without contact; TakenBack where the provider of a silent
        target, or of a source that is not sealed yet, says that it is gone.
        """
        provider = self.provider_of(self.source_group if host in self.source_group.target.hosts else self.target_group)
        in_contact, silent = Deadline(timeout), Deadline(10 * timeout)
        told = False
        looked = time.monotonic()
        while not (in_contact.reached or silent.reached):
            self.check_requests()
            seen: list[RunView] = []

            def found(snapshot: Snapshot, seen: list[RunView] = seen) -> bool:
                run = self.run_on(snapshot, host)
                if run is not None and predicate(run):
                    seen.append(run)
                    return True
                return False

            if self.watch.wait_for(found, timeout=1.0) is not None and seen:
                return seen[-1]
            view = self.watch.snapshot().host(host)
            if view is not None and view.link == "live":
                in_contact.count()
                silent.skip()
                told = False
                if meanwhile is not None and time.monotonic() - looked >= LOOK:
                    meanwhile()
                    looked = time.monotonic()
                continue
            in_contact.skip()
            silent.count()
            if not told:
                self.note(f"{host} does not answer; waiting: losing contact is not losing the run")
                told = True
            if host in self.target_group.target.hosts or self.journal.known("sealed") is None:
                provider.check()
        if silent.reached:
            raise NeedsOperator(
                f"{what}: not within {timeout:.0f} s on {host}, which does not answer",
                f"midstream --continue {self.plan.migration} goes on when it does",
            )
        raise MidstreamError(
            f"{what}: not within {timeout:.0f} s on {host}", f"midstream --status shows what {host} does"
        )


def ways_on(move: Migration) -> str:
    """The lines that a person may choose from once the run is certified on its target."""
    plan, sealed = move.plan, move.journal.known("sealed")
    return (
        f"midstream --continue {plan.migration} starts it there again, "
        f"midstream --rollback {plan.migration} --yes goes back to step {sealed['step']} on {plan.source}"
    )


def _finished(found: dict[str, Any]) -> bool:
    return (found["status"] or {}).get("state") == records.FINISHED


def replayed(move: Migration) -> bool:
    """Whether the target computes the state itself: a live migration that has not become a warm migration."""
    return move.plan.mode == LIVE and not move.journal.known("fallen_back")


PIN_SECONDS = 86400.0


def pin(move: Migration, checkpoint: str) -> None:
    """Keep the source's retention away from a checkpoint while the migration needs it."""
    move.source_group.checkpoint_store.pin(move.plan.migration, checkpoint, pin_expires(move))


@contextmanager
def pinned_there(move: Migration, checkpoint: str) -> Iterator[None]:
    """Meanwhile the retention of the run that trains on the target keeps away from a checkpoint that is brought there
    to be looked at: it is older than those of its own."""
    target = move.target
    _pin(move, target, checkpoint, time.time() + move.skew(move.plan.target_host) + PIN_SECONDS)
    yield  # where it breaks off, whoever continues needs it, or it expires
    target.call("runs.run_state.unpin", root=target.root, run_id=move.plan.run_id, migration=move.plan.migration)


def _pin(move: Migration, host: Host, checkpoint: str, expires: float) -> None:
    plan = move.plan
    words = {"migration": plan.migration, "checkpoint": checkpoint, "expires": expires}
    host.call("runs.run_state.pin", root=host.root, run_id=plan.run_id, **words)


def pin_expires(move: Migration) -> float:
    """When a pin that is made or renewed now ends: UTC seconds by the source's clock."""
    return time.time() + move.skew(move.plan.source) + PIN_SECONDS
