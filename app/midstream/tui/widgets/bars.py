"""Bars: of a copy's progress, of a downtime's parts, of a device's use."""

from __future__ import annotations

from rich.text import Text

from midstream.migrate import model
from midstream.tui import format, palette
from midstream.tui.glyphs import Glyphs


def bar(glyphs: Glyphs, share: float, width: int, colour: str = palette.ACCENT) -> Text:
    """``share`` in 0..1 as a bar of ``width`` cells, in steps of half a cell."""
    halves = round(min(1.0, max(0.0, share)) * width * 2)
    text = Text(glyphs.full * (halves // 2), colour)
    if halves % 2:
        text.append(glyphs.half, colour)
    return text.append(glyphs.empty * (width - (halves + 1) // 2), palette.FAINT)


def copy_progress(glyphs: Glyphs, detail: dict, width: int) -> Text:
    """One line of a copy: ``checkpoint [████░░░] 64%  9.1 MB of 14.2 MB  412 MB/s  12s``."""
    total, done = detail.get("bytes_total") or 0, detail.get("bytes_done") or 0
    share = done / total if total else 1.0
    words = [f"{format.size(done)} of {format.size(total)}"]
    if rate := detail.get("bytes_per_second"):
        words.append(f"{format.size(rate)}/s")
    eta = detail.get("eta_seconds")
    if done < total and eta is not None:
        words.append(f"{format.seconds(eta)} left")
    if objects := detail.get("objects_total"):
        words.append(f"{detail.get('objects_done', 0)}/{objects} objects")
    tail = f" {100 * share:3.0f}%  " + "  ".join(words)
    name = str(detail.get("what", "copy"))
    line = Text(f"  {name:<11}", palette.DIM, no_wrap=True)
    line.append_text(
        bar(glyphs, share, max(8, width - len(tail) - 15), palette.GOOD if done >= total else palette.ACCENT)
    )
    return line.append(tail, palette.TEXT)


def downtime(glyphs: Glyphs, ledger: model.Ledger | None, predicted: dict[str, float], width: int) -> Text:
    """The parts of the downtime as pairs of bars on one scale: predicted above, measured below."""
    measured = dict(ledger.measured) if ledger else {}
    names = [name for name in model.LEDGER_ENTRIES if predicted.get(name) or measured.get(name)]
    longest = max([*predicted.values(), *measured.values(), 1e-9])
    room = max(8, width - 30)
    text = Text(no_wrap=True)
    for name in names:
        expected, found = predicted.get(name, 0.0), measured.get(name)
        text.append(f"  {name:<12}", palette.TEXT)
        text.append_text(bar(glyphs, expected / longest, room, palette.DIM))
        text.append(f" {format.seconds(expected):>7} predicted\n"[: width - 14 - room], palette.DIM)
        text.append(" " * 14)
        if found is None:
            text.append("not measured yet\n", palette.FAINT)
            continue
        late = found > 2 * expected + 1
        text.append_text(bar(glyphs, found / longest, room, palette.WAIT if late else palette.ACCENT))
        text.append(
            f" {format.seconds(found):>7} measured\n"[: width - 14 - room], palette.WAIT if late else palette.TEXT
        )
    return text
