"""Cost of a migration, and estimates from earlier measurements."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from midstream.migrate.journal import cost, migration_directory
from midstream.migrate.journal.facts import Copied, Facts
from midstream.migrate.journal.journal import Journal
from midstream.migrate.modes.cold import Cold
from midstream.migrate.modes.registry import COLD, WARM
from midstream.migrate.modes.warm import Warm
from midstream.migrate.planning import downtime_estimate
from midstream.migrate.planning.measured_rates import PastMigration, Rates, past_migrations, rates_between
from midstream.migrate.planning.progress import Pace
from midstream.migrate.stages import DOWNTIME_PHASES
from support.migrations.sample_plan import PLAN, changed


def estimate(**other: Any) -> cost.Cost | None:
    given = {
        "prepare_seconds": 600.0, "downtime": 60.0, "step_before": 2.0, "step_after": 0.5,
        "tokens": 4000, "steps_left": 100_000, **other,
    }  # fmt: skip
    return cost.estimate(given.pop("prices", (10.0, 20.0)), **given)


def test_migration_pays_after_cheaper_steps_cover_its_cost() -> None:
    found = estimate()
    assert found is not None
    assert found.migration == pytest.approx((20 * 600 + 30 * 60) / 3600)
    assert found.pays_after_steps is not None
    steps = found.pays_after_steps
    assert found.step_after is not None
    assert steps * found.step_before == pytest.approx(found.migration + steps * found.step_after)
    assert found.pays_after_hours == pytest.approx(steps * 0.5 / 3600)
    text = "\n".join(cost.describe(found))
    assert "10.00 an hour -> 20.00" in text
    assert "1000 tokens 0.001389" in text
    assert "pays for itself after" in text


def test_describe_names_no_payback_and_unmeasured_steps() -> None:
    assert "never pays" in "\n".join(cost.describe(estimate(step_after=1.5)))  # type: ignore[arg-type]
    assert "100 are left" in "\n".join(cost.describe(estimate(steps_left=100)))  # type: ignore[arg-type]
    unknown = estimate(step_after=None)
    assert unknown is not None
    assert (unknown.pays_after_steps, unknown.pays_below_seconds) == (None, 1.0)
    assert "less than 1 s" in "\n".join(cost.describe(unknown))
    assert estimate(prices=(10.0, None)) is None


BIG = 100_000_000
EARLIER = [
    PastMigration("r", "a", "b", WARM, BIG, {"copy": 4.0, "quiesce": 0.5}, ((BIG, 10.0), (1000, 9.0)), 0.25),
    PastMigration("r", "a", "b", COLD, BIG, {"compile": 30.0}, (), 0.0),
    PastMigration("x", "a", "b", WARM, BIG, {"copy": 2.0}, ((2 * BIG, 10.0),), 0.1),
    PastMigration("r", "b", "a", WARM, BIG, {"copy": 99.0}, ((BIG, 0.1),), 9.0),
]


def test_rates_come_from_earlier_migrations_of_same_hosts() -> None:
    rates = rates_between(EARLIER, "r", "a", "b", WARM, 2 * BIG)
    assert rates.copy == pytest.approx(15e6), "copies too small to measure the link are left out"
    assert rates.step == 0.25
    assert rates.entries["copy"] == pytest.approx(6.0), "twice the state takes twice the time"
    assert rates.entries["quiesce"] == 0.25
    predicted = downtime_estimate.predict(Warm(), Pace(), 2 * BIG, rates)
    assert predicted == {**dict.fromkeys(DOWNTIME_PHASES, 0.0), **rates.entries}
    assert (
        downtime_estimate.predict(Cold(), Pace(), 2 * BIG, rates_between(EARLIER, "r", "a", "b", COLD, BIG))["compile"]
        == 30.0
    )


def test_look_back_finds_measurements_of_a_migration(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MIDSTREAM_STATE", str(tmp_path))
    made = migration_directory.create(changed(PLAN, mode=WARM, checkpoint_bytes=BIG), "")
    journal = Journal(made.journal_file)
    journal.record(Facts(rehearsal_copy=Copied(BIG, 10.0), rehearsed_step_seconds=0.25))
    journal.record(Facts(state_copy=Copied(BIG // 2, 10.0)))
    journal.close()
    made.downtime_file.write_text(json.dumps({"predicted": {}, "measured": {"copy": 3.0}}))
    broken = tmp_path / "migrations" / "20200101-000000-x-0000"
    broken.mkdir()
    (broken / "plan.json").write_text("{}")
    (one,) = past_migrations()
    assert one == PastMigration("r", "a", "b", WARM, BIG, {"copy": 3.0}, ((BIG, 10.0), (BIG // 2, 10.0)), 0.25)
    assert rates_between([one], "r", "a", "b", WARM, BIG).copy == pytest.approx(7.5e6)


def test_without_measurements_default_rates_apply() -> None:
    assert rates_between(EARLIER, "r", "a", "c", WARM, BIG) == Rates()
    slow = downtime_estimate.predict(Cold(), Pace(), BIG, Rates(copy=1e6, step=3.0))
    assert slow["copy"] == pytest.approx(101.0)
    assert slow["first_step"] == 3.0
