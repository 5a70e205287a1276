"""A guard executes elsewhere only what its user has agreed to."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from midstream.migrate.failover.guard_consent import GuardConsent, NotAgreedError
from midstream.migrate.journal.plan import Plan, TrainerPlan
from midstream.trainers.run_file_parser import from_value
from midstream_core.json_types import JsonValue
from support.migrations.sample_plan import PLAN

RUN_FILE = {
    "trainer": "script",
    "command": ["python", "train.py"],
    "resume": ["python", "train.py", "--resume", "x"],
    "checkpoints": {"rule": "glob", "pattern": "ckpt-*.json"},
    "metrics": {"source": "jsonl", "path": "{out}/metrics.jsonl"},
}


def of_trainer(**changes: JsonValue) -> Plan:
    run_file = from_value({**RUN_FILE, **changes}, "run.yaml")
    return replace(PLAN, trainer=TrainerPlan("script", json.dumps(run_file.to_json()), (), ()))


def test_other_program_or_content_is_not_executed() -> None:
    agreed = of_trainer()
    assert agreed.trainer is not None
    consent = GuardConsent("key", run_text=agreed.trainer.run_text)
    consent.check(agreed, "key")
    for other in (of_trainer(resume=["sh", "-c", "touch /tmp/x"]), of_trainer(files_digest="ab" * 32)):
        with pytest.raises(NotAgreedError, match="is not the one that was agreed to") as refused:
            consent.check(other, "key")
        assert "midstream --migrate r --to b shows it and asks" in refused.value.hint
    with pytest.raises(NotAgreedError, match="another run of this name"):
        consent.check(agreed, "key of another run")
    with pytest.raises(NotAgreedError, match="would execute"):
        GuardConsent("key").check(agreed, "key")  # the run that was agreed to was one of midstream's engine


def test_line_that_was_not_shown_is_not_agreed_to() -> None:
    plan = replace(PLAN, policy=replace(PLAN.policy, consent=("a value leads out of the run's directory",)))
    with pytest.raises(NotAgreedError, match="not agreed to when the guard was started: a value leads out"):
        GuardConsent("key").check(plan, "key")
    GuardConsent("key", lines=plan.policy.consent).check(plan, "key")
