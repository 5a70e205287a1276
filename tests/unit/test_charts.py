"""Charts: smoothing, ranges, and files of CSV, SVG and PNG."""

from __future__ import annotations

import csv
import io
import math
import struct
from array import array
from dataclasses import replace
from pathlib import Path
from xml.etree import ElementTree

import pytest

from midstream.charts.chart import NO_RANGE, Chart, Line, parse_range, range_text
from midstream.charts.chart_file import check_path, write_chart
from midstream.charts.csv_file import csv_text
from midstream.charts.layout import HEIGHT, WIDTH, Label, Segments, shapes, thin
from midstream.charts.run_lines import lines_of, metric_names
from midstream.charts.smoothing import DEFAULT_FACTOR, Average, factor_of, parse_factor, time_constant
from midstream.charts.svg import svg
from midstream.errors import UsageError
from support.tui import prepared_migrations


def line(x: list[float], y: list[float], name: str = "nano", number: int = 0) -> Line:
    return Line(name, array("d", x), array("d", y), name, 1, number)


TWO = Chart("train/loss", (line([1, 2, 3], [3.0, 2.0, 1.0]), line([1, 2, 4], [4.0, 3.0, 2.5], "other", 1)))


def table(chart: Chart) -> list[list[str]]:
    return list(csv.reader(io.StringIO(csv_text(chart))))


def wandb_average(x: list[float], y: list[float], factor: float) -> list[float]:
    """The time weighted EMA of W&B's documentation, written as there."""
    weight = min(math.sqrt(factor), 0.999)
    last = debias = 0.0
    found = []
    for index, value in enumerate(y):
        change = (x[index] - x[index - 1]) / (x[-1] - x[0]) * 1000 if index else 0
        adjusted = weight**change
        last = last * adjusted + value
        debias = debias * adjusted + 1
        found.append(last / debias)
    return found


@pytest.mark.parametrize("factor", [0.3, 0.875, 0.99, 0.999])
def test_average_is_wandbs(factor: float) -> None:
    x, y = [0.0, 1.0, 2.0, 5.0, 9.0, 10.0], [5.0, 3.0, 8.0, 1.0, 2.0, 2.5]
    average = Average(factor, (0.0, 10.0))
    assert [average.add(at, value) for at, value in zip(x, y, strict=True)] == pytest.approx(
        wandb_average(x, y, factor)
    )


def test_smoothing_factors() -> None:
    assert time_constant(0) == 0
    assert time_constant(factor_of(0.05)) == 0.05
    assert pytest.approx(0.875, abs=0.001) == DEFAULT_FACTOR
    assert parse_factor("0.6") == 0.6
    for text in ("1", "-0.1", "much", "nan", ""):
        with pytest.raises(UsageError, match="is no factor"):
            parse_factor(text)
    average = Average(0.9, (0.0, 1.0))
    assert math.isnan(average.add(0.0, math.nan))
    assert average.add(0.5, 2.0) == 2.0


def test_ranges() -> None:
    assert parse_range("2:3.5") == (2, 3.5)
    assert parse_range("-1:") == (-1, None)
    assert range_text(parse_range(":4")) == ":4"
    assert range_text(NO_RANGE) == ""
    for text in ("2", "3:2", "a:b", "nan:1", ""):
        with pytest.raises(UsageError, match="is not LOW:HIGH"):
            parse_range(text)


def test_csv_has_every_point_of_the_range_at_full_precision() -> None:
    assert table(TWO)[:2] == [["run", "attempt", "step", "train/loss"], ["nano", "1", "1", "3.0"]]
    assert len(table(TWO)) == 7
    assert [row[2] for row in table(replace(TWO, x_range=(2, None)))[1:]] == ["2", "3", "2", "4"]
    smooth = table(replace(TWO, smoothing=0.9, axis="time"))
    assert smooth[0] == ["run", "attempt", "seconds", "train/loss", "smoothed"]
    assert float(smooth[1][4]) == 3.0
    assert table(Chart("m", (line([0], [math.nan]),)))[1][3] == "nan"


def test_svg_has_a_line_for_each_run_legend_units_and_title() -> None:
    chart = replace(TWO, metric="throughput/duration", axis="time", smoothing=0.9, log_y=True)
    root = ElementTree.fromstring(svg(chart))
    texts = [element.text for element in root.iter("{http://www.w3.org/2000/svg}text")]
    for words in (
        "nano, other: throughput/duration",
        "nano",
        "other",
        "throughput/duration (s)",
        "smoothing 0.9, log y",
    ):
        assert words in texts
    assert "time (s since the first step)" in texts
    colours = {element.get("stroke") for element in root.iter("{http://www.w3.org/2000/svg}polyline")}
    assert {"#0072B2", "#D55E00"} <= colours


def test_svg_escapes_text_of_hosts() -> None:
    text = svg(Chart("a<b>&", (line([1, 2], [1, 2], "\x1b[31m<script>"),)))
    assert "<script>" not in text
    assert "\x1b" not in text
    ElementTree.fromstring(text)


@pytest.mark.parametrize(
    "chart",
    [
        Chart("m", (line([0.0], [1.0]),)),
        Chart("m", (line([0.0, 1.0], [0.0, -1.0]),), log_x=True, log_y=True),
        Chart("m", (line([0.0, 1.0, 2.0], [1.0, math.nan, math.inf]),), smoothing=0.5),
        Chart("m", (line([5.0, 5.0], [2.0, 2.0]),), smoothing=0.5, x_range=(7, 9), y_range=(0, 1)),
        Chart("m", (line([0.0, 1e12], [1e-30, 1e30]),), log_y=True, axis="time"),
        Chart("m", ()),
    ],
)
def test_charts_of_extreme_values_stay_on_the_page(chart: Chart) -> None:
    ElementTree.fromstring(svg(chart))
    csv_text(chart)
    for shape in shapes(chart):
        for x, y in shape.points if isinstance(shape, Segments) else (shape.at,):
            assert 0 <= x <= WIDTH
            assert 0 <= y <= HEIGHT


def test_logarithmic_x_gives_each_decade_the_same_width() -> None:
    chart = Chart("m", (line([1, 10, 100], [1, 2, 3]),), log_x=True)
    drawn = [shape for shape in shapes(chart) if isinstance(shape, Segments) and shape.colour == "#0072B2"][-1]
    (a, _), (b, _), (c, _) = drawn.points
    assert b - a == pytest.approx(c - b)


def test_thinning_keeps_extremes() -> None:
    points = [(index / 100, 500.0 if index == 33_333 else float(index % 7)) for index in range(96_000)]
    kept = thin(points)
    assert len(kept) <= 4 * WIDTH
    assert max(kept, key=lambda point: point[1])[1] == 500.0


def test_one_run_has_a_colour_per_attempt_and_several_one_each() -> None:
    run = prepared_migrations.moved_fleet().runs[0]
    one = lines_of([run], "train/loss", "step")
    assert [each.name for each in one] == ["attempt 1: small, 2 x cpu", "attempt 2: large, 4 x cpu"]
    assert one[0].colour != one[1].colour
    two = lines_of([run, replace(run, run_id="copy")], "train/loss", "tokens")
    assert {each.name for each in two} == {"nano", "copy"}
    assert len({each.colour for each in two if each.run == "nano"}) == 1
    assert "grad/norm/total" in metric_names([run])
    legend = [shape.text for shape in shapes(Chart("train/loss", two)) if isinstance(shape, Label)]
    assert legend.count("nano") == 1


def test_chart_files(tmp_path: Path) -> None:
    write_chart(TWO, tmp_path / "a.svg")
    assert (tmp_path / "a.svg").read_text().startswith("<svg")
    for text, why in (("a.pdf", "a .csv, .svg or .png file"), (str(tmp_path / "d.svg"), "is a directory")):
        (tmp_path / "d.svg").mkdir(exist_ok=True)
        with pytest.raises(UsageError, match=why):
            check_path(text)
    with pytest.raises(UsageError, match="cannot be written"):
        write_chart(TWO, tmp_path / "missing" / "a.csv")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a.svg", "d.svg"]


def test_png_is_drawn_by_pillow(tmp_path: Path) -> None:
    pytest.importorskip("PIL", reason="Pillow is not installed (the extra png)")
    write_chart(replace(TWO, smoothing=0.5), tmp_path / "a.png")
    data = (tmp_path / "a.png").read_bytes()
    assert data[:8] == b"\x89PNG\r\n\x1a\n"
    assert struct.unpack(">II", data[16:24]) == (2 * WIDTH, 2 * HEIGHT)
    from PIL import Image

    colours = {colour for _, colour in Image.open(tmp_path / "a.png").getcolors(1 << 24) or ()}
    assert {(0, 0x72, 0xB2), (0xD5, 0x5E, 0)} <= colours


def test_png_without_pillow_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "PIL", None)
    with pytest.raises(UsageError, match="PNG needs Pillow"):
        write_chart(TWO, tmp_path / "a.png")
    assert list(tmp_path.iterdir()) == []
