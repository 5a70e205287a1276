"""SVG picture of a certificate: the spliced loss curve and its seam."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from html import escape

from midstream.migrate.journal.certificate import COMPARED, Certificate
from midstream_core.json_types import LoggedRow

WIDTH, PANEL, GAP, LEFT, RIGHT, TOP = 860, 220, 58, 74, 20, 46  # pixels
COLUMNS = 380  # pixel columns of a line; more are not visible
NEAR = 24  # steps before and after the seam in the lower panel
# Colours by Okabe and Ito, distinguishable with any colour vision.
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#56B4E9", "#E69F00")
INK, FAINT = "#333333", "#bbbbbb"

Point = tuple[float, float]  # (step, loss)


@dataclass(frozen=True)
class _Line:
    label: str
    colour: str
    points: Sequence[Point]
    dotted: bool = False  # circles instead of a line, drawn over another line


def seam(proof: Certificate, curve: Sequence[LoggedRow]) -> str:
    """Draw the loss curve of a certificate's run as SVG.

    The upper panel has the entire run, one colour for each attempt. The lower has the steps around the seam, with the
    source's losses past it drawn over the target's, where the certificate has them. ``curve`` has spliced rows with
    ``attempt``.
    """
    rows = [row for row in curve if isinstance(row.get("train/loss"), float) and math.isfinite(row["train/loss"])]
    attempts = sorted({int(row["attempt"]) for row in rows})
    lines = [
        _Line(
            f"attempt {attempt}",
            COLOURS[index % len(COLOURS)],
            [(float(row["global_step"]), row["train/loss"]) for row in rows if row["attempt"] == attempt],
        )
        for index, attempt in enumerate(attempts)
    ]
    near = [
        _Line(line.label, line.colour, [point for point in line.points if abs(point[0] - proof.step) <= NEAR])
        for line in lines
    ]
    source_losses = [
        (float(step), float(loss))
        for step, loss, _ in _compared(proof)
        if abs(step - proof.step) <= NEAR and loss is not None and math.isfinite(loss)
    ]
    if source_losses:
        near.append(_Line(f"{proof.source} past the seal", INK, source_losses, dotted=True))
    height = TOP + 2 * PANEL + GAP + 66
    title = f"{proof.run_id}: {proof.source} → {proof.target} at step {proof.step}"
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" width="{WIDTH}" height="{height}" '
        f'font-family="sans-serif" font-size="12" fill="{INK}">',
        f"<title>{escape(title)}</title>",
        f'<rect width="{WIDTH}" height="{height}" fill="white"/>',
        f'<text x="{LEFT}" y="24" font-size="15" font-weight="bold">{escape(title)}</text>',
        *_panel(TOP, lines, proof.step, "entire run"),
        *_panel(TOP + PANEL + GAP, [line for line in near if line.points], proof.step, "around the seam"),
        *_legend(height - 14, [*lines, *(line for line in near if line.dotted)]),
        "</svg>",
    ]
    return "\n".join(parts) + "\n"


def _compared(proof: Certificate) -> Sequence[tuple[int, float | None, float | None]]:
    """Return (step, source's loss, target's loss) of each step past the seal.

    A loss that is not finite is None in a certificate that was read from its file.
    """
    return next((claim.evidence.get("steps", ()) for claim in proof.claims if claim.name in COMPARED), ())


def _panel(top: float, lines: Sequence[_Line], step: int, name: str) -> list[str]:
    parts = [
        f'<rect x="{LEFT}" y="{top}" width="{WIDTH - LEFT - RIGHT}" height="{PANEL}" fill="none" stroke="{FAINT}"/>',
        f'<text x="{WIDTH - RIGHT - 6}" y="{top + 16}" text-anchor="end" fill="#777777">{name}: train/loss</text>',
    ]
    points = [point for line in lines for point in line.points]
    if not points:
        return [*parts, f'<text x="{LEFT + 12}" y="{top + PANEL / 2}">no losses here</text>']
    across = _scale(min(x for x, _ in points), max(x for x, _ in points), LEFT, WIDTH - RIGHT, 0.01)
    up = _scale(min(y for _, y in points), max(y for _, y in points), top + PANEL, top, 0.06)
    for value in _ticks(min(y for _, y in points), max(y for _, y in points)):
        y = up(value)
        parts.append(f'<line x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{y:.1f}" y2="{y:.1f}" stroke="#eeeeee"/>')
        parts.append(f'<text x="{LEFT - 6}" y="{y + 4:.1f}" text-anchor="end">{value:g}</text>')
    for value in _ticks(min(x for x, _ in points), max(x for x, _ in points), integer=True):
        parts.append(f'<text x="{across(value):.1f}" y="{top + PANEL + 16}" text-anchor="middle">{value:g}</text>')
    cut = across(step - 0.5)  # row k is the update from step k to k + 1: the seam is before row `step`
    if LEFT <= cut <= WIDTH - RIGHT:
        parts.append(
            f'<line x1="{cut:.1f}" x2="{cut:.1f}" y1="{top}" y2="{top + PANEL}" stroke="{INK}" stroke-dasharray="5 4"/>'
        )
    for line in lines:
        if line.dotted:
            parts += [
                f'<circle cx="{across(x):.1f}" cy="{up(y):.1f}" r="3.2" fill="none" stroke="{line.colour}"/>'
                for x, y in line.points
            ]
        elif len(line.points) == 1:
            (x, y) = line.points[0]
            parts.append(f'<circle cx="{across(x):.1f}" cy="{up(y):.1f}" r="2.4" fill="{line.colour}"/>')
        else:
            path = " ".join(f"{across(x):.1f},{up(y):.1f}" for x, y in thin(line.points, COLUMNS))
            parts.append(f'<polyline points="{path}" fill="none" stroke="{line.colour}" stroke-width="1.4"/>')
    return parts


def _legend(y: float, lines: Sequence[_Line]) -> list[str]:
    parts: list[str] = []
    x = float(LEFT)
    for line in lines:
        sign = (
            f'<circle cx="{x + 9}" cy="{y - 4}" r="3.2" fill="none" stroke="{line.colour}"/>'
            if line.dotted
            else f'<line x1="{x}" x2="{x + 18}" y1="{y - 4}" y2="{y - 4}" stroke="{line.colour}" stroke-width="2"/>'
        )
        parts += [sign, f'<text x="{x + 24}" y="{y}">{escape(line.label)}</text>']
        x += 48 + 7 * len(line.label)
    return parts


def thin(points: Sequence[Point], columns: int) -> list[Point]:
    """Reduce to the lowest and the highest point of each column, in order.

    At most ``2 * columns`` points are returned.
    """
    if len(points) <= 2 * columns:
        return list(points)
    thinned: list[Point] = []
    for column in range(columns):
        part = points[column * len(points) // columns : (column + 1) * len(points) // columns]
        low, high = min(part, key=lambda point: point[1]), max(part, key=lambda point: point[1])
        thinned += sorted({low, high})
    return thinned


def _scale(low: float, high: float, begin: float, end: float, margin: float) -> Callable[[float], float]:
    """Return a map from values to pixels, with a margin; a single value is centred."""
    room = (high - low) * margin or abs(high) * margin or 1.0
    low, high = low - room, high + room
    return lambda value: begin + (value - low) / (high - low) * (end - begin)


def _ticks(low: float, high: float, integer: bool = False) -> list[float]:
    """Return about five values from ``low`` to ``high``, evenly spaced.

    The spacing is 1, 2 or 5 times a power of ten.
    """
    if high <= low:
        return [low]
    rough = (high - low) / 5
    power = 10.0 ** math.floor(math.log10(rough))
    spacing = next(power * factor for factor in (1, 2, 5, 10) if power * factor >= rough)
    if integer:
        spacing = max(1.0, spacing)
    first = math.ceil(low / spacing)
    return [round(number * spacing, 12) for number in range(first, math.floor(high / spacing) + 1)]
