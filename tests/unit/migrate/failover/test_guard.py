"""The guard: evidence of a lost run, symptoms, notifications."""

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

from midstream.check.check_result import FAIL, Check
from midstream.errors import Exit, MidstreamError
from midstream.fleet.fleet import Fleet
from midstream.fleet.fleet_file import parse_fleet
from midstream.hosts import deadline
from midstream.hosts.host_pool import HostPool
from midstream.launch.rank_view import RankView
from midstream.migrate.failover import guard, guard_plan, run_verdict
from midstream.migrate.failover.guard_plan import MigratedByAnotherError
from midstream.migrate.journal import migration_directory, migration_state
from midstream.migrate.journal.event import Event
from midstream.migrate.journal.facts import Facts
from midstream.migrate.journal.journal import Journal
from midstream.migrate.journal.plan import Plan
from midstream.migrate.journal.request import Request
from midstream.migrate.notify import notify
from midstream.migrate.planning import preflight
from midstream.providers.provider import SliceStatus
from midstream.watch.snapshot import HostView, RunView, Snapshot
from midstream.watch.symptoms import DIVERGING, NOT_A_NUMBER, STALLED, symptoms
from midstream_core import records
from midstream_host.machine import preemption_notices
from midstream_host.runs import ownership
from support.hostile_text import ALL, unsafe
from support.migrations.sample_plan import PLAN, SEALED, changed

NOW = 1_000_000.0


def run_view(state: str = records.TRAINING, running: bool = True, losses: list[float] | None = None) -> RunView:
    status = records.Status(
        state=state, step=100, process=0, boot_id="b", pid=1, start_ticks=1, heartbeat=NOW, message=""
    )
    rows = [
        {"global_step": step, "train/loss": loss, "time": NOW - 1.0, "throughput/duration": 1.0}
        for step, loss in enumerate(losses or [])
    ]
    return RunView("r", "a", records.Fence(1, "a"), None, 1, status, running, curve=rows)


def snapshot(run: RunView, link: str = "live") -> Snapshot:
    return Snapshot(1, NOW, (HostView("a", "ssh", link, error="" if link == "live" else "timed out"),), (run,))


@pytest.mark.parametrize(
    ("state", "running", "link", "notice", "kind"),
    [
        (records.TRAINING, True, "live", "", run_verdict.HEALTHY),
        (records.TRAINING, False, "live", "", run_verdict.LOST),
        (records.SAVING, False, "live", "poweroff is scheduled", run_verdict.LOST),
        (records.TRAINING, True, "live", "poweroff is scheduled", run_verdict.TERMINATING),
        (records.STOPPED, False, "live", "preempted", run_verdict.TERMINATING),
        (records.STOPPED, False, "live", "", run_verdict.ENDED),
        (records.STOPPED, True, "live", "", run_verdict.HEALTHY),  # a job of SLURM that was requeued
        (records.FINISHED, False, "live", "preempted", run_verdict.ENDED),
        (records.FAILED, False, "live", "", run_verdict.FAILED),
        # An unreachable host is no evidence, whatever was found before.
        (records.TRAINING, False, "stale", "", run_verdict.UNREACHABLE),
        (records.TRAINING, False, "down", "preempted", run_verdict.UNREACHABLE),
        (records.FAILED, False, "down", "", run_verdict.UNREACHABLE),
    ],
)
def test_judge_needs_positive_evidence(state: str, running: bool, link: str, notice: str, kind: str) -> None:
    _, verdict = run_verdict.judge(snapshot(run_view(state, running), link), "r", notice)
    assert verdict.kind == kind, verdict


def test_judge_does_not_report_an_unlisted_run() -> None:
    assert run_verdict.judge(Snapshot(1, NOW), "r")[1].kind == run_verdict.UNREACHABLE


@pytest.mark.parametrize(
    ("provider", "kind"),
    [
        (SliceStatus.PREEMPTED, run_verdict.LOST),
        (SliceStatus.READY, run_verdict.UNREACHABLE),
        (SliceStatus.UNKNOWN, run_verdict.UNREACHABLE),
    ],
)
def test_judge_unreachable_host_lost_only_by_provider_status(provider: str, kind: str) -> None:
    reported = (provider, "p/z/pod is PREEMPTED, according to its provider")
    for link, owner in (("down", ""), ("live", "pod")):  # known before; or only the former source has a copy
        _, verdict = run_verdict.judge(snapshot(run_view(records.STOPPED, False), link), "r", "", reported, owner)
        assert (verdict.kind, verdict.lost) == (kind, kind == run_verdict.LOST), verdict
        assert reported[1] in verdict.reason


def rank(
    process: int, signal: str = "", code: int | None = None, ended: float = 0.0, stalled: bool = False
) -> RankView:
    """Return an ended process; it has no exit record without signal and code."""
    status = records.Status(state=records.TRAINING, step=9, process=process, boot_id="b", pid=1, start_ticks=1,
                            heartbeat=NOW)  # fmt: skip
    recorded = records.ProcessExit(process, code, ended, signal, stalled, message="its last message")
    known = recorded if signal or code is not None else None
    return RankView(process, "abc"[process], status, exit=known, ended=ended if known else None)


FAILED_LATER = rank(0, code=1, ended=20.0)  # because its peer had ended


@pytest.mark.parametrize(
    ("ranks", "provider", "kind"),
    [
        ([FAILED_LATER, rank(1, "SIGKILL", ended=10.0)], SliceStatus.UNKNOWN, run_verdict.LOST),
        ([rank(0, "SIGKILL", ended=10.0), rank(1, code=1, ended=20.0)], SliceStatus.UNKNOWN, run_verdict.LOST),
        (
            [FAILED_LATER, rank(1, code=1, ended=10.0)],
            SliceStatus.PREEMPTED,
            None,
        ),  # an error: it would fail elsewhere too
        ([FAILED_LATER, rank(1, "SIGABRT", ended=10.0, stalled=True)], SliceStatus.UNKNOWN, None),
        ([FAILED_LATER, RankView(1, "b", problem="timed out")], SliceStatus.UNKNOWN, run_verdict.UNREACHABLE),
        ([FAILED_LATER, RankView(1, "b", problem="timed out")], SliceStatus.PREEMPTED, run_verdict.LOST),
    ],
)
def test_judge_failed_finds_preempted_process_of_group(ranks: list[RankView], provider: str, kind: str | None) -> None:
    verdict = run_verdict.judge_failed(ranks, lambda host: (provider, f"{host} was preempted"))
    assert (verdict.kind if verdict else None) == kind, verdict
    if kind == run_verdict.LOST and not any(rank.problem for rank in ranks):
        assert verdict is not None
        assert "its last message" in verdict.reason


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
def test_symptoms_compare_with_the_runs_own_history(losses: list[float], now: float, kinds: list[str]) -> None:
    assert [symptom.kind for symptom in symptoms(run_view(losses=losses), now)] == kinds


def test_symptoms_stall_limit_follows_step_time() -> None:
    slow = run_view(losses=STEADY)
    rows = [{**row, "throughput/duration": 60.0} for row in slow.curve]
    assert symptoms(dataclasses.replace(slow, curve=rows), NOW + 1000.0) == []
    assert [s.kind for s in symptoms(dataclasses.replace(slow, curve=rows), NOW + 1300.0)] == [STALLED]


def test_scheduled_shutdown_is_a_notice_until_cancelled(tmp_path: Path) -> None:
    scheduled, product = tmp_path / "scheduled", tmp_path / "product"
    assert preemption_notices.read(str(scheduled), str(product)) is None
    scheduled.write_text(f"USEC={int((time.time() + 60) * 1e6)}\nWARN_WALL=1\nMODE=poweroff\n")
    found = preemption_notices.read(str(scheduled), str(product))
    assert found is not None
    assert found.kind == "shutdown"
    assert found.message.startswith("poweroff is scheduled in ")
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
def test_metadata_server_is_queried_on_google_machines_only(tmp_path: Path, answers: dict, kind: str | None) -> None:
    requests = []

    class Metadata(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            requests.append((self.path, self.headers["Metadata-Flavor"]))
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
            address = f"127.0.0.1:{server.server_port}"
            product.write_text("Standard PC\n")
            assert preemption_notices.read(str(tmp_path / "none"), str(product), address) is None
            assert requests == []
            product.write_text("Google Compute Engine\n")
            found = preemption_notices.read(str(tmp_path / "none"), str(product), address)
        finally:
            server.shutdown()
            thread.join()
    assert (found and found.kind) == kind
    assert requests
    assert {header for _, header in requests} == {"Google"}


def test_notify_passes_event_as_json_on_stdin_only(tmp_path: Path) -> None:
    received, owned = tmp_path / "received", tmp_path / "owned"
    event = {"kind": "lost", "message": f"'; touch {owned}; $(touch {owned})\n"}
    assert notify(f'cat > {received}; echo "$MIDSTREAM_EVENT" >> {received}', event)
    first, second = received.read_text().splitlines()
    assert json.loads(first) == {**event, "message": event["message"].replace("\n", "\\n")}
    assert second == "lost"
    assert not owned.exists()


def test_notify_removes_control_characters(tmp_path: Path) -> None:
    received = tmp_path / "received"
    assert notify(f"cat > {received}", {"kind": "lost", "message": ALL, "detail": [{ALL: ALL}]})
    text = received.read_text()
    assert text.isascii()
    assert not unsafe(json.dumps(json.loads(text), ensure_ascii=False))


def test_notify_logs_a_failing_command(caplog: pytest.LogCaptureFixture) -> None:
    assert not notify("echo no network >&2; exit 3", {"kind": "lost"})
    assert "no network" in caplog.text
    assert not notify(None, {"kind": "lost"})


def test_guard_ignores_old_evidence_after_suspension(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """While the guard was suspended, a user started the engine again."""
    exited, well = snapshot(run_view(running=False)), snapshot(run_view())
    finished = snapshot(run_view(records.FINISHED, running=False))
    looks = [(0.5, exited), (100.0, exited), (0.5, well), *[(1.0, finished)] * 20]
    clock = SimpleNamespace(now=0.0)

    def look() -> Snapshot:
        seconds, found = looks.pop(0)
        clock.now += seconds
        return found

    monkeypatch.setattr(deadline, "time", SimpleNamespace(monotonic=lambda: clock.now))
    monkeypatch.setattr(guard, "POLL_INTERVAL", 0.0)
    monkeypatch.setattr(guard, "NOTICE_INTERVAL", math.inf)
    fleet = parse_fleet(f"hosts:\n  a: {{type: local, root: {tmp_path}}}\n")
    hosts = HostPool(fleet)
    events: list[dict[str, Any]] = []
    watching = guard.Guard(fleet, hosts, SimpleNamespace(snapshot=look), "r", ["a"], 1, events.append)  # type: ignore[arg-type]
    assert watching.run() == Exit.DONE
    hosts.close()
    assert [event["kind"] for event in events] == ["finished"], "no migration was started"


def test_judge_ignores_damaged_records() -> None:
    lost = dataclasses.replace(run_view(running=False), damaged=(("fence.json", "not JSON"),))
    run, verdict = run_verdict.judge(snapshot(lost), "r")
    assert run is not None
    assert verdict.kind == run_verdict.UNREACHABLE
    assert "a: run r: fence.json: not JSON" in verdict.reason
    assert "midstream --repair r --on a" in verdict.reason


def cluster_guard(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, looks: list[Snapshot], targets: list[str], tries: int = 1
) -> tuple[guard.Guard, list[dict[str, Any]]]:
    """Return a guard of a job that is at its time limit, and its events; ``looks``: its snapshots."""
    clock = SimpleNamespace(now=0.0)

    def look() -> Snapshot:
        clock.now += 4.0
        return looks.pop(0) if len(looks) > 1 else looks[0]

    monkeypatch.setattr(deadline, "time", SimpleNamespace(monotonic=lambda: clock.now))
    monkeypatch.setattr(guard, "POLL_INTERVAL", 0.0)
    lines = "hosts:\n  a: {{type: local, root: {0}/a}}\n  b: {{type: local, root: {0}/b}}\ntargets:\n"
    slurm = "  {0}: {{type: slurm, host: a, sbatch: [--nodes=1]}}\n"
    fleet = parse_fleet(lines.format(tmp_path) + slurm.format("cluster") + slurm.format("other"))
    events: list[dict[str, Any]] = []
    watch = SimpleNamespace(snapshot=look, wait_for=lambda *_, **__: None)
    found = guard.Guard(fleet, HostPool(fleet), watch, "r", targets, tries, events.append)  # type: ignore[arg-type]

    def notice(_: Snapshot) -> str:
        found.evidence.is_job = True
        return "job 7 reaches its time limit in 5m00"

    monkeypatch.setattr(found.evidence, "notice", notice)
    return found, events


def on_cluster(state: str = records.TRAINING, running: bool = True, step: int = 100) -> Snapshot:
    run = run_view(state, running)
    assert run.status is not None
    return snapshot(
        dataclasses.replace(run, fence=records.Fence(1, "cluster"), status=dataclasses.replace(run.status, step=step))
    )


def test_guard_of_a_failed_engine_prints_its_start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    failed = on_cluster(records.FAILED, running=False)
    watching, events = cluster_guard(tmp_path, monkeypatch, [failed], ["cluster", "b"])
    monkeypatch.setattr(watching.evidence, "notice", lambda _: "")
    assert watching.run() == Exit.FAILED
    assert "midstream --restart r starts it there again" in events[-1]["message"], events


def test_guard_leaves_stopped_run_before_time_limit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    stopped = on_cluster(records.STOPPED, running=False)
    watching, events = cluster_guard(tmp_path, monkeypatch, [on_cluster(), stopped], ["cluster", "b"])
    assert watching.run() == Exit.DONE
    assert [event["kind"] for event in events] == ["finished"], events


def test_guard_restarts_only_what_made_steps(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The job is at its limit again after 60 steps, then at once; a restart needs none of the tries."""
    restarted: list[int | None] = []

    def restart(_hosts: object, run: RunView, target: str) -> int:
        assert target == "cluster"
        restarted.append(run.step)
        return len(restarted) + 1

    monkeypatch.setattr(guard.job_restart, "restart", restart)
    looks = [*[on_cluster()] * 4, *[on_cluster(step=160)] * 20]
    watching, events = cluster_guard(tmp_path, monkeypatch, looks, ["other", "b", "cluster"], tries=0)
    with pytest.raises(MidstreamError) as found:
        watching.run()
    assert restarted == [100, 160]
    assert "r made no step since it was restarted at step 160" in found.value.message
    assert [event["kind"] for event in events] == [*["lost", "restarting", "restarted"] * 2, "lost", "needs you"]


def test_guard_hands_job_to_target_of_same_login_node_cold(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    requests: list[Request] = []

    def refuse(_hosts: object, _snapshot: object, request: Request) -> None:
        requests.append(request)
        raise MidstreamError("no")

    monkeypatch.setattr(guard_plan.planning, "make_plan", refuse)
    watching, _ = cluster_guard(tmp_path, monkeypatch, [on_cluster()], ["other", "b"])
    with pytest.raises(MidstreamError):
        watching.run()
    assert [(request.target, request.mode) for request in requests] == [("other", "cold"), ("b", "warm")]


@pytest.mark.parametrize(("begun", "expected"), [(False, ["other", "b"]), (True, ["other"])])
def test_guard_starts_no_migration_beside_one_that_has_begun(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, begun: bool, expected: list[str]
) -> None:
    """The first one lost contact with its target, which may train the run if the source was sealed."""
    watching, _ = cluster_guard(tmp_path, monkeypatch, [on_cluster()], ["other", "b"], tries=2)
    planned: list[str] = []

    def plan(request: Request, _store: str) -> Plan:
        planned.append(request.target)
        return changed(PLAN, migration=f"m-{request.target}")

    def start(fleet: Fleet, plan: Plan) -> str:
        directory = migration_directory.create(plan, fleet.text)
        if begun:
            Journal(directory.journal_file).record(Facts(sealed=SEALED, relaunching=True))
        return directory.migration

    lost = Event("result", 0.0, message="other does not answer", detail={"ok": False})
    monkeypatch.setattr(watching, "_plan", plan)
    monkeypatch.setattr(guard.migration_process, "start", start)
    monkeypatch.setattr(guard.migration_process, "follow", lambda _: iter([lost]))
    with pytest.raises(MidstreamError, match="other: other does not answer") as found:
        watching.run()
    assert planned == expected
    assert ("midstream --continue m-other" in found.value.hint) == begun


def test_guard_does_not_undo_the_rollback_of_its_user(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    watching, events = cluster_guard(tmp_path, monkeypatch, [on_cluster()], ["other", "b"], tries=3)
    detail = {"ok": True, "exit_code": 0, "outcome": migration_state.ROLLED_BACK}
    result = Event("result", 0.0, message="rolled back as requested", detail=detail)
    monkeypatch.setattr(watching, "_plan", lambda request, _store: changed(PLAN, migration=f"m-{request.target}"))
    monkeypatch.setattr(guard.migration_process, "start", lambda _fleet, plan: plan.migration)
    monkeypatch.setattr(guard.migration_process, "follow", lambda _: iter([result]))
    with pytest.raises(MidstreamError, match="other: rolled back as requested") as found:
        watching.run()
    assert found.value.hint == "midstream --guard r --to other,b guards it again"
    assert [event["kind"] for event in events] == ["lost", "migrating", "needs you"], events


def test_guard_waits_for_migration_of_another_guard(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another guard was first: its migration has the lock, then the run. The guard goes on, on the run's new host."""
    ended = on_cluster(records.FINISHED, running=False)
    watching, events = cluster_guard(tmp_path, monkeypatch, [*[on_cluster()] * 9, ended], ["other", "b"], tries=3)
    planned: list[str] = []

    def plan(request: Request, _store: str) -> Plan:
        planned.append(request.target)
        if len(planned) == 1:
            raise MigratedByAnotherError("migration lock: migration n is migrating the run to c")
        return changed(PLAN, migration="m")

    detail = {"ok": False, "exit_code": 1, "outcome": migration_state.MOVED_ON}
    moved = Event("result", 0.0, message="another migration has taken r from a to c (ownership 2)", detail=detail)
    monkeypatch.setattr(watching, "_plan", plan)
    monkeypatch.setattr(guard.migration_process, "start", lambda _fleet, plan: plan.migration)
    monkeypatch.setattr(guard.migration_process, "follow", lambda _: iter([moved]))
    assert watching.run() == Exit.DONE
    assert {*planned} == {"other"}, "no second target is tried"
    kinds = [event["kind"] for event in events]
    assert kinds[:4] == ["lost", "waiting", "migrating", "waiting"], events
    assert kinds[-1] == "finished"
    assert kinds.count("lost") == 1


@pytest.mark.parametrize(
    ("name", "hint"),
    [
        (preflight.MIGRATION_LOCK, "it ends"),
        (preflight.OTHER_MIGRATION, "it ends"),
        ("ownership", preflight.MIGRATED_SINCE),
    ],
)
def test_guard_recognises_migration_of_another_in_preflight(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, hint: str
) -> None:
    watching, _ = cluster_guard(tmp_path, monkeypatch, [on_cluster()], ["b"])
    check = Check(name, FAIL, "it has the run", hint)
    monkeypatch.setattr(guard_plan.planning, "make_plan", lambda *_: changed(PLAN, source="a", target="b"))
    monkeypatch.setattr(guard_plan.preflight, "run_checks", lambda *_: [check])
    with pytest.raises(MigratedByAnotherError, match="it has the run") as found:
        watching._plan(Request("r", "b"), "")
    assert not found.value.needs_target


@pytest.mark.parametrize(("taken", "deleted"), [(False, True), (True, False)])
def test_guard_keeps_pods_that_another_migration_needs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, taken: bool, deleted: bool
) -> None:
    """Two guards have the same target: one creates its pods, the other is the first to migrate the run there."""
    ended = on_cluster(records.FINISHED, running=False)
    watching, events = cluster_guard(tmp_path, monkeypatch, [*[on_cluster()] * 4, ended], ["b"], tries=3)
    found: list[str] = []

    class Pods:
        name = "b"

        def delete(self, _: object) -> None:
            found.append("deleted")

    plan = changed(PLAN, run_id="r", source="a", target="b", migration="m")
    check = Check(preflight.MIGRATION_LOCK, FAIL, "it has the run", "")
    monkeypatch.setattr(guard.guard_pods, "create", lambda *_: Pods())
    monkeypatch.setattr(guard_plan.planning, "make_plan", lambda *_: plan)
    monkeypatch.setattr(guard_plan.preflight, "run_checks", lambda *_: [check])
    root = str(tmp_path / "a")
    (tmp_path / "a" / "runs" / "r").mkdir(parents=True)
    records.first_fence("a").write(records.RunPaths(root, "r").fence)
    ownership.acquire(root, "r", migration="other", epoch=2, owner="b" if taken else "c", seconds=60.0)
    assert watching.run() == Exit.DONE
    assert bool(found) == deleted
    assert ("kept" in [event["kind"] for event in events]) == taken, events


@pytest.mark.parametrize(("targets", "has"), [(["a"], False), (["a", "b"], True), (["cluster"], True)])
def test_guard_has_a_target_other_than_where_the_run_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, targets: list[str], has: bool
) -> None:
    (run,) = on_cluster().runs
    watching, _ = cluster_guard(tmp_path, monkeypatch, [on_cluster()], targets)
    assert watching.has_target(run) == has
