"""A chart as PNG, drawn by Pillow, an optional dependency (the extra ``png``)."""

from __future__ import annotations

import io
from typing import Any

from midstream.charts.chart import Chart
from midstream.charts.layout import HEIGHT, WIDTH, Dot, Label, Segments, shapes
from midstream.errors import UsageError
from midstream.printable import printable

SCALE = 2  # pixels of the file for one of the layout
OVERSAMPLING = 2  # pixels that are averaged to one: lines have smooth edges


def png(chart: Chart) -> bytes:
    """Draw a chart as PNG. Raises UsageError where Pillow is not installed."""
    try:
        from PIL import Image, ImageDraw, ImageFont
    except ImportError:
        raise UsageError("PNG needs Pillow, which is not installed", "write a .svg, or: pip install pillow") from None
    zoom = SCALE * OVERSAMPLING
    image = Image.new("RGB", (WIDTH * zoom, HEIGHT * zoom), "white")
    pen = ImageDraw.Draw(image)
    labels: list[Label] = []
    for shape in shapes(chart):
        if isinstance(shape, Segments):
            points = [(x * zoom, y * zoom) for x, y in shape.points]
            pen.line(points, _faded(shape.colour, shape.opacity), max(1, round(shape.width * zoom)), joint="curve")
        elif isinstance(shape, Dot):
            x, y = shape.at
            pen.ellipse([(x - 2.4) * zoom, (y - 2.4) * zoom, (x + 2.4) * zoom, (y + 2.4) * zoom], shape.colour)
        else:
            labels.append(shape)
    image = image.resize((WIDTH * SCALE, HEIGHT * SCALE), Image.Resampling.BOX)
    for label in labels:
        _write(image, label, ImageFont.load_default(label.size * SCALE))
    data = io.BytesIO()
    image.save(data, "PNG", optimize=True)
    return data.getvalue()


def _write(image: Any, label: Label, font: Any) -> None:
    from PIL import Image, ImageDraw

    text = printable(label.text)
    x, y = label.at[0] * SCALE, label.at[1] * SCALE
    stroke = 1 if label.bold else 0
    if not label.upward:
        anchor = {"start": "ls", "middle": "ms", "end": "rs"}[label.anchor]
        ImageDraw.Draw(image).text((x, y), text, label.colour, font, anchor, stroke_width=stroke)
        return
    x0, top, right, bottom = font.getbbox(text, anchor="ls")
    tile = Image.new("L", (int(right - x0) + 2, int(bottom - top) + 2), 0)
    ImageDraw.Draw(tile).text((-x0, -top), text, 255, font, "ls")
    tile = tile.rotate(90, expand=True)
    image.paste(label.colour, (round(x + top), round(y - tile.height / 2)), tile)


def _faded(colour: str, opacity: float) -> tuple[int, int, int]:
    """Mix a colour with the white ground."""
    red, green, blue = (int(colour[at : at + 2], 16) for at in (1, 3, 5))
    return tuple(round(255 - (255 - channel) * opacity) for channel in (red, green, blue))  # type: ignore[return-value]
