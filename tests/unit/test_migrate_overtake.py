"""Whether a shadow catches up, when its losses are the run's, and what its certificate says."""

from __future__ import annotations

import dataclasses
import math
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from midstream.errors import MidstreamError
from midstream.fleet.fleet import LocalHost
from midstream.hosts.local_host import LocalMachine
from midstream.migrate.execution.migration import Migration, pinned_there
from midstream.migrate.model import CLAIM_FAILED, DOWNTIME_PHASES, NOT_CHECKED, VERIFIED, Certificate
from midstream.migrate.phases.replica import Agreement, NotLevel, ReplicaProgress, pace
from midstream.migrate.proof import downtime_report, live_certificate
from midstream_engine import records
from support.run_directory import RunDirectory
from unit.sample_plan import PLAN

REHEARSAL = {"name": "step-10-a001", "step": 10, "root_digest": "d1"}
SEALED = {"checkpoint": "step-14-a001", "step": 14, "root_digest": "d2"}
RESTORE = records.Restore("step-10-a001", 10, "d1", "d1", [2.0, 3.0], [2.0, 3.00001], 3e-6, "b10", "b10")
CROSSING = records.ParameterDrift(14, "step-14-a001", "d2", 3e-6, 5e-6, "model/x", 100)


def rows(first: int, last: int, drift: float = 0.0) -> list[dict[str, Any]]:
    return [
        {"global_step": step, "train/loss": 3.0 - step / 100 + drift, "batch_digest": f"b{step}", "time": 100.0 + step}
        for step in range(first, last)
    ]


def test_a_shadow_that_is_quicker_catches_up_and_one_that_is_not_never_does():
    assert ReplicaProgress(110, 10, 1.0, 0.5).seconds == pytest.approx(100.0)
    assert ReplicaProgress(110, 10, 0.5, 1.0).seconds == math.inf
    assert ReplicaProgress(110, 10, 1.0, 0.99).seconds == math.inf, "a hair's breadth is no plan"
    assert ReplicaProgress(10, 12, 1.0, 2.0).seconds == 0.0
    assert ReplicaProgress(110, 10, 0.0, 0.5).seconds == math.inf, "not known yet"


def test_the_step_of_the_crossing_is_named_once_both_paces_are_known():
    assert Outlook(70, 70, 0.5, 0.01).crossing == 272, "two seconds ahead of the quicker one"
    assert Outlook(41, 70, 0.5, 0.5).crossing == 76, "the shadow may be in front"
    assert Outlook(71, 70, 0.5, 0.01).crossing is None, "the shadow is behind"
    assert Outlook(41, 70, 0.0, 0.01).crossing is None, "one row of the source says nothing of its pace"


def test_the_pace_is_that_of_the_newest_steps():
    slow = [{"time": 10.0 * step} for step in range(5)]
    quick = [{"time": 40.0 + 0.5 * step} for step in range(1, 60)]
    assert pace([*slow, *quick]) == pytest.approx(0.5)
    assert pace(slow[:2]) == 0.0


def test_steps_are_compared_once_both_have_done_them():
    agreement = Agreement(1e-4)
    agreement.take(rows(10, 12), [])
    assert agreement.steps == 0
    agreement.take([], rows(10, 14, 1e-5))
    agreement.take(rows(12, 13), [])
    assert (agreement.steps, agreement.first, agreement.last) == (3, 10, 12)
    assert 0 < agreement.worst < 1e-5


def test_a_loss_out_of_the_band_is_no_overtake_and_another_batch_is_an_error():
    with pytest.raises(NotLevel, match="at step 10"):
        Agreement(1e-4).take(rows(10, 12), rows(10, 12, 1e-2))
    Agreement(2e-2).take(rows(10, 12), rows(10, 12, 1e-2))
    other = [{**row, "batch_digest": "x"} for row in rows(10, 12)]
    with pytest.raises(MidstreamError, match="batch 10"):
        Agreement(1e-4).take(rows(10, 12), other)


def certified(**changes: Any) -> Certificate:
    evidence = {
        "restore": RESTORE,
        "source_rows": rows(10, 14),
        "shadow_rows": rows(10, 16, 1e-6),
        "crossing": CROSSING,
        **changes,
    }
    return live_certificate.certify(PLAN, SEALED, REHEARSAL, **evidence)


def verdicts(proof: Certificate) -> dict[str, str]:
    return {claim.name: claim.verdict for claim in proof.claims}


def test_the_certificate_says_that_the_state_was_not_copied_and_how_far_it_is():
    proof = certified()
    assert verdicts(proof) == dict.fromkeys(("state", "data", "reference losses", "continuity"), VERIFIED)
    assert proof.valid
    assert (proof.step, proof.root_digest) == (14, "d2")
    said = {claim.name: claim.statement for claim in proof.claims}
    assert "the sealed state was not copied" in said["state"]
    assert "all 4 batches from step 10 to 13" in said["data"]
    assert "3.0e-06 apart at step 14" in said["continuity"]
    assert "was not measured" in certified(crossing=None).claims[3].statement


@pytest.mark.parametrize(
    ("claim", "changes"),
    [
        ("state", {"restore": dataclasses.replace(RESTORE, root_digest="other")}),
        ("state", {"restore": dataclasses.replace(RESTORE, checkpoint="step-9-a001")}),
        ("data", {"shadow_rows": [{**row, "batch_digest": "x"} for row in rows(10, 14)]}),
        ("data", {"restore": dataclasses.replace(RESTORE, batch_digest="x")}),
        ("data", {"shadow_rows": []}),
        ("reference losses", {"restore": dataclasses.replace(RESTORE, recomputed_losses=[2.0, 3.1])}),
        ("continuity", {"shadow_rows": rows(10, 14, 1e-2)}),
    ],
)
def test_each_kind_of_difference_refutes_its_claim(claim: str, changes: dict[str, Any]):
    proof = certified(**changes)
    assert verdicts(proof)[claim] == CLAIM_FAILED
    assert not proof.valid


def test_nothing_that_both_did_is_no_trajectory():
    assert verdicts(certified(shadow_rows=rows(20, 22)))["continuity"] == NOT_CHECKED


@pytest.mark.parametrize(("ended", "downtime"), [(103.5, 3.5), (99.0, 0.0)])
def test_the_ledger_of_an_overtake_holds_the_wait_for_the_next_step_alone(ended: float, downtime: float):
    entry = downtime_report.live({}, 100.0, ended)
    assert list(entry.measured) == list(DOWNTIME_PHASES)
    assert entry.total == pytest.approx(downtime) == pytest.approx(sum(entry.measured.values()))


def test_what_is_compared_on_the_target_is_not_tidied_away_there(tmp_path: Path):
    """The run trains on there, and the sealed checkpoint is older than its own."""
    run = RunDirectory(tmp_path, "r")
    host = LocalMachine("b", LocalHost(root=str(tmp_path)))
    move = cast(Migration, SimpleNamespace(plan=PLAN, target=host, skew=lambda name: 0.0))
    with pinned_there(move, "step-14-a001"):
        assert pinned(run) == ["step-14-a001"]
    assert pinned(run) == []
    with pytest.raises(MidstreamError, match="cut"), pinned_there(move, "step-14-a001"):
        raise MidstreamError("cut")
    assert pinned(run) == ["step-14-a001"], "whoever continues compares it"


def pinned(run: RunDirectory) -> list[str]:
    found = [records.Pin.read(str(file)) for file in Path(run.paths.pins).iterdir()]
    return [pin.checkpoint for pin in found if pin.expires > time.time() + 3600]
