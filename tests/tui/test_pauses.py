"""No pause is to be felt: long curves are taken in by and by, garbage is collected when nobody presses keys."""

from __future__ import annotations

import gc
import sys

import pytest

from midstream.tui import responsiveness
from midstream.tui.responsiveness import Pauses
from midstream.tui.series_cache import SeriesCache
from midstream.tui.widgets.curve import CurveView
from tui import worlds
from tui.looking import app_over, settle


def test_rows_are_taken_in_by_and_by_over_all_series_and_the_whole_is_the_same() -> None:
    rows = worlds.rows(250)
    at_once, _ = SeriesCache().series("run", rows, "train/loss")
    book = SeriesCache(100)
    lengths = []
    for _ in range(6):
        book.begin()
        taken = [len(book.series(name, rows, "train/loss")[0]) for name in ("run", "other")]
        lengths.append((*taken, book.behind))
    assert lengths == [
        (100, 0, True), (200, 0, True), (250, 50, True), (250, 150, True), (250, 250, False), (250, 250, False),
    ]  # fmt: skip
    (first, _), (second, _) = (book.series(name, rows, "train/loss") for name in ("run", "other"))
    assert first.x == second.x == at_once.x
    assert [first.values.value(n) for n in range(250)] == [at_once.values.value(n) for n in range(250)]


async def test_a_screen_reads_on_until_all_of_a_curve_is_there() -> None:
    app = app_over(worlds.small_fleet(worlds.moved_run()))
    app.book = SeriesCache(40)
    async with app.run_test(size=(100, 30)) as pilot:
        await settle(pilot, lambda: not app.book.behind)
        await pilot.press("enter")
        curve = app.screen.query_one("#main-curve", CurveView)
        run = app.world.runs_in_order[0]
        await settle(pilot, lambda: not app.book.behind and curve.ends == (0.0, run.curve[-1]["global_step"]))


def test_garbage_waits_for_a_person_to_pause_but_not_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    now, collected = [1000.0], []
    monkeypatch.setattr(responsiveness.time, "monotonic", lambda: now[0])
    monkeypatch.setattr(responsiveness.gc, "collect", lambda: collected.append(now[0]))
    before = gc.get_threshold(), sys.getswitchinterval(), gc.get_freeze_count()
    with Pauses() as mine:
        now[0] += responsiveness.SETTLE + 1
        mine.touched()
        mine.settle()
        assert collected == [], "somebody is pressing keys"
        now[0] += responsiveness.REST + 1
        mine.settle()
        assert len(collected) == 1
        mine.settle()
        assert len(collected) == 1, "it has just been done"
        now[0] += responsiveness.OLDEST + 1
        mine.touched()
        mine.settle()
        assert len(collected) == 2, "whatever is pressed"
        assert gc.get_freeze_count() > before[2]
    assert (gc.get_threshold(), sys.getswitchinterval()) == before[:2]
    assert gc.get_freeze_count() == 0
