"""Responsiveness: long curves are read in slices, garbage is collected while no keys arrive."""

from __future__ import annotations

import gc
import subprocess
import sys

import pytest

from midstream.tui import pause_limiter
from midstream.tui.pause_limiter import PauseLimiter
from midstream.tui.screens import preload
from midstream.tui.state.series_cache import SeriesCache
from midstream.tui.widgets.curve import CurveView
from support.module_time import replace_time
from support.tui import fleets
from support.tui.screens import app_over, settle


def test_series_cache_in_slices_equals_one_update() -> None:
    rows = fleets.rows(250)
    complete, _ = SeriesCache().series("run", rows, "train/loss")
    cache = SeriesCache(100)
    lengths = []
    for _ in range(6):
        cache.begin()
        read = [len(cache.series(name, rows, "train/loss")[0]) for name in ("run", "other")]
        lengths.append((*read, cache.behind))
    assert lengths == [
        (100, 0, True), (200, 0, True), (250, 50, True), (250, 150, True), (250, 250, False), (250, 250, False),
    ]  # fmt: skip
    (first, _), (second, _) = (cache.series(name, rows, "train/loss") for name in ("run", "other"))
    assert first.x == second.x == complete.x
    assert [first.values.value(n) for n in range(250)] == [complete.values.value(n) for n in range(250)]


async def test_run_screen_reads_until_the_curve_is_complete() -> None:
    app = app_over(fleets.small_fleet(fleets.moved_run()))
    app.series_cache = SeriesCache(40)
    async with app.run_test(size=(100, 30)) as pilot:
        await settle(pilot, lambda: not app.series_cache.behind)
        await pilot.press("enter")
        curve = app.screen.query_one("#main-curve", CurveView)
        run = app.screen_state.current_runs[0]
        await settle(pilot, lambda: not app.series_cache.behind and curve.ends == (0.0, run.curve[-1]["global_step"]))


def test_garbage_collection_waits_for_idle_keys_up_to_a_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    now, collected = [1000.0], list[tuple[float, int]]()
    replace_time(monkeypatch, pause_limiter, monotonic=lambda: now[0])
    counts = [0, 0, 0]
    monkeypatch.setattr(pause_limiter.gc, "collect", lambda generation=2: collected.append((now[0], generation)))
    monkeypatch.setattr(pause_limiter.gc, "get_count", lambda: tuple(counts))
    before = gc.get_threshold(), sys.getswitchinterval(), gc.get_freeze_count()
    with PauseLimiter() as limiter:
        now[0] += pause_limiter.SETTLE_INTERVAL + 1
        limiter.touched()
        limiter.settle()
        assert collected == [], "keys are being pressed"
        now[0] += pause_limiter.IDLE_TIME + 1
        limiter.settle()
        assert len(collected) == 1
        limiter.settle()
        assert len(collected) == 1, "the last collection was just now"
        now[0] += pause_limiter.MAX_INTERVAL + 1
        limiter.touched()
        limiter.settle()
        assert len(collected) == 2, "the limit has passed"
        assert gc.get_freeze_count() > before[2]
        counts[1] = pause_limiter.THRESHOLDS[1] - 1
        limiter.settle()
        assert len(collected) == 2, "a key was pressed just now"
        assert not limiter.between_keys
        now[0] += 2 * pause_limiter.BETWEEN_KEYS
        limiter.settle()
        assert collected[2:] == [(now[0], 1)], "between two keys, only young objects"
    assert (gc.get_threshold(), sys.getswitchinterval()) == before[:2]
    assert gc.get_freeze_count() == 0


def test_screens_that_are_loaded_are_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    preload.load()
    replace_time(monkeypatch, preload, sleep=lambda _: pytest.fail("a pause without an import"))
    preload.load()


def test_end_of_the_process_collects_nothing() -> None:
    program = """
import atexit, gc
from midstream.tui.pause_limiter import PauseLimiter
atexit.register(lambda: print(gc.get_freeze_count()))
with PauseLimiter():
    kept = [[number] for number in range(30000)]
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert int(done.stdout) > 30000, "the interpreter's last collection visits what is not frozen"


def test_many_new_objects_are_frozen_and_collected_later(monkeypatch: pytest.MonkeyPatch) -> None:
    now, collected = [1000.0], list[float]()
    replace_time(monkeypatch, pause_limiter, monotonic=lambda: now[0])
    monkeypatch.setattr(pause_limiter.gc, "collect", lambda _=2: collected.append(now[0]))
    monkeypatch.setattr(pause_limiter.gc, "get_count", lambda: (0, 0, pause_limiter.MAX_SECOND + 1))
    with PauseLimiter() as limiter:
        gc.unfreeze()  # what earlier tests have frozen would be freed in between
        frozen, kept = gc.get_freeze_count(), [[number] for number in range(1000)]
        now[0] += pause_limiter.SETTLE_INTERVAL + 1
        limiter.settle()
        assert collected == []
        assert gc.get_freeze_count() - frozen >= len(kept)
        now[0] += pause_limiter.UNFREEZE_INTERVAL
        limiter.touched()
        now[0] += pause_limiter.IDLE_TIME
        limiter.settle()
        assert collected == [], "too short a pause"
        now[0] += pause_limiter.UNFREEZE_IDLE_TIME + pause_limiter.SETTLE_INTERVAL
        limiter.settle()
        assert len(collected) == 1
