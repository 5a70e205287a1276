"""The replica of a live migration: progress, agreement, and the certificate."""

from __future__ import annotations

import dataclasses
import json
import math
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from midstream.errors import MidstreamError
from midstream.fleet.fleet import LocalHostConfig
from midstream.fleet.fleet_file import parse_fleet
from midstream.hosts.host_pool import HostPool
from midstream.hosts.local_host import LocalHost
from midstream.migrate import journal_recovery
from midstream.migrate.journal import downtime_report
from midstream.migrate.journal.certificate import CLAIM_FAILED, NOT_CHECKED, VERIFIED, Certificate
from midstream.migrate.journal.facts import Facts, Sealed, StartingPoint
from midstream.migrate.phases import certify
from midstream.migrate.proof import live_certificate
from midstream.migrate.stages import DOWNTIME_PHASES
from midstream.migrate.steps.migration import Migration
from midstream.migrate.steps.pins import pinned_on_target
from midstream.migrate.steps.replica import Agreement, ReplicaProgress, ReplicaUnfitError, pace
from midstream.watch.watcher import Watcher
from midstream_core import records
from support.migrations.sample_plan import PLAN
from support.run_directory import RunDirectory

REHEARSAL = StartingPoint("step-10-a001", 10, "d1")
SEALED = Sealed(14, "step-14-a001", "d2", 1, records.Fence(1, "a").sealed(2, "b", 14))
RESTORE = records.Restore("step-10-a001", 10, "d1", "d1", [2.0, 3.0], [2.0, 3.00001], 3e-6, "b10", "b10")
DRIFT = records.ParameterDrift(14, "step-14-a001", "d2", 3e-6, 5e-6, "model/x", 100)


def rows(first: int, last: int, drift: float = 0.0) -> list[dict[str, Any]]:
    return [
        {"global_step": step, "train/loss": 3.0 - step / 100 + drift, "batch_digest": f"b{step}", "time": 100.0 + step}
        for step in range(first, last)
    ]


def test_replica_catches_up_only_if_faster() -> None:
    assert ReplicaProgress(110, 10, 1.0, 0.5).seconds == pytest.approx(100.0)
    assert ReplicaProgress(110, 10, 0.5, 1.0).seconds == math.inf
    assert ReplicaProgress(110, 10, 1.0, 0.99).seconds == math.inf, "a difference of 1 % is too small"
    assert ReplicaProgress(10, 12, 1.0, 2.0).seconds == 0.0
    assert ReplicaProgress(110, 10, 0.0, 0.5).seconds == math.inf, "not known yet"


def test_takeover_step_needs_both_paces() -> None:
    assert ReplicaProgress(70, 70, 0.5, 0.01).takeover_step == 272, "two seconds ahead of the faster one"
    assert ReplicaProgress(41, 70, 0.5, 0.5).takeover_step == 76, "the replica may be in front"
    assert ReplicaProgress(41, 70, 0.5, 0.5, call=0.25).takeover_step == 80, "eight calls are made before it"
    assert ReplicaProgress(71, 70, 0.5, 0.01).takeover_step is None, "the replica is behind"
    assert ReplicaProgress(41, 70, 0.0, 0.01).takeover_step is None, "one row of the source has no pace"


def test_replica_near_the_end_falls_back_to_a_copy() -> None:
    far_ahead = ReplicaProgress(41, 1995, 0.5, 0.5)
    assert far_ahead.takeover_step == 2001
    assert far_ahead.takeover_step_before(2002) == 2001, "one step is left after it"
    assert far_ahead.takeover_step_before(0) == 2001, "the last step is unknown"
    with pytest.raises(ReplicaUnfitError, match="take over at step 2001 at the earliest"):
        far_ahead.takeover_step_before(2001)
    assert ReplicaProgress(1999, 1990, 0.5, 0.1).takeover_step_before(2000) is None, "behind: it may still catch up"


def test_pace_uses_the_newest_steps() -> None:
    slow = [{"time": 10.0 * step} for step in range(5)]
    quick = [{"time": 40.0 + 0.5 * step} for step in range(1, 60)]
    assert pace([*slow, *quick]) == pytest.approx(0.5)
    assert pace(slow[:2]) == 0.0


def test_agreement_compares_steps_of_both() -> None:
    agreement = Agreement(1e-4)
    agreement.add_rows(rows(10, 12), [])
    assert agreement.steps == 0
    agreement.add_rows([], rows(10, 14, 1e-5))
    agreement.add_rows(rows(12, 13), [])
    assert (agreement.steps, agreement.first, agreement.last) == (3, 10, 12)
    assert 0 < agreement.worst < 1e-5


def test_agreement_refuses_far_losses_and_other_batches() -> None:
    with pytest.raises(ReplicaUnfitError, match="at step 10"):
        Agreement(1e-4).add_rows(rows(10, 12), rows(10, 12, 1e-2))
    Agreement(2e-2).add_rows(rows(10, 12), rows(10, 12, 1e-2))
    other = [{**row, "batch_digest": "x"} for row in rows(10, 12)]
    with pytest.raises(MidstreamError, match="batch 10"):
        Agreement(1e-4).add_rows(rows(10, 12), other)


def test_losses_of_nan_on_both_sides_agree() -> None:
    nan = [{**row, "train/loss": math.nan} for row in rows(10, 11)]
    agreement = Agreement(1e-4)
    agreement.add_rows([*nan, *rows(11, 14)], [*nan, *rows(11, 14)])
    assert (agreement.steps, agreement.worst) == (4, 0.0)
    with pytest.raises(ReplicaUnfitError, match="at step 10"):
        Agreement(1e-4).add_rows(nan, rows(10, 11))
    proof = certified(source_rows=[*nan, *rows(11, 14)], replica_rows=[*nan, *rows(11, 16)])
    assert verdicts(proof)["continuity"] == VERIFIED
    assert verdicts(certified(source_rows=[*nan, *rows(11, 14)]))["continuity"] == CLAIM_FAILED


def certified(**changes: Any) -> Certificate:
    evidence = {
        "restore": RESTORE,
        "source_rows": rows(10, 14),
        "replica_rows": rows(10, 16, 1e-6),
        "drift": DRIFT,
        **changes,
    }
    return live_certificate.certify(PLAN, SEALED, REHEARSAL, **evidence)


def verdicts(proof: Certificate) -> dict[str, str]:
    return {claim.name: claim.verdict for claim in proof.claims}


def test_live_certificate_states_drift_and_no_copy() -> None:
    proof = certified()
    expected = dict.fromkeys(("state", "data", "reference losses", "continuity", "environment"), VERIFIED)
    assert verdicts(certified(versions=({"jax": "0.10.2"}, {"jax": "0.10.2"}))) == expected
    assert verdicts(proof) == {**expected, "environment": NOT_CHECKED}
    assert proof.valid
    assert (proof.step, proof.root_digest) == (14, "d2")
    statements = {claim.name: claim.statement for claim in proof.claims}
    assert "the source's last state was not copied" in statements["state"]
    assert "all 4 batches from step 10 to 13" in statements["data"]
    assert "3.0e-06 apart at step 14" in statements["continuity"]
    for drift in (None, dataclasses.replace(DRIFT, root_digest="other")):
        assert "was not measured" in certified(drift=drift).claims[3].statement


@pytest.mark.parametrize(
    ("claim", "changes"),
    [
        ("state", {"restore": dataclasses.replace(RESTORE, root_digest="other")}),
        ("state", {"restore": dataclasses.replace(RESTORE, checkpoint="step-9-a001")}),
        ("data", {"replica_rows": [{**row, "batch_digest": "x"} for row in rows(10, 14)]}),
        ("data", {"restore": dataclasses.replace(RESTORE, batch_digest="x")}),
        ("reference losses", {"restore": dataclasses.replace(RESTORE, recomputed_losses=[2.0, 3.1])}),
        ("continuity", {"replica_rows": rows(10, 14, 1e-2)}),
    ],
)
def test_each_difference_fails_its_claim(claim: str, changes: dict[str, Any]) -> None:
    proof = certified(**changes)
    assert verdicts(proof)[claim] == CLAIM_FAILED
    assert not proof.valid


def drift_of(*distances: float) -> records.ParameterDrift:
    """Return the drift of a group; distances of the processes' shards."""
    shards = [
        records.ShardDrift(process, f"host-{process}", distance, 2 * distance, "model/x", 50, 10.0).to_json()
        for process, distance in enumerate(distances)
    ]
    return dataclasses.replace(DRIFT, shards=shards)


def test_certificate_of_a_group_names_its_farthest_shard() -> None:
    proof = certified(drift=drift_of(3e-6, 4e-6, 2e-6))
    assert proof.valid
    statement = proof.claims[3].statement
    assert "compared in 3 shards: at most 4.0e-06, that of process 1 (host-1)" in statement
    assert len(proof.claims[3].evidence["parameter_drift"]["shards"]) == 3


@pytest.mark.parametrize("distance", [0.5, math.nan, math.inf])
def test_shard_that_is_not_the_runs_is_named(distance: float) -> None:
    """The losses agree, and one process has other parameters than the source saved."""
    proof = certified(drift=drift_of(3e-6, 2e-6, distance))
    assert verdicts(proof)["continuity"] == CLAIM_FAILED
    assert not proof.valid
    assert "the shard of process 2 (host-2) is not the run's" in proof.claims[3].statement
    assert Certificate.from_json(proof.to_json()).claims[3].verdict == CLAIM_FAILED


@pytest.mark.parametrize(
    "distances",
    [
        (3e-6, 9e-4),  # within ten tolerances of the losses
        (3e-3, 0.2),  # all are far, as after a long replay
        (math.nan, math.nan),  # as the source's own parameters
        (0.5,),
    ],
)
def test_shards_that_rounding_explains_fail_nothing(distances: tuple[float, ...]) -> None:
    assert certified(drift=drift_of(*distances)).valid


def test_missing_rows_contradict_nothing_and_prove_nothing() -> None:
    proof = certified(replica_rows=[])
    assert verdicts(proof)["data"] == NOT_CHECKED
    assert not proof.valid


def test_steps_past_the_seal_are_compared(tmp_path: Path) -> None:
    """A source that is killed is sealed at what it has saved, which may be where the replay began."""
    source, target = RunDirectory(tmp_path / "a", PLAN.run_id), RunDirectory(tmp_path / "b", PLAN.run_id)
    source.text(1, "".join(f"{json.dumps(row)}\n" for row in rows(8, 17)))
    files = target.attempt(2)
    target.status(2, records.TRAINING, 20)
    RESTORE.write(files.restore)
    Path(files.replay).write_text("".join(f"{json.dumps(row)}\n" for row in rows(10, 19, 1e-6)))
    hosts = [LocalHost(name, LocalHostConfig(root=str(tmp_path / name))) for name in "ab"]
    sealed = dataclasses.replace(SEALED, step=10, checkpoint=REHEARSAL.name, root_digest=REHEARSAL.root_digest)
    facts = Facts(rehearsal=REHEARSAL, standby_attempt=2, takeover_step=19)
    proof = live_certificate.gather(hosts[0], hosts[1], PLAN, sealed, facts, drift_timeout=0.0)
    assert proof is not None
    assert proof.valid, proof.claims
    assert "all 7 batches from step 10 to 16 are the source's" in proof.claims[1].statement


def test_continuity_without_common_steps_is_not_checked() -> None:
    assert verdicts(certified(replica_rows=rows(20, 22)))["continuity"] == NOT_CHECKED


@pytest.mark.parametrize(("ended", "downtime"), [(103.5, 3.5), (99.0, 0.0)])
def test_live_downtime_is_the_wait_for_the_next_step(ended: float, downtime: float) -> None:
    entry = downtime_report.live({}, 100.0, ended)
    assert list(entry.measured) == list(DOWNTIME_PHASES)
    assert entry.total == pytest.approx(downtime) == pytest.approx(sum(entry.measured.values()))


def test_compared_checkpoint_stays_pinned_on_the_target(tmp_path: Path) -> None:
    """The run continues there, and the sealed checkpoint is older than its own ones."""
    run = RunDirectory(tmp_path, "r")
    host = LocalHost("b", LocalHostConfig(root=str(tmp_path)))
    fleet = parse_fleet("hosts:\n  b: {type: local}\n", "fleet.yaml")
    watch = Watcher(fleet, HostPool(fleet))  # it does not run: the host's clock counts as exact
    migration = cast(Migration, SimpleNamespace(plan=PLAN, target=host, watch=watch))
    with pinned_on_target(migration, "step-14-a001"):
        assert pinned(run) == ["step-14-a001"]
    assert pinned(run) == []
    with pytest.raises(MidstreamError, match="cut"), pinned_on_target(migration, "step-14-a001"):
        raise MidstreamError("cut")
    assert pinned(run) == ["step-14-a001"], "the continuing process compares it"


def pinned(run: RunDirectory) -> list[str]:
    found = [records.Pin.read(str(file)) for file in Path(run.paths.pins).iterdir()]
    return [pin.checkpoint for pin in found if pin.expires > time.time() + 3600]


def test_replica_that_began_again_restored_the_seal() -> None:
    """A requeued job restores the sealed checkpoint: it is no replica any more, and not held against the replay."""
    facts = Facts(rehearsal=REHEARSAL, standby_attempt=2)

    def restored(evidence: tuple[int, records.Restore] | None, sealed: Sealed = SEALED) -> bool:
        migration = cast(Migration, SimpleNamespace(journal=SimpleNamespace(facts=facts)))
        return certify.restored_seal(migration, sealed, evidence)

    again = dataclasses.replace(RESTORE, checkpoint=SEALED.checkpoint, step=SEALED.step)
    assert restored((2, again))
    assert not restored((2, RESTORE))
    assert not restored(None)
    ended = dataclasses.replace(SEALED, checkpoint=REHEARSAL.name)  # a source that ended by itself
    assert not restored((2, RESTORE), ended)
    assert restored((3, RESTORE), ended)


@pytest.mark.parametrize("kept", [True, False])
def test_lost_start_of_a_replay_is_the_sources_own(tmp_path: Path, kept: bool) -> None:
    """A journal has lost it: the target names it, and the source's manifest has its digest."""
    source, target = RunDirectory(tmp_path / "a", PLAN.run_id), RunDirectory(tmp_path / "b", PLAN.run_id)
    target.status(2, records.TRAINING, 20)
    RESTORE.write(target.attempt(2).restore)
    if kept:
        source.checkpoint(10)
    hosts = {name: LocalHost(name, LocalHostConfig(root=str(tmp_path / name))) for name in "ab"}
    migration = cast(Migration, SimpleNamespace(plan=PLAN, source=hosts["a"], target=hosts["b"]))
    found = journal_recovery.replay_start(migration, 2, SEALED.checkpoint).rehearsal
    assert found == (StartingPoint("step-10-a001", 10, "d" * 64) if kept else None)
    assert journal_recovery.replay_start(migration, 2, RESTORE.checkpoint) == Facts()
