"""The certificate: each claim follows from the evidence."""

from __future__ import annotations

import dataclasses
import math
from pathlib import Path

import pytest

from midstream.migrate.journal.certificate import CLAIM_FAILED, NOT_CHECKED, VERIFIED, Certificate
from midstream.migrate.journal.facts import Sealed
from midstream.migrate.journal.plan import MATMUL_PRECISION, PRECISION, Change, Plan
from midstream.migrate.proof import certificate_page, copy_certificate, curve_picture, live_certificate
from midstream_core import records
from support.hostile_text import ALL, unsafe
from support.migrations.sample_plan import PLAN, changed

SEALED = Sealed(10, "step-10-a001", "d1", 1, records.Fence(1, "a").sealed(2, "b", 10))
RESTORE = records.Restore("step-10-a001", 10, "d1", "d1", [2.0, 3.0], [2.0, 3.00001], 3e-6, "b10", "b10")
ROWS = [{"global_step": 10, "train/loss": 2.5, "batch_digest": "b10", "attempt": 2}]


def verdicts(proof: Certificate) -> dict[str, str]:
    return {claim.name: claim.verdict for claim in proof.claims}


def test_exact_restore_is_verified_without_continuity() -> None:
    proof = copy_certificate.certify(PLAN, SEALED, RESTORE, ROWS, [])
    assert verdicts(proof) == {
        "state": VERIFIED,
        "data": VERIFIED,
        "reference losses": VERIFIED,
        "continuity": NOT_CHECKED,
        "environment": NOT_CHECKED,
    }
    assert proof.valid


def test_other_versions_of_packages_are_named() -> None:
    """Losses of a run that moves between versions of jax differ in their last bits after some steps."""
    before = {"python": "3.11.7", "midstream": "0.1.0", "jax": "0.10.2", "jaxlib": "0.10.2", "numpy": "2.4.6"}
    same = {**before, "python": "3.12.1", "midstream": "0.2.0", "libtpu": "0.0.42"}
    newer = {**same, "jax": "0.12.0.1"}
    fewer = {name: version for name, version in same.items() if name != "jaxlib"}
    found = {}
    for name, after in (("same", same), ("newer", newer), ("fewer", fewer), ("unknown", {})):
        proof = copy_certificate.certify(PLAN, SEALED, RESTORE, ROWS, [], versions=(before, after))
        assert proof.valid
        found[name] = next(claim for claim in proof.claims if claim.name == "environment")
    assert {name: claim.verdict for name, claim in found.items()} == {
        "same": VERIFIED, "newer": CLAIM_FAILED, "fewer": NOT_CHECKED, "unknown": NOT_CHECKED,
    }  # fmt: skip
    assert found["same"].statement == "the same versions of 3 packages"
    assert found["fewer"].statement == "the same versions of 2 packages; one side alone names jaxlib"
    assert found["newer"].statement.startswith("versions differ: jax 0.10.2 -> 0.12.0.1; losses may differ")


@pytest.mark.parametrize(
    ("claim", "restore", "rows"),
    [
        ("state", {"root_digest": "d2"}, ROWS),
        ("state", {"step": 9}, ROWS),
        ("data", {"batch_digest": "b11"}, ROWS),
        ("data", {"recorded_batch_digest": "b11"}, []),
        ("data", {}, [{**ROWS[0], "batch_digest": "b11"}]),
        ("reference losses", {"recomputed_losses": [2.0, 3.01]}, ROWS),
        ("reference losses", {"recomputed_losses": [2.0, float("nan")]}, ROWS),
    ],
)
def test_each_difference_fails_its_claim(claim: str, restore: dict, rows: list) -> None:
    proof = copy_certificate.certify(PLAN, SEALED, dataclasses.replace(RESTORE, **restore), rows, [])
    assert verdicts(proof)[claim] == CLAIM_FAILED
    assert not proof.valid


@pytest.mark.parametrize("recomputed", [[], [2.0]])
def test_missing_reference_losses_are_not_checked(recomputed: list) -> None:
    proof = copy_certificate.certify(PLAN, SEALED, dataclasses.replace(RESTORE, recomputed_losses=recomputed), ROWS, [])
    assert verdicts(proof)["reference losses"] == NOT_CHECKED
    assert not proof.valid


@pytest.mark.parametrize(("restore", "rows"), [({"recorded_batch_digest": ""}, ROWS), ({}, [])])
def test_missing_evidence_is_not_checked(restore: dict, rows: list) -> None:
    """On the old code rows that a power cut had taken rolled a target back, with the steps that it had done."""
    copied = copy_certificate.certify(PLAN, SEALED, dataclasses.replace(RESTORE, **restore), rows, [])
    live = live_certificate.certify(PLAN, SEALED, SEALED.starting_point, RESTORE, [], [], None)
    for proof in (copied, live):
        assert verdicts(proof)["data"] == NOT_CHECKED
        assert (proof.valid, proof.unproven) == (False, ("data",))
        agreed = proof.accepting(proof.unproven)
        assert (agreed.valid, agreed.unchecked) == (True, proof.unchecked)
    wrong = copy_certificate.certify(PLAN, SEALED, dataclasses.replace(RESTORE, step=9), [], [])
    assert (wrong.unproven, wrong.accepting(("state", "data")).valid) == ((), False), "a contradiction is not agreed to"


def test_finished_run_needs_no_consumed_batch() -> None:
    proof = copy_certificate.certify(PLAN, SEALED, RESTORE, [], [], complete=True)
    assert proof.valid
    other = dataclasses.replace(RESTORE, batch_digest="b11")
    assert not copy_certificate.certify(PLAN, SEALED, other, [], [], complete=True).valid
    assert not copy_certificate.certify(PLAN, SEALED, RESTORE, [], []).valid, (
        "a run that continues must have consumed the batch"
    )


def test_source_losses_past_the_seal_are_compared() -> None:
    close = [{"global_step": 9, "train/loss": 9.9}, {"global_step": 10, "train/loss": 2.5 * (1 + 5e-5)}]
    far = [{"global_step": 10, "train/loss": 2.6}]
    assert verdicts(copy_certificate.certify(PLAN, SEALED, RESTORE, ROWS, close))["continuity"] == VERIFIED
    failed = copy_certificate.certify(PLAN, SEALED, RESTORE, ROWS, far)
    assert verdicts(failed)["continuity"] == CLAIM_FAILED
    assert not failed.valid
    half = changed(PLAN, changes=(Change("precision", "x", "p=f32,c=bfloat16"),))
    barely = [{"global_step": 10, "train/loss": 2.5 * 1.01}]
    assert verdicts(copy_certificate.certify(half, SEALED, RESTORE, ROWS, barely))["continuity"] == VERIFIED


@pytest.mark.parametrize(
    ("policies", "products", "verdict"),
    [
        (("f32", "f32"), None, CLAIM_FAILED),
        (("f32", "f32"), ("default", "default"), VERIFIED),
        (("f32", "f32"), ("default", "highest"), VERIFIED),
        (("f32", "f32"), ("highest", "default"), VERIFIED),
        (("p=f32,c=bfloat16", "f32"), None, VERIFIED),
        (("p=f32,c=bfloat16", "f32"), ("default", "highest"), VERIFIED),
    ],
)
def test_tolerance_is_that_of_the_lower_precision(
    policies: tuple[str, str], products: tuple[str, str] | None, verdict: str
) -> None:
    changes = [Change(PRECISION, *policies)]
    if products is not None:
        changes.append(Change(MATMUL_PRECISION, *products))
    barely = [{"global_step": 10, "train/loss": 2.5 * 1.01}]
    proof = copy_certificate.certify(changed(PLAN, changes=tuple(changes)), SEALED, RESTORE, ROWS, barely)
    claim = next(claim for claim in proof.claims if claim.name == "continuity")
    assert claim.verdict == verdict
    rounded = "products in the accelerator's default precision"
    assert (rounded in claim.statement) == (products is not None and policies[0] == "f32")


def test_certificate_and_plan_round_trip_json() -> None:
    proof = copy_certificate.certify(PLAN, SEALED, RESTORE, ROWS, [])
    assert Certificate.from_json(proof.to_json()) == proof
    assert Plan.from_json(PLAN.to_json()) == PLAN


def test_page_shows_verdict_and_rows_at_the_seal() -> None:
    proof = copy_certificate.certify(PLAN, SEALED, RESTORE, ROWS, [])
    page = certificate_page.page(proof, ROWS, "certificate.svg")
    assert "**Certified**" in page
    assert "| 10 | 2.5 | 2 |" in page
    other = dataclasses.replace(RESTORE, root_digest="d2")
    failed = copy_certificate.certify(PLAN, SEALED, other, ROWS, [])
    assert "**Not certified**" in certificate_page.page(failed, ROWS, "certificate.svg")


def test_page_escapes_text_of_hosts() -> None:
    proof = copy_certificate.certify(PLAN, SEALED, RESTORE, ROWS, [])
    claim = dataclasses.replace(proof.claims[0], statement=f"{ALL}\n<img src=http://evil/>")
    page = certificate_page.page(dataclasses.replace(proof, claims=(claim,)), ROWS, "certificate.svg")
    assert not unsafe(page, "\n")
    assert "<img" not in page
    plain = certificate_page.page(dataclasses.replace(proof, claims=proof.claims[:1]), ROWS, "certificate.svg")
    assert page.count("\n") == plain.count("\n")


NAN_ROWS = [{**ROWS[0], "train/loss": math.nan}, {**ROWS[0], "global_step": 11}]


@pytest.mark.parametrize(("source", "verdict"), [(math.nan, VERIFIED), (2.5, CLAIM_FAILED)])
def test_loss_of_nan_is_compared_and_written(tmp_path: Path, source: float, verdict: str) -> None:
    """A run may continue past a loss of NaN; both sides then have it at the same step."""
    theirs = [{"global_step": 10, "train/loss": source}, {"global_step": 11, "train/loss": 2.5}]
    proof = copy_certificate.certify(PLAN, SEALED, RESTORE, NAN_ROWS, theirs)
    assert verdicts(proof)["continuity"] == verdict
    records.write_json(str(tmp_path / "certificate.json"), proof.to_json())
    read = Certificate.from_json(records.read_json(str(tmp_path / "certificate.json")))
    assert verdicts(read) == verdicts(proof)
    for one in (proof, read):
        assert "<svg" in curve_picture.seam(one, NAN_ROWS)
        assert "2.5" in certificate_page.page(one, NAN_ROWS, "seam.svg", None)


def test_loss_of_one_side_that_is_not_finite_is_named() -> None:
    recomputed = [RESTORE.recorded_losses[0], math.nan]
    source = [{"global_step": ROWS[0]["global_step"], "train/loss": math.inf}]
    proof = copy_certificate.certify(
        PLAN, SEALED, dataclasses.replace(RESTORE, recomputed_losses=recomputed), ROWS, source
    )
    for name in ("reference losses", "continuity"):
        claim = next(claim for claim in proof.claims if claim.name == name)
        assert claim.verdict == CLAIM_FAILED
        assert "by up to infinity (a loss of one side is not finite)" in claim.statement
