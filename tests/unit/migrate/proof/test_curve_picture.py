"""The certificate's picture of the loss curve; small for runs of any length."""

from __future__ import annotations

import dataclasses
import xml.etree.ElementTree as ET

from midstream.migrate.journal.certificate import VERIFIED, Certificate, Claim
from midstream.migrate.proof import curve_picture

SVG = "{http://www.w3.org/2000/svg}"
PROOF = Certificate(
    "m", "nano", "gpu<1>", "pod", 50, "step-50-a001", "d", 2, (Claim("continuity", VERIFIED, "", {"steps": []}),), 0.0
)


def rows(count: int, cut: int = 50) -> list[dict]:
    return [
        {"global_step": step, "train/loss": 1.0 + (step % 7) / 7, "attempt": 1 if step < cut else 2}
        for step in range(count)
    ]


def test_attempts_have_lines_and_the_seal_a_mark() -> None:
    drawing = ET.fromstring(curve_picture.seam(PROOF, rows(100)))
    colours = {line.get("stroke") for line in drawing.iter(f"{SVG}polyline")}
    assert colours & set(curve_picture.COLOURS) == set(curve_picture.COLOURS[:2])
    assert len([line for line in drawing.iter(f"{SVG}polyline") if line.get("stroke-dasharray")]) == 2
    assert "gpu<1> → pod" in "".join(drawing.itertext())


def test_source_losses_past_the_seal_are_drawn() -> None:
    compared = Claim("continuity", VERIFIED, "", {"steps": [[50, 1.5, 1.5], [51, 1.25, 1.25], [90, 1.0, 1.0]]})
    proof = dataclasses.replace(PROOF, claims=(compared,))
    drawing = ET.fromstring(curve_picture.seam(proof, rows(100)))
    assert len(list(drawing.iter(f"{SVG}circle"))) == 2 + 1, "two steps near the seal, one marker in the legend"


def test_curve_with_at_most_one_loss_is_drawn() -> None:
    for curve in ([], rows(1), [{"global_step": 3, "attempt": 1, "train/loss": float("nan")}]):
        ET.fromstring(curve_picture.seam(PROOF, curve))


def test_long_run_makes_a_small_file() -> None:
    assert len(curve_picture.seam(PROOF, rows(200_000))) < 60_000
