"""Hosts, runs, migrations and checkpoints as lines of tables."""

from __future__ import annotations

from rich.text import Text

from midstream.tui import format, palette
from midstream.tui import glyphs as signs
from midstream.tui.glyphs import Glyphs
from midstream.tui.widgets.bars import bar
from midstream.tui.widgets.table import Column, Row
from midstream.tui.world import World, hardware, latest, short_kind
from midstream.watch import model as watch
from midstream.watch.model import HostView, Machine, RunView

HOST_COLUMNS = (
    Column("HOST", widest=24),
    Column("LINK"),
    Column("ACCELERATORS", drop=1),
    Column("UTIL", right=True, drop=2),
    Column("MEM", right=True, drop=3),
    Column("CPU", right=True, drop=4),
    Column("DISK FREE", right=True, drop=3),
    Column("AGE", right=True),
    Column("", widest=200, rest=True),
)
RUN_COLUMNS = (
    Column("RUN", widest=32),
    Column("HOST", widest=20),
    Column("STATE"),
    Column("STEP", right=True),
    Column("LOSS", right=True),
    Column("TOK/S", right=True, drop=2),
    Column("AGE", right=True, drop=1),
    Column("DEVICES", drop=3),
)
MIGRATION_COLUMNS = (
    Column("RUN", widest=28),
    Column("FROM"),
    Column("TO"),
    Column("STATE"),
    Column("PHASE", drop=2),
    Column("CERTIFICATE", drop=1),
    Column("DOWN", right=True, drop=3),
    Column("AGE", right=True, drop=4),
    Column("ID", drop=5),
)
CHECKPOINT_COLUMNS = (
    Column("CHECKPOINT"),
    Column("STEP", right=True),
    Column("ATTEMPT", right=True, drop=3),
    Column("SIZE", right=True),
    Column("AGE", right=True),
    Column("STATE"),
    Column("PINNED", drop=2),
    Column("DIGEST", drop=1),
)


def host_rows(world: World, glyphs: Glyphs) -> list[Row]:
    rows = []
    for host in world.snapshot.hosts:
        glyph, colour = signs.link_state(glyphs, host.link)
        machine = host.machine
        stale = host.link != watch.LIVE
        accelerators = utilisation = memory = cpu = disk = format.NONE
        if machine is not None:
            count = len(machine.accelerators)
            accelerators = f"{count}{glyphs.times}{short_kind(machine.accelerators[0].kind)}" if count else "none"
            used = [item.utilization for item in machine.accelerators if item.utilization is not None]
            utilisation = format.percent(sum(used) / len(used)) if used else format.NONE
            memory = format.percent(machine.memory_used / machine.memory_total if machine.memory_total else None)
            cpu, disk = format.percent(machine.cpu_used), format.size(machine.disk_free)
        age = format.age(world.host_age(host)) + (f" {glyphs.stale}" if stale and host.last_seen is not None else "")
        cells = (
            host.name,
            (f"{glyph} {host.link}", colour),
            accelerators,
            utilisation,
            memory,
            cpu,
            disk,
            (age, palette.WAIT) if stale else age,
            (host.error, palette.BAD),
        )
        rows.append(Row(host.name, cells, dim=stale))
    return rows


def run_rows(world: World, glyphs: Glyphs) -> list[Row]:
    """One line a run: the copy with the highest fence epoch. Those that run come first."""
    runs = sorted(world.snapshot.current(), key=lambda run: (not run.alive, run.run_id))
    return [_run_row(run, world, glyphs) for run in runs]


def _run_row(run: RunView, world: World, glyphs: Glyphs) -> Row:
    stale = world.is_stale(run.host)
    glyph, colour = signs.run_state(glyphs, run.state)
    if stale:
        colour = palette.WAIT
    total = run.status.num_train_steps if run.status else 0
    step = format.grouped(run.step) + (f"/{format.grouped(total)}" if total else "")
    age = format.age(world.run_age(run)) + (f" {glyphs.stale}" if stale else "")
    cells = (
        run.run_id,
        run.host,
        (f"{glyph} {run.state}", colour),
        step,
        format.loss(run.loss),
        format.short(latest(run, "throughput/tokens_per_second") if run.alive else None),
        (age, palette.WAIT) if stale else age,
        hardware(run, glyphs.times),
    )
    return Row(run.run_id, cells, dim=stale)


def migration_rows(world: World, glyphs: Glyphs) -> list[Row]:
    rows = []
    for view in world.migrations:
        glyph, colour = signs.migration_state(glyphs, view.state)
        proof = view.certificate
        verdict = (
            (format.NONE, "")
            if proof is None
            else ("certified", palette.GOOD)
            if proof.valid
            else ("failed", palette.BAD)
        )
        down = view.ledger.downtime if view.ledger else None
        cells = (
            view.plan.run_id,
            view.plan.source,
            view.plan.target,
            (f"{glyph} {view.state}", colour),
            view.phase,
            verdict,
            format.seconds(down),
            format.age(world.now - view.plan.created if view.plan.created else None),
            view.migration,
        )
        rows.append(Row(view.migration, cells))
    return rows


def checkpoint_rows(run: RunView, world: World, glyphs: Glyphs) -> list[Row]:
    """Newest first."""
    rows = []
    for point in sorted(run.checkpoints, key=lambda point: (-point.step, -point.attempt)):
        if not point.complete:
            state = (f"{glyphs.busy} incomplete", palette.WAIT)
        elif not point.accepted:
            state = (f"{glyphs.failed} fenced off", palette.BAD)
        else:
            state = (f"{glyphs.passed} complete", palette.GOOD)
        cells = (
            point.name,
            format.grouped(point.step),
            str(point.attempt),
            format.size(point.size),
            format.age(world.now - point.created if point.created else None),
            state,
            "pinned" if point.pinned else "",
            format.digest(point.root_digest),
        )
        rows.append(Row(point.name, cells, dim=not point.complete))
    return rows


def describe_host(host: HostView, world: World, glyphs: Glyphs, width: int) -> Text:
    """A host in a few lines: what it is, its gauges, its accelerators, its error."""
    text = Text(no_wrap=True)
    if host.error:
        glyph, colour = signs.link_state(glyphs, host.link)
        why = host.error.removeprefix(f"{host.name}: ")
        text.append(f"  {glyph} {format.folded(why, width, 4)}\n", colour)
    machine = host.machine
    if machine is None:
        return text.append(f"  {host.kind}: not heard of yet", palette.DIM)
    words = (
        machine.hostname,
        machine.platform,
        f"Python {machine.python}" if machine.python else "no Python",
        f"{machine.cpus} CPUs",
    )
    text.append("  " + f"  {glyphs.dot}  ".join(words) + "\n", palette.DIM)
    room = max(10, min(40, width - 44))
    gauges = [
        ("cpu", machine.cpu_used, format.percent(machine.cpu_used)),
        ("memory", _share(machine.memory_used, machine.memory_total), _of(machine.memory_used, machine.memory_total)),
        (
            "disk",
            _share(machine.disk_total - machine.disk_free, machine.disk_total),
            f"{format.size(machine.disk_free)} free of {format.size(machine.disk_total)}",
        ),
    ]
    for item in machine.accelerators:
        if item.memory_total or item.utilization is not None:
            share = (
                item.utilization
                if item.utilization is not None
                else _share(item.memory_used or 0, item.memory_total or 0)
            )
            memory = f"  {_of(item.memory_used or 0, item.memory_total)}" if item.memory_total else ""
            busy = f"busy {format.percent(item.utilization)}" if item.utilization is not None else ""
            gauges.append((f"{item.index} {short_kind(item.kind)}", share, f"{busy}{memory}".strip()))
    for name, share, note in gauges:
        text.append(f"  {name:<10}", palette.DIM)
        text.append_text(bar(glyphs, share, room, palette.WAIT if share > 0.9 else palette.ACCENT))
        text.append(f" {note}\n", palette.TEXT)
    for line in _inventory(machine, glyphs):
        text.append(f"  {line}\n", palette.DIM)
    if abs(machine.clock_skew) >= 1:
        text.append(f"  its clock is {machine.clock_skew:+.1f} s off this machine's\n", palette.WAIT)
    text.rstrip()
    return text


def _inventory(machine: Machine, glyphs: Glyphs) -> list[str]:
    """What is known of a machine beyond its gauges: who uses it first, because that decides what can be done there."""
    lines = [
        f"pid {user.pid}  {user.user or '?'}  {user.command or 'a process that cannot be seen'}"
        for user in machine.users
    ]
    software = (
        machine.system,
        f"glibc {machine.glibc}" if machine.glibc else "",
        f"driver {machine.driver}" if machine.driver else "",
        f"CUDA {machine.cuda}" if machine.cuda else "",
        machine.cpu_model,
        "clock follows no server" if machine.clock_synchronized is False else "",
    )
    lines.append(f"  {glyphs.dot}  ".join(filter(None, software)))
    ports = [
        f"{port.device}:{port.port} {port.state}" + (f" {port.gigabits:.0f} Gb/s" if port.gigabits else "")
        for port in machine.infiniband
    ]
    lines.append(f"  {glyphs.dot}  ".join(["InfiniBand", *ports]) if ports else "")
    disks = [f"{disk.mount} {format.size(disk.free)} of {format.size(disk.total)}" for disk in machine.disks]
    lines.append(f"  {glyphs.dot}  ".join(["free", *disks]) if len(disks) > 1 else "")
    return [line for line in lines if line]


def _share(used: float, total: float) -> float:
    return used / total if total else 0.0


def _of(used: float, total: float) -> str:
    return f"{format.size(used)} of {format.size(total)}"
