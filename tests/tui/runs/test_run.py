"""The run screen: the loss first, then logs, checkpoints and info."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest

from midstream.tui.app import MidstreamApp
from midstream.tui.screens.dialogs.choose import ChooseScreen
from midstream.tui.screens.run_screen import RunScreen
from midstream.tui.screens.run_text import metrics_of
from midstream.tui.screens.wizard import WizardScreen
from midstream.tui.widgets.curve import CurveView
from midstream.tui.widgets.log_view import LogView
from midstream.watch import resolved_config
from midstream.watch.loss_curve import LossCurve
from midstream_core import records
from support.tui import fleets, prepared_migrations
from support.tui.fleets import NOW
from support.tui.prepared_actions import PreparedActions, PreparedSnapshots
from support.tui.screens import app_over, line_with, screen_text, settle


async def test_run_screen_shows_loss_first_at_80x24() -> None:
    app = app_over(fleets.small_fleet(fleets.moved_run()), start_run="nano")
    async with app.run_test(size=(80, 24)) as pilot:
        await settle(pilot)
        text = screen_text(app)
        assert app.screen.query_one("#main-curve", CurveView).size.height >= 18
        for word in (
            "train/loss 2.0798",
            "step 1,204/2,000",
            "60%",
            "lr 3.0e-04",
            "12.3k",
            "step-1200-a001 3m ago",
            "▲",
        ):
            assert word in text


@pytest.mark.parametrize("size", [(80, 24), (60, 14)])
async def test_demo_says_what_to_press_and_draws_two_steps(size: tuple[int, int]) -> None:
    source = PreparedSnapshots(fleets.small_fleet(fleets.run(step=0)))
    app = MidstreamApp(source, PreparedActions(), start_run="nano", demo=True, clock=lambda: NOW)
    async with app.run_test(size=size) as pilot:
        await settle(pilot)
        assert "Demo: press m to migrate this run" in screen_text(app).splitlines()[2]
        assert "Starting on small: doing its first step." in screen_text(app)
        source.set(fleets.small_fleet(fleets.run(step=2)))
        await settle(pilot, lambda: "step 2/" in screen_text(app))
        assert "Starting on" not in screen_text(app)
        drawn = {character for character in screen_text(app) if "\u2801" <= character <= "\u28ff"}
        assert drawn, "the curve has two points"
        await pilot.press("m")
        await settle(pilot)
        assert isinstance(app.screen, WizardScreen)


async def test_run_screen_appends_new_steps() -> None:
    app = app_over(fleets.small_fleet(fleets.run(step=50)), start_run="nano")
    assert isinstance(app.source, PreparedSnapshots)
    async with app.run_test(size=(80, 24)) as pilot:
        await settle(pilot)
        app.source.set(fleets.small_fleet(fleets.run(step=80)))
        await settle(pilot, lambda: "step 80/" in screen_text(app))
        assert f"{fleets.rows(80)[-1]['train/loss']:.4f}" in screen_text(app)


async def test_run_screen_follows_a_migrated_run() -> None:
    app = app_over(fleets.small_fleet(), start_run="nano")
    assert isinstance(app.source, PreparedSnapshots)
    async with app.run_test(size=(80, 24)) as pilot:
        await settle(pilot)
        assert "small 2×cpu" in screen_text(app)
        app.source.set(prepared_migrations.moved_fleet())
        await settle(pilot, lambda: "● training  large 4×cpu" in screen_text(app))


async def test_run_screen_shows_absent_single_and_nan_steps() -> None:
    for curve, word in (
        ([], "Starting on small: compiling."),
        (fleets.rows(1), "train/loss 5."),
        ([dict(row, **{"train/loss": math.nan}) for row in fleets.rows(20)], "nan"),
    ):
        run = fleets.run(state=records.COMPILING, step=len(curve), curve=curve)
        app = app_over(fleets.small_fleet(run), start_run="nano")
        async with app.run_test(size=(80, 24)) as pilot:
            await settle(pilot)
            assert word in screen_text(app)


async def test_run_that_was_started_says_what_it_does_and_since_when() -> None:
    ended = records.ProcessExit(0, 1, NOW - 3, message="exit code 1: OSError: disk is full")
    begins = fleets.run("new", state=records.COMPILING, step=0, curve=())
    assert begins.lineage is not None
    compiling = fleets.labelled(begins, 24 / 3600)
    just_started = replace(begins, status=None, lineage=None)
    failed = replace(begins, running=False, status=None, ended_without_status=True, exit=ended)
    app = app_over(fleets.small_fleet())
    assert isinstance(app.source, PreparedSnapshots)
    async with app.run_test(size=(80, 24)) as pilot:
        await settle(pilot)
        app.open_run("new", started=NOW - 30)
        await settle(pilot, lambda: "Its host has not reported it yet." in screen_text(app))
        assert "new was started 30s ago." in screen_text(app)
        for run, words in (
            (just_started, ("Starting on small for 30s: its process has not reported yet.", "starting for 30s  small")),
            (compiling, ("Starting on small for 24s: compiling.", "compiling for 24s")),
            (
                failed,
                (
                    "lost before its first step (exit code 1",
                    "\n exit code 1: OSError: disk is full  loss",
                    "R starts it again.",
                ),
            ),
        ):
            app.source.set(fleets.small_fleet(run))
            await settle(pilot, lambda words=words: all(word in screen_text(app) for word in words))


async def test_run_screen_of_unknown_run_shows_a_message() -> None:
    app = app_over(fleets.small_fleet(), start_run="nonesuch")
    async with app.run_test(size=(80, 24)) as pilot:
        await settle(pilot)
        assert "no host has a run 'nonesuch'" in screen_text(app)
        await pilot.press("m", "S", "right_square_bracket", "2", "3", "4")
        await settle(pilot)
        assert isinstance(app.screen, RunScreen)


async def test_run_screen_of_unreachable_host_keeps_curve() -> None:
    unreachable = fleets.unreachable(fleets.run(host="gpu2"))
    app = app_over(fleets.snapshot([fleets.host("gpu2", "stale")], [unreachable]), start_run="nano")
    async with app.run_test(size=(80, 24)) as pilot:
        await settle(pilot)
        assert "! unreachable, last report 3m ago" in screen_text(app)
        assert "train/loss 2." in screen_text(app)


async def test_run_screen_gives_reason_of_lost_and_failed_runs() -> None:
    lost = fleets.run(running=False)
    failed = fleets.run(state=records.FAILED, running=False)
    assert failed.status is not None
    failed = replace(failed, status=replace(failed.status, message="loss is not finite at step 77"))
    for run, word in ((lost, "exited without a message"), (failed, "loss is not finite")):
        app = app_over(fleets.small_fleet(run), start_run="nano")
        async with app.run_test(size=(160, 45)) as pilot:
            await settle(pilot)
            assert word in screen_text(app)


async def test_run_log_follows_until_scrolled_and_again_with_f() -> None:
    app = app_over(fleets.small_fleet(fleets.run(step=60)), start_run="nano")
    assert isinstance(app.source, PreparedSnapshots)
    async with app.run_test(size=(80, 24)) as pilot:
        await pilot.press("2")
        await settle(pilot)
        assert "step 59 loss" in screen_text(app)
        app.source.set(fleets.small_fleet(fleets.run(step=100)))
        await settle(pilot, lambda: "step 99 loss" in screen_text(app))
        await pilot.press("k", "k", "pageup")
        await settle(pilot)
        assert "step 99 loss" not in screen_text(app)
        app.source.set(fleets.small_fleet(fleets.run(step=102)))
        await settle(pilot, lambda: "step 102/" in screen_text(app))
        assert "step 101 loss" not in screen_text(app)
        assert "Logs paused" in screen_text(app)
        await pilot.press("f")
        await settle(pilot, lambda: "step 101 loss" in screen_text(app))


async def test_run_log_shows_no_control_sequences() -> None:
    run = fleets.run(log=("\x1b[31mred\x1b[0m alert\x07", "10%\r20%\r30% done\n", "tab\there"))
    app = app_over(fleets.small_fleet(run), start_run="nano")
    async with app.run_test(size=(80, 24)) as pilot:
        await pilot.press("2")
        await settle(pilot)
        assert app.screen.query_one(LogView).lines == ("red alert\\x07", "30% done", "tab here")


async def test_run_checkpoints_show_their_status() -> None:
    run = fleets.run(
        checkpoints=(
            fleets.checkpoint(400),
            fleets.checkpoint(800, pinned=True),
            fleets.checkpoint(900, accepted=False),
            fleets.checkpoint(1000, complete=False, root_digest=""),
        )
    )
    app = app_over(fleets.small_fleet(run), start_run="nano")
    async with app.run_test(size=(80, 24)) as pilot:
        await pilot.press("3")
        await settle(pilot)
        lines = {line[3:17].strip(): line for line in screen_text(app).splitlines() if "step-" in line}
        assert list(lines)[:4] == ["step-1000-a001", "step-900-a001", "step-800-a001", "step-400-a001"]
        assert "◐ partial" in lines["step-1000-a001"]
        assert "✗ does not count" in lines["step-900-a001"]
        assert "pinned" in lines["step-800-a001"]
        assert "✓ complete" in lines["step-400-a001"]
        assert "3f9a1c52e07b" in lines["step-400-a001"]
        assert "14.2 MB" in lines["step-400-a001"]


async def test_run_info_shows_lineage_fence_and_copies() -> None:
    app = app_over(prepared_migrations.moved_fleet(), start_run="nano")
    async with app.run_test(size=(100, 45)) as pilot:
        await pilot.press("4")
        await settle(pilot)
        text = screen_text(app)
        assert "attempt 1  small 2×cpu  steps 0 to 1,204  fresh" in text
        assert "attempt 2  large 4×cpu  steps 1,204 to now  from step-1204-a001" in text
        assert "2, owner large" in text
        assert "ownership 1  stopped" in text


async def test_run_screen_brackets_cycle_metrics_and_z_zooms() -> None:
    app = app_over(fleets.small_fleet(), start_run="nano")
    async with app.run_test(size=(80, 24)) as pilot:
        await pilot.press("right_square_bracket")
        await settle(pilot)
        assert "grad/norm/total" in screen_text(app)
        await pilot.press("left_square_bracket", "left_square_bracket")
        await settle(pilot)
        assert "throughput/duration" in screen_text(app)
        await pilot.press("z")
        await settle(pilot)
        assert "last 50%" in screen_text(app)


async def test_run_small_multiples_enlarge_on_click() -> None:
    app = app_over(fleets.small_fleet(fleets.moved_run()), start_run="nano")
    async with app.run_test(size=(160, 45)) as pilot:
        await settle(pilot)
        tiles = [tile for tile in app.screen.query(CurveView) if tile.compact and tile.display]
        assert [tile.metric for tile in tiles][:2] == ["grad/norm/total", "optim/learning_rate"]
        await pilot.click(tiles[0])
        await settle(pilot)
        assert app.screen.query_one("#main-curve", CurveView).metric == "grad/norm/total"
        assert "train/loss" in [tile.metric for tile in tiles]
        await pilot.press("t")
        await settle(pilot)
        assert app.screen.query_one("#main-curve", CurveView).size.width == 160


async def test_run_screen_overlays_and_removes_another_run() -> None:
    other = fleets.run("other", curve=fleets.rows(900, seed=3))
    app = app_over(fleets.small_fleet(fleets.run(), other), start_run="nano")
    async with app.run_test(size=(80, 24)) as pilot:
        await settle(pilot)
        for times in (1, 0):
            await pilot.press("c")
            await settle(pilot)
            assert isinstance(app.screen, ChooseScreen)
            await pilot.press("enter")
            await settle(pilot)
            assert screen_text(app).splitlines()[2].count("── other") == times


async def test_run_screen_keeps_drawing_mode_for_next_run() -> None:
    app = app_over(fleets.small_fleet(), start_run="nano")
    async with app.run_test(size=(80, 24)) as pilot:
        await pilot.press("v", "s", "x")
        await settle(pilot)
        title = screen_text(app).splitlines()[2]
        assert "log smoother" in title
        await pilot.press("escape", "enter")
        await settle(pilot)
        assert "log smoother" in screen_text(app).splitlines()[2]
        assert app.saved_layout.axis == "tokens"


async def test_run_screen_esc_removes_crosshair_before_leaving() -> None:
    app = app_over(fleets.small_fleet(), start_run="nano")
    async with app.run_test(size=(80, 24)) as pilot:
        await settle(pilot)
        await pilot.press("left", "left")
        await settle(pilot)
        assert "step 1,1" in screen_text(app).splitlines()[2]
        await pilot.press("escape")
        await settle(pilot)
        assert isinstance(app.screen, RunScreen)
        assert "step 1,1" not in screen_text(app).splitlines()[2]


async def test_run_screen_picks_metric_from_list() -> None:
    app = app_over(fleets.small_fleet(), start_run="nano")
    async with app.run_test(size=(80, 24)) as pilot:
        await settle(pilot)
        await pilot.press("p", "G", "enter")
        await settle(pilot)
        assert "throughput/duration" in screen_text(app).splitlines()[2]


async def test_run_checkpoint_verification_names_damage() -> None:
    actions = PreparedActions()
    app = app_over(fleets.small_fleet(), actions, start_run="nano")
    async with app.run_test(size=(120, 30)) as pilot:
        await pilot.press("3", "V")
        await settle(pilot, lambda: "✓ verified" in screen_text(app))
        actions.problems = ("params/wte/c/0: sha256 differs",)
        await pilot.press("j", "V")
        await settle(pilot, lambda: "✗ damaged" in screen_text(app))
        assert "params/wte/c/0: sha256 differs" in screen_text(app)
        assert actions.calls == [("verify", "step-1200-a001"), ("verify", "step-1000-a001")]


async def test_run_screen_compares_two_checkpoints() -> None:
    actions = PreparedActions()
    app = app_over(fleets.small_fleet(), actions, start_run="nano")
    async with app.run_test(size=(120, 30)) as pilot:
        await pilot.press("3", "d")
        await settle(pilot)
        await pilot.press("enter")
        await settle(pilot, lambda: "3 of 64 chunks differ" in screen_text(app))
        assert actions.calls == [("compare", ("step-1000-a001", "step-1200-a001"))]
        await pilot.press("escape")
        await settle(pilot)
        assert "3 of 64" not in screen_text(app)


async def test_run_screen_compares_configurations_of_attempts() -> None:
    app = app_over(prepared_migrations.moved_fleet(), start_run="nano")
    async with app.run_test(size=(100, 45)) as pilot:
        await pilot.press("4", "d")
        await settle(pilot, lambda: "~ trainer.per_device_parallelism 16 → 8" in screen_text(app))
        assert "seed" not in screen_text(app)


def test_configuration_diff_names_fields() -> None:
    found = resolved_config.changes("{a: {b: 1, c: 2}, extra: true}", "{a: {b: 1, c: 3}, new: []}")
    assert [resolved_config.line(change) for change in found] == [
        "~ a.c 2 -> 3",
        "- extra True",
        "+ new []",
    ]


def test_configuration_is_read_from_log_of_attempt() -> None:
    log = "2026-11-21T10:00:00Z I resolved configuration:\nseed: 1\ntrainer:\n  id: x\n2026-11-21T10:00:01Z I begins\n"
    assert resolved_config.parse_log(log) == "seed: 1\ntrainer:\n  id: x"
    assert resolved_config.parse_log("2026-11-21T10:00:00Z I begins") == ""


async def test_run_info_shows_device_gauges() -> None:
    run = fleets.run(host="gpu2", devices=8)
    app = app_over(fleets.snapshot([fleets.host("gpu2", accelerators=8, kind="NVIDIA A100-SXM4-80GB")], [run]))
    async with app.run_test(size=(120, 60)) as pilot:
        await pilot.press("enter", "4")
        await settle(pilot)
        assert screen_text(app).count("93%  61.0 GB of 80.0 GB") == 8


def test_run_metric_names_begin_with_loss() -> None:
    names = metrics_of(fleets.run())
    assert names[0] == "train/loss"
    assert not {"global_step", "time", "attempt"} & set(names)
    assert metrics_of(fleets.run(curve=[])) == ["train/loss"]


async def test_run_screen_m_opens_wizard() -> None:
    app = app_over(fleets.small_fleet(), start_run="nano")
    async with app.run_test(size=(80, 24)) as pilot:
        await pilot.press("m")
        await settle(pilot)
        assert isinstance(app.screen, WizardScreen)


async def test_run_screen_fills_resized_terminal() -> None:
    app = app_over(fleets.small_fleet(fleets.moved_run()), start_run="nano")
    async with app.run_test(size=(80, 24)) as pilot:
        await settle(pilot)
        for size in ((160, 45), (40, 12), (80, 24)):
            await pilot.resize_terminal(*size)
            await settle(pilot)
            assert "train/loss" in screen_text(app)


async def test_given_up_steps_are_drawn_apart_from_those_that_count() -> None:
    curve = LossCurve()
    curve.set_records(None, records.first_fence("small").started(None).started(5))
    for attempt, losses in ((1, [1.0] * 5 + [100.0] * 35), (2, [2.0] * 5)):
        first = 5 * (attempt - 1)
        rows = [{"global_step": first + index, "train/loss": loss} for index, loss in enumerate(losses)]
        curve.extend(attempt, [{**row, records.START_NUMBER: attempt} for row in rows])
    app = app_over(fleets.small_fleet(fleets.run(curve=curve.rows())))
    async with app.run_test(size=(100, 30)) as pilot:
        await settle(pilot)
        await pilot.press("enter")
        await settle(pilot, lambda: isinstance(app.screen, RunScreen) and bool(app.screen.main_curve.drawn))
        assert isinstance(app.screen, RunScreen)
        given_up, counted = app.screen.main_curve.drawn
        assert (given_up.given_up, counted.given_up) == (True, False)
        assert (given_up.series.x[0], given_up.series.x[-1], counted.series.x[-1]) == (5.0, 39.0, 9.0)
        assert "train/loss 2.0" in screen_text(app), "the newest value is of a step that counts"
        assert "100" not in line_with(screen_text(app), "┤"), "the scale is that of the steps that count"
