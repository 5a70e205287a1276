"""What a move costs, when it pays, and how long it will take by what was measured before."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import pytest

from midstream.migrate.execution import migration_directory
from midstream.migrate.execution.journal import Journal
from midstream.migrate.model import COLD, DOWNTIME_PHASES, WARM
from midstream.migrate.planning import cost
from midstream.migrate.planning.measured_rates import Earlier, Rates, look_back, measured
from midstream.migrate.proof import downtime_report
from unit.sample_plan import PLAN


def estimate(**other):
    given = {
        "prepare_seconds": 600.0, "downtime": 60.0, "step_before": 2.0, "step_after": 0.5,
        "tokens": 4000, "steps_left": 100_000, **other,
    }  # fmt: skip
    return cost.estimate(given.pop("prices", (10.0, 20.0)), **given)


def test_a_move_pays_when_cheaper_steps_have_made_up_for_it():
    found = estimate()
    assert found is not None
    assert found.move == pytest.approx((20 * 600 + 30 * 60) / 3600)
    assert found.pays_after_steps is not None
    steps = found.pays_after_steps
    assert found.step_after is not None
    assert steps * found.step_before == pytest.approx(found.move + steps * found.step_after)
    assert found.pays_after_hours == pytest.approx(steps * 0.5 / 3600)
    told = "\n".join(cost.describe(found))
    assert "10.00 an hour -> 20.00" in told
    assert "1000 tokens 0.001389" in told
    assert "pays for itself after" in told


def test_what_never_pays_or_was_not_measured_is_said():
    assert "never pays" in "\n".join(cost.describe(estimate(step_after=1.5)))  # type: ignore[arg-type]
    assert "100 are left" in "\n".join(cost.describe(estimate(steps_left=100)))  # type: ignore[arg-type]
    unknown = estimate(step_after=None)
    assert unknown is not None
    assert (unknown.pays_after_steps, unknown.pays_below_seconds) == (None, 1.0)
    assert "less than 1 s" in "\n".join(cost.describe(unknown))
    assert estimate(prices=(10.0, None)) is None


BIG = 100_000_000
EARLIER = [
    Earlier("r", "a", "b", WARM, BIG, {"copy": 4.0, "quiesce": 0.5}, ((BIG, 10.0), (1000, 9.0)), 0.25),
    Earlier("r", "a", "b", COLD, BIG, {"compile": 30.0}, (), 0.0),
    Earlier("x", "a", "b", WARM, BIG, {"copy": 2.0}, ((2 * BIG, 10.0),), 0.1),
    Earlier("r", "b", "a", WARM, BIG, {"copy": 99.0}, ((BIG, 0.1),), 9.0),
]


def test_earlier_moves_between_the_same_hosts_are_believed():
    rates = measured(EARLIER, "r", "a", "b", WARM, 2 * BIG)
    assert rates.copy == pytest.approx(15e6), "what is too small to tell of the link is left out"
    assert rates.step == 0.25
    assert rates.entries["copy"] == pytest.approx(6.0), "twice the state takes twice as long"
    assert rates.entries["quiesce"] == 0.25
    predicted = downtime_report.predict([], 2 * BIG, WARM, rates)
    assert predicted == {**dict.fromkeys(DOWNTIME_PHASES, 0.0), **rates.entries}
    assert downtime_report.predict([], 2 * BIG, COLD, measured(EARLIER, "r", "a", "b", COLD, BIG))["compile"] == 30.0


def test_what_a_move_has_measured_is_found_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("MIDSTREAM_STATE", str(tmp_path))
    made = migration_directory.create(dataclasses.replace(PLAN, mode=WARM, checkpoint_bytes=BIG), "")
    journal = Journal(made.journal_file)
    journal.fact(rehearsal_bytes=BIG, rehearsal_seconds=10.0, rehearsed_seconds=0.25)
    journal.fact(copied_bytes=BIG // 2, copy_seconds=10.0)
    journal.close()
    made.ledger_file.write_text(json.dumps({"predicted": {}, "measured": {"copy": 3.0}}))
    broken = tmp_path / "migrations" / "20200101-000000-x-0000"
    broken.mkdir()
    (broken / "plan.json").write_text("{}")
    (one,) = look_back()
    assert one == Earlier("r", "a", "b", WARM, BIG, {"copy": 3.0}, ((BIG, 10.0), (BIG // 2, 10.0)), 0.25)
    assert measured([one], "r", "a", "b", WARM, BIG).copy == pytest.approx(7.5e6)


def test_where_nobody_has_measured_assumptions_stand():
    assert measured(EARLIER, "r", "a", "c", WARM, BIG) == Rates()
    slow = downtime_report.predict([], BIG, COLD, Rates(copy=1e6, step=3.0))
    assert slow["copy"] == pytest.approx(101.0)
    assert slow["first_step"] == 3.0
