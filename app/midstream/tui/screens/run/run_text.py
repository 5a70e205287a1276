"""A run in words: where it stands, where it comes from, what it runs on."""

from __future__ import annotations

import statistics
from collections.abc import Iterable
from typing import Any

from midstream.tui import glyphs as signs
from midstream.tui import number_format, palette
from midstream.tui.glyphs import Glyphs
from midstream.tui.screen_state import World, attempt_hues, hardware, latest, short_kind
from midstream.tui.styled_text import Text
from midstream.tui.widgets.bars import bar
from midstream.watch.loss_curve import Rows
from midstream.watch.snapshot import RunView
from midstream_engine import records

QUIET = 30.0  # seconds without a heartbeat from a run on a host that answers
FIRST_METRICS = ("train/loss", "eval/loss", "grad/norm/total", "optim/learning_rate", "throughput/tokens_per_second")
NOT_DRAWN = frozenset({"global_step", "attempt", "time", "train/loss"})


def metrics_of(run: RunView) -> list[str]:
    """The metrics that can be drawn, the well-known ones first."""
    if isinstance(run.curve, Rows):
        found = set(run.curve.names())
    else:
        tail = [run.curve[index] for index in range(max(0, len(run.curve) - 64), len(run.curve))]
        found = {name for row in tail for name, value in row.items() if _is_number(value)}
    found = (found - NOT_DRAWN) | {"train/loss"}
    known = [name for name in FIRST_METRICS if name in found]
    return known + sorted(found - set(known))


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def seconds_left(run: RunView) -> float | None:
    """To the last step, at the pace of the last steps; None where that is not known."""
    if run.status is None or not run.status.num_train_steps or run.state != records.TRAINING:
        return None
    tail = [run.curve[index] for index in range(max(0, len(run.curve) - 32), len(run.curve))]
    durations = [row["throughput/duration"] for row in tail if "throughput/duration" in row]
    return statistics.median(durations) * (run.status.num_train_steps - run.status.step) if durations else None


def facts(run: RunView, world: World, glyphs: Glyphs, width: int) -> Text:
    """Two lines: where it stands, what it measures."""
    glyph, colour = signs.run_state(glyphs, run.state)
    stale = world.is_stale(run.host)
    text = Text(f" {glyph} {run.state}", f"bold {palette.WAIT if stale else colour}", no_wrap=True)
    text.append(f"  {run.host} {hardware(run, glyphs.times)}".rstrip(), palette.TEXT)
    total = run.status.num_train_steps if run.status else 0
    text.append(f"  step {number_format.grouped(run.step)}", palette.TEXT)
    if total and run.step is not None:
        text.append(f"/{number_format.grouped(total)} ", palette.DIM)
    age = world.run_age(run)
    if stale:  # how far it is by now is not known
        text.append(f" {glyphs.stale} {run.host} silent, last word {number_format.age(age)} ago", palette.WAIT)
    elif total and run.step is not None:
        text.append_text(bar(glyphs, run.step / total, 10 if width < 100 else 24))
        text.append(f" {number_format.percent(run.step / total)}", palette.DIM)
        if (left := seconds_left(run)) is not None:
            text.append(f"  {number_format.seconds(left)} left", palette.DIM)
    if run.running and not stale and age is not None and age > QUIET:
        text.append(f"  {glyphs.stale} no word for {number_format.age(age)}", palette.WAIT)
    text.append("\n ")
    for name, value in (
        ("loss", number_format.loss(run.loss)),
        ("lr", number_format.small(latest(run, "optim/learning_rate"))),
        ("tok/s", number_format.short(latest(run, "throughput/tokens_per_second"))),
    ):
        text.append(f"{name} ", palette.DIM)
        text.append(f"{value}  ", palette.TEXT)
    done = [point for point in run.checkpoints if point.complete and point.accepted]
    text.append("checkpoint ", palette.DIM)
    if done:
        newest = max(done, key=lambda point: (point.step, point.attempt))
        old = f" {number_format.age(world.now - newest.created)} ago" if newest.created else ""
        text.append(f"{newest.name}{old}", palette.TEXT)
    else:
        text.append("none yet", palette.WAIT)
    if run.trouble:
        text.append(f"  {glyphs.stale} {run.trouble}", palette.WAIT)
    elif run.status and run.status.message:
        text.append(f"  {run.status.message}", palette.BAD if run.state == records.FAILED else palette.DIM)
    elif run.state == "lost":
        text.append("  its process is gone without a word", palette.BAD)
    return text


def no_checkpoints(run: RunView) -> tuple[str, ...]:
    """What to say where there are none."""
    if not run.listed:
        return (f"asking {run.store} ...",)
    if run.store and run.trouble:
        return ("its checkpoints are not known:", run.trouble, "It is asked again by itself.")
    return ("no checkpoints yet.", "The run saves by itself; midstream --stop saves and stops it.")


class _Page:
    """Headings, and facts under them."""

    def __init__(self) -> None:
        self.text = Text()

    def heading(self, name: str) -> None:
        self.text.append(f"\n {name}\n" if self.text else f" {name}\n", f"bold {palette.TEXT}")

    def fact(self, name: str, value: str, colour: str = "") -> None:
        self.text.append(f"   {name:<11} ", palette.DIM)
        self.text.append(f"{value}\n", colour or palette.TEXT)

    def none(self, words: str) -> None:
        self.text.append(f"   {words}\n", palette.DIM)


def info(run: RunView, world: World, glyphs: Glyphs, width: int, changes: Iterable[str] | None = None) -> Text:
    """Lineage, fence, copies, configuration, devices, process, versions. ``changes``: lines of the configuration that
    differ between two attempts; None where nobody asked."""
    page = _Page()
    page.heading("Lineage")
    hues = attempt_hues(run)
    for entry in run.lineage.entries if run.lineage else ():
        last = number_format.grouped(entry.last_step) if entry.last_step is not None else "now"
        page.text.append(f"   {glyphs.running} attempt {entry.attempt}", palette.series(hues[entry.attempt]))
        origin = f"from {entry.checkpoint}" if entry.checkpoint else "fresh"
        page.text.append(
            f"  {entry.target} {entry.devices}{glyphs.times}{entry.device_kind}  "
            f"steps {number_format.grouped(entry.first_step)} to {last}  {origin}\n",
            palette.TEXT,
        )
    if run.lineage is None or not run.lineage.attempts:
        page.none("none written yet")
    page.heading("Configuration")
    if changes is None:
        page.none("d shows what differs between two attempts")
    else:
        for line in changes:
            page.text.append(f"   {line}\n", _change_colour(line))
    page.heading("Fence")
    if run.fence:
        page.fact("epoch", f"{run.fence.epoch}, held by {run.fence.owner}")
        if run.fence.sealed_step is not None:
            page.fact("sealed", f"everything before counts up to step {number_format.grouped(run.fence.sealed_step)}")
    else:
        page.none("none yet")
    if run.store:
        page.heading("Checkpoints")
        page.fact("lie under", run.store)
    page.heading("Copies")
    for copy in world.snapshot.copies(run.run_id):
        age = number_format.age(world.run_age(copy))
        silent = f"  {glyphs.stale} silent" if world.is_stale(copy.host) else ""
        page.fact(
            copy.host, f"epoch {copy.epoch}  {copy.state}  step {number_format.grouped(copy.step)}  {age} ago{silent}"
        )
    _devices(page, run, world, glyphs, width)
    status = run.status
    if status is not None:
        page.heading("Process")
        page.fact("pid", f"{status.pid} ({status.processes} in all), attempt {run.attempt}, epoch {status.epoch}")
        if status.root_digest:
            page.fact("digest", status.root_digest)
        page.heading("Versions")
        for name, version in sorted(status.versions.items()):
            page.fact(name, version)
    return page.text


def _devices(page: _Page, run: RunView, world: World, glyphs: Glyphs, width: int) -> None:
    """What it computes on, with gauges where the host tells."""
    page.heading("Devices")
    page.fact("reported", hardware(run, glyphs.times) or "none")
    room = max(10, min(30, width - 52))
    for member in world.snapshot.members(run):
        host = world.snapshot.host(member.host)
        for item in host.machine.accelerators if host and host.machine else ():
            if item.utilization is None and not item.memory_total:
                continue
            used, total = item.memory_used or 0, item.memory_total or 0
            share = item.utilization if item.utilization is not None else used / total
            page.text.append(f"   {member.host[:10]:<10} {item.index:>2} {short_kind(item.kind):<8} ", palette.DIM)
            page.text.append_text(bar(glyphs, share, room))
            words = [f"{number_format.percent(item.utilization)}" if item.utilization is not None else ""]
            words.append(f"{number_format.size(used)} of {number_format.size(total)}" if total else "")
            words.append(f"{item.temperature:.0f} C" if item.temperature is not None else "")
            words.append(f"{item.power:.0f} W" if item.power is not None else "")
            page.text.append(f" {'  '.join(filter(None, words))}\n", palette.TEXT)


def _change_colour(line: str) -> str:
    return {"+": palette.GOOD, "-": palette.BAD, "~": palette.ACCENT}.get(line[:1], palette.DIM)
