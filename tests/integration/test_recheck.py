"""A certificate can be checked again later, and a lie on any disk is found then."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from midstream_engine import records
from simulators.sshd import Lab
from support.command_line import SLOWER, TINY, Ended, midstream, refused


def states(ended: Ended) -> dict[str, str]:
    return {check["name"]: check["state"] for check in ended.of("check")}


@pytest.mark.slow  # a whole move, a minute and a half; the claims have tests of their own
def test_a_certificate_is_proven_again_and_every_lie_is_found(lab: Lab, runs):
    one, two = lab.local("one", devices=2), lab.local("two", devices=1)
    fleet = lab.fleet_file(one=one, two=two)
    training = (*SLOWER, "--trainer.num_train_steps", "24", "--trainer.checkpointer.keep", "[{every: 8}]")
    launched = midstream("--fleet", fleet, "--launch", TINY, "--on", "one", "--run-id", "r", "--", *training)
    assert launched.code == 0, launched.stderr
    source = runs(one.root, "r")
    source.wait(lambda run: (status := run.status()) is not None and status.state == "finished", "the end")
    moved = midstream("--fleet", fleet, "--migrate", "r", "--to", "two", "--checkpoint", "8", "--yes",
                      "--mode", "cold", "--certify-steps", "4", "--healthy-steps", "2", "--json")  # fmt: skip
    assert moved.code == 0, moved.stderr
    target = runs(two.root, "r")
    target.wait(lambda run: (status := run.status()) is not None and status.state == "finished", "the end")
    migration = moved.result["migration"]

    again = midstream("--verify", migration, "--json")
    assert again.code == 0, again.stderr
    assert states(again) == dict.fromkeys(
        ("state", "data", "reference losses", "continuity", "source's checkpoint", "target's checkpoint", "lineage"),
        "pass",
    )

    # A bit of what was restored rots: named, and no longer certified.
    stored = Path(target.paths.checkpoint("step-8-a001"))
    victim = max((path for path in stored.rglob("*") if path.is_file()), key=lambda path: path.stat().st_size)
    whole = victim.read_bytes()
    victim.write_bytes(whole[:-1] + bytes([whole[-1] ^ 1]))
    refused(midstream("--verify", migration), 5, "target's checkpoint", victim.name, "SHA-256")
    victim.write_bytes(whole)

    # Evidence that was written over contradicts the certificate.
    evidence = Path(target.paths.attempt(2).restore)
    true = evidence.read_text()
    evidence.write_text(json.dumps({**json.loads(true), "root_digest": "0" * 64}))
    refused(midstream("--verify", migration), 5, "state", "was verified, now failed")
    evidence.write_text(true)

    # What is gone contradicts nothing, and proves nothing.
    (stored / records.MANIFEST).rename(stored / "gone")
    evidence.unlink()
    less = midstream("--verify", migration, "--json")
    assert less.code == 0, less.stderr
    assert states(less)["state"] == states(less)["target's checkpoint"] == "warn"
    assert less.result["not_checked"] == 5
    assert "could not be checked any more" in less.stderr


def test_a_migration_without_a_certificate_says_so(lab: Lab, monkeypatch, tmp_path):
    refused(midstream("--verify", "20260101-000000-none-0000"), 2)
