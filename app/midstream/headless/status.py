"""Looking without a screen: hosts, runs and checkpoints, once."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING, Any

from midstream.errors import Exit, UsageError
from midstream.output import Output, age, size, table

if TYPE_CHECKING:
    from midstream.fleet.fleet import Fleet
    from midstream.hosts.host_pool import Hosts
    from midstream.migrate.model import MigrationView
    from midstream.watch.snapshot import CheckpointView, Machine, RunView, Snapshot

LOOK_TIMEOUT = 15.0  # seconds until a host counts as silent


def init(path: str | None, output: Output) -> int:
    """Write a fleet file from ~/.ssh/config; never over an existing one."""
    from midstream.fleet.first_file import fleet_from_ssh_config
    from midstream.fleet.fleet_file import default_fleet_path

    file = Path(path).expanduser() if path else default_fleet_path()
    if file.exists():
        raise UsageError(f"{file} is there already", "edit it, or name another with --fleet FILE")
    text = fleet_from_ssh_config(Path("~/.ssh/config").expanduser())
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(text)
    output.value({"event": "fleet", "path": str(file)}, str(file))
    output.talk(f"wrote {file}: read it, then run midstream --status")
    return Exit.DONE


def look(fleet: Fleet, hosts: Hosts) -> Snapshot:
    from midstream.watch.watcher import look_once

    return look_once(fleet, hosts, timeout=LOOK_TIMEOUT)


def status(fleet: Fleet, options: argparse.Namespace, output: Output) -> int:
    """Hosts, runs and open migrations, once. Exit 0 also where a host does not answer: its line says so."""
    from midstream.hosts.host_pool import Hosts
    from midstream.migrate.execution.migration_directory import list_migrations

    hosts = Hosts(fleet)
    try:
        snapshot = look(fleet, hosts)
    finally:
        hosts.close()
    if output.as_json:
        for host in snapshot.hosts:
            output.value({"event": "host", **plain(host)})
        for run in snapshot.runs:
            output.value(run_json(run))
        for migration in list_migrations(fleet):
            output.value(_migration_json(migration))
        _slices(fleet, output)
        return Exit.DONE
    rows = [("HOST", "LINK", "ACCELERATORS", "MEMORY", "DISK FREE", "")]
    for host in snapshot.hosts:
        machine = host.machine
        rows.append(
            (
                host.name,
                host.link,
                _accelerators(machine.accelerators) if machine else "-",
                f"{size(machine.memory_used)}/{size(machine.memory_total)}" if machine else "-",
                size(machine.disk_free) if machine else "-",
                host.error or (_remarks(machine) if machine else ""),
            )
        )
    lines = table(rows)
    runs = [("RUN", "HOST", "STATE", "STEP", "LOSS", "EPOCH", "CHECKPOINT", "AGE")]
    for run in snapshot.runs:
        members = snapshot.members(run)
        if run is not members[0]:
            continue  # a process of the attempt that stands there already
        complete = [point for point in run.checkpoints if point.complete]
        newest = max(complete, key=lambda point: (point.step, point.attempt), default=None)
        current = "" if run is snapshot.copies(run.run_id)[0] else " (moved on)"
        runs.append(
            (
                run.run_id,
                "+".join(member.host for member in members),
                _state(members) + current,
                f"{run.step}/{run.status.num_train_steps}" if run.status else "-",
                f"{run.loss:.4f}" if run.loss is not None else "-",
                str(run.epoch),
                newest.name if newest else "-",
                age(newest.created) if newest else "-",
            )
        )
    troubles = [f"{run.run_id} on {run.host}: {run.trouble}" for run in snapshot.runs if run.trouble]
    lines += (
        ["", *table(runs), *troubles]
        if snapshot.runs
        else ["", "no runs yet: midstream --launch CONFIG --on TARGET starts one"]
    )
    migrations = [migration for migration in list_migrations(fleet) if migration.open or migration.damage]
    if migrations:
        rows = [("MIGRATION", "RUN", "FROM", "TO", "STATE", "PHASE")]
        rows += [(m.migration, m.plan.run_id, m.plan.source, m.plan.target, m.state, m.phase) for m in migrations]
        lines += ["", *table(rows), *filter(None, map(damage_line, migrations))]
    output.value({}, lines)
    _slices(fleet, output)
    return Exit.DONE


def _slices(fleet: Fleet, output: Output) -> None:
    if fleet.comes_and_goes or fleet.google.projects:
        from midstream.headless.tpu_slices import show

        show(fleet, output)


def _state(members: tuple[RunView, ...]) -> str:
    """Of an attempt: its state, and which of its processes is in another."""
    first, *others = members
    apart = [
        f"process {each.status.process} on {each.host} {each.state}"
        for each in others
        if each.status is not None and each.state != first.state
    ]
    return ", ".join([first.state, *apart])


def _accelerators(accelerators: tuple[Any, ...]) -> str:
    kinds: dict[str, int] = {}
    for accelerator in accelerators:
        kinds[accelerator.kind] = kinds.get(accelerator.kind, 0) + 1
    return ", ".join(f"{count}x{kind}" for kind, count in kinds.items()) or "none"


def _remarks(machine: Machine) -> str:
    """What decides whether a run can go there, as far as a line has room."""
    users = {f"{user.user or '?'} ({user.command or 'unseen'})": None for user in machine.users}
    words = (
        "no Python: watched, and no more" if not machine.python else "",
        f"driver {machine.driver}" if machine.driver else "",
        f"CUDA {machine.cuda}" if machine.cuda else "",
        f"used by {', '.join(users)}" if users else "",
        f"clock {machine.clock_skew:+.1f} s off" if abs(machine.clock_skew) >= 1 else "",
    )
    return ", ".join(filter(None, words))


def plain(value: Any) -> dict[str, Any]:
    from dataclasses import asdict

    return asdict(value)


def run_json(run: RunView) -> dict[str, Any]:
    """A run for programs: without its curve and log."""
    return {
        "event": "run",
        "run": run.run_id,
        "host": run.host,
        "state": run.state,
        "running": run.running,
        "step": run.step,
        "loss": run.loss,
        "epoch": run.epoch,
        "attempt": run.attempt,
        "fence": run.fence.to_json() if run.fence else None,
        "trouble": run.trouble,
        "damaged": dict(run.damaged),
        "store": run.store,
        "lineage": run.lineage.attempts if run.lineage else [],
        "status": run.status.to_json() if run.status else None,
        "checkpoints": [plain(point) for point in run.checkpoints],
    }


def damage_line(view: MigrationView) -> str:
    """What is wrong with a migration's files, and what to do; empty where nothing is."""
    from midstream.migrate.model import DAMAGED

    if not view.damage:
        return ""
    hint = "restore one of them from a backup" if view.state == DAMAGED else ""
    if view.open and not hint:
        hint = f"midstream --continue {view.migration} restores what it needs"
    return f"{view.migration}: {'; '.join(view.damage)}" + (f" ({hint})" if hint else "")


def _migration_json(view: MigrationView) -> dict[str, Any]:
    return {
        "event": "migration",
        "migration": view.migration,
        "run": view.plan.run_id,
        "source": view.plan.source,
        "target": view.plan.target,
        "state": view.state,
        "phase": view.phase,
        "created": view.plan.created,
        "predicted_seconds": dict(view.predicted_seconds),
        "downtime": view.downtime.total if view.downtime else None,
        "certified": view.certificate.valid if view.certificate else None,
        "error": view.error,
        "damage": list(view.damage),
    }


def checkpoints(fleet: Fleet, options: argparse.Namespace, output: Output) -> int:
    """The checkpoints of one run, or of all, on every host that answers."""
    from midstream.hosts.host_pool import Hosts

    hosts = Hosts(fleet)
    try:
        snapshot = look(fleet, hosts)
        runs = [run for run in snapshot.runs if not options.checkpoints or run.run_id == options.checkpoints]
        if options.checkpoints and not runs:
            raise unknown_run(options.checkpoints, snapshot)
    finally:
        hosts.close()
    rows = [("RUN", "HOST", "CHECKPOINT", "SIZE", "AGE", "STATE", "ROOT DIGEST")]
    for run in runs:
        if run.trouble:
            output.talk(f"midstream: {run.run_id} on {run.host}: {run.trouble}")
        for point in sorted(run.checkpoints, key=lambda point: (point.step, point.attempt)):
            output_value = {
                "event": "checkpoint",
                "run": run.run_id,
                "host": run.host,
                "store": run.store,
                **plain(point),
            }
            if output.as_json:
                output.value(output_value)
            rows.append(
                (
                    run.run_id,
                    run.host,
                    point.name,
                    size(point.size),
                    age(point.created),
                    _point_state(point),
                    point.root_digest[:16],
                )
            )
    unknown = any(run.store and run.trouble and not run.checkpoints for run in runs)
    if not output.as_json:
        output.value({}, table(rows) if len(rows) > 1 else [] if unknown else ["no checkpoints yet"])
    return Exit.FAILED if unknown and options.checkpoints else Exit.DONE


def _point_state(point: CheckpointView) -> str:
    words = ["complete" if point.complete else "damaged" if point.damaged else "torn"]
    if point.complete and not point.accepted:
        words.append("past the seal")
    if point.pinned:
        words.append("pinned")
    return ", ".join(words)


def unknown_run(run_id: str, snapshot: Snapshot) -> UsageError:
    import difflib

    known = sorted({run.run_id for run in snapshot.runs})
    near = difflib.get_close_matches(run_id, known, 3)
    silent = [host.name for host in snapshot.hosts if host.link != "live"]
    hint = f"did you mean {', '.join(near)}?" if near else f"known: {', '.join(known) or 'none'}"
    return UsageError(f"no run {run_id!r}", hint + (f"; not answering: {', '.join(silent)}" if silent else ""))
