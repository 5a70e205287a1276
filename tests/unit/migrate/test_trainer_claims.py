"""Claims of a trainer's certificate: what they need, and the reasons where they are not checked."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from midstream.migrate.journal.certificate import CLAIM_FAILED, NOT_CHECKED, VERIFIED, Claim
from midstream.migrate.journal.plan import TrainerPlan
from midstream.migrate.proof.overlap_claim import overlap_claim
from midstream.migrate.proof.replay_overlap import Overlap
from midstream.migrate.proof.trainer_certificate import Evidence, certify
from midstream.migrate.steps.rehearsal_overlap import agreement_hint
from midstream_core import records
from support.migrations.sample_plan import PLAN, SEALED

RATE = "optim/learning_rate"
RESTORE = records.Restore("step-7-a001", 7, "d" * 64, "d" * 64, [], [], 0.0, "", "")
READ = records.TrainerEvidence(7, rows=1, first_row=7, lowest_row=7, files=1, opened=1, opened_until="first row")


def rows(first: int, last: int, **values: Any) -> list[dict[str, Any]]:
    return [{"global_step": step, "train/loss": 1.0 + step / 100, **values} for step in range(first, last)]


def claims(
    source: list[dict[str, Any]], target: list[dict[str, Any]], known: records.TrainerEvidence | None = READ
) -> dict[str, Claim]:
    plan = replace(PLAN, trainer=TrainerPlan("script", "", (), ()))
    proof = certify(plan, SEALED, RESTORE, Evidence(source, target, known, (), 7, {}, {}))
    assert proof.valid == (not [claim for claim in proof.claims if claim.verdict == CLAIM_FAILED])
    return {claim.name: claim for claim in proof.claims}


def test_divided_checkpoint_is_not_called_the_same_bytes() -> None:
    plan = replace(PLAN, trainer=TrainerPlan("script", "", (), ()))
    evidence = Evidence(rows(0, 7), rows(7, 9), READ, (), 7, {}, {})
    plain, divided = (
        next(claim for claim in certify(plan, SEALED, restore, evidence).claims if claim.name == "state")
        for restore in (RESTORE, replace(RESTORE, divided_from=1, divided_over=3, divided_digests={"fp32": "ab"}))
    )
    assert "was started from the bytes that were read on the source" in plain.statement
    assert "were divided over 3 in place of 1 data-parallel process; the host reports each" in divided.statement
    assert divided.evidence["divided"] == {"fp32": "ab"}


def test_rows_of_steps_below_the_checkpoint_fail_the_step() -> None:
    """The rows that are recorded begin at the checkpoint's step all the same."""
    assert claims(rows(0, 7), rows(7, 9))["step"].verdict == VERIFIED
    began = replace(READ, first_row=0, lowest_row=0, rows_below=7)
    failed = claims(rows(0, 7), rows(7, 9), began)["step"]
    assert failed.verdict == CLAIM_FAILED
    assert failed.statement.startswith("the trainer logged step 0 after its start from step 7: it did not continue")


def test_checkpoint_that_nothing_opened_was_not_read() -> None:
    unread = replace(READ, opened=0)
    assert claims(rows(0, 7), rows(7, 9))["checkpoint read"].verdict == VERIFIED
    assert claims(rows(0, 7), rows(7, 9), unread)["checkpoint read"].verdict == CLAIM_FAILED
    for unseen in (None, replace(unread, unwatched="2 nodes"), replace(unread, opened_until="")):
        assert claims(rows(0, 7), rows(7, 9), unseen)["checkpoint read"].verdict == NOT_CHECKED


@pytest.mark.parametrize(
    ("before", "after", "reason"),
    [
        ({}, {}, "it is not logged"),
        ({RATE: 0.1}, {}, "the source logged it, and the target has not yet"),
        ({}, {RATE: 0.1}, "the source has no row with it before the checkpoint"),
    ],
)
def test_missing_learning_rate_has_a_true_reason(before: dict[str, Any], after: dict[str, Any], reason: str) -> None:
    found = claims(rows(0, 7, **before), rows(7, 9, **after))["learning rate"]
    assert found.verdict == NOT_CHECKED
    assert reason in found.statement


def test_lost_rows_are_a_hole_and_no_missing_learning_rate() -> None:
    """Rows that the source lost at its end were named as a learning rate that is not logged."""
    assert claims(rows(0, 7, **{RATE: 0.1}), rows(7, 9, **{RATE: 0.1}))["curve"].verdict == VERIFIED
    found = claims(rows(0, 3, **{RATE: 0.1}), rows(7, 9, **{RATE: 0.1}))
    assert "no row of steps 3 to 6" in found["curve"].statement
    assert found["learning rate"].verdict == VERIFIED
    assert claims([], rows(7, 9, **{RATE: 0.1}))["learning rate"].statement.startswith("the source's rows before")


def test_schedule_that_is_a_step_late_is_not_verified() -> None:
    """The change of two steps was allowed for one."""

    def scheduled(first: int, last: int, late: int = 0) -> list[dict[str, Any]]:
        return [{**row, RATE: 0.1 * (1 - (row["global_step"] - late) / 100)} for row in rows(first, last)]

    assert claims(scheduled(0, 7), scheduled(7, 9))["learning rate"].verdict == VERIFIED
    assert claims(scheduled(0, 7), scheduled(7, 9, late=1))["learning rate"].verdict == NOT_CHECKED
    assert claims(scheduled(0, 7), scheduled(7, 9, late=7))["learning rate"].verdict == CLAIM_FAILED


def test_losses_of_new_parameters_are_another_level() -> None:
    again = [{**row, "train/loss": 11.0} for row in rows(7, 9)]
    assert claims(rows(0, 7), rows(7, 9))["loss level"].verdict == VERIFIED
    assert claims(rows(0, 7), again)["loss level"].verdict == CLAIM_FAILED


@pytest.mark.parametrize(
    ("factor", "verdict"), [(1.0, VERIFIED), (1 + 5e-5, VERIFIED), (1 + 5e-4, NOT_CHECKED), (1.1, CLAIM_FAILED)]
)
def test_overlap_between_rounding_and_band_is_not_checked(factor: float, verdict: str) -> None:
    """Another random state may change losses by less than neighbours differ."""
    other = [{**row, "train/loss": row["train/loss"] * factor} for row in rows(7, 9)]
    assert claims(rows(0, 9), other)["replay overlap"].verdict == verdict


def test_first_loss_shows_nothing_of_the_optimizer() -> None:
    """It was verified: the first loss of a trainer that forgot its momentum is equal bit by bit."""
    first = claims(rows(0, 8), rows(7, 9))["replay overlap"]
    assert (first.verdict, first.statement) == (
        NOT_CHECKED,
        "1 loss of the same steps is equal bit by bit, and the first loss after a start shows nothing of the optimizer",
    )
    assert claims(rows(0, 9), rows(7, 9))["replay overlap"].verdict == VERIFIED


def test_checkpoint_may_have_the_last_step_from_zero() -> None:
    """A common script saves the index of the step it has done: an honest migration was rolled back."""
    last = claims(rows(0, 10), rows(8, 10))["step"]
    assert last.verdict == VERIFIED
    assert "it is the last one that was done" in last.statement
    unknown = claims(rows(0, 8), rows(8, 10))["step"]
    assert unknown.verdict == NOT_CHECKED
    assert "or a step is missing" in unknown.statement
    other = [{**row, "train/loss": row["train/loss"] * 1.00001} for row in rows(8, 10)]
    assert claims(rows(0, 10), other)["step"].verdict == NOT_CHECKED
    assert claims(rows(0, 7), rows(8, 10))["step"].verdict == CLAIM_FAILED, "the source has not done it"
    assert claims(rows(0, 10), rows(9, 11))["step"].verdict == CLAIM_FAILED


def test_counter_of_a_process_does_not_show_the_step() -> None:
    counted = replace(READ, counted="_step")
    assert claims(rows(0, 7), rows(7, 9), counted)["step"].verdict == NOT_CHECKED
    plan = replace(PLAN, trainer=TrainerPlan("script", "", (), ()))
    unseen = replace(counted, opened=0, unwatched="2 nodes")
    assert not certify(plan, SEALED, RESTORE, Evidence(rows(0, 7), rows(7, 9), unseen, (), 7, {}, {})).valid


def test_digests_say_which_state_other_losses_speak_of() -> None:
    def overlap(batches: tuple[tuple[int, str, str], ...]) -> Overlap:
        return Overlap(steps=((7, 1.0, 2.0), (8, 1.1, 2.1)), band=1e-3, batches=batches)

    same, other, none = overlap(((7, "a", "a"),)), overlap(((7, "a", "b"),)), overlap(())
    assert "random_state: 'no'" in agreement_hint(same)
    assert "data_position" not in agreement_hint(same)
    assert "data_position: 'no'" in agreement_hint(other)
    assert "random_state" not in agreement_hint(other)
    assert all(word in agreement_hint(none) for word in ("random_state: 'no'", "data_position: 'no'"))
    plan = replace(PLAN, trainer=TrainerPlan("script", "", (), ()))
    assert "the batches are the same" in overlap_claim(plan, same).statement
    assert "the batches are others" in overlap_claim(plan, other).statement


@pytest.mark.parametrize(
    ("pace", "verdict"), [(1, VERIFIED), (2, NOT_CHECKED), (4, CLAIM_FAILED)], ids=["as before", "twice", "four times"]
)
def test_rate_at_another_pace_is_never_verified(pace: int, verdict: str) -> None:
    """A prepared scheduler of Accelerate steps once for each process, so its slope has their number."""

    def rated(first: int, last: int, slope: float, start: float) -> list[dict[str, Any]]:
        return [{"global_step": n, "train/loss": 1.0, RATE: start - slope * (n - first)} for n in range(first, last)]

    source = rated(0, 7, 0.01, 0.5)
    target = rated(7, 10, 0.01 * pace, 0.5 - 0.06 - 0.01 * pace)
    assert claims(source, target)["learning rate"].verdict == verdict
    again = rated(5, 7, 0.01 * pace, 0.45)  # done by both: the rehearsal
    plan = replace(PLAN, trainer=TrainerPlan("accelerate", "", (), (), same_world=False, losses_may_differ=True))
    proof = certify(plan, SEALED, RESTORE, Evidence(source, target, READ, again, 5, {}, {}))
    rate = next(claim for claim in proof.claims if claim.name == "learning rate")
    assert rate.verdict == (VERIFIED if pace == 1 else CLAIM_FAILED)
    assert proof.valid == (pace == 1), "that losses may differ is no agreement to another rate"
