"""CurveView: its drawing at any length; appending equals redrawing."""

from __future__ import annotations

import math
from collections.abc import AsyncIterator, Sequence
from typing import Any

import pytest
from textual import events
from textual.app import App, ComposeResult

from midstream.charts import axes
from midstream.tui.state.screen_state import attempt_hues
from midstream.tui.state.series import Series
from midstream.tui.state.series_cache import SeriesCache
from midstream.tui.style import palette
from midstream.tui.style.glyphs import ASCII, UNICODE, Glyphs
from midstream.tui.widgets.curve import CurveView
from midstream.tui.widgets.curve_style import CurveStyle
from midstream.tui.widgets.plot import Drawn
from midstream.tui.widgets.viewport import Viewport
from support.tui import fleets
from support.tui.fleets import rows
from support.tui.screens import screen_text


class CurveApp(App[None]):
    """App with a curve alone."""

    def __init__(self, glyphs: Glyphs = UNICODE) -> None:
        super().__init__()
        self.curve = CurveView(glyphs)

    def compose(self) -> ComposeResult:
        yield self.curve

    def lines(self) -> list[str]:
        return [self.curve.render_line(y).text for y in range(self.curve.size.height)]

    def plot(self) -> list[str]:
        """Return the plot without title, axis, labels and gutter."""
        lines = self.lines()[1:-2]
        edge = max(line.find("│") if "│" in line else line.find("┤") for line in lines)
        return [line[edge + 1 :] for line in lines]


def points(values: Sequence[float]) -> list[dict[str, Any]]:
    return [{"global_step": step, "train/loss": value, "attempt": 1} for step, value in enumerate(values)]


@pytest.fixture
async def curve_app() -> AsyncIterator[CurveApp]:
    app = CurveApp()
    async with app.run_test(size=(80, 24)):
        yield app


async def test_curve_appending_equals_redrawing(curve_app: CurveApp) -> None:
    all_rows = rows(700, {1: 0, 2: 400})
    for end in (0, 1, 5, 16, 300, 401, 700):
        curve_app.curve.show(all_rows[:end])
    appended = curve_app.lines()
    fresh = CurveApp()
    async with fresh.run_test(size=(80, 24)):
        fresh.curve.show(all_rows)
        assert fresh.lines() == appended


async def test_growing_curve_composes_only_lines_that_differ(monkeypatch: pytest.MonkeyPatch) -> None:
    app, composed = CurveApp(), list[int]()
    all_rows = rows(4000)
    async with app.run_test(size=(80, 24)) as pilot:
        app.curve.show(all_rows[:3990])
        await pilot.pause()
        render = CurveView.render_line
        monkeypatch.setattr(CurveView, "render_line", lambda self, y: composed.append(y) or render(self, y))
        for end in range(3991, 4001):
            before = [strip.text for strip in app.curve._lines]
            composed.clear()
            app.curve.show(all_rows[:end])
            await pilot.pause()
            after = [strip.text for strip in app.curve._lines]
            differing = {y for y, (old, new) in enumerate(zip(before, after, strict=True)) if old != new}
            assert differing <= set(composed), "a line that differs is composed"
            assert len(set(composed)) < app.curve.size.height
        shown = screen_text(app)
        app.curve._redraw()
        await pilot.pause()
        assert screen_text(app) == shown


async def test_curve_redraws_steps_replaced_by_next_attempt(curve_app: CurveApp) -> None:
    curve_app.curve.show(rows(400))
    replaced = rows(400, {1: 0, 2: 200}, seed=3)
    curve_app.curve.show(replaced)
    fresh = CurveApp()
    async with fresh.run_test(size=(80, 24)):
        fresh.curve.show(replaced)
        assert fresh.lines() == curve_app.lines()


async def test_curve_redraws_replaced_steps_one_by_one(curve_app: CurveApp) -> None:
    """Attempt 1 reached step 400; attempt 2 started at step 200 and has reached 203."""
    before = rows(400)
    curve_app.curve.show(before)
    replaced = [*before[:200], *(dict(row, attempt=2, **{"train/loss": 9.0}) for row in before[200:203]), *before[203:]]
    curve_app.curve.show(replaced)
    fresh = CurveApp()
    async with fresh.run_test(size=(80, 24)):
        fresh.curve.show(replaced)
        assert fresh.lines() == curve_app.lines()


async def test_curve_without_points_shows_a_message(curve_app: CurveApp) -> None:
    curve_app.curve.show((), empty="no steps yet (compiling)")
    assert any("no steps yet (compiling)" in line for line in curve_app.lines())


async def test_curve_of_one_point_is_one_dot_with_value(curve_app: CurveApp) -> None:
    curve_app.curve.show(points([2.5]))
    assert "2.5000" in curve_app.lines()[0]
    assert sum(sign != " " for line in curve_app.plot() for sign in line) == 1


async def test_curve_has_a_gap_at_nan_losses(curve_app: CurveApp) -> None:
    values = [2.0] * 40 + [math.nan] * 40 + [2.0] * 40
    curve_app.curve.show(points(values))
    [line] = [line for line in curve_app.plot() if line.strip()]
    drawn, width = line.rstrip(), len(line)
    assert drawn[: width // 4].strip()
    assert not drawn[int(width * 0.36) : int(width * 0.62)].strip()
    assert drawn[int(width * 0.75) :].strip()


async def test_curve_of_nan_losses_alone_draws_nothing(curve_app: CurveApp) -> None:
    curve_app.curve.show(points([math.nan] * 30))
    assert not any(line.strip() for line in curve_app.plot())
    assert "nan" in curve_app.lines()[0]


async def test_curve_spike_does_not_flatten_the_rest(curve_app: CurveApp) -> None:
    values = [2.0 + 0.5 * math.sin(step / 60) for step in range(2000)]
    values[1000] = 1e6
    curve_app.curve.show(points(values))
    plot = curve_app.plot()
    assert plot[0].strip(), "the spike is drawn to the edge"
    used = [number for number, line in enumerate(plot) if len(line.strip()) > 4]
    assert len(used) > len(plot) * 0.6, "the rest uses the height"


async def test_curve_average_of_constant_is_constant(curve_app: CurveApp) -> None:
    curve_app.curve.show(points([2.5] * 300))
    assert "mean 2.5000" in curve_app.lines()[0]


async def test_curve_average_does_not_lag_behind_a_fall(curve_app: CurveApp) -> None:
    """Within a straight fall, the average is within 0.02 of the axis of the raw values."""
    values = [10 - step / 100 for step in range(1001)]
    curve_app.curve.show(points(values))
    average = float(curve_app.lines()[0].split("mean ")[1].split()[0])
    assert average == pytest.approx(values[-1], abs=0.02 * 10)


async def test_curve_marks_change_of_attempt(curve_app: CurveApp) -> None:
    curve_app.curve.show(rows(1000, {1: 0, 2: 500}), names={1: "small 2×cpu", 2: "large 4×cpu"})
    axis, labels = curve_app.lines()[-2:]
    width = len(axis.rstrip()) - axis.index("└")
    assert abs((axis.index("▲") - axis.index("└")) / width - 0.5) < 0.03
    assert "large 4×cpu" in labels
    assert "small 2×cpu" in curve_app.lines()[0]


async def test_curve_zoom_shows_the_tail(curve_app: CurveApp) -> None:
    curve_app.curve.show(rows(1000))
    curve_app.curve.see(Viewport(0.1))
    labels = curve_app.lines()[-1]
    assert "960" in labels
    assert "500" not in labels


async def test_curve_draws_other_metrics_by_name(curve_app: CurveApp) -> None:
    curve_app.curve.show(rows(50), metric="optim/learning_rate")
    assert "optim/learning_rate" in curve_app.lines()[0]


def sloped(count: int, offset: float = 0.0) -> Series:
    series = Series()
    for step in range(count):
        series.append(step, 10 + offset - step / 100)
    return series


async def test_curve_keys_zoom_pan_and_reset(curve_app: CurveApp) -> None:
    curve_app.curve.show(rows(1000))
    view = curve_app.curve
    view.action_zoom_in()
    low, high = view.span or (0, 0)
    assert high == 999, "zoomed in at the newest point, which stays visible"
    assert low == pytest.approx(999 - 999 / 1.6)
    view.action_pan(-1)
    moved = view.span or (0, 0)
    assert moved[1] - moved[0] == pytest.approx(high - low)
    assert moved[0] < low
    view.action_pan(1)
    assert view.viewport.fixed is None, "at the end it follows the newest step"
    view.action_full_range()
    assert view.span == (0, 999)
    view.action_zoom_out()
    assert view.span == (0, 999), "not beyond the ends"


async def test_curve_zoomed_tail_follows_newest_step(curve_app: CurveApp) -> None:
    curve_app.curve.show(rows(1000))
    curve_app.curve.see(Viewport(0.1))
    curve_app.curve.show(rows(2000))
    assert curve_app.curve.span == (pytest.approx(1999 * 0.9), 1999)


async def test_curve_crosshair_shows_values_at_its_step(curve_app: CurveApp) -> None:
    series = sloped(1000)
    curve_app.curve.draw(
        (Drawn(series, "one", "#ff0000"), Drawn(sloped(1000, 5), "two", "#00ff00")), metric="train/loss"
    )
    curve_app.curve.see(curve_app.curve.viewport)
    curve_app.lines()
    curve_app.curve.action_cross(-1)
    curve_app.lines()
    for _ in range(10):
        curve_app.curve.action_cross(-1)
    title = curve_app.lines()[0]
    step = round(curve_app.curve.cursor or 0)
    assert f"step {step:,}" in title or f"step {step - 1:,}" in title
    assert f"one {10 - step / 100:.2f}"[:8] in title
    assert "two 6.4" in title
    assert curve_app.curve.forget_cursor()
    assert "step" not in curve_app.lines()[0]


async def test_curve_mouse_wheel_and_drag_zoom_and_pan() -> None:
    app = CurveApp()
    async with app.run_test(size=(80, 24)) as pilot:
        app.curve.show(rows(1000))
        await pilot.pause()
        await pilot._post_mouse_events([events.MouseScrollUp], app.curve, (40, 10), button=0)
        low, high = app.curve.span or (0, 0)
        assert 0 < low < 500 < high < 999, "zoomed around the pointer"
        await pilot.mouse_down(app.curve, offset=(40, 10))
        await pilot.hover(app.curve, offset=(60, 10))
        await pilot.mouse_up(app.curve, offset=(60, 10))
        assert (app.curve.span or (0, 0))[0] < low, "dragging to the right shows earlier steps"
        await pilot.click(app.curve, offset=(40, 10), times=2)
        assert app.curve.span == (0, 999)


async def test_curve_names_several_runs_with_stable_colours(curve_app: CurveApp) -> None:
    curve_app.curve.draw(
        (Drawn(sloped(500), "one", "#ff0000"), Drawn(sloped(900, 5), "two", "#00ff00")), metric="train/loss"
    )
    title = curve_app.lines()[0]
    assert "one" in title
    assert "two" in title
    colours = {
        segment.style.color.name
        for y in range(1, 20)
        for segment in curve_app.curve.render_line(y)
        if segment.style and segment.style.color and any(0x2800 < ord(sign) < 0x2900 for sign in segment.text)
    }
    assert {"#ff0000", "#00ff00"} <= colours


def test_curve_same_hardware_has_the_same_colour() -> None:
    series = Series()
    for step in range(300):
        series.append(step, 1.0, attempt=1 + step // 100)
    drawn = Drawn(series, hues={1: 0, 2: 1, 3: 0})
    assert [drawn.shade(number) for number in range(3)] == [palette.series(0), palette.series(1), palette.series(0)]
    assert attempt_hues(fleets.run(lineage=fleets.lineage("nano", (1, "a", 2, 0), (2, "b", 4, 5), (3, "a", 2, 9)))) == {
        1: 0,
        2: 1,
        3: 0,
    }


async def test_curve_log_axis_spaces_powers_equally(curve_app: CurveApp) -> None:
    series = Series()
    for step in range(400):
        series.append(step, 10 ** (3 - step / 100))
    curve_app.curve.draw((Drawn(series, smooth=False),), metric="m")
    curve_app.curve.restyle(CurveStyle(log=True))
    plot = curve_app.plot()
    columns = [next(x for x, sign in enumerate(line) if sign != " ") for line in plot if line.strip()]
    assert columns == sorted(columns)
    assert abs(columns[len(columns) // 2] - columns[-1] / 2) <= 5, "a straight line"
    labels = [line.split("┤")[0].strip() for line in curve_app.lines() if "┤" in line]
    assert {"100", "10", "1"} <= set(labels)


async def test_curve_log_axis_skips_values_without_logarithm(curve_app: CurveApp) -> None:
    curve_app.curve.show(points([0.0, -1.0, math.nan, 0.0]))
    curve_app.curve.restyle(CurveStyle(log=True))
    assert len(curve_app.lines()) == 24


async def test_curve_fits_outliers_on_request(curve_app: CurveApp) -> None:
    values = [2.0] * 2000
    values[1000] = 1000.0
    curve_app.curve.show(points(values))
    curve_app.curve.restyle(CurveStyle(robust=False))
    assert any("1000" in line or "800" in line for line in curve_app.lines())


async def test_curve_marks_checkpoints_on_the_axis(curve_app: CurveApp) -> None:
    curve_app.curve.draw((Drawn(sloped(1000)),), metric="train/loss", points=(250, 500, 5000))
    assert curve_app.lines()[-2].count("◆") == 2


@pytest.mark.parametrize("axis", ["tokens", "time"])
async def test_curve_draws_other_axes(axis: str) -> None:
    measured = [
        {"global_step": step, "train/loss": 1.0, "throughput/total_tokens": 1000 * step, "time": 5000.0 + 60 * step}
        for step in range(301)
    ]
    series, _ = SeriesCache().series("run", measured, "train/loss", axis)
    app = CurveApp()
    async with app.run_test(size=(80, 24)):
        app.curve.draw((Drawn(series),), metric="train/loss")
        app.curve.restyle(CurveStyle(axis=axis))
        labels = app.lines()[-1].split()
        assert {"tokens": "100k", "time": "2h"}[axis] in labels


def test_curve_does_not_fold_when_clock_is_set_back() -> None:
    measured = [
        {"global_step": step, "train/loss": 1.0, "time": at} for step, at in enumerate((100.0, 200.0, 150.0, 300.0))
    ]
    series, _ = SeriesCache().series("run", measured, "train/loss", "time")
    assert list(series.x) == [0.0, 100.0, 100.0, 200.0]


@pytest.mark.parametrize("size", [(10, 3), (24, 4), (30, 5), (200, 60)])
async def test_curve_fills_any_size_exactly(size: tuple[int, int]) -> None:
    app = CurveApp()
    async with app.run_test(size=size):
        app.curve.show(rows(300, {1: 0, 2: 100}))
        assert [len(line) for line in app.lines()] == [size[0]] * size[1]


async def test_curve_ascii_mode_is_ascii() -> None:
    app = CurveApp(ASCII)
    async with app.run_test(size=(80, 24)):
        app.curve.show(rows(300, {1: 0, 2: 100}))
        assert "".join(app.lines()).isascii()


@pytest.mark.parametrize(
    ("low", "high", "expected"),
    [(0, 10, [0, 2, 4, 6, 8, 10]), (2.03, 2.31, [2.1, 2.2, 2.3]), (5, 5, [5]), (0, 1e6, None)],
)
def test_curve_ticks_are_round_and_within_the_axis(low: float, high: float, expected: list[float] | None) -> None:
    found = axes.ticks(low, high, 5)
    assert all(low - 1e-9 <= tick <= high + 1e-9 for tick in found)
    if expected is not None:
        assert found == pytest.approx(expected)


async def test_curve_log_x_gives_each_decade_the_same_width(curve_app: CurveApp) -> None:
    curve_app.curve.draw((Drawn(sloped(1001), smooth=False),), metric="m")
    curve_app.curve.restyle(CurveStyle(log_x=True))
    assert curve_app.curve.span == (1.0, 1000.0)
    line = curve_app.lines()[-1]
    places = [line.index(label) for label in (" 10 ", " 100 ")]
    assert abs((places[1] - places[0]) - (places[0] - line.index(" 1"))) <= 2
    curve_app.curve.action_zoom_in()
    low, high = curve_app.curve.span or (0, 0)
    assert low > 1
    assert high == 1000, "it follows the newest point"
    curve_app.curve.action_pan(-1)
    assert (curve_app.curve.span or (0, 0))[1] < 1000
    curve_app.curve.action_cross(-1)
    assert low / 10 < (curve_app.curve.cursor or 0) < 1000


async def test_curve_y_range_and_smoothing_factor_are_in_the_title(curve_app: CurveApp) -> None:
    curve_app.curve.show(points([float(value % 9) for value in range(400)]))
    curve_app.curve.restyle(CurveStyle(y_range=(2, 4), smoothing=0.5))
    lines = curve_app.lines()
    assert "smoothing 0.5" in lines[0]
    assert "y 2:4" in lines[0]
    labels = [float(line.split("┤")[0]) for line in lines if "┤" in line]
    assert labels
    assert all(2 <= label <= 4 for label in labels)
