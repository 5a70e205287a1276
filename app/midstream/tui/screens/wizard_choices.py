"""Choices of the migration wizard, as rows: targets, checkpoints and modes."""

from __future__ import annotations

from collections.abc import Sequence

from midstream import format
from midstream.listing.run_facts import short_kind
from midstream.migrate.modes.registry import MODES
from midstream.tui.screens import plan_text
from midstream.tui.style import glyphs as signs
from midstream.tui.style import palette
from midstream.tui.style.glyphs import Glyphs
from midstream.tui.target_choice import TargetChoice
from midstream.tui.widgets.table import Column, Row
from midstream.watch.snapshot import RunView, Snapshot

TARGET_COLUMNS = (Column("TARGET", widest=24), Column("DEVICES"), Column("LINK"), Column("", widest=200, rest=True))
CHECKPOINT_COLUMNS = (Column("CHECKPOINT"), Column("LOSS"), Column("STEP", right=True), Column("AGE", right=True))
MODE_COLUMNS = (Column("MODE"), Column("SEQUENCE", widest=64))


def mode_rows() -> tuple[Row, ...]:
    """Return a row for each mode."""
    return tuple(Row(mode.name, (mode.name, mode.sequence)) for mode in MODES.values())


def target_row(target: TargetChoice, snapshot: Snapshot, glyphs: Glyphs) -> Row:
    """Return the row of a target: its accelerators and the worst link to its hosts."""
    hosts = [host for host in snapshot.hosts if host.name in target.hosts]
    accelerators = [item for host in hosts if host.machine for item in host.machine.accelerators]
    devices = f"{len(accelerators)}{glyphs.times}{short_kind(accelerators[0].kind)}" if accelerators else format.NONE
    worst = next((host for host in hosts if host.link != "live"), hosts[0] if hosts else None)
    if worst is None:
        return Row(target.name, (target.name, devices, "", ""))
    glyph, colour = signs.link_state(glyphs, worst.link)
    return Row(target.name, (target.name, devices, (f"{glyph} {worst.link}", colour), (worst.error, palette.BAD)))


def checkpoint_rows(run: RunView, now: float) -> list[Row]:
    """Return the states that can be migrated as rows: of the seal, of each checkpoint.

    ``now`` is in UTC seconds.
    """
    step = run.step or 0
    newest = max((checkpoint.step for checkpoint in run.usable), default=None)
    rows = [Row("now", ("now", "saved at the stop: no step is lost", format.grouped(step), ""))]
    if newest is not None:
        lost = plan_text.discarded(step - newest)
        rows.append(Row("latest", ("latest", lost, format.grouped(newest), "")))
    for checkpoint in sorted(run.usable, key=lambda checkpoint: -checkpoint.step):
        lost = plan_text.discarded(step - checkpoint.step)
        age = format.age(now - checkpoint.created if checkpoint.created else None)
        cells = (checkpoint.name, lost, format.grouped(checkpoint.step), age)
        rows.append(Row(str(checkpoint.step), cells))
    return rows


def comparable(targets: Sequence[TargetChoice], snapshot: Snapshot) -> list[str]:
    """Return the names of the targets that can be compared.

    A target needs accelerators that there are compilers for, or is a slice that does not exist yet.
    """
    from midstream.compare.device_names import accelerators_of_devices

    names = []
    for target in targets:
        hosts = [host for host in snapshot.hosts if host.name in target.hosts]
        kinds = [item.kind for host in hosts if host.machine for item in host.machine.accelerators]
        if not target.hosts or accelerators_of_devices(kinds) is not None:
            names.append(target.name)
    return names
