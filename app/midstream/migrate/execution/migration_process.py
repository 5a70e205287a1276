"""The process that carries a migration out. It has a session of its own and outlives the terminal that started it.

python -m midstream.migrate.execution.migration_process ID [--rollback]
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
from typing import TYPE_CHECKING

from midstream.errors import Exit, MidstreamError, UsageError
from midstream.migrate import model
from midstream.migrate.execution import damaged_files, fleet_scope
from midstream.migrate.execution import migration_directory as directories
from midstream.migrate.execution.journal import Journal, JournalError, Outcome, follow_events, outcome, read_events
from midstream.migrate.execution.migration_directory import START_TIMEOUT, MigrationDirectory
from midstream.migrate.failover import notify

if TYPE_CHECKING:
    from midstream.fleet.fleet import Fleet

LONGEST_TRACE = 1 << 15  # characters of a traceback that are journaled
WATCH_INTERVAL = 0.25  # seconds; the downtime waits on what the watch sees


def start(fleet: Fleet, plan: model.Plan) -> str:
    """Write the plan down and begin to carry it out, detached. Returns the migration's id."""
    directory = directories.create(fleet_scope.with_whole_path(plan), fleet.text)
    _spawn(directory)
    return directory.migration


def continue_(migration: str) -> None:
    """Go on with a migration that was interrupted. UsageError where it has ended; nothing where it is under way;
    MidstreamError where its files do not say enough for that."""
    directory = MigrationDirectory.find(migration)
    if directory.is_locked():
        return
    view = readable(directory)
    if not view.open:
        raise UsageError(f"migration {directory.migration} has ended ({view.state})", "there is nothing to continue")
    _spawn(directory)


def stop_waiting(migration: str) -> None:
    """Have a live migration go on as a warm migration. UsageError where the migration is none, or has ended."""
    directory = MigrationDirectory.find(migration)
    view = directory.view()
    if view.plan.mode != model.LIVE or not view.open:
        what = view.state if not view.open else f"a {view.plan.mode}"
        raise UsageError(
            f"migration {directory.migration} is {what}", "only a running live migration can become a warm one"
        )
    directory.ask_for_handover()


def readable(directory: MigrationDirectory) -> model.MigrationView:
    """The migration, where plan and fleet can be read, from whichever file. MidstreamError otherwise, with what the
    hosts of the fleet hold of it."""
    try:
        directory.fleet()
    except MidstreamError as error:
        from midstream.migrate.execution.journal_recovery import held_by_hosts

        error.message += held_by_hosts(directory)
        raise
    return directory.view()


def rollback(migration: str) -> None:
    """Take a migration back: by the process that carries it out where there is one, else by a new one. UsageError
    where the source is retired or it was rolled back already."""
    directory = MigrationDirectory.find(migration)
    view = readable(directory)
    if view.finished:
        raise UsageError(
            f"migration {directory.migration} is finished: {view.plan.source} is retired",
            f"move it back instead: midstream --migrate {view.plan.run_id} --to {view.plan.source}",
        )
    if view.state == model.ROLLED_BACK:
        raise UsageError(f"migration {directory.migration} was rolled back already", "midstream --status shows the run")
    if view.state == model.MOVED_ON:
        raise UsageError(
            f"migration {directory.migration} has nothing to take back: the run was moved on since",
            "midstream --status shows where it is",
        )
    directory.ask_for_rollback()
    if not directory.is_locked():
        _spawn(directory, "--rollback")


def follow(migration: str, offset: int = 0) -> Iterator[model.Event]:
    """The journal from byte ``offset`` on, as it is written, until the process that writes it has ended."""
    directory = MigrationDirectory.find(migration)
    ended = threading.Event()
    stopped = threading.Event()

    def watch() -> None:
        while directory.is_locked() and not stopped.wait(0.1):
            pass
        ended.set()

    watcher = threading.Thread(target=watch, name="migration-process", daemon=True)
    watcher.start()
    try:
        yield from follow_events(directory.journal_file, until=ended, offset=offset)
    finally:
        stopped.set()


def _spawn(directory: MigrationDirectory, *flags: str) -> None:
    """Start the process and wait until it holds the migration, so that a follower finds it there."""
    with directory.log_file.open("ab") as log:
        child = subprocess.Popen(
            [sys.executable, "-P", "-m", "midstream.migrate.execution.migration_process", directory.migration, *flags],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            start_new_session=True,
            env={**os.environ, "MIDSTREAM_STATE": str(directories.state_directory().absolute())},
            cwd="/",
        )
    # The journal's owner reaps itself from our side: a zombie would look alive to nobody, but would stay.
    threading.Thread(target=child.wait, name="migration-reaper", daemon=True).start()
    deadline = time.monotonic() + START_TIMEOUT
    begun = directory.journal_size()
    while time.monotonic() < deadline:
        if directory.is_locked() or directory.journal_size() > begun:
            return
        if child.poll() is not None:
            raise MidstreamError(
                f"the migration's process ended at once: {last_words(directory) or 'its log is empty'}",
                f"see {directory.log_file}",
                Exit.INTERRUPTED,
            )
        time.sleep(0.02)
    raise MidstreamError(
        f"the migration's process did not begin within {START_TIMEOUT:.0f} s", f"see {directory.log_file}"
    )


def last_words(directory: MigrationDirectory) -> str:
    """What the process logged after its last line in the journal, or that the disk is full; empty where there is
    neither."""
    log, journal = directory.log_file, directory.journal_file
    try:
        with log.open("rb") as file:
            file.seek(max(0, file.seek(0, os.SEEK_END) - LONGEST_TRACE))
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
            return _carry_out(directory, rolling_back)
    except MidstreamError as error:
        print(f"midstream: {error}", file=sys.stderr)
        return int(error.code)


def _carry_out(directory: MigrationDirectory, rolling_back: bool) -> int:
    """With the migration held. Whatever happens, the journal's last line is a result."""
    from midstream.hosts.host_pool import Hosts
    from midstream.migrate.execution.executor import execute
    from midstream.migrate.execution.journal_recovery import reestablish
    from midstream.migrate.execution.lease_renewal import LeaseRenewal
    from midstream.migrate.execution.migration import Migration, MovedOn
    from midstream.watch.watcher import Watch

    lost = directory.journal_lost()
    damaged_files.set_aside(directory.journal_file)
    journal = Journal(directory.journal_file)
    try:
        if lost:
            journal.lost()
        elif journal.begun:
            journal.write("note", state="resumed", message="resumed by another process")
        for line in directory.restore(journal):
            journal.write("note", message=line)
        plan, fleet = directory.plan(), directory.fleet()
        hosts = Hosts(fleet)
        watch = Watch(fleet, hosts, interval=WATCH_INTERVAL, only={plan.source, plan.target_host})
        watch.start()
        wanted = LeaseRenewal(hosts, plan)
        wanted.start()
        try:
            move = Migration(plan, directory, journal, fleet, hosts, watch)
            if journal.damaged:
                reestablish(move, rollback=rolling_back or directory.rollback_requested())
            code = execute(move, rollback=rolling_back)
            _tell(fleet, plan, outcome(read_events(journal.path)), code)
            return int(code)
        finally:
            wanted.stop()
            watch.stop()
            hosts.close()
    except JournalError:
        raise  # nothing can be written there any more
    except MovedOn as error:
        journal.write(
            "result",
            message=str(error),
            ok=False,
            exit_code=int(Exit.FAILED),
            outcome=model.MOVED_ON,
            migration=directory.migration,
        )
        return Exit.FAILED
    except Exception as error:  # noqa: BLE001 - a follower waits for one line
        if not isinstance(error, MidstreamError):
            journal.write("trace", message=traceback.format_exc()[-LONGEST_TRACE:])
        journal.write(
            "result",
            message=f"{error}; midstream --continue {directory.migration} goes on",
            ok=False,
            exit_code=int(Exit.INTERRUPTED),
            outcome=model.INTERRUPTED,
            migration=directory.migration,
        )
        return Exit.INTERRUPTED
    finally:
        journal.close()


def _tell(fleet: Fleet, plan: model.Plan, ended: Outcome, code: Exit) -> None:
    """Tell whoever does not look how it ended: by the fleet file's ``on_event:``."""
    kinds = {Exit.DONE: notify.FINISHED, Exit.INTERRUPTED: notify.NEEDS_YOU, Exit.NOT_RUNNING: notify.NEEDS_YOU}
    event = {
        "event": "migration",
        "kind": kinds.get(code, notify.FAILED),
        "migration": plan.migration,
        "run": plan.run_id,
        "from": plan.source,
        "to": plan.target,
        "outcome": ended.outcome,
        "message": ended.error or f"{plan.run_id}: {plan.source} -> {plan.target}: {ended.outcome}",
    }
    notify.notify(fleet.on_event, event)


if __name__ == "__main__":
    sys.exit(main())
