"""A plot with title, legend, axes, marks and crosshair."""

from __future__ import annotations

import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from rich.cells import cell_len
from rich.segment import Segment
from rich.style import Style

from midstream import format
from midstream.charts import axes
from midstream.charts.chart import NO_RANGE, Range
from midstream.format import grouped, loss, short, small
from midstream.tui.style import palette
from midstream.tui.style.glyphs import Glyphs
from midstream.tui.widgets import plot
from midstream.tui.widgets.canvas import BRAILLE, Canvas
from midstream.tui.widgets.plot import Drawn
from midstream.watch.system_metrics import metric_of


@dataclass(frozen=True)
class Picture:
    """Content of one picture.

    ``span`` is the visible x range; ``smoothing`` is a share of it, 0 for none.
    """

    shown: Sequence[Drawn]
    metric: str
    span: tuple[float, float]
    axis: str = "step"
    log: bool = False
    robust: bool = True
    smoothing: float = 0.015
    names: Mapping[int, str] = ()  # type: ignore[assignment]
    marks: Sequence[tuple[float, str]] = ()
    points: Sequence[float] = ()
    cursor: float | None = None
    words: str = ""
    compact: bool = False
    log_x: bool = False
    y_range: Range = NO_RANGE


@dataclass(frozen=True)
class Frame:
    """Position of the plot in the widget: cells left of it, and its columns."""

    margin: int
    columns: int


Line = list[Segment]


def paint(picture: Picture, width: int, height: int, glyphs: Glyphs, base: Style) -> tuple[Frame, list[Line]]:
    """Draw a picture; return the position of its plot, and its lines.

    Args:
        picture: The picture.
        width: Width in cells.
        height: Height in lines.
        glyphs: Characters to draw with.
        base: Style of the background.
    """
    rows = height - (1 if picture.compact else 3)
    scale = plot.scale(picture.shown, *picture.span, log=picture.log, robust=picture.robust, limits=picture.y_range)
    labels: dict[int, str] = {}
    gutter = -1
    if not picture.compact:
        for value, text in scale.ticks(max(1, rows // 4)):
            share = scale.place(value)
            if share is not None and 0 <= share <= 1:
                labels[min(rows - 1, int(share * rows))] = text
        gutter = max([len(text) for text in labels.values()] + [4]) + 1
    columns = width - gutter - 2
    envelope, line = Canvas(columns, rows), Canvas(columns, rows)
    averages = [
        plot.draw(drawn, picture.span, scale, envelope, line, picture.smoothing, picture.log_x)
        for drawn in picture.shown
    ]
    seams = _seams(picture, columns)
    cross = None
    if picture.cursor is not None and picture.span[0] <= picture.cursor <= picture.span[1]:
        cross = plot.cell_of(picture.cursor, picture.span, columns, picture.log_x)
    lines = [_title(picture, averages[-1], width, glyphs, base)]
    lines += _plot(envelope, line, labels, gutter, {column for column, _, _ in seams}, cross, glyphs, base)
    if not picture.compact:
        lines += _x_axis(picture, gutter, columns, seams, cross, glyphs, base)
    return Frame(gutter + 1, columns), lines


def nothing(words: str, width: int, height: int, base: Style) -> list[Line]:
    """Draw a text instead of a plot: each of its lines folded and centred."""
    lines: list[Line] = [[] for _ in range(max(0, height))]
    texts = [text for line in words.split("\n") for text in textwrap.wrap(line, max(1, width))][: max(0, height)]
    top = max(0, (height - len(texts)) // 2)
    for y, text in enumerate(texts, top):
        indent = " " * ((width - cell_len(text)) // 2)
        lines[y] = [Segment(indent, base), Segment(text, base + Style(color=palette.DIM))]
    return lines


def value_words(metric: str, value: float | None) -> str:
    """Format a value of a metric, a system metric with its unit."""
    if (system := metric_of(metric)) is not None:
        return format.quantity(value, system.unit)
    if value is not None and value and abs(value) < 1e-3:
        return small(value)
    if value is not None and 1000 <= abs(value) < 1e12 and metric != "train/loss":
        return short(value)
    return loss(value)


def x_words(value: float, axis: str) -> str:
    """Format a position on the x axis: ``step 1,204``."""
    if axis == "time":
        return f"after {axes.duration_label(value)}"
    if axis == "clock":
        return axes.clock_label(value, 1.0)
    return f"{axis} {grouped(round(value)) if axis == 'step' else axes.step_label(value)}"


def _seams(picture: Picture, columns: int) -> list[tuple[int, str, str]]:
    """Return (column, label, colour) of the visible changes of attempt and the marks."""
    seams: list[tuple[float, str, str]] = [(x, label, palette.TEXT) for x, label in picture.marks]
    for drawn in picture.shown:
        for number, (index, attempt) in enumerate(drawn.series.attempts):
            if number and not drawn.colour:
                name = dict(picture.names).get(attempt, f"attempt {attempt}")
                seams.append((drawn.series.x[index], name, drawn.shade(number)))
    return [
        (plot.cell_of(x, picture.span, columns, picture.log_x), label, colour)
        for x, label, colour in sorted(seams)
        if picture.span[0] <= x <= picture.span[1]
    ]


def _title(picture: Picture, average: float | None, width: int, glyphs: Glyphs, base: Style) -> Line:
    dim, text = base + Style(color=palette.DIM), base + Style(color=palette.TEXT)
    counted = [drawn for drawn in picture.shown if not drawn.given_up] or picture.shown
    is_single = len(counted) == 1 and not counted[0].name
    name = picture.metric
    if picture.compact and len(name) > width - 10:
        name = name.rpartition("/")[2]
    segments = [Segment(f" {name} ", text + Style(bold=True))]
    at = picture.cursor
    if at is not None:
        segments.append(Segment(f"{x_words(at, picture.axis)} ", base + Style(color=palette.ACCENT)))
    if is_single:
        series = counted[0].series
        index = series.nearest(at) if at is not None else None
        value = series.values.value(index) if index is not None else series.last
        segments.append(Segment(f"{value_words(picture.metric, value)} ", text))
        if average is not None and at is None and not picture.compact:
            segments.append(Segment(f" mean {value_words(picture.metric, average)} ", dim))
    if picture.words and not picture.compact:
        segments.append(Segment(f" {picture.words} ", base + Style(color=palette.WAIT)))
    if picture.compact:
        legend = []
    elif is_single:
        names = dict(picture.names)
        legend = [
            (names.get(attempt, f"attempt {attempt}"), counted[0].shade(number))
            for number, (_, attempt) in enumerate(counted[0].series.attempts)
        ]
    elif len(picture.shown) > 2:
        legend = []  # a list below the curve has the names
    else:
        legend = [
            (_named(drawn, picture.metric, at), drawn.colour or palette.series(0))
            for drawn in picture.shown
            if drawn.name
        ]
    used = sum(len(segment.text) for segment in segments)
    tail: Line = []
    for name, colour in reversed(legend):  # the newest first: older ones are omitted without room
        words = f"{glyphs.rule * 2} {name}  "
        if used + cell_len(words) + sum(cell_len(segment.text) for segment in tail) > width - 2:
            break
        tail.insert(0, Segment(words, base + Style(color=colour)))
    room = width - used - sum(cell_len(segment.text) for segment in tail)
    return [*segments, Segment(" " * max(0, room), base), *tail]


def _named(drawn: Drawn, metric: str, at: float | None) -> str:
    """Return the legend text of a series, with its value at the crosshair."""
    index = drawn.series.nearest(at) if at is not None else None
    return drawn.name if index is None else f"{drawn.name} {value_words(metric, drawn.series.values.value(index))}"


def _plot(
    envelope: Canvas,
    line: Canvas,
    labels: dict[int, str],
    gutter: int,
    seams: set[int],
    cross: int | None,
    glyphs: Glyphs,
    base: Style,
) -> list[Line]:
    frame, dim = base + Style(color=palette.FAINT), base + Style(color=palette.DIM)
    hair = base + Style(color=palette.ACCENT, bgcolor=palette.RAISED)
    styles: dict[str, Style] = {}  # colour -> style: created once per paint, not per cell
    lines = []
    for y in range(envelope.height):
        text = labels.get(y, "")
        row: Line = []
        if gutter >= 0:
            row = [Segment(text.rjust(gutter), dim), Segment(glyphs.tick if text else glyphs.axis, frame)]
        (bright_dots, bright_colours), (faint_dots, faint_colours) = line.row(y), envelope.row(y)
        run, running = "", base  # adjacent cells of one style form one segment
        for x in range(envelope.width):
            bright = bright_dots[x]
            dots = bright or faint_dots[x]
            if dots:
                # Where both meet only the average is drawn, which keeps it a thin line.
                sign = chr(BRAILLE + dots) if glyphs.braille else "*" if bright else "."
                colour = bright_colours[x] if bright else faint_colours[x]
                style = styles.get(colour)
                if style is None:
                    style = styles[colour] = base + Style(color=colour)
                if x == cross:
                    style = style + Style(bgcolor=palette.RAISED)
            elif x == cross:
                sign, style = glyphs.axis, hair
            elif x in seams:
                sign, style = glyphs.seam, frame
            else:
                sign, style = " ", base
            if style is running:
                run += sign
            else:
                if run:
                    row.append(Segment(run, running))
                run, running = sign, style
        row.append(Segment(run, running))
        lines.append(row)
    return lines


def _x_axis(
    picture: Picture,
    gutter: int,
    columns: int,
    seams: list[tuple[int, str, str]],
    cross: int | None,
    glyphs: Glyphs,
    base: Style,
) -> list[Line]:
    span = picture.span
    frame = base + Style(color=palette.FAINT)
    axis = [Segment(" " * gutter, base), Segment(glyphs.corner, frame)]
    cells = [(glyphs.rule, frame)] * columns
    words = [(" ", base)] * columns
    dim = base + Style(color=palette.DIM)

    def write(text: str, at: int, style: Style) -> bool:
        """Write text centred at ``at`` unless it overlaps. Return True if written."""
        begin = min(max(0, at - len(text) // 2), columns - len(text))
        if begin < 0 or any(cell[0] != " " for cell in words[max(0, begin - 1) : begin + len(text) + 1]):
            return False
        words[begin : begin + len(text)] = [(sign, style) for sign in text]
        return True

    for x in picture.points:
        if span[0] <= x <= span[1]:
            cells[plot.cell_of(x, span, columns, picture.log_x)] = (glyphs.point, base + Style(color=palette.GOOD))
    for column, text, colour in seams:
        cells[column] = (glyphs.mark, base + Style(color=colour))
        write(text, column, base + Style(color=colour))
    if cross is not None and picture.cursor is not None:
        cells[cross] = (glyphs.mark, base + Style(color=palette.ACCENT))
    count = max(1, columns // 14)
    if picture.log_x:
        text_of = axes.duration_label if picture.axis == "time" else axes.step_label
        marks = [(value, text_of(value)) for value in axes.log_ticks(*span, count)]
    elif picture.axis == "time":
        marks = [(value, axes.duration_label(value)) for value in axes.duration_ticks(*span, count)]
    elif picture.axis == "clock":
        marks = axes.clock_ticks(*span, count)
    else:
        marks = [(value, axes.step_label(value)) for value in axes.ticks(*span, count) if value == round(value)]
    for value, text in marks:
        column = plot.cell_of(value, span, columns, picture.log_x)
        if write(text, column, dim) and cells[column][0] == glyphs.rule:
            cells[column] = (glyphs.below, frame)
    axis += [Segment(sign, style) for sign, style in cells]
    labels = [Segment(" " * (gutter + 1), base), *(Segment(sign, style) for sign, style in words)]
    return [list(Segment.simplify(axis)), list(Segment.simplify(labels))]
