"""The run screen: the loss first; logs, checkpoints and info behind it."""

from __future__ import annotations

import math
from dataclasses import replace

from midstream.tui.screens.dialogs.choose import ChooseScreen
from midstream.tui.screens.migration.wizard import WizardScreen
from midstream.tui.screens.run.run_screen import RunScreen
from midstream.tui.screens.run.run_text import metrics_of
from midstream.tui.widgets.curve import CurveView
from midstream.tui.widgets.log_view import LogView
from midstream.watch import resolved_config
from midstream_engine import records
from tui import worlds
from tui.looking import app_over, screen_text, settle
from tui.worlds import Answers, Values


async def test_the_loss_comes_first_at_80_by_24() -> None:
    app = app_over(worlds.small_fleet(worlds.moved_run()), start_run="nano")
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


async def test_new_steps_appear_by_themselves() -> None:
    app = app_over(worlds.small_fleet(worlds.run(step=50)), start_run="nano")
    assert isinstance(app.source, Values)
    async with app.run_test(size=(80, 24)) as pilot:
        await settle(pilot)
        app.source.set(worlds.small_fleet(worlds.run(step=80)))
        await settle(pilot, lambda: "step 80/" in screen_text(app))
        assert f"{worlds.rows(80)[-1]['train/loss']:.4f}" in screen_text(app)


async def test_the_screen_follows_a_run_that_moved() -> None:
    app = app_over(worlds.small_fleet(), start_run="nano")
    assert isinstance(app.source, Values)
    async with app.run_test(size=(80, 24)) as pilot:
        await settle(pilot)
        assert "small 2×cpu" in screen_text(app)
        app.source.set(worlds.moved_fleet())
        await settle(pilot, lambda: "● training  large 4×cpu" in screen_text(app))


async def test_no_steps_one_step_and_no_numbers_are_shown_as_what_they_are() -> None:
    for curve, word in (
        ([], "no steps yet (compiling)"),
        (worlds.rows(1), "train/loss 5."),
        ([dict(row, **{"train/loss": math.nan}) for row in worlds.rows(20)], "nan"),
    ):
        run = worlds.run(state=records.COMPILING, step=len(curve), curve=curve)
        app = app_over(worlds.small_fleet(run), start_run="nano")
        async with app.run_test(size=(80, 24)) as pilot:
            await settle(pilot)
            assert word in screen_text(app)


async def test_a_run_that_nobody_knows_says_so() -> None:
    app = app_over(worlds.small_fleet(), start_run="nonesuch")
    async with app.run_test(size=(80, 24)) as pilot:
        await settle(pilot)
        assert "no host knows a run 'nonesuch'" in screen_text(app)
        await pilot.press("m", "S", "right_square_bracket", "2", "3", "4")
        await settle(pilot)
        assert isinstance(app.screen, RunScreen)


async def test_silence_is_said_and_the_curve_stays() -> None:
    silent = worlds.silent(worlds.run(host="gpu2"))
    app = app_over(worlds.snapshot([worlds.host("gpu2", "stale")], [silent]), start_run="nano")
    async with app.run_test(size=(80, 24)) as pilot:
        await settle(pilot)
        assert "! gpu2 silent, last word 3m ago" in screen_text(app)
        assert "train/loss 2." in screen_text(app)


async def test_a_lost_process_and_a_failure_give_their_reason() -> None:
    lost = worlds.run(alive=False)
    failed = worlds.run(state=records.FAILED, alive=False)
    assert failed.status is not None
    failed = replace(failed, status=replace(failed.status, message="loss is not finite at step 77"))
    for run, word in ((lost, "its process is gone without a word"), (failed, "loss is not finite")):
        app = app_over(worlds.small_fleet(run), start_run="nano")
        async with app.run_test(size=(160, 45)) as pilot:
            await settle(pilot)
            assert word in screen_text(app)


async def test_the_log_follows_until_one_scrolls_and_again_with_f() -> None:
    app = app_over(worlds.small_fleet(worlds.run(step=60)), start_run="nano")
    assert isinstance(app.source, Values)
    async with app.run_test(size=(80, 24)) as pilot:
        await pilot.press("2")
        await settle(pilot)
        assert "step 59 loss" in screen_text(app)
        app.source.set(worlds.small_fleet(worlds.run(step=100)))
        await settle(pilot, lambda: "step 99 loss" in screen_text(app))
        await pilot.press("k", "k", "pageup")
        await settle(pilot)
        assert "step 99 loss" not in screen_text(app)
        app.source.set(worlds.small_fleet(worlds.run(step=102)))
        await settle(pilot, lambda: "step 102/" in screen_text(app))
        assert "step 101 loss" not in screen_text(app)
        assert "Logs held" in screen_text(app)
        await pilot.press("f")
        await settle(pilot, lambda: "step 101 loss" in screen_text(app))


async def test_the_log_shows_no_control_sequences() -> None:
    run = worlds.run(log=("\x1b[31mred\x1b[0m alert\x07", "10%\r20%\r30% done\n", "tab\there"))
    app = app_over(worlds.small_fleet(run), start_run="nano")
    async with app.run_test(size=(80, 24)) as pilot:
        await pilot.press("2")
        await settle(pilot)
        assert app.screen.query_one(LogView).lines == ("red alert\\x07", "30% done", "tab here")


async def test_checkpoints_show_what_they_are_worth() -> None:
    run = worlds.run(
        checkpoints=(
            worlds.checkpoint(400),
            worlds.checkpoint(800, pinned=True),
            worlds.checkpoint(900, accepted=False),
            worlds.checkpoint(1000, complete=False, root_digest=""),
        )
    )
    app = app_over(worlds.small_fleet(run), start_run="nano")
    async with app.run_test(size=(80, 24)) as pilot:
        await pilot.press("3")
        await settle(pilot)
        lines = {line[3:17].strip(): line for line in screen_text(app).splitlines() if "step-" in line}
        assert list(lines)[:4] == ["step-1000-a001", "step-900-a001", "step-800-a001", "step-400-a001"]
        assert "◐ incomplete" in lines["step-1000-a001"]
        assert "✗ fenced off" in lines["step-900-a001"]
        assert "pinned" in lines["step-800-a001"]
        assert "✓ complete" in lines["step-400-a001"]
        assert "3f9a1c52e07b" in lines["step-400-a001"]
        assert "14.2 MB" in lines["step-400-a001"]


async def test_info_tells_lineage_fence_and_copies() -> None:
    app = app_over(worlds.moved_fleet(), start_run="nano")
    async with app.run_test(size=(100, 45)) as pilot:
        await pilot.press("4")
        await settle(pilot)
        text = screen_text(app)
        assert "attempt 1  small 2×cpu  steps 0 to 1,204  fresh" in text
        assert "attempt 2  large 4×cpu  steps 1,204 to now  from step-1204-a001" in text
        assert "2, held by large" in text
        assert "epoch 1  stopped" in text


async def test_brackets_go_through_the_metrics_and_z_through_the_tails() -> None:
    app = app_over(worlds.small_fleet(), start_run="nano")
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


async def test_small_multiples_stand_beside_the_curve_and_a_click_enlarges_one() -> None:
    app = app_over(worlds.small_fleet(worlds.moved_run()), start_run="nano")
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


async def test_another_run_is_laid_over_and_taken_away() -> None:
    other = worlds.run("other", curve=worlds.rows(900, seed=3))
    app = app_over(worlds.small_fleet(worlds.run(), other), start_run="nano")
    async with app.run_test(size=(80, 24)) as pilot:
        await settle(pilot)
        for times in (1, 0):
            await pilot.press("c")
            await settle(pilot)
            assert isinstance(app.screen, ChooseScreen)
            await pilot.press("enter")
            await settle(pilot)
            assert screen_text(app).splitlines()[2].count("── other") == times


async def test_the_way_of_drawing_is_kept_for_the_next_run() -> None:
    app = app_over(worlds.small_fleet(), start_run="nano")
    async with app.run_test(size=(80, 24)) as pilot:
        await pilot.press("v", "s", "x")
        await settle(pilot)
        title = screen_text(app).splitlines()[2]
        assert "log smoother" in title
        await pilot.press("escape", "enter")
        await settle(pilot)
        assert "log smoother" in screen_text(app).splitlines()[2]
        assert app.kept.axis == "tokens"


async def test_esc_takes_the_crosshair_away_before_it_leaves() -> None:
    app = app_over(worlds.small_fleet(), start_run="nano")
    async with app.run_test(size=(80, 24)) as pilot:
        await settle(pilot)
        await pilot.press("left", "left")
        await settle(pilot)
        assert "step 1,1" in screen_text(app).splitlines()[2]
        await pilot.press("escape")
        await settle(pilot)
        assert isinstance(app.screen, RunScreen)
        assert "step 1,1" not in screen_text(app).splitlines()[2]


async def test_a_metric_is_picked_from_the_list() -> None:
    app = app_over(worlds.small_fleet(), start_run="nano")
    async with app.run_test(size=(80, 24)) as pilot:
        await settle(pilot)
        await pilot.press("p", "G", "enter")
        await settle(pilot)
        assert "throughput/duration" in screen_text(app).splitlines()[2]


async def test_a_checkpoint_is_verified_and_the_damage_named() -> None:
    answers = Answers()
    app = app_over(worlds.small_fleet(), answers, start_run="nano")
    async with app.run_test(size=(120, 30)) as pilot:
        await pilot.press("3", "V")
        await settle(pilot, lambda: "✓ whole" in screen_text(app))
        answers.problems = ("params/wte/c/0: sha256 differs",)
        await pilot.press("j", "V")
        await settle(pilot, lambda: "✗ damaged" in screen_text(app))
        assert "params/wte/c/0: sha256 differs" in screen_text(app)
        assert answers.asked == [("verify", "step-1200-a001"), ("verify", "step-1000-a001")]


async def test_two_checkpoints_are_compared() -> None:
    answers = Answers()
    app = app_over(worlds.small_fleet(), answers, start_run="nano")
    async with app.run_test(size=(120, 30)) as pilot:
        await pilot.press("3", "d")
        await settle(pilot)
        await pilot.press("enter")
        await settle(pilot, lambda: "3 of 64 cells differ" in screen_text(app))
        assert answers.asked == [("compare", ("step-1000-a001", "step-1200-a001"))]
        await pilot.press("escape")
        await settle(pilot)
        assert "3 of 64" not in screen_text(app)


async def test_the_configurations_of_two_attempts_are_compared() -> None:
    app = app_over(worlds.moved_fleet(), start_run="nano")
    async with app.run_test(size=(100, 45)) as pilot:
        await pilot.press("4", "d")
        await settle(pilot, lambda: "~ trainer.per_device_parallelism 16 → 8" in screen_text(app))
        assert "seed" not in screen_text(app)


def test_changes_of_a_configuration_are_named_by_their_fields() -> None:
    found = resolved_config.changes("{a: {b: 1, c: 2}, gone: true}", "{a: {b: 1, c: 3}, new: []}")
    assert [resolved_config.line(change) for change in found] == [
        "~ a.c 2 -> 3",
        "- gone True",
        "+ new []",
    ]


def test_the_configuration_of_an_attempt_stands_in_its_log() -> None:
    log = "2026-11-21T10:00:00Z I resolved configuration:\nseed: 1\ntrainer:\n  id: x\n2026-11-21T10:00:01Z I begins\n"
    assert resolved_config.told(log) == "seed: 1\ntrainer:\n  id: x"
    assert resolved_config.told("2026-11-21T10:00:00Z I begins") == ""


async def test_gauges_of_the_devices_that_it_runs_on() -> None:
    run = worlds.run(host="gpu2", devices=8)
    app = app_over(worlds.snapshot([worlds.host("gpu2", accelerators=8, kind="NVIDIA A100-SXM4-80GB")], [run]))
    async with app.run_test(size=(120, 60)) as pilot:
        await pilot.press("enter", "4")
        await settle(pilot)
        assert screen_text(app).count("93%  61.0 GB of 80.0 GB") == 8


def test_metrics_begin_with_the_loss() -> None:
    names = metrics_of(worlds.run())
    assert names[0] == "train/loss"
    assert not {"global_step", "time", "attempt"} & set(names)
    assert metrics_of(worlds.run(curve=[])) == ["train/loss"]


async def test_m_opens_the_wizard() -> None:
    app = app_over(worlds.small_fleet(), start_run="nano")
    async with app.run_test(size=(80, 24)) as pilot:
        await pilot.press("m")
        await settle(pilot)
        assert isinstance(app.screen, WizardScreen)


async def test_a_terminal_that_is_resized_is_filled_again() -> None:
    app = app_over(worlds.small_fleet(worlds.moved_run()), start_run="nano")
    async with app.run_test(size=(80, 24)) as pilot:
        await settle(pilot)
        for size in ((160, 45), (40, 12), (80, 24)):
            await pilot.resize_terminal(*size)
            await settle(pilot)
            assert "train/loss" in screen_text(app)
