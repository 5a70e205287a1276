"""Trainers that deviate in one way: the certificate is valid only where the trainer did what it claims.

Each case is a small script (`support/trainers/lying_trainer.py`). It runs under the real driver, is stopped and sealed,
its checkpoint is copied to another root, it is started from that, and the real claims are made of what both have on
their disks. An independent check compares each update that was really done with those of a run that nothing interrupts.

    python tests/faults/test_lying_trainers.py --results /tmp/deviations.jsonl
"""

from __future__ import annotations

import json
import random
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from midstream.errors import Exit
from midstream.fleet.fleet import LocalHostConfig
from midstream.hosts.local_host import LocalHost
from midstream.migrate.journal.certificate import CLAIM_FAILED, NOT_CHECKED, VERIFIED, Certificate
from midstream.migrate.journal.facts import Facts, Sealed
from midstream.migrate.journal.plan import TrainerPlan
from midstream.migrate.proof import restore_evidence, trainer_certificate
from midstream_core import records
from simulators.sshd import Lab
from support.command_line import Run, midstream
from support.migrations.campaigns import Campaign, Case
from support.migrations.sample_plan import PLAN
from support.paths import REPOSITORY
from support.trainers.lying_trainer import KINDS, draw, undisturbed, write_lying_script
from support.trainers.trainer_drivers import Driver, drivers

RESULTS = REPOSITORY / "docs/campaigns/lying-trainers.jsonl"
TOLERANCE = 1e-4  # relative: below it the replay overlap takes losses for the same
REFUSED_FOR = 10.0  # seconds after which a checkpoint that is refused stays so
CERTIFY_STEPS = PLAN.policy.certify_steps
# What a claim says nothing of: the first is verified by what was read, not by what was done with it.
COVERED_BY = {"batch": ("replay overlap", "data"), "rate": ("replay overlap", "learning rate"),
              "state": ("replay overlap",)}  # fmt: skip
# Claims that may fail, or not be checked, by kind of deviation; of the other kinds none may.
OVERLAP = "replay overlap"
REASONS: dict[str, tuple[str, ...]] = {
    "ignores": ("step",), "older": ("step",), "counter": ("step",), "old rows": ("step",),
    "other name": ("step",), "earlier name": ("step",), "late, with a later state": ("step",),
    "ignores, but counts on": ("checkpoint read",),
    "reads, and ignores": (OVERLAP, "loss level"), "older, renumbered": (OVERLAP,), "seed": (OVERLAP,),
    "forgets momentum": (OVERLAP,),
    "repeats": (OVERLAP, "data"), "skips": (OVERLAP, "data"), "batch": (OVERLAP, "data", "global batch"),
    "rate": ("learning rate", OVERLAP), "schedule lags": ("learning rate", OVERLAP),
    "schedule begins again": ("learning rate", OVERLAP),
}  # fmt: skip


@contextmanager
def opened() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="midstream-deviations-") as directory:
        yield Path(directory)


def run(case: Case, rng: random.Random, parent: Path) -> str:
    """Return the outcome of a case; AssertionError where the certificate is wrong."""
    directory = parent / f"{rng.randrange(1 << 48):x}"
    file = write_lying_script(directory / "code", case, directory / "truth")
    try:
        with drivers(directory) as make:
            return _migrated(case, make, file, directory)
    finally:
        shutil.rmtree(directory, ignore_errors=True)


def _migrated(case: Case, make: Callable[..., Driver], file: Path, directory: Path) -> str:
    source = make(file)
    source.start()

    refused = {"ahead of": "ahead of the logged steps", "is not shown to be": "whose name no logged step agrees with"}

    def why_refused() -> str:
        return next((why for words, why in refused.items() if words in source.status.message), "")

    def ready() -> bool:
        return bool(source.checkpoints() and len(source.rows()) > 1) or (bool(why_refused()) and stands())

    def stands() -> bool:  # a name that is early may agree a moment later
        return time.monotonic() > begun + REFUSED_FOR and not source.checkpoints()

    begun = time.monotonic()

    source.wait("a start", lambda: Path(source.files.status()).exists())
    source.wait("a checkpoint", ready)
    if not source.checkpoints():
        assert case["kind"] in ("other name", "earlier name"), f"an honest checkpoint is refused: {why_refused()}"
        return f"refused: a checkpoint {why_refused()}"
    source.send(records.STOP, epoch=2, owner="there", migration="m")
    assert source.ended() == records.EXIT_DONE, Path(source.files.log()).read_text()[-2000:]
    fence = records.Fence.read(source.paths.fence)
    assert fence.sealed_step is not None
    name = records.checkpoint_name(fence.sealed_step, 1)
    manifest = records.Manifest.read(f"{source.paths.checkpoint(name)}/{records.MANIFEST}")
    target = make(file)
    target.number = 1
    shutil.copytree(source.paths.checkpoint(name), target.paths.checkpoint(name))
    fence.write(target.paths.fence)
    command = records.Command(records.RESTORE, epoch=2, checkpoint=name, root_digest=manifest.root_digest)
    target.start(epoch=2, command=command)
    logged = {row["global_step"] for row in source.rows() if "train/loss" in row}
    wanted = max(1, min(CERTIFY_STEPS, len([step for step in logged if step >= fence.sealed_step])))

    def enough() -> bool:
        status = records.Status.read_or_none(target.files.status())
        if status is None:
            return False
        return len(target.rows()) >= wanted or bool(status.contradiction) or status.state in records.ENDED

    target.wait("the target's steps", enough)
    sealed = Sealed(fence.sealed_step, name, manifest.root_digest, 1, fence)
    proof = _certified(source, target, sealed)
    rows = target.rows()  # it trains on: each has its update in what is read next
    updates = _truth(directory / "truth", "target")
    return _judged(case, proof, sealed.step, updates, rows)


def _certified(source: Driver, target: Driver, sealed: Sealed) -> Certificate:
    """Make the claims as a cold migration does, of what both hosts have."""
    here, there = (LocalHost(name, LocalHostConfig(root=str(driver.root))) for name, driver in
                   (("here", source), ("there", target)))  # fmt: skip
    plan = replace(PLAN, trainer=TrainerPlan("script", "", (), (), one_node=True))
    found = restore_evidence.restored(there, "r", sealed, target.number)
    assert found is not None
    evidence = trainer_certificate.read_evidence(here, there, plan, sealed, found[0], Facts())
    return trainer_certificate.certify(plan, sealed, found[1], evidence)


def _truth(directory: Path, which: str) -> list[dict[str, Any]]:
    [file] = directory.glob(f"{which}-*.jsonl")
    lines = file.read_text().splitlines(keepends=True)
    return [json.loads(line) for line in lines if line.endswith("\n")]


def _judged(
    case: Case, proof: Certificate, step: int, updates: list[dict[str, Any]], rows: list[dict[str, Any]]
) -> str:
    """Compare the certificate with what was really done."""
    verdicts = {claim.name: claim.verdict for claim in proof.claims}
    step += case["kind"] == "last index"
    said = json.dumps([[claim.name, claim.verdict, claim.statement] for claim in proof.claims])
    expected = undisturbed(case["random"], step + len(updates) + 1)
    right = expected[step : step + len(updates)]
    differing = sorted(
        {key for one, other in zip(updates, right, strict=True) for key in COVERED_BY if one[key] != other[key]}
    )
    recorded = [row for row in rows if "train/loss" in row]
    curve = all(
        row["global_step"] < len(expected) and row["train/loss"] == expected[row["global_step"]]["loss"]
        for row in recorded
    )
    if any(len(one["batch"]) != len(other["batch"]) for one, other in zip(updates, right, strict=True)):
        assert verdicts["global batch"] != VERIFIED, said
    if not proof.valid:
        doubt = proof.doubt
        assert doubt is not None
        assert doubt.name in REASONS.get(case["kind"], ()), f"refused for another reason: {said}"
        return f"{doubt.verdict}: {doubt.name}"
    if not differing and curve:
        return "valid"
    compared = [row["global_step"] for row in recorded if step <= row["global_step"]][:CERTIFY_STEPS]
    distance = max(
        (records.relative_difference(updates[each - step]["loss"], expected[each]["loss"]) for each in compared
         if each - step < len(updates)), default=0.0,
    )  # fmt: skip
    for what in differing:
        for name in COVERED_BY[what]:
            verified = verdicts[name] == VERIFIED
            small = name == "replay overlap" and distance <= TOLERANCE
            assert not verified or small, f"{what} differs, and {name} is verified: {said}"
    if not differing:
        assert verdicts["step"] == NOT_CHECKED, f"the curve is wrong: {said}"
    assert CLAIM_FAILED not in verdicts.values(), said
    overlap = verdicts["replay overlap"] == VERIFIED
    return "not detected: below the tolerance" if overlap else "not checked: " + ", ".join(differing or ["step"])


CAMPAIGN = Campaign(draw, run, opened)


@pytest.mark.timeout(900)
def test_lying_trainers_sample() -> None:
    CAMPAIGN.sample()


@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("kind", KINDS)
def test_each_kind_of_deviation(kind: str) -> None:
    seed = random.SystemRandom().randrange(1 << 32)
    print(f"seed {seed}")

    def drawn(rng: random.Random) -> Case:
        return {**draw(rng), "kind": kind, "source": "regex" if kind == "bars" else "jsonl"}

    assert sum(1 for _ in Campaign(drawn, run, opened).rows(seed, range(3))) == 3


COMPLETE = {
    "amount": 5, "source": "jsonl", "timed": True, "step_name": "step", "new_times": False, "saves": False, "tap": True,
    "every": 25, "pause": 0.02, "random": 7,
    "clock": "day",
}  # fmt: skip


@pytest.mark.slow
@pytest.mark.system
@pytest.mark.parametrize(
    ("kind", "mode", "said"),
    [
        ("honest", "cold", ""),
        ("old rows", "cold", ""),
        ("ignores", "cold", "the trainer logged step 0 after its start"),
        ("ignores, but counts on", "cold", "checkpoint read: no file of the checkpoint was opened"),
        ("ignores, but counts on", "warm", "no process opened a file of the checkpoint"),
        ("older", "warm", "after its start from step"),
        ("rate", "cold", "learning rate: "),
        ("skips", "warm", "losses differ from the source's"),
        ("batch", "warm", "the rehearsal on there: a step has 4 numbers in its batches on the source, and 2 on the"),
        ("batch", "cold", "global batch: a step has 4 numbers in its batches on the source, and 2 on the target"),
    ],
)
def test_deviation_in_a_complete_migration(
    lab: Lab, runs: Callable[..., Run], tmp_path: Path, kind: str, mode: str, said: str
) -> None:
    """The command line, two hosts by SSH, and the trainer: it goes back to the source, or its certificate is valid."""
    here, there = lab.host("here"), lab.host("there")
    fleet = lab.fleet_file(here=here.config, there=there.config)
    file = write_lying_script(tmp_path / "code", {**COMPLETE, "kind": kind}, tmp_path / "truth")
    launched = midstream("--fleet", fleet, "--launch", file, "--on", "here", "--run-id", "r")
    assert launched.code == 0, launched.stderr
    source = runs(here.root, "r")
    source.wait(lambda run: len(run.checkpoints()) > 1, "two checkpoints")
    words = ("--fleet", fleet, "--migrate", "r", "--to", "there", "--mode", mode, "--yes", "--healthy-steps", "3")
    moved = midstream(*words, "--json")
    if not said:
        assert moved.code == 0, moved.stderr
        assert moved.result["certificate"]["valid"]
        return
    assert moved.code == (Exit.NOT_CERTIFIED if mode == "cold" else Exit.FAILED), moved.stderr
    assert said in moved.stderr
    source.wait(lambda run: run.running, "the run on its source")


def test_lying_trainers_results() -> None:
    rows = [json.loads(line) for line in RESULTS.read_text().splitlines()]
    assert len({(row["seed"], row["run"]) for row in rows}) == len(rows) >= 200
    assert {row["kind"] for row in rows} == set(KINDS)
    for row in rows:
        assert row["outcome"] != "valid" or row["kind"] not in ("ignores", "older", "rate", "schedule lags"), row


if __name__ == "__main__":
    CAMPAIGN.main(RESULTS, 240)
