"""`--verify MIGRATION` checks a certificate again and finds changed evidence."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from midstream_core import records
from simulators.sshd import Lab
from support.command_line import SLOWER, TINY, Ended, Run, midstream, refused


def states(ended: Ended) -> dict[str, str]:
    return {check["name"]: check["state"] for check in ended.of("check")}


@pytest.mark.slow  # a complete migration, a minute and a half; the claims have tests of their own
def test_recheck_finds_every_change_of_evidence(lab: Lab, runs: Callable[..., Run]) -> None:
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
        (
            "state",
            "data",
            "reference losses",
            "continuity",
            "environment",
            "source's checkpoint",
            "target's checkpoint",
            "lineage",
        ),
        "pass",
    )

    # One bit of the restored checkpoint flips: the file is named, and the recheck fails.
    stored = Path(target.paths.checkpoint("step-8-a001"))
    victim = max((path for path in stored.rglob("*") if path.is_file()), key=lambda path: path.stat().st_size)
    original = victim.read_bytes()
    victim.write_bytes(original[:-1] + bytes([original[-1] ^ 1]))
    refused(midstream("--verify", migration), 5, "target's checkpoint", victim.name, "SHA-256")
    victim.write_bytes(original)

    # Overwritten evidence contradicts the certificate.
    evidence = Path(target.paths.attempt(2).restore)
    original_text = evidence.read_text()
    evidence.write_text(json.dumps({**json.loads(original_text), "root_digest": "0" * 64}))
    refused(midstream("--verify", migration), 5, "state", "was verified, now failed")
    evidence.write_text(original_text)

    # Deleted evidence cannot be checked, and contradicts nothing.
    (stored / records.MANIFEST).rename(stored / "renamed")
    evidence.unlink()
    less = midstream("--verify", migration, "--json")
    assert less.code == 0, less.stderr
    assert states(less)["state"] == states(less)["target's checkpoint"] == "warn"
    assert less.result["not_checked"] == 5
    assert "can no longer be checked" in less.stderr


def test_recheck_requires_certificate() -> None:
    refused(midstream("--verify", "20260101-000000-none-0000"), 2)
