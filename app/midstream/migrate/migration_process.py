"""Process that executes a migration, in its own session: it outlives its terminal.

python -m midstream.migrate.migration_process ID [--rollback | --yes]
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import threading
import time
import traceback
from collections.abc import Iterator

from midstream.errors import Exit, MidstreamError, UsageError
from midstream.fleet.fleet import Fleet
from midstream.hosts import current_context
from midstream.hosts.host_pool import HostPool
from midstream.migrate import notify
from midstream.migrate.executor import execute, moved_on
from midstream.migrate.journal import damaged_files, fleet_scope, migration_state
from midstream.migrate.journal import journal as journals
from midstream.migrate.journal import migration_directory as directories
from midstream.migrate.journal.cached_view import START_TIMEOUT
from midstream.migrate.journal.event import Event
from midstream.migrate.journal.journal import (
    Journal,
    JournalError,
    Outcome,
    follow_events,
    outcome,
    read_events,
    refuse_newer,
)
from midstream.migrate.journal.migration_directory import MigrationDirectory
from midstream.migrate.journal.migration_view import MigrationView
from midstream.migrate.journal.plan import Plan
from midstream.migrate.journal_recovery import BEHIND, hosts_report, is_behind, reestablish
from midstream.migrate.lease_renewal import LeaseRenewal
from midstream.migrate.modes.registry import mode_of
from midstream.migrate.steps.migration import Migration, MovedOnError
from midstream.migrate.steps.ownership_records import refuse_later_owner
from midstream.state_directory import state_directory
from midstream.watch.watcher import Watcher
from midstream_core.json_types import JsonValue

MAX_TRACE_CHARS = 1 << 15  # of a traceback in the journal
WATCH_INTERVAL = 0.25  # seconds; each poll during the cutover adds to the downtime
EXIT_TIMEOUT = 120.0  # seconds that a process may take to exit after its result: it notifies the user
EXIT_POLL = 0.05  # seconds
ROLLBACK_POLL = 0.5  # seconds


def start(fleet: Fleet, plan: Plan) -> str:
    """Write the plan and start a detached process that executes it; return the id."""
    directory = directories.create(fleet_scope.with_absolute_fleet_file(plan), current_context.fleet_text(fleet))
    _spawn(directory)
    return directory.migration


def continue_(migration: str, *, agreed: bool = False) -> None:
    """Continue an interrupted migration; do nothing if it runs.

    ``agreed``: without the evidence that its certificate lacks.

    Raises:
        UsageError: it has ended.
        MidstreamError: its files are too damaged, or its process has its result and does not exit.
    """
    directory = MigrationDirectory.find(migration)
    if _executes(directory):
        return
    view = readable(directory)
    if not view.open:
        raise UsageError(f"migration {directory.migration} has ended ({view.state})", "there is nothing to continue")
    _spawn(directory, *(["--yes"] if agreed else []))


def switch_to_warm(migration: str) -> None:
    """Request that a live migration continues as a warm one. UsageError if it cannot."""
    directory = MigrationDirectory.find(migration)
    refuse_newer(directory.journal_file)
    view = directory.view()
    if not mode_of(view.plan.mode).fallback or not view.open:
        what = view.state if not view.open else f"a {view.plan.mode}"
        raise UsageError(
            f"migration {directory.migration} is {what}", "only a running live migration can become a warm one"
        )
    directory.request_warm_mode()


def readable(directory: MigrationDirectory) -> MigrationView:
    """Return the view of a migration whose plan and fleet can be read from some file.

    Raises:
        MidstreamError: they cannot; the message names the hosts that have the migration. Or a newer midstream wrote
            the journal.
    """
    refuse_newer(directory.journal_file)
    try:
        directory.fleet()
    except MidstreamError as error:
        error.message += hosts_report(directory)
        raise
    return directory.view()


def rollback(migration: str, *, agreed: bool = False) -> None:
    """Roll a migration back, in its running process or in a new one.

    ``agreed``: also where a host has lost what it had.

    Its process may complete the migration before it reads the request: `refuse_finished` says so afterwards.

    Raises:
        UsageError: the source is retired, or the migration was rolled back already.
        MidstreamError: its files are too damaged, or its process has its result and does not exit.
    """
    directory = MigrationDirectory.find(migration)
    refuse_finished(directory)
    view = readable(directory)
    if view.state == migration_state.ROLLED_BACK:
        raise UsageError(f"migration {directory.migration} was rolled back already", "midstream --status shows the run")
    if view.state == migration_state.MOVED_ON:
        raise UsageError(
            f"migration {directory.migration} has nothing to roll back: a later migration has the run",
            "midstream --status shows where it is",
        )
    directory.request_rollback(agreed=agreed)
    if not _executes(directory):
        refuse_finished(directory)
        _spawn(directory, "--rollback")


def refuse_finished(directory: MigrationDirectory) -> None:
    """Raise UsageError if the migration is finished.

    A request to roll it back is withdrawn.
    """
    view = readable(directory)
    if view.finished:
        directory.withdraw_request()
        raise UsageError(
            f"migration {directory.migration} is finished: {view.plan.source} is retired",
            f"migrate it back instead: midstream --migrate {view.plan.run_id} --to {view.plan.source}",
        )


def refuse_late_rollback(migration: str) -> None:
    """Wait for the exit of a migration's process, then call `refuse_finished`.

    For a caller of `rollback` that does not `follow` the migration.
    """
    directory = MigrationDirectory.find(migration)
    while directory.is_locked():
        time.sleep(ROLLBACK_POLL)
    refuse_finished(directory)


def _executes(directory: MigrationDirectory) -> bool:
    """Return whether a process executes the migration, and reads requests.

    A process that has written its result reads no more requests: its exit is waited for.

    Raises:
        MidstreamError: it does not exit.
    """
    deadline = time.monotonic() + EXIT_TIMEOUT
    while directory.is_locked():
        if not outcome(directory.view().events).outcome:
            return True
        if time.monotonic() > deadline:
            raise MidstreamError(
                f"the process of migration {directory.migration} has its result and does not exit",
                f"see {directory.log_file}",
                Exit.INTERRUPTED,
            )
        time.sleep(EXIT_POLL)
    return False


def follow(migration: str, offset: int = 0) -> Iterator[Event]:
    """Yield events from byte ``offset`` on until the migration's process exits.

    The events are the journal's. The result is the last one: of an open migration it is yielded at the end, or never if
    the migration goes on.
    """
    directory = MigrationDirectory.find(migration)
    ended = threading.Event()
    stopped = threading.Event()

    def watch() -> None:
        while directory.is_locked() and not stopped.wait(journals.FOLLOW_POLL):
            pass
        ended.set()

    watcher = threading.Thread(target=watch, name="migration-process", daemon=True)
    watcher.start()
    result: Event | None = None
    try:
        for event in follow_events(directory.journal_file, until=ended, offset=offset):
            if event.event == "result" and not outcome([event]).ended:
                result = event
                continue
            if event.event == "result" or (event.event == "note" and event.state == "resumed"):
                result = None
            yield event
        if result is not None:
            yield result
    finally:
        stopped.set()


def _spawn(directory: MigrationDirectory, *flags: str) -> None:
    """Start the process and wait until it has locked the migration."""
    with directory.log_file.open("ab") as log:
        child = subprocess.Popen(
            [sys.executable, "-P", "-m", "midstream.migrate.migration_process", directory.migration, *flags],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            start_new_session=True,
            env={**os.environ, "MIDSTREAM_STATE": str(state_directory().absolute())},
            cwd="/",
        )
    # Reaps the child, which would otherwise stay as a zombie.
    threading.Thread(target=child.wait, name="migration-reaper", daemon=True).start()
    deadline = time.monotonic() + START_TIMEOUT
    begun = directory.journal_size()
    while time.monotonic() < deadline:
        if directory.is_locked() or directory.journal_size() > begun:
            return
        if child.poll() is not None:
            raise MidstreamError(
                f"the migration's process exited: {last_log_line(directory) or 'its log is empty'}",
                f"see {directory.log_file}",
                Exit.INTERRUPTED,
            )
        time.sleep(0.02)
    raise MidstreamError(
        f"the process of migration {directory.migration} has not begun within {START_TIMEOUT:.0f} s, "
        "and may still begin",
        f"midstream --continue {directory.migration} follows it, or starts another one; see {directory.log_file}",
        Exit.INTERRUPTED,
    )


def last_log_line(directory: MigrationDirectory) -> str:
    """Return the process's log after its last journal line, or that the disk is full.

    Empty if neither applies.
    """
    log, journal = directory.log_file, directory.journal_file
    try:
        with log.open("rb") as file:
            file.seek(max(0, file.seek(0, os.SEEK_END) - MAX_TRACE_CHARS))
            lines = file.read().decode(errors="replace").strip().splitlines()
        if lines and (not journal.is_file() or log.stat().st_mtime >= journal.stat().st_mtime):
            return lines[-1].removeprefix("midstream: ")
        return "" if shutil.disk_usage(directory.path).free else f"no space is left for {directory.path}"
    except OSError as error:
        return f"{log} cannot be read: {error.strerror}"


def main(arguments: list[str] | None = None) -> int:
    words = sys.argv[1:] if arguments is None else arguments
    migration, rolling_back = words[0], "--rollback" in words[1:]
    directory = MigrationDirectory(migration)
    try:
        with directory.locked():
            code, notification = _run_migration(directory, rolling_back, "--yes" in words[1:])
            if notification is not None and code != Exit.INTERRUPTED:
                notify.notify_all(*notification)  # locked: the command that follows the migration waits for it
    except MidstreamError as error:
        print(f"midstream: {error}", file=sys.stderr)
        return int(error.code)
    if notification is not None and code == Exit.INTERRUPTED:  # unlocked: the user who gets it may continue at once
        notify.notify_all(*notification)
    return int(code)


def _run_migration(
    directory: MigrationDirectory, rolling_back: bool, agreed: bool
) -> tuple[Exit, tuple[Fleet, dict[str, JsonValue]] | None]:
    """Execute a locked migration. The journal's last line is a result in every case.

    Returns the exit code; and the event for the user, with the fleet of its receivers.
    """
    lost = directory.journal_lost()
    damaged_files.set_aside(directory.journal_file)
    journal = Journal(directory.journal_file)
    try:
        resumed = journal.begun
        if lost:
            journal.write_lost()
        elif resumed:
            journal.write("note", state="resumed", message="resumed by another process")
        for line in directory.restore(journal):
            journal.write("note", message=line)
        plan, fleet = directory.plan(), directory.fleet()
        hosts = HostPool(fleet)
        watch = Watcher(fleet, hosts, interval=WATCH_INTERVAL, only={plan.source, plan.target_host})
        watch.start()
        lease = LeaseRenewal(hosts, plan)
        lease.start()
        try:
            migration = Migration(plan, directory, journal, fleet, hosts, watch, agreed=agreed)
            try:
                rolled_back = rolling_back or directory.rollback_requested()
                if resumed or lost:
                    refuse_later_owner(migration, returning=True)
                if journal.damaged:
                    reestablish(migration, rollback=rolled_back)
                elif resumed and is_behind(migration):
                    reestablish(migration, rollback=rolled_back, why=BEHIND)
            except MovedOnError as error:
                return moved_on(migration, error), None
            code = execute(migration, rollback=rolling_back)
            ended = outcome(read_events(journal.path))
            if ended.outcome == migration_state.INTERRUPTED and directory.rollback_requested():
                # Requested since the last phase has looked. A process that requests it from now on sees the result.
                journal.write("note", state="resumed", message="a rollback was requested")
                code = execute(migration, rollback=True)
                ended = outcome(read_events(journal.path))
            return code, (fleet, _notification(plan, ended, code))
        finally:
            lease.stop()
            watch.stop()
            hosts.close()
    except JournalError:
        raise  # no result can be written
    except Exception as error:  # noqa: BLE001 - a follower waits for one line
        if not isinstance(error, MidstreamError):
            journal.write("trace", message=traceback.format_exc()[-MAX_TRACE_CHARS:])
        journal.write(
            "result",
            message=f"{error}; midstream --continue {directory.migration} continues it",
            ok=False,
            exit_code=int(Exit.INTERRUPTED),
            outcome=migration_state.INTERRUPTED,
            migration=directory.migration,
        )
        return Exit.INTERRUPTED, None
    finally:
        journal.close()


def _notification(plan: Plan, ended: Outcome, code: Exit) -> dict[str, JsonValue]:
    """Return the event for the receivers of the fleet file."""
    kinds = {Exit.DONE: notify.FINISHED, Exit.INTERRUPTED: notify.NEEDS_YOU, Exit.NOT_RUNNING: notify.NEEDS_YOU}
    return {
        "event": "migration",
        "kind": kinds.get(code, notify.FAILED),
        "migration": plan.migration,
        "run": plan.run_id,
        "from": plan.source,
        "to": plan.target,
        "outcome": ended.outcome,
        "message": ended.error or f"{plan.run_id}: {plan.source} -> {plan.target}: {ended.outcome}",
    }


if __name__ == "__main__":
    sys.exit(main())
