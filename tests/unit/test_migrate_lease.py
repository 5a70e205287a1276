"""What stands by is told that it is wanted, what trains is left alone; what was measured is predicted with."""

from __future__ import annotations

import dataclasses
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from midstream.fleet.fleet import Fleet, LocalHost
from midstream.hosts.host_pool import Hosts
from midstream.migrate.execution.journal import Journal
from midstream.migrate.execution.lease_renewal import LeaseRenewal
from midstream.migrate.model import LIVE, WARM
from midstream.migrate.planning import estimate
from midstream_engine import records
from support.run_directory import RunDirectory
from unit.sample_plan import PLAN


@pytest.mark.parametrize(("epoch", "renewed"), [(0, True), (1, False)])
def test_only_an_attempt_that_stands_by_has_its_lease_renewed(tmp_path: Path, epoch: int, renewed: bool):
    run = RunDirectory(tmp_path, "r")
    run.status(2, records.WAITING, 4)
    status = records.Status.read(run.attempt(2).status())
    dataclasses.replace(status, epoch=epoch).write(run.attempt(2).status())
    records.Command(records.STANDBY, epoch=2, migration="m", sequence=1).write(run.attempt(2).command_file)
    lease = Path(run.attempt(2).lease)
    hosts = Hosts(Fleet({"b": LocalHost(root=str(tmp_path))}))
    wanted = LeaseRenewal(hosts, dataclasses.replace(PLAN, mode=WARM), every=0.01)
    try:
        if not renewed:
            host = hosts.get("b")
            host.call("runs.standby_state.renew", root=host.root, run_id="r", migration="m")
            assert not lease.exists()
            return
        wanted.start()
        deadline = time.monotonic() + 60
        while not lease.exists():
            assert time.monotonic() < deadline
            time.sleep(0.01)
    finally:
        wanted.stop()
        hosts.close()


CURVE = [{"attempt": 1, "throughput/duration": 2.0} for _ in range(8)]


def move_of(tmp_path: Path, mode: str, prices: tuple[float | None, float | None]) -> Any:
    from midstream.migrate.planning import cost

    plan = dataclasses.replace(
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
    run = SimpleNamespace(curve=CURVE)
    return SimpleNamespace(
        plan=plan, journal=journal, notes=notes, note=notes.append, phase="prepare",
        watch=SimpleNamespace(snapshot=lambda: None), run_on=lambda snapshot, host: run,
    )  # fmt: skip


def test_what_the_rehearsal_measured_is_predicted_with(tmp_path: Path):
    move = move_of(tmp_path, WARM, (10.0, 10.0))
    assert estimate.predicted(move) == {}
    move.journal.fact(rehearsal_bytes=100_000_000, rehearsal_seconds=50.0, rehearsed_seconds=0.5)
    estimate.again(move)
    predicted = estimate.predicted(move)
    assert predicted["first_step"] == 0.5
    assert predicted["copy"] == pytest.approx(0.5 + 50.0 - 100e6 / 400e6)
    told = "\n".join(move.notes)
    assert "downtime, by what was measured: about 5" in told
    assert "pays for itself after" in told
    move.journal.close()
    again = Journal(tmp_path / "journal.jsonl")
    assert again.known("predicted") == predicted, "whoever continues the move knows it too"
    again.close()


def test_an_overtake_that_becomes_a_handover_is_predicted_as_one(tmp_path: Path):
    move = move_of(tmp_path, LIVE, (None, None))
    estimate.again(move)
    assert sum(estimate.predicted(move).values()) == 0.0
    assert move.notes == []
    move.journal.fact(fallen_back="a person will not wait")
    estimate.again(move)
    assert sum(estimate.predicted(move).values()) > 1.0
    move.journal.close()
