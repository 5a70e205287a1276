"""The certificate says what the evidence says, and nothing more."""

from __future__ import annotations

import dataclasses

import pytest

from midstream.migrate.model import CLAIM_FAILED, NOT_CHECKED, VERIFIED, Certificate, Change, Plan
from midstream.migrate.proof import certificate
from midstream_engine import records
from support.hostile_text import ALL, unsafe
from unit.sample_plan import PLAN

SEALED = {"checkpoint": "step-10-a001", "step": 10, "root_digest": "d1"}
RESTORE = records.Restore("step-10-a001", 10, "d1", "d1", [2.0, 3.0], [2.0, 3.00001], 3e-6, "b10", "b10")
ROWS = [{"global_step": 10, "train/loss": 2.5, "batch_digest": "b10", "attempt": 2}]


def verdicts(proof: Certificate) -> dict[str, str]:
    return {claim.name: claim.verdict for claim in proof.claims}


def test_a_faithful_restore_is_proven_and_a_sealed_source_leaves_no_trajectory():
    proof = certificate.certify(PLAN, SEALED, RESTORE, ROWS, [])
    assert verdicts(proof) == {
        "state": VERIFIED,
        "data": VERIFIED,
        "reference losses": VERIFIED,
        "continuity": NOT_CHECKED,
    }
    assert proof.valid


@pytest.mark.parametrize(
    ("claim", "restore", "rows"),
    [
        ("state", {"root_digest": "d2"}, ROWS),
        ("state", {"step": 9}, ROWS),
        ("data", {"batch_digest": "b11"}, ROWS),
        ("data", {"recorded_batch_digest": ""}, ROWS),
        ("data", {}, [{**ROWS[0], "batch_digest": "b11"}]),
        ("data", {}, []),
        ("reference losses", {"recomputed_losses": [2.0, 3.01]}, ROWS),
        ("reference losses", {"recomputed_losses": [2.0, float("nan")]}, ROWS),
    ],
)
def test_each_kind_of_difference_refutes_its_claim(claim: str, restore: dict, rows: list):
    proof = certificate.certify(PLAN, SEALED, dataclasses.replace(RESTORE, **restore), rows, [])
    assert verdicts(proof)[claim] == CLAIM_FAILED
    assert not proof.valid


@pytest.mark.parametrize("recomputed", [[], [2.0]])
def test_a_missing_witness_is_not_a_proof(recomputed: list):
    proof = certificate.certify(PLAN, SEALED, dataclasses.replace(RESTORE, recomputed_losses=recomputed), ROWS, [])
    assert verdicts(proof)["reference losses"] == NOT_CHECKED
    assert not proof.valid


def test_a_run_that_was_at_its_end_has_no_batch_left_to_consume():
    proof = certificate.certify(PLAN, SEALED, RESTORE, [], [], complete=True)
    assert proof.valid
    other = dataclasses.replace(RESTORE, batch_digest="b11")
    assert not certificate.certify(PLAN, SEALED, other, [], [], complete=True).valid
    assert not certificate.certify(PLAN, SEALED, RESTORE, [], []).valid, "a run that goes on has to have consumed it"


def test_losses_past_the_seal_are_compared_where_the_source_has_them():
    close = [{"global_step": 9, "train/loss": 9.9}, {"global_step": 10, "train/loss": 2.5 * (1 + 5e-5)}]
    far = [{"global_step": 10, "train/loss": 2.6}]
    assert verdicts(certificate.certify(PLAN, SEALED, RESTORE, ROWS, close))["continuity"] == VERIFIED
    refuted = certificate.certify(PLAN, SEALED, RESTORE, ROWS, far)
    assert verdicts(refuted)["continuity"] == CLAIM_FAILED
    assert not refuted.valid
    half = dataclasses.replace(PLAN, changes=(Change("precision", "x", "p=f32,c=bfloat16"),))
    barely = [{"global_step": 10, "train/loss": 2.5 * 1.01}]
    assert verdicts(certificate.certify(half, SEALED, RESTORE, ROWS, barely))["continuity"] == VERIFIED


def test_a_certificate_and_a_plan_survive_their_json():
    proof = certificate.certify(PLAN, SEALED, RESTORE, ROWS, [])
    assert Certificate.from_json(proof.to_json()) == proof
    assert Plan.from_json(PLAN.to_json()) == PLAN


def test_the_page_says_the_verdict_and_shows_the_seam():
    proof = certificate.certify(PLAN, SEALED, RESTORE, ROWS, [])
    page = certificate.page(proof, ROWS, "certificate.svg")
    assert "**Certified**" in page
    assert "| 10 | 2.5 | 2 |" in page
    refuted = dataclasses.replace(RESTORE, root_digest="d2")
    not_proven = certificate.certify(PLAN, SEALED, refuted, ROWS, [])
    assert "**Not certified**" in certificate.page(not_proven, ROWS, "certificate.svg")


def test_the_page_shows_words_of_hosts_as_they_stand():
    proof = certificate.certify(PLAN, SEALED, RESTORE, ROWS, [])
    claim = dataclasses.replace(proof.claims[0], statement=f"{ALL}\n<img src=http://evil/>")
    page = certificate.page(dataclasses.replace(proof, claims=(claim,)), ROWS, "certificate.svg")
    assert not unsafe(page, "\n")
    assert "<img" not in page
    plain = certificate.page(dataclasses.replace(proof, claims=proof.claims[:1]), ROWS, "certificate.svg")
    assert page.count("\n") == plain.count("\n")
