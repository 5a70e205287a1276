"""CurveView: what it draws, at any length, and that growing is the same as drawing anew."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import pytest
from textual import events
from textual.app import App, ComposeResult

from midstream.tui import palette
from midstream.tui.glyphs import ASCII, UNICODE, Glyphs
from midstream.tui.screen_state import attempt_hues
from midstream.tui.series_cache import SeriesCache
from midstream.tui.widgets import axes
from midstream.tui.widgets.curve import CurveView, Look
from midstream.tui.widgets.plot import Drawn
from midstream.tui.widgets.series import Series
from midstream.tui.widgets.viewport import Viewport
from tui import worlds
from tui.worlds import rows


class Board(App[None]):
    """A curve and nothing else."""

    def __init__(self, glyphs: Glyphs = UNICODE) -> None:
        super().__init__()
        self.curve = CurveView(glyphs)

    def compose(self) -> ComposeResult:
        yield self.curve

    def lines(self) -> list[str]:
        return [self.curve.render_line(y).text for y in range(self.curve.size.height)]

    def plot(self) -> list[str]:
        """The plot alone, without title, axis and labels; the gutter taken off."""
        lines = self.lines()[1:-2]
        edge = max(line.find("│") if "│" in line else line.find("┤") for line in lines)
        return [line[edge + 1 :] for line in lines]


def points(values: Sequence[float]) -> list[dict[str, Any]]:
    return [{"global_step": step, "train/loss": value, "attempt": 1} for step, value in enumerate(values)]


@pytest.fixture
async def board():
    app = Board()
    async with app.run_test(size=(80, 24)):
        yield app


async def test_appending_draws_what_drawing_anew_draws(board: Board) -> None:
    all_rows = rows(700, {1: 0, 2: 400})
    for end in (0, 1, 5, 16, 300, 401, 700):
        board.curve.show(all_rows[:end])
    grown = board.lines()
    fresh = Board()
    async with fresh.run_test(size=(80, 24)):
        fresh.curve.show(all_rows)
        assert fresh.lines() == grown


async def test_steps_that_another_attempt_replaced_are_drawn_anew(board: Board) -> None:
    board.curve.show(rows(400))
    replaced = rows(400, {1: 0, 2: 200}, seed=3)
    board.curve.show(replaced)
    fresh = Board()
    async with fresh.run_test(size=(80, 24)):
        fresh.curve.show(replaced)
        assert fresh.lines() == board.lines()


async def test_steps_that_are_being_replaced_are_drawn_anew_one_by_one(board: Board) -> None:
    """Attempt 2 began at step 200 again; it has come to 203, and attempt 1 had come to 400."""
    before = rows(400)
    board.curve.show(before)
    replaced = [*before[:200], *(dict(row, attempt=2, **{"train/loss": 9.0}) for row in before[200:203]), *before[203:]]
    board.curve.show(replaced)
    fresh = Board()
    async with fresh.run_test(size=(80, 24)):
        fresh.curve.show(replaced)
        assert fresh.lines() == board.lines()


async def test_no_points_say_so(board: Board) -> None:
    board.curve.show((), empty="no steps yet (compiling)")
    assert any("no steps yet (compiling)" in line for line in board.lines())


async def test_one_point_is_one_dot_and_its_value(board: Board) -> None:
    board.curve.show(points([2.5]))
    assert "2.5000" in board.lines()[0]
    assert sum(sign != " " for line in board.plot() for sign in line) == 1


async def test_losses_that_are_not_a_number_are_a_gap(board: Board) -> None:
    values = [2.0] * 40 + [math.nan] * 40 + [2.0] * 40
    board.curve.show(points(values))
    [line] = [line for line in board.plot() if line.strip()]
    drawn, width = line.rstrip(), len(line)
    assert drawn[: width // 4].strip()
    assert not drawn[int(width * 0.36) : int(width * 0.62)].strip()
    assert drawn[int(width * 0.75) :].strip()


async def test_all_losses_not_a_number_draw_nothing_and_break_nothing(board: Board) -> None:
    board.curve.show(points([math.nan] * 30))
    assert not any(line.strip() for line in board.plot())
    assert "nan" in board.lines()[0]


async def test_a_spike_reaches_the_top_and_does_not_flatten_the_rest(board: Board) -> None:
    values = [2.0 + 0.5 * math.sin(step / 60) for step in range(2000)]
    values[1000] = 1e6
    board.curve.show(points(values))
    plot = board.plot()
    assert plot[0].strip(), "the spike is drawn to the edge"
    used = [number for number, line in enumerate(plot) if len(line.strip()) > 4]
    assert len(used) > len(plot) * 0.6, "the rest keeps the height"


async def test_the_average_of_a_constant_is_that_constant(board: Board) -> None:
    board.curve.show(points([2.5] * 300))
    assert "mean 2.5000" in board.lines()[0]


async def test_the_average_does_not_lag_behind_a_steep_fall(board: Board) -> None:
    """In the middle of a straight fall the average is within two hundredths of the axis of the raw values."""
    values = [10 - step / 100 for step in range(1001)]
    board.curve.show(points(values))
    average = float(board.lines()[0].split("mean ")[1].split()[0])
    assert average == pytest.approx(values[-1], abs=0.02 * 10)


async def test_a_change_of_attempt_is_marked_where_it_happened(board: Board) -> None:
    board.curve.show(rows(1000, {1: 0, 2: 500}), names={1: "small 2×cpu", 2: "large 4×cpu"})
    axis, labels = board.lines()[-2:]
    width = len(axis.rstrip()) - axis.index("└")
    assert abs((axis.index("▲") - axis.index("└")) / width - 0.5) < 0.03
    assert "large 4×cpu" in labels
    assert "small 2×cpu" in board.lines()[0]


async def test_zoom_shows_the_tail(board: Board) -> None:
    board.curve.show(rows(1000))
    board.curve.see(Viewport(0.1))
    labels = board.lines()[-1]
    assert "960" in labels
    assert "500" not in labels


async def test_other_metrics_are_drawn_by_their_name(board: Board) -> None:
    board.curve.show(rows(50), metric="optim/learning_rate")
    assert "optim/learning_rate" in board.lines()[0]


def sloped(count: int, offset: float = 0.0) -> Series:
    series = Series()
    for step in range(count):
        series.append(step, 10 + offset - step / 100)
    return series


async def test_keys_zoom_pan_and_show_all_again(board: Board) -> None:
    board.curve.show(rows(1000))
    view = board.curve
    view.action_zoom_in()
    low, high = view.span or (0, 0)
    assert high == 999, "closer to the newest point, which stays in sight"
    assert low == pytest.approx(999 - 999 / 1.6)
    view.action_pan(-1)
    moved = view.span or (0, 0)
    assert moved[1] - moved[0] == pytest.approx(high - low)
    assert moved[0] < low
    view.action_pan(1)
    assert view.viewport.fixed is None, "at the end it follows again"
    view.action_whole()
    assert view.span == (0, 999)
    view.action_zoom_out()
    assert view.span == (0, 999), "not beyond the ends"


async def test_a_zoomed_tail_follows_the_newest_step(board: Board) -> None:
    board.curve.show(rows(1000))
    board.curve.see(Viewport(0.1))
    board.curve.show(rows(2000))
    assert board.curve.span == (pytest.approx(1999 * 0.9), 1999)


async def test_the_crosshair_shows_the_values_at_its_step(board: Board) -> None:
    series = sloped(1000)
    board.curve.draw((Drawn(series, "one", "#ff0000"), Drawn(sloped(1000, 5), "two", "#00ff00")), metric="train/loss")
    board.curve.see(board.curve.viewport)
    board.lines()
    board.curve.action_cross(-1)
    board.lines()
    for _ in range(10):
        board.curve.action_cross(-1)
    title = board.lines()[0]
    step = round(board.curve.cursor or 0)
    assert f"step {step:,}" in title or f"step {step - 1:,}" in title
    assert f"one {10 - step / 100:.2f}"[:8] in title
    assert "two 6.4" in title
    assert board.curve.forget_cursor()
    assert "step" not in board.lines()[0]


async def test_wheel_and_drag_zoom_and_pan() -> None:
    app = Board()
    async with app.run_test(size=(80, 24)) as pilot:
        app.curve.show(rows(1000))
        await pilot.pause()
        await pilot._post_mouse_events([events.MouseScrollUp], app.curve, (40, 10), button=0)
        low, high = app.curve.span or (0, 0)
        assert 0 < low < 500 < high < 999, "around the pointer"
        await pilot.mouse_down(app.curve, offset=(40, 10))
        await pilot.hover(app.curve, offset=(60, 10))
        await pilot.mouse_up(app.curve, offset=(60, 10))
        assert (app.curve.span or (0, 0))[0] < low, "what one drags to the right comes from the left"
        await pilot.click(app.curve, offset=(40, 10), times=2)
        assert app.curve.span == (0, 999)


async def test_several_runs_are_named_and_keep_their_colours(board: Board) -> None:
    board.curve.draw(
        (Drawn(sloped(500), "one", "#ff0000"), Drawn(sloped(900, 5), "two", "#00ff00")), metric="train/loss"
    )
    title = board.lines()[0]
    assert "one" in title
    assert "two" in title
    colours = {
        segment.style.color.name
        for y in range(1, 20)
        for segment in board.curve.render_line(y)
        if segment.style and segment.style.color and any(0x2800 < ord(sign) < 0x2900 for sign in segment.text)
    }
    assert {"#ff0000", "#00ff00"} <= colours


async def test_attempts_on_the_same_hardware_have_the_same_colour(board: Board) -> None:
    series = Series()
    for step in range(300):
        series.append(step, 1.0, attempt=1 + step // 100)
    drawn = Drawn(series, hues={1: 0, 2: 1, 3: 0})
    assert [drawn.shade(number) for number in range(3)] == [palette.series(0), palette.series(1), palette.series(0)]
    assert attempt_hues(worlds.run(lineage=worlds.lineage("nano", (1, "a", 2, 0), (2, "b", 4, 5), (3, "a", 2, 9)))) == {
        1: 0,
        2: 1,
        3: 0,
    }


async def test_a_logarithmic_axis_makes_powers_equally_far(board: Board) -> None:
    series = Series()
    for step in range(400):
        series.append(step, 10 ** (3 - step / 100))
    board.curve.draw((Drawn(series, smooth=False),), metric="m")
    board.curve.restyle(Look(log=True))
    plot = board.plot()
    places = [next(x for x, sign in enumerate(line) if sign != " ") for line in plot if line.strip()]
    assert places == sorted(places)
    assert abs(places[len(places) // 2] - places[-1] / 2) <= 5, "a straight line"
    labels = [line.split("┤")[0].strip() for line in board.lines() if "┤" in line]
    assert {"100", "10", "1"} <= set(labels)


async def test_values_that_no_logarithm_has_draw_nothing_odd(board: Board) -> None:
    board.curve.show(points([0.0, -1.0, math.nan, 0.0]))
    board.curve.restyle(Look(log=True))
    assert len(board.lines()) == 24


async def test_outliers_get_their_height_when_asked_for(board: Board) -> None:
    values = [2.0] * 2000
    values[1000] = 1000.0
    board.curve.show(points(values))
    board.curve.restyle(Look(robust=False))
    assert any("1000" in line or "800" in line for line in board.lines())


async def test_checkpoints_are_marked_on_the_axis(board: Board) -> None:
    board.curve.draw((Drawn(sloped(1000)),), metric="train/loss", points=(250, 500, 5000))
    assert board.lines()[-2].count("◆") == 2


@pytest.mark.parametrize("axis", ["tokens", "time"])
async def test_other_axes(axis: str) -> None:
    measured = [
        {"global_step": step, "train/loss": 1.0, "throughput/total_tokens": 1000 * step, "time": 5000.0 + 60 * step}
        for step in range(301)
    ]
    series, _ = SeriesCache().series("run", measured, "train/loss", axis)
    app = Board()
    async with app.run_test(size=(80, 24)):
        app.curve.draw((Drawn(series),), metric="train/loss")
        app.curve.restyle(Look(axis=axis))
        labels = app.lines()[-1].split()
        assert {"tokens": "100k", "time": "2h"}[axis] in labels


def test_a_clock_that_is_set_back_does_not_fold_the_curve() -> None:
    measured = [
        {"global_step": step, "train/loss": 1.0, "time": at} for step, at in enumerate((100.0, 200.0, 150.0, 300.0))
    ]
    series, _ = SeriesCache().series("run", measured, "train/loss", "time")
    assert list(series.x) == [0.0, 100.0, 100.0, 200.0]


@pytest.mark.parametrize("size", [(10, 3), (24, 4), (30, 5), (200, 60)])
async def test_any_size_is_filled_exactly(size: tuple[int, int]) -> None:
    app = Board()
    async with app.run_test(size=size):
        app.curve.show(rows(300, {1: 0, 2: 100}))
        assert [len(line) for line in app.lines()] == [size[0]] * size[1]


async def test_ascii_is_ascii() -> None:
    app = Board(ASCII)
    async with app.run_test(size=(80, 24)):
        app.curve.show(rows(300, {1: 0, 2: 100}))
        assert "".join(app.lines()).isascii()


@pytest.mark.parametrize(
    ("low", "high", "expected"),
    [(0, 10, [0, 2, 4, 6, 8, 10]), (2.03, 2.31, [2.1, 2.2, 2.3]), (5, 5, [5]), (0, 1e6, None)],
)
def test_ticks_are_round_numbers_within_the_axis(low: float, high: float, expected: list[float] | None) -> None:
    found = axes.ticks(low, high, 5)
    assert all(low - 1e-9 <= tick <= high + 1e-9 for tick in found)
    if expected is not None:
        assert found == pytest.approx(expected)
