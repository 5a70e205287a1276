"""Bars for copy progress, parts of the downtime and device utilization."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from rich.cells import cell_len, set_cell_size

from midstream import format
from midstream.counts import count
from midstream.tui.style import palette
from midstream.tui.style.glyphs import Glyphs
from midstream.tui.style.styled_text import Text

if TYPE_CHECKING:
    from midstream.migrate.journal.downtime_report import DowntimeReport


def bar(glyphs: Glyphs, share: float, width: int, colour: str = "") -> Text:
    """Draw ``share`` (0..1) as a bar of ``width`` cells, in steps of half a cell."""
    colour = colour or palette.ACCENT
    halves = round(min(1.0, max(0.0, share)) * width * 2)
    text = Text(glyphs.full * (halves // 2), colour)
    if halves % 2:
        text.append(glyphs.half, colour)
    return text.append(glyphs.empty * (width - (halves + 1) // 2), palette.FAINT)


def copy_progress(glyphs: Glyphs, details: Sequence[Mapping[str, Any]], width: int) -> list[Text]:
    """Draw the progress of copies.

    A line is ``checkpoint [████░░░] 64%  9.1 MB of 14.2 MB  412 MB/s  12s left``.

    The bars are below each other and equally long. Details that leave less than 16 cells for them are omitted.
    """
    names = [str(detail.get("what", "copy")) for detail in details]
    label = max(10, *map(cell_len, names)) if names else 10
    if label > width // 3:
        label = 10
    tails = [_copy_numbers(detail, width - label - 4 - 16) for detail in details]
    room = max(8, min(60, width - label - 5 - max(map(len, tails), default=0)))
    lines = []
    for name, tail, detail in zip(names, tails, details, strict=True):
        total, done = detail.get("bytes_total") or 0, detail.get("bytes_done") or 0
        line = Text(f"  {set_cell_size(name, label)} ", palette.DIM, no_wrap=True)
        colour = palette.GOOD if done >= total else palette.ACCENT
        line.append_text(bar(glyphs, done / total if total else 1.0, room, colour))
        lines.append(line.append(tail, palette.TEXT))
    return lines


def _copy_numbers(detail: Mapping[str, Any], room: int) -> str:
    """Return the numbers of a copy, the most important first, as many as fit."""
    total, done = detail.get("bytes_total") or 0, detail.get("bytes_done") or 0
    words = [f"{format.size(done)} of {format.size(total)}"]
    eta = detail.get("eta_seconds")
    if done < total and eta is not None:
        words.append(f"{format.seconds(eta)} left")
    if rate := detail.get("bytes_per_second"):
        words.append(f"{format.size(rate)}/s")
    if done < total and (objects := detail.get("objects_total")):
        words.append(f"{detail.get('objects_done', 0)}/{count(objects, 'object')}")
    tail = f" {100 * (done / total if total else 1.0):3.0f}%"
    for word in words:
        if len(tail) + len(word) + 2 <= room:
            tail += f"  {word}"
    return tail


def downtime(glyphs: Glyphs, report: DowntimeReport | None, predicted: Mapping[str, float], width: int) -> Text:
    """Draw the predicted and measured parts of the downtime as bars on one scale."""
    from midstream.migrate.journal.downtime_report import shown_phase
    from midstream.migrate.stages import DOWNTIME_PHASES

    measured = dict(report.measured) if report else {}
    names = [name for name in DOWNTIME_PHASES if predicted.get(name) or measured.get(name)]
    longest = max([*predicted.values(), *measured.values(), 1e-9])
    room = max(6, min(60, (width - 14 - 2 * 9 - 1) // 2))
    text = Text(" " * 14, no_wrap=True)
    text.append(f"{'predicted':<{room + 9}}measured\n", palette.DIM)
    for name in names:
        expected, seconds = predicted.get(name, 0.0), measured.get(name)
        text.append(f"  {shown_phase(name):<12}", palette.TEXT)
        text.append_text(bar(glyphs, expected / longest, room, palette.DIM))
        text.append(f" {format.seconds(expected):<8}", palette.DIM)
        if seconds is None:
            text.append("not yet\n", palette.DIM)
            continue
        colour = palette.WAIT if seconds > 2 * expected + 1 else palette.ACCENT
        text.append_text(bar(glyphs, seconds / longest, room, colour))
        text.append(f" {format.seconds(seconds)}\n", palette.TEXT)
    text.rstrip()
    return text


def spark(glyphs: Glyphs, shares: Sequence[float], width: int) -> str:
    """Draw the last ``width`` values, each 0..1, as a sparkline.

    Other values are drawn at the nearer end.
    """
    signs = glyphs.columns
    shown = (min(1.0, max(0.0, share)) for share in list(shares)[-width:])
    return "".join(signs[round(share * (len(signs) - 1))] for share in shown)
