"""A loss that is not finite: null in metrics.jsonl, NaN in the curve, null in JSON."""

from __future__ import annotations

import io
import json
import math
import os
from pathlib import Path

import pytest

from midstream.listing import documents, filter_parser, fleet_fields, run_facts
from midstream.listing.fleet_moment import FleetMoment
from midstream.output import Output
from midstream.watch.snapshot import RunView, Snapshot
from midstream.watch.snapshot_store import SnapshotStore
from midstream.watch.symptoms import NOT_A_NUMBER, symptoms
from midstream_engine.tracking.metrics_file import MetricsFile
from support.tui import fleets
from support.tui.fleets import NOW

STEPS = 60
SECONDS = 20.0  # of a step


def reported(path: Path, losses: list[float]) -> RunView:
    """Return a training run, after its host has reported what the engine wrote for these losses."""
    file = MetricsFile(str(path))
    for step, loss in enumerate(losses):
        at = NOW - SECONDS * (len(losses) - step)
        file.write({"global_step": step, "train/loss": loss, "throughput/duration": SECONDS, "time": at})
    file.close()
    status = fleets.run(step=len(losses)).status
    assert status is not None
    store = SnapshotStore({"small": "local"}, clock=lambda: NOW)
    size = os.stat(path).st_size
    beat = {"cpu_used": 0.1, "memory_total": 1, "memory_used": 1, "disk_total": 1, "disk_free": 1, "accelerators": []}
    for event in (
        {"event": "hello", "hostname": "small", "platform": "", "python": "3.11", "cpus": 1},
        {"event": "run", "run": "nano", "attempt": 1, "running": True, "status": status.to_json()},
        {
            "event": "metrics",
            "run": "nano",
            "attempt": 1,
            "inode": 1,
            "offset": 0,
            "end": size,
            "text": path.read_text(),
        },
        {"event": "beat", "time": NOW, **beat},
    ):
        store.take("small", event)
    (run,) = store.snapshot().runs
    return run


@pytest.mark.parametrize("loss", [math.nan, math.inf, -math.inf], ids=str)
def test_loss_that_is_not_finite_is_shown_and_is_a_symptom(tmp_path: Path, loss: float) -> None:
    run = reported(tmp_path / "metrics.jsonl", [2.0] * 20 + [loss] * 40)
    loss_now = run_facts.loss(run)
    assert loss_now is not None
    assert math.isnan(loss_now), "the last finite loss is not the run's loss"
    assert len(run.curve) == STEPS
    found = symptoms(run, NOW)
    assert [symptom.kind for symptom in found] == [NOT_A_NUMBER], "its steps go on: it has not stalled"
    assert "since step 20" in found[0].message
    condition = filter_parser.parse("loss=nan", fleet_fields.RUNS, NOW)
    assert condition.holds(run, FleetMoment(Snapshot(1, NOW, (), (run,)), (), NOW))


@pytest.mark.parametrize(
    ("losses", "since"),
    [
        ([2.0] * 20 + [math.nan] + [2.0] * 20 + [math.nan] * 9, "since step 41"),
        ([math.nan] * 30, "since step 0"),
        ([2.0] + [math.nan] * 400, "since step 181 or earlier"),
    ],
)
def test_symptom_begins_after_the_last_finite_loss(tmp_path: Path, losses: list[float], since: str) -> None:
    (found,) = symptoms(reported(tmp_path / "metrics.jsonl", losses), NOW)
    assert found.message == f"the loss is NaN or infinite {since}"


def test_json_of_a_loss_that_is_not_finite_has_null(tmp_path: Path) -> None:
    run = reported(tmp_path / "metrics.jsonl", [2.0, math.nan])
    data = io.StringIO()
    output = Output(True, data=data)
    output.event(documents.run_event(run))
    output.value({"event": "metrics", **run.curve[-1]})
    output.value({"event": "metrics", "nested": [{"loss": math.inf}]})

    def refused(name: str) -> float:
        raise AssertionError(f"{name} is no JSON")

    lines = [json.loads(line, parse_constant=refused) for line in data.getvalue().splitlines()]
    assert lines[0]["loss"] is None
    assert lines[1]["train/loss"] is None
    assert lines[2]["nested"] == [{"loss": None}]
    copied = documents.text_of(documents.run_event(run).fields(), documents.JSON)
    assert json.loads(copied, parse_constant=refused)["loss"] is None
