"""A guard that migrates a run on evidence of its machine's loss or termination.

Evidence is: a machine that answers, where the engine's process has exited while its status says that it runs (killed,
or the machine was rebooted), also where that is one of several processes and the others failed because of it; a notice
that the machine will be terminated; the provider's status that it was preempted. A machine that does not answer is no
evidence, because it may be training: the guard notifies the user and changes nothing.

Where no source machine answers, its provider reports it as preempted, and its checkpoints are in a bucket, the run
continues from the newest complete one, planned from a copy of the run on a machine that answers, as with
``--source-lost``.

A job of SLURM that is about to reach its time limit is handed on: to another target by a migration, to its own target
by a restart.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

from midstream.errors import Exit, HostError, MidstreamError
from midstream.fleet.fleet import Fleet
from midstream.hosts.deadline import Deadline
from midstream.hosts.host_pool import HostPool
from midstream.migrate import migration_process, notify
from midstream.migrate.failover import guard_plan, guard_pods, job_restart
from midstream.migrate.failover.guard_consent import GuardConsent, NotAgreedError
from midstream.migrate.failover.guard_evidence import GuardEvidence
from midstream.migrate.failover.guard_plan import MigratedByAnotherError
from midstream.migrate.failover.run_verdict import (
    ENDED,
    FAILED,
    HEALTHY,
    LOST,
    TERMINATING,
    UNREACHABLE,
    Verdict,
    judge,
)
from midstream.migrate.failover.time_limit import TimeLimit
from midstream.migrate.journal import migration_state
from midstream.migrate.journal.event import Event
from midstream.migrate.journal.migration_directory import open_migrations
from midstream.migrate.journal.migration_view import MigrationView
from midstream.migrate.journal.plan import Plan
from midstream.migrate.journal.request import Request
from midstream.migrate.modes.registry import COLD, WARM
from midstream.ownership.owner_judge import CLAIM
from midstream.providers import fleet_slices
from midstream.providers.provider import SliceStatus
from midstream.watch.known_owners import remember_owners
from midstream.watch.snapshot import LIVE, RunView, Snapshot
from midstream.watch.symptoms import symptoms
from midstream.watch.watcher import Watcher
from midstream_core.json_types import JsonValue

EVIDENCE_DURATION = 6.0  # seconds that evidence must last, so that a restart by the user is not raced
NOTICE_INTERVAL = 10.0  # seconds between two reads of preemption notices
UNREACHABLE_TIMEOUT = 300.0  # seconds without contact after which the user is notified
POLL_INTERVAL = 2.0  # seconds
PODS_SEEN_TIMEOUT = 60.0  # seconds until created pods answer the watcher
RESTART_SEEN_TIMEOUT = 60.0  # seconds until a restarted run is in the snapshot


def answering(names: Sequence[str], snapshot: Snapshot) -> bool:
    """Return whether all of these hosts answer."""
    links = {host.name: host.link for host in snapshot.hosts}
    return all(links.get(name) == LIVE for name in names)


@dataclass
class Guard:
    """Guard of one run."""

    fleet: Fleet
    hosts: HostPool
    watch: Watcher
    run_id: str
    targets: Sequence[str]
    tries: int  # number of migrations that it may still start
    report: Callable[[dict[str, Any]], None]  # receives each event
    agreed: bool = False  # the user has agreed to pods being created
    lead: float | None = None  # seconds before a job's time limit at which it is handed on; None: as estimated
    consent: GuardConsent = field(default_factory=GuardConsent)  # what the user has agreed to
    _reported: set[str] = field(default_factory=set[str])
    evidence: GuardEvidence = field(init=False)
    _restarted_step: int = -1  # at which the guard restarted the run last
    _begun: set[str] = field(default_factory=set[str])  # the migrations that it has begun
    _waits: bool = False  # for another migration of the run, since its last notification that the run is lost

    def __post_init__(self) -> None:
        time_limit = TimeLimit(self.fleet, self.hosts, self.targets, self.lead, self._report_lead)
        self.evidence = GuardEvidence(self.fleet, self.hosts, self.run_id, time_limit)

    def run(self) -> Exit:
        """Guard until the run ends.

        Raises:
            MidstreamError: No target took the run, or no tries are left.
        """
        evidence = self.evidence
        durations: dict[str, Deadline] = {}
        notice, provided, read_at = "", (SliceStatus.UNKNOWN, ""), 0.0
        while True:
            snapshot = self.watch.snapshot()
            now = time.monotonic()
            if now - read_at > NOTICE_INTERVAL:
                notice, provided, read_at = evidence.notice(snapshot), evidence.provided(snapshot), now
            remember_owners(snapshot, (self.run_id,))
            self._report_claims(snapshot)
            if evidence.is_job and any(not copy.running for copy in snapshot.believed(self.run_id)[:1]):
                notice = ""  # a run that was stopped before its time limit was stopped by its user
            run, verdict = judge(snapshot, self.run_id, notice, provided, evidence.owner(snapshot))
            verdict = evidence.with_first_failure(run, verdict, snapshot)
            # Time in which this process was suspended does not count: its earlier snapshot is outdated.
            durations = {verdict.kind: durations.get(verdict.kind) or Deadline(None)}
            durations[verdict.kind].count()
            duration = durations[verdict.kind].spent
            if verdict.kind == ENDED and duration >= EVIDENCE_DURATION:
                self._notify(notify.FINISHED, verdict.reason)
                return Exit.DONE
            if verdict.kind == FAILED and duration >= EVIDENCE_DURATION:
                restart = f"midstream --restart {self.run_id} starts it there again"
                self._notify(notify.NEEDS_YOU, f"{verdict.reason}; a migration would not fix that; {restart}")
                return Exit.FAILED
            if run is not None and run.damaged and duration >= EVIDENCE_DURATION:
                self._report_once(
                    notify.NEEDS_YOU, f"{verdict.reason}; the run is not migrated before that is repaired"
                )
            elif verdict.kind == UNREACHABLE and duration >= UNREACHABLE_TIMEOUT:
                self._report_once(notify.NEEDS_YOU, f"{verdict.reason}; nothing is done without evidence")
            if verdict.kind in (LOST, TERMINATING) and duration >= EVIDENCE_DURATION and run is not None:
                if not self._has_open_migration():
                    if not self._waits:
                        self._notify(notify.LOST, verdict.reason)
                    self._waits = False
                    try:
                        self._migrate(run, verdict)
                    except MigratedByAnotherError as error:
                        self._wait_for_other(error.message)
                    except NotAgreedError as error:
                        self._notify(notify.NEEDS_YOU, f"{verdict.reason}, and {error}")
                        raise
                    durations, notice, provided, read_at = {}, "", (SliceStatus.UNKNOWN, ""), 0.0
            elif verdict.kind == HEALTHY:
                self._waits = False
                self._symptoms(run)
            time.sleep(POLL_INTERVAL)

    def _report_claims(self, snapshot: Snapshot) -> None:
        """Report each host that claims the run without proof. Nothing follows from it."""
        for host, standing in snapshot.judgement(self.run_id).standings.items():
            if standing.kind == CLAIM and f"claim of {host}" not in self._reported:
                self._reported.add(f"claim of {host}")
                message = f"{host} claims {self.run_id}: {standing.reason}"
                self.report({"event": "guard", "kind": "claimed", "run": self.run_id, "message": message})

    def _has_open_migration(self, migration: str = "") -> bool:
        """Return whether ``migration`` is open; by default, whether any of this run is.

        Each open one that does not run is reported.
        """
        views = self._open_migrations()
        for view in views:
            if view.state != migration_state.RUNNING:
                self._report_once(
                    notify.NEEDS_YOU,
                    f"migration {view.migration} is {view.state}: midstream --continue {view.migration}, or --rollback",
                )
        return any(view.migration == migration for view in views) if migration else bool(views)

    def _open_migrations(self) -> list[MigrationView]:
        return open_migrations(self.fleet, self.run_id)

    def _migrate(self, run: RunView, verdict: Verdict) -> None:
        """Migrate the run to the first target that takes it.

        Raises:
            MigratedByAnotherError: Another migration has the run: it is judged again.
            NotAgreedError: The migration needs another consent than the guard's.
            MidstreamError: No target took it.
        """
        refused: list[str] = []
        hint = f"midstream --migrate {self.run_id} --to TARGET"
        store = self._store(run) if verdict.lost else ""
        for target in self.targets:
            if job_restart.is_own_target(self.fleet, run, target):
                if verdict.kind == TERMINATING:
                    try:
                        self._restart(run, target)
                        return
                    except MidstreamError as error:  # HostError too
                        refused.append(f"{target}: {error}")
                continue
            if self.tries < 1 or not self._can_take(run, target, store):
                continue
            pods = None
            try:
                pods = guard_pods.create(self.fleet, target, self.agreed, self._report_pods)
                if pods is not None:  # a plan needs their answer, and the watcher pauses between its attempts
                    self.watch.wait_for(partial(answering, self.fleet.hosts_of(target)), PODS_SEEN_TIMEOUT)
                plan = self._plan(self._request(run, verdict, target, store), store)
            except (HostError, MidstreamError) as error:
                another = error if isinstance(error, MigratedByAnotherError) else None
                guard_pods.delete(pods, self._report_pods, needed=another is not None and another.needs_target)
                if another is not None or isinstance(error, NotAgreedError):
                    raise
                refused.append(f"{target}: {error}")
                continue
            self.tries -= 1
            migration = migration_process.start(self.fleet, plan)
            self.report(
                {"event": "guard", "kind": "migrating", "run": self.run_id, "to": target, "migration": migration}
            )
            results = [event for event in migration_process.follow(migration) if event.event == "result"]
            detail: dict[str, JsonValue] = dict(results[-1].detail) if results else {}
            if detail.get("outcome") == migration_state.COMPLETED:
                self._notify(notify.FINISHED, f"migrated to {target} (migration {migration})", migration=migration)
                return
            another = self._other_migration(migration, results)
            if results and not self._has_open_migration(migration):
                needed = pods is not None and guard_plan.needed_by_another(self.hosts, plan)
                guard_pods.delete(pods, self._report_pods, needed=needed)
            if another:
                raise MigratedByAnotherError(another)
            refused += [f"{target}: {result.message}" for result in results[-1:]]
            if verdict.kind == TERMINATING and self._is_preempted(run.host):
                return  # during the migration: judge the run again
            if detail.get("ok"):  # its user has rolled it back: another migration would undo that
                hint = f"midstream --guard {self.run_id} --to {','.join(self.targets)} guards it again"
                break
            if any(view.facts.sealed or view.facts.relaunching or view.damage for view in self._open_migrations()):
                # Its target may train the run: another migration would lose those steps.
                hint = f"midstream --continue {migration}, or --rollback"
                break
        spent = "; no tries are left" if self.tries < 1 else ""
        message = f"{verdict.reason}, and no target took the run{spent}: {'; '.join(refused) or 'no target is left'}"
        self._notify(notify.NEEDS_YOU, message)
        raise MidstreamError(message, hint)

    def _is_preempted(self, host: str) -> bool:
        return fleet_slices.host_slice_status(self.fleet, host)[0] == SliceStatus.PREEMPTED

    def _can_take(self, run: RunView, target: str, store: str) -> bool:
        """Return whether a target is not where the run is, or shares its directory."""
        return bool(store) or self.fleet.is_login_node(run.host, target) or run.host not in self.fleet.hosts_of(target)

    def _other_migration(self, own: str, results: list[Event]) -> str:
        """Return why another migration has the run; empty: none has it."""
        self._begun.add(own)
        if results and results[-1].detail.get("outcome") == migration_state.MOVED_ON:
            return results[-1].message
        others = [view for view in self._open_migrations() if view.migration not in self._begun]
        if not others:
            return ""
        return f"migration {others[0].migration} of {self.run_id} to {others[0].plan.target} is {others[0].state}"

    def _restart(self, run: RunView, target: str) -> None:
        """Continue the run as the next job of its own target.

        Raises:
            MidstreamError: It is not restarted.
        """
        step = run.step or 0
        if step <= self._restarted_step:
            raise MidstreamError(f"{run.run_id} made no step since it was restarted at step {self._restarted_step}")
        message = f"saving and stopping attempt {run.attempt}, then {target} gets the next one"
        self.report({"event": "guard", "kind": "restarting", "run": self.run_id, "to": target, "message": message})
        number = job_restart.restart(self.hosts, run, target)
        if not number:
            return  # it has finished: the next verdict says so
        self._restarted_step = step
        # An older snapshot would show a run that its user has stopped.
        self.watch.wait_for(
            lambda at: any(copy.attempt >= number for copy in at.believed(self.run_id)), timeout=RESTART_SEEN_TIMEOUT
        )
        self._notify(notify.RESTARTED, f"attempt {number} of {run.run_id} is in the queue of {target}")

    def _request(self, run: RunView, verdict: Verdict, target: str, store: str) -> Request:
        """Return the request for a migration, from the checkpoints in ``store`` if given.

        Raises:
            MidstreamError: No host has a copy of the run.
        """
        if verdict.kind == TERMINATING:
            mode = COLD if self.fleet.is_login_node(run.host, target) else WARM
            return Request(self.run_id, target, mode=mode)
        request = Request(self.run_id, target, mode=COLD, checkpoint="latest")
        if not store:
            return request
        return replace(
            request, source=guard_plan.host_of_copy(self.fleet, self.watch.snapshot(), run, target), source_lost=True
        )

    def _store(self, run: RunView) -> str:
        """Return the bucket of a lost run's checkpoints; empty if they were on its disks."""
        owner = run.fence.owner if run.fence is not None else ""
        return run.store or self.fleet.store_of_target(owner)

    def has_target(self, run: RunView) -> bool:
        """Return whether any target can take the run from where it is now."""
        store = self._store(run)
        return any(
            job_restart.is_own_target(self.fleet, run, target) or self._can_take(run, target, store)
            for target in self.targets
        )

    def _plan(self, request: Request, store: str) -> Plan:
        """Make a plan and run its preflight (`guard_plan.make`)."""
        return guard_plan.make(self.hosts, self.watch.snapshot(), request, store, self.consent)

    def _symptoms(self, run: RunView | None) -> None:
        if run is None:
            return
        host = self.watch.snapshot().host(run.host)
        skew = host.machine.clock_skew if host is not None and host.machine is not None else 0.0
        for symptom in symptoms(run, time.time() + skew):
            self._report_once(symptom.kind, f"{run.run_id} on {run.host}: {symptom.message}", once=symptom.kind)

    def _wait_for_other(self, message: str) -> None:
        """Report that another migration has the run: that of another guard, or a user's.

        Each message is reported once.
        """
        self._waits = True
        if message not in self._reported:
            self._reported.add(message)
            self.report({"event": "guard", "kind": "waiting", "run": self.run_id, "message": message})

    def _report_pods(self, kind: str, target: str, message: str) -> None:
        self.report({"event": "guard", "kind": kind, "run": self.run_id, "to": target, "message": message})

    def _report_lead(self, message: str) -> None:
        self.report({"event": "guard", "kind": "lead", "run": self.run_id, "message": message})

    def _report_once(self, kind: str, message: str, once: str = "") -> None:
        if (once or message) not in self._reported:
            self._reported.add(once or message)
            self._notify(kind, message)

    def _notify(self, kind: str, message: str, **more: object) -> None:
        self.report({"event": "guard", "kind": kind, "run": self.run_id, "message": message, **more})
