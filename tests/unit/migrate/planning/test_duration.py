"""Expected and measured duration of a migration, by stage."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from midstream.migrate import stages
from midstream.migrate.journal.facts import Facts
from midstream.migrate.journal.journal import Journal, read, read_events
from midstream.migrate.journal.plan import MATMUL_PRECISION, Change, Plan
from midstream.migrate.journal.stage_times import (
    Remaining,
    StageTimes,
    estimates,
    remaining,
    report,
    report_lines,
    stage_times,
)
from midstream.migrate.modes.assumptions import ENGINE_START_SECONDS
from midstream.migrate.modes.cold import Cold
from midstream.migrate.modes.live import Live
from midstream.migrate.modes.mode import Mode
from midstream.migrate.modes.warm import Warm
from midstream.migrate.modes.work import Rates, Work
from midstream.migrate.planning import downtime_estimate, plan_estimate
from midstream.migrate.planning.measured_rates import PastMigration, rates_between
from midstream.migrate.planning.plan_description import describe
from midstream.migrate.planning.progress import Pace, pace_of
from midstream.migrate.steps import stage_clock
from midstream.migrate.steps.stage_clock import StageClock
from midstream.tui.screens import plan_text
from midstream.tui.style.glyphs import UNICODE
from support.migrations.sample_plan import PLAN, changed

SIZE = 400_000_000
WORK = Work(
    checkpoint_bytes=SIZE, data_bytes=(SIZE,), copies_checkpoint=False, shared_store=False,
    environment_ready=True, steps_compared=0, healthy_steps=100, step=0.5, compile=40.0,
)  # fmt: skip
GROUP = {"further_hosts": 3, "data_bytes": (SIZE, SIZE, SIZE, SIZE)}
EXPECTED = {"install": 10.0, "compile": None, "downtime": 5.0, "certify": 1.0, "healthy steps": 50.0}


def test_every_stage_of_a_warm_migration_is_estimated() -> None:
    found = plan_estimate.durations(Warm(), WORK, 4.0, Rates(copy=100e6, step=0.25))
    assert found == {
        "install": plan_estimate.READY_INSTALL_SECONDS,
        "data": 4.0,
        "checkpoint": 4.0,
        "start": ENGINE_START_SECONDS,
        "compile": 40.0,
        "rehearse": 1.0 + 3 * 0.25,
        "downtime": 4.0,
        "certify": 1.0,
        "healthy steps": 25.0,
    }
    assert list(found) == [name for name in stages.STAGES if name in found]


def test_stages_follow_the_mode() -> None:
    cold = plan_estimate.durations(Cold(), WORK, 4.0, Rates())
    assert list(cold) == ["install", "data", "downtime", "certify", "healthy steps"]
    chosen = plan_estimate.durations(Cold(), replace(WORK, copies_checkpoint=True), 4.0, Rates())
    assert "checkpoint" in chosen
    live = plan_estimate.durations(Live(), replace(WORK, replayed_steps=100), 0.0, Rates(step=0.25))
    assert live["replay"] == 50.0, "the replica gains two steps a second on the source"
    too_slow = plan_estimate.durations(Live(), replace(WORK, replayed_steps=100), 0.0, Rates(step=0.6))
    assert too_slow["replay"] is None


ALWAYS = ["install", "data", "downtime", "certify", "healthy steps"]
STANDBY = ["install", "data", "checkpoint", "start", "compile", "rehearse", *ALWAYS[2:]]


@pytest.mark.parametrize(
    ("changes", "rates", "expected"),
    [
        pytest.param(GROUP, Rates(), STANDBY, id="warm, to a group or a TPU slice of four hosts"),
        pytest.param({"mode": Cold(), **GROUP}, Rates(), ALWAYS, id="cold, to a group"),
        pytest.param({"shared_store": True}, Rates(), STANDBY, id="warm, both ends read one bucket"),
        pytest.param({"shared_store": True, **GROUP}, Rates(), STANDBY, id="a TPU slice with a bucket"),
        pytest.param({"mode": Cold(), "shared_store": True}, Rates(), ALWAYS, id="cold, both ends read one bucket"),
        pytest.param(
            {"mode": Live(), "replayed_steps": 100}, Rates(step=0.25), [*STANDBY[:6], "replay", *ALWAYS[2:]], id="live"
        ),
        pytest.param({"data_bytes": (0,)}, Rates(), STANDBY, id="the data is there, or in a bucket"),
        pytest.param({"healthy_steps": 0, "step": 0.0}, Rates(step=0.5), STANDBY, id="no healthy steps"),
    ],
)
def test_estimate_has_the_stages_that_happen_and_no_other(
    changes: dict[str, Any], rates: Rates, expected: list[str]
) -> None:
    mode: Mode = changes.get("mode", Warm())
    work = replace(WORK, **{name: value for name, value in changes.items() if name != "mode"})
    predicted = downtime_estimate.predict(
        mode, Pace(0.5, 0.5), SIZE, rates,
        copied_bytes=work.copied_bytes(rates),
    )  # fmt: skip
    known, unknown = plan_estimate.downtime_seconds(mode, work, predicted, rates)
    assert unknown == ()
    found = plan_estimate.durations(mode, work, sum(known.values()), rates)
    assert list(found) == expected
    assert stages.unknown_stages(found) == ()
    plan = changed(PLAN, mode=mode.name, checkpoint_bytes=SIZE, predicted_seconds=known, unknown=(), duration=found)
    for text in ("\n".join(describe(plan)), plan_text.describe(plan, UNICODE).plain):
        assert "unknown" not in text, text
        assert "at least" not in text, text
        assert stages.stages_text(found) in " ".join(text.split())
    for name, seconds in found.items():
        assert (f"{name} " in stages.stages_text(found)) == (seconds != 0.0), name


def test_bytes_count_once_per_host_and_never_for_a_shared_bucket() -> None:
    alone = plan_estimate.durations(Warm(), WORK, 4.0, Rates())
    group = plan_estimate.durations(Warm(), replace(WORK, **GROUP), 4.0, Rates())
    assert alone["data"] == alone["checkpoint"] == 2.0
    assert group["data"] == group["checkpoint"] == 8.0, "the first host sends them to three others"
    lacking = plan_estimate.durations(Warm(), replace(WORK, **{**GROUP, "data_bytes": (0, SIZE, 0, 0)}), 4.0, Rates())
    assert lacking["data"] == 2.0, "one of the others lacks the data"
    measured = plan_estimate.durations(Warm(), replace(WORK, **GROUP), 4.0, Rates(copy=100e6))
    assert measured["data"] == measured["checkpoint"] == 4.0, "a measured rate is that of the copies to all hosts"
    bucket = plan_estimate.durations(Warm(), replace(WORK, shared_store=True, checkpoint_bytes=0), 4.0, Rates())
    assert bucket["checkpoint"] == 0.0

    def copy_seconds(work: Work) -> float:
        copied = work.copied_bytes(Rates())
        return downtime_estimate.predict(Cold(), Pace(), SIZE, Rates(), copied_bytes=copied)["copy"]

    assert copy_seconds(WORK) == 3.0
    assert copy_seconds(replace(WORK, **GROUP)) == 9.0
    assert copy_seconds(replace(WORK, shared_store=True)) == 1.0


def test_what_nothing_has_measured_is_unknown() -> None:
    new = replace(WORK, checkpoint_bytes=0, data_bytes=None, environment_ready=False, step=0.0, compile=None)
    found = plan_estimate.durations(Warm(), new, None, Rates())
    unknown = stages.unknown_stages(found)
    assert unknown == ("install", "data", "checkpoint", "compile", "rehearse", "downtime", "healthy steps")
    assert stages.total_text(found) == f"at least 7.0s, with {', '.join(unknown)} unknown"
    assert stages.total_text({"install": None}) == "unknown"
    assert stages.total_text({"install": 60.0, "compile": 140.0}) == "about 3m20"


def test_assumed_rates_are_named() -> None:
    lines = plan_estimate.assumptions(WORK, Rates(), "lab", "pod")
    assert lines == (
        "copies at 200 MB/s: not measured between lab and pod yet",
        "0.5 s a step, as on lab: not measured on pod yet",
    )
    assert plan_estimate.assumptions(WORK, Rates(copy=1e6, step=0.1), "lab", "pod") == ()


def test_compilation_is_known_where_the_first_step_included_it() -> None:
    def curve(first: float) -> list[dict[str, Any]]:
        return [{"attempt": 1, "throughput/duration": each} for each in (first, *[0.5] * 20)]

    assert pace_of(curve(30.5)).compile_seconds() == 30.0
    assert pace_of(curve(0.6)).compile_seconds() is None
    assert pace_of([]).compile_seconds() is None
    assert pace_of(curve(0.6)).compile_seconds(22.5) == 22.5, "the engine compiles before the first step"
    assert pace_of(curve(0.6)).compile_seconds(0.1) is None, "the programs were in the cache"


def test_earlier_migrations_estimate_their_stages() -> None:
    def past(run: str, source: str, target: str, ready: bool, **measured: float) -> PastMigration:
        return PastMigration(run, source, target, "warm", SIZE, stages=measured, environment_ready=ready)

    earlier = [
        past("r", "lab", "pod", True, install=3.0, compile=90.0, rehearse=7.0),
        past("x", "other", "pod", False, install=200.0, start=11.0, compile=5.0),
        past("r", "lab", "elsewhere", False, install=999.0),
    ]
    rates = rates_between(earlier, "r", "lab", "pod", "warm", SIZE)
    ready = plan_estimate.durations(Warm(), WORK, 4.0, rates)
    assert (ready["install"], ready["start"], ready["compile"], ready["rehearse"]) == (3.0, 11.0, 90.0, 7.0)
    missing = plan_estimate.durations(Warm(), replace(WORK, environment_ready=False), 4.0, rates)
    assert missing["install"] == 200.0, "the build on the same host, also for another run"


def unsaved() -> Plan:
    """Return the plan of a run that has not saved yet."""
    work = replace(WORK, checkpoint_bytes=0)
    predicted = downtime_estimate.predict(Warm(), Pace(0.5, 0.5), 0, Rates())
    known, unknown = plan_estimate.downtime_seconds(Warm(), work, predicted, Rates())
    return changed(PLAN, checkpoint_bytes=0, predicted_seconds=known, unknown=unknown,
                   duration=plan_estimate.durations(Warm(), work, None, Rates()))  # fmt: skip


def test_changed_products_are_in_the_columns_of_the_plan() -> None:
    changes = (Change("batch", "16", "16"), Change(MATMUL_PRECISION, "highest", "default", "requested"))
    plan = replace(PLAN, shape=replace(PLAN.shape, changes=changes))
    assert "  matmul       highest → default  requested\n" in plan_text.describe(plan, UNICODE).plain
    assert "matmul     highest -> default  requested" in describe(plan)


def test_downtime_of_an_unsaved_run_is_unknown() -> None:
    plan = unsaved()
    assert plan.estimate.unknown == ("save", "copy", "restore")
    assert plan.estimate.predicted_downtime is None
    (line,) = [line for line in describe(plan) if line.startswith("downtime")]
    assert line == (
        "downtime   unknown: save, copy, restore cannot be estimated yet; known: last step 0.8s, provision 0.2s, "
        "first step 0.5s"
    )
    text = plan_text.describe(plan, UNICODE).plain
    assert "downtime     unknown  save, copy, restore cannot be estimated yet" in text
    assert Plan.from_json(plan.to_json()) == plan


def test_lines_of_a_plan_fit_its_width() -> None:
    plan = unsaved()
    assert len(stages.total_text(plan.estimate.duration)) > 57
    for width in (60, 80):
        lines = plan_text.describe(plan, UNICODE, width=width).plain.splitlines()
        assert max(map(len, lines)) <= width
        (first,) = [number for number, line in enumerate(lines) if line.startswith("  takes")]
        assert lines[first + 1].startswith(" " * plan_text.VALUE_COLUMN)


def test_remaining_time_counts_the_stage_that_runs() -> None:
    nothing = StageTimes({}, "install", 100.0)
    assert remaining(EXPECTED, nothing, 104.0) == Remaining(6.0 + 56.0, ("compile",))
    assert remaining(EXPECTED, nothing, 130.0) == Remaining(56.0, ("compile",), 20.0)
    compiling = StageTimes({"install": 12.0}, "compile", 130.0)
    assert remaining(EXPECTED, compiling, 150.0) == Remaining(56.0, ("compile",))
    last = StageTimes({"install": 12.0, "compile": 3.0, "downtime": 4.0, "certify": 1.0}, "healthy steps", 200.0)
    assert remaining(EXPECTED, last, 210.0).text() == "about 40s"
    assert remaining(EXPECTED, replace(last, share=0.25), 220.0) == Remaining(60.0, (), 0.0), "by its pace"
    assert remaining(EXPECTED, replace(last, share=0.8), 280.0) == Remaining(20.0, (), 30.0), "and when it is late"
    assert remaining(EXPECTED, compiling, 150.0).text() == "at least 56s, with compile unknown"


def test_measurements_of_the_migration_replace_its_plan() -> None:
    plan = changed(PLAN, duration=EXPECTED, healthy_steps=100)
    found = estimates(plan, Facts(predicted={"copy": 2.0, "restore": 1.5}, rehearsed_step_seconds=0.1))
    assert (found["downtime"], found["healthy steps"], found["install"]) == (3.5, 10.0, 10.0)


class StoppedTime:
    """Stand-in of the module `time`: it passes only when a test adds to `now`."""

    def __init__(self) -> None:
        self.now = 1000.0

    def time(self) -> float:
        return self.now

    def monotonic(self) -> float:
        return self.now


@pytest.fixture
def stopped_time(monkeypatch: pytest.MonkeyPatch) -> StoppedTime:
    clock = StoppedTime()
    monkeypatch.setattr(stage_clock, "time", clock)
    return clock


def test_clock_reports_what_is_left_of_a_stage_that_goes_on(tmp_path: Path, stopped_time: StoppedTime) -> None:
    journal = Journal(tmp_path / "journal.jsonl")
    clock = StageClock(changed(PLAN, duration=EXPECTED), journal)
    clock.report("prepare")  # no stage runs
    clock.begin("install", "prepare")
    clock.report("prepare")  # it has just begun
    stopped_time.now += stage_clock.REPORT_INTERVAL
    clock.report("prepare")
    clock.report("prepare")  # the last report has just been
    stopped_time.now += stage_clock.REPORT_INTERVAL
    clock.share = 0.5
    clock.report("prepare")
    journal.close()
    events = read_events(tmp_path / "journal.jsonl")
    assert [each.state for each in events] == ["started", "progress", "progress"]
    assert [each.message.removesuffix(", with compile unknown") for each in events[1:]] == [
        "install for 30s (of about 10s, 20s longer than estimated); left in all: at least 56s",
        "install for 60s, 50% done (of about 10s, 50s longer than estimated); left in all: at least 1m56",
    ]  # fmt: skip
    assert read(tmp_path / "journal.jsonl").damaged == 0
    with (tmp_path / "journal.jsonl").open("a") as file:
        file.write('{"event": "stage", "time": 1.0, "state": "done", "stage": "install", "seconds": "long"}\n')
    assert read(tmp_path / "journal.jsonl").damaged == 1


@pytest.mark.usefixtures("stopped_time")
def test_clock_journals_stages_for_later_readers(tmp_path: Path) -> None:
    plan = changed(PLAN, duration=EXPECTED)
    journal = Journal(tmp_path / "journal.jsonl")
    clock = StageClock(plan, journal)
    with clock.stage("install", "prepare"):
        pass
    clock.begin("compile", "prepare")
    clock.begin("downtime", "cutover")  # ends the one before
    clock.abandon()
    with pytest.raises(RuntimeError), clock.stage("certify", "certify"):
        raise RuntimeError
    clock.end("certify")
    journal.close()
    events = read_events(tmp_path / "journal.jsonl")
    assert [(each.detail["stage"], each.state) for each in events] == [
        ("install", "started"), ("install", "done"), ("compile", "started"), ("compile", "done"),
        ("downtime", "started"), ("certify", "started"),
    ]  # fmt: skip
    first, compiling = events[0], events[2]
    assert first.detail["estimated_seconds"] == 10.0
    assert first.detail["unknown"] == ["compile"]
    assert first.message.startswith("install (of about 10s); left in all: at least 66s, with compile unknown")
    assert compiling.message.startswith("compile (of unknown duration); left in all: at least 56s")
    times = stage_times(events)
    assert set(times.measured) == {"install", "compile"}
    assert times.current == "certify"


def test_report_has_the_estimate_beside_the_measured() -> None:
    plan = changed(PLAN, duration=EXPECTED)
    found = report(plan, StageTimes({"install": 12.0, "compile": 30.0, "downtime": 6.0}))
    assert (found["estimated_seconds"], found["measured_seconds"], found["unknown"]) == (66.0, 48.0, ["compile"])
    assert report_lines(found) == [
        "duration         estimated 66s      measured 48s (the estimate is without compile)",
        "  install        estimated 10s      measured 12s",
        "  compile        estimated unknown  measured 30s",
        "  takeover       estimated 5.0s     measured 6.0s",
        "  certify        estimated 1.0s     measured -",
        "  healthy steps  estimated 50s      measured -",
    ]
    assert report_lines(report(changed(PLAN, duration={}), StageTimes({"install": 1.0}))) == []


def test_live_migration_shows_no_downtime_while_both_train(tmp_path: Path) -> None:
    """The stage begins with the stop command, which names a later step of the source."""
    plan = changed(PLAN, duration={"replay": 60.0, "downtime": 1.0})
    lines = report_lines(report(plan, StageTimes({"replay": 70.0, "downtime": 156.0})))
    assert lines[-1] == "  takeover       estimated 1.0s     measured 2m36"
    journal = Journal(tmp_path / "journal.jsonl")
    StageClock(plan, journal).begin("downtime", "cutover")
    journal.close()
    (event,) = read_events(tmp_path / "journal.jsonl")
    assert event.detail["stage"] == "downtime"
    assert event.message.startswith("takeover (of about 1.0s)")
