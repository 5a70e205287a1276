"""A chart as SVG."""

from __future__ import annotations

from collections.abc import Iterable
from html import escape

from midstream.charts.chart import Chart
from midstream.charts.layout import HEIGHT, INK, WIDTH, Dot, Segments, Shape, shapes
from midstream.printable import printable


def svg(chart: Chart) -> str:
    """Draw a chart as SVG."""
    return drawing(WIDTH, HEIGHT, chart.metric, shapes(chart))


def drawing(width: int, height: int, title: str, drawn: Iterable[Shape]) -> str:
    """Return shapes as SVG, what is below first; sizes in pixels."""
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" height="{height}" '
        f'font-family="sans-serif" font-size="12" fill="{INK}">',
        f"<title>{_text(title)}</title>",
        f'<rect width="{width}" height="{height}" fill="white"/>',
        *map(_shape, drawn),
        "</svg>",
    ]
    return "\n".join(lines) + "\n"


def _shape(shape: Shape) -> str:
    if isinstance(shape, Segments):
        points = " ".join(f"{x:.1f},{y:.1f}" for x, y in shape.points)
        opacity = f' stroke-opacity="{shape.opacity:g}"' if shape.opacity < 1 else ""
        opacity += ' stroke-dasharray="5 4"' if shape.dashed else ""
        return (
            f'<polyline points="{points}" fill="none" stroke="{shape.colour}" stroke-width="{shape.width:g}"'
            f'{opacity} stroke-linejoin="round"/>'
        )
    x, y = shape.at
    if isinstance(shape, Dot):
        if shape.hollow:
            return f'<circle cx="{x:.1f}" cy="{y:.1f}" r="3.2" fill="none" stroke="{shape.colour}"/>'
        return f'<circle cx="{x:.1f}" cy="{y:.1f}" r="2.4" fill="{shape.colour}"/>'
    words = f'text-anchor="{shape.anchor}" font-size="{shape.size}" fill="{shape.colour}"'
    if shape.bold:
        words += ' font-weight="bold"'
    if shape.upward:
        words += f' transform="rotate(-90 {x:.1f} {y:.1f})"'
    return f'<text x="{x:.1f}" y="{y:.1f}" {words}>{_text(shape.text)}</text>'


def _text(text: str) -> str:
    return escape(printable(text))
