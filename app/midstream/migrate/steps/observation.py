"""Watcher's observation of the migrated run: a host's copy and clock, its state."""

from __future__ import annotations

import time
from collections.abc import Callable

from midstream.errors import MidstreamError
from midstream.hosts.deadline import Deadline
from midstream.hosts.rpc.result_checks import repair_hint
from midstream.migrate.journal.migration_view import lost_attempt
from midstream.migrate.steps.migration import Migration, NeedsOperatorError
from midstream.migrate.steps.preemption import provider_of
from midstream.watch.damaged_runs import describe
from midstream.watch.snapshot import RunView, Snapshot
from midstream_core import records

CHECK_INTERVAL = 2.0  # seconds between two calls of a check
UNSEEN_TIMEOUT = 60.0  # seconds in contact; an engine that runs replaces a status that a power cut has damaged


def run_on(migration: Migration, snapshot: Snapshot, host: str) -> RunView | None:
    """Return the run's copy on ``host``; None if the host does not answer now."""
    view = snapshot.host(host)
    if view is None or view.link != "live":
        return None
    return next((run for run in snapshot.runs if run.key == (host, migration.plan.run_id)), None)


def clock_skew(migration: Migration, host: str) -> float:
    """Return seconds that the host's clock is ahead of the operator's; 0 if unknown."""
    view = migration.watch.snapshot().host(host)
    return view.machine.clock_skew if view and view.machine else 0.0


def _report_step(migration: Migration, host: str) -> None:
    """Report the step of the copy that trains: that on ``host``, else the source's."""
    for name in (host, migration.plan.source):
        run = run_on(migration, migration.watch.snapshot(), name)
        if run is not None and run.step is not None and run.state == records.TRAINING:
            migration.directory.report_step(name, run.step)
            return


def _count_unseen(migration: Migration, host: str, deadline: Deadline) -> None:
    """Count the time in which ``host`` answers and cannot show what is awaited.

    A record of the run there cannot be read, or the attempt is absent that has trained there: its disk was put back.

    Raises NeedsOperatorError at the deadline.
    """
    run, plan, facts = run_on(migration, migration.watch.snapshot(), host), migration.plan, migration.journal.facts
    has_trained = facts.training_confirmed_at is not None and host == plan.target_host
    lost = lost_attempt(plan, facts, range(run.attempt + 1 if run is not None else 0)) if has_trained else ""
    damaged = run is not None and run.damaged
    if not damaged and not lost:
        deadline.skip()
    elif deadline.count() and run is not None and damaged:
        raise NeedsOperatorError(
            describe(run), f"{repair_hint(host, plan.run_id)}, then: midstream --continue {plan.migration}"
        )
    elif deadline.reached:
        raise NeedsOperatorError(
            lost,
            f"midstream --rollback {plan.migration} --yes accepts it and goes back to {plan.source}; where the disk is "
            f"back, midstream --continue {plan.migration} goes on",
        )


def wait_for(
    migration: Migration,
    what: str,
    host: str,
    predicate: Callable[[RunView], bool],
    timeout: float,
    check: Callable[[], None] | None = None,
) -> RunView:
    """Wait until ``predicate`` holds for the run's copy on ``host``; return the copy.

    An unreachable host is no evidence of anything: time without contact does not count towards ``timeout``, and
    neither does time in which this process did not run.

    Args:
        migration: the migration that waits.
        what: the awaited event, for messages.
        host: name of the host.
        predicate: the condition.
        timeout: seconds in contact.
        check: called every `CHECK_INTERVAL` seconds; what it raises ends the wait.

    Raises:
        MidstreamError: ``timeout`` has passed.
        NeedsOperatorError: ten times ``timeout`` have passed without contact. Or a record of the run there was
            unreadable, or its attempt absent, for `UNSEEN_TIMEOUT`: the awaited event may have happened unseen.
        PreemptedError: the provider of an unreachable target, or of an unreachable source that is not sealed yet,
            reports that it was preempted.
    """
    source, target, watch = migration.source_group, migration.target_group, migration.watch
    provider = provider_of(migration, source if host in source.target.hosts else target)
    in_contact, out_of_contact, unseen = Deadline(timeout), Deadline(10 * timeout), Deadline(UNSEEN_TIMEOUT)
    reported = False
    checked_at = time.monotonic()
    while not (in_contact.reached or out_of_contact.reached):
        migration.check_requests()
        migration.clock.report(migration.phase)
        matching: list[RunView] = []

        def matches(snapshot: Snapshot, matching: list[RunView] = matching) -> bool:
            run = run_on(migration, snapshot, host)
            if run is not None and predicate(run):
                matching.append(run)
                return True
            return False

        if watch.wait_for(matches, timeout=1.0) is not None and matching:
            return matching[-1]
        _report_step(migration, host)
        view = watch.snapshot().host(host)
        if view is not None and view.link == "live":
            in_contact.count()
            out_of_contact.skip()
            _count_unseen(migration, host, unseen)
            reported = False
            if check is not None and time.monotonic() - checked_at >= CHECK_INTERVAL:
                check()
                checked_at = time.monotonic()
            continue
        in_contact.skip()
        unseen.skip()
        out_of_contact.count()
        if not reported:
            migration.note(f"{host} does not answer; waiting: losing contact is not losing the run")
            reported = True
        if host in target.target.hosts or migration.journal.facts.sealed is None:
            provider.check()
    if out_of_contact.reached:
        raise NeedsOperatorError(
            f"{what}: not within {timeout:.0f} s on {host}, which does not answer",
            f"midstream --continue {migration.plan.migration} continues it when it does",
        )
    raise MidstreamError(f"{what}: not within {timeout:.0f} s on {host}", f"midstream --status shows what {host} does")
