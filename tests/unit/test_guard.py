"""What counts as evidence, and what as a symptom."""

from __future__ import annotations

import dataclasses
import json
import math
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from types import SimpleNamespace
from typing import Any

import pytest

from midstream.errors import Exit
from midstream.fleet.fleet_file import parse_fleet
from midstream.hosts import deadline
from midstream.hosts.host_pool import Hosts
from midstream.hosts.providers import interface
from midstream.launch.attempt_monitor import RankView
from midstream.migrate.failover import guard
from midstream.migrate.failover.notify import notify
from midstream.remote.machine import preemption_notices
from midstream.watch.snapshot import HostView, RunView, Snapshot
from midstream.watch.symptoms import DIVERGING, NOT_A_NUMBER, STALLED, symptoms
from midstream_engine import records
from support.hostile_text import ALL, unsafe

NOW = 1_000_000.0


def run_view(state: str = records.TRAINING, alive: bool = True, losses: list[float] | None = None) -> RunView:
    status = records.Status(
        state=state, step=100, process=0, boot_id="b", pid=1, start_ticks=1, heartbeat=NOW, message=""
    )
    rows = [
        {"global_step": step, "train/loss": loss, "time": NOW - 1.0, "throughput/duration": 1.0}
        for step, loss in enumerate(losses or [])
    ]
    return RunView("r", "a", records.Fence(1, "a"), None, 1, status, alive, curve=rows)


def snapshot(run: RunView, link: str = "live") -> Snapshot:
    return Snapshot(1, NOW, (HostView("a", "ssh", link, error="" if link == "live" else "timed out"),), (run,))


@pytest.mark.parametrize(
    ("state", "running", "link", "notice", "kind"),
    [
        (records.TRAINING, True, "live", "", guard.WELL),
        (records.TRAINING, False, "live", "", guard.GONE),
        (records.SAVING, False, "live", "poweroff is scheduled", guard.GONE),
        (records.TRAINING, True, "live", "poweroff is scheduled", guard.GOING),
        (records.STOPPED, False, "live", "preempted", guard.GOING),
        (records.STOPPED, False, "live", "", guard.ENDED),
        (records.FINISHED, False, "live", "preempted", guard.ENDED),
        (records.FAILED, False, "live", "", guard.BROKEN),
        # Silence is no evidence, whatever was seen before it.
        (records.TRAINING, False, "stale", "", guard.SILENT),
        (records.TRAINING, False, "down", "preempted", guard.SILENT),
        (records.FAILED, False, "down", "", guard.SILENT),
    ],
)
def test_only_positive_evidence_counts(state: str, alive: bool, link: str, notice: str, kind: str):
    _, verdict = guard.judge(snapshot(run_view(state, alive), link), "r", notice)
    assert verdict.kind == kind, verdict


def test_a_run_that_nobody_has_is_no_evidence_either():
    assert guard.judge(Snapshot(1, NOW), "r")[1].kind == guard.SILENT


@pytest.mark.parametrize(
    ("provider", "kind"),
    [(interface.PREEMPTED, guard.GONE), (interface.READY, guard.SILENT), (interface.UNCLEAR, guard.SILENT)],
)
def test_a_machine_that_nobody_sees_is_lost_by_its_providers_word_alone(provider: str, kind: str):
    told = (provider, "p/z/pod is PREEMPTED, says its provider")
    for link, holder in (("down", ""), ("live", "pod")):  # it was seen before; a copy was left where the run came from
        _, verdict = guard.judge(snapshot(run_view(records.STOPPED, False), link), "r", "", told, holder)
        assert (verdict.kind, verdict.lost) == (kind, kind == guard.GONE), verdict
        assert told[1] in verdict.reason


def rank(process: int, signal: str = "", code: int | None = None, ended: float = 0.0, stuck: bool = False) -> RankView:
    """A process that has ended, as what stood beside it wrote; without signal and code nobody wrote anything."""
    status = records.Status(state=records.TRAINING, step=9, process=process, boot_id="b", pid=1, start_ticks=1,
                            heartbeat=NOW)  # fmt: skip
    told = records.ProcessExit(process, code, ended, signal, stuck, message="its last words")
    known = told if signal or code is not None else None
    return RankView(process, "abc"[process], status, exit=known, ended=ended if known else None)


FAILED_LATER = rank(0, code=1, ended=20.0)  # for want of its peer


@pytest.mark.parametrize(
    ("ranks", "provider", "kind"),
    [
        ([FAILED_LATER, rank(1, "SIGKILL", ended=10.0)], interface.UNCLEAR, guard.GONE),
        ([rank(0, "SIGKILL", ended=10.0), rank(1, code=1, ended=20.0)], interface.UNCLEAR, guard.GONE),
        (
            [FAILED_LATER, rank(1, code=1, ended=10.0)],
            interface.PREEMPTED,
            None,
        ),  # an error: it would fail elsewhere too
        ([FAILED_LATER, rank(1, "SIGABRT", ended=10.0, stuck=True)], interface.UNCLEAR, None),
        ([FAILED_LATER, RankView(1, "b", trouble="timed out")], interface.UNCLEAR, guard.SILENT),
        ([FAILED_LATER, RankView(1, "b", trouble="timed out")], interface.PREEMPTED, guard.GONE),
    ],
)
def test_a_process_that_was_taken_from_its_group_is_evidence(ranks: list[RankView], provider: str, kind: str | None):
    verdict = guard.judge_failed(ranks, lambda host: (provider, f"{host} was preempted"))
    assert (verdict.kind if verdict else None) == kind, verdict
    if kind == guard.GONE and not any(rank.trouble for rank in ranks):
        assert verdict is not None
        assert "its last words" in verdict.reason


STEADY = [3.0 + 0.01 * (step % 5) for step in range(200)]


@pytest.mark.parametrize(
    ("losses", "now", "kinds"),
    [
        (STEADY, NOW, []),
        ([*STEADY, 9.0], NOW, []),  # one spike
        ([*STEADY, *([3.9] * 20)], NOW, [DIVERGING]),
        ([*STEADY, float("nan")], NOW, [NOT_A_NUMBER]),
        ([*STEADY, float("inf")], NOW, [NOT_A_NUMBER]),
        (STEADY, NOW + 400.0, [STALLED]),
        ([5.0 - 0.01 * step for step in range(220)], NOW, []),
        ([], NOW + 400.0, []),
    ],
)
def test_symptoms_are_judged_by_the_runs_own_past(losses: list[float], now: float, kinds: list[str]):
    assert [symptom.kind for symptom in symptoms(run_view(losses=losses), now)] == kinds


def test_a_run_of_slow_steps_is_not_called_stalled_early():
    slow = run_view(losses=STEADY)
    rows = [{**row, "throughput/duration": 60.0} for row in slow.curve]
    assert symptoms(dataclasses.replace(slow, curve=rows), NOW + 1000.0) == []
    assert [s.kind for s in symptoms(dataclasses.replace(slow, curve=rows), NOW + 1300.0)] == [STALLED]


def test_a_scheduled_shutdown_is_a_notice_and_a_called_off_one_is_none(tmp_path: Path):
    scheduled, product = tmp_path / "scheduled", tmp_path / "product"
    assert preemption_notices.read(str(scheduled), str(product)) is None
    scheduled.write_text(f"USEC={int((time.time() + 60) * 1e6)}\nWARN_WALL=1\nMODE=poweroff\n")
    found = preemption_notices.read(str(scheduled), str(product))
    assert found is not None
    assert found["kind"] == "shutdown"
    assert str(found["message"]).startswith("poweroff is scheduled in ")
    scheduled.write_text("USEC=1\nMODE=dry-poweroff\n")
    assert preemption_notices.read(str(scheduled), str(product)) is None


@pytest.mark.parametrize(
    ("answers", "kind"),
    [
        ({"preempted": "FALSE", "maintenance-event": "NONE"}, None),
        ({"preempted": "TRUE", "maintenance-event": "NONE"}, "preempted"),
        ({"preempted": "FALSE", "maintenance-event": "TERMINATE_ON_HOST_MAINTENANCE"}, "maintenance"),
        ({"preempted": "FALSE", "maintenance-event": "MIGRATE_ON_HOST_MAINTENANCE"}, None),
        ({}, None),
    ],
)
def test_googles_metadata_server_is_asked_on_googles_machines_alone(tmp_path: Path, answers: dict, kind: str | None):
    asked = []

    class Metadata(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            asked.append((self.path, self.headers["Metadata-Flavor"]))
            answer = answers.get(self.path.rpartition("/")[2])
            self.send_response(404 if answer is None else 200)
            self.end_headers()
            self.wfile.write((answer or "").encode())

        def log_message(self, format: str, *args: object) -> None:
            pass

    product = tmp_path / "product"
    with ThreadingHTTPServer(("127.0.0.1", 0), Metadata) as server:
        thread = Thread(target=server.serve_forever)
        thread.start()
        try:
            base = f"http://127.0.0.1:{server.server_port}/instance/"
            product.write_text("Standard PC\n")
            assert preemption_notices.read(str(tmp_path / "none"), str(product), base) is None
            assert asked == []
            product.write_text("Google Compute Engine\n")
            found = preemption_notices.read(str(tmp_path / "none"), str(product), base)
        finally:
            server.shutdown()
            thread.join()
    assert (found or {}).get("kind") == kind
    assert asked
    assert {flavor for _, flavor in asked} == {"Google"}


def test_an_event_reaches_the_command_as_json_and_never_as_words_of_it(tmp_path: Path):
    told, owned = tmp_path / "told", tmp_path / "owned"
    event = {"kind": "lost", "message": f"'; touch {owned}; $(touch {owned})\n"}
    assert notify(f'cat > {told}; echo "$MIDSTREAM_EVENT" >> {told}', event)
    first, second = told.read_text().splitlines()
    assert json.loads(first) == {**event, "message": event["message"].replace("\n", "\\n")}
    assert second == "lost"
    assert not owned.exists()


def test_an_event_has_no_control_characters(tmp_path: Path):
    told = tmp_path / "told"
    assert notify(f"cat > {told}", {"kind": "lost", "message": ALL, "detail": [{ALL: ALL}]})
    text = told.read_text()
    assert text.isascii()
    assert not unsafe(json.dumps(json.loads(text), ensure_ascii=False))


def test_a_notification_that_fails_stops_nothing(caplog: pytest.LogCaptureFixture):
    assert not notify("echo no network >&2; exit 3", {"kind": "lost"})
    assert "no network" in caplog.text
    assert not notify(None, {"kind": "lost"})


def test_a_guard_that_was_stopped_does_not_act_on_what_it_saw_before(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Its clock went on, and the engine was started again by hand meanwhile."""
    gone, well = snapshot(run_view(alive=False)), snapshot(run_view())
    finished = snapshot(run_view(records.FINISHED, alive=False))
    seen = [(0.5, gone), (100.0, gone), (0.5, well), *[(1.0, finished)] * 20]
    clock = SimpleNamespace(now=0.0)

    def look() -> Snapshot:
        seconds, found = seen.pop(0)
        clock.now += seconds
        return found

    monkeypatch.setattr(deadline, "time", SimpleNamespace(monotonic=lambda: clock.now))
    monkeypatch.setattr(guard, "LOOK", 0.0)
    monkeypatch.setattr(guard, "NOTICES_EVERY", math.inf)
    fleet = parse_fleet(f"hosts:\n  a: {{type: local, root: {tmp_path}}}\n")
    hosts = Hosts(fleet)
    events: list[dict[str, Any]] = []
    watching = guard.Guard(fleet, hosts, SimpleNamespace(snapshot=look), "r", ["a"], 1, events.append)  # type: ignore[arg-type]
    assert watching.run() == Exit.DONE
    hosts.close()
    assert [event["kind"] for event in events] == ["finished"], "no move was begun"


def test_a_run_whose_records_are_damaged_is_not_judged_by_them():
    lost = dataclasses.replace(run_view(alive=False), damaged=(("fence.json", "not JSON"),))
    run, verdict = guard.judge(snapshot(lost), "r")
    assert run is not None
    assert verdict.kind == guard.SILENT
    assert "a: run r: fence.json: not JSON" in verdict.reason
    assert "midstream --repair r --on a" in verdict.reason
