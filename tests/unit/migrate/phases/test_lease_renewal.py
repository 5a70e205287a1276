"""Renewal of the standby's lease, and the estimate during a migration."""

from __future__ import annotations

import dataclasses
import threading
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from midstream.errors import HostError
from midstream.fleet.fleet import Fleet, LocalHostConfig
from midstream.hosts.host_pool import HostPool
from midstream.migrate.journal.facts import Copied, Facts
from midstream.migrate.journal.journal import Journal
from midstream.migrate.lease_renewal import LeaseRenewal
from midstream.migrate.modes.registry import LIVE, WARM
from midstream.migrate.steps import estimate_update
from midstream_core import records
from midstream_host.runs import standby_state
from support.migrations.sample_plan import PLAN, changed
from support.run_directory import RunDirectory


@pytest.mark.parametrize(("epoch", "renewed"), [(0, True), (1, False)])
def test_only_a_standby_gets_its_lease_renewed(tmp_path: Path, epoch: int, renewed: bool) -> None:
    run = RunDirectory(tmp_path, "r")
    run.status(2, records.WAITING, 4)
    status = records.Status.read(run.attempt(2).status())
    dataclasses.replace(status, epoch=epoch).write(run.attempt(2).status())
    records.Command(records.STANDBY, epoch=2, migration="m", sequence=1).write(run.attempt(2).command_file)
    lease = Path(run.attempt(2).lease)
    hosts = HostPool(Fleet({"b": LocalHostConfig(root=str(tmp_path))}))
    renewal = LeaseRenewal(hosts, changed(PLAN, mode=WARM), interval=0.01)
    try:
        if not renewed:
            host = hosts.get("b")
            host.call(standby_state.renew)(root=host.root, run_id="r", migration="m")
            assert not lease.exists()
            return
        renewal.start()
        deadline = time.monotonic() + 60
        while not lease.exists():
            assert time.monotonic() < deadline
            time.sleep(0.01)
    finally:
        renewal.stop()
        hosts.close()


def test_failed_renewal_is_logged_and_repeated(caplog: pytest.LogCaptureFixture) -> None:
    again = threading.Event()

    def get(_name: str) -> None:
        if caplog.records:
            again.set()
            raise HostError("it does not answer")
        raise RuntimeError("can't start new thread")

    renewal = LeaseRenewal(cast("HostPool", SimpleNamespace(get=get)), changed(PLAN, mode=WARM), interval=0.01)
    renewal.start()
    try:
        assert again.wait(60)
    finally:
        renewal.stop()
    assert "the lease of the standby of m was not renewed" in caplog.text


CURVE = [{"attempt": 1, "throughput/duration": 2.0} for _ in range(8)]


def migration_of(tmp_path: Path, mode: str, prices: tuple[float | None, float | None]) -> Any:
    from midstream.migrate.journal import cost

    plan = changed(
        PLAN,
        mode=mode,
        cost_per_hour=prices,
        checkpoint_bytes=100_000_000,
        cost=cost.estimate(
            prices, prepare_seconds=1.0, downtime=1.0, step_before=2.0, step_after=None, tokens=1000, steps_left=9000
        ),
    )
    journal = Journal(tmp_path / "journal.jsonl")
    notes: list[str] = []
    run = SimpleNamespace(curve=CURVE, key=(plan.source, plan.run_id))
    snapshot = SimpleNamespace(runs=(run,), host=lambda _: SimpleNamespace(link="live"))
    return SimpleNamespace(
        plan=plan, journal=journal, notes=notes, note=notes.append, phase="prepare",
        watch=SimpleNamespace(snapshot=lambda: snapshot),
    )  # fmt: skip


def test_estimate_uses_rehearsal_measurements(tmp_path: Path) -> None:
    migration = migration_of(tmp_path, WARM, (10.0, 10.0))
    assert estimate_update.predicted_seconds(migration) == {}
    migration.journal.record(Facts(rehearsal_copy=Copied(100_000_000, 50.0), rehearsed_step_seconds=0.5))
    estimate_update.update_estimate(migration)
    predicted = estimate_update.predicted_seconds(migration)
    assert predicted["first_step"] == 0.5
    assert predicted["copy"] == pytest.approx(0.5 + 50.0 - 100e6 / 400e6)
    text = "\n".join(migration.notes)
    assert "downtime by the measurements: about 5" in text
    assert "pays for itself after" in text
    migration.journal.close()
    again = Journal(tmp_path / "journal.jsonl")
    assert again.facts.predicted == predicted, "a process that continues the migration has it too"
    again.close()


def test_live_fallback_to_warm_is_estimated_as_warm(tmp_path: Path) -> None:
    migration = migration_of(tmp_path, LIVE, (None, None))
    estimate_update.update_estimate(migration)
    assert sum(estimate_update.predicted_seconds(migration).values()) == 0.0
    assert migration.notes == []
    migration.journal.record(Facts(fallback_reason="the user does not wait"))
    estimate_update.update_estimate(migration)
    assert sum(estimate_update.predicted_seconds(migration).values()) > 1.0
    migration.journal.close()
