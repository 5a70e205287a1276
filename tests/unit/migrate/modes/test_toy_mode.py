"""A mode is one file and one line of the registry: a toy shows which places read it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import cast

import pytest

from midstream.errors import UsageError
from midstream.flags import parser
from midstream.migrate import stages
from midstream.migrate.journal.plan import Plan
from midstream.migrate.modes import registry
from midstream.migrate.modes.cold import Cold
from midstream.migrate.modes.mode import Mode
from midstream.migrate.modes.work import Rates, Source, Work
from midstream.migrate.planning import downtime_estimate, plan_estimate
from midstream.migrate.planning.progress import Pace
from midstream.tui.screens import plan_text
from midstream.tui.screens.wizard_choices import mode_rows
from support.migrations.sample_plan import PLAN, changed


class Patient(Cold):
    """A cold migration that first waits for the night."""

    name = "patient"
    sequence = "wait for the night; then stop, copy, start"

    def check_source(self, source: Source) -> None:
        if not source.running:
            raise UsageError(f"run {source.run_id} does not train: there is nothing to wait for", "--mode cold")

    def consent(self, source: Source) -> tuple[str, ...]:
        return (f"{source.run_id} trains until the night",)

    def consequence(self, source: str, target: str, later: str) -> str:
        return f"{source} waits for the night. " + super().consequence(source, target, later)


@pytest.fixture
def patient(monkeypatch: pytest.MonkeyPatch) -> Mode:
    """Register the toy, as its line in the registry would."""
    monkeypatch.setitem(cast("dict[str, Mode]", registry.MODES), Patient.name, Patient())
    return registry.mode_of(Patient.name)


def test_flags_and_wizard_offer_a_registered_mode(patient: Mode) -> None:
    options = parser().parse_args(["--migrate", "r", "--to", "b", "--mode", patient.name])
    assert options.mode == patient.name
    assert patient.sequence in [row.cells[1] for row in mode_rows()]


def test_plan_of_a_registered_mode_is_read_and_described(patient: Mode) -> None:
    plan = Plan.from_json(changed(PLAN, mode=patient.name).to_json())
    assert (plan.mode, plan.has_standby) == (patient.name, False)
    assert plan_text.consequences(plan)[0].startswith("a waits for the night. a saves and stops for good")


def test_estimates_are_those_of_the_registered_mode(patient: Mode) -> None:
    work = Work(400_000_000, (0,), False, False, True, 0, 10, step=0.5, compile=40.0)
    predicted: Mapping[str, float] = downtime_estimate.predict(patient, Pace(), 400_000_000)
    assert predicted == downtime_estimate.predict(Cold(), Pace(), 400_000_000)
    assert stages.COMPILE not in plan_estimate.durations(patient, work, 4.0, Rates()), "no standby compiles before"


def test_an_unregistered_mode_is_refused_everywhere() -> None:
    with pytest.raises(UsageError, match="mode 'patient' is not known"):
        registry.mode_of("patient")
    with pytest.raises(Exception, match="mode: 'patient' is not one of warm, cold, live"):
        Plan.from_json(changed(PLAN, mode="patient").to_json())
