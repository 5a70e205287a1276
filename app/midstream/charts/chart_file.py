"""Write a chart to a file; its suffix chooses the format."""

from __future__ import annotations

from pathlib import Path

from midstream.charts.chart import Chart
from midstream.errors import UsageError
from midstream_core import records

SUFFIXES = (".csv", ".svg", ".png")


def check_path(text: str) -> Path:
    """Return the path of a chart.

    Raises:
        UsageError: Its suffix is not that of a chart, or it is a directory.
    """
    path = Path(text).expanduser()
    if path.suffix.lower() not in SUFFIXES:
        what = f"{text}: a chart" if text else "no file is named: a chart"
        raise UsageError(f"{what} is a .csv, .svg or .png file", "the suffix chooses the format")
    if path.is_dir():
        raise UsageError(f"{text} is a directory", "name a file in it")
    return path


def write_chart(chart: Chart, path: Path) -> None:
    """Write a chart; the file is complete, or as it was before.

    Raises:
        UsageError: It cannot be written, or PNG is not supported here.
    """
    data = _content(chart, path.suffix.lower())
    try:
        records.write_bytes(str(path), data, durable=False)
    except OSError as error:
        raise UsageError(f"{path} cannot be written: {error.strerror}", "choose another file") from error


def _content(chart: Chart, suffix: str) -> bytes:
    if suffix == ".csv":
        from midstream.charts.csv_file import csv_text

        return csv_text(chart).encode()
    if suffix == ".svg":
        from midstream.charts.svg import svg

        return svg(chart).encode()
    from midstream.charts.png import png

    return png(chart)
