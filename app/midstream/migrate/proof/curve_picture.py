"""SVG picture of a certificate: the spliced loss curve and its seam."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from midstream.charts import axes
from midstream.charts.layout import CHARACTER, INK, Dot, Label, Point, Segments, Shape, thin
from midstream.charts.svg import drawing
from midstream.migrate.journal.certificate import COMPARED, Certificate
from midstream_core.json_types import LoggedRow

WIDTH, PANEL, GAP, LEFT, RIGHT, TOP = 860, 220, 58, 74, 20, 46  # pixels
NEAR = 24  # steps before and after the seam in the lower panel
# Colours by Okabe and Ito, distinguishable with any colour vision.
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#56B4E9", "#E69F00")
FAINT = "#bbbbbb"


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
        near.append(_Line(f"{proof.source} past the checkpoint", INK, source_losses, dotted=True))
    height = TOP + 2 * PANEL + GAP + 66
    title = f"{proof.run_id}: {proof.source} → {proof.target} at step {proof.step}"
    return drawing(
        WIDTH,
        height,
        title,
        [
            Label((LEFT, 24), title, size=15, bold=True),
            *_panel(TOP, lines, proof.step, "entire run"),
            *_panel(TOP + PANEL + GAP, [line for line in near if line.points], proof.step, "around the seam"),
            *_legend(height - 14, [*lines, *(line for line in near if line.dotted)]),
        ],
    )


def _compared(proof: Certificate) -> Sequence[tuple[int, float | None, float | None]]:
    """Return (step, source's loss, target's loss) of each step past the checkpoint.

    A loss that is not finite is None in a certificate that was read from its file.
    """
    return next((claim.evidence.get("steps", ()) for claim in proof.claims if claim.name in COMPARED), ())


def _panel(top: float, lines: Sequence[_Line], step: int, name: str) -> Iterator[Shape]:
    right, bottom = WIDTH - RIGHT, top + PANEL
    yield Segments(((LEFT, top), (right, top), (right, bottom), (LEFT, bottom), (LEFT, top)), FAINT, 1.0)
    yield Label((right - 6, top + 16), f"{name}: train/loss", "end", colour="#777777")
    points = [point for line in lines for point in line.points]
    if not points:
        yield Label((LEFT + 12, top + PANEL / 2), "no losses here")
        return
    xs, ys = [x for x, _ in points], [y for _, y in points]
    across, up = _scale(min(xs), max(xs), LEFT, right, 0.01), _scale(min(ys), max(ys), bottom, top, 0.06)
    for value in axes.ticks(min(ys), max(ys), 5):
        yield Segments(((LEFT, up(value)), (right, up(value))), "#eeeeee", 1.0)
        yield Label((LEFT - 6, up(value) + 4), f"{value:g}", "end")
    for value in axes.ticks(min(xs), max(xs), 5):
        if value == round(value):
            yield Label((across(value), bottom + 16), f"{value:g}", "middle")
    cut = across(step - 0.5)  # row k is the update from step k to k + 1: the seam is before row `step`
    if LEFT <= cut <= right:
        yield Segments(((cut, top), (cut, bottom)), INK, 1.0, dashed=True)
    for line in lines:
        placed = [(across(x), up(y)) for x, y in line.points]
        if line.dotted or len(placed) == 1:
            yield from (Dot(at, line.colour, line.dotted) for at in placed)
        else:
            yield Segments(thin(placed), line.colour, 1.4)


def _legend(y: float, lines: Sequence[_Line]) -> Iterator[Shape]:
    x = float(LEFT)
    for line in lines:
        if line.dotted:
            yield Dot((x + 9, y - 4), line.colour, hollow=True)
        else:
            yield Segments(((x, y - 4), (x + 18, y - 4)), line.colour, 2.0)
        yield Label((x + 24, y), line.label)
        x += 48 + CHARACTER * len(line.label)


def _scale(low: float, high: float, begin: float, end: float, margin: float) -> Callable[[float], float]:
    """Return a map from values to pixels, with a margin; a single value is centred."""
    room = (high - low) * margin or abs(high) * margin or 1.0
    low, high = low - room, high + room
    return lambda value: begin + (value - low) / (high - low) * (end - begin)
