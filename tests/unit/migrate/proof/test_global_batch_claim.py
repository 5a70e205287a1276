"""The global batch in the certificate: by what the trainer itself records, or not checked with a true reason."""

from __future__ import annotations

import json
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from midstream.migrate.journal.certificate import CLAIM_FAILED, NOT_CHECKED, VERIFIED, Claim
from midstream.migrate.journal.plan import TrainerPlan
from midstream.migrate.proof.global_batch_claim import global_batch_claim
from midstream.migrate.proof.replay_overlap import overlap_of
from midstream_core import records
from midstream_host.driver.metrics.metrics_reader import open_reader
from midstream_host.runs.losses import reduced
from midstream_host.trainers.recorded_epoch import RecordedEpoch, recorded_epoch
from support.paths import FIXTURES

TRAINER = TrainerPlan("huggingface", "", (), (), one_node=True)
SIZED, STREAM = RecordedEpoch(100, True), RecordedEpoch(100, False)
Rows = list[dict[str, Any]]


def rows(first: int, last: int, name: str = "epoch", a_step: float = 1 / 64, digits: int = 12) -> Rows:
    """Return rows of steps whose counter has grown by ``a_step`` in each."""
    return [
        {"global_step": step, "train/loss": 1.0, name: round((step + 1) * a_step, digits)}
        for step in range(first, last)
    ]


def claim(
    source: Rows,
    target: Rows,
    epoch: RecordedEpoch | None = SIZED,
    rehearsed: Rows | None = None,
    trainer: TrainerPlan = TRAINER,
) -> Claim:
    overlaps = [overlap_of(source, each, each[0]["global_step"] if each else 0) for each in (rehearsed or [], target)]
    return global_batch_claim(trainer, source, target, rehearsed or [], overlaps, epoch)


def test_same_epoch_a_step_is_the_same_global_batch() -> None:
    found = claim(rows(0, 100), rows(100, 102))
    assert found.verdict == VERIFIED, found
    assert claim(rows(0, 100), rows(100, 101)).verdict == VERIFIED, "from the source's last row to the target's first"


def test_doubled_batch_fails() -> None:
    """From one device to two, DataParallel divides twice the batch: 64 steps of an epoch become 32."""
    found = claim(rows(0, 100), rows(100, 104, a_step=1 / 32))
    assert found.verdict == CLAIM_FAILED
    assert "2 times the global batch" in found.statement
    rehearsed = rows(75, 78, a_step=1 / 32)
    assert claim(rows(0, 100), [], rehearsed=rehearsed).verdict == CLAIM_FAILED
    agreed = claim(rows(0, 100), rows(100, 104, a_step=1 / 32), trainer=replace(TRAINER, batch_may_differ=True))
    assert (agreed.verdict, agreed.agreed) == (CLAIM_FAILED, True)


@pytest.mark.parametrize(
    ("source", "target", "epoch", "reason"),
    [
        (rows(0, 100), rows(100, 104), None, "does not show how its trainer computes it"),
        (rows(0, 100), rows(100, 104), STREAM, "the data have no length"),
        (rows(0, 100, "loss2"), rows(100, 104, "loss2"), SIZED, "nothing that is logged shows the examples"),
        (rows(0, 100), [], SIZED, "too few rows of the target have their epochs"),
        (rows(99, 100), rows(100, 101), SIZED, "too few rows of the source have their epochs"),
        (rows(0, 100, digits=2), rows(100, 102, digits=2), SIZED, "not precise enough"),
        (rows(0, 100), rows(100, 104, a_step=1 / 61), SIZED, "not precise enough"),
    ],
)
def test_what_shows_no_batch_is_not_checked(
    source: Rows, target: Rows, epoch: RecordedEpoch | None, reason: str
) -> None:
    found = claim(source, target, epoch)
    assert found.verdict == NOT_CHECKED, found
    assert reason in found.statement


def test_short_step_at_the_end_of_an_epoch_is_no_other_batch() -> None:
    source = rows(0, 100)
    source[63]["epoch"] = source[62]["epoch"] + 1 / 640
    for row in source[64:]:
        row["epoch"] -= 9 / 640
    target = [{**row, "epoch": row["epoch"] - 9 / 640} for row in rows(100, 104)]
    assert claim(source, target).verdict == VERIFIED


@pytest.mark.parametrize(("a_step", "verdict"), [(512.0, VERIFIED), (1024.0, CLAIM_FAILED), (528.0, NOT_CHECKED)])
def test_counter_of_examples_is_compared(a_step: float, verdict: str) -> None:
    source = [dict(reduced(row)) for row in rows(0, 100, "consumed_samples", 512.0)]
    target = [dict(reduced(row)) for row in rows(100, 104, "consumed_samples", a_step)]
    assert claim(source, target, None).verdict == verdict


def test_counter_that_begins_again_is_compared_by_its_growth() -> None:
    source, target = rows(0, 100, "progress", 512.0), rows(0, 4, "progress", 512.0)
    for row in target:
        row["global_step"] += 100
    assert claim(source, target, None).verdict == VERIFIED


def with_batches(first: int, last: int, elements: int, digest: str = "") -> Rows:
    more = {"batch_digest": digest} if digest else {}
    return [{**row, "batch_elements": elements, **more} for row in rows(first, last, "loss2")]


def test_tap_counts_the_numbers_of_a_batch() -> None:
    assert claim(with_batches(0, 9, 4096), with_batches(9, 11, 4096), None).verdict == VERIFIED
    doubled = claim(with_batches(0, 9, 4096), with_batches(9, 11, 8192), None)
    assert (doubled.verdict, "4,096" in doubled.statement) == (CLAIM_FAILED, True)
    padded = [*with_batches(0, 5, 4096), *with_batches(5, 9, 4000)]
    assert claim(padded, with_batches(9, 11, 4096), None).verdict == NOT_CHECKED
    several = replace(TRAINER, one_node=False)
    found = claim(with_batches(0, 9, 4096), with_batches(9, 11, 2048), None, trainer=several)
    assert found.verdict == NOT_CHECKED, "the other host has the rest"
    same = claim(with_batches(0, 9, 4096, "a"), with_batches(8, 11, 4096, "a"), None)
    assert same.statement == "1 step consumed the batches that the source consumed"


def test_real_history_of_the_trainer_has_its_epochs(tmp_path: Path) -> None:
    """Transformers wrote it: checkpoint-3 as the source, checkpoint-6 as the target's."""
    reader = open_reader("trainer_state", str(FIXTURES / "trainers/huggingface"), first_step=1)
    found = [dict(reduced(row)) for part in reader.poll() for row in part.rows if "train/loss" in row]
    assert len(found) == 6
    assert claim(found[:3], found[3:]).verdict == VERIFIED

    paths = records.RunPaths(str(tmp_path), "r")
    place = Path(paths.checkpoint("step-3-a001"))
    (place / "files/out").mkdir(parents=True)
    fixture = FIXTURES / "trainers/huggingface/checkpoint-3/trainer_state.json"
    (place / "files/out/trainer_state.json").write_bytes(fixture.read_bytes())
    state = {"rule": "huggingface", "path": "out"}
    records.write_json(str(place / records.TRAIN), {"state": state})
    assert recorded_epoch(str(tmp_path), "r", "step-3-a001") == RecordedEpoch(3, True)
    stream = {**json.loads(fixture.read_text()), "num_train_epochs": sys.maxsize}
    (place / "files/out/trainer_state.json").write_text(json.dumps(stream))
    assert recorded_epoch(str(tmp_path), "r", "step-3-a001") == RecordedEpoch(3, False)
    records.write_json(str(place / records.TRAIN), {"state": {**state, "rule": "lightning"}})
    assert recorded_epoch(str(tmp_path), "r", "step-3-a001") is None
