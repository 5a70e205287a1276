"""Bars: of a copy's progress, of a downtime's parts, of a device's use."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from midstream.migrate import model
from midstream.tui import number_format, palette
from midstream.tui.glyphs import Glyphs
from midstream.tui.styled_text import Text


def bar(glyphs: Glyphs, share: float, width: int, colour: str = "") -> Text:
    """``share`` in 0..1 as a bar of ``width`` cells, in steps of half a cell."""
    colour = colour or palette.ACCENT
    halves = round(min(1.0, max(0.0, share)) * width * 2)
    text = Text(glyphs.full * (halves // 2), colour)
    if halves % 2:
        text.append(glyphs.half, colour)
    return text.append(glyphs.empty * (width - (halves + 1) // 2), palette.FAINT)


def copy_progress(glyphs: Glyphs, detail: dict, width: int) -> Text:
    """One line of a copy: ``checkpoint [████░░░] 64%  9.1 MB of 14.2 MB  412 MB/s  12s left``. What is less needed
    gives way to the bar."""
    total, done = detail.get("bytes_total") or 0, detail.get("bytes_done") or 0
    share = done / total if total else 1.0
    words = [f"{number_format.size(done)} of {number_format.size(total)}"]
    eta = detail.get("eta_seconds")
    if done < total and eta is not None:
        words.append(f"{number_format.seconds(eta)} left")
    if rate := detail.get("bytes_per_second"):
        words.append(f"{number_format.size(rate)}/s")
    if done < total and (objects := detail.get("objects_total")):
        words.append(f"{detail.get('objects_done', 0)}/{objects} objects")
    tail = f" {100 * share:3.0f}%"
    for word in words:
        if len(tail) + len(word) + 2 <= width - 14 - 16:
            tail += f"  {word}"
    line = Text(f"  {detail.get('what', 'copy'):<10} ", palette.DIM, no_wrap=True)
    colour = palette.GOOD if done >= total else palette.ACCENT
    line.append_text(bar(glyphs, share, max(8, min(60, width - len(tail) - len(line) - 2)), colour))
    return line.append(tail, palette.TEXT)


def downtime(glyphs: Glyphs, ledger: model.DowntimeReport | None, predicted: Mapping[str, float], width: int) -> Text:
    """The parts of the downtime, one a line: predicted and measured, as bars on one scale."""
    measured = dict(ledger.measured) if ledger else {}
    names = [name for name in model.DOWNTIME_PHASES if predicted.get(name) or measured.get(name)]
    longest = max([*predicted.values(), *measured.values(), 1e-9])
    room = max(6, min(60, (width - 14 - 2 * 9 - 1) // 2))
    text = Text(" " * 14, no_wrap=True)
    text.append(f"{'predicted':<{room + 9}}measured\n", palette.DIM)
    for name in names:
        expected, found = predicted.get(name, 0.0), measured.get(name)
        text.append(f"  {name:<12}", palette.TEXT)
        text.append_text(bar(glyphs, expected / longest, room, palette.DIM))
        text.append(f" {number_format.seconds(expected):<8}", palette.DIM)
        if found is None:
            text.append("not yet\n", palette.DIM)
            continue
        colour = palette.WAIT if found > 2 * expected + 1 else palette.ACCENT
        text.append_text(bar(glyphs, found / longest, room, colour))
        text.append(f" {number_format.seconds(found)}\n", palette.TEXT)
    text.rstrip()
    return text


def spark(glyphs: Glyphs, shares: Sequence[float], width: int) -> str:
    """The last ``width`` values, each 0..1, as a line of small columns."""
    signs = glyphs.columns
    shown = list(shares)[-width:]
    return "".join(signs[min(len(signs) - 1, max(0, round(share * (len(signs) - 1))))] for share in shown)
