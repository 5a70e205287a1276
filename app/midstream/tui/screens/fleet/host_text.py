"""Details of a host: its machine, gauges, accelerators and error."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from rich.cells import cell_len

from midstream import format
from midstream.counts import count
from midstream.listing.run_facts import short_kind
from midstream.tui.style import glyphs as signs
from midstream.tui.style import palette
from midstream.tui.style.glyphs import Glyphs
from midstream.tui.style.styled_text import Text
from midstream.tui.widgets.bars import bar, spark
from midstream.watch.machine import Accelerator, Machine
from midstream.watch.snapshot import HostView
from midstream.watch.system_series import SystemSeries

HISTORY = 40  # points of an accelerator's sparkline
MAX_ELAPSED = 10 * 365 * 86400.0  # seconds; a host may report any start of a process
MAX_MEMORY = 10**15  # bytes, as above


def utilization_of(series: SystemSeries | None) -> Mapping[int, Sequence[float]]:
    """Return the newest utilizations of each accelerator, 0..1, by its index."""
    if series is None:
        return {}
    keys = [key for key in series.stored_keys() if key[0] == "utilization"]
    _, columns = series.read(keys)
    newest = ([value / 100 for value in column[-HISTORY:] if value == value] for column in columns)
    return {index: values for (_, index), values in zip(keys, newest, strict=True)}


def describe_host(
    host: HostView, glyphs: Glyphs, width: int, now: float, history: Mapping[int, Sequence[float]] | None = None
) -> Text:
    """Return a host's details: machine, gauges, accelerators with processes, error.

    Args:
        host: The host.
        glyphs: Glyphs to draw with.
        width: Width in cells.
        now: UTC seconds of this machine.
        history: Utilization of each accelerator by its index, 0..1, the newest last.
    """
    text = Text(no_wrap=True)
    if host.error:
        glyph, colour = signs.link_state(glyphs, host.link)
        message = host.error.removeprefix(f"{host.name}: ")
        text.append(f"  {glyph} {format.folded(message, width, 4)}\n", colour)
    machine = host.machine
    if machine is None:
        return text.append(f"  {host.kind}: no report yet", palette.DIM)
    words = (
        machine.hostname,
        machine.platform,
        f"Python {machine.python}" if machine.python else "no Python",
        count(machine.cpus, "CPU"),
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
    names = [f"{item.index} {short_kind(item.kind)}" for item in machine.accelerators]
    label = max(10, *(len(name) + 1 for name in ("", *names)))
    for name, share, note in gauges:
        text.append(f"  {name:<{label}}", palette.DIM)
        text.append_text(bar(glyphs, share, room, palette.WAIT if share > 0.9 else palette.ACCENT))
        text.append(f" {note}\n", palette.TEXT)
    for name, item in zip(names, machine.accelerators, strict=True):
        text.append_text(_accelerator(f"  {name:<{label}}", item, (history or {}).get(item.index, ()), glyphs, room))
    for line in _processes(machine, now):
        text.append(f"  {line}\n", palette.TEXT)
    for line in _inventory(machine, glyphs):
        text.append(f"  {line}\n", palette.DIM)
    if abs(machine.clock_skew) >= 1:
        text.append(f"  clock skew {machine.clock_skew:+.1f} s\n", palette.WAIT)
    text.rstrip()
    return text


def _accelerator(name: str, item: Accelerator, history: Sequence[float], glyphs: Glyphs, room: int) -> Text:
    """Return a line of an accelerator: utilization over time and now, and memory."""
    text = Text()
    if not item.memory_total and item.utilization is None:
        return text
    text.append(name, palette.DIM)
    width = room // 2 if item.memory_total else room
    if item.utilization is not None:
        used = palette.WAIT if item.utilization > 0.9 else palette.ACCENT
        text.append(spark(glyphs, history or (item.utilization,), width).rjust(width), used)
        text.append(f" util {format.percent(item.utilization):>4}  ", palette.TEXT)
    if item.memory_total:
        share = _share(item.memory_used or 0, item.memory_total)
        text.append_text(bar(glyphs, share, width, palette.WAIT if share > 0.9 else palette.ACCENT))
        text.append(f" {_of(item.memory_used or 0, item.memory_total)}", palette.TEXT)
    return text.append("\n")


def _processes(machine: Machine, now: float) -> list[str]:
    """Return a line for each process on accelerators: devices, memory, time, run."""
    rows = []
    for user in machine.users:
        used = _ranges([item.index for item in machine.accelerators if user.pid in item.pids])
        elapsed = now + machine.clock_skew - user.started if user.started is not None else math.inf
        has_memory = user.memory is not None and user.memory <= MAX_MEMORY
        rows.append(
            (
                f"pid {user.pid}",
                user.user or "?",
                f"on {used}" if used else "",
                format.size(user.memory) if has_memory else "",
                f"for {format.seconds(max(0.0, elapsed))}" if elapsed < MAX_ELAPSED else "",
                f"run {user.run}" if user.run else "",
                user.command or "hidden process",
            )
        )
    widths = [max(map(cell_len, column)) for column in zip(*rows, strict=True)] if rows else []
    lines = []
    for row in rows:
        cells = [cell + " " * (width - cell_len(cell)) for cell, width in zip(row, widths, strict=True) if width]
        lines.append("  ".join(cells).rstrip())
    return lines


def _ranges(numbers: Sequence[int]) -> str:
    """Format ascending numbers: ``0-3,5``."""
    parts: list[list[int]] = []
    for number in sorted(set(numbers)):
        if parts and number == parts[-1][1] + 1:
            parts[-1][1] = number
        else:
            parts.append([number, number])
    return ",".join(str(first) if first == last else f"{first}-{last}" for first, last in parts)


def _inventory(machine: Machine, glyphs: Glyphs) -> list[str]:
    """Return software, InfiniBand ports and disks of a machine."""
    lines: list[str] = []
    software = (
        machine.system,
        f"glibc {machine.glibc}" if machine.glibc else "",
        f"driver {machine.driver}" if machine.driver else "",
        f"CUDA {machine.cuda}" if machine.cuda else "",
        machine.cpu_model,
        "clock not synchronized" if machine.clock_synchronized is False else "",
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
