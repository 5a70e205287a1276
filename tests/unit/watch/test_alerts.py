"""Alerts: each once, from what a watch has seen, never from silence."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest

from midstream.operations.alerts import IDLE_SECONDS, SYMPTOM_INTERVAL, Alert, Alerts
from midstream.watch.machine import Accelerator
from midstream.watch.snapshot import DOWN, STALE, HostView, RunView
from midstream_core import records
from support.tui import fleets

HOST = fleets.host("small")


class Clock:
    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


@pytest.mark.parametrize(
    ("state", "kind"), [(records.FAILED, "failed"), ("lost", "lost"), (records.FINISHED, "finished")]
)
def test_end_of_a_run_is_reported_once(state: str, kind: str) -> None:
    alerts, trains = Alerts(), fleets.run()
    assert alerts.of(fleets.snapshot([HOST], [trains])) == []
    ended = in_state(state)
    [alert] = alerts.of(fleets.snapshot([HOST], [ended]))
    assert (alert.kind, alert.run, alert.host) == (kind, "nano", "small")
    assert alerts.of(fleets.snapshot([HOST], [ended])) == []


def in_state(state: str) -> RunView:
    if state == "lost":
        return fleets.run(running=False)  # its last status says that it trains
    return fleets.run(state=state, running=False)


def test_what_a_run_was_before_the_watch_is_no_alert() -> None:
    assert Alerts().of(fleets.snapshot([HOST], [in_state(records.FAILED), fleets.run("other")])) == []


def test_infinite_loss_is_reported_once_and_again_later() -> None:
    clock = Clock()
    alerts = Alerts(clock)
    good = fleets.rows(60)
    bad = [*good[:-3], *({**row, "train/loss": math.nan} for row in good[-3:])]

    def kinds(curve: list[dict[str, object]]) -> list[str]:
        clock.now += SYMPTOM_INTERVAL
        found = alerts.of(fleets.snapshot([HOST], [fleets.run(step=60, curve=curve)]))
        return [alert.kind for alert in found if alert.kind == "nan"]

    assert [kinds(each) for each in (good, bad, bad, good, bad)] == [[], ["nan"], [], [], ["nan"]]


@pytest.mark.parametrize("link", [STALE, DOWN])
def test_host_that_does_not_answer_raises_no_alert_about_its_run(link: str) -> None:
    """On the old code its silence was a run that makes no steps, "and its process is running"."""
    alerts = Alerts()
    assert alerts.of(fleets.snapshot([HOST], [fleets.run()])) == []
    unanswered = fleets.snapshot([fleets.host("small", link)], [fleets.run()])
    assert Alerts(Clock()).of(replace(unanswered, time=unanswered.time + 7200)) == []
    assert alerts.of(fleets.snapshot([fleets.host("small", link)], [in_state(records.FAILED)])) == []
    [alert] = alerts.of(fleets.snapshot([HOST], [in_state(records.FAILED)]))
    assert alert.kind == "failed", "it is reported when the host says so"


def idle_gpu(share: float | None) -> HostView:
    units = (Accelerator(0, "NVIDIA A100", 80, 1, share),)
    return replace(HOST, machine=replace(fleets.machine(), accelerators=units))


def test_idle_host_is_reported_after_half_an_hour_without_work() -> None:
    clock = Clock()
    alerts = Alerts(clock)

    def after(seconds: float, host: HostView, *, trains: bool = False) -> list[Alert]:
        clock.now += seconds
        return alerts.of(fleets.snapshot([host], [fleets.run()] if trains else []))

    assert after(0, idle_gpu(0.01)) == []
    assert after(IDLE_SECONDS - 1, idle_gpu(0.0)) == []
    [alert] = after(1, idle_gpu(0.0))
    assert (alert.kind, alert.host, alert.run) == ("idle", "small", "")
    assert alert.event().to_json() == {
        "event": "alert", "kind": "idle", "host": "small", "message": "small has had no work for 30 minutes",
    }  # fmt: skip
    assert after(IDLE_SECONDS, idle_gpu(0.0)) == [], "once"
    assert after(1, idle_gpu(0.9)) == []
    assert after(IDLE_SECONDS, idle_gpu(0.0)) == [], "it has worked in between"
    assert [each.kind for each in after(IDLE_SECONDS, idle_gpu(0.0))] == ["idle"]


@pytest.mark.parametrize(
    "host", [idle_gpu(None), idle_gpu(0.5), replace(idle_gpu(0.0), link=STALE), HOST],
    ids=["share not known", "busy", "unreachable", "no accelerator"],
)  # fmt: skip
def test_host_that_may_work_is_not_idle(host: HostView) -> None:
    clock = Clock()
    alerts = Alerts(clock)
    for _ in range(3):
        clock.now += IDLE_SECONDS
        assert alerts.of(fleets.snapshot([host], [])) == []


def test_host_that_trains_is_not_idle_whatever_its_driver_shows() -> None:
    clock = Clock()
    alerts = Alerts(clock)
    for _ in range(3):
        clock.now += IDLE_SECONDS
        assert "idle" not in [each.kind for each in alerts.of(fleets.snapshot([idle_gpu(0.0)], [fleets.run()]))]
